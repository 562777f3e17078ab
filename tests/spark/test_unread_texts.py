"""Texts that the parser used here cannot read, names that need quoting, tables of others: an answer, or a sentence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pytest
from pyspark.sql import SparkSession
from tests.effort import IS_SOAK
from tests.internals import internals
from tests.spark.sessions import rows, setting

from freshview import Warehouse
from freshview.definition import determinism, known
from freshview.definition.verdict import FACT, Verdict
from freshview.errors import InvalidStatement, NotMaintainable, QueryFailed, ViewUnusable
from freshview.views import lifecycle

pytestmark = pytest.mark.reading


@pytest.fixture
def world(swh: Warehouse) -> Warehouse:
    swh.sql("CREATE TABLE t (k INT PRIMARY KEY, s STRING, at TIMESTAMP_NTZ)")
    swh.sql("INSERT INTO t SELECT 1, 'a', TIMESTAMP_NTZ'2020-01-01 00:05:00'")
    swh.sql("INSERT INTO t SELECT 2, 'a', TIMESTAMP_NTZ'2020-01-01 00:15:00'")
    return swh


@pytest.fixture
def foo(spark: SparkSession) -> Iterator[str]:
    spark.sql("CREATE TABLE default.fv_foo (k INT) USING parquet")
    yield "default.fv_foo"
    spark.sql("DROP TABLE default.fv_foo")


def test_views_of_texts_that_are_not_parsed_are_kept(world: Warehouse) -> None:
    """Pipes, and a window of time in GROUP BY: Spark reads them, and what it reads is kept."""
    world.sql("CREATE MATERIALIZED VIEW p AS FROM t |> AGGREGATE count(*) AS n GROUP BY s |> EXTEND n + 1 AS m")
    world.sql(
        "CREATE MATERIALIZED VIEW w AS "
        "SELECT hour(window(at, '10 minutes').end) AS h, count(*) AS n FROM t GROUP BY window(at, '10 minutes')"
    )
    world.sql("INSERT INTO t SELECT 3, 'b', TIMESTAMP_NTZ'2020-01-01 00:16:00'")
    assert rows(world, "SELECT * FROM p") == [("a", 2, 3), ("b", 1, 2)]
    assert rows(world, "SELECT * FROM w") == [(0, 1), (0, 2)]


def test_names_with_backticks(swh: Warehouse) -> None:
    swh.sql("CREATE TABLE `b``t` (`k``1` INT PRIMARY KEY, v STRING)")
    swh.sql("INSERT INTO `b``t` VALUES (1, 'x'), (2, 'x')")
    swh.sql("CREATE MATERIALIZED VIEW `v``w` AS SELECT v, count(`k``1`) AS `n``n` FROM `b``t` GROUP BY v")
    swh.sql("UPDATE `b``t` SET v = upper(v) WHERE `k``1` = 1")
    swh.sql("DELETE FROM `b``t` WHERE `k``1` = 2 AND `b``t`.v = 'q'")
    assert rows(swh, "SELECT `v``w`.`n``n`, v FROM `v``w`") == [(1, "X"), (1, "x")]


@pytest.mark.parametrize(
    "query",
    [
        "SELECT k FROM {foo}",
        "SELECT k FROM spark_catalog.{foo}",
        "WITH x AS (SELECT k FROM {foo}) SELECT k FROM x",
        "SELECT k FROM t WHERE k IN (SELECT k FROM {foo})",
        "SELECT t.k, (SELECT max(k) FROM {foo}) AS m FROM t",
        "SELECT count(*) AS n FROM t, {foo} GROUP BY window(at, '10 minutes')",
    ],
)
def test_a_view_over_a_table_of_another_catalog_is_refused(world: Warehouse, foo: str, query: str) -> None:
    """Nobody would tell the view of its changes. A query may read it."""
    text = query.format(foo=foo)
    with pytest.raises(NotMaintainable, match=rf"{foo} in the definition of a view: it is no table or view"):
        world.sql(f"CREATE MATERIALIZED VIEW v AS {text}")
    world.sql(text).collect()


def test_a_function_that_is_not_of_spark_is_refused_in_a_view(world: Warehouse, spark: SparkSession) -> None:
    """Who replaces it changes what the view means. A query may call it."""
    spark.sql("CREATE FUNCTION fv_twice(x INT) RETURNS INT RETURN x * 2")
    spark.sql("CREATE TEMPORARY FUNCTION fv_thrice(x INT) RETURNS INT RETURN x * 3")
    try:
        for call in ("fv_twice(k)", "default.fv_twice(k)", "`FV_TWICE` (k)", "abs(Fv_Thrice(k))"):
            with pytest.raises(NotMaintainable, match=r"(?i)function fv_t\w+ in the definition of a view: it is"):
                world.sql(f"CREATE MATERIALIZED VIEW v AS SELECT {call} AS n FROM t")
        assert rows(world, "SELECT fv_twice(k) AS n FROM t") == [(2,), (4,)]
        with setting(spark, spark__sql__ansi__enforceReservedKeywords="true"), pytest.raises(NotMaintainable):
            world.sql("CREATE MATERIALIZED VIEW v AS SELECT fv_twice(k) AS n FROM t")
        world.sql("CREATE MATERIALIZED VIEW v AS SELECT t.k AS fv_twice, 'fv_twice(1)' AS s FROM t WHERE t.k IN (1, 2)")
    finally:
        spark.sql("DROP TEMPORARY FUNCTION fv_thrice")
        spark.sql("DROP FUNCTION fv_twice")


def test_a_function_of_another_database_than_the_users_is_found_too(world: Warehouse, spark: SparkSession) -> None:
    """A view's own session is in the default database, wherever its user's is."""
    spark.sql("CREATE FUNCTION default.fv_twice(x INT) RETURNS INT RETURN x * 2")
    spark.sql("CREATE DATABASE fv_other")
    spark.sql("USE fv_other")
    try:
        with pytest.raises(NotMaintainable, match="function fv_twice in the definition of a view"):
            world.sql("CREATE MATERIALIZED VIEW v AS SELECT fv_twice(k) AS n FROM t")
    finally:
        spark.sql("USE default")
        spark.sql("DROP DATABASE fv_other")
        spark.sql("DROP FUNCTION fv_twice")


@pytest.mark.skipif(not IS_SOAK, reason="Spark analyses its delta plan for minutes: in a soak only")
def test_a_view_of_many_set_operations_is_answered_and_its_neighbours_are_maintained(world: Warehouse) -> None:
    """Python's stack once ended in the delta plan of such a view: no query could read it, and wh.maintain() ended
    before the views beside it had their jobs."""
    parts = (f"SELECT k % {i} AS x FROM t" for i in range(1, 47))  # of 60 Spark's analyser gives up
    world.sql(f"CREATE MATERIALIZED VIEW deep AS {' UNION '.join(parts)}")
    world.sql("CREATE MATERIALIZED VIEW beside AS SELECT s, count(*) AS n FROM t GROUP BY s")
    world.sql("CREATE MATERIALIZED VIEW other AS SELECT k, s FROM t WHERE k > 1")
    world.sql("INSERT INTO t VALUES (7, 'b', NULL)")
    assert "maintained: incrementally" in world.explain("deep")
    assert {job.view for job in world.maintain()} == {"deep", "beside", "other"}
    assert rows(world, "SELECT * FROM deep") == [(i,) for i in (0, 1, 2, 3, 7)]
    assert rows(world, "SELECT * FROM beside") == [("a", 2), ("b", 1)]
    assert rows(world, "SELECT * FROM other") == [(2, "a"), (7, "b")]
    world.sql("DELETE FROM t WHERE k = 7")
    assert rows(world, "SELECT * FROM deep") == [(0,), (1,), (2,)]


def test_a_table_that_binding_misses_is_found_in_the_plan(
    world: Warehouse, foo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The text is searched for tables by its tokens where it is not parsed. What they miss Spark does not."""
    monkeypatch.setattr(lifecycle, "refuse_foreign", lambda _: None)
    monkeypatch.setattr(determinism, "_refuse_computed_names", lambda _: None)
    world.sql(
        "CREATE MATERIALIZED VIEW r AS SELECT t.k, r.id, v.x FROM t JOIN range(3) r ON r.id = t.k, VALUES (1) v(x)"
    )
    for relation in (foo, f"IDENTIFIER('{foo}')"):
        for text in (
            "SELECT k FROM {0}",
            "SELECT k FROM t WHERE k IN (SELECT k FROM {0})",
            "SELECT 1 AS x FROM t, {0}",
        ):
            with pytest.raises(NotMaintainable, match="in the plan of a view's definition"):
                world.sql(f"CREATE MATERIALIZED VIEW v AS {text.format(relation)}")
    assert world.sql("SHOW MATERIALIZED VIEWS").count() == 1


