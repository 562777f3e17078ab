"""A relation's state has one meaning, however it is read: folded on the driver, laid over, folded by Spark."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests.internals import internals
from tests.spark.sessions import jobs_run

import freshview
from freshview import Warehouse
from freshview.errors import DuplicateKey, NotNullViolation
from freshview.relation.schema import Column, Schema
from freshview.relation.types import parse_type
from freshview.spark import scan
from freshview.storage import reader, segments
from freshview.transactions import dml
from freshview.transactions.evaluated import StatementResult

_WAYS = {
    "folded on the driver": (10_000, 200_000),
    "overlay over Parquet": (0, 200_000),
    "folded by Spark": (0, 0),
}


@contextmanager
def _way(name: str, folder: Path, spark: SparkSession) -> Iterator[Warehouse]:
    """The warehouse opened anew (no frame is remembered), with limits that force one way to scan."""
    local, overlay = _WAYS[name]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan, "LOCAL_ROWS", local)
        patch.setattr(scan, "OVERLAY_ROWS", overlay)
        patch.setattr(reader, "OVERLAY_ROWS", overlay)
        with freshview.connect(folder, spark=spark) as wh:
            yield wh


def _bits(value: Any) -> Any:
    if isinstance(value, float):
        return "nan" if value != value else value.hex()
    if isinstance(value, list | tuple):
        return tuple(map(_bits, value))
    return value


def _bag(wh: Warehouse, table: str, at: int | None = None) -> Counter[Any]:
    version = f" VERSION AS OF {at}" if at is not None else ""
    return Counter(_bits(tuple(r.values())) for r in wh.sql(f"SELECT * FROM {table}{version}").toArrow().to_pylist())


def _agree(folder: Path, spark: SparkSession, tables: list[str]) -> dict[str, Counter[Any]]:
    """Versions of every table, old and new, the same in all ways; the newest contents."""
    seen: dict[str, dict[Any, Counter[Any]]] = {}
    for name in _WAYS:
        with _way(name, folder, spark) as wh:
            newest = wh.status().csn
            seen[name] = {(t, csn): _bag(wh, t, csn) for t in tables for csn in (newest - 5, newest - 2)}
            seen[name] |= {(t, None): _bag(wh, t) for t in tables}
    first, *others = _WAYS
    for other in others:
        for version, contents in seen[first].items():
            assert seen[other][version] == contents, f"{other}, version {version}"
    return {t: seen[first][t, None] for t in tables}


_VALUES = """
    (1, 0.0D, map('a', -0.0D), TIMESTAMP_NTZ'2020-03-08 02:30:00', 'x'),
    (2, -0.0D, map('a', 0.0D), NULL, NULL),
    (3, double('nan'), map('a', double('nan'), 'b', NULL), TIMESTAMP_NTZ'0001-01-01 00:00:00.000001', ''),
    (4, NULL, NULL, TIMESTAMP_NTZ'9999-12-31 23:59:59.999999', 'é'),
    (5, double('infinity'), map(), NULL, 'x')
