"""Every column type comes back bit for bit: through SQL and API, segments and main, us and other readers."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from freshview import Warehouse
from freshview.errors import InvalidStatement, NotNullViolation, TypeMismatch
from freshview.storage import segments

_COLUMNS = {
    "b": "BOOLEAN",
    "t": "TINYINT",
    "s": "SMALLINT",
    "i": "INT",
    "l": "BIGINT",
    "f": "FLOAT",
    "d": "DOUBLE",
    "de": "DECIMAL(38,10)",
    "small": "DECIMAL(5,2)",
    "st": "STRING",
    "ch": "CHAR(4)",
    "vc": "VARCHAR(4)",
    "bi": "BINARY",
    "da": "DATE",
    "ts": "TIMESTAMP",
    "tn": "TIMESTAMP_NTZ",
    "ar": "ARRAY<DOUBLE>",
    "mp": "MAP<STRING,TIMESTAMP>",
    "sr": "STRUCT<x:DECIMAL(5,2),y:ARRAY<STRING>,z:TIMESTAMP_NTZ,w:MAP<INT,STRUCT<q:FLOAT>>>",
}
_NAMES = ("k", *_COLUMNS)
_DDL = "k INT, " + ", ".join(f"{n} {t}" for n, t in _COLUMNS.items())
_UTC = dt.UTC
_INF, _NAN = float("inf"), float("nan")
_HUGE = Decimal("9999999999999999999999999999.9999999999")
_GAP = dt.datetime(2020, 3, 8, 2, 30, 0, 1)  # does not exist in Los Angeles


def _at(
    year: int, month: int, day: int, hour: int = 0, minute: int = 0, second: int = 0, micros: int = 0
) -> dt.datetime:
    return dt.datetime(year, month, day, hour, minute, second, micros, _UTC)


# Exact values in the order of _NAMES; CHAR as it is stored, padded.
# fmt: off
_ROWS: list[tuple[Any, ...]] = [
    (1, True, -128, -(2**15), -(2**31), -(2**63), _NAN, -_INF, Decimal("1.1234567890"), Decimal("-0.01"), "",
     "ab  ", "x", b"", dt.date(1, 1, 1), _at(1, 1, 1, 12), dt.datetime(1, 1, 1), [-0.0, None, _NAN, 5e-324],
     [("a", _at(2020, 3, 8, 10, 30)), ("b", None)],
     {"x": Decimal("1.50"), "y": ["é", None, ""], "z": _GAP, "w": [(1, {"q": -0.0})]}),
    (2, *(None,) * len(_COLUMNS)),
    (3, False, 127, 2**15 - 1, 2**31 - 1, 2**63 - 1, -0.0, 0.0, _HUGE.copy_negate(), Decimal("999.99"), "日本\x00\n",
     "é   ", "", b"\x00\xff", dt.date(9999, 12, 31), _at(9999, 12, 31, 1, 2, 3, 999999), _GAP, [], [],
     {"x": None, "y": None, "z": None, "w": None}),
    (4, False, 0, 0, 0, 0, 0.0, -0.0, Decimal("0E-10"), Decimal("0.00"), " a ", "    ", "c  ", b"a",
     dt.date(1582, 10, 10), _at(2020, 11, 1, 9, 30, 0, 123456),
     dt.datetime(1582, 10, 10, 0, 0, 0, 7), None, None, None),
    (5, None, 1, 1, 1, 1, _INF, _NAN, _HUGE, Decimal("1.10"), "'\"`\\{}%_", "'\\{}", "\t", b"'", dt.date(1969, 12, 31),
     _at(2020, 11, 1, 8, 30, 0, 123456), dt.datetime(1969, 12, 31, 23, 59, 59, 999999), [_INF, -_INF],
     [("", _at(1969, 12, 31))],
     {"x": Decimal("0.00"), "y": [], "z": dt.datetime(9999, 12, 31, 23, 59, 59, 999999), "w": [(-1, None)]}),
]
# fmt: on
_DATA = [dict(zip(_NAMES, row, strict=True)) for row in _ROWS]


@pytest.fixture
def zone(spark: SparkSession) -> Iterator[None]:
    """A session in a zone where some times do not exist and others exist twice."""
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/Los_Angeles")
    yield
    spark.conf.set("spark.sql.session.timeZone", str(before))


def _bits(value: Any) -> Any:
    """A value in a form that compares by identity: -0.0 and 0.0 differ, NaN equals itself."""
    if isinstance(value, float):
        return "nan" if value != value else value.hex()
    if isinstance(value, dict):
        return {k: _bits(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_bits(v) for v in value]
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, dt.datetime):
        return value.astimezone(_UTC).isoformat() if value.tzinfo else f"local {value.isoformat()}"
    return value


_EXPECTED = [_bits(r) for r in _ROWS]


def _held(wh: Warehouse, table: str) -> list[Any]:
    """What a query sees, by way of Arrow, which keeps instants and bits."""
    rows = wh.sql(f"SELECT * FROM {table} ORDER BY k").toArrow()
    assert rows.column_names == list(_NAMES)
    return [_bits(list(r.values())) for r in rows.to_pylist()]


def _create(wh: Warehouse, table: str, key: bool = True) -> None:
    wh.sql(f"CREATE TABLE {table} ({_DDL}{', PRIMARY KEY (k)' if key else ''})")


@pytest.mark.usefixtures("zone")
def test_what_goes_in_comes_out(swh: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """API in; copied by SQL in every way that a statement can take; inline and Parquet; before and after checkpoint."""
    _create(swh, "a")
    with swh.transaction() as tx:
        tx.insert("a", _DATA)
        assert [
            _bits(list(r.values())) for r in tx.sql("SELECT * FROM a ORDER BY k").toArrow().to_pylist()
        ] == _EXPECTED
    assert _held(swh, "a") == _EXPECTED
    swh.sql("CHECKPOINT a")
    assert _held(swh, "a") == _EXPECTED, "checkpoint"
    for inline in (True, False):
        if not inline:
            monkeypatch.setattr(segments, "INLINE_BYTES", 0)
        for kind in ("keyed", "bag"):
            name = f"{kind}_{inline}"
            _create(swh, name, kind == "keyed")
            swh.sql(f"INSERT INTO {name} SELECT * FROM a")
            assert _held(swh, name) == _EXPECTED, f"INSERT into {name}"
            swh.sql(f"UPDATE {name} SET b = b, ts = ts, tn = tn, ar = ar, mp = mp, sr = sr")
            assert _held(swh, name) == _EXPECTED, f"UPDATE of {name}"
            swh.sql(f"UPDATE {name} SET l = l, ts = ts, tn = tn, d = d, bi = bi, sr = sr WHERE k IN (1, 2, 3, 4, 5)")
            assert _held(swh, name) == _EXPECTED, f"UPDATE by key of {name}"
        swh.sql(f"MERGE INTO keyed_{inline} AS x USING a ON x.k = a.k WHEN MATCHED THEN UPDATE SET *")
        assert _held(swh, f"keyed_{inline}") == _EXPECTED, "MERGE"
        for name in (f"keyed_{inline}", f"bag_{inline}"):
            swh.sql(f"CHECKPOINT {name}")
            assert _held(swh, name) == _EXPECTED, f"checkpoint of {name}"
            assert swh.sql(f"DELETE FROM {name} WHERE k <> 2").rows == 4
            assert swh.sql(f"SELECT k FROM {name}").collect()[0].k == 2, f"DELETE from {name}"


@pytest.mark.usefixtures("zone")
def test_create_table_as_select_keeps_values(swh: Warehouse) -> None:
    _create(swh, "a")
    with swh.transaction() as tx:
        tx.insert("a", _DATA)
    swh.sql("CREATE TABLE c AS SELECT * FROM a")
    assert _held(swh, "c") == _EXPECTED


@pytest.mark.usefixtures("zone")
def test_every_kind_of_data_is_taken_exactly(swh: Warehouse) -> None:
    """Arrow, record batches, pandas, dicts and Spark DataFrames: insert, upsert and delete."""
    _create(swh, "source")
    with swh.transaction() as tx:
        tx.insert("source", _DATA)
    frame = swh.sql("SELECT * FROM source")
    arrow = frame.toArrow()

    def of_keys(keys: list[int]) -> pa.Table:
        return arrow.filter(pa.compute.is_in(arrow["k"], pa.array(keys, pa.int32())))

    flat = [n for n in _NAMES if n not in ("ar", "mp", "sr", "f", "d")]  # pandas has one NULL for two things
    kinds: dict[str, tuple[Callable[[list[int]], Any], tuple[str, ...]]] = {
        "arrow": (of_keys, _NAMES),
        "batch": (lambda ks: of_keys(ks).combine_chunks().to_batches()[0], _NAMES),
        "dicts": (lambda ks: [r for r in _DATA if r["k"] in ks], _NAMES),
        "spark": (lambda ks: swh.sql(f"SELECT * FROM source WHERE k IN ({', '.join(map(str, ks))})"), _NAMES),
        "pandas": (
            lambda ks: pd.DataFrame({n: pd.Series([r[n] for r in _DATA if r["k"] in ks], dtype=object) for n in flat}),
            tuple(flat),
        ),
    }
    for kind, (make, names) in kinds.items():
        table = f"from_{kind}"
        _create(swh, table)
        with swh.transaction() as tx:
            assert tx.insert(table, make([1, 2, 3])).rows == 3
            assert tx.upsert(table, make([3, 4, 5])).rows == 3
        expected = [[v if n in names else None for n, v in zip(_NAMES, row, strict=True)] for row in _EXPECTED]
        assert _held(swh, table) == expected, kind
        keys = make([1, 4])
        keys = keys.select("k") if kind in ("arrow", "spark", "batch") else [1, 4] if kind == "dicts" else keys[["k"]]
        with swh.transaction() as tx:
            tx.delete(table, keys if kind != "batch" else pa.table({"k": [1, 4]}))
        assert [r.k for r in swh.sql(f"SELECT k FROM {table} ORDER BY k").collect()] == [2, 3, 5], kind
    assert frame.count() == 5


def test_spark_frames_are_taken_by_name(swh: Warehouse, spark: SparkSession) -> None:
    """Columns in any order and case, missing ones NULL, unknown or doubled ones refused; rules as in SQL."""
    swh.sql("CREATE TABLE t (k INT PRIMARY KEY, v VARCHAR(3), n SMALLINT NOT NULL)")
    with swh.transaction() as tx:
        tx.insert("t", spark.sql("SELECT 7L AS N, 'a    ' AS V, 1 AS K"))
        tx.upsert("t", spark.sql("SELECT 2 AS k, 8 AS n"))
    assert [tuple(r) for r in swh.sql("SELECT * FROM t ORDER BY k").collect()] == [(1, "a  ", 7), (2, None, 8)]
    refused = [
        ("SELECT 3 AS k, 70000 AS n", TypeMismatch),
        ("SELECT 3 AS k, 'long' AS v, 1 AS n", TypeMismatch),
        ("SELECT '3' AS k, 1 AS n", TypeMismatch),
        ("SELECT 3 AS k", NotNullViolation),
        ("SELECT NULL AS k, 1 AS n", NotNullViolation),
        ("SELECT 3 AS k, 1 AS n, 2 AS N", InvalidStatement),
    ]
    for text, error in refused:
        for verb in ("insert", "upsert"):
            with pytest.raises(error), swh.transaction() as tx:
                getattr(tx, verb)("t", spark.sql(text))
    assert swh.sql("SELECT k FROM t").count() == 2


def test_fields_of_structs_are_taken_by_name(swh: Warehouse, spark: SparkSession) -> None:
    """In any order and case where columns are, however deep; other fields are refused. By place, they go by place."""
    fields = "STRUCT<a: INT, b: STRING>"
    swh.sql(
        f"CREATE TABLE t (k INT PRIMARY KEY, s {fields}, l ARRAY<{fields}>, m MAP<INT, STRUCT<x: {fields}, y: INT>>)"
    )
    one = "named_struct('B', {0}, 'A', {1})"
    text = (
        f"SELECT {one.format('7', '8')} AS s, array({one.format('1', '2')}, NULL) AS l, "
        f"map(1, named_struct('y', 5, 'x', {one.format('3', '4')}), 2, NULL) AS m, {{}} AS k"
    )
    row = ((8, "7"), [(2, "1"), None], {1: ((4, "3"), 5), 2: None})
    with swh.transaction() as tx:
        tx.insert("t", spark.sql(text.format(1)))
        tx.upsert("t", spark.sql(text.format(2)))
        tx.insert(
            "t", spark.sql("SELECT 4 AS k, NULL AS s, array() AS l, map(1, named_struct('y', 1, 'x', NULL)) AS m")
        )
    swh.sql("INSERT INTO t BY NAME " + text.format(3))
    nothing: tuple[object, ...] = (None, [], {1: (None, 1)})
    expected = [(1, *row), (2, *row), (3, *row), (4, *nothing)]
    assert [tuple(r) for r in swh.sql("SELECT * FROM t ORDER BY k").collect()] == expected
    for bad in ("named_struct('a', 1)", "named_struct('a', 1, 'c', 'x')", "named_struct('a', 1, 'A', 'x')"):
        with pytest.raises(TypeMismatch, match="fields"):
            swh.sql(f"INSERT INTO t BY NAME SELECT 5 AS k, {bad} AS s")
    swh.sql("INSERT INTO t (k, s) SELECT 6, named_struct('b', 1, 'a', 'x')")
    assert swh.sql("SELECT s.a, s.b FROM t WHERE k = 6").collect() == [(1, "x")]


def test_update_and_merge_find_fields_of_structs_by_name(swh: Warehouse) -> None:
    swh.sql("CREATE TABLE t (k INT PRIMARY KEY, s STRUCT<a: INT, b: INT>)")
    swh.sql("CREATE TABLE u (k INT PRIMARY KEY, s STRUCT<b: INT, a: INT>)")
    swh.sql("INSERT INTO t VALUES (1, NULL), (2, NULL)")
    swh.sql("INSERT INTO u SELECT id, named_struct('b', 20, 'a', 10) FROM range(2, 4)")
    swh.sql("UPDATE t SET s = named_struct('b', k * 20, 'a', k * 10) WHERE k = 1")
    swh.sql("MERGE INTO t USING u ON t.k = u.k WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *")
    assert swh.sql("SELECT k, s.a, s.b FROM t ORDER BY k").collect() == [(k, 10, 20) for k in (1, 2, 3)]
    with pytest.raises(TypeMismatch, match="fields"):
        swh.sql("UPDATE t SET s = named_struct('c', 1, 'a', 2)")


@pytest.mark.usefixtures("zone")
def test_other_readers_see_the_same_main(swh: Warehouse) -> None:
    """Plain deltalake, and DuckDB on the Parquet files that Delta lists; written by us and by Spark."""
    swh.sql(f"CREATE TABLE a ({_DDL}, PRIMARY KEY (k))")
    with swh.transaction() as tx:
        tx.insert("a", _DATA)
    swh.sql("CREATE TABLE c AS SELECT * FROM a")
    swh.sql(
        "CREATE TABLE spark_written AS "
        "SELECT /*+ REPARTITION(1) */ a.* FROM a CROSS JOIN range(20000) WHERE id = 0 OR k = 2"
    )
    for table in ("a", "c", "spark_written"):
        swh.sql(f"CHECKPOINT {table}")
    for folder in sorted((swh.path / "tables").iterdir()):
        delta = DeltaTable(str(folder))
        seen = pa.table(delta.to_pyarrow_table(columns=list(_NAMES)))
        distinct = {row["k"]: row for row in seen.to_pylist()}
        assert [_bits(list(distinct[k].values())) for k in sorted(distinct)] == _EXPECTED
        files = [str(folder / path) for path in pa.table(delta.get_add_actions()).column("path").to_pylist()]
        _assert_duckdb_agrees(files)


def _assert_duckdb_agrees(files: list[str]) -> None:
    duck = duckdb.connect()
    duck.execute("SET TimeZone = 'UTC'")
    plain = [n for n in _NAMES if n not in ("ar", "mp", "sr")]
    found = duck.execute(
        f"SELECT DISTINCT {', '.join(plain)}, epoch_us(ts), ar[1], mp['a'] IS NULL, sr.x "
        "FROM read_parquet(?) ORDER BY k",
        [files],
    ).fetchall()
    epoch = dt.datetime(1970, 1, 1, tzinfo=_UTC)
    for row, whole in zip(_ROWS, found, strict=True):
        values = dict(zip(_NAMES, row, strict=True))
        assert [_bits(v) for v in whole[: len(plain)]] == [_bits(values[n]) for n in plain]
        micros, first, no_a, x = whole[len(plain) :]
        assert micros == (None if values["ts"] is None else (values["ts"] - epoch) // dt.timedelta(microseconds=1))
        assert _bits(first) == _bits(values["ar"][0] if values["ar"] else None)
        assert no_a == ("a" not in dict(values["mp"] or ()))
        assert x == (values["sr"] or {}).get("x")


def test_nan_of_any_bits_is_one_value(swh: Warehouse) -> None:
    """NaN made by arithmetic has a sign bit; Spark knows one NaN. Rows with it can be deleted."""
    swh.sql("CREATE TABLE t (x DOUBLE, y FLOAT)")
    odd = np.array([0xFFF8000000000000, 0x7FF8000000000001], dtype=np.uint64).view(np.float64)
    with swh.transaction() as tx:
        tx.insert("t", pa.table({"x": pa.array(odd), "y": pa.array([1.0, 2.0], pa.float32())}))
    assert swh.sql("DELETE FROM t WHERE isnan(x)").rows == 2
    assert swh.sql("SELECT * FROM t").collect() == []


def test_char_and_varchar_follow_spark(swh: Warehouse, tmp_path: Path, spark: SparkSession) -> None:
    """Padding, comparison and length checks are those of a table of Spark's own."""
    spark.sql(f"CREATE TABLE theirs (k INT, c CHAR(3), v VARCHAR(3)) USING parquet LOCATION '{tmp_path / 'theirs'}'")
    try:
        swh.sql("CREATE TABLE ours (k INT PRIMARY KEY, c CHAR(3), v VARCHAR(3))")
        for values in (
            "(1, 'a', 'a')",
            "(2, 'a  ', 'a  ')",
            "(3, 'abc   ', 'abc   ')",
            "(4, '', '')",
            "(5, NULL, NULL)",
        ):
            spark.sql(f"INSERT INTO theirs VALUES {values}")
            swh.sql(f"INSERT INTO ours VALUES {values}")
            swh.sql(f"UPDATE ours SET c = trim(c), v = v WHERE k = {values[1]}")  # pads again, by Spark
        for expression in (
            "concat(c, '|', v, '|')",
            "length(c)",
            "length(v)",
            "c = 'a'",
            "c = 'a     '",
            "v = 'a'",
            "v = 'a  '",
            "c = v",
            "c IN ('a', 'abc')",
            "c < 'b'",
            "'a' = c",
            "c <=> 'a'",
            "c LIKE 'a'",
            "c = concat('a', '')",
        ):
            query = f"SELECT k, {expression} FROM {{}} ORDER BY k"
            assert swh.sql(query.format("ours")).collect() == spark.sql(query.format("theirs")).collect(), expression
        join = "SELECT x.k, y.k FROM {0} x JOIN {0} y ON x.c = y.v ORDER BY 1, 2"
        assert swh.sql(join.format("ours")).collect() == spark.sql(join.format("theirs")).collect()
        for text in (
            "VALUES (9, 'abcd', '')",
            "VALUES (9, '', 'abcd')",
            "SELECT 9, 'abcd', ''",
            "SELECT 9, '', 'ab d'",
        ):
            with pytest.raises(TypeMismatch, match="longer than"):
                swh.sql(f"INSERT INTO ours {text}")
        assert swh.sql("DELETE FROM ours WHERE c = 'a'").rows == 2
    finally:
        spark.sql("DROP TABLE theirs")