def test_a_name_of_ours_is_ours_wherever_it_stands(swh: Warehouse, spark: SparkSession) -> None:
    """Not the table of that name in Spark's own catalog: in subqueries at any depth, in views that are recomputed."""
    spark.sql("CREATE TABLE default.fv_twin (k INT, w INT) USING parquet")
    spark.sql("INSERT INTO default.fv_twin VALUES (7, 700)")
    try:
        swh.sql("CREATE TABLE fv_twin (k INT PRIMARY KEY, w INT)")
        swh.sql("CREATE TABLE o (k INT PRIMARY KEY, at TIMESTAMP_NTZ)")
        swh.sql("INSERT INTO o SELECT 1, TIMESTAMP_NTZ'2020-01-01 00:05:00'")
        texts = [
            "SELECT k, (SELECT max(w) FROM fv_twin) AS m FROM o",
            "SELECT k, (SELECT max(w) FROM fv_twin x WHERE x.w > (SELECT min(w) FROM fv_twin)) AS m FROM o",
            "SELECT k, CASE WHEN k IN (SELECT k FROM fv_twin) THEN (SELECT max(w) FROM fv_twin) END AS m FROM o",
            "SELECT count(*) AS n, (SELECT max(w) FROM fv_twin) AS m FROM o GROUP BY window(at, '1 day')",
        ]
        for place, text in enumerate(texts):
            swh.sql(f"CREATE MATERIALIZED VIEW v{place} AS {text}")
            assert rows(swh, f"SELECT m FROM v{place}") == [(None,)]
        swh.sql("INSERT INTO fv_twin VALUES (1, 10), (2, 20)")
        for place in range(len(texts)):
            assert rows(swh, f"SELECT m FROM v{place}") == [(20,)]
    finally:
        spark.sql("DROP TABLE default.fv_twin")


