"""The reference of errors, written from their docstrings: `python -m freshview.cli.errors_reference`."""

from __future__ import annotations

import inspect
import re

from freshview import errors
from freshview.errors import FreshviewError

_HEAD = """\
# Errors

Written by `python -m freshview.cli.errors_reference` from the docstrings of `freshview.errors`; a test compares the
two, and raises the examples.

A message names the thing, then the cause, then the remedy. An error changes nothing: what was committed before stays,
and the statement that failed did nothing. A transaction stays open after it; an exception that leaves the `with` block
rolls it back. On the command line an error is one sentence on stderr, and the exit code is 1. No Java stack trace is
shown; `--verbose` shows Spark's log.

```python
from freshview.errors import FreshviewError, WriteConflict
```

All classes are kinds of `FreshviewError`, whose attributes `what`, `cause` and `remedy` hold the parts of the message.
In the examples `…` stands for what differs from case to case.
"""
_PARTS = ("Cause", "Remedy", "Example")


def classes() -> list[type[FreshviewError]]:
    """All errors below the root, as they stand in the module."""
    found = [c for c in vars(errors).values() if inspect.isclass(c) and issubclass(c, FreshviewError)]
    return [c for c in found if c is not FreshviewError]


def entry(error: type[FreshviewError]) -> dict[str, str]:
    """What the docstring says: '' the condition in a sentence, then its parts by name."""
    first, *rest = re.split(r"\n\n(\w+): ", inspect.getdoc(error) or "")
    parts = dict(zip(rest[::2], rest[1::2], strict=True))
    if tuple(parts) != _PARTS:
        raise ValueError(f"{error.__name__}: its docstring has the parts {tuple(parts)}, not {_PARTS}")
    return {name: " ".join(text.split()) for name, text in {"": first, **parts}.items()}


def text() -> str:
    """The whole reference, in Markdown."""
    rows = [f"| [{c.__name__}](#{c.__name__.lower()}) | {entry(c)['']} |" for c in classes()]
    table = "\n".join(["| error | condition |", "| --- | --- |", *rows])
    return "\n\n".join(part.rstrip("\n") for part in (_HEAD, table, *map(_section, classes()))) + "\n"


def _section(error: type[FreshviewError]) -> str:
    told = entry(error)
    (base,) = error.__bases__
    kind = "" if base is FreshviewError else f" A kind of [{base.__name__}](#{base.__name__.lower()})."
    return "\n\n".join(
        (
            f"## {error.__name__}",
            f"{told['']}{kind}",
            f"**Cause.** {told['Cause']}",
            f"**Remedy.** {told['Remedy']}",
            f"```text\n{told['Example']}\n```",
        )
    )


if __name__ == "__main__":
    print(text(), end="")
