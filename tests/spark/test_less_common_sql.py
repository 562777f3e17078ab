"""Less common SQL: a view equals its own text, run by plain Spark over the same rows, whatever changed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.effort import IS_SOAK
from tests.spark.less_common import CASES, UNTESTED, Kept
from tests.spark.sessions import apart, rows, setting

import freshview
from freshview import Warehouse
from freshview.definition import reading

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def kept(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, spark: SparkSession
) -> Iterator[Kept]:
    """The cases that are run, without self-tests, which would have a case recomputed that is lowered wrong."""
    asked = [item for item in request.session.items if isinstance(item, pytest.Function) and hasattr(item, "callspec")]
    chosen = {item.callspec.params.get("name") for item in asked}
    folder: Path = tmp_path_factory.mktemp("reading")
    with (
        pytest.MonkeyPatch.context() as patch,
        freshview.connect(folder / "warehouse", spark=spark) as warehouse,
    ):
        patch.setattr(reading, "SELFTEST", "off")
        kept = Kept(warehouse, apart(spark), at_every_step=IS_SOAK)
        kept.run({name: definition for name, definition in CASES.items() if name in chosen})
        yield kept


@pytest.mark.parametrize("name", CASES)
def test_a_view_equals_its_text(kept: Kept, name: str) -> None:
    kept.require_equal(name)
    kept.require_way(name)


_COMPARED = (
    "SELECT id FROM {low} WHERE k = 'a'",
    "SELECT k, count(*) AS n FROM {low} GROUP BY k HAVING k = 'b'",
    "SELECT l.id, w.id AS wide FROM {low} AS l JOIN w ON l.k = w.k",
    "SELECT CASE k WHEN 'a' THEN 1 ELSE 2 END AS n FROM {low}",
)


@pytest.mark.parametrize(
    "low", ["SELECT id, k FROM e WHERE id < 100", "SELECT id, k FROM e UNION ALL SELECT id + 100, k FROM w"]
)
def test_char_columns_are_compared_with_padding_above_a_view_too(swh: Warehouse, low: str) -> None:
    """CHAR columns compare with padding above a view, also where a UNION's values are longer than its type."""
    swh.sql("CREATE TABLE e (id INT PRIMARY KEY, k CHAR(3))")
    swh.sql("CREATE TABLE w (id INT PRIMARY KEY, k CHAR(5))")
    swh.sql("INSERT INTO e VALUES (1, 'a'), (2, 'b')")
    swh.sql("INSERT INTO w VALUES (1, 'a'), (2, 'abcd')")
    swh.sql(f"CREATE MATERIALIZED VIEW low {UNTESTED} AS {low}")
    for place, query in enumerate(_COMPARED):
        swh.sql(f"CREATE MATERIALIZED VIEW high{place} {UNTESTED} AS {query.format(low='low')}")
    for statement in ("INSERT INTO e VALUES (3, 'a'), (4, 'b')", "DELETE FROM e WHERE id = 1"):
        for place, query in enumerate(_COMPARED):
            expected = rows(swh, query.format(low=f"({low})"))
            assert expected, query
            assert rows(swh, f"SELECT * FROM high{place}") == expected, (query, statement)
            assert rows(swh, query.format(low="low")) == expected, (query, statement)
        swh.sql(statement)
    for place, query in enumerate(_COMPARED):
        assert rows(swh, f"SELECT * FROM high{place}") == rows(swh, query.format(low=f"({low})")), query