def test_a_with_query_is_not_the_table_of_its_name(world: Warehouse) -> None:
    """In texts that the parser used here cannot read: with a recursion level, and without AS."""
    count = "(SELECT s, count(*) AS n FROM u GROUP BY window(at, '1 day'), s)"
    world.sql("CREATE TABLE u (k INT PRIMARY KEY, s STRING, at TIMESTAMP_NTZ)")
    level = "WITH RECURSIVE t(n) MAX RECURSION LEVEL 10 AS (SELECT 1 UNION ALL SELECT n + 1 FROM t WHERE n < 3) "
    texts = [f"{level} SELECT n, k FROM t LEFT JOIN u ON u.k = t.n", f"WITH t {count} SELECT n FROM t"]
    for place, text in enumerate(texts):
        world.sql(f"CREATE MATERIALIZED VIEW w{place} AS {text}")
    assert rows(world, "SELECT n FROM w0") == rows(world, f"{level} SELECT n FROM t") == [(1,), (2,), (3,)]
    assert rows(world, texts[1]) == rows(world, "SELECT * FROM w1") == []
    world.sql("INSERT INTO u SELECT 2, 'a', TIMESTAMP_NTZ'2020-01-01 00:05:00'")
    assert rows(world, "SELECT * FROM w0") == sorted([(1, None), (2, 2), (3, None)], key=repr)
    assert rows(world, "SELECT * FROM w1") == [(1,)]
    with pytest.raises(InvalidStatement):  # which of the two it means, only Spark knows
        world.sql("WITH t (SELECT count(*) AS n FROM t GROUP BY window(at, '1 day')) SELECT n FROM t")


