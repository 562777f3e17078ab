"""Whatever a session is set to, what is stored is right: ANSI off, zones, case, legacy Parquet settings."""

from __future__ import annotations

import datetime as dt
import threading
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrameWriter, SparkSession
from tests.internals import internals
from tests.spark.sessions import as_if_large, setting

from freshview import Warehouse
from freshview.errors import TypeMismatch

pytestmark = pytest.mark.reading


def test_without_ansi_stores_still_check(swh: Warehouse, spark: SparkSession) -> None:
    """Expressions follow the session (a bad cast is NULL); an overflow into a column is an error all the same."""
    swh.sql("CREATE TABLE t (k INT PRIMARY KEY, n TINYINT, d DECIMAL(4,2), c CHAR(2))")
    swh.sql("INSERT INTO t VALUES (1, 1, 1.25, 'a')")
    with setting(spark, spark__sql__ansi__enabled="false"):
        csn = swh.status().csn
        for text in (
            "INSERT INTO t VALUES (2, 300, 0, '')",
            "INSERT INTO t SELECT 2, id + 300, 0, '' FROM range(1)",
            "INSERT INTO t SELECT 2, 1, 100.5, ''",
            "INSERT INTO t SELECT 2, 1, 1, 'abc'",
            "INSERT INTO t SELECT 3000000000, 1, 1, 'a'",
            "INSERT INTO t SELECT 'x', 1, 1, 'a'",
            "UPDATE t SET n = 300 WHERE k = 1",
            "UPDATE t SET n = n + 300",
            "UPDATE t SET d = d * 100 WHERE k = 1",
            "MERGE INTO t USING (SELECT 1 AS k) q ON t.k = q.k WHEN MATCHED THEN UPDATE SET n = 300",
        ):
            with pytest.raises(TypeMismatch):
                swh.sql(text)
        assert swh.status().csn == csn
        swh.sql("UPDATE t SET n = CAST('bad' AS INT), d = 1 / 0 WHERE k = 1")
        swh.sql("INSERT INTO t SELECT 2, 1.9D, 1.255, 'b'")
    assert [tuple(r) for r in swh.sql("SELECT * FROM t ORDER BY k").collect()] == [
        (1, None, None, "a "),
        (2, 1, Decimal("1.26"), "b "),
    ]


def test_sessions_with_other_zones_mean_the_same_instants(swh: Warehouse, spark: SparkSession) -> None:
    """TIMESTAMP is an instant, TIMESTAMP_NTZ a reading of a clock; daylight saving loses neither."""
    swh.sql("CREATE TABLE t (k INT PRIMARY KEY, i TIMESTAMP, c TIMESTAMP_NTZ)")
    with setting(spark, spark__sql__session__timeZone="America/Los_Angeles"):
        swh.sql("INSERT INTO t SELECT 1, TIMESTAMP'2020-11-01 01:30:00', TIMESTAMP_NTZ'2020-03-08 02:30:00'")
        swh.sql("INSERT INTO t VALUES (2, TIMESTAMP'2020-11-01 01:30:00 UTC-8', TIMESTAMP_NTZ'2020-11-01 01:30:00')")
        swh.sql("UPDATE t SET i = i + INTERVAL 0 SECOND, c = c + INTERVAL 0 SECOND WHERE k IN (1, 2)")
        swh.sql("UPDATE t SET i = i, c = c")
    with setting(spark, spark__sql__session__timeZone="Asia/Kolkata"):
        swh.sql("CHECKPOINT t")
        swh.sql("UPDATE t SET c = c WHERE k = 1 AND i > TIMESTAMP'2000-01-01'")
        rows = swh.sql("SELECT i, c FROM t ORDER BY k").toArrow().to_pylist()
    instants = [r["i"].astimezone(dt.UTC) for r in rows]
    assert instants == [dt.datetime(2020, 11, 1, h, 30, tzinfo=dt.UTC) for h in (8, 9)]
    assert [r["c"] for r in rows] == [dt.datetime(2020, 3, 8, 2, 30), dt.datetime(2020, 11, 1, 1, 30)]


