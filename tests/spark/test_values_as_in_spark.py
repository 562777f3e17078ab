"""Views mean what Spark means, to the letter, after incremental refreshes.

Each test keeps a copy of its tables as plain Python rows. What a view should be is what Spark answers to the
definition's text over that copy, in a session that knows nothing of Freshview: neither our scans nor our rules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from math import inf, nan
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, assume, given, note, settings
from hypothesis import strategies as st
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType
from tests.effort import IS_SOAK, examples
from tests.spark.sessions import apart, setting
from tests.unit.algebra.oracle import Double, rank
from tests.unit.sql.view_grammar import SCHEMAS, VALUES, kind_of, views

from freshview import Warehouse
from freshview.errors import FreshviewError, NotMaintainable, QueryFailed, TypeMismatch

Row = tuple[Any, ...]
Found = list[tuple[str, ...]]


def exactly(rows: Sequence[Any]) -> Found:
    """Rows as texts that tell −0.0 from 0.0, 1.0 from 1.00 and NaN from NULL, in order."""
    return sorted(tuple(repr(v) for v in r) for r in rows)


def with_tables(spark: SparkSession, schemas: Mapping[str, str], tables: Mapping[str, Sequence[Row]]) -> SparkSession:
    """A session that has these rows, and knows nothing of Freshview."""
    session = apart(spark)
    for table, rows in tables.items():
        schema = StructType.fromDDL(schemas[table])
        assert isinstance(schema, StructType)
        data = pa.table({name: pa.array([r[i] for r in rows]) for i, name in enumerate(schema.names)})
        session.createDataFrame(data, schema).createOrReplaceTempView(table)
    return session


class Copy:
    """Tables in a warehouse, and the same rows in Python. The first column `k` is the primary key, if there is one."""

    def __init__(self, wh: Warehouse, spark: SparkSession, tables: Mapping[str, str]) -> None:
        self.wh = wh
        self._spark = spark
        self._schemas = {n: d.replace(" PRIMARY KEY", "") for n, d in tables.items()}
        self.rows: dict[str, list[Row]] = {n: [] for n in tables}
        for name, columns in tables.items():
            wh.sql(f"CREATE TABLE {name} ({columns})")

    def names(self, table: str) -> list[str]:
        return [c.split()[0].strip("`") for c in self._schemas[table].split(", ")]

    def put(self, table: str, *rows: Row) -> None:
        """Insert, or replace by key."""
        names = self.names(table)
        keyed = names[0] == "k"
        with self.wh.transaction() as tx:
            data = [dict(zip(names, r, strict=True)) for r in rows]
            (tx.upsert if keyed else tx.insert)(table, data)
        gone = {r[0] for r in rows} if keyed else set()
        self.rows[table] = [r for r in self.rows[table] if not keyed or r[0] not in gone] + list(rows)

    def cut(self, table: str, *keys: Any) -> None:
        with self.wh.transaction() as tx:
            tx.delete(table, list(keys))
        self.rows[table] = [r for r in self.rows[table] if r[0] not in keys]

    def expected(self, text: str, **conf: str) -> Found:
        """What Spark answers over the copy, under the view's settings."""
        return self.all_expected({"": text}, **conf)[""]

    def all_expected(self, texts: Mapping[str, str], **conf: str) -> dict[str, Found]:
        session = with_tables(self._spark, self._schemas, self.rows)
        for name, value in conf.items():
            session.conf.set(name.replace("__", "."), value)
        return {name: exactly(session.sql(text).collect()) for name, text in texts.items()}

    def found(self, view: str, **options: Any) -> Found:
        return exactly(self.wh.sql(f"SELECT * FROM {view}", **options).collect())


