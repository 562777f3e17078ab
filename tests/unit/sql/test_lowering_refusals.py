"""Texts that lowering refuses or leaves to Spark: the reason names the construct."""

from __future__ import annotations

import pytest
from tests.unit.sql.view_grammar import SCHEMAS

from freshview.errors import InvalidStatement
from freshview.sql.lowering import Unsupported, lower

REASONS = {
    "WITH RECURSIVE r AS (SELECT 1 AS x UNION ALL SELECT x + 1 FROM r) SELECT x FROM r": "recursive",
    "SELECT a FROM (SELECT a, b, c FROM t) PIVOT (SUM(b) FOR c IN ('x', 'y'))": "PIVOT",
    "SELECT a FROM t DISTRIBUTE BY a": "DISTRIBUTE",
    "SELECT a FROM t SORT BY a": "SORT",
    "SELECT a FROM other.t": "other.t",
    "SELECT id FROM range(3)": "range",
    "SELECT x.a FROM t x NATURAL JOIN (SELECT a FROM u) y": "NATURAL",
    "SELECT a FROM t WHERE NOT (a IN (SELECT d FROM u) OR b = 1)": "IN (query)",
    "SELECT a IN (SELECT d FROM u) AS x FROM t": "IN (query)",
    "SELECT EXISTS (SELECT d FROM u) AS x FROM t": "EXISTS",
    "SELECT a FROM t WHERE (a, b) NOT IN (SELECT a, d FROM u)": "NOT IN over several columns",
    "SELECT a FROM t WHERE a IN (SELECT d FROM u WHERE u.a = t.a ORDER BY d LIMIT 1)": "IN over a correlated",
    "SELECT a FROM t WHERE a IN (SELECT SUM(d) FROM u WHERE u.a = t.a)": "IN over a correlated",
    "SELECT a FROM t WHERE a IN (SELECT RANK() OVER (ORDER BY d) FROM u WHERE u.a = t.a)": "IN over a correlated",
    "SELECT a FROM t WHERE EXISTS (SELECT COUNT(*) FROM u WHERE u.a = t.a)": "EXISTS over a correlated",
    "SELECT a FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.a = t.a OFFSET 1)": "EXISTS over a correlated",
    "SELECT a FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.a = t.a UNION SELECT 1 FROM v)": "EXISTS over a correlated",
    "SELECT (SELECT d FROM u WHERE u.a = t.a) AS x FROM t": "scalar subquery that is not a single aggregate",
    "SELECT (SELECT COUNT(*) FROM u WHERE u.d > t.b) AS x FROM t": "more than equality",
    "SELECT a FROM t WHERE EXISTS (SELECT 1 FROM u WHERE EXISTS (SELECT 1 FROM v WHERE v.b = t.b))": "outer query",
    "SELECT a FROM t WHERE EXISTS (SELECT 1 FROM u JOIN v ON v.b = t.b)": "outer query",
    "SELECT a FROM t UNION ALL SELECT a FROM u ORDER BY a + 1 LIMIT 3": "LIMIT of a set operation",
    "SELECT DISTINCT a FROM t ORDER BY b LIMIT 1": "DISTINCT in the order",
    "SELECT a, b AS `All` FROM t ORDER BY ALL LIMIT 1": "ORDER BY ALL beside a column",
    "SELECT a, (SELECT MAX(d) FROM u) AS m FROM t ORDER BY ALL LIMIT 1": "ORDER BY ALL over subqueries",
    "SELECT a, explode(array(b)) AS e FROM t ORDER BY ALL LIMIT 1": "ORDER BY ALL over",
    "SELECT a FROM t ORDER BY a LIMIT 1 + 1": "LIMIT",
    "SELECT COUNT(*) AS n FROM t GROUP BY GROUPING SETS ((), ())": "GROUPING SETS (())",
    "SELECT SUM((SELECT MAX(d) FROM u)) AS s FROM t": "subquery inside an aggregate",
    "SELECT col FROM t LATERAL VIEW explode(array(a, b)) e": "cannot be resolved",
    "SELECT a FROM t WHERE c = 'it''s'": "doubled quotes",
}


