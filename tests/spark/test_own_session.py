"""A session that the user brings stays the user's: views, settings and catalog; it goes on when a warehouse closes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import freshview
from freshview import Warehouse


@pytest.fixture
def mine(spark: SparkSession) -> Iterator[SparkSession]:
    """A session with settings, a temporary view and a database of its own, in use."""
    session = spark.newSession()
    session.conf.set("spark.sql.shuffle.partitions", "3")
    session.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    session.sql("CREATE DATABASE IF NOT EXISTS own")
    session.sql("USE own")
    session.createDataFrame([(1, "one"), (2, "two")], "k INT, word STRING").createOrReplaceTempView("words")
    yield session
    session.sql("USE default")
    session.sql("DROP DATABASE own CASCADE")
    spark.createDataFrame([], "a INT")  # the shared session is the active one again


def _belongings(session: SparkSession) -> dict[str, object]:
    """All that a session has of its own."""
    return {
        "settings": dict(session.conf.getAll),
        "tables": sorted((t["tableName"], t["isTemporary"]) for t in session.sql("SHOW TABLES").collect()),
        "catalog": session.catalog.currentCatalog(),
        "database": session.catalog.currentDatabase(),
        "databases": sorted(d.name for d in session.catalog.listDatabases()),
        "active": SparkSession.getActiveSession() is session,
    }


def _transaction(wh: Warehouse) -> None:
    with wh.transaction() as tx:
        tx.upsert("t", [{"k": 1, "v": 11}])
        tx.sql("SELECT * FROM sums").collect()


def _mistake(wh: Warehouse) -> None:
    with pytest.raises(freshview.errors.FreshviewError):
        wh.sql("SELECT nothing FROM t")


_WORK: dict[str, Callable[[Warehouse], object]] = {
    "table": lambda wh: wh.sql("CREATE TABLE t (k INT PRIMARY KEY, v INT)"),
    "view": lambda wh: wh.sql("CREATE MATERIALIZED VIEW sums AS SELECT v % 2 o, sum(v) AS s FROM t GROUP BY v % 2"),
    "insert": lambda wh: wh.sql("INSERT INTO t VALUES (1, 10), (2, 21)"),
    "update": lambda wh: wh.sql("UPDATE t SET v = v + 1 WHERE v > 20"),
    "query": lambda wh: wh.sql("SELECT * FROM sums").collect(),
    "maintain": lambda wh: wh.maintain(),
    "refresh": lambda wh: wh.refresh("sums", full=True),
    "check": lambda wh: wh.check("sums"),
    "checkpoint": lambda wh: wh.sql("CHECKPOINT t"),
    "show": lambda wh: wh.sql("SHOW TABLES").collect(),
    "transaction": _transaction,
    "mistake": _mistake,
    "drop": lambda wh: wh.sql("DROP MATERIALIZED VIEW sums"),
}


def test_the_session_is_left_as_it_was(mine: SparkSession, tmp_path: Path) -> None:
    """After every kind of work, and after the end."""
    before = _belongings(mine)
    assert before["active"]
    changed: dict[str, list[str]] = {}
    with freshview.connect(tmp_path / "wh", spark=mine) as wh:
        for name, act in _WORK.items():
            act(wh)
            after = _belongings(mine)
            if found := [what for what in before if after[what] != before[what]]:
                changed[name] = found
    assert changed == {}
    assert _belongings(mine) == before


def test_results_are_frames_of_the_session(mine: SparkSession, tmp_path: Path) -> None:
    """Results join with the user's own frames, and queries may name the session's temporary views."""
    own = mine.table("words")
    with freshview.connect(tmp_path / "wh", spark=mine) as wh:
        wh.sql("CREATE TABLE t (k INT PRIMARY KEY, v INT)")
        wh.sql("INSERT INTO t VALUES (1, 10), (2, 20)")
        wh.sql("CREATE MATERIALIZED VIEW large AS SELECT k, v FROM t WHERE v > 10")
        found = [wh.sql("SELECT * FROM t"), wh.sql("SELECT * FROM large"), wh.sql("SHOW TABLES")]
        found.append(wh.sql("EXPLAIN REFRESH MATERIALIZED VIEW large"))
        assert [frame.sparkSession is mine for frame in found] == [True] * 4
        assert [tuple(r) for r in found[0].join(own, "k").orderBy("k").collect()] == [(1, 10, "one"), (2, 20, "two")]
        assert [tuple(r) for r in found[1].join(own, "k").collect()] == [(2, 20, "two")]
        named = wh.sql("SELECT word, v FROM large JOIN words USING (k)")
        assert [tuple(r) for r in named.collect()] == [("two", 20)]


def test_closing_stops_neither_the_session_nor_what_was_read(mine: SparkSession, tmp_path: Path) -> None:
    with freshview.connect(tmp_path / "wh", spark=mine, background=True) as wh:
        wh.sql("CREATE TABLE t (k INT PRIMARY KEY, v INT)")
        wh.sql("INSERT INTO t VALUES (1, 10)")
        frame = wh.sql("SELECT * FROM t")
    assert [tuple(r) for r in frame.collect()] == [(1, 10)]
    assert mine.range(3).count() == 3
    with freshview.connect(tmp_path / "wh", spark=mine) as again:
        assert again.sql("SELECT v FROM t").join(mine.table("words").limit(1)).count() == 1


def test_a_warehouse_that_is_given_none_finds_the_users_session(spark: SparkSession, tmp_path: Path) -> None:
    """The session found is the user's, never one that Freshview made for maintenance before."""
    spark.createDataFrame([], "a INT")
    with freshview.connect(tmp_path / "one") as wh:
        wh.sql("CREATE TABLE t (k INT PRIMARY KEY, v INT)")
        wh.sql("CREATE MATERIALIZED VIEW sums AS SELECT sum(v) AS s FROM t")
        with freshview.connect(tmp_path / "two") as other:
            other.sql("CREATE TABLE t (k INT PRIMARY KEY, v INT)")
            assert other.sql("SELECT * FROM t").sparkSession is spark
    wh.close()  # once more does no harm
