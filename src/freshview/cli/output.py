"""What the command line prints: plain lines, as they are, whether to a screen or to a file."""

from __future__ import annotations

from rich.console import Console

_out = Console(soft_wrap=True, highlight=False, markup=False, emoji=False)
_err = Console(soft_wrap=True, highlight=False, markup=False, emoji=False, stderr=True)


def say(text: str) -> None:
    _out.print(" ".join(text.split()))


def complain(text: str) -> None:
    _err.print(" ".join(text.split()))