@pytest.mark.parametrize("text", REASONS)
def test_what_has_no_algebra_is_named(text: str) -> None:
    """Unsupported, with a reason that names the construct; such a view is recomputed."""
    with pytest.raises(Unsupported) as caught:
        lower(text, SCHEMAS)
    assert REASONS[text].casefold() in str(caught.value).casefold()


@pytest.mark.parametrize(
    "text",
    [
        "SELECT a FROM t LIMIT 3",
        "SELECT a FROM t OFFSET 3",
        "SELECT a FROM (SELECT a FROM t LIMIT 3)",
        "(SELECT a FROM t) LIMIT 3",
        "SELECT a FROM t UNION ALL SELECT a FROM u LIMIT 3",
        "SELECT DISTINCT a FROM t LIMIT 3",
        "SELECT COUNT(*) FROM t GROUP BY a LIMIT 3",
        "SELECT COUNT(*) AS n FROM t UNION ALL SELECT a FROM u LIMIT 3",
        "SELECT COUNT(*) OVER () AS n FROM t LIMIT 3",
        "SELECT a, (SELECT COUNT(*) FROM u) AS n FROM t LIMIT 3",
        "SELECT x.n FROM (SELECT COUNT(*) AS n FROM t) x, u LIMIT 3",
        "SELECT x.n FROM (SELECT COUNT(*) AS n FROM t) x FULL JOIN (SELECT COUNT(*) AS m FROM u) y ON n = m LIMIT 1",
        "SELECT EXPLODE(ARRAY(COUNT(*), 1)) AS n FROM t LIMIT 3",
        "SELECT x.n FROM (SELECT COUNT(*) AS n FROM t) x LATERAL VIEW EXPLODE(ARRAY(1, 2)) e AS i LIMIT 1",
        "SELECT COUNT(*) AS n FROM t LIMIT 0",
        "SELECT COUNT(*) AS n FROM t LIMIT 1 OFFSET 1",
        "SELECT a FROM t WHERE a IN (SELECT d FROM u LIMIT 1)",
        "SELECT a FROM t TABLESAMPLE (10 PERCENT) LIMIT 1",
    ],
)
def test_limit_without_order_is_refused(text: str) -> None:
    """Which rows it keeps is not determined, wherever it stands; the error says what to do."""
    with pytest.raises(InvalidStatement, match=r"LIMIT without ORDER BY: .* Add an ORDER BY"):
        lower(text, SCHEMAS)


@pytest.mark.parametrize(
    "text",
    [
        "SELECT a FROM t TABLESAMPLE (10 PERCENT)",
        "SELECT a FROM t TABLESAMPLE (3 ROWS) REPEATABLE (7)",
        "SELECT a FROM t WHERE a IN (SELECT d FROM u TABLESAMPLE (50 PERCENT))",
    ],
)
def test_a_sample_is_refused(text: str) -> None:
    """A recomputed sample would be another one each time."""
    with pytest.raises(InvalidStatement, match=r"TABLESAMPLE: .* not determined.*choose rows by a condition"):
        lower(text, SCHEMAS)