@pytest.mark.parametrize(
    "type_", ["VARIANT", "TIME", "INTERVAL DAY", "STRING COLLATE UTF8_LCASE", "ARRAY<CHAR(3)>", "VOID"]
)
def test_what_cannot_be_kept_exactly_is_refused(swh: Warehouse, type_: str) -> None:
    """At CREATE TABLE, with and without a query."""
    with pytest.raises((TypeMismatch, InvalidStatement)):
        swh.sql(f"CREATE TABLE t (k INT, v {type_})")
    assert swh.status().tables == ()


@pytest.mark.parametrize(
    "expression", ["parse_json('1')", "INTERVAL 1 DAY", "TIME'10:00:00'", "'a' COLLATE UTF8_LCASE", "NULL"]
)
def test_query_results_that_cannot_be_kept_are_refused(swh: Warehouse, expression: str) -> None:
    with pytest.raises(TypeMismatch):
        swh.sql(f"CREATE TABLE t AS SELECT 1 AS k, {expression} AS v")
    assert swh.status().tables == ()


def test_store_assignment_of_nested_values(swh: Warehouse) -> None:
    """Inner values are converted and checked like outer ones; a misfit is an error, never a NULL."""
    swh.sql("CREATE TABLE t (a ARRAY<TINYINT>, m MAP<SMALLINT,DECIMAL(4,1)>, s STRUCT<p:INT,q:ARRAY<FLOAT>>)")
    swh.sql("INSERT INTO t SELECT array(1L, NULL), map(1, 2.5D), named_struct('other', 3L, 'name', array(0.5D))")
    swh.sql("INSERT INTO t SELECT array(), map(), named_struct('p', NULL, 'q', array(NULL))")
    swh.sql("INSERT INTO t VALUES (NULL, NULL, NULL)")
    assert [tuple(r) for r in swh.sql("SELECT * FROM t").collect()] == [
        ([1, None], {1: Decimal("2.5")}, (3, [0.5])),
        ([], {}, (None, [None])),
        (None, None, None),
    ]
    csn = swh.status().csn
    for bad in (
        "array(1, 300), NULL, NULL",
        "NULL, map(70000, 1), NULL",
        "NULL, map(1, 99999), NULL",
        "NULL, NULL, named_struct('p', 3000000000, 'q', NULL)",
        "array('1'), NULL, NULL",
        "NULL, NULL, named_struct('p', 1)",
    ):
        with pytest.raises(TypeMismatch):
            swh.sql(f"INSERT INTO t SELECT {bad}")
    assert swh.status().csn == csn
