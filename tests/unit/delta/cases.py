"""One view per delta rule, the stored forms that a view can have, and how many examples a law is tried on."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import HealthCheck, settings
from sqlglot import exp
from tests.effort import examples

from freshview.algebra.nodes import Lowered, Node, TopK, column
from freshview.algebra.traversal import rewrite
from freshview.delta.aggregates import TypesOf
from freshview.delta.forms import Form, choose_form, rows_form

laws = settings(deadline=None, max_examples=examples(100, commit=60), suppress_health_check=list(HealthCheck))


# One view per rule, so that no rule is left to chance.
VIEWS = {
    "filter and project": "SELECT a + 1 AS x, c FROM t WHERE b > 0 OR c IS NULL",
    "values": "SELECT t.a, k.n FROM t JOIN (VALUES (0, 'none'), (1, 'one')) AS k(i, n) ON t.a = k.i",
    "inner join": "SELECT t.b, u.d FROM t JOIN u ON t.a = u.a",
    "comma join with a residual": "SELECT t.b, u.d FROM t, u WHERE t.a = u.a AND t.b < u.d",
    "using": "SELECT a, b, d FROM t JOIN u USING (a)",
    "natural join": "SELECT a, b, c, d FROM t NATURAL JOIN u NATURAL LEFT JOIN v",
    "star of a natural join": "SELECT * FROM t NATURAL FULL JOIN v",
    "cross join": "SELECT t.a, v.d FROM t CROSS JOIN v",
    "self-join": "SELECT x.a, y.b FROM t x JOIN t y ON x.a = y.a",
    "a table three times": "SELECT x.a, z.b FROM t x JOIN t y ON x.a = y.b LEFT JOIN t z ON y.a = z.b",
    "left join": "SELECT t.a, u.d FROM t LEFT JOIN u ON t.a = u.a AND u.d > 0",
    "left join without equality": "SELECT t.a, u.d FROM t LEFT JOIN u ON t.a < u.d",
    "left join without a condition": "SELECT t.a, u.d FROM t LEFT JOIN u ON TRUE",
    "right join": "SELECT t.a, u.d FROM t RIGHT JOIN u ON t.a = u.a",
    "full join": "SELECT t.a, t.b, u.a AS ua, u.d FROM t FULL JOIN u ON t.a = u.a",
    "full join of three": "SELECT t.a, u.d, v.b FROM t FULL JOIN u ON t.a = u.a FULL JOIN v ON u.d = v.d",
    "full join using": "SELECT a, b, d FROM t FULL JOIN u USING (a)",
    "semi join": "SELECT t.a, t.b FROM t LEFT SEMI JOIN u ON t.a = u.a",
    "anti join": "SELECT t.a, t.b FROM t LEFT ANTI JOIN u ON t.a = u.a",
    "exists": "SELECT a, b FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.a = t.a AND u.d <> t.b)",
    "not exists": "SELECT a, b FROM t WHERE NOT EXISTS (SELECT 1 FROM u WHERE u.a = t.a)",
    "exists over an aggregate": "SELECT a FROM t WHERE EXISTS (SELECT d FROM u GROUP BY d HAVING COUNT(*) > 1)",
    "in": "SELECT a, b FROM t WHERE a IN (SELECT d FROM u)",
    "in of pairs": "SELECT a, b FROM t WHERE (a, b) IN (SELECT a, d FROM u)",
    "not in": "SELECT a, b FROM t WHERE a NOT IN (SELECT d FROM u)",
    "correlated not in": "SELECT a, b FROM t WHERE a NOT IN (SELECT d FROM u WHERE u.a = t.b)",
    "marks under or": (
        "SELECT a FROM t WHERE a NOT IN (SELECT d FROM u) OR EXISTS (SELECT 1 FROM v WHERE v.b = t.b) OR c = 'x'"
    ),
    "exists in a negation": "SELECT a FROM t WHERE NOT (EXISTS (SELECT 1 FROM u WHERE u.a = t.a) OR b = 1)",
    "a mark inside a subquery": (
        "SELECT a FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.a = t.a"
        " AND (EXISTS (SELECT 1 FROM v WHERE v.d = u.d) OR u.d = 1))"
    ),
    "scalar subquery": "SELECT a, (SELECT MAX(d) FROM u) AS m FROM t",
    "correlated scalar subquery": "SELECT a FROM t WHERE b >= (SELECT SUM(d) FROM u WHERE u.a = t.a)",
    "correlated count": "SELECT a, (SELECT COUNT(*) FROM u WHERE u.a = t.a) AS n FROM t",
    "group": "SELECT a, COUNT(*) AS n, SUM(b) AS s, COUNT(b) AS k FROM t GROUP BY a",
    "group of an expression": "SELECT a + 1 AS x, SUM(b) + COUNT(*) AS s FROM t GROUP BY a + 1",
    "keys inside keys": "SELECT a + 1 AS x, a + 1 + b AS y, COUNT(a + 1) AS n FROM t GROUP BY a + 1, a + 1 + b",
    "sum with and without filter": "SELECT SUM(b) AS s FROM t GROUP BY a HAVING SUM(b) FILTER (WHERE b > 0) > 1",
    "hidden group key": "SELECT SUM(b) AS s FROM t GROUP BY a, c",
    "group of a join": "SELECT u.d, SUM(t.b) AS s FROM t JOIN u ON t.a = u.a GROUP BY u.d",
    "group of an outer join": "SELECT t.c, SUM(u.d) AS s, COUNT(u.d) AS n FROM t LEFT JOIN u ON t.a = u.a GROUP BY t.c",
    "conditions in aggregates": "SELECT a, COUNT(b = 1 OR c = 'x') AS n, SUM(- b) AS s FROM t GROUP BY a",
    "no group": "SELECT COUNT(*) AS n, SUM(b) AS s FROM t WHERE a > 0",
    "no group, other aggregates": "SELECT MAX(b) AS m, COUNT(DISTINCT a) AS n FROM t",
    "other aggregates": (
        "SELECT a, MIN(b) AS lo, MAX(b) AS hi, AVG(b) AS m, COUNT(DISTINCT b) AS k,"
        " SUM(b) FILTER (WHERE c = 'x') AS f FROM t GROUP BY a"
    ),
    "filters": (
        "SELECT a, COUNT(*) FILTER (WHERE b > 0) AS n, COUNT(b) FILTER (WHERE c = 'x') AS k,"
        " MIN(b) FILTER (WHERE c = 'x') AS lo, AVG(b) FILTER (WHERE b > 0) AS m, SUM(b) AS s FROM t GROUP BY a"
    ),
    "best": "SELECT a, MIN(b) AS lo, MAX(c) AS hi, BOOL_AND(b > 0) AS x, BOOL_OR(b > 1) AS y FROM t GROUP BY a",
    "best of all": "SELECT MIN(b) AS lo, MAX(b) AS hi, AVG(a) AS m FROM t",
    "best of a join": "SELECT t.c, MAX(u.d) AS hi FROM t JOIN u ON t.a = u.a GROUP BY t.c",
    "best of an outer join": "SELECT t.c, MAX(u.d) AS hi, MIN(t.b) AS lo FROM t LEFT JOIN u ON t.a = u.a GROUP BY t.c",
    "best of all, shown or not": "SELECT MAX(b) AS hi FROM t HAVING COUNT(*) > 2",
    "shown twice": "SELECT s + 1 AS x FROM (SELECT a, SUM(b) AS s FROM t GROUP BY a HAVING MAX(b) > 0) WHERE s > 1",
    "having": "SELECT a, SUM(b) AS s FROM t GROUP BY a HAVING COUNT(*) > 1",
    "having alone": "SELECT 1 AS one FROM t HAVING TRUE",
    "having with a subquery": "SELECT a, SUM(b) AS s FROM t GROUP BY a HAVING SUM(b) > (SELECT MIN(d) FROM u)",
    "aggregate over an aggregate": "SELECT n, SUM(n) AS k FROM (SELECT COUNT(*) AS n FROM t GROUP BY a) GROUP BY n",
    "rollup": "SELECT a, c, GROUPING(a) AS g, SUM(b) AS s FROM t GROUP BY ROLLUP (a, c)",
    "with rollup": "SELECT a, c, COUNT(*) AS n FROM t GROUP BY a, c WITH ROLLUP",
    "cube": "SELECT a, c, GROUPING_ID(a, c) AS g, SUM(a) AS s FROM t GROUP BY CUBE (a, c)",
    "grouping sets": "SELECT a, c, MAX(b) AS m FROM t GROUP BY GROUPING SETS ((a), (a), (c), ())",
    "distinct": "SELECT DISTINCT a, c FROM t",
    "union all": "SELECT a FROM t UNION ALL SELECT d FROM u",
    "union": "SELECT a, b FROM t UNION SELECT a, d FROM u",
    "except": "SELECT a FROM t EXCEPT SELECT d FROM u",
    "except all": "SELECT a FROM t EXCEPT ALL SELECT d FROM u",
    "intersect": "SELECT a FROM t INTERSECT SELECT d FROM u",
    "intersect all": "SELECT a FROM t INTERSECT ALL SELECT d FROM u",
    "except of itself": "SELECT a FROM t EXCEPT ALL SELECT b FROM t",
    "window": "SELECT a, b, SUM(b) OVER (PARTITION BY a) AS s, RANK() OVER (PARTITION BY c ORDER BY b) AS r FROM t",
    "window of an expression": "SELECT a, ROW_NUMBER() OVER (PARTITION BY a + b ORDER BY a, b, c) AS r FROM t",
    "window over an aggregate": "SELECT a, c, SUM(SUM(b)) OVER (PARTITION BY a) AS s FROM t GROUP BY a, c",
    "window with a filter": "SELECT a, COUNT(*) FILTER (WHERE b > 0) OVER (PARTITION BY a) AS n FROM t",
    "window without partition": "SELECT a, SUM(b) OVER (ORDER BY a) AS s FROM t",
    "qualify": (
        "SELECT a, b, SUM(b) OVER (PARTITION BY a) AS s FROM t"
        " QUALIFY ROW_NUMBER() OVER (PARTITION BY a ORDER BY b) = 1"
    ),
    "explode": "SELECT t.a, e.x FROM t LATERAL VIEW explode(array(a, b, 7)) e AS x",
    "posexplode": "SELECT t.a, e.p, e.x FROM t LATERAL VIEW OUTER posexplode(array(a, b)) e AS p, x",
    "top": "SELECT a, b FROM t ORDER BY a DESC, b LIMIT 2",
    "top of distinct rows": "SELECT DISTINCT a, c FROM t ORDER BY c DESC, a LIMIT 2",
    "top of a union": "SELECT a, b FROM t UNION ALL SELECT a, d FROM u ORDER BY 2 DESC, a LIMIT 3 OFFSET 1",
    "top in parentheses": "(SELECT a, b FROM t) ORDER BY b, a LIMIT 2",
    "limit in exists": "SELECT a FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.a = t.a LIMIT 1)",
    "common table expression": "WITH q(x) AS (SELECT a FROM t WHERE b > 0) SELECT l.x FROM q l JOIN q r ON l.x = r.x",
    "no table": "SELECT 1 AS one, 'x' AS two",
    "no table, but a condition": "SELECT 1 AS one WHERE EXISTS (SELECT 1 FROM t WHERE a = 1) OR 0 IN (SELECT d FROM u)",
}


def all_of(type_: str) -> TypesOf:
    """What Spark would say if all columns had this type."""
    return lambda node: dict.fromkeys(node.columns, type_)


def decided(lowered: Lowered) -> Lowered:
    """The tree whose limits distinguish −0.0 from 0.0, as definitions do."""

    def rule(node: Node) -> Node:
        if not isinstance(node, TopK):
            return node
        signs = (exp.Ordered(this=exp.cast(column(c), "string"), desc=False) for c in node.input.columns)
        return replace(node, order=(*node.order, *signs))

    return Lowered(rewrite(lowered.node, rule), lowered.outputs)


def forms(lowered: Lowered) -> dict[str, Form]:
    """Every stored form that a view can have."""
    names = tuple(f"n{i}" for i, _ in enumerate(lowered.outputs))
    found = [rows_form(lowered, names), *(choose_form(lowered, names, all_of(t)) for t in ("int", "double"))]
    return {f.rule: f for f in found}
