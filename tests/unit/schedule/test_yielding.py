"""Checkpoints and the making of auxiliary views give way, and are done at last (no clock, no catalog, no Spark)."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection

import pytest

from freshview.errors import Cancelled, StorageUnavailable
from freshview.interruption import current, stop_if_asked
from freshview.schedule.yielding import GAVE_WAY, PROTECTED, BackgroundWork, Chores


class World:
    """One process whose background does chores, and whose foreground may be busy."""

    def __init__(self) -> None:
        self.now = 0.0
        self.busy = False
        self.look: Callable[[], None] = lambda: None  # called at the last look for foreground work
        self.held: Collection[int] = ()
        self.chores = Chores(self._is_busy, lambda _: self.held, lambda: self.now)

    def _is_busy(self) -> bool:
        self.look()
        return self.busy

    def folding(
        self, seconds: float, *, statements: bool = True, start: float = 0.0
    ) -> Callable[[BackgroundWork], None]:
        """Work that takes so many seconds from when it has its engine; a statement arrives every 200 ms meanwhile."""

        def do(work: BackgroundWork) -> None:
            assert current() is work.interruption
            if statements:
                self.chores.give_way(())
            self.now += start
            self.chores.look_again(is_foreground=statements)
            self.chores.has_engine(work)
            begun = self.now
            while self.now - begun < seconds:
                stop_if_asked("checkpoint")
                self.now += 0.2
                if statements:
                    self.chores.give_way(())

        return do


def test_work_begins_in_idle_time_and_gives_way_at_once() -> None:
    world = World()
    assert world.chores.run("a", world.folding(5, statements=False))
    assert not world.chores.run("a", world.folding(5))
    assert world.now == pytest.approx(5, abs=0.3), "it stops at its first step"
    world.busy = True
    assert not world.chores.run("a", world.folding(5))
    assert world.chores.running == ()


def test_foreground_work_that_begins_at_the_last_look_sees_the_work() -> None:
    """Law: the one sees the other, whichever comes first."""
    world = World()
    world.look = lambda: world.chores.give_way(())
    assert not world.chores.run("a", world.folding(5, statements=False))


@pytest.mark.parametrize("seconds", [1, 9, 11, 39, 45, 3000])
def test_late_work_is_done_at_last_under_steady_foreground_work(seconds: int) -> None:
    """Law: work of T seconds gives way log₂(T / 10 s) + 1 times at most, each time after twice the time."""
    world = World()
    world.busy = True
    gave_way = []
    while True:
        begun = world.now
        if world.chores.run("a", world.folding(seconds, start=40), is_late=True):
            break
        gave_way.append(round(world.now - begun - 40))
    assert gave_way == [PROTECTED * 2**n for n in range(len(gave_way))], "the start of Spark uses up nothing"
    assert len(gave_way) <= max(math.ceil(math.log2(seconds / PROTECTED)), 0) + 1
    assert world.chores.run("b", world.folding(9), is_late=True), "each has its own counts"


def test_work_that_gave_way_three_times_is_protected() -> None:
    world = World()
    done = [world.chores.run("a", world.folding(5)) for _ in range(GAVE_WAY + 2)]
    assert done == [False] * GAVE_WAY + [True, False]


def test_work_that_a_statement_waits_for_is_hurried() -> None:
    world = World()
    world.held = (7,)
    seen: list[tuple[bool, bool]] = []

    def do(work: BackgroundWork) -> None:
        world.chores.give_way({7})
        world.chores.give_way(())
        seen.append((work.interruption.requested, work.interruption.gives_way))

    assert world.chores.run("a", do)
    assert seen == [(False, False)]


def test_no_request_outlives_the_foreground_work_that_made_it() -> None:
    world = World()

    def do(work: BackgroundWork) -> None:
        world.chores.has_engine(work)
        world.chores.give_way(())
        world.now += PROTECTED
        world.chores.look_again(is_foreground=False)
        stop_if_asked("checkpoint")

    assert world.chores.run("a", do, is_late=True)


def test_stopping_cancels_protected_work_and_lets_no_other_begin() -> None:
    world = World()

    def do(_: BackgroundWork) -> None:
        world.chores.stop()
        stop_if_asked("checkpoint")

    assert not world.chores.run("a", do, is_late=True)
    assert not world.chores.run("a", world.folding(1, statements=False), is_late=True)


@pytest.mark.parametrize("error", [StorageUnavailable("table a", "is gone"), Cancelled("query", "by its user")])
def test_an_error_that_no_request_made_is_raised(error: Exception) -> None:
    def do(_: BackgroundWork) -> None:
        raise error

    world = World()
    with pytest.raises(type(error)):
        world.chores.run("a", do)
    assert world.chores.running == ()