ALWAYS_CLOCKS = [
    "SELECT k FROM c WHERE ts > '06:00:00'",
    "SELECT k FROM c WHERE ts BETWEEN '06:00' AND '18:00'",
    "SELECT k FROM c JOIN (VALUES ('06:00')) x(y) ON ts > y",
    "SELECT k, try_to_timestamp('6:0') AS x FROM c",
    "SELECT k, CAST(array(concat('06', ':00')) AS ARRAY<TIMESTAMP>) AS x FROM c",
    "SELECT count(*) AS n FROM c WHERE ts > '06:00' GROUP BY window(ts, '1 day')",
    "SELECT k, exists(array('06:00'), y -> y > ts) AS x FROM c",
    "SELECT * FROM (SELECT k, ts FROM c) PIVOT (count(k) FOR ts IN ('06:00' AS a))",
    "SELECT * FROM (SELECT k, ts FROM c) PIVOT (max(array(k)) AS m, count(*) AS n FOR ts IN ('06:00' AS a, 'T7' AS b))",
    "SELECT * FROM (SELECT k, ts, s FROM c) PIVOT (max(k) FOR (s, ts) IN (('06:00', '06:00') AS a))",
    "SELECT k, CAST(date_format(ts, 'HH:mm') AS TIMESTAMP) AS x FROM c",
    "SELECT k, to_timestamp(format_string('%02d:30', k)) AS x FROM c",
    "SELECT k, CAST(concat_ws(':', '06', '30') AS TIMESTAMP) AS x FROM c",
    "SELECT k, try_to_timestamp(replace('06.30', '.', ':')) AS x FROM c",
    """SELECT k, from_json('{"a":"06:00"}', 'a TIMESTAMP').a AS x FROM c""",
    "SELECT k, from_csv(y, 'a TIMESTAMP').a AS x FROM (SELECT k, '06:00' AS y FROM c)",
    """SELECT k, variant_get(parse_json('"06:00"'), '$', 'timestamp') AS x FROM c""",
    "SELECT k, transform(split(y, ','), z -> CAST(z AS TIMESTAMP)) AS x FROM (SELECT k, '06:00' AS y FROM c)",
]
CLOCKS = [  # without ANSI, some of these are comparisons of texts
    "SELECT k FROM c WHERE ts IN ('2020-01-01', 'T7')",
    "SELECT k FROM c WHERE coalesce(ts, ' 6:00 UTC') > ts",
    "SELECT k FROM c WHERE CASE ts WHEN '06:00' THEN true END",
    "SELECT k FROM c WHERE ts > '06' ':00'",
    "SELECT k FROM c WHERE ts > (SELECT '06:00')",
    "SELECT ts FROM c UNION ALL SELECT '06:00' AS y",
    "SELECT k FROM c WHERE ts > (SELECT max(y) FROM (SELECT '06:00' AS y UNION ALL SELECT s FROM c))",
    "SELECT k FROM c LATERAL VIEW explode(array('06:00')) x AS y WHERE ts > y",
]
NO_CLOCKS = [
    "SELECT k, to_timestamp(format_string('%s %02d:30:00', s, k)) AS x FROM c",
    "SELECT k, CAST(date_format(ts, 'yyyy-MM-dd HH:mm') AS TIMESTAMP) AS x, s = '06:00' AS y FROM c",
    "SELECT k, to_timestamp(from_unixtime(k)) AS x FROM c",
    """SELECT k, from_json('{"a":"2020-01-01 06:00"}', 'a TIMESTAMP').a AS x, s = '06:00' AS y FROM c""",
    """SELECT k, from_json(concat('{"a":"', d, '"}'), 'a TIMESTAMP').a AS x FROM c""",
    "SELECT * FROM (SELECT k, s FROM c) PIVOT (count(k) AS n, max(k) AS m FOR s IN ('06:00', '07:00' AS seven))",
    "SELECT * FROM (SELECT k, date_format(ts, 'HH:mm') AS h FROM c) PIVOT (max(array(k)) FOR h IN ('07:00' AS x))",
    "SELECT k FROM c WHERE s = '06:00'",
    "SELECT k, '06:00' AS x FROM c WHERE s BETWEEN '06:00' AND '18:00' AND s IN ('06:00', 'T7')",
    "SELECT k FROM c WHERE ts > '2020-01-01 06:00' AND n > '2020-01-01T06:00'",
    "SELECT k, CAST(s AS TIMESTAMP) AS x FROM c JOIN (VALUES (1)) v(y) ON y = k WHERE s LIKE '2020%'",
    "SELECT k, CAST(d AS TIMESTAMP) AS x, s = '06:00' AS y FROM c",
    "SELECT k, ts + INTERVAL '06:00' HOUR TO MINUTE AS x, date_format(ts, 'HH:mm') > '06:00' AS y FROM c",
    "SELECT k, to_timestamp('06:00', 'HH:mm') AS x FROM c",
    "SELECT k, to_timestamp(concat(s, ' 12:30:00')) AS x, CAST(d || 'T06:00' AS TIMESTAMP) AS y FROM c",
    "SELECT k, CAST(date_format(d, 'yyyy-MM-dd 06:00:00') AS TIMESTAMP) AS x FROM c",
    "SELECT count(*) AS n FROM c WHERE s > '06:00' GROUP BY window(ts, '1 day')",
]


