"""Random SELECTs: items, stars, groupings, set operations and windows over a FROM clause."""

from __future__ import annotations

from tests.hunt.analytics import aggregate, grouping, grouping_marks, window
from tests.hunt.expressions import KINDS, ORDERED, SIMPLE, Col, Draw, Scope, condition, expression, odd_expression
from tests.hunt.sources import Query, base, from_clause, join_condition, merged
from tests.hunt.subqueries import scalar_subquery, subquery_condition
from tests.hunt.tables import GRAMMAR


def named(g: Draw, made: list[tuple[str, str]], scope: Scope) -> Query:
    """Select items with names of their own; now and then the name is that of another column."""
    texts, columns, used = [], [], set()
    for text, kind in made:
        name = g.fresh("c")
        others = [c.name for c in scope.columns if c.name.isidentifier() and c.name.lower() not in used]
        if others and g.chance(0.12):
            g.clause("alias shadows a column")
            name = g.pick(others)
        used.add(name.lower())
        texts.append(f"{text} {'AS ' if g.chance(0.9) else ''}{name}")
        columns.append(Col(name, kind))
    return Query(", ".join(texts), tuple(columns))


def where(g: Draw, scope: Scope, depth: int, share: float = 0.5) -> str:
    if not g.chance(share):
        return ""
    if depth > 0 and g.chance(0.3):
        return f" WHERE {subquery_condition(g, scope, depth)}"
    return f" WHERE {condition(g, scope, 2)}"


def some_kinds(g: Draw, scope: Scope, least: int, most: int) -> list[str]:
    every = [k for k in ("arr", "map", "struct", "char", "bin", "items", "ntz") if scope.of(k)]
    return [g.pick(every) if every and g.chance(0.2) else g.pick(SIMPLE) for _ in range(g.number(least, most))]


def select(g: Draw, text: str, scope: Scope, depth: int, keep: tuple[str, ...] = ()) -> Query:
    made = [(ref, next((c.kind for c in scope.columns if c.ref == ref), "int")) for ref in keep]
    made += [(expression(g, scope, kind, 2), kind) for kind in some_kinds(g, scope, 1, 4)]
    if g.chance(0.2):
        made.append(odd_expression(g, scope))
    if depth > 0 and g.chance(0.12):
        g.clause("subquery in SELECT")
        made.append((scalar_subquery(g, scope, depth), "int"))
    found = named(g, made, scope)
    if g.chance(0.08) and found.columns:
        g.clause("lateral column alias")
        first = found.columns[0]
        name = g.fresh("c")
        found = Query(
            f"{found.text}, coalesce({first.ref}, {first.ref}) AS {name}", (*found.columns, Col(name, first.kind))
        )
    distinct = ""
    if g.chance(0.15) and not any(c.kind in ("map", "other") for c in found.columns):
        g.clause("DISTINCT")
        distinct = "DISTINCT "
    return Query(f"SELECT {distinct}{found.text} FROM {text}{where(g, scope, depth)}", found.columns)


def plain(g: Draw, depth: int) -> Query:
    text, scope = from_clause(g, depth)
    return select(g, text, scope, depth)


