"""Small statements cost no Spark job, and literal ones no Spark at all."""

from __future__ import annotations

import datetime as dt
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.types import StructType
from tests.spark.sessions import jobs_run

import freshview
from freshview import Warehouse
from freshview.spark import scan as scan_module
from freshview.storage.main import MainStore


def test_statements_near_a_key_run_no_job(swh: Warehouse, spark: SparkSession) -> None:
    """Expressions over rows that were looked up by key: in main, in segments, and in a transaction's own."""
    swh.sql("CREATE TABLE t (k INT, j STRING, v STRING, x DOUBLE, ts TIMESTAMP, PRIMARY KEY (k, j))")
    rows = ", ".join(f"({n}, 'j{n}', 'v', {n}.5, TIMESTAMP'2020-01-01 00:00:00')" for n in range(30))
    swh.sql(f"INSERT INTO t VALUES {rows}")
    swh.sql("CHECKPOINT t")
    swh.sql("INSERT INTO t (k, j) VALUES (50, 'new')")
    keys = ", ".join(map(str, range(20)))
    statements = {
        f"UPDATE t SET v = concat(v, '!'), x = x * k WHERE k IN ({keys})": 20,
        "UPDATE t SET v = upper(j), ts = ts + INTERVAL 1 DAY WHERE k = 3 AND j = 'j3' AND x > 0": 1,
        "UPDATE t AS a SET k = a.k + 100 WHERE a.k IN (1, 2, 50)": 3,
        "UPDATE t SET v = CASE WHEN x > 5 THEN 'big' ELSE v END WHERE k = 9 AND v IS NOT NULL": 1,
        "DELETE FROM t WHERE k IN (4, 5, 6) AND length(v) < 3": 3,
        "DELETE FROM t WHERE k = 7 AND x IS NULL": 0,
        "DELETE FROM t WHERE k BETWEEN 20 AND 22 AND x > 21": 2,
        "UPDATE t SET x = x + 1 WHERE v = 'J3'": 1,
    }
    outcomes: list[object] = []

    def run(text: str) -> None:
        outcomes.append(swh.sql(text).rows)

    for text, count in statements.items():
        outcomes.clear()
        assert jobs_run(spark, partial(run, text)) == 0, text
        assert outcomes == [count], text
    assert jobs_run(spark, lambda: swh.sql("UPDATE t SET v = 'all' WHERE x > 0")) > 0  # the count counts


def test_small_relations_are_read_without_a_job(swh: Warehouse, spark: SparkSession) -> None:
    swh.sql("CREATE TABLE t (k INT PRIMARY KEY, v STRING)")
    swh.sql("INSERT INTO t VALUES (1, 'a'), (2, 'b')")
    assert jobs_run(spark, lambda: swh.sql("SELECT k + 1 AS n, upper(v) FROM t WHERE k > 1").collect()) == 0


