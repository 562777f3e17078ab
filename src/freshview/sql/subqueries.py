"""Subqueries as joins: EXISTS and IN are semi joins, their negations anti joins, scalar subqueries left joins.

NOT IN is an anti join on "equal or unknown", which is SQL's NULL rule word for word (law 11.7). Inside a condition,
EXISTS and IN become a column that is TRUE or FALSE.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlglot import exp

from freshview.algebra.nodes import Aggregate, Join, Project, column, conjunction, names_in, same
from freshview.sql.fragments import (
    OF_IN,
    Unsupported,
    aggregates,
    is_plain,
    marks,
    negation,
    only,
    only_and_or,
    outermost,
    renamer,
)
from freshview.sql.grouping import aggregated
from freshview.sql.tokens import word_set

if TYPE_CHECKING:
    from freshview.sql.select import Select


def keep(select: Select, tree: exp.Expr, negated: bool, kind: str) -> None:
    """Keep the rows for which [NOT] EXISTS or IN holds; with the other kind of join, the rows for which it does not."""
    if isinstance(tree, exp.In):
        _in(select, tree, negated, kind)
    else:
        _exists(select, tree.this, kind)


def marked(select: Select, tree: exp.Expr) -> exp.Expr:
    """A condition with a column in the place of each EXISTS and IN, TRUE for the rows where it holds.

    EXISTS is never unknown. For IN, unknown counts as FALSE, which is right unless there is a NOT above it.
    """
    holder = exp.Paren(this=tree.copy())
    placed: list[exp.Column] = []
    for mark in marks(holder):
        whole = negation(mark)
        if isinstance(mark, exp.In) and not only_and_or(whole, holder):
            raise Unsupported("IN (query) inside an expression")
        negated = whole is not mark
        kinds = ("anti", "semi") if negated else ("semi", "anti")
        name = select.lowering.fresh("mark")
        base = select.node
        sides = []
        for kind, value in zip(kinds, (True, False), strict=True):
            select.node = base
            keep(select, mark, negated, kind)
            items = same(base.columns)
            sides.append(Project(select.node, (*items, (name, exp.Boolean(this=value)))))
        names = select.renamed_union(tuple(sides))
        placed.append(column(name))
        whole.replace(placed[-1])
        for earlier in placed:
            earlier.set("this", exp.to_identifier(names[earlier.name], quoted=True))
    return select.value(holder.this)


def without_subqueries(select: Select, tree: exp.Expr) -> exp.Expr:
    """An expression with columns in the place of its scalar subqueries, which are joined to the SELECT's node."""
    holder = exp.Paren(this=tree.copy())
    if marks(holder):
        raise Unsupported("EXISTS or IN (query) inside an expression")
    for subquery in outermost(holder, lambda n: isinstance(n, exp.Query)):
        if not isinstance(subquery, exp.Subquery) or isinstance(subquery.parent, exp.Any | exp.All):
            raise Unsupported(f"a subquery in {tree.sql(dialect='spark'):.60}")
        subquery.replace(_scalar(select, subquery))
    return only(holder)


def _exists(select: Select, query: exp.Expr, kind: str) -> None:
    if not isinstance(query, exp.Select) or not is_plain(query):
        relation = select.uncorrelated(query)
        if relation is None:
            raise Unsupported("EXISTS over a correlated subquery with more than SELECT … FROM … WHERE")
        select.node = Join(select.node, relation.node, kind)
        return
    inner = select.subselect(query)
    select.node = Join(select.node, inner.node, kind, conjunction(inner.correlated))


def _in(select: Select, tree: exp.In, negated: bool, kind: str) -> None:
    query = tree.args["query"]
    relation = select.uncorrelated(query)
    conditions: list[exp.Expr] = []
    if relation is not None:
        node = relation.node
        values: list[exp.Expr] = [column(c) for _, c in relation.outputs]
    else:
        body = query.this if isinstance(query, exp.Subquery) else query
        if not isinstance(body, exp.Select) or not is_plain(body):
            raise Unsupported("IN over a correlated subquery with more than SELECT … FROM … WHERE")
        inner = select.subselect(body)
        values = [inner.value(e.unalias()) for e in body.expressions]
        node, conditions = inner.node, list(inner.correlated)
    row = tree.this.unnest()
    needles = row.expressions if isinstance(row, exp.Tuple) else [tree.this]
    if len(needles) != len(values):
        raise Unsupported("IN (query) of a row with another number of columns")
    if negated and len(needles) > 1:
        raise Unsupported("NOT IN over several columns")
    for needle, value in zip(needles, values, strict=True):
        equal: exp.Expr = exp.EQ(this=select.value(needle), expression=value)
        equal.meta[OF_IN] = True
        conditions.append(exp.Coalesce(this=equal, expressions=[exp.true()]) if negated else equal)
    select.node = Join(select.node, node, kind, conjunction(conditions))