def test_in_over_char_columns_of_another_length_now_and_then(swh: Warehouse) -> None:
    """IN (query) does not pad as `=` does. A view shows its text's rows now, and as of a version those of then."""
    swh.sql("CREATE TABLE e (id INT PRIMARY KEY, k CHAR(3))")
    swh.sql("CREATE TABLE w (id INT PRIMARY KEY, k CHAR(5))")
    swh.sql("INSERT INTO e VALUES (1, 'a'), (2, 'b'), (3, 'abc'), (4, NULL)")
    swh.sql("INSERT INTO w VALUES (1, 'a'), (2, 'abc'), (3, 'abcde')")
    texts = [
        "SELECT id FROM e WHERE k IN (SELECT k FROM w)",
        "SELECT id FROM w WHERE k IN (SELECT k FROM e)",
        "SELECT id FROM e WHERE k NOT IN (SELECT k FROM w WHERE k IS NOT NULL)",
        "SELECT id FROM e WHERE k IN (SELECT rtrim(k) FROM w)",
        "SELECT k, count(*) AS n FROM e GROUP BY k HAVING k = 'a'",
        "SELECT e.id, w.id AS wide FROM e JOIN w ON e.k = w.k",
    ]
    for place, text in enumerate(texts):
        swh.sql(f"CREATE MATERIALIZED VIEW v{place} {UNTESTED} AS {text}")
    versions = []
    for change in ("INSERT INTO e VALUES (5, 'a')", "UPDATE w SET k = 'b' WHERE id = 1", "DELETE FROM e WHERE id = 3"):
        versions.append(swh.sql(change).csn)
        for place, text in enumerate(texts):
            assert rows(swh, f"SELECT * FROM v{place}") == rows(swh, text), (text, change)
    for csn in versions if IS_SOAK else versions[:1]:
        for place, text in enumerate(texts):
            assert rows(swh, f"SELECT * FROM v{place}", as_of=csn) == rows(swh, text, as_of=csn), (text, csn)


LAX = {"spark__sql__ansi__enabled": "false", "spark__sql__decimalOperations__allowPrecisionLoss": "false"}


def test_averages_of_long_decimals_have_room_for_all_digits(swh: Warehouse, spark: SparkSession) -> None:
    with setting(spark, **LAX):
        swh.sql("CREATE TABLE n (id INT, k INT, x DECIMAL(20, 0), PRIMARY KEY (id))")
        swh.sql("INSERT INTO n VALUES (1, 1, 99999999999999999999), (2, 1, 99999999999999999997), (3, 2, 1)")
        query = "SELECT k, avg(x) AS m FROM n GROUP BY k"
        swh.sql(f"CREATE MATERIALIZED VIEW v {UNTESTED} AS {query}")
        for statement in ("INSERT INTO n VALUES (4, 1, 99999999999999999990), (5, 2, 2)", "DELETE FROM n WHERE id = 1"):
            swh.sql(statement)
            assert rows(swh, "SELECT * FROM v") == rows(swh, query)


def test_in_without_ansi_converts_to_strings(swh: Warehouse, spark: SparkSession) -> None:
    with setting(spark, **LAX):
        swh.sql("CREATE TABLE n (id INT, k INT, s STRING, PRIMARY KEY (id))")
        swh.sql("INSERT INTO n VALUES (1, 1, '01'), (2, 2, '2'), (3, 3, 'x')")
        queries = (
            "SELECT id FROM n WHERE k IN (SELECT s FROM n)",
            "SELECT id FROM n WHERE s NOT IN (SELECT k FROM n)",
            "SELECT s AS x FROM n EXCEPT SELECT k FROM n",
        )
        for place, query in enumerate(queries):
            swh.sql(f"CREATE MATERIALIZED VIEW v{place} {UNTESTED} AS {query}")
        for statement in ("INSERT INTO n VALUES (4, 4, '1'), (5, 5, '05')", "DELETE FROM n WHERE id = 2"):
            swh.sql(statement)
            for place, query in enumerate(queries):
                assert rows(swh, f"SELECT * FROM v{place}") == rows(swh, query)


def test_dates_beyond_pythons_calendar_are_tested_kept_and_checked(swh: Warehouse) -> None:
    """Spark's dates reach further than Python's: in rows that self-tests, jobs and checks compare, also nested ones."""
    swh.sql("CREATE TABLE t (id INT, k INT, d DATE, PRIMARY KEY (id))")
    swh.sql("INSERT INTO t VALUES (1, 1, DATE'2024-01-01'), (2, 1, NULL), (3, 2, DATE'2024-01-02')")
    far = "sort_array(collect_list(date_add(d, 3000000))) AS fars, max(date_add(d, 3000000)) AS far"
    text = f"SELECT k, {far} FROM t GROUP BY k"
    swh.sql(f"CREATE MATERIALIZED VIEW v TBLPROPERTIES ('selftest' = 'on') AS {text}")
    assert "reading: tested on" in swh.explain("v")
    shown = "SELECT k, CAST(fars AS STRING) AS fars, CAST(far AS STRING) AS far"
    for change in ("INSERT INTO t VALUES (4, 1, DATE'2025-01-01')", "DELETE FROM t WHERE id = 3", "UPDATE t SET k = 2"):
        swh.sql(change)
        assert rows(swh, f"{shown} FROM v") == rows(swh, f"{shown} FROM ({text})")
        assert swh.history("v")[-1].strategy == "incremental"
    assert swh.check("v").ok


