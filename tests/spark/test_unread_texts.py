"""Texts that the parser used here cannot read, names that need quoting, tables of others: an answer, or a sentence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pytest
from pyspark.sql import SparkSession
from tests.spark.sessions import rows, setting

from freshview import Warehouse
from freshview.errors import InvalidStatement, NotMaintainable, QueryFailed

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


def test_deep_nesting_is_a_sentence(world: Warehouse) -> None:
    deep = "(" * 3000 + "1" + ")" * 3000
    for text in (
        f"SELECT {deep} FROM t",
        f"DELETE FROM t WHERE k = {deep}",
        f"INSERT INTO t VALUES ({deep}, 'a', NULL)",
    ):
        with pytest.raises(QueryFailed, match="nested too deeply"):
            world.sql(text)
    with suppress(QueryFailed, InvalidStatement):  # how deep Java's stack goes depends on what it has compiled
        world.sql("CREATE MATERIALIZED VIEW u AS SELECT k FROM " + "(SELECT k FROM " * 300 + "t" + ")" * 300)
        assert rows(world, "SELECT * FROM u") == [(1,), (2,)]
    world.sql("CREATE MATERIALIZED VIEW v AS SELECT " + "(" * 200 + "k" + ")" * 200 + " AS k FROM t")
    assert rows(world, "SELECT * FROM v") == [(1,), (2,)]
