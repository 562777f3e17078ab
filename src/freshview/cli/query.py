"""`freshview sql`: run statements from the command line, a file or a pipe."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from freshview.cli.cells import csv_line, json_object
from freshview.cli.output import complain, say, table, write
from freshview.cli.place import Command, Place, command
from freshview.cli.progress import Bar, working
from freshview.cli.running import Done, ReadOptions, ResultRows, Running, freshness_from, moment_from
from freshview.display import counted
from freshview.errors import InvalidStatement, NotFound
from freshview.events import Event


class OutputFormat(StrEnum):
    table = "table"
    csv = "csv"
    json = "json"


@command
def sql(
    place: Place,
    statement: Annotated[
        str | None, typer.Argument(help="SQL, with semicolons between statements; default: from --file or a pipe.")
    ] = None,
    file: Annotated[Path | None, typer.Option("--file", "-f", help="Read the statements from a file.")] = None,
    format: Annotated[OutputFormat, typer.Option("--format", help="The format of printed rows.")] = OutputFormat.table,
    json: Annotated[bool, typer.Option("--json", help="Short for --format json.")] = False,
    freshness: Annotated[
        str | None,
        typer.Option("--freshness", help="Views are read fresh, any (as stored), or at most so old: 30s, 10m, 2h, 1d."),
    ] = None,
    as_of: Annotated[
        str | None, typer.Option("--as-of", help="Read all as of a CSN, or a time such as 2030-01-31T08:00.")
    ] = None,
) -> None:
    """Run SQL from the command line, a file or a pipe.

    Each statement commits by itself, except between BEGIN and COMMIT. The first error ends the run, and rolls back an
    open transaction. JSON is a list of rows for one query, {rows, csn} for another statement, and a list of such
    answers for several statements. In CSV, NULL is an empty field, an empty string a pair of quotes.
    """
    from freshview.sql.script import statements

    found = statements(_text(statement, file))
    if not found:
        raise InvalidStatement("statement", "there is none", "Give a statement, --file, or a pipe.")
    options = ReadOptions(
        freshness_from(freshness) if freshness is not None else None, moment_from(as_of) if as_of is not None else None
    )
    chosen = OutputFormat.json if json else format
    with Running(place, options) as running:
        _PRINTERS[chosen](running, found)
        if running.transaction is not None:
            raise InvalidStatement("transaction", "it was not ended, and is rolled back", "End it with COMMIT.")


def _text(statement: str | None, file: Path | None) -> str:
    if statement is not None and file is not None:
        raise InvalidStatement("--file", "a statement is given too", "Give one of them.")
    if statement is not None:
        return statement
    if file is not None:
        return read_script(file)
    return "" if sys.stdin.isatty() else sys.stdin.read()


def read_script(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        cause = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise NotFound(f"file {file}", cause or str(error), "Check the path.") from error


def ask(running: Running, text: str, *, stream: bool = False) -> ResultRows | Done:
    """Run a statement under a progress bar, which also names the steps of reading a view's text."""
    what = f"{' '.join(text.split()):.60}"
    with working(what) as bar:
        running.listener = lambda event: _show_step(event, bar, what)
        try:
            return running.run(text, stream=stream)
        finally:
            running.listener = None


_STEPS = {
    "text": "how Spark reads its text",
    "tree": "comparing plans",
    "self-test": "testing on small tables",
}


def _show_step(event: Event, bar: Bar, what: str) -> None:
    if event.name == "view.reading":
        step = _STEPS.get(event.details["step"])
        bar.now(f"View {event.details['view']}: {step}" if step is not None else what)


def _print_tables(running: Running, found: Sequence[str]) -> None:
    for text in found:
        print_answer(ask(running, text))


def print_answer(answer: ResultRows | Done) -> None:
    """Print an answer as text."""
    if isinstance(answer, Done):
        say(f"{answer.text}.")
        return
    rows = list(answer.rows)
    table(answer.columns, rows)
    say(f"{counted(len(rows), 'row')}.")


def _print_csv(running: Running, found: Sequence[str]) -> None:
    """Print rows on stdout, with an empty line between two answers, and the outcome of other statements on stderr."""
    first = True
    for text in found:
        answer = ask(running, text, stream=True)
        if isinstance(answer, Done):
            complain(f"{answer.text}.")
            continue
        if not first:
            write("")
        first = False
        write(csv_line(answer.columns))
        for row in answer.rows:
            write(csv_line(row))


def _print_json(running: Running, found: Sequence[str]) -> None:
    """Print one answer, or a list of answers as they come; an error closes the list too."""
    if len(found) == 1:
        write(_json(ask(running, found[0])))
        return
    write("[")
    try:
        for place, text in enumerate(found):
            answer = _json(ask(running, text))
            write(f", {answer}" if place else answer)
    finally:
        write("]")


def _json(answer: ResultRows | Done) -> str:
    if isinstance(answer, Done):
        return json_object([("rows", answer.rows), ("csn", answer.csn)])
    repeated = sorted({c for c in answer.columns if answer.columns.count(c) > 1})
    if repeated:
        raise InvalidStatement(
            f"column {repeated[0]}", "two columns have that name, and JSON keeps one", "Rename one with AS."
        )
    rows = [json_object(zip(answer.columns, row, strict=True)) for row in answer.rows]
    return "[\n  " + ",\n  ".join(rows) + "\n]" if rows else "[]"


_PRINTERS: dict[OutputFormat, Callable[[Running, Sequence[str]], None]] = {
    OutputFormat.table: _print_tables,
    OutputFormat.csv: _print_csv,
    OutputFormat.json: _print_json,
}

COMMANDS = (
    Command(
        sql,
        "Work",
        (
            'freshview sql "SELECT customer, sum(amount) AS total FROM orders GROUP BY customer"',
            'freshview sql "INSERT INTO orders VALUES (7, 1, 12.50); SELECT count(*) AS n FROM orders" --format json',
            "freshview sql --file changes.sql",
            'echo "SHOW TABLES" | freshview sql --format csv',
            'freshview sql "SELECT * FROM totals" --freshness 10m',
            'freshview sql "SELECT * FROM orders" --as-of 2',
        ),
    ),
)
