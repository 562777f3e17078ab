"""What a query asks of a view's rows: found where it is certain, and nowhere else."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from sqlglot import exp
from tests.effort import examples
from tests.unit.algebra.oracle import Bag, evaluate, scalar
from tests.unit.sql.view_grammar import SCHEMAS, State, reading, states, views

from freshview.sql.lowering import lower
from freshview.sql.predicates import asked_of
from freshview.sql.rendering import text as rendered

_COLUMNS = ("k", "City", "total", "d", "ts")


def asked(query: str) -> list[str] | None:
    found = asked_of(query, "v", _COLUMNS)
    return None if found is None else [rendered(c).replace("`", "") for c in found]


_FOUND = {
    "SELECT * FROM v": [],
    "SELECT * FROM v WHERE k = 3": ["k = 3"],
    "select total from V where K=3 and CITY in ('A', 'B')": ["k = 3", "City IN ('A', 'B')"],
    "SELECT count(*) FROM v WHERE v.k = 3 GROUP BY city HAVING sum(total) > 1 ORDER BY 1 LIMIT 2": ["k = 3"],
    "SELECT * FROM v AS x WHERE x.k BETWEEN 1 AND 2 AND (x.total < 5 OR x.k IS NULL)": [
        "k BETWEEN 1 AND 2",
        "total < 5 OR k IS NULL",
    ],
    "SELECT * FROM v WHERE NOT (k = 3) AND k <=> NULL AND City LIKE 'A%' AND City NOT IN ('B') AND k <> -1": [
        "NOT (k = 3)",
        "k IS NOT DISTINCT FROM NULL",
        "City LIKE 'A%'",
        "NOT City IN ('B')",
        "k <> -1",
    ],
    "SELECT * FROM v WHERE d >= DATE'2020-01-01' AND CAST(k AS STRING) = '3' AND total * 2 + 1 > 1.5": [
        "d >= CAST('2020-01-01' AS DATE)",
        "CAST(k AS STRING) = '3'",
        "total * 2 + 1 > 1.5",
    ],
    "SELECT * FROM v WHERE CASE WHEN k = 1 THEN TRUE ELSE City = 'A' END": [
        "CASE WHEN k = 1 THEN TRUE ELSE City = 'A' END",
    ],
    "SELECT * FROM v JOIN t ON v.k = t.k AND v.city = 'A' WHERE v.total > 1 AND t.x = 2": ["total > 1", "City = 'A'"],
    "SELECT * FROM t, v WHERE v.k = 3": ["k = 3"],
    "SELECT * FROM v LEFT JOIN t ON v.k = 3 AND v.k = t.k WHERE v.city = 'A'": ["City = 'A'"],
    "SELECT * FROM t LEFT JOIN u ON t.a = u.a JOIN v ON v.k = u.k WHERE v.k = 3": ["k = 3"],
    "SELECT * FROM v CROSS JOIN (SELECT 1 AS k) q WHERE v.k = 3": ["k = 3"],
    "SELECT * FROM (SELECT * FROM v WHERE k = 3) WHERE city = 'A'": ["k = 3"],
    "WITH q AS (SELECT * FROM v WHERE k = 3) SELECT * FROM q a JOIN q b ON a.k = b.k": ["k = 3"],
    "SELECT * FROM t WHERE NOT EXISTS (SELECT 1 FROM v WHERE v.k = t.k AND v.city = 'A')": ["City = 'A'"],
    "SELECT k FROM t UNION ALL SELECT k FROM v WHERE k = 3": ["k = 3"],
}


@pytest.mark.parametrize("query", _FOUND)
def test_conditions_that_are_certain(query: str) -> None:
    assert asked(query) == _FOUND[query]


# fmt: off
UNCERTAIN = [
    "upper(city) = 'A'", "rand() < 0.5", "k = rand()", "coalesce(k, 1) = 1", "if(k = 1, true, false)",  # calls
    "sum(k) OVER () = 3", "k IN (SELECT k FROM t)", "k = (SELECT 1)", "EXISTS (SELECT 1 FROM t)",
    "q.k = 3", "other = 3", "v.other = 3", "city.x = 1", "v.city.x = 1", "c.v.k = 3",  # names that may be others'
    "1 = 0", "FALSE",  # nothing of the view's
    "k = total < 5", "k < total = TRUE", "k < 1e3", "k = 1 = TRUE",  # that another parser reads otherwise
    "city = r'A'", "city = X'41'", "city LIKE ANY ('A', 'B')", "city RLIKE 'A'", "k & 1 = 1", "k DIV 2 = 1",
    "d = 'today'", "d >= DATE'yesterday'", "ts < ' Now UTC'",  # other rows when the result is looked at later
    "ts > '06:00:00'",
    "ts > TIMESTAMP 'T06:00'", "ts BETWEEN ' 6:0' AND '2030-01-01'", "ts IN ('06:00 UTC')",
    "CAST(city AS CHAR(3)) = 'A'", "ts > ts - INTERVAL 1 DAY", "array(k)[0] = 1", "k IS DISTINCT FROM 3",
]
# fmt: on


@pytest.mark.parametrize("condition", UNCERTAIN)
def test_conditions_that_are_not(condition: str) -> None:
    """An uncertain condition is left out, and the certain one beside it stays."""
    assert asked(f"SELECT * FROM v WHERE {condition} AND k = 3") in (["k = 3"], None)
    assert asked(f"SELECT * FROM v WHERE {condition}") in ([], None)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM v a JOIN v b ON a.k = b.k WHERE a.k = 3",  # two references
        "SELECT * FROM v WHERE k = 3 AND k IN (SELECT k FROM V)",
        "SELECT * FROM v WHERE k = 3 UNION ALL SELECT * FROM v VERSION AS OF 3 WHERE k = 3",
        "WITH v AS (SELECT 1 AS k) SELECT * FROM v WHERE k = 3",  # another v
        "SELECT * FROM t JOIN (WITH v AS (SELECT 1 AS k) SELECT k FROM v) ON TRUE WHERE k = 3",
        "SELECT * FROM s.v WHERE k = 3",
        "SELECT * FROM t LEFT JOIN v ON t.k = v.k WHERE v.k IS NULL",  # padded
        "SELECT * FROM v RIGHT JOIN t ON t.k = v.k WHERE v.k IS NULL",
        "SELECT * FROM v FULL JOIN t ON t.k = v.k WHERE v.k IS NULL",
        "SELECT * FROM v LEFT SEMI JOIN t ON t.k = v.k WHERE v.k = 3",
        "SELECT * FROM t LEFT ANTI JOIN v ON t.k = v.k AND v.k = 3",
        "SELECT * FROM v NATURAL JOIN t WHERE v.k = 3",
        "SELECT * FROM v JOIN t USING (k) WHERE v.k = 3",
        "SELECT * FROM v, LATERAL (SELECT v.k + 1 AS j) q WHERE v.k = 3",
        "SELECT * FROM v LATERAL VIEW explode(array(1, 2)) e AS k WHERE k = 3",
        "SELECT * FROM (v JOIN t ON v.k = t.k) WHERE v.k = 3",
        "SELECT * FROM t JOIN v LEFT JOIN u ON v.k = u.k ON t.k = v.k WHERE v.k = 3",
        "SELECT * FROM v AS x(city, k) WHERE x.k = 3",
        "SELECT * FROM v JOIN t AS v ON TRUE WHERE v.k = 3",
        "SELECT * FROM v TABLESAMPLE (10 ROWS) WHERE k = 3",
        "SELECT * FROM v PIVOT (sum(total) FOR city IN ('A', 'B')) WHERE k = 3",
        "SELECT * FROM v VERSION AS OF 3 WHERE k = 3",
        "SELECT * FROM v TIMESTAMP AS OF '2020-01-01' WHERE k = 3",
        'SELECT * FROM v WHERE "k" = 3',  # a name or a string, as the session likes
        "SELECT * FROM v WHERE city = 'A\\'B'",
        "FROM v |> WHERE k = 3",
        "TABLE v",
        "EXPLAIN SELECT * FROM v WHERE k = 3",
        "SELECT * FROM v WHERE city = 'it''s'",  # read otherwise here
        "SELECT * FROM v WHERE k = 3 AND",
        "INSERT INTO t SELECT * FROM v WHERE k = 3",
    ],
)
def test_queries_that_tell_nothing(query: str) -> None:
    assert asked(query) is None


def test_a_condition_is_over_the_views_own_names() -> None:
    (condition,) = asked_of("SELECT * FROM v WHERE V.CITY = 'A'", "v", _COLUMNS) or []
    assert rendered(condition) == "`City` = 'A'"


def test_a_query_sees_no_more_of_a_view_than_it_asks_for() -> None:
    """Law: Q(V) = Q(σ_p(V)), for random queries and each of the relations that they read; half of them ask for a part
    of one relation."""
    selective: list[str] = []

    @settings(deadline=None, max_examples=examples(150), suppress_health_check=list(HealthCheck))
    @given(query=views(), run=states(1), table=st.sampled_from(sorted(SCHEMAS)), most=st.none() | st.integers(0, 3))
    @example(query="", run=[{name: Counter() for name in SCHEMAS}], table=min(SCHEMAS), most=1)
    def law(query: str, run: list[State], table: str, most: int | None) -> None:
        if most is not None:
            query = f"SELECT * FROM {table} WHERE {SCHEMAS[table][0]} <= {most}"
        conditions = asked_of(query, table, SCHEMAS[table])
        if conditions:
            selective.append(query)
            tree = lower(query, SCHEMAS).node
            less = {**run[0], table: _matching(run[0][table], SCHEMAS[table], conditions)}
            assert evaluate(tree, reading(run[0])) == evaluate(tree, reading(less))
        else:
            assert most is None, query

    law()
    assert selective


def _matching(bag: Bag, columns: tuple[str, ...], conditions: list[exp.Expr]) -> Bag:
    rows = {row: dict(zip(columns, row, strict=True)) for row in bag}
    return Counter({row: n for row, n in bag.items() if all(scalar(c, rows[row]) is True for c in conditions)})