def follow(copy: Copy, definitions: Mapping[str, str], steps: Sequence[Callable[[], None]], **conf: str) -> None:
    """Views are created, and after steps each equals Spark's answer; by delta rules, not by recomputing.

    Rows that are wrong stay wrong in later steps: only a soak compares at CREATE and after each step, else the last
    step and every second one before it are enough.
    """
    spark = copy._spark
    with setting(spark, **conf):
        for name, text in definitions.items():
            copy.wh.sql(f"CREATE MATERIALIZED VIEW {name} TBLPROPERTIES ('refresh' = 'incremental') AS {text}")
    for number, step in enumerate([*[lambda: None] * IS_SOAK, *steps]):
        step()
        if not IS_SOAK and (len(steps) - number) % 2 == 0:
            copy.wh.maintain(list(definitions))
            continue
        for name, expected in copy.all_expected(definitions, **conf).items():
            assert copy.found(name) == expected, (name, number)
    for name in definitions:
        assert {j.strategy for j in copy.wh.history(name)} <= {"incremental", "nothing"}, name
        assert not IS_SOAK or copy.wh.check(name).ok


# -- NULLs and logic -------------------------------------------------------------------------------


def test_null_groups_and_three_valued_logic(swh: Warehouse, spark: SparkSession) -> None:
    copy = Copy(swh, spark, {"t": "k INT PRIMARY KEY, a INT, b BOOLEAN, s STRING", "u": "k INT PRIMARY KEY, a INT"})
    copy.put("t", (1, None, True, "x"), (2, None, None, None), (3, 1, False, "x"), (4, 1, None, ""))
    copy.put("u", (1, 1), (2, None))

    def change_both() -> None:
        copy.cut("t", 2, 3)
        copy.put("u", (3, None), (4, 2))

    follow(
        copy,
        {
            "grouped": "SELECT a, b, count(*) n, count(s) c, sum(a) t FROM t GROUP BY a, b",
            "logic": "SELECT k, b AND a = 1 x, b OR a = 1 y, NOT b z, b IS NOT TRUE w, a <=> NULL v FROM t",
            "kept": "SELECT k FROM t WHERE NOT (b AND a > 0) OR s NOT IN ('x', NULL)",
            "matched": "SELECT t.k, u.k uk FROM t LEFT JOIN u ON t.a = u.a",
            "safe": "SELECT t.k, u.k uk FROM t JOIN u ON t.a <=> u.a",
            "absent": "SELECT k FROM t WHERE a NOT IN (SELECT a FROM u)",
            "flags": "SELECT a, bool_and(b) al, bool_or(b) an, max(s) m FROM t GROUP BY a",
            "rows_of_both": "SELECT a FROM t INTERSECT SELECT a FROM u",
        },
        [
            lambda: copy.put("t", (5, None, False, "x"), (1, None, None, "y")),
            lambda: copy.cut("u", 2),
            change_both,
            lambda: copy.cut("u", 1, 3, 4),
        ],
    )


def test_doubles_that_are_no_numbers(swh: Warehouse, spark: SparkSession) -> None:
    """NaN is one group and the greatest value; −0.0 and 0.0 are one group but two values; infinities come and go."""
    copy = Copy(swh, spark, {"t": "k INT PRIMARY KEY, g INT, x DOUBLE", "u": "k INT PRIMARY KEY, x DOUBLE"})
    copy.put("t", (1, 1, nan), (2, 1, 0.0), (3, 1, -0.0), (4, 2, inf), (5, 2, -inf), (6, 2, None))
    copy.put("u", (1, nan), (2, -0.0))

    def change_both() -> None:
        copy.cut("t", 5, 7)
        copy.put("u", (2, 0.0), (3, inf))

    follow(
        copy,
        {
            "values_": "SELECT k, x, -x y FROM t WHERE x <= 0 OR x > 1e300",
            "groups_": "SELECT x, count(*) n FROM t GROUP BY x",
            "distinct_": "SELECT DISTINCT x FROM t",
            "joined": "SELECT t.k, t.x, u.x ux FROM t JOIN u ON t.x = u.x",
            "absent": "SELECT x FROM t EXCEPT ALL SELECT x FROM u",
            "sums": "SELECT g, sum(x) s, avg(x) a FROM t GROUP BY g",
            "ranked": "SELECT k, rank() OVER (PARTITION BY g ORDER BY x DESC) r FROM t",
            "windowed": "SELECT k, x, count(*) OVER (PARTITION BY x) n FROM t",
        },
        [
            lambda: copy.put("t", (2, 1, -0.0), (7, 2, nan)),
            lambda: copy.put("t", (3, 1, 0.0), (1, 1, 1.0)),
            change_both,
            lambda: copy.put("u", (2, -0.0), (1, None)),
        ],
    )


