"""`freshview serve`: a process that keeps the views of a warehouse fresh."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from freshview.cli.output import say
from freshview.cli.place import Command, Place, command
from freshview.errors import FreshviewError
from freshview.events import Event

if TYPE_CHECKING:
    from freshview.warehouse import Warehouse

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@command
def serve(
    place: Place,
    path: Annotated[Path | None, typer.Argument(help="Folder of the warehouse; the same as -w.")] = None,
    policy: Annotated[str, typer.Option(help="Which view first: oldest, use or size.")] = "oldest",
    once: Annotated[bool, typer.Option("--once", help="Maintain what is pending now, then exit.")] = False,
) -> None:
    """Maintain the views of a warehouse in the background, until told to stop (SIGINT, SIGTERM)."""
    place = replace(place, folder=path) if path is not None else place
    place.require()
    failed: list[str] = []
    with until_told(), place.connect(background=not once, policy=policy) as warehouse:
        report = Report()
        warehouse.events.listen(report)
        if once:
            failed = _maintain_all(warehouse, report)
        else:
            say(f"Serving {place.folder}. Ctrl-C or SIGTERM stops it.")
            threading.Event().wait()
    if failed:
        raise typer.Exit(1)


def _maintain_all(warehouse: Warehouse, report: Report) -> list[str]:
    """Bring each view up to date, whatever happens to the others; the names of those that could not be."""
    failed = []
    for view in warehouse.status().views:
        try:
            warehouse.maintain([view.name])
        except FreshviewError as error:
            report.failed(view.name, str(error))
            failed.append(view.name)
    return failed


@contextmanager
def until_told() -> Iterator[None]:
    """SIGINT and SIGTERM end the block, in order; they are no error, and not heard again while it ends."""

    def stop(*_: Any) -> None:
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in _SIGNALS}
    try:
        yield
    except KeyboardInterrupt:
        say("Stopped.")
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Report:
    """Prints a line per job, and one per failure that is not the one just told."""

    def __init__(self) -> None:
        self._last = ""

    def __call__(self, event: Event) -> None:
        told = event.details
        match event.name:
            case "job.done":
                self._line(f"{told['view']}: done, CSN {told['from_csn']} to {told['to_csn']}")
                self._last = ""
            case "job.cancelled":
                self._line(f"{told['view']}: cancelled, still pending")
            case "job.failed":
                self.failed(told["view"], told["error"])
            case "manager.failed" | "background.failed" | "checkpoint.failed":
                self.failed(told.get("relation", "maintenance"), told["error"])

    def failed(self, what: str, error: str) -> None:
        if error != self._last:
            self._last = error
            self._line(f"{what}: failed: {error}")

    def _line(self, text: str) -> None:
        say(f"{datetime.now():%Y-%m-%d %H:%M:%S} {text}")


COMMANDS = (
    Command(serve, "Keep fresh", ("freshview serve", "freshview serve sales --policy use", "freshview serve --once")),
)
