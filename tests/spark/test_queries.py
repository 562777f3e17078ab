"""Reading: one CSN for all tables of a query, the past by number and by time, and all of Spark's SELECT."""

from __future__ import annotations

import datetime as dt
import re
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from pyspark.sql import SparkSession
from tests.spark.sessions import rows

from freshview import Warehouse
from freshview.errors import FreshviewError, InvalidStatement, NotFound
from freshview.warehouse import queries


@pytest.fixture
def tables(swh: Warehouse) -> Warehouse:
    swh.sql("CREATE TABLE t (k INT PRIMARY KEY, v STRING, x DOUBLE)")
    swh.sql("CREATE TABLE b (a INT, c STRING)")
    swh.sql("INSERT INTO t VALUES (1, 'a', 1.5), (2, NULL, 2.5), (3, 'c', NULL)")
    swh.sql("INSERT INTO b VALUES (1, 'x'), (1, 'x'), (2, NULL)")
    return swh


@pytest.mark.parametrize(
    "text",
    [
        "SELECT * FROM t",
        "SELECT V, t.k FROM t",
        "SELECT k FROM T WHERE x > 1.5 OR v IS NULL",
        "SELECT * FROM s WHERE s.n >= 1 AND v IN ('a', 'c')",
        "SELECT n FROM s",
    ],
)
def test_a_choice_of_rows_and_columns_is_read_as_its_text(
    tables: Warehouse, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """Law: Spark is given the parts, and gives the columns, types, rows and qualified names that it gives for the text;
    hidden columns and rows of a view are seen by neither."""
    tables.sql(
        "CREATE MATERIALIZED VIEW s AS SELECT v, count(*) AS n, avg(x) AS m FROM t GROUP BY v HAVING count(*) > 0"
    )
    tables.sql("INSERT INTO t VALUES (4, 'c', 1.0)")
    ours, name = tables.sql(text), re.search(r"FROM (\w+)", text)
    assert name is not None
    with monkeypatch.context() as patched:
        patched.setattr(queries, "plain", lambda *_: None)
        as_text = tables.sql(text)
    assert ours.schema == as_text.schema
    assert sorted(map(repr, ours.collect())) == sorted(map(repr, as_text.collect()))
    assert ours.count() > 0
    for frame in (ours, as_text):
        assert frame.select(f"{name[1]}.{ours.columns[0]}").count() == ours.count()


# What Spark can do in a SELECT, and its answer.
_SELECTS: list[tuple[str, list[tuple[Any, ...]]]] = [
    ("WITH q AS (SELECT * FROM t) SELECT count(*) FROM q JOIN b ON q.k = b.a", [(3,)]),
    ("WITH t AS (SELECT 7 AS k) SELECT * FROM t", [(7,)]),
    ("WITH z AS (SELECT * FROM t), t AS (SELECT 9 AS k) SELECT z.k, t.k FROM z, t", [(1, 9), (2, 9), (3, 9)]),
    ("SELECT * FROM (WITH z AS (SELECT k FROM t) SELECT * FROM z) WHERE k > 2", [(3,)]),
    (
        "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 2) "
        "SELECT r.n, t.v FROM r JOIN t ON t.k = r.n",
        [(1, "a"), (2, None)],
    ),
    ("SELECT k, row_number() OVER (PARTITION BY v IS NULL ORDER BY k) FROM t", [(1, 1), (2, 1), (3, 2)]),
    ("SELECT k, sum(x) OVER w FROM t WINDOW w AS (ORDER BY k)", [(1, 1.5), (2, 4.0), (3, 4.0)]),
    ("SELECT k, e FROM t LATERAL VIEW explode(array(k, 0)) z AS e WHERE k < 2", [(1, 0), (1, 1)]),
    ("SELECT t.k, s.m FROM t, LATERAL (SELECT max(a) m FROM b WHERE b.a <= t.k) s", [(1, 1), (2, 2), (3, 2)]),
    (
        "SELECT * FROM (SELECT k, v, x FROM t) PIVOT (sum(x) FOR v IN ('a', 'c'))",
        [(1, 1.5, None), (2, None, None), (3, None, None)],
    ),
    ("SELECT * FROM b PIVOT (count(*) FOR a IN (1, 2))", [("x", 2, None), (None, None, 1)]),
    ("SELECT * FROM b UNPIVOT INCLUDE NULLS (val FOR n IN (c))", [(1, "c", "x"), (1, "c", "x"), (2, "c", None)]),
    ("SELECT a FROM b EXCEPT ALL SELECT k FROM t", [(1,)]),
    ("SELECT a FROM b INTERSECT SELECT k FROM t", [(1,), (2,)]),
    ("SELECT k FROM t MINUS SELECT a FROM b", [(3,)]),
    ("(SELECT k FROM t) UNION ALL (SELECT a FROM b)", [(1,), (1,), (1,), (2,), (2,), (3,)]),
    ("SELECT k FROM t WHERE v NOT IN (SELECT c FROM b)", []),
    ("SELECT k FROM t WHERE EXISTS (SELECT 1 FROM b WHERE b.a = t.k)", [(1,), (2,)]),
    ("SELECT (SELECT max(a) FROM b) + k FROM t", [(3,), (4,), (5,)]),
    ("SELECT count(*) FROM t TABLESAMPLE (100 PERCENT)", [(3,)]),
    ("SELECT count(*) FROM t TABLESAMPLE (2 ROWS) AS s", [(2,)]),
    ("SELECT count(*) FROM t TABLESAMPLE (100 PERCENT) REPEATABLE (42) WHERE t.k > 1", [(2,)]),
    ("VALUES (1, 2), (3, 4)", [(1, 2), (3, 4)]),
    ("TABLE b", [(1, "x"), (1, "x"), (2, None)]),
    ("FROM t SELECT k WHERE k > 1", [(2,), (3,)]),
    ("FROM t |> WHERE k > 1 |> SELECT k", [(2,), (3,)]),
    ("SELECT x.k, y.k FROM t x JOIN t AS y ON x.k < y.k", [(1, 2), (1, 3), (2, 3)]),
    ("SELECT p.z FROM t AS p(z, y, w) WHERE p.z = 1", [(1,)]),
    ("SELECT `T`.`K` FROM `t` WHERE T.V = 'a'", [(1,)]),
    ("SELECT /*+ BROADCAST(b) */ count(*) FROM t JOIN b ON t.k = b.a", [(3,)]),
    ("SELECT k FROM t LEFT ANTI JOIN b ON t.k = b.a", [(3,)]),
    ("SELECT v, sum(x) FROM t GROUP BY ROLLUP (v) HAVING sum(x) > 2", [(None, 2.5), (None, 4.0)]),
    ("SELECT k FROM t QUALIFY row_number() OVER (ORDER BY k DESC) = 1", [(3,)]),
    ("SELECT * EXCEPT (x, v) FROM t ORDER BY ALL LIMIT 1 OFFSET 1", [(2,)]),
    (
        "SELECT '{fv0}', '{}', \"dq\", r'a\\n', 'it''s', X'1F', k -- {t} FROM b\n FROM t /* b */ WHERE k = 1;",
        [("{fv0}", "{}", "dq", "a\\n", "it's", b"\x1f", 1)],
    ),
    ("SELECT transform(array(k), x -> x + 1) FROM t WHERE k = 1", [([2],)]),
    ("SELECT count(*) FROM (t JOIN b ON t.k = b.a)", [(3,)]),
    ("SELECT t.k, r.id FROM t, range(1) r WHERE k = 1", [(1, 0)]),
]


def test_everything_that_spark_can_select(tables: Warehouse) -> None:
    for text, expected in _SELECTS:
        assert rows(tables, text) == sorted(expected, key=str), text


def test_explain_and_describe_of_a_query(tables: Warehouse) -> None:
    for kind in ("", "EXTENDED", "FORMATTED", "COST"):
        assert "Physical Plan" in tables.sql(f"EXPLAIN {kind} SELECT * FROM t JOIN b ON k = a").collect()[0][0]
    assert [r.col_name for r in tables.sql("DESCRIBE QUERY SELECT k, v FROM t").collect()] == ["k", "v"]
    assert [r.col_name for r in tables.sql("DESCRIBE SELECT x FROM t").collect()] == ["x"]


def test_a_query_sees_one_csn_whatever_commits_meanwhile(swh: Warehouse) -> None:
    """The frame keeps its snapshot: two tables that always agree, agree in every answer, also later."""
    swh.sql("CREATE TABLE l (k INT PRIMARY KEY, n INT)")
    swh.sql("CREATE TABLE r (k INT PRIMARY KEY, n INT)")
    with swh.transaction() as tx:
        tx.insert("l", [{"k": 1, "n": 0}])
        tx.insert("r", [{"k": 1, "n": 0}])
    frames = []
    for n in range(1, 4):
        frames.append(swh.sql("SELECT l.n, r.n FROM l JOIN r USING (k)"))
        with swh.transaction() as tx:
            tx.sql(f"UPDATE l SET n = {n} WHERE k = 1")
            tx.sql(f"UPDATE r SET n = n + 1 WHERE n = {n - 1}")
        if n == 2:
            swh.sql("CHECKPOINT l")
    frames.append(swh.sql("SELECT l.n, r.n FROM l JOIN r USING (k)"))
    assert [[tuple(r) for r in f.collect()] for f in frames] == [[(n, n)] for n in range(4)]


def test_a_transaction_reads_its_snapshot_and_its_own_writes(tables: Warehouse) -> None:
    """What others commit later stays unseen; its own statements are seen, by nobody else; rollback takes them back."""
    tx = tables.transaction()
    tables.sql("INSERT INTO t VALUES (9, 'late', 0.0)")
    tables.sql("DELETE FROM b")
    assert rows(tx, "SELECT count(*) FROM t JOIN b ON k = a") == [(3,)]
    tx.sql("INSERT INTO b SELECT k, 'own' FROM t")
    tx.sql("UPDATE t SET v = (SELECT max(c) FROM b WHERE a = k) WHERE k = 3")
    assert rows(tx, "SELECT v FROM t WHERE k >= 3") == [("own",)]
    assert rows(tx, "SELECT count(*) FROM b") == [(6,)]
    assert rows(tables, "SELECT count(*) FROM b") == [(0,)]
    assert [r[0] for r in tx.sql("SHOW TABLES").collect()] == ["b", "t"]
    tx.rollback()
    assert rows(tables, "SELECT k, v FROM t WHERE k >= 3") == [(3, "c"), (9, "late")]


def test_the_past_by_version(swh: Warehouse) -> None:
    """VERSION AS OF and as_of agree; a query may mix versions; schema and names are those of then."""
    swh.sql("CREATE TABLE t (k INT PRIMARY KEY, v STRING)")
    csns = [swh.sql(f"INSERT INTO t VALUES ({n}, 'v{n}')").csn for n in range(4)]
    swh.sql("CHECKPOINT t")
    csns.append(swh.sql("DELETE FROM t WHERE k < 3").csn)
    for csn, count in zip(csns, (1, 2, 3, 4, 1), strict=True):
        assert rows(swh, f"SELECT count(*) FROM t VERSION AS OF {csn}") == [(count,)]
        assert rows(swh, f"SELECT count(*) FROM t FOR VERSION AS OF {csn} AS x WHERE x.k >= 0") == [(count,)]
        assert rows(swh, "SELECT count(*) FROM t", as_of=csn) == [(count,)]
    mixed = f"SELECT old.k FROM t VERSION AS OF {csns[1]} AS old LEFT ANTI JOIN t ON t.k = old.k"
    assert rows(swh, mixed) == [(0,), (1,)]
    assert swh.sql(f"INSERT INTO t SELECT * FROM t VERSION AS OF {csns[2]}").rows == 3
    swh.sql("ALTER TABLE t RENAME COLUMN v TO w")
    swh.sql("ALTER TABLE t ADD COLUMN z INT")
    assert swh.sql(f"SELECT * FROM t VERSION AS OF {csns[0]}").columns == ["k", "v"]
    assert swh.sql("SELECT * FROM t").columns == ["k", "w", "z"]
    with pytest.raises(FreshviewError):
        swh.sql("SELECT * FROM t VERSION AS OF 10000")
    with pytest.raises(FreshviewError):
        swh.sql("SELECT * FROM t VERSION AS OF 0")
    with pytest.raises(InvalidStatement):
        swh.sql("SELECT * FROM t VERSION AS OF 'yesterday'")
    with pytest.raises(InvalidStatement):
        swh.sql("INSERT INTO t VALUES (77, 'x', 1)", as_of=csns[0])


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/St_Johns", "+05:30", "GMT-3", "Z", "-00:30"])
def test_the_past_by_time(swh: Warehouse, spark: SparkSession, zone: str) -> None:
    """TIMESTAMP AS OF and as_of find the last commit at or before; times without a zone are the session's."""
    swh.sql("CREATE TABLE t (k INT)")
    first = swh.sql("INSERT INTO t VALUES (1)").csn
    swh.sql("INSERT INTO t VALUES (2)")
    times = {int(r.csn): r.timestamp for r in swh.sql("DESCRIBE HISTORY t").collect()}
    moment = dt.datetime.fromisoformat(times[first])
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        local = swh.sql(f"SELECT CAST(timestamp_micros({_micros(moment)}) AS STRING)").collect()[0][0]
        for text in (times[first], local):
            assert rows(swh, f"SELECT k FROM t TIMESTAMP AS OF '{text}'") == [(1,)], text
            assert rows(swh, f"SELECT k FROM t FOR TIMESTAMP AS OF TIMESTAMP '{text}' AS x") == [(1,)], text
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    for region in ("UTC", "Europe/Berlin", "America/St_Johns"):
        assert rows(swh, "SELECT k FROM t", as_of=moment.astimezone(ZoneInfo(region))) == [(1,)], region
    assert rows(swh, "SELECT k FROM t", as_of=moment.astimezone().replace(tzinfo=None)) == [(1,)]
    assert rows(swh, "SELECT count(*) FROM t TIMESTAMP AS OF '2999-07-01'") == [(2,)]
    with pytest.raises(FreshviewError):
        swh.sql("SELECT * FROM t TIMESTAMP AS OF '1999-07-01'")
    with pytest.raises(InvalidStatement):
        swh.sql("SELECT * FROM t TIMESTAMP AS OF 'noon'")


def _micros(moment: dt.datetime) -> int:
    return (moment - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1)


@pytest.mark.parametrize("month", [1, 7])
def test_times_are_exact_in_summer_and_winter(month: int) -> None:
    """A zone with daylight saving shifts no instant: arithmetic inside one zone would ignore the offset."""
    from freshview.transactions.reading import parse_time, to_micros

    moment = dt.datetime(2024, month, 15, 12, 0, 0, 123457, tzinfo=dt.UTC)
    for region in ("Europe/Berlin", "America/Los_Angeles", "Australia/Lord_Howe"):
        local = moment.astimezone(ZoneInfo(region))
        assert to_micros(local) == _micros(moment), region
        assert parse_time(local.replace(tzinfo=None).isoformat(), "t", ZoneInfo(region)) == _micros(moment), region


def test_names_that_are_not_ours_are_left_to_spark(tables: Warehouse, spark: SparkSession) -> None:
    """Temporary views of the session, qualified names and table functions; our tables come first."""
    spark.createDataFrame([(1, "theirs")], "k INT, w STRING").createOrReplaceTempView("theirs")
    spark.createDataFrame([(1,)], "wrong INT").createOrReplaceTempView("t")
    try:
        assert rows(tables, "SELECT t.v, w FROM t JOIN theirs USING (k)") == [("a", "theirs")]
        assert tables.sql("INSERT INTO t SELECT k + 10, w, NULL FROM theirs").rows == 1
        assert tables.sql("DELETE FROM t WHERE v IN (SELECT w FROM theirs)").rows == 1
        spark.catalog.dropTempView("theirs")
        with pytest.raises(NotFound, match="theirs"):
            tables.sql("SELECT * FROM theirs")
    finally:
        spark.catalog.dropTempView("theirs")
        spark.catalog.dropTempView("t")
    with pytest.raises(NotFound):
        tables.sql("SELECT * FROM default.t")
    left = spark.sql("SHOW TABLES").collect()
    assert [t.tableName for t in left if not t.isTemporary or t.tableName in ("t", "theirs")] == []


def test_show_and_describe(tables: Warehouse) -> None:
    tables.sql("CREATE TABLE other (id DECIMAL(5,2) NOT NULL COMMENT 'the id', c CHAR(3), PRIMARY KEY (id, c))")
    tables.sql("CHECKPOINT t")
    assert rows(tables, "SHOW TABLES") == [("b", "table", ""), ("other", "table", "id, c"), ("t", "table", "k")]
    assert [r.name for r in tables.sql("SHOW TABLES LIKE 'o*|T'").collect()] == ["other", "t"]
    assert [r.col_name for r in tables.sql("SHOW COLUMNS IN T").collect()] == ["k", "v", "x"]
    assert [r.col_name for r in tables.sql("SHOW COLUMNS FROM b").collect()] == ["a", "c"]
    assert tables.sql("SHOW TASKS").collect() == []
    assert tables.sql("SHOW MATERIALIZED VIEWS").collect() == []
    described = [tuple(r) for r in tables.sql("DESCRIBE other").collect()]
    assert described[0] == ("id", "decimal(5,2) NOT NULL", "the id")
    assert described[1][:2] in [("c", "char(3)"), ("c", "char(3) NOT NULL")]
    extended = {r.col_name: r.data_type for r in tables.sql("DESCRIBE TABLE EXTENDED t").collect()}
    assert extended["Primary key"] == "k"
    assert "3 rows" in extended["Checkpoint"]
    history = [(r.operation, r.rows) for r in tables.sql("DESCRIBE HISTORY t").collect()]
    assert history == [("data", "3"), ("create", "0")]
    for statement in ("DESCRIBE nope", "DESCRIBE HISTORY nope", "SHOW COLUMNS IN nope"):
        with pytest.raises(NotFound, match="nope"):
            tables.sql(statement)
    for statement in ("SHOW FUNCTIONS", "SET spark.sql.ansi.enabled=false", "USE x", "DROP VIEW v", "EXPLAIN"):
        with pytest.raises(InvalidStatement):
            tables.sql(statement)