def test_not_in_over_floating_numbers_is_sparks_own(swh: Warehouse) -> None:
    """Spark's NOT IN (query) compares bits, so that -0.0 is not in a list with 0.0; every other equality of its finds
    them equal, and so would delta rules."""
    for type_, value in (("FLOAT", "CAST({} AS FLOAT)"), ("ARRAY<DOUBLE>", "array(CAST({} AS DOUBLE))")):
        minus, zero = value.format("'-0.0'"), value.format("'0.0'")
        for name in ("a", "b"):
            swh.sql(f"CREATE TABLE {name} (id INT, x {type_}, PRIMARY KEY (id))")
        texts = [
            "SELECT id, x FROM a WHERE x NOT IN (SELECT x FROM b)",
            "SELECT id FROM a WHERE NOT x IN (SELECT x FROM b WHERE x IS NOT NULL)",
        ]
        for place, text in enumerate(texts):
            swh.sql(f"CREATE MATERIALIZED VIEW v{place} AS {text}")
            assert "NOT IN (query) over" in swh.explain(f"v{place}")
        for change in (
            f"INSERT INTO a VALUES (1, {minus}), (2, {zero})",
            f"INSERT INTO b VALUES (1, {zero})",
            f"INSERT INTO b VALUES (2, {minus})",
            "DELETE FROM b WHERE id = 1",
        ):
            swh.sql(change)
            for place, text in enumerate(texts):
                assert rows(swh, f"SELECT * FROM v{place}") == rows(swh, text), (type_, change)
        for name in ("MATERIALIZED VIEW v0", "MATERIALIZED VIEW v1", "TABLE a", "TABLE b"):
            swh.sql(f"DROP {name}")


def test_a_grouping_that_sparks_optimiser_drops_leaves_minus_zero(swh: Warehouse) -> None:
    """Groups make 0.0 of -0.0, but not where Spark finds a constant or a single row; delta rules would not know."""
    swh.sql("CREATE TABLE t (id INT, x DOUBLE, PRIMARY KEY (id))")
    minus = "CAST('-0.0' AS DOUBLE)"
    texts = [
        f"SELECT DISTINCT nanvl({minus}, 0.5D) AS x, n FROM t FULL JOIN (VALUES (1, 'a')) AS k(n, s) ON t.id = k.n",
        f"SELECT DISTINCT c FROM (SELECT {minus} AS c, id FROM t)",
        "SELECT DISTINCT m FROM (SELECT max(x) AS m FROM t)",
        f"SELECT {minus} AS c FROM t EXCEPT SELECT 1.0D FROM t WHERE id > 5",
        f"SELECT struct({minus}) AS c, count(*) AS n FROM t GROUP BY 1",
    ]
    for place, text in enumerate(texts):
        swh.sql(f"CREATE MATERIALIZED VIEW v{place} AS {text}")
        assert "-0.0 may stay" in swh.explain(f"v{place}"), text
    swh.sql("CREATE MATERIALIZED VIEW plain AS SELECT DISTINCT x, x + 1 AS y FROM t")
    assert "-0.0 may stay" not in swh.explain("plain")
    for change in ("INSERT INTO t VALUES (1, -0.0D)", "INSERT INTO t VALUES (2, -0.0D), (6, 1.0D)", "DELETE FROM t"):
        swh.sql(change)
        for place, text in enumerate(texts):
            assert rows(swh, f"SELECT * FROM v{place}") == rows(swh, text), (text, change)
        assert swh.check("plain").ok
