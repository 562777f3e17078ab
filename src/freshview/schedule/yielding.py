"""Background work that gives way to foreground work: jobs of the manager, checkpoints, the making of auxiliary views.

Law: work is registered before the last look for foreground work, and foreground work counts as such before it looks for
work to ask; so one sees the other.
Law: work that a statement waits for is not cancelled, and goes on at the statement's priority.
Law: protected work does not give way for ten seconds from when it has an engine. Each time in a row that protected work
gave way doubles the time for which the next try is protected.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from freshview.errors import Cancelled
from freshview.interruption import Interruption

GAVE_WAY = 3  # times in a row that work gave way, after which the next try is protected
PROTECTED = 10.0  # seconds for which protected work does not give way, at first


@dataclass(kw_only=True)
class BackgroundWork:
    """A piece of work in the background, while it runs."""

    protected_for: float | None = None  # seconds from when it has an engine; None: it gives way at once
    interruption: Interruption = field(default_factory=lambda: Interruption(gives_way=True))
    asked: bool = False  # a statement wants it to give way
    engine_since: float | None = None  # on the clock of who runs it; None: its engine is not there yet

    @property
    def is_protected(self) -> bool:
        """Whether it does not give way at first."""
        return self.protected_for is not None

    def may_end(self, now: float) -> bool:
        """Whether it gives way now, if it is asked to. The start of Spark does not use up its time, and cannot be
        broken off."""
        if self.protected_for is None:
            return True
        return self.engine_since is not None and now >= self.engine_since + self.protected_for

    @property
    def awaited(self) -> bool:
        """Whether a statement waits for the work: set by `give_way`, or by one that finds the view's turn taken."""
        return not self.interruption.gives_way


@dataclass(frozen=True)
class Yielded:
    """How often in a row work gave way, and how often when it was protected; a finished try takes one off."""

    tries: int = 0
    protected: int = 0

    @property
    def protection(self) -> float:
        """The seconds for which the next try is protected; None if it is not."""
        return PROTECTED * 2.0**self.protected

    def after(self, work: BackgroundWork) -> Yielded:
        """The counts when a try gave way."""
        return Yielded(self.tries + 1, self.protected + work.is_protected)

    def eased(self) -> Yielded:
        """The counts when a try was done."""
        return Yielded(max(self.tries - 1, 0), max(self.protected - 1, 0))


AnyWork = TypeVar("AnyWork", bound=BackgroundWork)


def give_way(
    works: Iterable[AnyWork], needed: Collection[int], views: Callable[[AnyWork], Iterable[int]], now: float
) -> None:
    """Have work make way for a statement that waits for the `needed` views: work on one of these (`views`) is raised to
    the statement's priority instead, and protected work ends only when its time is over."""
    for work in works:
        if any(view_id in needed for view_id in views(work)):
            work.interruption.raise_priority()
        elif not work.awaited:
            work.asked = True
            _end_asked(work, now)


def look_again(works: Iterable[BackgroundWork], now: float, *, is_foreground: bool) -> None:
    """End protected work whose time is over, if foreground work is still there."""
    for work in works:
        work.asked = work.asked and is_foreground
        _end_asked(work, now)


def _end_asked(work: BackgroundWork, now: float) -> None:
    if work.asked and not work.awaited and work.may_end(now):
        work.interruption.request()


class Chores:
    """Runs the checkpoints and the making of auxiliary views of a warehouse's background, one at a time."""

    def __init__(
        self,
        is_busy: Callable[[], bool],
        held_by: Callable[[Interruption], Collection[int]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`held_by` finds the views whose turn some work has."""
        self._is_busy = is_busy
        self._held_by = held_by
        self._clock = clock
        self._yielded: dict[str, Yielded] = {}
        self._current: BackgroundWork | None = None
        self.stopped = False

    @property
    def running(self) -> tuple[BackgroundWork, ...]:
        """The work in progress, if there is any."""
        return () if (current := self._current) is None else (current,)

    def run(self, name: str, do: Callable[[BackgroundWork], None], *, is_late: bool = False) -> bool:
        """Do the work of that name if the system is idle, or if it `is_late`: then it is protected, as it is after it
        gave way three times. Return whether it was done; False if it did not begin or gave way."""
        yielded = self._yielded.get(name, Yielded())
        is_protected = is_late or yielded.tries >= GAVE_WAY
        work = BackgroundWork(protected_for=yielded.protection if is_protected else None)
        self._current = work
        try:
            if self.stopped or (not is_late and self._is_busy()):
                return False
            with work.interruption.here():
                do(work)
        except Cancelled:
            if not work.interruption.requested:
                raise
            self._yielded[name] = yielded.after(work)
            return False
        finally:
            self._current = None
        self._yielded[name] = yielded.eased()
        return True

    def has_engine(self, work: BackgroundWork) -> None:
        """Note that the engine of some work is there: the time for which the work is protected begins."""
        work.engine_since = self._clock()

    def give_way(self, needed: Collection[int]) -> None:
        """Have the work in progress make way for a statement that waits for the `needed` views."""
        give_way(self.running, needed, lambda work: self._held_by(work.interruption), self._clock())

    def look_again(self, *, is_foreground: bool) -> None:
        """End work whose protection is over, if foreground work is still there."""
        look_again(self.running, self._clock(), is_foreground=is_foreground)

    def stop(self) -> None:
        """Cancel the work in progress, and begin no other."""
        self.stopped = True
        for work in self.running:
            work.interruption.request()