def test_the_first_of_zeros_is_the_negative_one(swh: Warehouse) -> None:
    """LIMIT takes the same of rows that tie in every column on every path, whichever came first; in structs too."""
    swh.sql("CREATE TABLE t (k INT PRIMARY KEY, x DOUBLE, s STRUCT<x: DOUBLE>)")
    swh.sql("CREATE MATERIALIZED VIEW plain AS SELECT x FROM t ORDER BY x LIMIT 1")
    swh.sql("CREATE MATERIALIZED VIEW `inside` AS SELECT s FROM t ORDER BY s LIMIT 1")
    for first, second in ((0.0, -0.0), (-0.0, 0.0)):
        with swh.transaction() as tx:
            tx.upsert("t", [{"k": k, "x": x, "s": {"x": x}} for k, x in ((1, first), (2, second))])
        assert str(swh.sql("SELECT * FROM plain").collect()[0].x) == "-0.0"
        assert str(swh.sql("SELECT * FROM `inside`").collect()[0].s.x) == "-0.0"


# -- numbers ---------------------------------------------------------------------------------------

_BIG = 2**63 - 1


def test_integers_wrap_without_ansi_and_fail_with_it(swh: Warehouse, spark: SparkSession) -> None:
    """In expressions and in sums: without ANSI as Java counts; with it an error, until the data is corrected."""
    copy = Copy(swh, spark, {"t": "k INT PRIMARY KEY, g INT, i INT, n BIGINT"})
    copy.put("t", (1, 1, 2**31 - 1, _BIG), (2, 1, 1, 1), (3, 2, -(2**31), -_BIG - 1))
    texts = {
        "wrapped": "SELECT k, i + 1 j, i * 2 d, -i m, n + k w FROM t",
        "sums": "SELECT g, sum(n) s, sum(i) t, count(*) c FROM t GROUP BY g",
        "whole": "SELECT sum(n) s FROM t",
    }
    steps = [
        lambda: copy.put("t", (4, 2, -1, -5), (5, 1, 7, _BIG)),
        lambda: copy.cut("t", 1),
        lambda: copy.put("t", (3, 2, 5, 5), (5, 1, 0, -_BIG)),
    ]
    follow(copy, texts, steps, spark__sql__ansi__enabled="false")
    swh.sql("CREATE MATERIALIZED VIEW strict AS SELECT g, sum(n) s FROM t GROUP BY g")
    copy.put("t", (10, 3, 0, _BIG), (11, 3, 0, _BIG))
    with pytest.raises(FreshviewError, match=r"ARITHMETIC_OVERFLOW|CAST_OVERFLOW|OUT_OF_RANGE"):
        swh.maintain(["strict"])
    copy.cut("t", 11)
    assert copy.found("strict") == copy.expected("SELECT g, sum(n) s FROM t GROUP BY g")


def test_decimals_keep_sparks_precision(swh: Warehouse, spark: SparkSession) -> None:
    copy = Copy(swh, spark, {"t": "k INT PRIMARY KEY, g INT, d DECIMAL(10,2), e DECIMAL(38,10)"})
    copy.put("t", (1, 1, Decimal("1.10"), Decimal("0.0000000001")), (2, 1, Decimal("2.25"), None))
    follow(
        copy,
        {
            "products": "SELECT k, d * e p, d / 3 q, d + e s, cast(d AS DECIMAL(9,1)) c FROM t",
            "sums": "SELECT g, sum(d) s, sum(e) t, avg(d) a, sum(d * 2) b, max(e) m FROM t GROUP BY g",
        },
        [
            lambda: copy.put("t", (3, 1, Decimal("99999.99"), Decimal("12345678901234567890.1")), (4, 2, None, None)),
            lambda: copy.put("t", (1, 2, Decimal("-0.01"), Decimal("-7"))),
            lambda: copy.cut("t", 2, 3),
        ],
    )