@pytest.mark.parametrize("name", ["localtimestamp", "CURRENT_TIME", "user"])
def test_a_name_that_is_no_column_but_a_call_is_refused(name: str) -> None:
    """A name such as `user` is refused as a call that the tables do not determine, unless it is a column."""
    with pytest.raises(InvalidStatement, match="not determined by the tables"):
        lower(f"SELECT a, {name} AS x FROM t", SCHEMAS)
    assert lower(f"SELECT {name} AS x FROM t", {"t": (name,)}).outputs[0][1] == "x"


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("to_char(a, '99')", "ToChar"),
        ("percentile_cont(0.5) WITHIN GROUP (ORDER BY a)", "percentile_cont"),
        ("max_by(a, b, 2)", "ArgMax"),
        ("parse_json(c)", "parse_json"),
        ("date_format(c, 'y')", "string 'y'"),
        ("to_date(c, 'yyyy-MM-dd')", "string 'yyyy-MM-dd'"),
        ("array_size(array(a))", "array_size"),
        ("CAST(c AS TIME)", "TIME"),
        ("'it''s'", "doubled quotes"),
        ("a / 3L", "suffix L"),
        ("a / -3s", "suffix s"),
        ("try_divide(a, 3Y)", "suffix Y"),
        ("a / +3", r"a sign \+"),
        ("b + (+ 3)", r"a sign \+"),
        ("+a", r"a sign \+"),
    ],
)
def test_what_the_parser_would_change_is_not_lowered(expression: str, reason: str) -> None:
    """Spark gets the text as it was written instead."""
    with pytest.raises(Unsupported, match=reason):
        lower(f"SELECT {expression} AS x FROM t", SCHEMAS)


@pytest.mark.parametrize(
    "expression",
    [
        "nvl(a, b)",
        "substr(c, 1, 2)",
        "named_struct('x', a)",
        "date_trunc('month', c)",
        "a + INTERVAL 1 DAY",
        "a::int",
        "DATE '2020-01-01'",
        "c LIKE 'a!%' ESCAPE '!'",
        "'it' 's'",
        "'a\\'b\\n'",
        "if(a > 1, 'x', \"y\")",
        "1.5D + 1",
        "a + 1::bigint",
        "date_format(c, 'yyyy-MM-dd')",
        "cast(a AS decimal(10, 2))",
        "transform(array(a), x -> x + 1)",
    ],
)
def test_what_is_only_spelled_otherwise_is_lowered(expression: str) -> None:
    assert lower(f"SELECT {expression} AS x FROM t", SCHEMAS).outputs[0][1] == "x"


def test_what_spark_names_otherwise_is_no_algebra() -> None:
    """A number or an order of columns that is not Spark's would be a wrong view."""
    text = "SELECT a, b + 1, c AS x FROM t"
    assert lower(text, SCHEMAS, ("a", "(b + 1)", "X"))
    for names in (("a", "(b + 1)"), ("x", "(b + 1)", "a"), ("a", "(b + 1)", "x", "y")):
        with pytest.raises(Unsupported, match="Spark gives"):
            lower(text, SCHEMAS, names)


@pytest.mark.parametrize(
    "expression", ["a | b & 1", "a ^ b & 1", "a & b << 1", "a = b IN (true)", "a < b BETWEEN 1 AND 2"]
)
def test_operators_that_spark_binds_otherwise_are_not_lowered(expression: str) -> None:
    """Precedence differs between the parser and Spark: without brackets such an expression is Spark's alone."""
    with pytest.raises(Unsupported, match="without brackets"):
        lower(f"SELECT {expression} AS x FROM t", {"t": ("a", "b", "c")})


@pytest.mark.parametrize("expression", ["a | (b & 1)", "a & b & 1", "(a = b) IN (true)", "a + 1 & b", "a & b = 1"])
def test_operators_with_brackets_are_lowered(expression: str) -> None:
    lower(f"SELECT {expression} AS x FROM t", {"t": ("a", "b", "c")})


def test_deep_nesting_is_left_to_spark() -> None:
    """Python's stack ends; tests/spark/test_unread_texts.py has such a view, and queries that Spark refuses too."""
    with pytest.raises(Unsupported, match="nested so deeply"):
        lower("SELECT a FROM " + "(SELECT a FROM " * 300 + "t" + ")" * 300, {"t": ("a",)})


@pytest.mark.parametrize("limit", ["LIMIT 0", "LIMIT 1 OFFSET 1"])
def test_limits_in_exists_that_matter_are_not_lowered(limit: str) -> None:
    with pytest.raises(Unsupported, match="ORDER BY"):
        lower(f"SELECT a FROM t WHERE EXISTS (SELECT 1 FROM u {limit})", {"t": ("a",), "u": ("a",)})
