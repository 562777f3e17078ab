r"""`freshview shell`: run statements as they are typed. `prompt` reads the keyboard.

Shortcuts (such as `\d`) are answered at once; any other text is collected up to its semicolon, then run. The shell
reports an error and goes on; a transaction stays open until it is ended.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Protocol

import typer

from freshview.cli.output import complain, say, table
from freshview.cli.place import Command, Place, command
from freshview.cli.query import ask, print_answer
from freshview.cli.running import Running
from freshview.errors import FreshviewError
from freshview.interruption import Interruption, is_asked_to_stop
from freshview.relation.names import backticked

_HELP = (
    ("\\d", "tables and views"),
    ("\\d NAME", "columns and details of a table or view"),
    ("\\dt", "tables"),
    ("\\dv", "materialized views"),
    ("\\tasks", "pending maintenance"),
    ("\\timing", "print how long statements take, or stop printing it"),
    ("\\?", "this help"),
    ("\\q", "leave (an open transaction is rolled back)"),
    ("SELECT …;", "a statement, over any number of lines, up to its semicolon"),
    ("BEGIN; … COMMIT;", "a transaction; ROLLBACK; discards it"),
)
SHORTCUTS = tuple(dict.fromkeys(name.split()[0] for name, _ in _HELP if name.startswith("\\")))


class Texts(Protocol):
    """A source of texts for the shell."""

    def read(self, in_transaction: bool) -> str | None:
        """Return the next text, whole statements or a shortcut; None at the end."""


class Piped:
    """Texts from a file or pipe, without a prompt."""

    def __init__(self, lines: Iterator[str]) -> None:
        self._lines = lines

    def read(self, in_transaction: bool) -> str | None:  # noqa: ARG002
        from freshview.sql.script import is_complete

        text = ""
        for line in self._lines:
            text += line
            if text.lstrip().startswith("\\") or (text.strip() and is_complete(text)):
                return text
        return text or None


class Shell:
    """Reads texts, runs them and prints the answers, until the source ends."""

    def __init__(self, running: Running, source: Texts) -> None:
        self._running = running
        self._source = source
        self._timing = True
        self._over = False
        self.failures = 0

    def run(self) -> None:
        while not self._over and self._turn():
            pass
        if self._running.transaction is not None:
            complain("The open transaction is rolled back.")

    def _turn(self) -> bool:
        """Run the next text; return False at the end. Ctrl-C stops a running statement, or discards the typed text."""
        with Interruption().here(), suppress(KeyboardInterrupt):
            text = self._source.read(self._running.transaction is not None)
            if text is None:
                return False
            self._guarded(text.strip())
        return True

    def _take(self, text: str) -> None:
        from freshview.sql.script import statements

        if text.startswith("\\"):
            self._shortcut(text.rstrip(";").split())
            return
        for statement in statements(text):
            self._statement(statement)

    def _guarded(self, text: str) -> None:
        try:
            self._take(text)
        except (Exception, KeyboardInterrupt) as error:
            stopped = isinstance(error, KeyboardInterrupt) or is_asked_to_stop()
            if not stopped and not isinstance(error, FreshviewError):
                raise
            self.failures += 1
            complain("Interrupted: what was committed stays." if stopped else str(error))

    def _statement(self, text: str) -> None:
        begun = time.monotonic()
        print_answer(ask(self._running, text))
        if self._timing:
            say(f"({time.monotonic() - begun:.3f} s)")

    def _shortcut(self, words: list[str]) -> None:
        match words:
            case ["\\d", name]:
                self._print(f"DESCRIBE EXTENDED {backticked(name.strip('`'))}")
            case ["\\d"]:
                self._print("SHOW TABLES", "SHOW MATERIALIZED VIEWS")
            case ["\\dt"]:
                self._print("SHOW TABLES")
            case ["\\dv"]:
                self._print("SHOW MATERIALIZED VIEWS")
            case ["\\tasks"]:
                self._print("SHOW TASKS")
            case ["\\timing"]:
                self._timing = not self._timing
                say(f"Timing is {'on' if self._timing else 'off'}.")
            case ["\\q"]:
                self._over = True
            case ["\\?"]:
                table(("what", "does"), _HELP)
            case _:
                self.failures += 1
                complain(f"{' '.join(words)} is not known. \\? lists the shortcuts.")

    def _print(self, *statements: str) -> None:
        for statement in statements:
            print_answer(self._running.run(statement))


@command
def shell(place: Place) -> None:
    r"""Type SQL: history, completion, statements over several lines, BEGIN, COMMIT and ROLLBACK. \? lists more."""
    with Running(place) as running:
        typed = sys.stdin.isatty()
        if typed:
            from freshview.cli.prompt import Keyboard

            say(f"Warehouse {place.folder}. \\? lists what can be typed, \\q leaves.")
        opened = Shell(running, Keyboard(running.catalog) if typed else Piped(iter(sys.stdin)))
        opened.run()
        if opened.failures and not typed:
            raise typer.Exit(1)


COMMANDS = (Command(shell, "Work", ("freshview shell", 'echo "\\dt" | freshview shell')),)
