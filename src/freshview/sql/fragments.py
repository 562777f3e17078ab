"""Pieces of SQL expressions: what lowering asks about them, and what it makes of them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from sqlglot import exp

from freshview.algebra.nodes import column
from freshview.errors import InvalidStatement
from freshview.relation.schema import fold


class Unsupported(Exception):
    """The construct has no algebra; the message is the reason."""


class UnknownColumn(Unsupported):
    """No source of the query has the column: a subquery that uses one of the query around it."""


def unaliased(tree: exp.Expr, items: list[tuple[str, exp.Expr]]) -> exp.Expr:
    """ORDER BY may name output columns."""
    by_name = {fold(n): e for n, e in items}

    def replace(node: exp.Expr) -> exp.Expr:
        if isinstance(node, exp.Column) and not node.table and fold(node.name) in by_name:
            return by_name[fold(node.name)].copy()
        return node

    return tree.copy().transform(replace)


def aggregates(tree: exp.Expr) -> list[exp.Expr]:
    """Outermost aggregate calls with their FILTER, outside windows and subqueries; inside a window its inputs."""
    found: list[exp.Expr] = []

    def walk(node: exp.Expr, windowed: bool) -> None:
        if isinstance(node, exp.Query):
            return
        if (
            isinstance(node, exp.Filter | exp.WithinGroup)
            and not windowed
            and isinstance(node.this, exp.AggFunc | exp.WithinGroup)
        ):
            found.append(node)
            return
        if isinstance(node, exp.AggFunc) and not windowed and not isinstance(node, exp.Grouping | exp.GroupingId):
            found.append(node)
            return
        if isinstance(node, exp.Anonymous) and node.name.upper() in _MORE_AGGREGATES and not windowed:
            found.append(node)
            return
        for key, child in node.args.items():
            around = isinstance(node, exp.Window) or (windowed and isinstance(node, _AROUND))
            for part in child if isinstance(child, list) else [child]:
                if isinstance(part, exp.Expr):
                    walk(part, around and key == "this")

    walk(tree, False)
    return found


_AROUND = (exp.Filter, exp.WithinGroup, exp.IgnoreNulls, exp.RespectNulls)  # a call: f(x) FILTER (…) OVER (…)
_MORE_AGGREGATES = {
    "BOOL_AND",
    "BOOL_OR",
    "EVERY",
    "SOME",
    "ANY",
    "COUNT_IF",
    "MODE",
    "PERCENTILE",
    "REGR_COUNT",
    "KURTOSIS",
    "SKEWNESS",
}


def is_plain(query: exp.Select, *, aggregate: bool = False) -> bool:
    """SELECT … FROM … WHERE only, without or with aggregates in the items."""
    parts = ("with_", "group", "having", "qualify", "limit", "offset")
    return (
        not any(query.args.get(p) for p in parts)
        and not any(e.find(exp.Window) for e in query.expressions)
        and any(map(aggregates, query.expressions)) == aggregate
    )


def is_mark(node: exp.Expr) -> bool:
    """EXISTS or IN over a query. (`exists(array, function)` is a function like others.)"""
    if isinstance(node, exp.Exists):
        return isinstance(node.this, exp.Query)
    return isinstance(node, exp.In) and node.args.get("query") is not None


def marks(tree: exp.Expr) -> list[exp.Expr]:
    """The EXISTS and IN of a condition, not those of its subqueries."""
    return outermost(tree, is_mark)


def outermost(tree: exp.Expr, wanted: Callable[[exp.Expr], bool]) -> list[exp.Expr]:
    """Parts of an expression that are wanted, none inside another or inside a subquery."""
    walk = tree.walk(bfs=False, prune=lambda n: wanted(n) or isinstance(n, exp.Query))
    return [n for n in walk if wanted(n)]


def negation(mark: exp.Expr) -> exp.Expr:
    """The NOT around a mark, if there is one."""
    above = mark.parent
    while isinstance(above, exp.Paren) and above.parent is not None:
        above = above.parent
    return above if isinstance(above, exp.Not) else mark


def only_and_or(node: exp.Expr, holder: exp.Expr) -> bool:
    """Does nothing but AND and OR stand above a node?"""
    above = node.parent
    while above is not None and above is not holder:
        if not isinstance(above, exp.And | exp.Or | exp.Paren):
            return False
        above = above.parent
    return True


def only(holder: exp.Expr) -> exp.Expr:
    """What a holder holds, after replacements inside it."""
    inner: exp.Expr = holder.this
    return inner


def substituted(tree: exp.Expr, known: Sequence[tuple[exp.Expr, str]]) -> exp.Expr:
    """An expression whose largest known parts are columns."""

    def replace(node: exp.Expr) -> exp.Expr:
        return next((column(name) for expression, name in known if node == expression), node)

    return tree.transform(replace) if known else tree


def renamer(names: Mapping[str, str]) -> Callable[[exp.Expr], exp.Expr]:
    def rename(node: exp.Expr) -> exp.Expr:
        if isinstance(node, exp.Column) and node.name in names:
            return column(names[node.name])
        return node

    return rename


def require_orders(tree: exp.Expr) -> None:
    """Every LIMIT has an ORDER BY. In EXISTS none is needed: a LIMIT of one row or more means nothing there."""
    for query in tree.find_all(exp.Query):
        if query.args.get("limit") is None and query.args.get("offset") is None:
            continue
        if isinstance(query.parent, exp.Exists):
            if query.args.get("offset") is None and count(query.args.get("limit")) > 0:
                query.set("limit", None)
                query.set("order", None)
        elif query.args.get("order") is None:
            raise InvalidStatement(
                "LIMIT without ORDER BY",
                "which rows it keeps is not determined",
                "Add an ORDER BY, or leave LIMIT out.",
            )


def count(node: exp.Expr | None) -> int:
    value = node.expression if node is not None else None
    if not isinstance(value, exp.Literal) or value.is_string:
        raise Unsupported("LIMIT that is not a number")
    return int(value.this)