def _scalar(select: Select, subquery: exp.Subquery) -> exp.Expr:
    """The value of a scalar subquery, joined by a left join: of no rows it is NULL, for a COUNT 0 (law 11.10)."""
    query = subquery.this
    if not isinstance(query, exp.Select) or not is_plain(query, aggregate=True):
        return _single_row(select, query)
    inner = select.subselect(query)
    items = [e.unalias() for e in query.expressions]
    if len(items) != 1:
        raise Unsupported("a scalar subquery of several columns")
    keys, conditions = [], []
    for conjunct in inner.correlated:
        own, foreign = _equality(conjunct, set(inner.node.columns))
        keys.append(inner.column_of(own))
        conditions.append(exp.EQ(this=column(keys[-1]), expression=foreign))
    keys = list(dict.fromkeys(keys))
    aggregated(inner, keys, items)
    value = select.lowering.fresh("scalar")
    found = select.lowering.fresh("found")
    result = inner.value(items[0])
    right = Project(inner.node, (*((k, column(k)) for k in keys), (value, result), (found, exp.true())))
    renamed = {k: select.lowering.fresh(k) for k in keys}
    right = Project(right, (*((renamed[k], column(k)) for k in keys), (value, column(value)), (found, column(found))))
    on = [c.transform(renamer(renamed)) for c in conditions]
    select.node = Join(select.node, right, "left", conjunction(on))
    empty = _on_empty(items[0])
    if isinstance(empty, exp.Null):
        return column(value)
    return exp.Case(ifs=[exp.If(this=column(found), true=column(value))], default=empty)


def _single_row(select: Select, query: exp.Expr) -> exp.Expr:
    """The value of any other scalar subquery: its only row, NULL if there is none, Spark's error if there are more."""
    relation = select.uncorrelated(query)
    if relation is None or len(relation.outputs) != 1:
        raise Unsupported("a correlated scalar subquery that is not a single aggregate")
    value, rows = select.lowering.fresh("scalar"), select.lowering.fresh("rows")
    only = column(relation.outputs[0][1])
    grouped = Aggregate(relation.node, (), ((value, exp.Max(this=only)), (rows, exp.Count(this=exp.Star()))))
    select.node = Join(select.node, grouped, "inner")
    many = exp.GT(this=column(rows), expression=exp.Literal.number(1))
    error = exp.Anonymous(this="raise_error", expressions=[exp.Literal.string("SCALAR_SUBQUERY_TOO_MANY_ROWS")])
    return exp.Case(ifs=[exp.If(this=many, true=error)], default=column(value))


def _equality(conjunct: exp.Expr, own: set[str]) -> tuple[exp.Expr, exp.Expr]:
    """A correlated `inner = outer` as (inner, outer)."""
    conjunct = conjunct.unnest()
    if isinstance(conjunct, exp.EQ):
        a, b = conjunct.this, conjunct.expression
        if names_in(a) and names_in(a) <= own and not names_in(b) & own:
            return a, b
        if names_in(b) and names_in(b) <= own and not names_in(a) & own:
            return b, a
    raise Unsupported("a scalar subquery correlated by more than equality")


def _on_empty(item: exp.Expr) -> exp.Expr:
    """The value of an expression over aggregates if there are no rows."""
    calls = aggregates(item)
    if item in calls:
        return _of_nothing(item)
    strict = all(isinstance(n, _STRICT) for n in _above(item, calls))
    if all(isinstance(_of_nothing(c), exp.Null) for c in calls) and strict:
        return exp.Null()  # NULL in, NULL out
    holder = exp.Paren(this=item.copy())
    for call in aggregates(holder):
        call.replace(_of_nothing(call))
    return only(holder)


def _of_nothing(call: exp.Expr) -> exp.Expr:
    """The result of an aggregate over no rows, if it is known: NULL, 0, or an empty array."""
    while isinstance(call, exp.Filter | exp.WithinGroup):
        call = call.this
    name = call.name.upper() if isinstance(call, exp.Anonymous) else ""
    if isinstance(call, _COUNTS) or name in _COUNT_NAMES:
        return exp.Literal.number(0)
    if isinstance(call, exp.ArrayAgg | exp.ArrayUniqueAgg):
        return exp.Array(expressions=[])
    if isinstance(call, _NULL_OF_NOTHING) or name in _NULL_NAMES:
        return exp.Null()
    raise Unsupported(f"{call.sql(dialect='spark'):.60} in a scalar subquery, which may have no rows,")


_COUNTS = (exp.Count, exp.CountIf, exp.ApproxDistinct, exp.RegrCount)
_COUNT_NAMES = {"COUNT_IF", "REGR_COUNT"}
_VALUES = (exp.Sum, exp.Avg, exp.Min, exp.Max, exp.ArgMax, exp.ArgMin, exp.LogicalAnd, exp.LogicalOr, exp.Any)
_BITS = (exp.BitwiseAndAgg, exp.BitwiseOrAgg, exp.BitwiseXorAgg)
_PLACES = (exp.Median, exp.Quantile, exp.PercentileCont, exp.PercentileDisc, exp.Mode)
_SPREADS = (exp.Stddev, exp.StddevPop, exp.StddevSamp, exp.Variance, exp.VariancePop, exp.Skewness, exp.Kurtosis)
_PAIRS = (exp.Corr, exp.CovarPop, exp.CovarSamp, exp.RegrSlope, exp.RegrIntercept, exp.RegrR2)
_SUMS_OF_PAIRS = (exp.RegrAvgx, exp.RegrAvgy, exp.RegrSxx, exp.RegrSxy, exp.RegrSyy)
_NULL_OF_NOTHING = (*_VALUES, *_BITS, *_PLACES, *_SPREADS, *_PAIRS, *_SUMS_OF_PAIRS)
_NULL_NAMES = word_set("""
    ANY BIT_AND BIT_OR BIT_XOR BOOL_AND BOOL_OR EVERY KURTOSIS MEAN MODE PERCENTILE SKEWNESS SOME STD TRY_AVG TRY_SUM
""")
_STRICT = (exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Neg, exp.Paren, exp.Literal)


def _above(item: exp.Expr, calls: list[exp.Expr]) -> list[exp.Expr]:
    """The parts of an expression that are not inside its aggregate calls."""
    inside = {id(n) for call in calls for n in call.walk()}
    return [n for n in item.walk() if id(n) not in inside]
