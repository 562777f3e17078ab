"""`freshview serve`: a process that keeps the views of a warehouse fresh."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from freshview.cli.cells import json_text
from freshview.cli.output import say, write
from freshview.cli.place import Command, Place, command
from freshview.errors import FreshviewError
from freshview.events import Event
from freshview.interruption import Interruption, ask_to_stop, is_asked_to_stop

if TYPE_CHECKING:
    from freshview.warehouse.warehouse import Warehouse

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@command
def serve(
    place: Place,
    path: Annotated[Path | None, typer.Argument(help="Folder of the warehouse; the same as -w.")] = None,
    policy: Annotated[
        str,
        typer.Option(
            help="Which view first: oldest (waits longest), use (queried next, as expected), size (most pending)."
        ),
    ] = "oldest",
    busy_load: Annotated[float, typer.Option(help="Wait while the machine's load per core is above this.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Maintain what is pending now, then exit.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print a line of JSON for each job.")] = False,
) -> None:
    """Keep the views of a warehouse fresh, in the background, until told to stop (Ctrl-C, SIGTERM).

    It works while the machine is not busy. Deferred views follow their own policies.
    """
    place = replace(place, folder=path) if path is not None else place
    place.require()
    failed: list[str] = []
    with until_told(silent=json), place.connect(background=not once, policy=policy, busy_load=busy_load) as warehouse:
        report = JsonReport() if json else Report()
        warehouse.events.listen(report)
        if once:
            failed = _maintain_all(warehouse, report)
        else:
            report.begun(place.folder)
            while not is_asked_to_stop():  # the exception ends it at once, unless it got lost
                time.sleep(1)
    if failed:
        raise typer.Exit(1)


def _maintain_all(warehouse: Warehouse, report: Report) -> list[str]:
    """Bring each view up to date, whatever happens to the others; the names of those that could not be.

    Nobody has named them, so what deferred views show is left to their policies.
    """
    failed = []
    for view in warehouse.status().views:
        try:
            warehouse.maintain([view.name], show=False)
        except FreshviewError as error:
            if is_asked_to_stop():
                raise
            report.failed(view.name, str(error))
            failed.append(view.name)
    return failed


@contextmanager
def until_told(*, silent: bool = False) -> Iterator[None]:
    """SIGINT and SIGTERM end the block, in order; they are no error, and not heard again while it ends."""

    def stop(*_: Any) -> None:
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        ask_to_stop()
        raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in _SIGNALS}
    asked = Interruption()
    try:
        with asked.here():
            yield
    except (Exception, KeyboardInterrupt):
        if not asked.requested:
            raise
        if not silent:
            say("Stopped.")
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Report:
    """Prints a line per job, and one per failure that is not the one just told."""

    def __init__(self) -> None:
        self._last = ""

    def begun(self, folder: Path) -> None:
        say(f"Serving {folder}. Ctrl-C or SIGTERM stops it.")

    def __call__(self, event: Event) -> None:
        told = event.details
        match event.name:
            case "job.done":
                self.done(told["view"], told["from_csn"], told["to_csn"])
                self._last = ""
            case "job.cancelled":
                self.cancelled(told["view"])
            case "job.failed":
                self.failed(told["view"], told["error"])
            case "manager.failed" | "background.failed" | "checkpoint.failed":
                self.failed(told.get("relation", "maintenance"), told["error"])

    def failed(self, what: str, error: str) -> None:
        if error != self._last:
            self._last = error
            self.failure(what, error)

    def done(self, view: str, from_csn: int, to_csn: int) -> None:
        self._line(f"{view}: done, CSN {from_csn} to {to_csn}")

    def cancelled(self, view: str) -> None:
        self._line(f"{view}: cancelled, still pending")

    def failure(self, what: str, error: str) -> None:
        self._line(f"{what}: failed: {error}")

    def _line(self, text: str) -> None:
        say(f"{datetime.now():%Y-%m-%d %H:%M:%S} {text}")


class JsonReport(Report):
    """The same for programs: a line of JSON for each."""

    def begun(self, folder: Path) -> None:
        self._object("begun", warehouse=folder)

    def done(self, view: str, from_csn: int, to_csn: int) -> None:
        self._object("done", view=view, from_csn=from_csn, to_csn=to_csn)

    def cancelled(self, view: str) -> None:
        self._object("cancelled", view=view)

    def failure(self, what: str, error: str) -> None:
        self._object("failed", view=what, error=error)

    def _object(self, event: str, **details: Any) -> None:
        write(json_text({"time": datetime.now().astimezone(), "event": event, **details}))
        sys.stdout.flush()


COMMANDS = (
    Command(
        serve, "Keep fresh", ("freshview serve", "freshview serve sales --policy use", "freshview serve --once --json")
    ),
)
