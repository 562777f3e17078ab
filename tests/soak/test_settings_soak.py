"""Settings that views do not keep change no result: all of Spark's own that are true or false, over queries of many
kinds.

A limit: integers, enumerations and texts are not changed, since Spark does not tell which of their values are valid, or
far enough from the default. Of those, a view keeps all whose name is not known to be harmless (`spark/meaning.py`).
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from freshview.spark.meaning import bears_on_meaning

_TABLE = """
SELECT * FROM VALUES
  (1, 'a', 1.5D, 10.25BD, DATE'2020-02-29', TIMESTAMP'2020-03-08 07:30:00', array(3, 1, NULL), map('x', 1)),
  (2, 'B ', -0.0D, 3BD, DATE'1500-01-01', TIMESTAMP'1969-12-31 23:59:59.5', array(), map()),
  (3, NULL, DOUBLE('NaN'), NULL, NULL, NULL, NULL, NULL),
  (3, 'a', 0.0D, 10.25BD, DATE'2020-02-29', TIMESTAMP'2020-11-01 05:30:00', array(1), map('y', 2, 'x', 3))
AS t(k, s, f, n, d, at, arr, m)
"""
_QUERIES = (
    "SELECT k, s, f, n, d, at, arr, CAST(m AS STRING) FROM t",
    "SELECT to_json(struct(*)) FROM t",
    "SELECT from_json('{\"a\": 1, \"b\": \"x\"}', 'a INT, b STRING, c DATE'), get_json_object('[1,2]', '$[1]')",
    "SELECT from_csv('1,x', 'a INT, b STRING'), to_csv(struct(k, s, n)) FROM t",
    "SELECT CAST(at AS STRING), CAST(d AS STRING), CAST(f AS STRING), CAST(n AS STRING), CAST(arr AS STRING) FROM t",
    "SELECT to_date('2020-1-1'), try_to_timestamp('2020-01-01 1', 'yyyy-MM-dd H'), date_format(at, 'EEE yyyy') FROM t",
    "SELECT n / 3, n * n, n + 1, k / 2, k DIV 2, k % 2, round(n, 1), CAST(n AS DECIMAL(4, 1)) FROM t",
    "SELECT typeof(1.0), typeof(1e3), typeof(array()), typeof(concat(X'61', X'62'))",
    "SELECT size(arr), arr[0], element_at(arr, 1), sort_array(arr), array_sort(arr), array_contains(arr, 3) FROM t "
    "WHERE size(arr) > 0",
    "SELECT exists(arr, x -> x > 1), filter(arr, x -> x > 1), transform(arr, x -> x + k) FROM t",
    "SELECT map_from_arrays(array(1, 2), array('a', 'b')), map_keys(m), m['x'], map_filter(m, (a, b) -> b > 1) FROM t",
    "SELECT s || 'x', concat(s, 1), upper(s), 'it''s', '\\t', lpad(s, 3), split('abc', ''), s RLIKE 'A|a' FROM t",
    "SELECT k, count(*), sum(n), avg(n), max(f), stddev(k), percentile(k, 0.5), max(struct(k, s)) FROM t GROUP BY k",
    "SELECT s, count(*) FROM t GROUP BY 1 HAVING count(*) > 0 ORDER BY 1 NULLS LAST",
    "SELECT k, s, grouping_id(), count(*) FROM t GROUP BY GROUPING SETS ((k, s), (k), ())",
    "SELECT k, sum(k) FROM t GROUP BY CUBE (k, s)",
    "SELECT k, rank() OVER (PARTITION BY s ORDER BY k), sum(n) OVER (ORDER BY k RANGE 1 PRECEDING) FROM t",
    "SELECT a.k, b.s FROM t a LEFT JOIN t b ON a.k = b.k AND b.s <> 'a'",
    "SELECT a.k FROM t a FULL JOIN t b USING (k)",
    "SELECT k FROM t WHERE k NOT IN (SELECT k FROM t WHERE s IS NULL)",
    "SELECT k FROM t a WHERE EXISTS (SELECT 1 FROM t b WHERE b.k > a.k)",
    "SELECT k, (SELECT count(*) FROM t b WHERE b.k = a.k AND b.s = 'a') FROM t a",
    "SELECT s FROM t UNION SELECT 'z' INTERSECT SELECT 'z' EXCEPT SELECT 'y'",
    "SELECT k FROM t EXCEPT ALL SELECT 3",
    "WITH x AS (SELECT k FROM t), y AS (SELECT k + 1 AS k FROM x) SELECT * FROM x JOIN y USING (k)",
    "SELECT k, e FROM t LATERAL VIEW OUTER explode(arr) q AS e",
    "SELECT * FROM (SELECT k, s, n FROM t) PIVOT (sum(n) FOR s IN ('a', 'B '))",
    "SELECT k, l FROM t, LATERAL (SELECT k + 1 AS l)",
    "SELECT DISTINCT s, f FROM t",
    "SELECT k, s FROM t ORDER BY k DESC, s LIMIT 2",
    "SELECT d + INTERVAL 1 MONTH, at - INTERVAL 1 HOUR, datediff(d, DATE'2020-01-01'), d - DATE'2020-01-01' FROM t",
    "SELECT hash(k, s, f), xxhash64(n, d), md5(s), base64(CAST(s AS BINARY)) FROM t",
    "SELECT CAST('1' AS INT) + k, coalesce(k, '7'), if(k > 1, k, 1.5), greatest(k, 2.5), k IN (1, 2.0) FROM t",
    "SELECT f = 0.0, f <=> double('NaN'), f < 1, f IN (0.0, -0.0) FROM t",
    "SELECT x.a FROM (SELECT named_struct('a', k, 'B', s) AS x FROM t)",
    "SELECT k AS a, a + 1 AS b FROM t",
    "SELECT count(*) FROM t WHERE d >= DATE'1582-10-15' OR at < TIMESTAMP'1970-01-01 00:00:00'",
    "SELECT format_string('%s %d', s, k), format_number(n, 1), substring(s, 1, 1), overlay(s, 'x', 1) FROM t",
    "SELECT sort_array(collect_list(k)), sort_array(collect_set(s)) FROM t",
    "SELECT regexp_replace(s, '(.)', '<$1>'), translate(s, 'a', 'b'), initcap(s), soundex(s) FROM t",
)


@pytest.fixture
def plain(spark: SparkSession) -> SparkSession:
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    session.conf.set("spark.sql.shuffle.partitions", "1")
    session.sql(_TABLE).createOrReplaceTempView("t")
    return session


def _answers(session: SparkSession) -> list[Any]:
    found: list[Any] = []
    for query in _QUERIES:
        try:
            frame = session.sql(query)
            found.append((frame.columns, sorted(repr(tuple(r)) for r in frame.collect())))
        except PySparkException as error:
            found.append(error.getCondition())
    return found


def _harmless(session: SparkSession) -> list[tuple[str, str]]:
    """Spark's own settings that views do not keep, each with what it is not by default."""
    private: Any = session
    entries = getattr(getattr(private._jvm, "org.apache.spark.sql.internal.SQLConf$"), "MODULE$").getConfigEntries()
    opposite = {"true": "false", "false": "true"}
    found = [(entry.key(), opposite.get(str(entry.defaultValueString()), "")) for entry in entries.toArray()]
    return sorted((k, v) for k, v in found if v and not bears_on_meaning(k) and session.conf.isModifiable(k))


def _changing(session: SparkSession, flips: list[tuple[str, str]], usual: list[Any]) -> dict[str, list[str]]:
    """Return the settings that change a result, each with the queries whose result it changes."""
    done = []
    for key, value in flips:
        with suppress(PySparkException):  # a removed one, which may not be changed
            session.conf.set(key, value)
            done.append(key)
    changed = [query for query, a, b in zip(_QUERIES, usual, _answers(session), strict=True) if a != b]
    for key in done:
        session.conf.unset(key)
    if not changed:
        return {}
    if len(flips) == 1:
        return {flips[0][0]: changed}
    half = len(flips) // 2
    return _changing(session, flips[:half], usual) | _changing(session, flips[half:], usual)


def test_settings_that_views_do_not_keep_change_no_result(plain: SparkSession) -> None:
    usual = _answers(plain)
    assert [query for query, a in zip(_QUERIES, usual, strict=True) if not isinstance(a, tuple)] == []
    flips = _harmless(plain)
    assert len(flips) > 100
    found: dict[str, list[str]] = {}
    for start in range(0, len(flips), 16):
        found |= _changing(plain, flips[start : start + 16], usual)
    assert found == {}
