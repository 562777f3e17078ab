"""Random queries with clauses that were found to be misread: QUALIFY, recursive CTEs, collations, extra brackets, …"""

from __future__ import annotations

from tests.hunt.analytics import window
from tests.hunt.expressions import Col, Draw, Scope, condition, expression
from tests.hunt.selects import named, plain, select, some_kinds, where
from tests.hunt.sources import Query, base
from tests.hunt.tables import GRAMMAR


def qualified(g: Draw, depth: int) -> Query:
    """QUALIFY by a window function, of the items or its own."""
    g.clause("QUALIFY")
    text, scope = base(g, bare=g.chance(0.5))
    call, spec = window(g, scope)
    made = [(expression(g, scope, kind, 1), kind) for kind in some_kinds(g, scope, 1, 2)]
    items = named(g, [*made, (f"{call} OVER ({spec})", "other")], Scope(()))
    last = items.columns[-1].ref
    kept = g.pick(
        (f"{last} IS NOT NULL", f"{call} OVER ({spec}) IS NOT NULL", f"count(*) OVER (PARTITION BY k) {_limit(g)}")
    )
    return Query(f"SELECT {items.text} FROM {text}{where(g, scope, depth, 0.4)} QUALIFY {kept}", items.columns)


def _limit(g: Draw) -> str:
    return g.pick(("> 1", "= 1", "<= 2"))


def ordered_by_all(g: Draw, _depth: int) -> Query:
    """ORDER BY ALL, with a LIMIT where the items are the whole order."""
    g.clause("ORDER BY ALL")
    text, scope = base(g, bare=True)
    shown = [c for c in scope.columns if c.ref in scope.order or c.kind in ("int", "text", "date")]
    items = ", ".join(c.ref for c in shown)
    tail = g.pick(("", " DESC", " NULLS LAST", " LIMIT 3", " DESC LIMIT 2", " LIMIT 2 OFFSET 1"))
    return Query(f"SELECT {items} FROM {text}{where(g, scope, 0, 0.4)} ORDER BY ALL{tail}", tuple(shown))


def recursive(g: Draw, _depth: int) -> Query:
    """WITH RECURSIVE over a few levels, joined to a table."""
    g.clause("recursive CTE")
    name, most = g.fresh("rec"), g.number(2, 4)
    table = g.pick(GRAMMAR)
    start = g.pick(("SELECT 1 AS n", f"SELECT min(k) AS n FROM {table.name}", "VALUES (1), (3)"))
    listed = "(n)" if start.startswith("VALUES") or g.chance(0.5) else ""
    text = f"WITH RECURSIVE {name}{listed} AS ({start} UNION ALL SELECT n + 1 FROM {name} WHERE n < {most})"
    if g.chance(0.5):
        return Query(f"{text} SELECT n, count(*) AS c FROM {name} GROUP BY n", (Col("n", "int"), Col("c", "int")))
    join = g.pick(("JOIN", "LEFT JOIN"))
    return Query(
        f"{text} SELECT r.n, x.k FROM {name} AS r {join} {table.name} AS x ON x.k = r.n",
        (Col("n", "int"), Col("k", "int")),
    )


def without_as(g: Draw, _depth: int) -> Query:
    """A CTE without AS."""
    g.clause("CTE without AS")
    inner = plain(g, 0)
    name = g.fresh("cte")
    outer = select(g, name, Scope(tuple(c for c in inner.columns)), 0)
    return Query(f"WITH {name} ({inner.text}) {outer.text}", outer.columns)


