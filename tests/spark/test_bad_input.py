"""Bad input: an error that names the thing, the cause and the remedy; nothing changes; no JVM trace."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.effort import IS_SOAK
from tests.spark.sessions import rows

import freshview
from freshview import Warehouse
from freshview.errors import (
    AlreadyExists,
    CorruptWarehouse,
    DuplicateKey,
    FreshviewError,
    InvalidStatement,
    NotFound,
    NotNullViolation,
    QueryFailed,
    TypeMismatch,
)
from freshview.spark import scan
from freshview.storage import reader

_TRACE = ("\tat ", "\n\tat", "java.lang", "org.apache", "py4j", "Traceback", "__fv_", "_pyspark_")


def _contents(wh: Warehouse, *tables: str) -> Any:
    return [rows(wh, f"SELECT * FROM `{t}`") for t in tables]


@contextmanager
def _refused(wh: Warehouse, error: type[FreshviewError]) -> Iterator[None]:
    """Exactly this class, a plain message, and no commit."""
    before = wh.status()
    with pytest.raises(FreshviewError) as caught:
        yield
    assert type(caught.value) is error, caught.value
    assert caught.value.what
    assert caught.value.cause
    assert caught.value.remedy
    for mark in _TRACE:
        assert mark not in str(caught.value), caught.value
    assert wh.status() == before


@pytest.fixture
def tables(swh: Warehouse) -> Warehouse:
    swh.sql("CREATE TABLE t (k INT PRIMARY KEY, v STRING, n SMALLINT)")
    swh.sql("CREATE TABLE b (a INT, c VARCHAR(2), d DECIMAL(4,2) NOT NULL)")
    swh.sql("INSERT INTO t VALUES (1, 'one', 1), (2, '2', 2), (3, NULL, 3)")
    swh.sql("INSERT INTO b VALUES (1, 'x', 1.5)")
    return swh


_STATEMENTS: list[tuple[str, type[FreshviewError]]] = [
    # clauses that a condition does not have
    ("DELETE FROM t WHERE abs(k) = 1 LIMIT 1", InvalidStatement),
    ("DELETE FROM t WHERE abs(k) = 1 UNION ALL SELECT 3, NULL, 3", InvalidStatement),
    ("UPDATE t SET v = 'x' WHERE abs(k) = 1 ORDER BY k LIMIT 1", InvalidStatement),
    ("MERGE INTO t USING b ON t.k = b.a WHERE b.a > 5 WHEN MATCHED THEN DELETE", InvalidStatement),
    # unknown things
    ("SELECT * FROM nope", NotFound),
    ("SELECT nope FROM t", NotFound),
    ("SELECT nope(k) FROM t", NotFound),
    ("INSERT INTO nope VALUES (1)", NotFound),
    ("INSERT INTO t (k, nope) VALUES (9, 1)", NotFound),
    ("INSERT INTO t SELECT nope, v, n FROM t", NotFound),
    ("INSERT INTO t BY NAME SELECT 9 AS k, 1 AS nope", NotFound),
    ("UPDATE nope SET v = 1", NotFound),
    ("UPDATE t SET nope = 1", NotFound),
    ("UPDATE t SET v = nope", NotFound),
    ("UPDATE t SET v = nope WHERE k = 1", NotFound),
    ("UPDATE t SET v = o1", NotFound),  # names that statements use inside are nobody's columns
    ("UPDATE t SET v = n0 WHERE k = 1", NotFound),
    ("UPDATE t SET v = (SELECT nope FROM b)", NotFound),
    ("DELETE FROM nope", NotFound),
    ("DELETE FROM t WHERE nope = 1", NotFound),
    ("DELETE FROM t WHERE k = 1 AND nope = 1", NotFound),
    ("DELETE FROM t WHERE k IN (SELECT k FROM nope)", NotFound),
    ("MERGE INTO nope USING t ON 1 = 1 WHEN MATCHED THEN DELETE", NotFound),
    ("DROP TABLE nope", NotFound),
    ("ALTER TABLE t RENAME COLUMN nope TO x", NotFound),
    ("CHECKPOINT nope", NotFound),
    # types, sizes, ranges
    ("INSERT INTO t VALUES ('9', 'a', 1)", TypeMismatch),
    ("INSERT INTO t VALUES (TRUE, 'a', 1)", TypeMismatch),
    ("INSERT INTO t SELECT DATE'2020-01-01', 'a', 1", TypeMismatch),
    ("INSERT INTO t SELECT 9, array('a'), 1", TypeMismatch),
    ("INSERT INTO t VALUES (3000000000, 'a', 1)", TypeMismatch),
    ("INSERT INTO t VALUES (9, 'a', 40000)", TypeMismatch),
    ("INSERT INTO t SELECT k + 10, v, k + 40000 FROM t", TypeMismatch),
    ("INSERT INTO t SELECT 9, 'a', double('nan')", TypeMismatch),
    ("INSERT INTO b VALUES (1, 'abc', 1)", TypeMismatch),
    ("INSERT INTO b VALUES (1, 'a', 100.00)", TypeMismatch),
    ("INSERT INTO b SELECT 1, 'a', 1e9D", TypeMismatch),
    ("UPDATE t SET n = n + 40000", TypeMismatch),
    ("UPDATE t SET n = n + 40000 WHERE k = 1", TypeMismatch),
    ("UPDATE t SET n = 'x' WHERE k = 1", TypeMismatch),
    ("UPDATE b SET c = 'abc'", TypeMismatch),
    ("MERGE INTO t USING b ON k = a WHEN MATCHED THEN UPDATE SET n = 70000", TypeMismatch),
    # constraints
    ("INSERT INTO t VALUES (NULL, 'a', 1)", NotNullViolation),
    ("INSERT INTO t (v) VALUES ('a')", NotNullViolation),
    ("INSERT INTO t SELECT NULL, v, n FROM t", NotNullViolation),
    ("INSERT INTO b (a) VALUES (1)", NotNullViolation),
    ("INSERT INTO b SELECT 1, 'x', NULL", NotNullViolation),
    ("UPDATE t SET k = NULL WHERE k = 1", NotNullViolation),
    ("UPDATE t SET k = NULLIF(k, 2)", NotNullViolation),
    ("UPDATE b SET d = NULL", NotNullViolation),
    ("INSERT INTO t VALUES (1, 'again', 1)", DuplicateKey),
    ("INSERT INTO t VALUES (9, 'a', 1), (9, 'b', 1)", DuplicateKey),
    ("INSERT INTO t SELECT k, v, n FROM t", DuplicateKey),
    ("INSERT INTO t SELECT 9, v, n FROM t", DuplicateKey),
    ("UPDATE t SET k = 1", DuplicateKey),
    ("UPDATE t SET k = 2 WHERE k = 1", DuplicateKey),
    ("UPDATE t SET k = k + 1 WHERE k < 3", DuplicateKey),
    ("MERGE INTO t USING b ON FALSE WHEN NOT MATCHED THEN INSERT (k) VALUES (a)", DuplicateKey),
    # shape and syntax
    ("INSERT INTO t VALUES (9)", InvalidStatement),
    ("INSERT INTO t SELECT 9, 'a'", InvalidStatement),
    ("INSERT INTO t (k, K) VALUES (9, 9)", InvalidStatement),
    ("INSERT INTO t BY NAME SELECT 9 AS k, 'a' AS v, 'b' AS V", InvalidStatement),
    ("INSERT OVERWRITE t VALUES (1, 'a', 1)", InvalidStatement),
    ("SELEC 1", InvalidStatement),
    ("SELECT FROM WHERE", InvalidStatement),
    ("SELECT k FROM t GROUP BY v", InvalidStatement),
    ("SELECT 'open", InvalidStatement),
    ("", InvalidStatement),
    ("SELECT 1; SELECT 2", InvalidStatement),
    ("UPDATE t SET v = 'a', V = 'b'", InvalidStatement),
    ("UPDATE t SET b.v = 'a'", InvalidStatement),
    ("UPDATE t SET v = sum(k)", InvalidStatement),
    # a new row for each value: the old one would be deleted as often
    ("UPDATE b SET a = explode(array(1, 2))", InvalidStatement),
    ("UPDATE b SET a = explode(array(1, 2)) WHERE a = 1", InvalidStatement),
    ("UPDATE b SET a = stack(2, 1, 2) WHERE abs(a) = 1", InvalidStatement),
    ("UPDATE t SET k = explode(array(k + 10, k + 20)) WHERE k = 1", InvalidStatement),
    ("DELETE FROM t WHERE", InvalidStatement),
    ("DELETE FROM t WHERE k", InvalidStatement),
    ("UPDATE default.t SET v = 1", InvalidStatement),
    ("CREATE TABLE x AS SELECT count(*) FROM t", InvalidStatement),
    ("CREATE TABLE x AS SELECT k, k FROM t", InvalidStatement),
    ("CREATE TABLE t AS SELECT 1 AS k", AlreadyExists),
    ("CREATE TABLE t (k INT)", AlreadyExists),
    # errors while running
    ("INSERT INTO t SELECT k + 10, v, CAST(v AS INT) FROM t", QueryFailed),
    ("UPDATE t SET n = 1 / (k - 1)", QueryFailed),
    ("UPDATE t SET n = 1 / (k - 1) WHERE k = 1", QueryFailed),
    ("UPDATE t SET n = CAST(v AS INT)", QueryFailed),
    ("UPDATE t SET v = (SELECT v FROM t)", QueryFailed),
    ("UPDATE t SET v = raise_error('own words')", QueryFailed),
    ("DELETE FROM t WHERE CAST(v AS INT) = 1", QueryFailed),
    ("DELETE FROM t WHERE k IN (1, 2) AND CAST(v AS INT) = 1", QueryFailed),
]


def test_statements_that_cannot_run_change_nothing(tables: Warehouse) -> None:
    before = _contents(tables, "t", "b")
    for text, error in _STATEMENTS:
        with _refused(tables, error):
            tables.sql(text)
            pytest.fail(f"not refused: {text}")
    assert _contents(tables, "t", "b") == before


def test_a_failed_statement_leaves_its_transaction_usable(tables: Warehouse) -> None:
    """Statements before and after it count; it leaves nothing, whichever way it failed."""
    writes = [(s, e) for s, e in _STATEMENTS if s[:6].rstrip() in ("INSERT", "UPDATE", "DELETE", "MERGE")]
    with tables.transaction() as tx:
        tx.sql("INSERT INTO t VALUES (4, 'four', 4)")
        for text, error in writes[::3]:
            with pytest.raises(error):
                tx.sql(text)
            assert [tuple(r) for r in tx.sql("SELECT count(*), sum(k) FROM t").collect()] == [(4, 10)]
        for text in (
            "CREATE TABLE x (k INT)",
            "DROP TABLE t",
            "CHECKPOINT t",
            "VACUUM",
            "ALTER TABLE t ADD COLUMN z INT",
        ):
            with pytest.raises(InvalidStatement, match="inside a transaction"):
                tx.sql(text)
        tx.sql("DELETE FROM t WHERE k = 1")
    assert sorted(r.k for r in tables.sql("SELECT k FROM t").collect()) == [2, 3, 4]


def test_a_table_whose_query_fails_was_never_there(tables: Warehouse) -> None:
    """CREATE TABLE AS SELECT is one commit or none; nobody sees the table without its rows."""
    for text, error in [
        ("CREATE TABLE x AS SELECT CAST(v AS INT) AS i FROM t", QueryFailed),
        ("CREATE TABLE x PRIMARY KEY (n) AS SELECT 1 AS n FROM t", DuplicateKey),
    ]:
        with _refused(tables, error):
            tables.sql(text)
    csn = tables.status().csn
    assert tables.sql("CREATE TABLE x AS SELECT k FROM t").csn == csn + 1


def test_api_data_that_does_not_fit_changes_nothing(tables: Warehouse, spark: SparkSession) -> None:
    before = _contents(tables, "t", "b")
    cases: list[tuple[str, str, Any, type[FreshviewError]]] = [
        ("insert", "t", [{"k": 9, "nope": 1}], NotFound),
        ("insert", "nope", [{"k": 9}], NotFound),
        ("insert", "t", [{"k": "9"}], TypeMismatch),
        ("insert", "t", [{"k": 2**40}], TypeMismatch),
        ("insert", "t", [{"k": None}], NotNullViolation),
        ("insert", "t", [{"v": "no key"}], NotNullViolation),
        ("insert", "t", [{"k": 1}], DuplicateKey),
        ("insert", "t", [{"k": 9}, {"k": 9}], DuplicateKey),
        ("upsert", "t", [{"k": 9}, {"k": 9}], DuplicateKey),
        ("upsert", "b", [{"a": 1}], InvalidStatement),
        ("delete", "b", [{"a": 1}], InvalidStatement),
        ("delete", "t", [None], NotNullViolation),
        ("insert", "t", "text", TypeMismatch),
    ]
    for verb, table, data, error in cases:
        with _refused(tables, error), tables.transaction() as tx:
            getattr(tx, verb)(table, data)
    for verb, frame, error in [
        ("insert", "SELECT 9 AS nope", NotFound),
        ("upsert", "SELECT 9 AS nope", NotFound),
        ("delete", "SELECT 'a' AS k", TypeMismatch),
        ("delete", "SELECT 1 AS k, 2 AS n", NotFound),
        ("delete", "SELECT NULL AS k", NotNullViolation),
        ("insert", "SELECT CAST(concat('x', id) AS INT) AS k FROM range(3)", QueryFailed),
        ("upsert", "SELECT CAST(concat('x', id) AS INT) AS k FROM range(3)", QueryFailed),
        ("delete", "SELECT CAST(concat('x', id) AS INT) AS k FROM range(3)", QueryFailed),
    ]:
        with _refused(tables, error), tables.transaction() as tx:
            getattr(tx, verb)("t", spark.sql(frame))
    assert _contents(tables, "t", "b") == before


@pytest.mark.parametrize("name", ["select", 'o/d.d it\'s "x" a`b {fv0} 日本 ü: %s'])
def test_any_name_can_be_a_tables(swh: Warehouse, name: str) -> None:
    """Quotes, slashes, dots, braces, keywords and Unicode; files never carry the name."""
    quoted = f"`{name.replace('`', '``')}`"
    swh.sql(f"CREATE TABLE {quoted} (k INT PRIMARY KEY, v VARCHAR(9))")
    swh.sql(f"INSERT INTO {quoted} SELECT CAST(id AS INT), 'a' FROM range(3)")
    swh.sql(f"UPDATE {quoted} SET v = v || {quoted}.k WHERE k = 1")
    swh.sql(f"UPDATE {quoted} SET v = v || '!' WHERE k >= (SELECT max(k) FROM {quoted})")
    swh.sql(f"MERGE INTO {quoted} USING (SELECT 0 AS k) q ON {quoted}.k = q.k WHEN MATCHED THEN UPDATE SET v = 'm'")
    swh.sql(f"CHECKPOINT {quoted}")
    assert [tuple(r) for r in swh.sql(f"SELECT * FROM {quoted} ORDER BY k").collect()] == [
        (0, "m"),
        (1, "a1"),
        (2, "a!"),
    ]
    assert [tuple(r) for r in swh.sql(f"SELECT x.v FROM {quoted} x WHERE x.k = 1").collect()] == [("a1",)]
    assert swh.check(name).ok
    with pytest.raises(TypeMismatch) as caught:
        swh.sql(f"UPDATE {quoted} SET v = 'far too long for it'")
    assert name in str(caught.value)
    assert "longer than varchar(9)" in str(caught.value)
    assert [t.name for t in swh.status().tables] == [name]
    swh.sql(f"DROP TABLE {quoted}")


def test_any_name_can_be_a_columns(swh: Warehouse) -> None:
    """Dots, quotes, keywords and the names that we use inside; as key and as value, small and bulk."""
    names = ["a.b", "c`d", "é/\"'", "count", "row", "o0", "n1", "c0", "k0", "select", "_csn", "__id"]
    columns = [f"`{n.replace('`', '``')}`" for n in names]
    for position, key in enumerate(columns):
        table = f"t{position}"
        swh.sql(f"CREATE TABLE {table} ({', '.join(f'{c} INT' for c in columns)}, PRIMARY KEY ({key}))")
        values = ", ".join(str(i) for i in range(len(columns)))
        swh.sql(f"INSERT INTO {table} VALUES ({values})")
        other = columns[position - 1]
        swh.sql(f"UPDATE {table} SET {other} = {other} + {key} + 1 WHERE {key} = {position}")
        if position > (4 if IS_SOAK else 1):
            continue
        swh.sql(f"INSERT INTO {table} SELECT {', '.join(f'{c} + 100' for c in columns)} FROM {table}")
        swh.sql(f"UPDATE {table} SET {key} = {key} + 1, {other} = {key}")
        swh.sql(f"MERGE INTO {table} AS x USING {table} AS y ON x.{key} = y.{key} WHEN MATCHED THEN UPDATE SET *")
        swh.sql(f"CHECKPOINT {table}")
        found = swh.sql(f"SELECT {key}, {other} FROM {table} ORDER BY 1").collect()
        assert [tuple(r) for r in found] == [(position + 1, position), (position + 101, position + 100)]
        assert swh.sql(f"DELETE FROM {table} WHERE {key} IN ({position + 1}, 5000) AND {other} >= 0").rows == 1
        assert swh.check(table).ok


@pytest.mark.parametrize("column", ["a b", "a,b", "a=b", "a(b", "_action", "_stmtsn", "new\nline", ""])
def test_column_names_that_delta_cannot_hold_are_refused(swh: Warehouse, column: str) -> None:
    with pytest.raises(InvalidStatement):
        swh.sql(f"CREATE TABLE t (k INT, `{column}` INT)")
    assert swh.status().tables == ()


# Each pair of the three, and what Spark reads and is cut short.
_DAMAGES = [
    ("missing", "main", True),
    ("truncated", "segment", True),
    ("missing", "segment", False),
    ("truncated", "main", False),
    ("truncated", "segment", False),
]
if IS_SOAK:
    _DAMAGES = list(product(["missing", "truncated"], ["main", "segment"], [True, False]))


@pytest.mark.parametrize(("damage", "where", "local"), _DAMAGES)
def test_damaged_files_are_found_before_spark_fails(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, damage: str, where: str, local: bool
) -> None:
    """A data file that is gone or cut short is named, at the first query and at later ones, by reads and writes."""
    if not local:
        monkeypatch.setattr(scan, "LOCAL_ROWS", 0)
        monkeypatch.setattr(scan, "OVERLAY_ROWS", 0)
        monkeypatch.setattr(reader, "OVERLAY_ROWS", 0)
    monkeypatch.setattr("freshview.storage.segments.INLINE_BYTES", 0)
    with freshview.connect(tmp_path / "w", spark=spark) as wh:
        wh.sql("CREATE TABLE t (k INT PRIMARY KEY, v STRING)")
        wh.sql("INSERT INTO t VALUES (1, 'a'), (2, 'b'), (3, 'c')")
        if where == "main":
            wh.sql("CHECKPOINT t")
        wh.sql("UPDATE t SET v = 'z' WHERE k = 3")
        assert wh.sql("SELECT * FROM t").count() == 3  # this frame is remembered
        files = sorted((tmp_path / "w" / "tables").rglob("*.parquet"), key=lambda p: p.stat().st_mtime_ns)
        victim = files[0] if where == "main" else files[-1]
        if damage == "missing":
            victim.unlink()
        else:
            victim.write_bytes(victim.read_bytes()[:-20])
        csn = wh.status().csn
        statements = [
            "UPDATE t SET v = concat(v, '!')",
            "DELETE FROM t WHERE v = 'a'",
            "UPDATE t SET v = 'q' WHERE k = 2",
        ]
        if not local:
            with pytest.raises(CorruptWarehouse, match=victim.name):
                wh.sql("SELECT * FROM t").collect()
    with freshview.connect(tmp_path / "w", spark=spark) as wh:
        for text in ["SELECT * FROM t", "SELECT count(*) FROM t JOIN t AS u USING (k)", *statements]:
            with pytest.raises(CorruptWarehouse) as caught:
                wh.sql(text)
            assert victim.name in str(caught.value), text
            for mark in _TRACE[:-2]:
                assert mark not in str(caught.value)
        assert wh.status().csn == csn


def test_case_does_not_matter(swh: Warehouse) -> None:
    """Names of tables and columns, everywhere; what was written at CREATE is what is shown."""
    swh.sql("CREATE TABLE Orders (Id INT PRIMARY KEY, Total DOUBLE)")
    with pytest.raises(AlreadyExists):
        swh.sql("CREATE TABLE ORDERS (x INT)")
    with pytest.raises(InvalidStatement):
        swh.sql("CREATE TABLE x (a INT, A INT)")
    swh.sql("INSERT INTO orders (TOTAL, ID) VALUES (1.5, 1)")
    swh.sql("INSERT INTO ORDERS BY NAME SELECT 2 AS iD, 2.5 AS tOTAL")
    swh.sql("UPDATE oRDERS SET tOtAl = TOTAL + 1 WHERE ID = 1")
    swh.sql("UPDATE oRDERS AS O SET o.TOTAL = O.total * 2 WHERE o.total > 0")
    swh.sql("MERGE INTO orders USING (SELECT 2 AS ID, 9 AS TOTAL) Q ON ORDERS.id = q.iD WHEN MATCHED THEN UPDATE SET *")
    with swh.transaction() as tx:
        tx.upsert("ORDERS", [{"ID": 3, "total": 1.0}])
        tx.delete("orders", [{"iD": 3}])
    assert [tuple(r) for r in swh.sql("SELECT id, TOTAL FROM ORDERS o ORDER BY O.ID").collect()] == [(1, 5.0), (2, 9.0)]
    assert swh.sql("SELECT * FROM orders").columns == ["Id", "Total"]
    assert swh.status().tables[0].name == "Orders"