def starred(g: Draw, depth: int) -> Query:
    """Stars: of a table, with EXCEPT, and as an argument."""
    table = g.pick(GRAMMAR)
    every = tuple(Col(c.name, KINDS.get(c.type, "other")) for c in table.columns)
    match g.number(0, 4):
        case 0:
            g.clause("star")
            return Query(f"SELECT * FROM {table.name}{where(g, base(g, table, bare=True)[1], depth)}", every)
        case 1:
            g.clause("star EXCEPT")
            out = g.some([c.name for c in table.columns], 1, 2)
            return Query(
                f"SELECT * EXCEPT ({', '.join(out)}) FROM {table.name}", tuple(c for c in every if c.ref not in out)
            )
        case 2:
            g.clause("star argument")
            call = g.pick(
                ("to_json(struct(*))", "xxhash64(*)", "struct(*)", "hash(*)", "to_json(struct(u.*))", "array(*)")
            )
            shown, source = g.pick(("No, ", "")), g.pick(("u", "(SELECT No, k, Name FROM u) AS u"))
            columns = (Col("No", "int"), Col("packed", "other"))[not shown :]
            return Query(
                f"SELECT {shown}{call} AS packed FROM {source}{where(g, Scope((Col('k', 'int'),)), 0)}", columns
            )
        case 3:
            g.clause("star argument")
            call = g.pick(
                ("max(struct(*))", "count(*)", "to_json(max(struct(*)))", "max(xxhash64(*))", "count(DISTINCT *)")
            )
            return Query(
                f"SELECT k, {call} AS packed FROM (SELECT k, Name, w FROM u) GROUP BY k",
                (Col("k", "int"), Col("packed", "other")),
            )
    g.clause("star")
    text, scope = base(g, g.pick(GRAMMAR))
    alias = scope.columns[0].ref.split(".")[0]
    other, more = base(g)
    made = expression(g, merged(scope, more), "int", 1)
    return Query(f"SELECT {alias}.*, {made} AS made FROM {text} JOIN {other} ON {join_condition(g, scope, more)}", ())


def grouped(g: Draw, depth: int) -> Query:
    text, scope = from_clause(g, depth)
    return group(g, text, scope, depth)


def group(g: Draw, text: str, scope: Scope, depth: int = 0) -> Query:
    """GROUP BY in all its forms, with HAVING."""
    count = g.pick((1, 2, 2, 2, 3))
    kinds = [g.pick([k for k in ORDERED if scope.of(k)] or ["int"]) for _ in range(count)]
    keys: list[tuple[str, str]] = []
    for kind in kinds:
        found = [c.ref for c in scope.of(kind)]
        key = g.pick(found) if found and g.chance(0.7) else expression(g, scope, kind, 1)
        if key not in [k for k, _ in keys]:
            keys.append((key, kind))
    calls = [aggregate(g, scope) for _ in range(g.number(1, 3))]
    kept = where(g, scope, depth, 0.35)
    is_plain = all("'" not in k and "(" not in k and k[0].isalpha() and " " not in k for k, _ in keys)
    way = g.number(0, 9)
    if way <= 5 and is_plain:
        clause, sets = grouping(g, [k for k, _ in keys])
        marks = [(m, "int") for m in grouping_marks(g, [k for k, _ in keys])] if sets and g.chance(0.6) else []
        items = named(g, keys + calls + marks, Scope(()))
        text = f"SELECT {items.text} FROM {text}{kept} GROUP BY {clause}"
    elif way <= 7:
        g.clause("GROUP BY ordinal")
        items = named(g, keys + calls, Scope(()))
        text = f"SELECT {items.text} FROM {text}{kept} GROUP BY {', '.join(str(i + 1) for i in range(len(keys)))}"
    elif way == 8:
        g.clause("GROUP BY ALL")
        items = named(g, keys + calls, Scope(()))
        text = f"SELECT {items.text} FROM {text}{kept} GROUP BY ALL"
    else:
        g.clause("GROUP BY alias")
        items = named(g, keys + calls, Scope(()))
        text = f"SELECT {items.text} FROM {text}{kept} GROUP BY {', '.join(c.ref for c in items.columns[: len(keys)])}"
    if g.chance(0.25):
        g.clause("HAVING")
        if depth > 0 and g.chance(0.25):
            g.clause("subquery in HAVING")
            text += f" HAVING count(*) >= {scalar_subquery(g, Scope(()), 0)}"
        else:
            key = g.pick([k for k, _ in keys]) if is_plain else "count(*)"
            call = items.columns[len(keys)].ref
            options = ("count(*) > 1", f"{key} IS NOT NULL", f"{call} IS NOT NULL", f"{key} IN ('1', '2')")
            text += f" HAVING {g.pick(options)}"
    return Query(text, items.columns)


def whole_aggregate(g: Draw, depth: int) -> Query:
    g.clause("aggregate without GROUP BY")
    text, scope = from_clause(g, depth)
    items = named(g, [aggregate(g, scope) for _ in range(g.number(1, 3))], Scope(()))
    having = " HAVING count(*) > 2" if g.chance(0.15) else ""
    return Query(f"SELECT {items.text} FROM {text}{where(g, scope, depth)}{having}", items.columns)