def collated(g: Draw, _depth: int) -> Query:
    """Texts under a collation: in conditions, orders, groups, joins and best values."""
    g.clause("COLLATE")
    text, scope = base(g, bare=g.chance(0.5))
    column = g.pick([c.ref for c in scope.of("text")] or ["'a'"])
    name = g.pick(("UTF8_LCASE", "UNICODE_CI", "UTF8_BINARY", "UTF8_LCASE_RTRIM"))
    taken = g.pick((f"{column} COLLATE {name}", f"collate({column}, '{name}')"))
    keys = ", ".join(scope.order) or "1 AS one"
    match g.number(0, 6):
        case 0:
            return Query(f"SELECT {keys}, {taken} = 'A' AS same FROM {text} WHERE {taken} >= 'a'", ())
        case 1:
            return Query(f"SELECT count(DISTINCT {taken}) AS n FROM {text}", (Col("n", "int"),))
        case 2:
            return Query(f"SELECT CAST({taken} AS STRING) AS s, count(*) AS n FROM {text} GROUP BY {taken}", ())
        case 3:
            return Query(
                f"SELECT CAST({g.pick(('min', 'max'))}({taken}) AS STRING) AS s FROM {text}", (Col("s", "text"),)
            )
        case 4:
            return Query(
                f"SELECT count(*) AS n FROM {text} JOIN u AS other ON {taken} = other.Name", (Col("n", "int"),)
            )
        case 5:
            return Query(f"SELECT CAST(x AS STRING) AS x FROM (SELECT DISTINCT {taken} AS x FROM {text}) AS d", ())
    return Query(f"SELECT {keys}, rank() OVER (ORDER BY {taken}) AS r FROM {text}", ())


def identified(g: Draw, _depth: int) -> Query:
    """Names by IDENTIFIER, of a table and of a column."""
    g.clause("IDENTIFIER")
    table = g.pick(GRAMMAR)
    _, scope = base(g, table, bare=True)
    shown = g.pick(("k", "IDENTIFIER('k')", f"IDENTIFIER('{table.name}.k')", "IDENTIFIER('K') + 1"))
    source = g.pick((table.name, f"IDENTIFIER('{table.name}')", f"IDENTIFIER(lower('{table.name.upper()}'))"))
    return Query(f"SELECT {shown} AS x FROM {source}{where(g, scope, 0, 0.5)}", (Col("x", "int"),))


def sampled(g: Draw, _depth: int) -> Query:
    """TABLESAMPLE: a view of it is refused, unless the sample is everything."""
    g.clause("TABLESAMPLE")
    size = g.pick(("100 PERCENT", "0 PERCENT", "2 ROWS", "BUCKET 1 OUT OF 1"))
    return Query(f"SELECT k, count(*) AS n FROM {g.pick(GRAMMAR).name} TABLESAMPLE ({size}) GROUP BY k", ())


def bracketed(g: Draw, _depth: int) -> Query:
    """Brackets where none are needed: around queries, conditions, operands of set operations and joins."""
    g.clause("extra brackets")
    inner = plain(g, 0)
    text, scope = base(g, bare=True)
    match g.number(0, 4):
        case 0:
            return Query(f"(({inner.text}))", inner.columns)
        case 1:
            return Query(f"SELECT * FROM (({inner.text})) AS b", inner.columns)
        case 2:
            return Query(f"SELECT (k) AS k FROM ({text}) WHERE (({condition(g, scope, 1)}))", (Col("k", "int"),))
        case 3:
            return Query(
                f"(SELECT k FROM {text}) UNION ALL ((SELECT k FROM w) EXCEPT (SELECT k FROM u))", (Col("k", "int"),)
            )
    made = expression(g, scope, "int", 1)
    return Query(f"SELECT k, count((({made}))) AS n FROM ({text}) GROUP BY (k)", (Col("k", "int"), Col("n", "int")))


def of_a_time(g: Draw, _depth: int) -> Query:
    """Literals of a time alone, which Spark completes by the present day: such a view is refused."""
    g.clause("time alone")
    text, scope = base(g, g.pick([t for t in GRAMMAR if any(c.type == "timestamp" for c in t.columns)]), bare=True)
    column = g.pick([c.ref for c in scope.of("ts")])
    time = g.pick(("12:30:00", "T12:30", "00:00:00", "23:59:59.5"))
    literal = g.pick((f"TIMESTAMP '{time}'", f"'{time}'", f"CAST('{time}' AS TIMESTAMP)"))
    return Query(f"SELECT k, {column} > {literal} AS x FROM {text}", (Col("k", "int"),))
