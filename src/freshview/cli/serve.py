"""`freshview serve`: a process that maintains the views of a warehouse in the background."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from freshview.cli.cells import json_text
from freshview.cli.output import say, write
from freshview.cli.place import Command, Place, command
from freshview.cli.progress import working
from freshview.errors import FreshviewError
from freshview.events import Event
from freshview.interruption import Interruption, ask_to_stop, is_asked_to_stop

if TYPE_CHECKING:
    from freshview.warehouse.warehouse import Warehouse

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
NICE = 5  # beside other threads of one scheduling group, one of this process gets a quarter of a core
_AUTOGROUP = Path("/proc/self/autogroup")
_THREADS = Path("/proc/self/task")


@command
def serve(
    place: Place,
    path: Annotated[Path | None, typer.Argument(help="Folder of the warehouse, in place of -w.")] = None,
    policy: Annotated[
        str,
        typer.Option(
            help="The view to maintain first: oldest (longest waiting), use (soonest queried), size (most pending)."
        ),
    ] = "oldest",
    busy_load: Annotated[float, typer.Option(help="Wait while the machine's load per core is above this.")] = 2.0,
    workers: Annotated[int, typer.Option(help="Maintain this many views side by side.")] = 2,
    nice: Annotated[
        int,
        typer.Option(min=0, max=19, help="Leave the processor to other programs of the machine; 0: compete with them."),
    ] = NICE,
    once: Annotated[bool, typer.Option("--once", help="Maintain what is pending now, then exit.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print a line of JSON for each job.")] = False,
) -> None:
    """Maintain the views of a warehouse in the background, until Ctrl-C or SIGTERM.

    Jobs run while the machine is not busy. Deferred views follow their own policies. Spark starts at once if there are
    views.
    """
    place = replace(place, folder=path) if path is not None else place
    place.require()
    options = {"policy": policy, "busy_load": busy_load, "workers": workers}
    report = JsonReport() if json else Report()
    if not once:
        _be_nice(nice)  # first of all: what a thread starts has the priority of that thread
    with until_signal(silent=json), place.connect(background=not once, **options) as warehouse:
        warehouse.events.listen(report)
        if once:
            _maintain_all(warehouse, report)
        else:
            report.begun(place.folder)
            _start_spark(warehouse)
            while not is_asked_to_stop():  # the exception ends the loop at once, unless it got lost
                time.sleep(1)
    if report.failures:
        raise typer.Exit(1)


def _be_nice(nice: int) -> None:
    """Lower the priority of this process, as far as the system lets it.

    On Linux a thread has a priority of its own, and libraries start threads when they are imported: each gets it. Where
    Linux groups processes by session (`sched_autogroup_enabled`), a nice value counts only among those of one session;
    the session as a whole has one of its own. It is set if this process leads the session, as under a service manager
    or `setsid`: else it would be that of the user's shell.
    """
    if not hasattr(os, "nice"):
        return
    reached = os.nice(nice)
    for thread in _THREADS.iterdir() if _THREADS.is_dir() else ():
        with suppress(OSError):  # it has ended
            os.setpriority(os.PRIO_PROCESS, int(thread.name), reached)
    if nice and os.getsid(0) == os.getpid():
        with suppress(OSError):  # another system, or a kernel without groups
            _AUTOGROUP.write_text(str(reached))


def _start_spark(warehouse: Warehouse) -> None:
    """Start Spark before the first job needs it; a warehouse without views may never need it."""
    if warehouse.status().views:
        with working("Starting Spark"):
            warehouse.engine()


def _maintain_all(warehouse: Warehouse, report: Report) -> None:
    """Bring each view up to date, whether or not others fail; the report hears of those that failed.

    The user has named no view, so what deferred views show is left to their policies.
    """
    try:
        warehouse.maintain(show=False)
    except FreshviewError:
        if is_asked_to_stop() or not report.failures:
            raise


@contextmanager
def until_signal(*, silent: bool = False) -> Iterator[None]:
    """Run the block until SIGINT or SIGTERM, which are no error; further signals are ignored while the block ends."""

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
    """Prints a line per job, and one per failure unless it repeats the last one."""

    def __init__(self) -> None:
        self.failures: list[str] = []  # views that could not be brought up to date
        self._last = ""

    def begun(self, folder: Path) -> None:
        say(f"Serving {folder}. Ctrl-C or SIGTERM stops it.")

    def __call__(self, event: Event) -> None:
        details = event.details
        match event.name:
            case "job.done":
                self.done(details["view"], details["from_csn"], details["to_csn"])
                self._last = ""
            case "job.cancelled":
                self.cancelled(details["view"])
            case "job.failed":
                self.failed(details["view"], details["error"])
            case "maintain.failed":
                self.failures.append(details["view"])
                self.failed(details["view"], details["error"])
            case "flow.failed":
                self.failed(f"flow {details['flow']}", details["error"])
            case "manager.failed" | "background.failed" | "checkpoint.failed" | "schedule.failed":
                self.failed(details.get("relation", "maintenance"), details["error"])

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
    """Prints each line as JSON, for programs."""

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
