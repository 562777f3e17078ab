"""What the command line prints: answers on stdout, whatever is told besides on stderr."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console

from freshview.cli.cells import aligned_right, json_text, shown
from freshview.display import Shown, told

# A file or a pipe has no width: nothing is wrapped or cut off there.
_ENDLESS = 1_000_000


def say(text: str) -> None:
    """One line on stdout."""
    _console().print(" ".join(text.split()), soft_wrap=True)


def complain(text: str) -> None:
    """One line on stderr."""
    _console(stderr=True).print(" ".join(text.split()), soft_wrap=True)


def write(text: str) -> None:
    """Text on stdout as it is, ended by a newline."""
    sys.stdout.write(text if text.endswith("\n") else f"{text}\n")


def write_json(value: Any) -> None:
    """A value as JSON: one line per element of a list, or per field of an object."""
    match value:
        case dict() if value:
            fields = (f"  {json_text(str(k))}: {json_text(v)}" for k, v in value.items())
            write("{\n" + ",\n".join(fields) + "\n}")
        case list() if value:
            write("[\n" + ",\n".join(f"  {json_text(v)}" for v in value) + "\n]")
        case _:
            write(json_text(value))


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Rows under their columns; on a screen long cells are wrapped, nothing is ever left out."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=box.SIMPLE_HEAD, show_edge=False)
    numeric = aligned_right(rows)
    for place, column in enumerate(columns):
        drawn.add_column(Text(column), justify="right" if place in numeric else "left", overflow="fold")
    for row in rows:
        drawn.add_row(*(Text(shown(cell)) for cell in row))
    _console().print(drawn)


def show(result: Shown) -> None:
    """A result as it tells itself anywhere, with nothing cut off."""
    what = told(result)
    say(what.headline)
    for found in what.tables:
        table(found.columns, found.rows)
    for remark in what.remarks:
        say(remark)


def _console(*, stderr: bool = False) -> Console:
    """Made anew for each use, since tests and pipes replace the streams."""
    console = Console(highlight=False, markup=False, emoji=False, stderr=stderr)
    if not console.is_terminal:
        console.width = _ENDLESS
    return console
