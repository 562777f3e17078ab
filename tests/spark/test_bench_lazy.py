"""The lazy suite's own parts: what it updates, and that what it times is what it says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import freshview
from freshview import Warehouse
from freshview.bench.lazy import _by_statement, _by_upsert, _combining, _many, _raced
from freshview.bench.lazy_world import Customers, upsert
from freshview.bench.tables import copied
from freshview.bench.views import exact


@pytest.fixture(scope="module")
def customers(tmp_path_factory: pytest.TempPathFactory) -> Customers:
    return Customers(tmp_path_factory.mktemp("data"), 0.001, seed=1)


@pytest.fixture
def wh(tmp_path: Path, spark: SparkSession, customers: Customers) -> Iterator[Warehouse]:
    """A warehouse with the customers and a view of theirs in V1's place."""
    with freshview.connect(tmp_path / "lazy" / "one", spark=spark) as wh:
        spark.createDataFrame(customers.rows).createOrReplaceTempView("source_customer")
        wh.sql("CREATE TABLE customer PRIMARY KEY (c_custkey) AS SELECT * FROM source_customer")
        wh.sql("CREATE MATERIALIZED VIEW v1 AS SELECT c_nationkey, count(*) n FROM customer GROUP BY c_nationkey")
        yield wh


def test_runs_are_short_and_consecutive_and_stay_where_they_should(customers: Customers) -> None:
    """LAZY §5.4: 1 to 10 consecutive rows, over all the table or among the first 100."""
    for among in (customers.count, 100):
        runs = customers.runs(5000, among)
        assert {len(run) for run in runs} == set(range(1, 11))
        assert min(run[0] for run in runs) == 1
        assert max(run[-1] for run in runs) == among


def test_moved_customers_keep_their_key_and_all_but_the_nation(customers: Customers) -> None:
    keys = customers.some(10)
    moved = customers.moved(keys)
    assert moved.column("c_custkey").to_pylist() == keys
    names = [c for c in moved.column_names if c != "c_nationkey"]
    assert moved.select(names).equals(customers.rows.take([k - 1 for k in keys]).select(names))


def test_eager_updates_leave_nothing_and_lazy_ones_are_maintained(wh: Warehouse, customers: Customers) -> None:
    for way in (_by_upsert, _by_statement):
        before = len(wh.history("v1"))
        races = _raced(wh, ["v1"], way(wh, customers), (10,), 1, warmup=0)
        assert all(len(race.spent[mode]) == 1 for race in races.values() for mode in ("eager", "lazy"))
        assert all(race.spent["lazy"][0].maintenance > 0 for race in races.values())
        assert all(race.spent["eager"][0].maintenance == 0 for race in races.values())
        assert len(wh.history("v1")) == before + 2  # one job per update, whoever ran it
        assert wh.sql("SHOW TASKS").collect() == []
    assert exact(wh, ["v1"]).met


def test_transactions_are_maintained_one_by_one_or_combined(wh: Warehouse, customers: Customers) -> None:
    runs = customers.runs(6, 100)
    eager = _many(wh, customers, runs, "eager")
    single = _many(wh, customers, runs, "lazy", each=True)
    assert [j.tasks for j in wh.history("v1")] == [1] * 12
    combined = _many(wh, customers, runs, "lazy")
    job = wh.history("v1")[-1]
    assert job.tasks == 6
    assert job.rows_in == sum(map(len, runs))
    figures = _combining("6 transactions, skewed", eager, single, [combined], wh)
    assert f"{job.condensed} condensed away" in figures[0].details["combined job"]
    assert exact(wh, ["v1"]).met


def test_a_copy_of_a_warehouse_is_its_own(wh: Warehouse, customers: Customers, tmp_path: Path) -> None:
    before = wh.sql("SELECT * FROM v1").collect()
    wh.close()
    with copied(tmp_path / "lazy" / "one", tmp_path / "lazy" / "two") as copy:
        upsert(copy, customers.moved(customers.some(50)))
        assert copy.sql("SELECT sum(n) FROM v1").collect() == [(customers.count,)]
        assert copy.check("v1").ok
    with freshview.connect(tmp_path / "lazy" / "one") as again:
        assert sorted(again.sql("SELECT * FROM v1").collect()) == sorted(before)
        assert again.check("v1").ok