def set_operation(g: Draw, depth: int) -> Query:
    """UNION, EXCEPT, INTERSECT; columns of types that Spark converts now and then."""
    kinds = [g.pick(SIMPLE) for _ in range(g.number(1, 3))]
    if g.chance(0.15):
        kinds[-1] = g.pick(("char", "arr", "struct"))
    parts = []
    columns: tuple[Col, ...] = ()
    for place in range(g.pick((2, 2, 2, 3))):
        text, scope = base(g, bare=g.chance(0.5)) if depth < 2 or g.chance(0.6) else from_clause(g, depth - 1)
        made = []
        for kind in kinds:
            other = kind
            if place and g.chance(0.2):
                g.clause("set conversion")
                other = {
                    "int": "double",
                    "text": "int",
                    "double": "int",
                    "dec": "int",
                    "date": "ts",
                    "ts": "date",
                    "char": "text",
                }.get(kind, kind)
            made.append((expression(g, scope, other, 1), other))
        items = named(g, made, Scope(()))
        columns = columns or tuple(Col(c.ref, k) for c, k in zip(items.columns, kinds, strict=True))
        parts.append(f"SELECT {items.text} FROM {text}{where(g, scope, 0, 0.4)}")
    text = parts[0]
    for part in parts[1:]:
        word = g.pick(
            (
                "UNION ALL",
                "UNION ALL",
                "UNION",
                "UNION DISTINCT",
                "EXCEPT",
                "EXCEPT ALL",
                "MINUS",
                "INTERSECT",
                "INTERSECT ALL",
            )
        )
        g.clause("EXCEPT" if word.startswith(("EXCEPT", "MINUS")) else word.split()[0])
        text = f"{text} {word} {part}" if g.chance(0.8) else f"({text}) {word} ({part})"
    if len(parts) > 2:
        g.clause("nested set operation")
    return Query(text, columns)


def windowed(g: Draw, depth: int) -> Query:
    """Window functions, with a filter above now and then."""
    text, scope = from_clause(g, depth - 1) if g.chance(0.4) else base(g, bare=g.chance(0.5))
    calls, names = [], []
    for _ in range(g.pick((1, 1, 2))):
        call, spec = window(g, scope)
        if g.chance(0.2):
            g.clause("named window")
            name = g.fresh("win")
            names.append(f"{name} AS ({spec})")
            calls.append(f"{call} OVER {name}")
        else:
            calls.append(f"{call} OVER ({spec})")
    made = [(expression(g, scope, kind, 1), kind) for kind in some_kinds(g, scope, 1, 2)]
    items = named(g, made + [(c, "other") for c in calls], Scope(()))
    clause = f" WINDOW {', '.join(names)}" if names else ""
    text = f"SELECT {items.text} FROM {text}{where(g, scope, depth, 0.3)}{clause}"
    if g.chance(0.3):
        g.clause("window filter")
        text = f"SELECT * FROM ({text}) AS ranked WHERE {items.columns[-1].ref} IS NOT NULL"
    return Query(text, items.columns)


def subqueries(g: Draw, depth: int) -> Query:
    """A query whose WHERE and SELECT have subqueries."""
    text, scope = from_clause(g, 0)
    made = [(expression(g, scope, kind, 1), kind) for kind in some_kinds(g, scope, 1, 2)]
    if g.chance(0.5):
        g.clause("subquery in SELECT")
        made.append((scalar_subquery(g, scope, depth), "int"))
    elif g.chance(0.2):
        g.clause("subquery in SELECT")
        made.append((subquery_condition(g, scope, depth), "bool"))
    items = named(g, made, Scope(()))
    joiner = g.pick((" AND ", " AND ", " OR "))
    wheres = joiner.join(subquery_condition(g, scope, depth) for _ in range(g.pick((1, 1, 2))))
    return Query(f"SELECT {items.text} FROM {text} WHERE {wheres}", items.columns)
