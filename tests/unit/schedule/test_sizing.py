"""The size of background jobs: by their expected cost, and by the present load."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshview.catalog.frontiers import Job
from freshview.schedule.sizing import BACKGROUND_ROWS, JOB_ROWS, allowed_seconds, background_rows


def job(rows: int, seconds: float, wait: float = 0.0) -> Job:
    phases = {"wait": wait, "sources": wait, "compute": seconds}
    took = seconds + 2 * wait
    return Job(view_id=1, from_csn=0, to_csn=1, strategy="incremental", seconds=took, rows_in=rows, phases=phases)


@given(
    st.floats(0.01, 20),
    st.floats(1e-6, 0.1),
    st.lists(st.integers(1, 10**6), min_size=2, max_size=8, unique=True),
    st.floats(0.5, 20),
)
def test_a_job_is_as_large_as_its_time_allows(fixed: float, slope: float, sizes: list[int], seconds: float) -> None:
    """Law: where cost is a line, the job takes no longer than allowed, or than twice what it costs in any case; and
    one that is a tenth larger would."""
    past = [job(n, fixed + slope * n) for n in sizes]
    rows = background_rows(past, seconds)
    known = fixed + slope * min(sizes)  # the shortest job so far is taken to be the fixed part
    assert rows == 1 or slope * rows <= max(seconds - known, known) * 1.001
    assert rows == JOB_ROWS or slope * (rows * 1.1 + 1) > max(seconds - known, known)


def test_without_jobs_of_different_sizes_the_size_is_the_default() -> None:
    assert background_rows([], 10) == BACKGROUND_ROWS
    assert background_rows([job(5, 1.0), job(5, 3.0)], 10) == BACKGROUND_ROWS


def test_a_cost_that_does_not_grow_with_rows_makes_jobs_large() -> None:
    """A view that is recomputed costs the same whatever has changed."""
    assert background_rows([job(10, 4.0), job(100_000, 4.0)], 1) == JOB_ROWS
    assert background_rows([job(10, 4.0), job(100_000, 3.0)], 1) == JOB_ROWS


def test_the_time_that_a_job_waited_does_not_count() -> None:
    assert background_rows([job(1, 1.0, wait=50.0), job(1001, 2.0)], 3) == 2000


@pytest.mark.parametrize(("load", "seconds"), [(0.0, 10.0), (1.0, 5.5), (2.0, 1.0), (9.0, 1.0)])
def test_a_loaded_machine_gets_shorter_jobs(load: float, seconds: float) -> None:
    assert allowed_seconds(load, 2.0) == seconds
    assert allowed_seconds(load, 0.0) == 1.0
