"""Views side by side: the order is kept, and an error of one holds up only those above it."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freshview.errors import Cancelled, FreshviewError, TypeMismatch
from freshview.interruption import Interruption, stop_if_asked
from freshview.schedule.pool import side_by_side

_ERRORS = (TypeMismatch("a cast", "fails"), RecursionError("not an error of ours"))


@st.composite
def _graphs(draw: st.DrawFn) -> dict[int, set[int]]:
    size = draw(st.integers(0, 7))
    return {i: draw(st.sets(st.integers(0, i - 1))) if i else set() for i in range(size)}


@given(_graphs(), st.sets(st.integers(0, 6)), st.integers(1, 3), st.sampled_from(_ERRORS))
@settings(max_examples=100, deadline=None)
def test_each_view_goes_after_those_below_and_an_error_stops_only_those_above(
    below: dict[int, set[int]], bad: set[int], workers: int, error: Exception
) -> None:
    ended: list[int] = []

    def run(view_id: int, _: Interruption) -> str:
        assert below[view_id] <= set(ended)
        if view_id in bad:
            raise error
        ended.append(view_id)
        return f"v{view_id}"

    def spoilt(view_id: int) -> bool:
        return view_id in bad or any(map(spoilt, below[view_id]))

    outcomes = side_by_side(below, run, workers)
    assert outcomes.done == {i: f"v{i}" for i in below if not spoilt(i)}
    assert set(outcomes.failed) == {i for i in bad & set(below) if not any(map(spoilt, below[i]))}


def test_two_workers_work_at_the_same_time() -> None:
    both = threading.Barrier(2, timeout=60)
    outcomes = side_by_side({1: (), 2: ()}, lambda *_: both.wait(), 2)
    assert sorted(outcomes.done.values()) == [0, 1]


def test_one_worker_is_the_calling_thread() -> None:
    outcomes = side_by_side({1: (), 2: [1]}, lambda *_: threading.current_thread(), 1)
    assert set(outcomes.done.values()) == {threading.current_thread()}


def test_what_ends_the_caller_stops_the_others() -> None:
    begun, stopped = threading.Event(), []

    def run(view_id: int, interruption: Interruption) -> None:
        if view_id == 1:
            assert begun.wait(60)
            raise KeyboardInterrupt
        done = threading.Event()
        with interruption.broken_off_by(done.set):
            begun.set()
            assert done.wait(60)
            try:
                stop_if_asked("view")
            except Cancelled as stop:
                stopped.append(stop)
                raise

    with pytest.raises(KeyboardInterrupt):
        side_by_side({1: (), 2: (), 3: [2]}, run, 2)
    assert len(stopped) == 1
    assert isinstance(stopped[0], FreshviewError)


def test_a_caller_that_was_asked_to_stop_begins_nothing_more() -> None:
    """Law: also if the exception of a signal got lost while it waited."""
    begun: list[int] = []
    caller = Interruption()

    def run(view_id: int, _: Interruption) -> None:
        begun.append(view_id)
        caller.request()

    with caller.here(), pytest.raises(Cancelled):
        side_by_side({1: (), 2: [1]}, run, 2)
    assert begun == [1]
