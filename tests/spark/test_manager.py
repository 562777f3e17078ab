"""The maintenance manager on Spark: views become fresh without a query, and the warehouse closes in the midst of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrameWriter, SparkSession
from tests.internals import internals
from tests.spark.sessions import on_a_quiet_machine

import freshview
from freshview import Event, Warehouse
from freshview.errors import FreshviewError


@pytest.fixture
def managed(tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[Warehouse]:
    """A warehouse with its manager on, on a machine that counts as quiet."""
    on_a_quiet_machine(monkeypatch, 0.1)
    with freshview.connect(tmp_path / "warehouse", spark=spark, background=True) as wh:
        wh.sql("CREATE TABLE s (id INT, customer INT, PRIMARY KEY (id))")
        wh.sql("CREATE MATERIALIZED VIEW low AS SELECT customer, count(*) n FROM s GROUP BY customer")
        wh.sql("CREATE MATERIALIZED VIEW high AS SELECT max(n) m FROM low")
        yield wh


def _until_nothing_waits(wh: Warehouse, seconds: float = 120) -> None:
    until = time.monotonic() + seconds
    while internals(wh).waiting():
        assert time.monotonic() < until, "views did not become fresh by themselves"
        time.sleep(0.1)


def test_views_become_fresh_without_a_query(managed: Warehouse) -> None:
    """Law: when the system is quiet, what is pending is maintained, lower views first; queries then find all done."""
    for i in range(5):
        with managed.transaction() as tx:
            tx.upsert("s", [{"id": i, "customer": 1}])
    _until_nothing_waits(managed)
    jobs = managed.history()
    assert {j.view for j in jobs} == {"low", "high"}
    assert all(j.error is None for j in jobs)
    assert managed.sql("SELECT m FROM high", freshness="any").collect() == [(5,)]
    assert len(managed.history()) == len(jobs)
    assert managed.check("low").ok
    assert managed.check("high").ok
    assert managed.sql("SHOW TASKS").collect() == []


def test_a_view_that_cannot_be_maintained_does_not_stop_the_others(managed: Warehouse) -> None:
    """Law: wrong data is tried once per commit, told in the history, and healed by a later commit."""
    managed.sql("CREATE MATERIALIZED VIEW bad AS SELECT id, 1 / (customer - 7) q FROM s")
    managed.sql("INSERT INTO s VALUES (1, 7)")
    until = time.monotonic() + 120
    bad = internals(managed).relation("bad").id
    while {c.view_id for c in internals(managed).waiting()} != {bad} or not managed.history("bad"):
        assert time.monotonic() < until
        time.sleep(0.1)
    time.sleep(1.5)
    assert [j.error is not None for j in managed.history("bad")] == [True]
    managed.sql("UPDATE s SET customer = 8 WHERE id = 1")
    _until_nothing_waits(managed)
    assert managed.sql("SELECT q FROM bad", freshness="any").collect() == [(1.0,)]


def test_maintain_takes_different_views_side_by_side_and_an_error_holds_up_no_other(
    tmp_path: Path, spark: SparkSession
) -> None:
    """Law: two views are computed at the same time; the error of a third is raised when they are done, with those
    above them; a view above the third is left."""
    with freshview.connect(tmp_path / "warehouse", spark=spark, workers=2) as wh:
        for name in ("a", "b", "c"):
            wh.sql(f"CREATE TABLE {name} (id INT, PRIMARY KEY (id))")
            wh.sql(f"CREATE MATERIALIZED VIEW of_{name} AS SELECT id, 1 / (id - 7) AS q FROM {name}")
            wh.sql(f"CREATE MATERIALIZED VIEW on_{name} AS SELECT count(*) n FROM of_{name}")
        for name, id_ in (("a", 7), ("b", 1), ("c", 2)):
            wh.sql(f"INSERT INTO {name} VALUES ({id_})")
        both, told = threading.Barrier(2, timeout=60), []

        def listen(event: Event) -> None:
            if event.name == "job.computed" and event.details["view"] in ("of_b", "of_c"):
                both.wait()
            if event.name == "maintain.failed":
                told.append(event.details["view"])

        wh.events.listen(listen)
        with pytest.raises(FreshviewError, match=r"(?i)divi"):
            wh.maintain()
        assert told == ["of_a"]
        done = {j.view for j in wh.history() if j.error is None}
        assert done == {"of_b", "of_c", "on_b", "on_c"}
        wh.sql("UPDATE a SET id = 8 WHERE id = 7")
        assert [j.view for j in wh.maintain()] == ["of_a", "on_a"]
        assert all(wh.check(f"{kind}_{name}").ok for kind in ("of", "on") for name in "abc")


def test_recomputations_write_their_rows_side_by_side(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: the write of one view's rows does not wait for that of another view's."""
    with freshview.connect(tmp_path / "warehouse", spark=spark, workers=2) as wh:
        for name in ("a", "b"):
            wh.sql(f"CREATE TABLE {name} (id INT, PRIMARY KEY (id))")
            text = f"SELECT id, id % 7 AS q FROM {name}"
            wh.sql(f"CREATE MATERIALIZED VIEW of_{name} TBLPROPERTIES ('refresh'='full') AS {text}")
            wh.sql(f"INSERT INTO {name} VALUES (1), (2)")
        both, write = threading.Barrier(2, timeout=60), DataFrameWriter.parquet

        def meeting(self: DataFrameWriter, path: str, *args: Any) -> None:
            both.wait()
            write(self, path, *args)

        monkeypatch.setattr(DataFrameWriter, "parquet", meeting)
        assert {job.view for job in wh.maintain()} == {"of_a", "of_b"}
        monkeypatch.setattr(DataFrameWriter, "parquet", write)
        assert all(wh.check(name).ok for name in ("of_a", "of_b"))


def test_closing_while_the_manager_works_leaves_everything_pending_or_done(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_a_quiet_machine(monkeypatch, 0.05)
    with freshview.connect(tmp_path / "warehouse", spark=spark, background=True) as wh:
        wh.sql("CREATE TABLE s (id INT, customer INT, PRIMARY KEY (id))")
        wh.sql("CREATE MATERIALIZED VIEW v AS SELECT customer, count(*) n FROM s GROUP BY customer")
        wh.sql("INSERT INTO s VALUES (1, 1), (2, 1)")
        time.sleep(0.7)
    with freshview.connect(tmp_path / "warehouse", spark=spark) as wh:
        assert wh.sql("SELECT * FROM v").collect() == [(1, 2)]
        assert [j.tasks for j in wh.history("v") if j.error is None] == [1]
        assert {j.strategy for j in wh.history("v") if j.error is not None} <= {"cancelled"}
        assert wh.check("v").ok