def test_a_decimal_sum_that_overflowed_comes_back(swh: Warehouse, spark: SparkSession) -> None:
    """Without ANSI a sum beyond 38 digits is NULL. When a summand leaves, the sum is there again."""
    nines = Decimal(9 * 10**37)
    copy = Copy(swh, spark, {"t": "k INT PRIMARY KEY, g INT, d DECIMAL(38,0)"})
    copy.put("t", (1, 1, nines), (2, 2, Decimal(1)))
    steps = [
        lambda: copy.put("t", (3, 1, nines), (4, 1, Decimal(5))),
        lambda: copy.put("t", (5, 1, Decimal(7))),
        lambda: copy.cut("t", 3),
        lambda: copy.cut("t", 4),
    ]
    follow(copy, {"sums": "SELECT g, sum(d) s, count(*) n FROM t GROUP BY g"}, steps, spark__sql__ansi__enabled="false")


def test_strings_become_numbers_as_in_spark(swh: Warehouse, spark: SparkSession) -> None:
    """With ANSI spaces around are fine and words an error; without it words are NULL."""
    copy = Copy(swh, spark, {"t": "k INT PRIMARY KEY, s STRING"})
    copy.put("t", (1, "12"), (2, " 7 "), (3, None), (4, "1.5"))
    follow(
        copy,
        {
            "tried": "SELECT k, try_cast(s AS INT) i, try_cast(s AS DOUBLE) d, try_cast(s AS DECIMAL(4,1)) e FROM t",
            "equal": "SELECT k FROM t WHERE s = 12.0D",
        },
        [lambda: copy.put("t", (5, "1e3"), (6, "\t9\n"), (1, "+12"))],
    )
    copy.put("t", (7, "word"), (8, ""), (9, "99999999999"))
    texts = {
        "loose": "SELECT k, cast(s AS INT) i, cast(s AS BIGINT) n, s + 1 p FROM t",
        "grouped": "SELECT cast(s AS INT) i, count(*) n, sum(cast(s AS BIGINT)) t FROM t GROUP BY cast(s AS INT)",
    }
    steps = [lambda: copy.put("t", (10, "x"), (1, "0x1")), lambda: copy.cut("t", 7, 8)]
    follow(copy, texts, steps, spark__sql__ansi__enabled="false")


# -- times, names, text ----------------------------------------------------------------------------


def test_a_view_keeps_the_zone_it_was_created_in(swh: Warehouse, spark: SparkSession) -> None:
    """Hours, days and casts are those of the zone at CREATE, whatever zone the reader's session has; instants stay."""
    copy = Copy(swh, spark, {"t": "k INT PRIMARY KEY, at TIMESTAMP, wall TIMESTAMP_NTZ"})
    night = datetime(2024, 3, 31, 0, 30, tzinfo=UTC)
    copy.put("t", (1, night, datetime(2024, 3, 31, 2, 30)), (2, night + timedelta(hours=23), None))
    texts = {
        "hours": "SELECT k, hour(at) h, cast(at AS DATE) d, cast(at AS STRING) s, hour(wall) w FROM t",
        "days": "SELECT cast(at AS DATE) d, count(*) n FROM t GROUP BY cast(at AS DATE)",
        "mixed": "SELECT k, wall > at later FROM t",
    }
    zone = {"spark__sql__session__timeZone": "Europe/Paris"}
    steps: list[Callable[[], None]] = [
        lambda: copy.put("t", (3, night + timedelta(hours=1), datetime(2024, 3, 31, 3, 30))),
        lambda: copy.put("t", (1, night - timedelta(hours=2), None)),
    ]
    with setting(spark, spark__sql__session__timeZone="Pacific/Auckland"):
        follow(copy, texts, steps, **zone)
        swh.sql(f"CREATE MATERIALIZED VIEW here AS {texts['days']}")
    assert copy.found("here") == copy.expected(texts["days"], spark__sql__session__timeZone="Pacific/Auckland")
    assert copy.found("here") != copy.found("days")