def test_few_rows_that_change_again_and_again_stay_few(
    swh: Warehouse, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to five times as many changes as a small relation may have rows; then Spark folds them, until a checkpoint."""
    monkeypatch.setattr(scan_module, "LOCAL_ROWS", 4)
    swh.sql("CREATE TABLE t (k INT PRIMARY KEY, v INT)")
    swh.sql("INSERT INTO t VALUES (1, 0), (2, 0), (3, 0)")
    swh.sql("CHECKPOINT t")  # without rows in files Spark would need no job either
    found: list[tuple[int, list[Row]]] = []

    def read(n: int) -> None:
        found.append((n, swh.sql("SELECT * FROM t").collect()))

    for n in range(7):
        with swh.transaction() as tx:
            tx.upsert("t", [{"k": k, "v": n} for k in (1, 2, 3)])
        jobs = jobs_run(spark, partial(read, n))
        assert (jobs == 0) == (3 * (n + 2) <= 20), n
    swh.sql("CHECKPOINT t")
    assert jobs_run(spark, partial(read, 6)) == 0
    assert all(sorted(map(tuple, rows)) == [(k, n) for k in (1, 2, 3)] for n, rows in found)


@pytest.fixture
def small(swh: Warehouse) -> Warehouse:
    """A table, a view with hidden rows, and a view over that; small changes are maintained in this process."""
    swh.sql("CREATE TABLE t (k INT PRIMARY KEY, g STRING, v INT)")
    swh.sql("INSERT INTO t VALUES (1, 'a', 1), (2, 'b', 2), (3, 'b', 3)")
    swh.sql("CREATE MATERIALIZED VIEW v AS SELECT g, sum(v) AS s, count(*) AS n FROM t GROUP BY g HAVING count(*) > 1")
    swh.sql("CREATE MATERIALIZED VIEW w AS SELECT s + n AS m, upper(g) AS u FROM v")
    return swh


_LOCAL = (
    "SELECT * FROM v",
    "SELECT m FROM w WHERE u <> 'A' AND m > 0",
    "SELECT g, s * 2 AS d FROM v LIMIT 1",
    "SELECT x.g FROM (SELECT g FROM v WHERE n > 1) AS x",
)
_SPARKS = (  # Spark runs a job for operators over local rows other than filters, projections and limits
    "SELECT * FROM v ORDER BY g",
    "SELECT count(*) FROM w",
    "SELECT DISTINCT g FROM v",
    "SELECT v.g, w.m FROM v JOIN w ON v.g = w.u",
)


@pytest.mark.parametrize("text", [*_LOCAL, *_SPARKS])
def test_a_query_of_small_views_runs_no_job_of_ours(small: Warehouse, spark: SparkSession, text: str) -> None:
    """Views are brought up to date, and the query is bound to local rows, without a job; what reads it is Spark's."""
    small.sql("INSERT INTO t VALUES (4, 'a', 4), (5, 'b', 5)")
    frames: list[DataFrame] = []
    assert jobs_run(spark, lambda: frames.append(small.sql(text))) == 0
    assert frames[0].inputFiles() == []
    assert (jobs_run(spark, frames[0].collect) == 0) == (text in _LOCAL)


def test_rows_are_made_a_frame_once_after_a_refresh(small: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """The refresh itself makes none; the query, and the next one, read the rows that it left, without hidden ones."""
    made: list[int] = []
    create = scan_module.Scanner._created

    def counted(scanner: scan_module.Scanner, rows: Any, schema: StructType) -> DataFrame:
        made.extend([len(rows)] if len(rows) else [])  # definitions are analysed over empty frames
        return create(scanner, rows, schema)

    small.sql("SELECT * FROM v").collect()
    monkeypatch.setattr(scan_module.Scanner, "_created", counted)
    small.sql("INSERT INTO t VALUES (4, 'a', 4), (5, 'c', 5)")
    assert small.sql("SELECT count(*) FROM v").collect()[0][0] == 2
    assert small.sql("SELECT g FROM v ORDER BY g").collect() == [("a",), ("b",)]
    assert made == [2]
    assert [job.engine for job in small.history("v")] == ["embedded"]


def test_the_main_of_a_small_view_is_not_read_for_every_refresh(
    small: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    small.sql("CHECKPOINT v")
    read: list[int] = []
    files = MainStore.read

    def counted(store: MainStore, relation_id: int, version: int) -> pa.Table:
        read.append(relation_id)
        return files(store, relation_id, version)

    monkeypatch.setattr(MainStore, "read", counted)
    for k in range(4, 9):
        small.sql(f"INSERT INTO t VALUES ({k}, 'a', {k})")
        small.sql("SELECT * FROM v").collect()
    assert len(read) <= 2
    assert small.check("v").ok


def test_literals_keys_and_the_api_need_no_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine is never asked for."""

    def refuse(_: Warehouse) -> None:
        raise AssertionError("Spark was asked for")

    monkeypatch.setattr(Warehouse, "engine", refuse)
    with freshview.connect(tmp_path / "w") as wh:
        wh.sql("CREATE TABLE t (k INT, d DATE, v STRING, x DECIMAL(5,2), PRIMARY KEY (k, d))")
        wh.sql("INSERT INTO t VALUES (1, DATE'2020-01-01', 'its', 1.50), (2, DATE'2020-01-02', NULL, -2)")
        wh.sql("INSERT INTO t (d, k) VALUES (DATE'2020-01-03', 3)")
        wh.sql("CHECKPOINT t")
        assert wh.sql("UPDATE t SET v = 'new', x = NULL WHERE k IN (1, 2, 9) AND d = DATE'2020-01-01'").rows == 1
        assert wh.sql("UPDATE t AS a SET k = 8 WHERE a.k = 3 AND DATE'2020-01-03' = a.d").rows == 1
        assert wh.sql("DELETE FROM t WHERE k = 2 AND d IN (DATE'2020-01-02')").rows == 1
        assert wh.sql("UPDATE t SET x = 1 WHERE k BETWEEN 1 AND 7").rows == 1
        assert wh.sql("DELETE FROM t WHERE v IN ('none', 'old') AND k > 0").rows == 0
        with wh.transaction() as tx:
            tx.insert("t", [{"k": 5, "d": dt.date(2020, 1, 5), "v": "api"}])
            tx.upsert("t", [{"k": 6, "d": dt.date(2020, 1, 6)}])
            tx.delete("t", [{"k": 6, "d": dt.date(2020, 1, 6)}])
        wh.sql("ALTER TABLE t ADD COLUMN more INT")
        wh.sql("DROP TABLE t")
        assert wh.vacuum().rows >= 0
        assert wh.status().tables == ()


def test_a_star_in_an_expression_means_the_tables_columns(swh: Warehouse) -> None:
    """Law: near a key and far from it, * takes in the table's columns and none of ours."""
    swh.sql("CREATE TABLE t (id INT, a INT, s STRING, PRIMARY KEY (id))")
    swh.sql("INSERT INTO t VALUES (1, 2, NULL), (2, 3, NULL)")
    swh.sql("UPDATE t SET s = to_json(struct(*)) WHERE id = 1")
    swh.sql("UPDATE t SET s = to_json(struct(*)) WHERE a = 3")
    found = [r[0] for r in swh.sql("SELECT s FROM t ORDER BY id").collect()]
    assert found == ['{"id":1,"a":2}', '{"id":2,"a":3}']
