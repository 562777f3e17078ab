"""Prices from times of single steps, and what the history corrects."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.optimizer.sets import WITHOUT_INDEX, built, from_sql
from tests.unit.optimizer.test_greedy import FACTS, TPCH

from freshview.bench.data import V1
from freshview.catalog.frontiers import Job
from freshview.optimizer.choice import optimise
from freshview.optimizer.cost import FULL, INCREMENTAL, Costs
from freshview.optimizer.existing import count_stored
from freshview.optimizer.prices import Prices
from freshview.refresh import calibration
from freshview.refresh.accuracy import Accuracy, ComparedTimes, accuracy, compared, computing, corrected
from freshview.refresh.calibration import priced
from freshview.storage.cache import MainCache
from freshview.storage.index import ColumnCache
from freshview.storage.store import Storage

_STEPS = [f"embedded {s}" for s in ("query", "chain", "join small", "join large", "scan", "write small", "write large")]
_STEPS += [f"spark {s}" for s in ("query", "chain", "scan small", "scan large", "group large", "write small")]
_STEPS += [
    "spark write large",
    "spark sorted write",
    "lookup",
    "lookup of several",
    "lookup unsorted",
    "lookup of many",
    "lookup in memory",
    "lookup of many in memory",
    "commit",
    "merge",
]


def test_prices_follow_from_two_sizes_of_a_step() -> None:
    small, large = 1_000, 100_000
    seconds = dict.fromkeys(_STEPS, 0.01)
    seconds |= {"spark scan small": 0.1 + 1e-6 * small, "spark scan large": 0.1 + 1e-6 * large}
    seconds |= {"lookup": 0.02 + 1e-3, "lookup of several": 0.02 + 1e-2, "lookup unsorted": 0.02 + 1e-7 * large}
    seconds |= {"lookup of many": seconds["lookup unsorted"] + 4e-6 * (calibration._MANY - calibration._VALUES)}
    seconds |= {"lookup in memory": 0.001 + 100e-7, "lookup of many in memory": 0.001 + 1e-7 * calibration._MANY}
    prices = priced(seconds, small, large)
    assert prices.value == pytest.approx(4e-6)
    assert prices.indexed == pytest.approx(0.001)
    assert prices.indexed_value == pytest.approx(1e-7)
    assert prices.spark.scan == pytest.approx(1e-6)
    assert prices.lookup == pytest.approx(0.02)
    assert prices.passed == pytest.approx(1e-7)
    assert prices.pruned == pytest.approx(1e-3 / 1e-7)
    assert not prices.is_default


@given(st.fixed_dictionaries({s: st.floats(0, 10) for s in _STEPS}))
def test_no_price_is_zero_or_less_however_the_machine_was_disturbed(seconds: dict[str, float]) -> None:
    prices = priced(seconds, 10, 1000).to_dict()
    parts = [prices.pop("embedded"), prices.pop("spark"), prices]
    found = [(name, price) for part in parts for name, price in part.items() if name not in ("keep", "is_default")]
    assert all(price > 0 for _, price in found)


def test_every_step_without_spark_is_measured_and_leaves_files_in_its_folder_alone(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    with ExitStack() as stack:
        bench = calibration._Bench(SimpleNamespace(storage=storage), "stage-x", 100, 2000, stack)  # type: ignore[arg-type]
        for step in (bench._embedded, bench._files, bench._lookups):
            step()
    spark = {s for s in _STEPS if s.startswith("spark")}
    assert bench.seconds.keys() == set(_STEPS) - spark - {"commit"}
    assert all(v > 0 for v in bench.seconds.values())
    assert [p.name for p in storage.layout.relation(0).iterdir()] == ["stage-x"]


def test_lookups_in_memory_read_no_file_and_those_in_files_keep_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is measured as what it is, so that the prices of both are honest."""
    asked: list[tuple[int, bool]] = []  # values, and whether memory answered
    rows = ColumnCache.rows

    def noted(cache: ColumnCache, *given: Any, **more: Any) -> Any:
        found = rows(cache, *given, **more)
        asked.append((len(given[3]), found is not None))
        return found

    monkeypatch.setattr(ColumnCache, "rows", noted)
    monkeypatch.setattr(MainCache, "may_keep", lambda *_: False)  # so few rows would be kept as a whole
    storage = Storage(tmp_path, lookup_memory=1 << 20)
    with ExitStack() as stack:
        bench = calibration._Bench(SimpleNamespace(storage=storage), "stage-x", 100, 20_000, stack)  # type: ignore[arg-type]
        bench._files()
        bench._lookups()
    in_memory = [count for count, found in asked if found]
    assert len(in_memory) == 1 + 5 + 5  # one lookup keeps the columns, the rest are timed
    assert min(in_memory) > calibration._VALUES
    assert {found for _, found in asked[:-12]} == {False}