def test_names_are_found_in_any_case_and_shown_as_written(swh: Warehouse, spark: SparkSession) -> None:
    copy = Copy(swh, spark, {"t": "k INT PRIMARY KEY, Amount INT, `group` STRING"})
    copy.put("t", (1, 5, "a"), (2, 6, "a"))
    text = "SELECT GROUP_.`Group` AS `My-Key`, Sum(AMOUNT) ToTal FROM T Group_ GROUP BY group_.`GROUP`"
    follow(copy, {"v": text}, [lambda: copy.put("t", (3, 7, "A"), (1, 1, "a "))])
    assert swh.sql("SELECT * FROM V").columns == ["My-Key", "ToTal"]
    with setting(spark, spark__sql__caseSensitive="true"):
        with pytest.raises(FreshviewError, match="AMOUNT"):
            swh.sql("CREATE MATERIALIZED VIEW w AS SELECT AMOUNT FROM t")
        swh.sql("CREATE MATERIALIZED VIEW w AS SELECT k, Amount FROM t")
    copy.cut("t", 2)
    assert copy.found("w") == copy.expected("SELECT k, Amount FROM t")


def test_spaces_at_the_end_of_a_string_count(swh: Warehouse, spark: SparkSession) -> None:
    copy = Copy(swh, spark, {"t": "k INT PRIMARY KEY, s STRING"})
    copy.put("t", (1, "a"), (2, "a "), (3, " a"), (4, ""), (5, " "), (6, None))
    follow(
        copy,
        {
            "grouped": "SELECT s, length(s) l, count(*) n FROM t GROUP BY s",
            "equal": "SELECT k FROM t WHERE s = 'a' OR s = ''",
            "pairs": "SELECT x.k, y.k o FROM t x JOIN t y ON x.s = y.s AND x.k < y.k",
            "greatest": "SELECT max(s) m, min(s) l FROM t",
        },
        [
            lambda: copy.put("t", (7, "a "), (8, ""), (9, "A")),
            lambda: copy.put("t", (1, "a "), (2, "a")),
            lambda: copy.cut("t", 3, 5),
        ],
    )


def test_char_is_padded_in_views_as_in_tables(swh: Warehouse) -> None:
    """CHAR compares with padding, against CHAR of another length too; a view shows it padded."""
    swh.sql("CREATE TABLE t (k INT PRIMARY KEY, c CHAR(3), v VARCHAR(3))")
    swh.sql("CREATE TABLE u (k INT PRIMARY KEY, c CHAR(5))")
    swh.sql("INSERT INTO t VALUES (1, 'a', 'a'), (2, 'ab', 'ab ')")
    swh.sql("INSERT INTO u VALUES (1, 'a')")
    texts = {
        "equal": "SELECT k, c FROM t WHERE c = 'a' OR v = 'a '",
        "grouped": "SELECT c, count(*) n, max(v) m FROM t GROUP BY c",
        "joined": "SELECT t.k, u.k o FROM t JOIN u ON t.c = u.c",
        "listed": "SELECT k FROM t WHERE c IN ('ab', 'x')",
    }
    for name, text in texts.items():
        swh.sql(f"CREATE MATERIALIZED VIEW {name} TBLPROPERTIES ('refresh' = 'incremental') AS {text}")
    swh.sql("INSERT INTO t VALUES (3, 'a', 'a '), (4, 'x', 'abc')")
    swh.sql("INSERT INTO u VALUES (2, 'ab')")
    assert exactly(swh.sql("SELECT * FROM equal").collect()) == exactly([(1, "a  "), (3, "a  ")])
    swh.sql("UPDATE t SET c = 'ab' WHERE k = 1")
    assert exactly(swh.sql("SELECT * FROM equal").collect()) == exactly([(3, "a  ")])
    assert exactly(swh.sql("SELECT * FROM grouped").collect()) == exactly(
        [("a  ", 1, "a "), ("ab ", 2, "ab "), ("x  ", 1, "abc")]
    )
    assert exactly(swh.sql("SELECT * FROM joined").collect()) == exactly([(1, 2), (2, 2), (3, 1)])
    assert exactly(swh.sql("SELECT * FROM listed").collect()) == exactly([(1,), (2,), (4,)])
    assert all(swh.check(name).ok for name in texts)
    assert all({j.strategy for j in swh.history(name)} <= {"incremental", "nothing"} for name in texts)


