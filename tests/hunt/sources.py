"""Random FROM clauses: tables, derived tables, joins of all kinds, and the conditions of joins."""

from __future__ import annotations

from dataclasses import dataclass

from tests.hunt.expressions import KINDS, ORDERED, Col, Draw, Scope, condition
from tests.hunt.tables import GRAMMAR, Table


@dataclass(frozen=True)
class Query:
    """A query and its columns; `order` of its rows is total over all of them if none is nested."""

    text: str
    columns: tuple[Col, ...]

    def scope(self, alias: str) -> Scope:
        columns = tuple(Col(f"{alias}.{c.ref}", c.kind) for c in self.columns)
        total = all(c.kind in ORDERED for c in columns)
        return Scope(columns, tuple(c.ref for c in columns) if total else ())


def base(g: Draw, table: Table | None = None, bare: bool = False) -> tuple[str, Scope]:
    """A table, with its columns."""
    table = table or g.pick(GRAMMAR)
    alias = "" if bare else g.fresh("a")
    prefix = f"{alias}." if alias else ""
    columns = tuple(Col(prefix + c.name, KINDS[c.type]) for c in table.columns if c.type in KINDS)
    name = table.name.upper() if g.chance(0.05) else table.name
    return (f"{name} AS {alias}" if alias else name), Scope(columns, (columns[0].ref,))


def source(g: Draw, depth: int) -> tuple[str, Scope]:
    """One item of a FROM clause: a table, or a derived table."""
    if depth <= 0 or g.chance(0.7):
        return base(g)
    g.clause("derived table")
    alias = g.fresh("q")
    inner: Query = g.nested(g, depth - 1)
    return f"({inner.text}) AS {alias}", inner.scope(alias)


def from_clause(g: Draw, depth: int) -> tuple[str, Scope]:
    """A FROM clause without its keyword: one source, or joins of two or three."""
    if g.chance(0.3):
        return base(g, bare=True)
    text, scope = source(g, depth)
    for _ in range(g.pick((0, 1, 1, 2))):
        text, scope = join(g, text, scope, depth)
    return text, scope


def join(g: Draw, left: str, scope: Scope, depth: int) -> tuple[str, Scope]:
    """One join more."""
    text, right = source(g, depth - 1)
    if g.chance(0.1):
        g.clause("nested join")
        inner, more = base(g)
        text = f"({text} {g.pick(('JOIN', 'LEFT JOIN', 'FULL JOIN'))} {inner} ON {join_condition(g, right, more)})"
        right = merged(right, more)
    wide = merged(scope, right)
    kind = g.pick(("INNER", "INNER", "LEFT", "LEFT", "RIGHT", "FULL", "SEMI", "ANTI", "CROSS", "comma"))
    if kind == "comma":
        g.clause("comma join")
        return f"{left}, {text}", wide
    g.clause(f"{kind} JOIN")
    if kind == "CROSS":
        return f"{left} CROSS JOIN {text}", wide
    words = {
        "INNER": ("JOIN", "INNER JOIN"),
        "SEMI": ("LEFT SEMI JOIN", "SEMI JOIN"),
        "ANTI": ("LEFT ANTI JOIN", "ANTI JOIN"),
    }
    word = g.pick(words.get(kind, (f"{kind} JOIN", f"{kind} OUTER JOIN")))
    joined = f"{left} {word} {text} ON {join_condition(g, scope, right)}"
    return joined, scope if kind in ("SEMI", "ANTI") else wide


def merged(left: Scope, right: Scope) -> Scope:
    order = left.order + right.order if left.order and right.order else ()
    return Scope(left.columns + right.columns, order)


def join_condition(g: Draw, left: Scope, right: Scope) -> str:
    """A join condition: mostly an equality, with more now and then."""
    kinds = [k for k in ORDERED if left.of(k) and right.of(k)]
    if not kinds or g.chance(0.08):
        return condition(g, merged(left, right), 1)
    kind = g.pick([k for k in kinds if k in ("int", "text", "char")] or kinds) if g.chance(0.8) else g.pick(kinds)
    text = f"{g.pick(left.of(kind)).ref} {'<=>' if g.chance(0.1) else '='} {g.pick(right.of(kind)).ref}"
    if g.chance(0.25):
        text += f" AND {condition(g, merged(left, right), 1)}"
    return text