@pytest.mark.parametrize("ansi", ["true", "false"])
def test_a_time_of_day_beside_a_timestamp_is_a_clock(swh: Warehouse, spark: SparkSession, ansi: str) -> None:
    """Spark takes it for that time of today: the rows of tomorrow would be others, and no table has changed."""
    with setting(spark, spark__sql__ansi__enabled=ansi):
        swh.sql("CREATE TABLE c (k INT PRIMARY KEY, ts TIMESTAMP, s STRING, d DATE, n TIMESTAMP_NTZ)")
        swh.sql("INSERT INTO c SELECT 1, TIMESTAMP'2020-01-02 07:00', '2020-01-01', DATE'2020-01-01', NULL")
        for text in ALWAYS_CLOCKS + (CLOCKS if ansi == "true" else []):
            with pytest.raises(NotMaintainable, match=r"the time of day .* on the day of the query"):
                swh.sql(f"CREATE MATERIALIZED VIEW v TBLPROPERTIES ('selftest' = 'off') AS {text}")
            assert swh.sql("SHOW MATERIALIZED VIEWS").count() == 0, text
        for text in NO_CLOCKS:
            swh.sql(f"CREATE OR REPLACE MATERIALIZED VIEW v TBLPROPERTIES ('selftest' = 'off') AS {text}")
            assert rows(swh, "SELECT * FROM v") == rows(swh, text), text


def test_a_text_that_spark_plans_only_with_constants_computed_is_looked_through_all_the_same(world: Warehouse) -> None:
    """LIMIT with OFFSET takes their sum: under other settings Spark shows no plan of it at all."""
    world.sql("CREATE TABLE c (k INT PRIMARY KEY, ts TIMESTAMP)")
    for limit in ("LIMIT 2 OFFSET 1", "LIMIT 1 + 1"):
        with pytest.raises(NotMaintainable, match=r"time of day|LIMIT"):
            world.sql(f"CREATE MATERIALIZED VIEW w AS SELECT k FROM c WHERE ts > '06:00' ORDER BY k {limit}")
    world.sql("CREATE MATERIALIZED VIEW v AS SELECT k FROM c WHERE ts > '2020-01-01 06:00' ORDER BY k LIMIT 2 OFFSET 1")
    assert rows(world, "SELECT * FROM v") == []