def test_collations_are_refused_where_rows_would_hang_on_them_and_right_elsewhere(
    swh: Warehouse, spark: SparkSession
) -> None:
    with pytest.raises(FreshviewError):
        swh.sql("CREATE TABLE no (s STRING COLLATE UTF8_LCASE)")
    copy = Copy(swh, spark, {"t": "k INT PRIMARY KEY, s STRING"})
    copy.put("t", (1, "a"), (2, "A"), (3, "b"))
    for text in (
        "SELECT s COLLATE UTF8_LCASE AS s FROM t",
        "SELECT DISTINCT s COLLATE UTF8_LCASE AS s FROM t",
        "SELECT s COLLATE UTF8_LCASE AS s, count(*) n FROM t GROUP BY s COLLATE UTF8_LCASE",
        "SELECT count(*) n FROM t GROUP BY s COLLATE UTF8_LCASE",
    ):
        with pytest.raises((TypeMismatch, NotMaintainable)):
            swh.sql(f"CREATE MATERIALIZED VIEW v AS {text}")
    text = "SELECT k, s FROM t WHERE s COLLATE UTF8_LCASE = 'A'"
    swh.sql(f"CREATE MATERIALIZED VIEW v AS {text}")
    copy.put("t", (2, "a"), (4, "A"), (3, "c"))
    assert copy.found("v") == copy.expected(text)


# -- errors in the data ----------------------------------------------------------------------------


def test_an_error_in_the_data_is_told_and_healed(swh: Warehouse, spark: SparkSession) -> None:
    """The job fails with the cause; `any` reads the last good state; a fresh query asks the definition; data heals."""
    copy = Copy(swh, spark, {"t": "k INT PRIMARY KEY, s STRING, n INT"})
    copy.put("t", (1, "1", 1), (2, "2", 0))
    cast = "SELECT cast(s AS INT) i, count(*) c FROM t GROUP BY cast(s AS INT)"
    divided = "SELECT k, 10 / n q FROM t WHERE s <> '2'"
    for name, text in (("numbers", cast), ("quotients", divided), ("plain", "SELECT k FROM t")):
        swh.sql(f"CREATE MATERIALIZED VIEW {name} AS {text}")
    copy.put("t", (3, "three", 3))
    good = copy.expected("SELECT cast(s AS INT) i, count(*) c FROM t WHERE k < 3 GROUP BY cast(s AS INT)")
    with pytest.raises(QueryFailed, match="CAST_INVALID_INPUT"):
        swh.maintain(["numbers"])
    last = swh.history("numbers")[-1]
    assert (last.strategy, "CAST_INVALID_INPUT" in str(last.error)) == ("failed", True)
    assert copy.found("numbers", freshness="any") == good
    with pytest.raises((FreshviewError, PySparkException), match="CAST_INVALID_INPUT"):
        swh.sql("SELECT * FROM numbers").collect()
    assert copy.found("plain") == copy.expected("SELECT k FROM t")
    assert copy.found("quotients") == copy.expected(divided)
    copy.put("t", (4, "4", 0))
    with pytest.raises((FreshviewError, PySparkException), match="DIVIDE_BY_ZERO"):
        swh.sql("SELECT * FROM quotients").collect()
    copy.put("t", (3, "3", 3))
    copy.put("t", (4, "4", 5))
    for name, text in (("numbers", cast), ("quotients", divided)):
        assert copy.found(name) == copy.expected(text)
        assert swh.history(name)[-1].error is None
        assert swh.history(name)[-1].strategy == "incremental"


# -- windows ---------------------------------------------------------------------------------------


_REST = ", g NULLS LAST, v NULLS LAST, s NULLS LAST"


