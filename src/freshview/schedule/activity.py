"""Foreground work of this process: whether a statement runs, which views its queries used, and which queries ran."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from freshview.catalog.queries import MOST

BUSY_LOAD = 2.0  # processes per core that want to run; a job of our own makes about one
_QUIET = 0.5  # seconds after a statement that still count as busy: the rows of its DataFrame may be computed then
_YOUNG = 30.0  # seconds for which an open transaction counts as foreground work


def machine_load() -> float:
    """Processes per core that wanted to run in the last minute."""
    return os.getloadavg()[0] / (os.cpu_count() or 1)


class Activity:
    """Counts the foreground work of a process, the uses of views by it, and the runs of its queries."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._guard = threading.Lock()
        self._running = 0
        self._on_spark = 0
        self._last_on_spark = float("-inf")
        self._here = threading.local()  # needs_spark: whether the statement of this thread has said that it does
        self._last = float("-inf")
        self._transactions: list[tuple[float, Callable[[], bool]]] = []
        self._uses: dict[int, tuple[int, int]] = {}
        self._runs: dict[str, tuple[int, int]] = {}  # the text that ran last is the last one

    @contextmanager
    def working(self) -> Iterator[None]:
        """Count the block as a statement of the user."""
        outer = getattr(self._here, "needs_spark", None)
        self._here.needs_spark = False
        with self._guard:
            self._running += 1
        try:
            yield
        finally:
            with self._guard:
                self._running -= 1
                self._last = self._clock()
                if self._here.needs_spark:
                    self._on_spark -= 1
                    self._last_on_spark = self._last
            self._here.needs_spark = outer

    def needs_spark(self) -> None:
        """Note that the statement of this thread needs Spark."""
        with self._guard:
            if getattr(self._here, "needs_spark", None) is False:
                self._here.needs_spark = True
                self._on_spark += 1
            self._last_on_spark = self._clock()

    def is_on_spark(self) -> bool:
        """Is there a statement that needs Spark? One that only writes rows disturbs no job of another process."""
        with self._guard:
            return self._on_spark > 0 or self._clock() - self._last_on_spark < _QUIET

    def began(self, is_open: Callable[[], bool]) -> None:
        """Note that a transaction has begun."""
        with self._guard:
            self._transactions = [*self._young(), (self._clock(), is_open)]

    def is_busy(self) -> bool:
        """Is foreground work going on? A transaction that was left open does not count for long."""
        with self._guard:
            self._transactions = self._young()
            return self._running > 0 or bool(self._transactions) or self._clock() - self._last < _QUIET

    def _young(self) -> list[tuple[float, Callable[[], bool]]]:
        now = self._clock()
        return [(begun, is_open) for begun, is_open in self._transactions if now - begun < _YOUNG and is_open()]

    def used(self, view_id: int, now: int) -> None:
        """Note that a query used a view."""
        with self._guard:
            self._uses[view_id] = (self._uses.get(view_id, (0, 0))[0] + 1, now)

    def take_uses(self) -> dict[int, tuple[int, int]]:
        """View id → (how often, last time), since the last call."""
        with self._guard:
            taken, self._uses = self._uses, {}
            return taken

    def ran(self, text: str, now: int) -> None:
        """Note that a query ran. Of very many texts, those that ran last are kept."""
        with self._guard:
            self._runs[text] = (self._runs.pop(text, (0, 0))[0] + 1, now)
            if len(self._runs) > MOST:
                del self._runs[next(iter(self._runs))]

    def take_runs(self) -> dict[str, tuple[int, int]]:
        """Text of a query → (how often it ran, last time), since the last call."""
        with self._guard:
            taken, self._runs = self._runs, {}
            return taken
