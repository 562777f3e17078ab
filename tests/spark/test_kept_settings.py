"""A view means what it meant when it was created, whatever the sessions that maintain and read it are set to."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.internals import internals
from tests.spark.sessions import apart, rows, setting

from freshview import Warehouse
from freshview.spark.meaning import bears_on_meaning
from freshview.spark.settings import adopt, kept_by_views

pytestmark = pytest.mark.reading

# Settings with values that are not their defaults, and a definition to which they give another meaning.
_CASES: dict[str, tuple[dict[str, str], str]] = {
    "quoted names": ({"ansi.doubleQuotedIdentifiers": "true"}, 'SELECT k FROM t WHERE s = "w"'),
    "escapes": (
        {"parser.escapedStringLiterals": "true", "legacy.consecutiveStringLiterals.enabled": "true"},
        r"SELECT k, '\t' AS c, s RLIKE '^\\w$' AS m, 'it''s' AS d FROM t",
    ),
    "set operations": (
        {"legacy.setopsPrecedence.enabled": "true"},
        "SELECT s FROM t UNION SELECT w FROM t INTERSECT SELECT 'a' FROM t",
    ),
    "groups": ({"groupByAliases": "false"}, "SELECT lower(s) AS w, count(*) AS n FROM t GROUP BY w, s"),
    "zone": (
        {"session.timeZone": "America/New_York"},
        "SELECT date_trunc('DAY', at) AS d, hour(at) AS h, CAST(max(at) AS STRING) AS c, count(*) AS n FROM t"
        " GROUP BY 1, 2",
    ),
    "values": (
        {
            "jsonGenerator.ignoreNullFields": "false",
            "legacy.sizeOfNull": "false",
            "decimalOperations.allowPrecisionLoss": "false",
            "legacy.castComplexTypesToString.enabled": "true",
            "legacy.interval.enabled": "true",
        },
        "SELECT k, to_json(struct(s, w)) AS j, size(if(k > 1, NULL, array(k))) AS z, CAST(struct(s) AS STRING) AS c,"
        " CAST(k AS DECIMAL(38, 10)) / CAST(3 AS DECIMAL(20, 9)) AS d,"
        " CAST(DATE'2020-03-01' - DATE'2020-02-01' AS STRING) AS i FROM t",
    ),
    "types": (
        {
            "legacy.literal.pickMinimumPrecision": "false",
            "legacy.exponentLiteralAsDecimal.enabled": "true",
            "legacy.createEmptyCollectionUsingStringType": "true",
            "function.concatBinaryAsString": "true",
        },
        "SELECT k, typeof(1.0 * k) AS a, typeof(1e3) AS b, typeof(array()) AS c, typeof(concat(X'61', X'62')) AS d"
        " FROM t",
    ),
}
_ERRORS_BY_DEFAULT: dict[str, tuple[dict[str, str], str]] = {
    "ordinals of groups": ({"groupByOrdinal": "false"}, "SELECT max(s) AS m, count(*) AS n FROM t GROUP BY 1"),
    "names by pattern": ({"parser.quotedRegexColumnNames": "true"}, "SELECT `(s|w)` FROM t"),
    "having": ({"legacy.parser.havingWithoutGroupByAsWhere": "true"}, "SELECT k FROM t HAVING k > 1"),
    "not ansi": ({"ansi.enabled": "false"}, "SELECT k, CAST(s AS INT) AS c, 1 / (k - 1) AS q FROM t"),
}


@pytest.fixture
def world(swh: Warehouse, spark: SparkSession) -> Warehouse:
    """Rows on both sides of a change of the clocks in New York (8 March 2020, 1 November 2020)."""
    with setting(spark, spark__sql__session__timeZone="UTC"):
        swh.sql("CREATE TABLE t (k INT PRIMARY KEY, s STRING, w STRING, at TIMESTAMP)")
        swh.sql("INSERT INTO t VALUES (1, 'a', 'a', TIMESTAMP'2020-03-08 04:30:00'), (2, 'w', NULL, NULL)")
    return swh


def _full(settings: dict[str, str]) -> dict[str, str]:
    return {f"spark.sql.{key}": value for key, value in settings.items()}


def _expected(wh: Warehouse, spark: SparkSession, settings: dict[str, str], query: str) -> list[tuple[Any, ...]]:
    session = apart(spark)
    contents = wh.sql("SELECT * FROM t")
    session.createDataFrame(contents.toArrow(), contents.schema).createOrReplaceTempView("t")
    for key, value in _full(settings).items():
        session.conf.set(key, value)
    return sorted((tuple(r) for r in session.sql(query).collect()), key=repr)


def _change(wh: Warehouse, spark: SparkSession) -> None:
    with setting(spark, spark__sql__session__timeZone="UTC"):
        wh.sql("INSERT INTO t VALUES (10, 'B', 'w', TIMESTAMP'2020-11-01 05:30:00')")  # half past one in New York,
        wh.sql("INSERT INTO t VALUES (11, 'B', 'w', TIMESTAMP'2020-11-01 06:30:00')")  # and once more
        wh.sql("UPDATE t SET s = 'w' WHERE k = 1")


@pytest.mark.parametrize("case", [*_CASES, *_ERRORS_BY_DEFAULT])
def test_a_view_keeps_the_settings_it_was_created_under(world: Warehouse, spark: SparkSession, case: str) -> None:
    settings, query = {**_CASES, **_ERRORS_BY_DEFAULT}[case]
    with setting(spark, **_full(settings)):
        world.sql(f"CREATE MATERIALIZED VIEW v AS {query}")
    _change(world, spark)
    assert rows(world, "SELECT * FROM v") == _expected(world, spark, settings, query)


@pytest.mark.parametrize("case", ["quoted names", "zone", "values"])
def test_settings_of_a_later_session_change_nothing(world: Warehouse, spark: SparkSession, case: str) -> None:
    settings, query = _CASES[case]
    usual = {key: str(spark.conf.get(f"spark.sql.{key}")) for key in settings}
    world.sql(f"CREATE MATERIALIZED VIEW v AS {query}")
    _change(world, spark)
    with setting(spark, **_full(settings)):
        shown = rows(world, "SELECT * FROM v")
    assert shown == _expected(world, spark, usual, query)


def test_settings_that_bear_on_meaning_are_kept(swh: Warehouse, spark: SparkSession) -> None:
    """A view keeps known settings, at default too, and others that were set, but none that say how a query is run."""
    session = spark.newSession()
    session.conf.set("spark.sql.shuffle.partitions", "3")
    session.conf.set("spark.sql.adaptive.enabled", "false")
    session.conf.set("spark.sql.retainGroupColumns", "false")
    session.conf.set("spark.sql.extension.of.somebody", "x")
    kept = kept_by_views(session, {})
    assert kept["spark.sql.ansi.enabled"] == "true"
    assert kept["spark.sql.retainGroupColumns"] == "false"
    assert kept["spark.sql.extension.of.somebody"] == "x"
    assert not {"spark.sql.shuffle.partitions", "spark.sql.adaptive.enabled", "spark.sql.warehouse.dir"} & set(kept)
    swh.sql("CREATE TABLE t (k INT)")
    swh.sql("CREATE MATERIALIZED VIEW v AS SELECT k FROM t")
    stored = json.loads(internals(swh).relation("v").facts["settings"])
    assert stored == kept_by_views(spark, {})


def test_what_a_view_does_not_keep_is_at_spark_s_default(spark: SparkSession) -> None:
    """A later session takes the view's settings and the defaults; those that say how queries are run stay as set."""
    kept = kept_by_views(spark, {})
    later = spark.newSession()
    set_there = {
        "parser.escapedStringLiterals": "true",
        "retainGroupColumns": "false",
        "shuffle.partitions": "3",
        "session.timeZone": "Asia/Kolkata",
    }
    for key, value in _full(set_there).items():
        later.conf.set(key, value)
    adopt(later, kept, {})
    assert kept_by_views(later, {}) == kept
    assert later.conf.get("spark.sql.retainGroupColumns") == "true"
    assert later.conf.get("spark.sql.shuffle.partitions") == "3"


