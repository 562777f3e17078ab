"""The comparison of small queries with and without maintenance elsewhere."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from freshview import Job, Warehouse
from freshview.bench import serving
from freshview.bench.serving import Asked, _slowed


def test_queries_beside_a_job_are_told_from_those_between_jobs() -> None:
    quiet = [Asked(float(i), 0.01) for i in range(20)]
    busy = [Asked(100.0 + i, 0.04 if i < 5 else 0.02) for i in range(20)]
    starting = [Asked(50.0, 0.5)]
    figure = _slowed("point lookup", quiet, busy, [(99_500_000, 104_020_000), (119_500_000, 130_000_000)], starting)
    assert figure.value == 4.0
    assert "5 queries" in figure.details["of these, beside a job"]
    assert "15 queries" in figure.details["of these, between jobs"]
    assert "1 queries" in figure.details["until every view had a job"]
    assert _slowed("point lookup", quiet, [], [], starting).value == 50.0


def test_a_query_overlaps_a_job_that_ran_at_some_of_its_time() -> None:
    asked = Asked(10.0, 1.0)
    assert asked.overlaps(9_000_000, 10_500_000)
    assert asked.overlaps(10_900_000, 12_000_000)
    assert not asked.overlaps(9_000_000, 9_900_000)
    assert not asked.overlaps(11_100_000, 12_000_000)


def test_queries_are_compared_once_every_view_had_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Law: the start of the other process and its first jobs are timed, and are no part of the comparison."""
    now, jobs = [0.0], {3: "v1", 5: "v2"}  # by the second at which a first job is done

    def asked(_: object, seconds: float) -> dict[str, list[Asked]]:
        now[0] += seconds
        return {name: [Asked(now[0], 0.01)] for name in serving._SMALL}

    def history() -> list[Job]:
        done = [view for second, view in jobs.items() if second <= now[0]]
        return [Job(view_id=1, view=view, from_csn=1, to_csn=2, strategy="incremental", seconds=1.0) for view in done]

    monkeypatch.setattr(serving, "_asked", asked)
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    found = serving._asked_beside(cast("Warehouse", SimpleNamespace(history=history)), 1, 10.0)
    assert found.first == {"v1": 3.0, "v2": 5.0}
    assert [len(answers) for answers in found.starting.values()] == [5, 5]
    assert [len(answers) for answers in found.busy.values()] == [10, 10]
    assert found.seconds == 15.0
    jobs.clear()
    never = serving._asked_beside(cast("Warehouse", SimpleNamespace(history=history)), 1, 10.0)
    assert (never.first, never.seconds) == ({}, 120.0)
