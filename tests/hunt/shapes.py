"""Random queries of rarer shapes: USING, generators, PIVOT, time windows, WITH, LIMIT, pipes, VALUES."""

from __future__ import annotations

from tests.hunt.analytics import aggregate
from tests.hunt.expressions import KINDS, ORDERED, SIMPLE, Col, Draw, Scope, condition, expression, literal
from tests.hunt.selects import group, named, plain, select, some_kinds, where
from tests.hunt.sources import Query, base, join, join_condition, merged
from tests.hunt.tables import GRAMMAR, Table


def joined_using(g: Draw, depth: int) -> Query:
    """Two or three tables by USING or NATURAL joins of all kinds."""
    first, *rest = g.some(list(GRAMMAR), 2, 3)
    names = {t.name: t for t in (first, *rest)}
    text = first.name
    shared = {"k"}
    for table in rest:
        kind = g.pick(("", "LEFT", "RIGHT", "FULL", "INNER", "LEFT SEMI", "LEFT ANTI"))
        g.clause(f"{kind.replace('LEFT S', 'S').replace('LEFT A', 'A') or 'INNER'} JOIN")
        if len(rest) == 1 and "SEMI" not in kind and "ANTI" not in kind and g.chance(0.4):
            g.clause("NATURAL")
            text += f" NATURAL {kind} JOIN {table.name}"
            shared |= {c.name for c in first.columns} & {c.name for c in table.columns}
        else:
            g.clause("USING")
            text += f" {kind} JOIN {table.name} USING ({_cased(g, 'k')})"
        if "SEMI" in kind or "ANTI" in kind:
            del names[table.name]
    if g.chance(0.25) and len(shared) == 1:
        g.clause("star")
        doubled = _doubled(list(names.values()), shared)
        except_ = f" EXCEPT ({', '.join(doubled)})" if doubled else ""
        if len(doubled) == len(set(doubled)):
            return Query(f"SELECT *{except_} FROM {text}", ())
    columns = [Col("k", "int")]
    for table in names.values():
        usable = [c for c in table.columns if c.type in KINDS and (c.name not in shared or g.chance(0.1))]
        columns += [Col(f"{table.name}.{c.name}", KINDS[c.type]) for c in usable]
    scope = Scope(tuple(columns))
    return group(g, text, scope) if g.chance(0.4) else select(g, text, scope, depth, keep=("k",))


def _doubled(tables: list[Table], shared: set[str]) -> list[str]:
    seen: list[str] = []
    doubled = []
    for table in tables:
        for column in table.columns:
            if column.name.lower() in seen and column.name not in shared:
                doubled.append(f"{table.name}.{column.name}")
            seen.append(column.name.lower())
    return doubled


def lateral(g: Draw, _depth: int) -> Query:
    """LATERAL VIEW [OUTER] and LATERAL subqueries."""
    text, scope = base(g)
    if g.chance(0.6):
        outer = ""
        if g.chance(0.5):
            outer = "OUTER "
            g.clause("LATERAL VIEW OUTER")
        g.clause("LATERAL VIEW")
        arrays = [c.ref for c in scope.of("arr")]
        maps = [c.ref for c in scope.of("map")]
        items = [c.ref for c in scope.of("items")]
        alias = g.fresh("lv")
        options: list[tuple[str, tuple[tuple[str, str], ...]]]
        options = [(f"explode(array({expression(g, scope, 'int', 1)}, 1)) {alias} AS e", (("e", "int"),))]
        options += [(f"{g.pick(('explode', 'explode_outer'))}({a}) {alias} AS e", (("e", "int"),)) for a in arrays]
        options += [(f"posexplode({a}) {alias} AS p, e", (("p", "int"), ("e", "int"))) for a in arrays]
        options += [(f"explode({m}) {alias} AS mk, mv", (("mk", "text"), ("mv", "int"))) for m in maps]
        options += [(f"inline({i}) {alias} AS P, q", (("P", "int"), ("q", "text"))) for i in items]
        options += [(f"stack(2, 1, 'x', 2, 'y') {alias} AS n, l", (("n", "int"), ("l", "text")))]
        call, added = g.pick(options)
        more = Scope(tuple(Col(f"{alias}.{n}", k) for n, k in added))
        text = f"{text} LATERAL VIEW {outer}{call}"
        wide = Scope(scope.columns + more.columns)
        return group(g, text, wide) if g.chance(0.4) else select(g, text, wide, 0)
    g.clause("LATERAL subquery")
    inner, inner_scope = base(g)
    alias = g.fresh("la")
    arrays = [c.ref for c in scope.of("arr")]
    if arrays and g.chance(0.4):
        sub = f"SELECT explode({g.pick(arrays)}) AS l"
    elif g.chance(0.5):
        call, _ = aggregate(g, inner_scope)
        sub = f"SELECT {call} AS l FROM {inner} WHERE {join_condition(g, inner_scope, scope)}"
    else:
        made = expression(g, inner_scope.with_outer(scope), "int", 1)
        sub = f"SELECT {made} AS l FROM {inner} WHERE {join_condition(g, inner_scope, scope)}"
    word = g.pick((", LATERAL", " JOIN LATERAL", " LEFT JOIN LATERAL", " CROSS JOIN LATERAL"))
    outputs = [(expression(g, scope, g.pick(SIMPLE), 1), "int"), (f"{alias}.l", "other")]
    listed = named(g, outputs, Scope(()))
    return Query(f"SELECT {listed.text} FROM {text}{word} ({sub}) AS {alias}{where(g, scope, 0, 0.3)}", listed.columns)


