"""Pieces of SQL expressions: the questions that lowering has about them, and the changes it makes to them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from sqlglot import exp

from freshview.algebra.nodes import column, conjunction, conjuncts
from freshview.errors import InvalidStatement
from freshview.relation.schema import fold
from freshview.sql.tokens import word_set

COMPARISONS = (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.NullSafeEQ)
GENERATORS = word_set("EXPLODE EXPLODE_OUTER POSEXPLODE POSEXPLODE_OUTER INLINE INLINE_OUTER STACK JSON_TUPLE")
OF_IN = "in"  # marks an equality made of IN (query): Spark may convert its sides in another way than those of `=`


class Unsupported(Exception):
    """The construct has no algebra; the message is the reason."""


class UnknownColumn(Unsupported):
    """No source of the query has the column: it may belong to the query around a subquery."""


def unaliased(tree: exp.Expr, items: list[tuple[str, exp.Expr]]) -> exp.Expr:
    """A term of ORDER BY, with the items of the SELECT in the place of their names."""
    by_name = {fold(n): e for n, e in items}

    def replace(node: exp.Expr) -> exp.Expr:
        if isinstance(node, exp.Column) and not node.table and fold(node.name) in by_name:
            return by_name[fold(node.name)].copy()
        return node

    return tree.copy().transform(replace)


def aggregates(tree: exp.Expr) -> list[exp.Expr]:
    """Outermost aggregate calls with their FILTER, outside subqueries; of a window call, those in its arguments."""
    found: list[exp.Expr] = []

    def walk(node: exp.Expr, windowed: bool) -> None:
        if isinstance(node, exp.Query):
            return
        if not windowed and _is_aggregate(node):
            found.append(node)
            return
        for key, child in node.args.items():
            around = isinstance(node, exp.Window) or (windowed and isinstance(node, _AROUND))
            for part in child if isinstance(child, list) else [child]:
                if isinstance(part, exp.Expr):
                    walk(part, around and key == "this")

    walk(tree, False)
    return found


def _is_aggregate(node: exp.Expr) -> bool:
    if isinstance(node, exp.Filter | exp.WithinGroup):
        return isinstance(node.this, exp.AggFunc | exp.WithinGroup) or _is_other_aggregate(node.this)
    known = isinstance(node, exp.AggFunc) and not isinstance(node, exp.Grouping | exp.GroupingId)
    return known or _is_other_aggregate(node)


def _is_other_aggregate(node: exp.Expr) -> bool:
    """Is a node an aggregate that the parser takes for another function (any(x): for that of LIKE ANY (…))?"""
    if isinstance(node, exp.Any):
        return not isinstance(node.parent, exp.Like | exp.ILike)
    return isinstance(node, exp.Anonymous) and node.name.upper() in _OTHER_AGGREGATES


_AROUND = (exp.Filter, exp.WithinGroup, exp.IgnoreNulls, exp.RespectNulls)  # between a call and its OVER
_OTHER_AGGREGATES = word_set("""
    ANY BITMAP_AND_AGG BITMAP_OR_AGG BOOL_AND BOOL_OR COUNT_IF COUNT_MIN_SKETCH EVERY HISTOGRAM_NUMERIC HLL_SKETCH_AGG
    HLL_UNION_AGG KURTOSIS MEAN MEASURE MODE PERCENTILE REGR_COUNT SCHEMA_OF_VARIANT_AGG SKEWNESS SOME STD TRY_AVG
    TRY_SUM VECTOR_AVG VECTOR_SUM
