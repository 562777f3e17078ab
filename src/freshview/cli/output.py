"""Printing: results go to stdout, errors and remarks to stderr."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console

from freshview.cli.cells import aligned_right, cell_text, json_text
from freshview.display import Displayed, display_of

# A file or a pipe has no width: lines are not wrapped or cut off there.
_ENDLESS = 1_000_000


def say(text: str) -> None:
    """Print a line on stdout."""
    _console().print(" ".join(text.split()), soft_wrap=True)


def complain(text: str) -> None:
    """Print a line on stderr."""
    _console(stderr=True).print(" ".join(text.split()), soft_wrap=True)


def write(text: str) -> None:
    """Write text to stdout unchanged, ended by a newline."""
    sys.stdout.write(text if text.endswith("\n") else f"{text}\n")


def write_json(value: Any) -> None:
    """Print a value as JSON: one line per element of a list, or per field of an object."""
    match value:
        case dict() if value:
            fields = (f"  {json_text(str(k))}: {json_text(v)}" for k, v in value.items())
            write("{\n" + ",\n".join(fields) + "\n}")
        case list() if value:
            write("[\n" + ",\n".join(f"  {json_text(v)}" for v in value) + "\n]")
        case _:
            write(json_text(value))


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print rows under their columns; a terminal wraps long cells, and nothing is left out."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=box.SIMPLE_HEAD, show_edge=False)
    numeric = aligned_right(rows)
    for place, column in enumerate(columns):
        drawn.add_column(Text(column), justify="right" if place in numeric else "left", overflow="fold")
    for row in rows:
        drawn.add_row(*(Text(cell_text(cell)) for cell in row))
    _console().print(drawn)


def print_report(result: Displayed) -> None:
    """Print the headline, tables and remarks of a result, with nothing cut off."""
    report = display_of(result)
    say(report.headline)
    for found in report.tables:
        table(found.columns, found.rows)
    for remark in report.remarks:
        say(remark)


def _console(*, stderr: bool = False) -> Console:
    """Return a new console for each use, since tests and pipes replace the streams."""
    console = Console(highlight=False, markup=False, emoji=False, stderr=stderr)
    if not console.is_terminal:
        console.width = _ENDLESS
    return console