def _job(strategy: str, took: float, expected: float = 0.0) -> Job:
    phases = {"wait": 9.0, "compute": took, "store": 0.0}
    return Job(
        view_id=1,
        view="v1",
        from_csn=1,
        to_csn=2,
        strategy=strategy,
        seconds=9 + took,
        expected=expected,
        phases=phases,
    )


def test_the_history_corrects_each_way_by_its_median_and_needs_three_jobs() -> None:
    costs = Costs(built(from_sql({"v1": V1}, TPCH), TPCH), FACTS, Prices())
    (root,) = costs.dag.roots
    cost = costs.mntcost(root)
    jobs = [_job(INCREMENTAL, 2 * cost.incremental) for _ in range(3)]
    rows = compared(costs, {"v1": [*jobs, _job("nothing", 1.0)]})
    (row,) = rows
    assert (row.view, row.way, row.estimated, row.jobs) == ("v1", INCREMENTAL, cost.incremental, 3)
    assert row.ratio == pytest.approx(0.5)
    better = corrected(Prices(), rows)
    assert better.incremental == better.full == pytest.approx(2.0)
    again = Costs(costs.dag, FACTS, better).mntcost(root)
    assert again.incremental == pytest.approx(2 * cost.incremental)
    assert again.full == pytest.approx(2 * cost.full)
    assert corrected(Prices(), compared(costs, {"v1": jobs[:2]})) == Prices()
    slow = [*rows, ComparedTimes("v1", FULL, 1.0, 1000.0, 5)]
    assert corrected(Prices(), slow).full == 20.0  # one bad day does not rule a way out for good


def test_what_is_stored_already_counts_in_estimates_and_its_own_jobs_are_compared_too() -> None:
    """Stored results are found again by what they hold, in the search space of another process."""
    first = optimise(built(from_sql({"v1": V1}, TPCH), TPCH), FACTS, WITHOUT_INDEX)
    chosen = {a.name: a.sorted_by for a in first.auxiliaries}
    assert chosen
    costs = Costs(built(from_sql({"v1": V1}, TPCH), TPCH), FACTS, WITHOUT_INDEX)
    (root,) = costs.dag.roots
    before = costs.mntcost(root).incremental
    nodes = count_stored(costs, {**chosen, "aux_of_another_warehouse": ""})
    assert nodes.keys() == chosen.keys()
    plan = first.views[0]
    assert costs.mntcost(root).incremental == pytest.approx(plan.seconds)
    assert plan.seconds < before
    more = {**FACTS, "orders": replace(FACTS["orders"], inserted=100.0)}  # a change of what is stored
    costs = Costs(built(from_sql({"v1": V1}, TPCH), TPCH), more, Prices())
    jobs = {name: [_job(INCREMENTAL, 1.0)] for name in ("v1", *chosen)}
    assert {c.view for c in compared(costs, jobs, count_stored(costs, chosen))} == {"v1", *chosen}


def test_a_job_took_its_share_of_what_several_views_had_in_common() -> None:
    job = _job(INCREMENTAL, 1.0, expected=3.0)
    shared = replace(job, phases={**job.phases, "shared": 2.0})
    assert (computing(job), computing(shared)) == (1.0, 3.0)
    found = accuracy([shared])
    assert found is not None
    assert found.median == 1.0


def test_accuracy_is_the_ratio_of_estimated_to_actual_time_over_jobs() -> None:
    jobs = [_job(FULL, 2.0, expected=e) for e in (1.0, 2.0, 4.0)]
    found = accuracy([*jobs, _job(FULL, 1.0)])
    assert isinstance(found, Accuracy)
    assert (found.jobs, found.median) == (3, 1.0)
    assert str(found).startswith("estimated / actual time over 3 jobs: median 1.00")
    assert accuracy([_job(FULL, 1.0)]) is None
