"""Statements mean what Spark takes them for, under any settings: what is decided without Spark too.

An oracle that shares no code: the same texts as queries of plain Spark over a copy of the table.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from tests.spark.sessions import apart, setting

from freshview import Warehouse
from freshview.errors import FreshviewError, TypeMismatch

pytestmark = pytest.mark.reading

_SETTINGS = {
    "spark__sql__ansi__enabled": ("true", "false"),
    "spark__sql__ansi__doubleQuotedIdentifiers": ("true", "false"),
    "spark__sql__parser__escapedStringLiterals": ("true", "false"),
    "spark__sql__legacy__consecutiveStringLiterals__enabled": ("true", "false"),
    "spark__sql__legacy__exponentLiteralAsDecimal__enabled": ("true", "false"),
    "spark__sql__variable__substitute": ("true", "false"),
    "spark__sql__caseSensitive": ("false",),  # what differs then is an error, not a row: our names have no case
    "spark__sql__timestampType": ("TIMESTAMP_LTZ", "TIMESTAMP_NTZ"),
    "spark__sql__legacy__noCharPaddingInPredicate": ("true", "false"),
}
# fmt: off
_STRINGS = (
    "'v'", '"v"', '"k"', "'a'", '"a"', "'it''s'", "'a' 'b'", "'a' \"b\"", "'t\\tb'", "'t\\\\tb'", "r'a'", "R'\\tb'",
    "'\\u0061'", "'\\141'", "X'61'", "'${spark.fv.letter}'", "'a' /* it's */", "concat('a')", "'x' || 'y'", "'%'",
    "'\\%'", "'\"v\"'", "NULL", "'c' COLLATE UTF8_BINARY",
)
_NUMBERS = (
    "1", "-1", "- 1", "+1", "1L", "1Y", "1S", "1D", "1F", "1BD", "1.0", "1e0", "1E0", ".1", "1.", "01", "NULL",
    "'1'", '"1"', '"n"', "n", "1 = 1", "1 = true", "1 < 2", "1 IS NULL", "1 IN (1)", "1 & 3", "1 | 2", "1 ^ 3",
    "DATE'2020-01-01'", "~1", "-(-1)", "1 -- one\n", "1 /* one */", "(1)", "1 BETWEEN 0 AND 2", "true", "1 DIV 1",
)
_CONDITIONS = (
    "k = {s}", "{s} = k", "k IN ({s}, {s})", "k = {s} AND n = {n}", "n = {n} AND k = {s}", "k = {s} OR n = {n}",
    "NOT k = {s}", "NOT k = {s} AND n = {n}", "k = {s} = true", "k = {s} = (n = 1)", "k LIKE {s}", "(k = {s})",
    "k = {s} AND NOT n = {n} = false", "n = {n}", "k == {s}", "k <=> {s}", "t.k = {s}", "`k` = {s}", "K = {s}",
    "n BETWEEN 0 AND 1 = true AND k = {s}", "k = {s} IS NOT NULL", "k = {s} AND true", "k IN ({s}) = true",
    "v = {s}", "v IN ({s}, 'a')", "n > {n}", "{n} >= n", "n BETWEEN 0 AND {n}", "v BETWEEN 'a' AND {s}",
    "v > {s} AND n < 2", "n IN ({n}, 2) AND v = {s}", "n BETWEEN {n} AND 1 AND k <> 'a'", "1 < n = {n}",
    "k = {s} AND v = \"v\"", "k <> {s}", "k = {s} AND n IN ({n}, 2)", "true AND k = {s}", "k = {s} AND k = {s}",
)
# fmt: on
_KEYS = ("a", "v", "k", "it's", "its", "ab", "t\tb", "t\\tb", "\\tb", "b", "\\%", "%", '"v"', "xy", "\\u0061", "1")
_ROWS = [{"k": key, "v": key if i % 2 else "v", "n": i % 4 - 1} for i, key in enumerate(_KEYS)]


class Both:
    """A table in a warehouse, and a copy of its rows that plain Spark is asked about."""

    def __init__(self, wh: Warehouse, spark: SparkSession) -> None:
        self.wh, self.spark, self.plain = wh, spark, apart(spark)
        wh.sql("CREATE TABLE t (k STRING PRIMARY KEY, v STRING, n INT)")
        with wh.transaction() as tx:
            tx.insert("t", _ROWS)

    def rows(self) -> list[tuple[Any, ...]]:
        return sorted((tuple(r) for r in self.wh.sql("SELECT k, v, n FROM t").collect()), key=repr)

    def expected(self, query: str) -> list[tuple[Any, ...]] | None:
        """What plain Spark makes of it; None if it refuses, or if a key would be there twice or be missing."""
        self.plain.createDataFrame(self.rows(), "k STRING, v STRING, n INT").createOrReplaceTempView("t")
        try:
            found = sorted((tuple(r) for r in self.plain.sql(query).collect()), key=repr)
        except PySparkException:
            return None
        keys = [r[0] for r in found]
        return None if None in keys or len(set(keys)) < len(keys) else found

    def check(self, statement: str, query: str) -> None:
        expected = self.expected(query)
        with self.wh.transaction() as tx:
            try:
                tx.sql(statement)
            except TypeMismatch:
                pass  # values are stored more strictly than they are cast
            except FreshviewError:
                assert expected is None, statement
            else:
                assert expected is not None, statement
                assert sorted((tuple(r) for r in tx.sql("SELECT k, v, n FROM t").collect()), key=repr) == expected
            tx.rollback()


@pytest.fixture
def both(swh: Warehouse, spark: SparkSession) -> Iterator[Both]:
    spark.conf.set("spark.fv.letter", "a")
    yield Both(swh, spark)
    spark.conf.unset("spark.fv.letter")


def _under(both: Both, values: dict[str, str]) -> Any:
    for name, value in values.items():
        both.plain.conf.set(name.replace("__", "."), value)
    both.plain.conf.set("spark.fv.letter", "a")
    return setting(both.spark, **values)


def test_a_quoted_word_is_a_column_where_the_session_says_so(both: Both) -> None:
    """The row whose key equals its own column v goes, not the row whose key is the word v."""
    for quoted in ("false", "true"):
        values = {"spark__sql__ansi__enabled": "true", "spark__sql__ansi__doubleQuotedIdentifiers": quoted}
        with _under(both, values):
            both.check('DELETE FROM t WHERE k = "v"', 'SELECT * FROM t WHERE NOT coalesce(k = "v", false)')
            both.check("UPDATE t SET v = \"k\" WHERE k = 'a'", "SELECT k, if(k = 'a', \"k\", v), n FROM t")


@pytest.mark.parametrize("seed", range(2))
def test_statements_mean_what_spark_takes_them_for(both: Both, seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(8):
        values = {name: draw.choice(choices) for name, choices in _SETTINGS.items()}
        with _under(both, values):
            condition = (
                draw.choice(_CONDITIONS).replace("{s}", draw.choice(_STRINGS)).replace("{n}", draw.choice(_NUMBERS))
            )
            text, number = draw.choice(_STRINGS), draw.choice(_NUMBERS)
            both.check(
                f"DELETE FROM t WHERE {condition}", f"SELECT * FROM t WHERE NOT coalesce(({condition}\n), false)"
            )
            both.check(
                f"UPDATE t SET v = {text}, n = {number}\n WHERE {condition}",
                f"SELECT k, if(({condition}\n), CAST({text} AS STRING), v),"
                f" if(({condition}\n), CAST({number}\n AS INT), n) FROM t",
            )
            both.check(
                f"INSERT INTO t VALUES ({text}, {text}, {number}\n)",
                f"SELECT * FROM t UNION ALL SELECT CAST(a AS STRING), CAST(b AS STRING), CAST(c AS INT)"
                f" FROM VALUES ({text}, {text}, {number}\n) AS q(a, b, c)",
            )
