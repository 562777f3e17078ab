"""Progress bars for long work: the amount done, the time taken, and the time left.

Bars are drawn on stderr, so that stdout has results only; if stderr is not a terminal, nothing is drawn. The time left
follows from the pace since the work began.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_EVERY = 0.2  # seconds between two polls of Spark
_WHOLE_WORK = 1e9  # seconds over which the pace is measured: the whole work


@dataclass(frozen=True)
class WorkAmount:
    """The amount of work."""

    total: int
    unit: str = "rows"
    is_estimate: bool = False  # whether the amount done is an estimate; the total is exact

    def text(self, done: int) -> str:
        about = "~" if self.is_estimate else ""
        if self.unit == "bytes":
            return f"{about}{done / 1e6:,.1f}/{self.total / 1e6:,.1f} MB"
        return f"{about}{done:,}/{self.total:,} {self.unit}"


class Bar:
    """A bar with the amount done and the current step; without a `progress` it draws nothing."""

    def __init__(self, progress: Progress | None, what: str, size: WorkAmount | None) -> None:
        self._progress = progress
        self._task: TaskID | None = None
        self._size = size
        self._done = 0
        if progress is not None:
            self._task = progress.add_task(what, total=size.total if size else None, amount="")
            self.add(0)  # the pace is measured from here

    def now(self, what: str) -> None:
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, description=what)

    def add(self, amount: int) -> None:
        if self._progress is not None and self._task is not None:
            self._done += amount
            self._progress.advance(self._task, amount)
            self._progress.update(self._task, amount=self._size.text(self._done) if self._size else "")

    def reached(self, share: float, size: WorkAmount) -> None:
        """Set the share that is done; the size may change on the way."""
        if self._progress is not None and self._task is not None and self._size != size:
            self._size = size
            self._progress.update(self._task, total=size.total)
            self.add(0)
        self.add(round(share * size.total) - self._done)


@contextmanager
def steps(what: str, size: WorkAmount) -> Iterator[Bar]:
    """Draw a bar over work of known size."""
    with _drawn() as progress:
        yield Bar(progress, what, size)


@contextmanager
def working(what: str, size: Callable[[], WorkAmount] | None = None) -> Iterator[Bar]:
    """Draw a bar over the work of Spark: the share of its tasks that are done, applied to the `size` if there is one.

    Until Spark has tasks, the bar pulses. `size` is called in another thread, and only if a bar is drawn.
    """
    with _drawn() as progress:
        if progress is None:
            yield Bar(None, what, None)
            return
        ended, bar = threading.Event(), Bar(progress, what, None)
        watcher = threading.Thread(target=_watch, args=(bar, size, ended), name="freshview-progress", daemon=True)
        watcher.start()
        try:
            yield bar
        finally:
            ended.set()
            watcher.join(timeout=5)


@contextmanager
def _drawn() -> Iterator[Progress | None]:
    if not sys.stderr.isatty():
        yield None
        return
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.table import Column

    # A narrow terminal cuts off the description, never the figures.
    what = TextColumn("{task.description}", markup=False, table_column=Column(ratio=1, no_wrap=True))
    amount = TextColumn("{task.fields[amount]}", markup=False)
    columns = (
        SpinnerColumn(),
        what,
        BarColumn(10),
        amount,
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    settings: dict[str, Any] = {"expand": True, "transient": True, "speed_estimate_period": _WHOLE_WORK}
    # A duplicate of stderr: while Spark starts, stderr is redirected.
    with (
        os.fdopen(os.dup(sys.stderr.fileno()), "w") as screen,
        Progress(*columns, console=Console(file=screen), **settings) as progress,
    ):
        yield progress


def _watch(bar: Bar, ask_size: Callable[[], WorkAmount] | None, ended: threading.Event) -> None:
    size: WorkAmount | None = None
    with suppress(Exception):  # an error in drawing must not stop the work
        size = ask_size() if ask_size is not None else None
    stages = StageBar()
    while not ended.wait(_EVERY):
        with suppress(Exception):
            done, tasks = stages.look(_tracker())
            if tasks:
                bar.reached(done / tasks, size or WorkAmount(tasks, "tasks"))


def _tracker() -> Any:
    """Return Spark's status tracker; Spark Connect has none."""
    if "pyspark" not in sys.modules:
        raise LookupError("no Spark yet")
    from pyspark.sql import SparkSession

    return SparkSession.active().sparkContext.statusTracker()


class StageBar:
    """Counts the tasks of all stages seen so far; a stage that no longer runs has done all of its tasks."""

    def __init__(self) -> None:
        self._tasks: dict[int, tuple[int, int]] = {}

    def look(self, tracker: Any) -> tuple[int, int]:
        """Return the tasks done and all tasks, up to now."""
        running = {i: tracker.getStageInfo(i) for i in tracker.getActiveStageIds()}
        self._tasks = {i: (tasks, tasks) for i, (_, tasks) in self._tasks.items()}
        self._tasks |= {i: (s.numCompletedTasks, s.numTasks) for i, s in running.items() if s is not None}
        return sum(done for done, _ in self._tasks.values()), sum(tasks for _, tasks in self._tasks.values())