""")


def factored(tree: exp.Expr) -> list[exp.Expr]:
    """The operands of nested ANDs; a condition common to all branches of an OR is taken out of it.

    (a AND x) OR (a AND y) = a AND (x OR y), and a OR (a AND y) = a, also where something is unknown.
    """
    return [part for condition in conjuncts(tree) for part in _factored_or(condition)]


def _factored_or(tree: exp.Expr) -> list[exp.Expr]:
    if not isinstance(tree, exp.Or):
        return [tree]
    branches = [conjuncts(branch) for branch in tree.flatten()]
    common = [c for c in branches[0] if all(c in other for other in branches)]
    rests = [conjunction([c for c in branch if c not in common]) for branch in branches]
    if not common:
        return [tree]
    return common if None in rests else [*common, exp.or_(*rests)]


def is_plain(query: exp.Select, *, aggregate: bool = False) -> bool:
    """Is a query only SELECT … FROM … WHERE, with or without aggregates in the items?"""
    parts = ("group", "having", "qualify", "limit", "offset")
    return (
        not any(query.args.get(p) for p in parts)
        and not any(e.find(exp.Window) or is_generator(unnamed(e)) for e in query.expressions)
        and any(map(aggregates, query.expressions)) == aggregate
    )


def unnamed(item: exp.Expr) -> exp.Expr:
    """An item of a SELECT, without its AS name or AS (names)."""
    inner: exp.Expr = item.this if isinstance(item, exp.Alias | exp.Aliases) else item
    return inner


def is_generator(node: exp.Expr) -> bool:
    """Is a node a call that makes rows of a row, not a value?"""
    if isinstance(node, exp.ExplodeOuter | exp.Explode | exp.Inline | exp.Stack):
        return True
    return isinstance(node, exp.Anonymous) and node.name.upper() in GENERATORS


def is_mark(node: exp.Expr) -> bool:
    """Is a node EXISTS or IN over a query? (`exists(array, function)` is an ordinary function.)"""
    if isinstance(node, exp.Exists):
        return isinstance(node.this, exp.Query)
    return isinstance(node, exp.In) and node.args.get("query") is not None


def marks(tree: exp.Expr) -> list[exp.Expr]:
    """The EXISTS and IN over queries in a condition, without those inside its subqueries."""
    return outermost(tree, is_mark)


def outermost(tree: exp.Expr, wanted: Callable[[exp.Expr], bool]) -> list[exp.Expr]:
    """The wanted parts of an expression that are not inside another one or inside a subquery."""
    walk = tree.walk(bfs=False, prune=lambda n: wanted(n) or isinstance(n, exp.Query))
    return [n for n in walk if wanted(n)]


def negation(mark: exp.Expr) -> exp.Expr:
    """The NOT around a mark; the mark itself if there is none."""
    above = mark.parent
    while isinstance(above, exp.Paren) and above.parent is not None:
        above = above.parent
    return above if isinstance(above, exp.Not) else mark


def only_and_or(node: exp.Expr, holder: exp.Expr) -> bool:
    """Are there only ANDs and ORs between a node and its holder?"""
    above = node.parent
    while above is not None and above is not holder:
        if not isinstance(above, exp.And | exp.Or | exp.Paren):
            return False
        above = above.parent
    return True


def only(holder: exp.Expr) -> exp.Expr:
    """The expression inside a holder, after replacements."""
    inner: exp.Expr = holder.this
    return inner


def substituted(tree: exp.Expr, known: Sequence[tuple[exp.Expr, str]]) -> exp.Expr:
    """An expression whose largest known parts are replaced by their columns."""

    def replace(node: exp.Expr) -> exp.Expr:
        return next((column(name) for expression, name in known if node == expression), node)

    return tree.transform(replace) if known else tree


def renamer(names: Mapping[str, str]) -> Callable[[exp.Expr], exp.Expr]:
    """A function for `transform` that renames columns."""

    def rename(node: exp.Expr) -> exp.Expr:
        if isinstance(node, exp.Column) and node.name in names:
            return column(names[node.name])
        return node

    return rename


def without_limit_all(tree: exp.Expr) -> None:
    """Remove every LIMIT ALL. Changes the tree."""
    for limit in list(tree.find_all(exp.Limit)):
        if isinstance(limit.expression, exp.Var) and limit.expression.name.upper() == "ALL":
            limit.pop()


def require_determinate(tree: exp.Expr) -> None:
    """Raise unless every LIMIT has an ORDER BY and nothing is sampled. Changes the tree:

    EXISTS needs no order: a LIMIT of one row or more has no effect there, and is removed.
    """
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
    if tree.find(exp.TableSample):
        raise InvalidStatement(
            "TABLESAMPLE",
            "which rows it takes is not determined",
            "Leave it out, or choose rows by a condition, such as hash(key) % 10 = 0.",
        )


def with_windows_spelled_out(tree: exp.Expr) -> None:
    """Replace OVER name by OVER (…), as defined in the WINDOW clause. Changes the tree."""
    for select in tree.find_all(exp.Select):
        named = {fold(w.this.name): w for w in select.args.get("windows") or ()}
        own = [w for w in select.find_all(exp.Window) if w.args.get("alias") and w.parent_select is select]
        for window in sorted(own, key=lambda w: w.arg_key != "windows"):  # definitions may name others: first
            _spell_out(window, named)
        select.set("windows", None)


def _spell_out(window: exp.Window, named: Mapping[str, exp.Expr]) -> None:
    meant = named.get(fold(window.args["alias"].name))
    if meant is None or meant.args.get("alias") or any(window.args.get(p) for p in _WINDOW_PARTS):
        raise Unsupported(f"the named window of {window.sql(dialect='spark'):.60}")
    window.set("alias", None)
    for part in _WINDOW_PARTS:
        given = meant.args.get(part)
        window.set(part, [g.copy() for g in given] if isinstance(given, list) else given and given.copy())


_WINDOW_PARTS = ("partition_by", "order", "spec")


def with_order_by_all_spelled_out(tree: exp.Expr, columns: Collection[str]) -> None:
    """Replace ORDER BY ALL of queries with LIMIT by all they select, in order. Changes the tree, which is qualified.

    Spark takes ALL for a column of that name where there is one; `columns` are those of the tables.
    """
    for query in tree.find_all(exp.Query):
        order = query.args.get("order")
        if order is None or [type(o.this) for o in order.expressions] != [exp.Var]:
            continue
        if query.args.get("limit") is None and query.args.get("offset") is None:
            continue
        items = [item.unalias() for item in query.selects]
        if "all" in {*columns, *map(fold, (i.alias_or_name for q in tree.find_all(exp.Query) for i in q.selects))}:
            raise Unsupported("ORDER BY ALL beside a column of that name")
        if any(item.find(exp.Query) or is_generator(unnamed(item)) for item in items):
            raise Unsupported("ORDER BY ALL over subqueries or generated rows")
        if not isinstance(query, exp.Select):  # of a set operation, or of a query in brackets: by places
            items = [exp.Literal.number(i + 1) for i, _ in enumerate(items)]
        given = order.expressions[0].args
        order.set("expressions", [exp.Ordered(**{**given, "this": item.copy()}) for item in items])


def count(node: exp.Expr | None) -> int:
    """The number in a LIMIT or OFFSET; raises Unsupported if it is no literal."""
    value = node.expression if node is not None else None
    if not isinstance(value, exp.Literal) or value.is_string:
        raise Unsupported("LIMIT that is not a number")
    return int(value.this)