def test_windows_with_ties_break_them_by_the_whole_row(swh: Warehouse, spark: SparkSession) -> None:
    """row_number, lead, first_value, ntile, ROWS frames: as if ORDER BY went on with all columns, NULLs last."""
    copy = Copy(swh, spark, {"t": "g INT, v INT, s STRING"})
    copy.put("t", (1, 1, "b"), (1, 1, "a"), (1, 1, "a"), (1, None, "z"), (2, 1, None), (2, 1, "q"))
    calls = {
        "numbered": "row_number() OVER (PARTITION BY g ORDER BY v{})",
        "next_one": "lead(s) OVER (PARTITION BY g ORDER BY v DESC{})",
        "lagged": "lag(s, 2, '-') OVER (PARTITION BY g ORDER BY v{})",
        "first_one": "first_value(s) OVER (PARTITION BY g ORDER BY v{})",
        "tiles": "ntile(2) OVER (PARTITION BY g ORDER BY v{})",
        "framed": "max(s) OVER (PARTITION BY g ORDER BY v{} ROWS BETWEEN 1 PRECEDING AND CURRENT ROW)",
    }
    for name, call in calls.items():
        text = f"SELECT g, v, s, {call.format('')} r FROM t"
        swh.sql(f"CREATE MATERIALIZED VIEW {name} TBLPROPERTIES ('refresh' = 'incremental') AS {text}")

    def each_is_right() -> None:
        texts = {name: f"SELECT g, v, s, {call.format(_REST)} r FROM t" for name, call in calls.items()}
        for name, expected in copy.all_expected(texts).items():
            assert copy.found(name) == expected, name

    each_is_right()
    copy.put("t", (1, 1, "a"), (2, 1, "q"), (3, None, None))
    each_is_right()
    swh.sql("DELETE FROM t WHERE s = 'a'")
    copy.rows["t"] = [r for r in copy.rows["t"] if r[2] != "a"]
    each_is_right()
    assert all({j.strategy for j in swh.history(name)} <= {"incremental", "nothing"} for name in calls)


def test_windows_over_peers_need_no_tie_break(swh: Warehouse, spark: SparkSession) -> None:
    """Ranks, and aggregates over RANGE frames (the default), treat equal rows alike: plain Spark agrees as it is."""
    copy = Copy(swh, spark, {"t": "g INT, v INT, s STRING"})
    copy.put("t", (1, 1, "b"), (1, 1, "a"), (1, 2, "a"), (1, None, "z"), (2, 1, None))
    follow(
        copy,
        {
            "running": "SELECT g, s, sum(v) OVER (PARTITION BY g ORDER BY v) r FROM t",
            "counted": "SELECT g, s, count(*) OVER (PARTITION BY g ORDER BY v DESC) r FROM t",
            "near": "SELECT g, s, min(s) OVER (PARTITION BY g ORDER BY v RANGE BETWEEN 1 PRECEDING AND CURRENT ROW) r"
            " FROM t",
            "ranks": "SELECT g, s, rank() OVER (PARTITION BY g ORDER BY v) r,"
            " dense_rank() OVER (PARTITION BY g ORDER BY v) d, percent_rank() OVER (PARTITION BY g ORDER BY v) p,"
            " cume_dist() OVER (PARTITION BY g ORDER BY v) c FROM t",
            "whole": "SELECT g, v, sum(v) OVER (PARTITION BY g) r FROM t",
        },
        [lambda: copy.put("t", (1, 1, "b"), (2, 1, "x"), (2, 0, "x"), (3, None, None))],
    )


# -- random views over random statements -----------------------------------------------------------

_TYPES = {"int": "INT", "text": "STRING", "double": "DOUBLE"}


def _literal(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, Double):
        return f"CAST('{value.text}' AS DOUBLE)".replace("'inf'", "'Infinity'").replace("'-inf'", "'-Infinity'")
    return repr(value)


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, Double) else value


@st.composite
def statements(draw: st.DrawFn, table: str) -> tuple[Any, ...]:
    """INSERT of rows; DELETE or UPDATE of those that have a value in a column."""
    names = SCHEMAS[table]
    match draw(st.sampled_from(["insert", "insert", "delete", "update"])):
        case "insert":
            row = st.tuples(*(VALUES[kind_of(c)] for c in names))
            return "insert", table, draw(st.lists(row, min_size=1, max_size=3))
        case "delete":
            place = draw(st.integers(0, len(names) - 1))
            return "delete", table, place, draw(VALUES[kind_of(names[place])])
    place, target = draw(st.integers(0, len(names) - 1)), draw(st.integers(0, len(names) - 1))
    given_ = draw(VALUES[kind_of(names[place])])
    return "update", table, place, given_, target, draw(VALUES[kind_of(names[target])])


