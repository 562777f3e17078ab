"""The comparison of small queries with and without maintenance elsewhere."""

from __future__ import annotations

from freshview.bench.serving import Asked, _slowed


def test_queries_beside_a_job_are_told_from_those_between_jobs() -> None:
    quiet = [Asked(float(i), 0.01) for i in range(20)]
    busy = [Asked(100.0 + i, 0.04 if i < 5 else 0.02) for i in range(20)]
    figure = _slowed("point lookup", quiet, busy, [(99_500_000, 104_020_000), (119_500_000, 130_000_000)])
    assert figure.value == 4.0
    assert "5 queries" in figure.details["of these, beside a job"]
    assert "15 queries" in figure.details["of these, between jobs"]


def test_a_query_overlaps_a_job_that_ran_at_some_of_its_time() -> None:
    asked = Asked(10.0, 1.0)
    assert asked.overlaps(9_000_000, 10_500_000)
    assert asked.overlaps(10_900_000, 12_000_000)
    assert not asked.overlaps(9_000_000, 9_900_000)
    assert not asked.overlaps(11_100_000, 12_000_000)