def test_views_that_kept_fewer_settings_open(swh: Warehouse, spark: SparkSession) -> None:
    """A view that an earlier version stored takes the settings it did not keep from the user's session."""
    few = {"spark.sql.session.timeZone": "Asia/Kolkata", "spark.sql.ansi.enabled": "false"}
    session = spark.newSession()
    session.conf.set("spark.sql.groupByOrdinal", "false")
    adopt(session, few, {})
    assert {k: session.conf.get(k) for k in few} == few
    assert session.conf.get("spark.sql.groupByOrdinal") == "false"
    assert swh.status().csn == 0


def test_no_setting_that_cannot_be_changed_is_kept(spark: SparkSession) -> None:
    """What is set once for all sessions cannot be given to a view's."""
    private: Any = spark
    jvm = private._jvm
    static = getattr(getattr(jvm, "org.apache.spark.sql.internal.StaticSQLConf$"), "MODULE$")
    assert static is not None
    entries = getattr(getattr(jvm, "org.apache.spark.sql.internal.SQLConf$"), "MODULE$").getConfigEntries().toArray()
    keys = [entry.key() for entry in entries]
    fixed = [key for key in keys if not spark.conf.isModifiable(key)]
    assert fixed
    assert [key for key in fixed if bears_on_meaning(key)] == []