def _apply(wh: Warehouse, rows: dict[str, list[Row]], statement: tuple[Any, ...]) -> None:
    kind, table, *rest = statement
    names = SCHEMAS[table]
    if kind == "insert":
        with wh.transaction() as tx:
            tx.insert(table, [dict(zip(names, map(_plain, r), strict=True)) for r in rest[0]])
        rows[table] = rows[table] + rest[0]
        return
    place, value = rest[:2]
    hit = [rank(r[place]) == rank(value) for r in rows[table]]
    where = f"{names[place]} <=> {_literal(value)}"
    if kind == "delete":
        wh.sql(f"DELETE FROM {table} WHERE {where}")
        rows[table] = [r for r, h in zip(rows[table], hit, strict=True) if not h]
    else:
        target, new = rest[2:]
        wh.sql(f"UPDATE {table} SET {names[target]} = {_literal(new)} WHERE {where}")
        rows[table] = [(*r[:target], new, *r[target + 1 :]) if h else r for r, h in zip(rows[table], hit, strict=True)]


def _columns(table: str) -> str:
    return ", ".join(f"{c} {_TYPES[kind_of(c)]}" for c in SCHEMAS[table])


def _answer(spark: SparkSession, text: str, rows: Mapping[str, list[Row]]) -> Found:
    tables = {table: [tuple(map(_plain, r)) for r in found] for table, found in rows.items()}
    return exactly(with_tables(spark, {t: _columns(t) for t in tables}, tables).sql(text).collect())


_tables = st.sampled_from(sorted(SCHEMAS))
_runs = st.lists(st.lists(_tables.flatmap(statements), min_size=1, max_size=3), min_size=2, max_size=2)


@settings(
    deadline=None,
    max_examples=examples(5, commit=3),
    print_blob=True,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
)
@given(text=views(), first=st.lists(_tables.flatmap(statements), max_size=4), runs=_runs)
def test_random_views_equal_spark_after_random_statements(
    swh: Warehouse, spark: SparkSession, text: str, first: list[Any], runs: list[list[Any]]
) -> None:
    """A failure prints the view, the statements, and the blob that replays it."""
    swh.sql("DROP MATERIALIZED VIEW IF EXISTS random_view")
    rows: dict[str, list[Row]] = {t: [] for t in SCHEMAS}
    for table in SCHEMAS:
        swh.sql(f"DROP TABLE IF EXISTS {table}")
        swh.sql(f"CREATE TABLE {table} ({_columns(table)})")
    for statement in first:
        _apply(swh, rows, statement)
    try:
        expected = _answer(spark, text, rows)
    except PySparkException as error:
        note(f"Spark refuses it: {error.getCondition()}")
        assume(False)
        raise
    swh.sql(f"CREATE MATERIALIZED VIEW random_view AS {text}")
    assert exactly(swh.sql("SELECT * FROM random_view").collect()) == expected
    for run in runs:
        for statement in run:
            _apply(swh, rows, statement)
        found = exactly(swh.sql("SELECT * FROM random_view").collect())
        assert swh.history("random_view")[-1:] == [] or swh.history("random_view")[-1].error is None
        assert found == _answer(spark, text, rows)


def test_dates_and_nested_values_pass_through(swh: Warehouse, spark: SparkSession) -> None:
    """Arrays, maps and structs, with NaN and NULL inside, are kept, exploded and compared as Spark does."""
    copy = Copy(swh, spark, {"t": "k INT PRIMARY KEY, d DATE, a ARRAY<DOUBLE>"})
    copy.put("t", (1, date(2024, 2, 29), [1.0, nan, None]), (2, None, []), (3, date(1, 1, 1), None))
    follow(
        copy,
        {
            "passed": "SELECT k, d + INTERVAL 1 YEAR y, a, named_struct('x', k, 'y', a) s FROM t",
            "mapped": "SELECT k, map('a', a[0], 'b', -0.0D) m FROM t WHERE size(a) > 0",
            "exploded": "SELECT k, e FROM t LATERAL VIEW OUTER explode(a) x AS e",
            "grouped": "SELECT a, count(*) n FROM t GROUP BY a",
        },
        [lambda: copy.put("t", (1, None, [0.0, -0.0]), (4, date(2023, 1, 1), [nan])), lambda: copy.cut("t", 2, 4)],
    )