def generated(g: Draw, _depth: int) -> Query:
    """A generator in a SELECT list, and what stands above it."""
    g.clause("generator in SELECT")
    table = g.pick((GRAMMAR[0], GRAMMAR[2]))
    text, scope = base(g, table, bare=True)
    key = expression(g, scope, g.pick(("int", "text")), 1)
    options = [
        "explode(array({0}, {1})) AS e",
        "posexplode(array({0}, {1})) AS (p, e)",
        "stack(2, {0}, {1}) AS e",
        "explode(map('a', {0})) AS (mk, e)",
    ]
    if table.name == "t":
        options += ["explode(arr) AS e", "explode_outer(arr) AS e", "posexplode_outer(arr) AS (p, e)"]
        options += ["explode(m) AS (mk, e)", "explode(filter(arr, z -> z > 1)) AS e", "inline(array(s)) AS (e, eb)"]
    else:
        options += ["inline(items) AS (e, q2)", "explode(items.P) AS e", "inline_outer(items) AS (e, q2)"]
    call = g.pick(options).format(expression(g, scope, "int", 1), expression(g, scope, "int", 1))
    inner = f"SELECT {key} AS ky, {call} FROM {text}{where(g, scope, 0, 0.3)}"
    match g.number(0, 5):
        case 0 | 1:
            return Query(inner, ())
        case 2:
            return Query(f"SELECT count(*) AS n FROM ({inner}) AS x", (Col("n", "int"),))
        case 3:
            return Query(
                f"SELECT ky, count(e) AS n, max(e) AS top FROM ({inner}) AS x GROUP BY ky",
                (Col("ky", "other"), Col("n", "int"), Col("top", "int")),
            )
        case 4:
            calls = f"array(count(*), {aggregate(g, scope)[0]})"
            if g.chance(0.5):
                calls = "array(count(*), sum(k))"
            return Query(
                f"SELECT k, explode({calls}) AS e FROM {text} GROUP BY k", (Col("k", "int"), Col("e", "other"))
            )
    return Query(
        f"SELECT k, count(*) OVER (PARTITION BY k) AS n, explode(array(1, k)) AS e FROM {text}",
        (Col("k", "int"), Col("n", "int"), Col("e", "int")),
    )


def pivoted(g: Draw, _depth: int) -> Query:
    g.clause("PIVOT")
    _, _scope = base(g, GRAMMAR[1], bare=True)
    call = g.pick(
        ("sum(w)", "count(*)", "max(Name)", "count(DISTINCT w)", "sum(w) AS total, count(*) AS n", "min(y) AS Low")
    )
    group = g.pick(("n, ", "c, ", "", "vc, "))
    values = g.pick(("(0, 1, 2)", "(1 AS One, 2 AS two)", "(3 AS `x y`, 0)"))
    return Query(f"SELECT * FROM (SELECT {group}k, w, Name, y FROM u) PIVOT ({call} FOR k IN {values})", ())


def unpivoted(g: Draw, _depth: int) -> Query:
    g.clause("UNPIVOT")
    nulls = g.pick(("", "INCLUDE NULLS ", "EXCLUDE NULLS "))
    columns = g.pick(("k, Id", "k, V", "Id AS A, k AS b", "V, Id, k"))
    text = f"SELECT * FROM (SELECT g, Id, k, V FROM t) UNPIVOT {nulls}(val FOR Nm IN ({columns}))"
    if g.chance(0.4):
        return Query(
            f"SELECT Nm, count(*) AS n, sum(val) AS s FROM ({text}) AS p GROUP BY Nm",
            (Col("Nm", "text"), Col("n", "int"), Col("s", "int")),
        )
    return Query(text, ())


def time_windowed(g: Draw, _depth: int) -> Query:
    call = g.pick(("window(ts, '1 day')", "session_window(ts, '1 hour')", "window(ts, '2 hours', '1 hour')"))
    g.clause("session_window" if "session" in call else "window()")
    name = call.split("(")[0]
    agg = g.pick(("count(*)", "sum(k)", "max(V)", "sort_array(collect_list(Id))"))
    keys = g.pick(("", "k, "))
    return Query(f"SELECT {keys}{name}.start AS b, {name}.end AS e, {agg} AS n FROM t GROUP BY {keys}{call}", ())