def test_a_stored_view_of_a_clock_is_not_used_any_more(world: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """An earlier version of the program accepted it: its rows may be those of another day."""
    world.sql("CREATE TABLE c (k INT PRIMARY KEY, ts TIMESTAMP)")
    with monkeypatch.context() as patch:
        patch.setattr(known, "refuse_by_plans", lambda *_, **__: None)
        world.sql("CREATE MATERIALIZED VIEW v AS SELECT k FROM c WHERE ts > '06:00'")
    inside = internals(world)
    inside.views.catalog.note(inside.relation("v"), FACT, Verdict("plan", version="an earlier version").to_json())
    inside.views.definitions.forget()
    with pytest.raises(ViewUnusable, match=r"the time of day '06:00'.*CREATE OR REPLACE"):
        world.sql("SELECT * FROM v").collect()
    world.sql("CREATE OR REPLACE MATERIALIZED VIEW v AS SELECT k FROM c WHERE date_format(ts, 'HH:mm') > '06:00'")
    assert rows(world, "SELECT * FROM v") == []


@pytest.mark.parametrize(
    "text",
    [
        "SELECT IDENTIFIER('rand')() AS r FROM t",
        "SELECT count(*) AS n FROM t TABLESAMPLE (10 PERCENT) GROUP BY window(at, '1 day')",
        "SELECT k, current_path() AS p FROM t",
        "SELECT k, CURRENT_PATH AS p FROM t",
    ],
)
def test_what_is_not_determined_is_refused_though_it_is_not_parsed(world: Warehouse, text: str) -> None:
    world.sql(text).collect()
    with pytest.raises((NotMaintainable, InvalidStatement), match=r"not determined|what it names is computed"):
        world.sql(f"CREATE MATERIALIZED VIEW v AS {text}")


@pytest.mark.parametrize(
    "text",
    [
        "SELECT k, `current_date` AS d FROM t",
        "SELECT k, `Current_Timestamp` AS d FROM t",
        "SELECT k FROM t WHERE s = (SELECT max(`session_user`) FROM t)",
        "SELECT k, user AS u FROM t WHERE k NOT IN (SELECT k FROM people)",
        "SELECT k, user AS u FROM t |> SELECT *",
        "SELECT k /* /*+ */ , now() AS d -- */\n FROM t",
    ],
)
def test_a_call_in_the_guise_of_a_name_is_found_in_the_plan(world: Warehouse, text: str) -> None:
    """Spark takes the name of such a call for the call where there is no such column, in backticks too. The parser used
    here took it for a name, or for a comment, and the view kept the day on which it was computed."""
    world.sql("CREATE TABLE people (k INT PRIMARY KEY, `user` STRING)")
    with pytest.raises((NotMaintainable, InvalidStatement), match="not determined by the tables"):
        world.sql(f"CREATE MATERIALIZED VIEW v AS {text}")
    world.sql("CREATE MATERIALIZED VIEW v AS SELECT k, user, s = 'rand(' AS r FROM t JOIN people USING (k)")


@pytest.mark.parametrize("how", ["EXACT", "APPROX"])
def test_a_join_to_the_nearest_rows_is_refused(world: Warehouse, how: str) -> None:
    """Which of two rows at the same distance it takes depends on the order in which they lie."""
    text = f"SELECT t.k, x.k AS n FROM t JOIN t x {how} NEAREST 1 BY DISTANCE abs(t.k * 2 - 3 - x.k * 0)"
    with pytest.raises(NotMaintainable, match=r"NEAREST.*which of equally near rows it takes is not determined"):
        world.sql(f"CREATE MATERIALIZED VIEW v AS {text}")
    world.sql(text).collect()


def test_deep_nesting_is_a_sentence(world: Warehouse) -> None:
    deep = "(" * 3000 + "1" + ")" * 3000
    array = "ARRAY<" * 1000 + "INT" + ">" * 1000
    for text in (
        f"SELECT {deep} FROM t",
        f"DELETE FROM t WHERE k = {deep}",
        f"INSERT INTO t VALUES ({deep}, 'a', NULL)",
    ):
        with pytest.raises(QueryFailed, match="nested too deeply"):
            world.sql(text)
    with pytest.raises(
        (QueryFailed, InvalidStatement), match=r"nested too deeply|too complex to parse"
    ):  # of Spark too
        world.sql(f"SELECT CAST(NULL AS {array}) FROM t")
    if IS_SOAK:  # what becomes of it here: tests/unit/sql/test_lowering_refusals.py
        with suppress(QueryFailed, InvalidStatement):  # how deep Java's stack goes depends on what it has compiled
            world.sql("CREATE MATERIALIZED VIEW u AS SELECT k FROM " + "(SELECT k FROM " * 300 + "t" + ")" * 300)
            assert rows(world, "SELECT * FROM u") == [(1,), (2,)]
    world.sql("CREATE MATERIALIZED VIEW v AS SELECT " + "(" * 200 + "k" + ")" * 200 + " AS k FROM t")
    assert rows(world, "SELECT * FROM v") == [(1,), (2,)]
