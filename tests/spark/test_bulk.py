"""Large statements: through Spark into Parquet, adopted into main as they are; constraints hold all the same."""

from __future__ import annotations

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from tests.spark.sessions import as_if_large

from freshview import Warehouse
from freshview.errors import DuplicateKey, NotNullViolation


def _files(wh: Warehouse) -> dict[str, int]:
    """Data files by name, with their inode: the same file, not a copy."""
    return {p.name: p.stat().st_ino for p in (wh.path / "tables").rglob("*.parquet")}


def _pending(wh: Warehouse, table: str) -> tuple[int, int]:
    status = next(t for t in wh.status().tables if t.name == table)
    return status.rows_in_main, status.pending_segments


def test_a_bulk_load_becomes_main_without_being_written_again(swh: Warehouse) -> None:
    """CREATE TABLE AS SELECT and INSERT … SELECT above 1 MiB: what Spark wrote is what main lists."""
    outcome = swh.sql("CREATE TABLE t PRIMARY KEY (id) AS SELECT id, uuid() AS u FROM range(60000)")
    assert outcome.rows == 60_000
    assert _pending(swh, "t") == (60_000, 0)
    loaded = _files(swh)
    before = {r.id: r.u for r in swh.sql("SELECT * FROM t WHERE id < 50").collect()}
    assert swh.sql("INSERT INTO t SELECT id + 60000, uuid() FROM range(60000)").rows == 60_000
    assert _pending(swh, "t") == (120_000, 0)
    now = _files(swh)
    assert now.items() >= loaded.items()
    swh.sql("CHECKPOINT t")
    assert _files(swh) == now
    assert {r.id: r.u for r in swh.sql("SELECT * FROM t WHERE id < 50").collect()} == before
    csn, count = swh.status().csn, swh.sql("SELECT * FROM t").count()
    for text, error in [
        ("INSERT INTO t SELECT id + 119999, uuid() FROM range(60000)", DuplicateKey),  # against rows that exist
        ("INSERT INTO t SELECT id % 59999 + 200000, uuid() FROM range(60000)", DuplicateKey),  # inside the statement
        ("INSERT INTO t SELECT NULLIF(id + 200000, 230000), uuid() FROM range(60000)", NotNullViolation),
    ]:
        with pytest.raises(error):
            swh.sql(text)
    assert (swh.status().csn, swh.sql("SELECT * FROM t").count()) == (csn, count)
    assert _files(swh) == now
    swh.sql("CREATE MATERIALIZED VIEW v AS SELECT u, id FROM t")
    assert _pending(swh, "v") == (120_000, 0)
    assert swh.check("v").ok


def test_nulls_inside_a_value_are_no_null(swh: Warehouse) -> None:
    """A NOT NULL column of arrays or structs may hold empty ones and NULL elements, in a large statement too."""
    swh.sql("CREATE TABLE t (id BIGINT, a ARRAY<STRING> NOT NULL, s STRUCT<x: STRING> NOT NULL)")
    values = "SELECT id, IF(id % 2 = 0, array(), array(NULL, uuid())), named_struct('x', nullif(uuid(), '')) FROM"
    assert swh.sql(f"INSERT INTO t {values} range(60000)").rows == 60_000
    with pytest.raises(NotNullViolation):
        swh.sql("INSERT INTO t SELECT id, IF(id = 7, NULL, array(uuid())), named_struct('x', uuid()) FROM range(60000)")


def test_a_large_update_is_one_parquet_segment(swh: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """All rows in one statement; keys may move; rows are right before and after the checkpoint."""
    as_if_large(monkeypatch)
    swh.sql(
        "CREATE TABLE t PRIMARY KEY (k) AS "
        "SELECT CAST(id AS INT) AS k, id * 2 AS v, concat('s', id) AS s FROM range(3000)"
    )
    before = _files(swh)
    assert swh.sql("UPDATE t SET v = v + 1, k = k + 1").rows == 3_000
    assert _pending(swh, "t") == (3_000, 1)
    added = [
        p
        for p in (swh.path / "tables").rglob("*.parquet")
        if p.name not in before or p.stat().st_ino not in before.values()
    ]
    assert any(pq.read_metadata(p).num_rows == 6_000 for p in added if "delta-" in str(p))
    sums = "SELECT count(*), sum(k), sum(v), min(s), count(DISTINCT k) FROM t"
    expected = [(3_000, 3_000 * 3_001 // 2, 3_000 * 2_999 + 3_000, "s0", 3_000)]
    assert [tuple(r) for r in swh.sql(sums).collect()] == expected
    swh.sql("CHECKPOINT t")
    assert [tuple(r) for r in swh.sql(sums).collect()] == expected


def test_failed_creation_leaves_no_table(swh: Warehouse) -> None:
    with pytest.raises(DuplicateKey):
        swh.sql("CREATE TABLE t PRIMARY KEY (k) AS SELECT id % 59999 AS k, uuid() AS u FROM range(60000)")
    with pytest.raises(NotNullViolation):
        swh.sql("CREATE TABLE t PRIMARY KEY (k) AS SELECT NULLIF(id, 5) AS k FROM range(10)")
    assert swh.status().tables == ()
    swh.sql("CREATE TABLE t PRIMARY KEY (k) AS SELECT id AS k FROM range(10)")
    swh.sql("CREATE TABLE IF NOT EXISTS t AS SELECT 1 AS other")
    assert swh.sql("SELECT * FROM t").count() == 10


def test_a_bulk_load_is_atomic_with_its_transaction(swh: Warehouse, spark: SparkSession) -> None:
    """Seen inside, gone after rollback with its files, there after commit with the rest."""
    swh.sql("CREATE TABLE t (id BIGINT, u STRING, PRIMARY KEY (id))")
    frame = spark.range(60_000).selectExpr("id", "uuid() AS u")
    tx = swh.transaction()
    tx.insert("t", frame)
    tx.sql("DELETE FROM t WHERE id = 7")
    assert tx.sql("SELECT * FROM t").count() == 59_999
    tx.rollback()
    assert swh.sql("SELECT * FROM t").count() == 0
    assert _files(swh) == {}
    with swh.transaction() as tx:
        tx.insert("t", frame)
        tx.sql("UPDATE t SET id = -1 WHERE id = 7")
    assert [tuple(r) for r in swh.sql("SELECT count(*), min(id) FROM t WHERE id <> 7").collect()] == [(60_000, -1)]