def with_clause(g: Draw, depth: int) -> Query:
    """WITH; a name may be that of a table."""
    g.clause("CTE")
    inner = g.nested(g, depth - 1) if depth > 1 else plain(g, 0)
    if not inner.columns:
        inner = plain(g, 0)
    name = g.fresh("cte")
    if g.chance(0.25):
        g.clause("CTE shadows a table")
        name = g.pick(GRAMMAR).name
    alias = g.fresh("z")
    scope = inner.scope(alias)
    if g.chance(0.3):
        second = g.fresh("z")
        other = inner.scope(second)
        word, condition_ = g.pick(("JOIN", "LEFT JOIN")), join_condition(g, scope, other)
        text, wide = f"{name} AS {alias} {word} {name} AS {second} ON {condition_}", merged(scope, other)
    else:
        text, wide = f"{name} AS {alias}", scope
    outer = group(g, text, wide) if g.chance(0.4) else select(g, text, wide, 0)
    listed = f"({', '.join(c.ref for c in inner.columns)})" if g.chance(0.2) else ""
    return Query(f"WITH {name}{listed} AS ({inner.text}) {outer.text}", outer.columns)


def limited(g: Draw, _depth: int) -> Query:
    """ORDER BY … LIMIT by a total order."""
    g.clause("LIMIT")
    text, scope = base(g, bare=g.chance(0.5))
    if g.chance(0.3):
        text, scope = join(g, *base(g), 0)
    made = [(r, "int") for r in scope.order] + [
        (expression(g, scope, kind, 1), kind) for kind in some_kinds(g, scope, 1, 2)
    ]
    items = named(g, made, Scope(()))
    order = [
        f"{g.pick([c.ref for c in scope.columns if c.kind in ORDERED])} {g.pick(('', 'DESC', 'NULLS LAST'))}",
        *scope.order,
    ]
    tail = g.pick(("LIMIT 3", "LIMIT 2 OFFSET 1", "LIMIT 100", "OFFSET 2", "LIMIT 1 + 1", "LIMIT ALL", ""))
    text = f"SELECT {items.text} FROM {text}{where(g, scope, 0, 0.3)} ORDER BY {', '.join(order)} {tail}"
    if g.chance(0.3) and tail:
        text = f"SELECT count(*) AS n, max({items.columns[0].ref}) AS top FROM ({text}) AS first_ones"
        return Query(text, (Col("n", "int"), Col("top", "int")))
    return Query(text, items.columns)


def piped(g: Draw, _depth: int) -> Query:
    """Pipe syntax."""
    g.clause("pipe")
    table = g.pick(GRAMMAR)
    _, scope = base(g, table, bare=True)
    text = f"FROM {table.name} |> WHERE {condition(g, scope, 1)}"
    match g.number(0, 5):
        case 0:
            items = named(g, [(expression(g, scope, k, 1), k) for k in ("int", "text")], Scope(()))
            return Query(f"{text} |> SELECT {items.text}", items.columns)
        case 1:
            call, kind = aggregate(g, scope)
            return Query(f"{text} |> AGGREGATE {call} AS r GROUP BY k", (Col("k", "int"), Col("r", kind)))
        case 2:
            return Query(f"{text} |> EXTEND {expression(g, scope, 'int', 1)} AS more |> WHERE more > 0", ())
        case 3:
            return Query(f"{text} |> SET k = k + 1 |> DROP {scope.columns[2].ref}", ())
        case 4:
            return Query(
                f"{text} |> AS p |> JOIN u AS uu ON p.k = uu.k |> SELECT p.k AS pk, uu.Name",
                (Col("pk", "int"), Col("Name", "text")),
            )
    return Query(
        f"{text} |> SELECT k |> UNION ALL (SELECT k FROM u) |> AGGREGATE count(*) AS n GROUP BY k",
        (Col("k", "int"), Col("n", "int")),
    )


def valued(g: Draw, _depth: int) -> Query:
    """Inline tables."""
    g.clause("VALUES")
    rows = ", ".join(f"({literal(g, 'int')}, {literal(g, 'text')})" for _ in range(g.number(1, 4)))
    alias = g.fresh("va")
    values = Scope((Col(f"{alias}.n", "int"), Col(f"{alias}.Lab", "text")))
    text, scope = base(g)
    word = g.pick(("JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "LEFT ANTI JOIN"))
    joined = f"{text} {word} VALUES {rows} AS {alias}(n, Lab) ON {join_condition(g, scope, values)}"
    return select(g, joined, scope if "ANTI" in word else merged(scope, values), 0)


def _cased(g: Draw, name: str) -> str:
    return name.upper() if g.chance(0.2) else name
