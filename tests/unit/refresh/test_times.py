"""The times of a view's jobs: a line that its past jobs do not exceed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from freshview.catalog.frontiers import Job
from freshview.refresh.times import times_of


def job(rows: int, seconds: float) -> Job:
    return Job(view_id=1, from_csn=0, to_csn=1, strategy="incremental", seconds=seconds, rows_in=rows)


@given(st.lists(st.tuples(st.integers(1, 10**6), st.floats(0.001, 100)), min_size=2, max_size=8))
def test_no_past_job_that_is_larger_than_the_shortest_took_longer_than_expected(sizes: list[tuple[int, float]]) -> None:
    times = times_of([job(*size) for size in sizes])
    assert (times is None) == (len({rows for rows, _ in sizes}) < 2)
    if times is not None:
        assert all(times.seconds(rows) >= took * 0.999 for rows, took in sizes if rows > times.rows)
        assert times.seconds(1) == times.fixed == min(took for _, took in sizes)


def test_a_job_that_waited_is_as_long_as_its_own_work() -> None:
    waited = Job(
        view_id=1,
        from_csn=0,
        to_csn=1,
        strategy="incremental",
        seconds=9.0,
        rows_in=10,
        phases={"wait": 5, "sources": 3},
    )
    times = times_of([job(1, 0.5), waited])
    assert times is not None
    assert times.seconds(10) == 1.0