def test_settings_of_the_session_are_left_as_they_were(
    swh: Warehouse, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_if_large(monkeypatch)
    before = dict(spark.conf.getAll)
    swh.sql("CREATE TABLE t AS SELECT id, current_timestamp() AS now FROM range(1000)")
    swh.sql("UPDATE t SET id = id + 1")
    assert dict(spark.conf.getAll) == before


def test_files_are_readable_whatever_the_parquet_settings(swh: Warehouse, spark: SparkSession) -> None:
    """INT96 times and legacy lists in the session do not reach the files of a table."""
    with setting(
        spark,
        spark__sql__parquet__outputTimestampType="INT96",
        spark__sql__parquet__writeLegacyFormat="true",
    ):
        swh.sql("CREATE TABLE t (k INT PRIMARY KEY, i TIMESTAMP, a ARRAY<STRUCT<x:DECIMAL(5,1)>>, m MAP<STRING,INT>)")
        swh.sql(
            "INSERT INTO t SELECT 1, TIMESTAMP'0001-01-01 00:00:00.000001', "
            "array(named_struct('x', 1.5), NULL), map('a', 1)"
        )
        swh.sql("UPDATE t SET m = map('b', k)")
    expected = [(1, -62135596800000000 + 1, [{"x": Decimal("1.5")}, None], [("b", 1)])]
    for _ in range(2):
        found = swh.sql("SELECT k, unix_micros(i) AS i, a, m FROM t").toArrow()
        assert [tuple(r.values()) for r in found.to_pylist()] == expected
        swh.sql("CHECKPOINT t")
    with swh.transaction() as tx:
        tx.delete("t", pa.table({"k": pa.array([1], pa.int32())}))
    assert swh.sql("SELECT * FROM t").count() == 0


@pytest.mark.parametrize("session", ["the user's", "one of our own"])
def test_two_writes_of_one_session_run_side_by_side(
    swh: Warehouse, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, session: str
) -> None:
    """Law: no write waits for another one; both write times exactly, and the session's settings are as before."""
    both, write = threading.Barrier(2, timeout=60), DataFrameWriter.parquet

    def meeting(self: DataFrameWriter, path: str, *args: Any) -> None:
        both.wait()
        write(self, path, *args)

    monkeypatch.setattr(DataFrameWriter, "parquet", meeting)
    here = internals(swh)
    with setting(spark, spark__sql__parquet__outputTimestampType="INT96"):
        before = dict(spark.conf.getAll)
        user = swh.engine()
        engine = user if session == "the user's" else user.sibling(user.settings(), small=False)
        frames = [engine.query(f"SELECT TIMESTAMP'0001-01-01 00:00:00' AS t, {n} AS n", {}, "q") for n in range(2)]
        with ThreadPoolExecutor(2) as pool:
            done = list(pool.map(lambda n: engine.write(frames[n], 0, f"stage-{n}", "q"), range(2)))
        assert dict(spark.conf.getAll) == before
        if engine is not user:
            engine.close()
    for (file,) in done:
        read = pq.read_schema(here.storage.layout.relation(0) / file.path)
        assert read.field("t").type == pa.timestamp("us", "UTC")


def test_old_dates_stay_as_they_are_whatever_calendar_the_session_reads_and_writes(
    swh: Warehouse, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows of a table are in files; a calendar of files by others does not move its dates."""
    as_if_large(monkeypatch)
    legacy = {
        f"spark__sql__parquet__{name}RebaseModeIn{way}": "LEGACY"
        for name in ("datetime", "int96")
        for way in ("Read", "Write")
    }
    old = "DATE'1500-01-01' AS d, TIMESTAMP_NTZ'1500-01-01 00:00:00' AS n"
    day, time = dt.date(1500, 1, 1), dt.datetime(1500, 1, 1)
    with setting(spark, **legacy):
        swh.sql(f"CREATE TABLE t AS SELECT id, {old} FROM range(1000)")  # written by Spark
        swh.sql("CREATE TABLE u (id BIGINT, d DATE, n TIMESTAMP_NTZ)")  # written by the driver
        with swh.transaction() as tx:
            tx.insert("u", pa.table({"id": range(1000), "d": [day] * 1000, "n": [time] * 1000}))
        swh.sql("CREATE MATERIALIZED VIEW v AS SELECT id, d, n FROM t WHERE id >= 0")
        for step in range(2):
            for name in ("t", "u", "v"):
                found = swh.sql(f"SELECT DISTINCT CAST(d AS STRING) AS d, CAST(n AS STRING) AS n FROM {name}")
                assert [tuple(r) for r in found.collect()] == [("1500-01-01", "1500-01-01 00:00:00")], (name, step)
            swh.sql("CHECKPOINT t")
            swh.sql("CHECKPOINT u")
            swh.sql(f"INSERT INTO t SELECT id, {old} FROM range(1000, 2000)")
    tables = tmp_path / "warehouse" / "tables"
    files = sorted(tables.rglob("*.parquet"))
    assert len({f.relative_to(tables).parts[0] for f in files}) == 3  # whoever reads them finds the same dates
    assert {str(d) for f in files for d in pq.read_table(f).column("d").unique().to_pylist()} == {str(day)}


def test_case_sensitive_sessions_find_our_tables(swh: Warehouse, spark: SparkSession) -> None:
    """Our names stay case-insensitive; expressions inside a query follow the session."""
    swh.sql("CREATE TABLE T (K INT PRIMARY KEY, V STRING)")
    with setting(spark, spark__sql__caseSensitive="true"):
        swh.sql("INSERT INTO t (k, v) SELECT 1, 'a'")
        swh.sql("UPDATE t SET v = concat(V, 'b') WHERE K = 1")
        swh.sql("UPDATE t SET v = concat(V, 'c') WHERE V > ''")
        swh.sql("MERGE INTO t USING (SELECT 2 AS K, 'm' AS V) q ON t.K = q.K WHEN NOT MATCHED THEN INSERT *")
        assert [tuple(r) for r in swh.sql("SELECT K, V FROM t ORDER BY K").collect()] == [(1, "abc"), (2, "m")]


def test_nondeterministic_statements_are_evaluated_once(swh: Warehouse) -> None:
    """rand() and uuid() give what they gave, in every later reading, in bulk, near a key, and before a checkpoint."""
    swh.sql("CREATE TABLE t (k INT PRIMARY KEY, u STRING, r DOUBLE)")
    swh.sql("INSERT INTO t SELECT CAST(id AS INT), uuid(), rand() FROM range(50)")
    swh.sql("UPDATE t SET u = uuid(), r = rand() WHERE k IN (1, 2, 3)")
    swh.sql("UPDATE t SET r = r + rand() WHERE rand() < 0.5")
    swh.sql("DELETE FROM t WHERE rand() < 0.3")
    first = {r.k: (r.u, r.r) for r in swh.sql("SELECT * FROM t").collect()}
    assert {r.k: (r.u, r.r) for r in swh.sql("SELECT * FROM t").collect()} == first
    swh.sql("CHECKPOINT t")
    assert {r.k: (r.u, r.r) for r in swh.sql("SELECT * FROM t").collect()} == first
    assert len({u for u, _ in first.values()}) == len(first)