"""
_COLUMNS = "k INT, x DOUBLE, m MAP<STRING,DOUBLE>, n TIMESTAMP_NTZ, s STRING"


def test_keyed_states_fold_the_same(tmp_path: Path, spark: SparkSession) -> None:
    """Updates, key changes, blind upserts and deletes, checkpoint, added and renamed columns, Parquet and inline."""
    folder = tmp_path / "w"
    spark.conf.set("spark.sql.session.timeZone", "America/Los_Angeles")
    try:
        with freshview.connect(folder, spark=spark) as wh:
            wh.sql(f"CREATE TABLE t ({_COLUMNS}, PRIMARY KEY (k))")
            wh.sql(f"INSERT INTO t VALUES {_VALUES}")
            wh.sql("CHECKPOINT t")
            wh.sql("UPDATE t SET k = k + 1")
            with wh.transaction() as tx:
                tx.upsert("t", [{"k": 3, "x": -0.0}, {"k": 9, "s": "blind"}])
                tx.delete("t", [4, 77])
                tx.sql("INSERT INTO t (k, s) VALUES (4, 'again')")
                tx.sql("DELETE FROM t WHERE k = 2")
            wh.sql("ALTER TABLE t ADD COLUMN added ARRAY<INT>")
            wh.sql("UPDATE t SET added = array(k, NULL) WHERE k > 4")
            wh.sql("ALTER TABLE t RENAME COLUMN x TO `c0`")
            wh.sql("ALTER TABLE t RENAME COLUMN k TO row")
            with pytest.MonkeyPatch.context() as patch:  # files from here on
                patch.setattr(segments, "INLINE_BYTES", 0)
                wh.sql("UPDATE t SET row = row + 1, c0 = -c0")
                wh.sql("INSERT INTO t SELECT row + 100, c0, m, n, s, added FROM t WHERE row > 5")
            wh.sql("UPDATE t SET s = 'last' WHERE row IN (5, 106)")
        contents = _agree(folder, spark, ["t"])["t"]
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert sorted(row[0] for row in contents) == [4, 5, 6, 7, 10, 106, 107, 110]
    assert {row[0]: row[4] for row in contents}[5] == "last"


def test_bags_fold_the_same(tmp_path: Path, spark: SparkSession) -> None:
    """Copies of rows that SQL holds equal and bits do not; one copy of several deleted; maps have no equality."""
    folder = tmp_path / "w"
    with freshview.connect(folder, spark=spark) as wh:
        wh.sql(f"CREATE TABLE b ({_COLUMNS})")
        for _ in range(3):
            wh.sql(f"INSERT INTO b VALUES {_VALUES}")
        wh.sql("CHECKPOINT b")
        gone = wh.sql("DELETE FROM b WHERE rand(11) < 0.4").rows
        wh.sql(f"INSERT INTO b VALUES {_VALUES}")
        gone += wh.sql("DELETE FROM b WHERE x = 0.0 AND rand(3) < 0.5").rows
        wh.sql("UPDATE b SET x = -x WHERE x = 0.0")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(segments, "INLINE_BYTES", 0)
            wh.sql("INSERT INTO b SELECT * FROM b WHERE isnan(x)")
            more = wh.sql("SELECT 1 FROM b WHERE isnan(x)").count() // 2
            gone += wh.sql("DELETE FROM b WHERE isnan(x) AND rand(5) < 0.5").rows
        wh.sql("ALTER TABLE b ADD COLUMN added STRING")
        wh.sql("UPDATE b SET added = s WHERE s IS NULL OR s = 'x'")
        wh.sql("ALTER TABLE b RENAME COLUMN m TO count")
        gone += wh.sql("DELETE FROM b WHERE k = 4 AND rand(2) < 0.5").rows
    contents = _agree(folder, spark, ["b"])["b"]
    assert gone > 0
    assert contents.total() == 20 + more - gone


@pytest.mark.parametrize("limit", ["in memory", "streamed"])
def test_statements_do_the_same_in_memory_and_streamed(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    """Results too large for the driver go through files in parts; nothing else may change."""
    if limit == "streamed":
        monkeypatch.setattr(dml, "IN_MEMORY_ROWS", 0)
        monkeypatch.setattr(dml, "_KEYS_IN_MEMORY", 0)
        monkeypatch.setattr(dml, "LOCAL_ROWS", 0)
        monkeypatch.setattr(segments, "INLINE_BYTES", 0)
        monkeypatch.setattr(StatementResult, "batches", _tiny_batches)
    with freshview.connect(tmp_path / "w", spark=spark) as wh:
        wh.sql("CREATE TABLE t (k INT PRIMARY KEY, v STRING NOT NULL)")
        wh.sql("CREATE TABLE b (k INT, v STRING)")
        wh.sql("INSERT INTO t SELECT CAST(id AS INT), concat('v', id) FROM range(20)")
        wh.sql("INSERT INTO b SELECT CAST(id % 5 AS INT), 'b' FROM range(20)")
        wh.sql("CHECKPOINT t")
        assert wh.sql("UPDATE t SET k = k + 1").rows == 20
        assert wh.sql("UPDATE t SET v = concat(v, '!') WHERE k IN (1, 2, 3) AND v <> 'v1'").rows == 2
        assert wh.sql("DELETE FROM t WHERE k = 20 AND length(v) > 1").rows == 1
        assert wh.sql("UPDATE b SET k = k + 1").rows == 20
        assert wh.sql("DELETE FROM b WHERE k > 3").rows == 8
        merge = "MERGE INTO t USING (SELECT CAST(id AS INT) AS k FROM range(17, 25)) q ON t.k = q.k "
        assert (
            wh.sql(
                merge
                + "WHEN MATCHED THEN UPDATE SET k = t.k + 100 WHEN NOT MATCHED THEN INSERT (k, v) VALUES (q.k, 'm')"
            ).rows
            == 8
        )
        with wh.transaction() as tx:
            frame = spark.sql("SELECT CAST(id AS INT) AS k, 'up' AS v FROM range(10, 13)")
            assert tx.upsert("t", frame).rows == 3
            with pytest.raises(DuplicateKey):
                tx.upsert("t", frame.union(frame))
            with pytest.raises(NotNullViolation):
                tx.upsert("t", spark.sql("SELECT 1 AS k, CAST(NULL AS STRING) AS v"))
        before = wh.status().csn
        with pytest.raises(DuplicateKey):
            wh.sql("INSERT INTO t SELECT CAST(id AS INT), 'twice' FROM range(3, 6)")
        with pytest.raises(DuplicateKey):
            wh.sql("INSERT INTO t SELECT 500, 'twice' FROM range(2)")
        with pytest.raises(DuplicateKey):
            wh.sql("UPDATE t SET k = k % 7")
        with pytest.raises(DuplicateKey):
            wh.sql("UPDATE t SET k = k + 1 WHERE k < 5")
        with pytest.raises(NotNullViolation):
            wh.sql("UPDATE t SET v = NULLIF(v, 'v5')")
        with pytest.raises(NotNullViolation):
            wh.sql("INSERT INTO t SELECT NULL, 'x' FROM range(2)")
        assert wh.status().csn == before
        expected = {k: f"v{k - 1}" for k in range(1, 17)} | {2: "v1", 3: "v2!", 1: "v0!"}
        expected |= {10: "up", 11: "up", 12: "up"}
        expected |= {k + 100: f"v{k - 1}" for k in (17, 18, 19)} | dict.fromkeys(range(20, 25), "m")
        for _ in range(2):
            assert {r.k: r.v for r in wh.sql("SELECT * FROM t").collect()} == expected
            assert Counter(r.k for r in wh.sql("SELECT * FROM b").collect()) == {1: 4, 2: 4, 3: 4}
            wh.sql("CHECKPOINT t")
            wh.sql("CHECKPOINT b")


def _tiny_batches(self: Any) -> Iterator[Any]:
    whole = self.load()
    for start in range(0, whole.num_rows, 3):
        yield whole.slice(start, 3)


def test_own_writes_are_seen_by_all_ways(tmp_path: Path, spark: SparkSession) -> None:
    """Pending statements of a transaction lie above what is committed, in the order of the statements."""
    seen = []
    for number, name in enumerate(_WAYS):
        with _way(name, tmp_path / f"w{number}", spark) as wh:
            wh.sql("CREATE TABLE t (k INT PRIMARY KEY, x DOUBLE)")
            wh.sql("CREATE TABLE b (x DOUBLE)")
            wh.sql("INSERT INTO t VALUES (1, 1.0), (2, 2.0)")
            wh.sql("INSERT INTO b VALUES (0.0), (0.0), (-0.0D)")
            wh.sql("CHECKPOINT t")
            tx = wh.transaction()
            tx.sql("UPDATE t SET k = k + 1, x = NULL")
            tx.sql("INSERT INTO t VALUES (1, -0.0D)")
            tx.upsert("t", [{"k": 3, "x": 7.0}, {"k": 5, "x": 8.0}])
            tx.delete("t", [5])
            tx.sql("UPDATE t SET x = x + 1 WHERE k = 3")
            tx.sql("DELETE FROM b WHERE CAST(x AS STRING) = '0.0'")
            tx.sql("INSERT INTO b VALUES (5.0)")
            contents = [Counter(_bits(tuple(r)) for r in tx.sql(f"SELECT * FROM {t}").collect()) for t in ("t", "b")]
            tx.commit()
            assert [_bag(wh, "t"), _bag(wh, "b")] == contents, name
            seen.append(contents)
    assert seen[0] == seen[1] == seen[2]
    assert seen[0] == [
        Counter([(1, "-0x0.0p+0"), (2, None), (3, (8.0).hex())]),
        Counter([("-0x0.0p+0",), ((5.0).hex(),)]),
    ]


def test_a_key_may_stand_anywhere(tmp_path: Path, spark: SparkSession) -> None:
    """Columns of one type, keys in other places and another order than the columns: no value moves to its neighbour."""
    folder = tmp_path / "w"
    keys = {"late": "d", "split": "a, d", "turned": "d, b"}
    draw = random.Random(7)
    expected: dict[str, dict[Any, tuple[int, ...]]] = {t: {} for t in keys}
    with freshview.connect(folder, spark=spark) as wh:
        for table, key in keys.items():
            wh.sql(f"CREATE TABLE {table} (a INT NOT NULL, b INT NOT NULL, c INT, d INT NOT NULL, PRIMARY KEY ({key}))")
        for step in range(6):
            for table, key in keys.items():
                names = key.split(", ")
                with wh.transaction() as tx:
                    rows = {}
                    for _ in range(8):
                        row = dict(zip("abcd", (draw.randint(1, 3) * 10**i for i in range(4)), strict=True))
                        rows[tuple(row[n] for n in names)] = row
                    tx.upsert(table, list(rows.values()))
                    gone = draw.sample(sorted(expected[table]), min(2, len(expected[table])))
                    tx.delete(table, [dict(zip(names, k, strict=True)) for k in gone])
                expected[table].update({k: tuple(r.values()) for k, r in rows.items()})
                for k in gone:
                    expected[table].pop(k, None)
                if step == 2:
                    wh.sql(f"CHECKPOINT {table}")
    found = _agree(folder, spark, list(keys))
    for table, rows_of in expected.items():
        assert found[table] == Counter(rows_of.values()), table


def test_a_commit_that_was_seen_in_part_is_not_taken_for_the_whole(swh: Warehouse) -> None:
    """A view may have seen some statements of a commit: frames that were made then are not used for all of it."""
    swh.sql("CREATE TABLE t (k INT)")
    for key in (1, 2):
        swh.sql(f"INSERT INTO t VALUES ({key})")
    state = internals(swh).state("t")
    first, second = (replace(s, csn=5, seq=i) for i, s in enumerate(state.segments))
    engine = swh.engine()
    for some, count in (((first,), 1), ((first, second), 2), ((first,), 1)):
        assert engine.scan(replace(state, segments=some)).count() == count


@pytest.mark.parametrize("batches", ["erer", "eer", "ree", "rer", "eree", "ereer"])
def test_rows_of_the_driver_are_all_in_their_frame_however_they_are_cut(batches: str, swh: Warehouse) -> None:
    schema = Schema((Column("k", parse_type("INT")), Column("v", parse_type("STRING"))))
    some = pa.table({"k": [1, 2, 3], "v": ["x", None, "z"]}, schema=schema.arrow)
    rows = pa.concat_tables([some if part == "r" else some.slice(0, 0) for part in batches])
    found = swh.engine().frame(rows, schema).collect()
    assert sorted(map(repr, map(tuple, found))) == sorted(repr(tuple(r.values())) for r in rows.to_pylist())


def test_an_empty_relation_is_read_without_a_job(swh: Warehouse, spark: SparkSession) -> None:
    """Spark's optimiser knows that it has no rows, whatever its types."""
    columns = "i INT, d DECIMAL(38,3), c CHAR(3), ts TIMESTAMP, m MAP<STRING, ARRAY<STRUCT<A: INT>>>"
    swh.sql(f"CREATE TABLE nothing ({columns})")
    answer = swh.sql("SELECT * FROM nothing")
    assert jobs_run(spark, lambda: answer.collect()) == 0
    assert [f.dataType.simpleString() for f in answer.schema.fields][1:] == [
        "decimal(38,3)",
        "string",
        "timestamp",
        "map<string,array<struct<A:int>>>",
    ]
