"""Queries that have at most one row: ORDER BY and LIMIT leave those as they are, so that a LIMIT needs no order.

an aggregate without GROUP BY has one row, or none under HAVING
such queries side by side (inner and cross joins) have one row, or none under conditions
"""

from __future__ import annotations

from sqlglot import exp

from freshview.sql.fragments import count, is_generator

_AGGREGATES = (exp.Count, exp.CountIf, exp.Sum, exp.Avg, exp.Min, exp.Max)


def without_idle_limits(tree: exp.Expr) -> None:
    """Remove ORDER BY and LIMIT from every query that has at most one row. Changes the tree."""
    for query in tree.find_all(exp.Query):
        limit = query.args.get("limit")
        if limit is not None and is_idle(limit):
            query.set("limit", None)
            query.set("order", None)


def is_idle(limit: exp.Expr) -> bool:
    """Is an expression a LIMIT that keeps all rows, since its query has at most one?"""
    query = limit.parent
    if not isinstance(limit, exp.Limit) or not isinstance(query, exp.Select) or query.args.get("offset") is not None:
        return False
    number = limit.expression
    return isinstance(number, exp.Literal) and not number.is_string and count(limit) > 0 and _has_one_row(query)


def _has_one_row(query: exp.Expr) -> bool:
    if not isinstance(query, exp.Select) or query.args.get("group") or query.args.get("laterals"):
        return False
    own = [n for item in query.expressions for n in item.walk(prune=lambda n: isinstance(n, exp.Query | exp.Window))]
    if any(is_generator(n) or isinstance(n, exp.Anonymous) for n in own):
        return False
    return any(isinstance(n, _AGGREGATES) for n in own) or _is_of_one_row(query)


def _is_of_one_row(query: exp.Select) -> bool:
    """Does a query read nothing but queries of one row, side by side?"""
    source, joins = query.args.get("from_"), query.args.get("joins") or []
    if source is None or any(join.side for join in joins):
        return False
    parts = [source.this, *(join.this for join in joins)]
    return all(isinstance(part, exp.Subquery) and _is_plain(part) and _has_one_row(part.this) for part in parts)


def _is_plain(part: exp.Subquery) -> bool:
    """Is a query in brackets all that stands there, but for its name?"""
    return not any(value for name, value in part.args.items() if name not in ("this", "alias"))
