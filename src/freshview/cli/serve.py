"""`freshview serve`: a process that keeps the views of a warehouse fresh."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

import freshview
from freshview.cli.output import say
from freshview.errors import FreshviewError, NotFound
from freshview.events import Event
from freshview.pairing import is_warehouse

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def serve(
    path: Annotated[Path, typer.Argument(help="Folder of the warehouse.")],
    catalog: Annotated[str | None, typer.Option(help="Database URL; SQLite in the folder if left out.")] = None,
    policy: Annotated[str, typer.Option(help="Which view first: oldest, use or size.")] = "oldest",
    once: Annotated[bool, typer.Option("--once", help="Maintain what is pending now, then exit.")] = False,
) -> None:
    """Maintain the views of a warehouse in the background, until told to stop (SIGINT, SIGTERM)."""
    if not is_warehouse(path):
        raise NotFound(f"warehouse {path}", "there is none in this folder", "Check the path.")
    failed: list[str] = []
    with until_told(), freshview.connect(path, catalog, background=not once, policy=policy) as warehouse:
        report = Report()
        warehouse.events.listen(report)
        if once:
            failed = _maintain_all(warehouse, report)
        else:
            say(f"Serving {path}. Ctrl-C or SIGTERM stops it.")
            threading.Event().wait()
    if failed:
        raise typer.Exit(1)


def _maintain_all(warehouse: freshview.Warehouse, report: Report) -> list[str]:
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
