"""Progress of long work, on a screen only: what is done, for how long, and how long it may take yet.

It is drawn on stderr, so that answers on stdout stay clean; where stderr is no screen, nothing is drawn.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from rich.console import Console

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_EVERY = 0.2  # seconds between two looks at Spark


class Steps:
    """Steps of known number, and the one that is being done."""

    def __init__(self, progress: Progress | None, task: TaskID | None) -> None:
        self._progress = progress
        self._task = task

    def now(self, what: str) -> None:
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, description=what)

    def done(self, steps: int = 1) -> None:
        if self._progress is not None and self._task is not None:
            self._progress.advance(self._task, steps)


@contextmanager
def steps(what: str, total: int) -> Iterator[Steps]:
    """A bar over steps of known number, with the time left by the pace so far."""
    with _drawn() as progress:
        yield Steps(progress, progress.add_task(what, total=total) if progress is not None else None)


@contextmanager
def working(what: str) -> Iterator[None]:
    """A bar over whatever Spark is doing: the tasks of its stages. Until there are any, a pulse."""
    with _drawn() as progress:
        if progress is None:
            yield
            return
        task = progress.add_task(what, total=None)
        ended = threading.Event()
        watcher = threading.Thread(target=_watch, args=(progress, task, ended), name="freshview-progress", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            ended.set()
            watcher.join(timeout=5)


@contextmanager
def _drawn() -> Iterator[Progress | None]:
    if not sys.stderr.isatty():
        yield None
        return
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    # A stream of its own: while Spark starts, stderr leads elsewhere.
    with os.fdopen(os.dup(sys.stderr.fileno()), "w") as screen:
        columns = (
            SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(),
            TimeElapsedColumn(), TimeRemainingColumn(),
        )  # fmt: skip
        with Progress(*columns, console=Console(file=screen), transient=True) as progress:
            yield progress


def _watch(progress: Progress, task: TaskID, ended: threading.Event) -> None:
    while not ended.wait(_EVERY):
        with suppress(Exception):  # a bar that cannot be drawn stops no work
            found = _tasks_of_spark()
            if found is not None:
                progress.update(task, completed=found[0], total=found[1])


def _tasks_of_spark() -> tuple[int, int] | None:
    """Tasks done and tasks in all, of the stages that run now; None if nothing runs, or Spark cannot tell."""
    if "pyspark" not in sys.modules:
        return None
    from pyspark.sql import SparkSession

    tracker = SparkSession.active().sparkContext.statusTracker()
    stages = [s for s in map(tracker.getStageInfo, tracker.getActiveStageIds()) if s is not None]
    total = sum(s.numTasks for s in stages)
    return (sum(s.numCompletedTasks for s in stages), total) if total else None
