"""Random subqueries: scalar, IN, NOT IN and EXISTS, correlated with one or two queries around them."""

from __future__ import annotations

from tests.hunt.expressions import Draw, Scope, condition, expression
from tests.hunt.sources import base, join_condition

_CALLS = (
    "count(*)",
    "sum({})",
    "max({})",
    "min({})",
    "array_size(sort_array(collect_list({})))",
    "regr_count({}, 1)",
    "coalesce(max({}), 0)",
    "count(DISTINCT {})",
    "count(*) + 1",
    "size(collect_set({}))",
)


def scalar_subquery(g: Draw, outer: Scope, depth: int) -> str:
    """A scalar subquery of an integer; correlated where there is something outside."""
    g.clause("scalar subquery")
    text, scope = base(g)
    call = g.pick(_CALLS).format(expression(g, scope, "int", 1))
    where = ""
    if outer.columns and g.chance(0.8):
        g.clause("correlated")
        where = f" WHERE {join_condition(g, scope, outer)}"
        if depth > 1 and g.chance(0.3):
            where += f" AND {subquery_condition(g, scope, depth - 1)}"
    elif not outer.columns:
        where = " WHERE 1 = 0" if g.chance(0.2) else ""
    return f"(SELECT {call} FROM {text}{where})"


def subquery_condition(g: Draw, outer: Scope, depth: int, grand: Scope | None = None) -> str:
    """IN, NOT IN, EXISTS or a comparison with a scalar subquery."""
    text, scope = base(g)
    inside = scope
    where = []
    if g.chance(0.6):
        g.clause("correlated")
        where.append(join_condition(g, scope, outer))
    if grand is not None and g.chance(0.7):
        g.clause("correlated twice")
        where.append(join_condition(g, scope, grand))
    if depth > 1 and g.chance(0.4):
        where.append(subquery_condition(g, scope, depth - 1, outer))
    elif g.chance(0.3):
        where.append(condition(g, inside, 1))
    clause = f" WHERE {' AND '.join(where)}" if where else ""
    negated = g.pick(("", "NOT "))
    match g.number(0, 4):
        case 0 | 1:
            g.clause("EXISTS")
            shown = g.pick(("1", "*", "max(1)" if g.chance(0.3) else "k"))
            if g.chance(0.05) and scope.of("arr"):
                shown = f"explode({scope.of('arr')[0].ref})"
            return f"{negated}EXISTS (SELECT {shown} FROM {text}{clause})"
        case 2 | 3:
            g.clause(f"{negated}IN subquery")
            kind = g.pick([k for k in ("int", "text", "date", "dec", "char") if outer.of(k)] or ["int"])
            other = kind
            if g.chance(0.15):
                g.clause("conversion")
                other = {"int": "text", "text": "char", "char": "char", "dec": "int", "date": "ts"}[kind]
            left, right = expression(g, outer, kind, 1), expression(g, scope, other, 1)
            if g.chance(0.12) and outer.columns:
                second = g.pick(outer.columns).ref
                return (
                    f"({left}, {second}) {negated}IN (SELECT {right}, {g.pick(scope.columns).ref} FROM {text}{clause})"
                )
            joined = f"{left} {negated}IN (SELECT {right} FROM {text}{clause})"
            return f"({joined} OR {condition(g, outer, 0)})" if g.chance(0.15) else joined
    return f"{expression(g, outer, 'int', 1)} {g.pick(('=', '<', '>='))} {scalar_subquery(g, outer, depth)}"
