"""What a view is: its text, the relations it reads, how it is stored, and how it can be maintained."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

import sqlglot
from sqlglot import exp

from freshview.algebra.nodes import Aggregate, Lowered, Node, Project, TopK, Window, column
from freshview.algebra.traversal import bottom_up, rewrite
from freshview.catalog.records import Relation
from freshview.delta.aggregates import TypesOf, case
from freshview.delta.forms import Form, choose_form, hidden, rows_form
from freshview.delta.report import operator_of
from freshview.errors import InvalidStatement, NotMaintainable
from freshview.sql.lowering import Unsupported, lower

_RANDOM = {
    "RAND", "RANDN", "RANDOM", "UUID", "NOW", "CURRENT_TIMESTAMP", "CURRENT_DATE", "CURRENT_TIME", "LOCALTIMESTAMP",
    "UNIX_TIMESTAMP", "MONOTONICALLY_INCREASING_ID", "SPARK_PARTITION_ID", "INPUT_FILE_NAME", "SHUFFLE", "RANDSTR",
    "UNIFORM", "CURDATE", "CURRENT_USER", "USER", "SESSION_USER", "CURRENT_CATALOG", "CURRENT_SCHEMA",
    "CURRENT_DATABASE", "CURRENT_TIMEZONE", "VERSION", "INPUT_FILE_BLOCK_START", "INPUT_FILE_BLOCK_LENGTH",
    "CURTIME", "REFLECT", "JAVA_METHOD", "TRY_REFLECT", "AES_ENCRYPT",
}  # fmt: skip
_MOMENTS = {"now", "today", "tomorrow", "yesterday"}  # Spark takes such strings for dates and times
_RANDOM_NODES = (exp.Rand, exp.Randn, exp.Uuid, exp.CurrentTimestamp, exp.CurrentDate, exp.CurrentTime, exp.CurrentUser)
_UNORDERED = (
    exp.First, exp.Last, exp.FirstValue, exp.LastValue, exp.AnyValue, exp.ArrayAgg, exp.ArrayUniqueAgg, exp.GroupConcat,
    exp.Mode, exp.ApproxQuantile, exp.ApproxTopK, exp.ApproxTopKAccumulate, exp.ApproxTopKCombine,
)  # fmt: skip
_UNORDERED_NAMES = {
    "FIRST", "LAST", "FIRST_VALUE", "LAST_VALUE", "COLLECT_LIST", "COLLECT_SET", "ARRAY_AGG", "LISTAGG", "STRING_AGG",
    "MODE", "HISTOGRAM_NUMERIC", "HLL_SKETCH_AGG", "HLL_UNION_AGG", "SCHEMA_OF_VARIANT_AGG",
}  # fmt: skip
_SKETCHES = ("APPROX_TOP_K", "KLL_", "THETA_", "TUPLE_")  # their bytes depend on the order of the rows
_WAYS_OUT: dict[type[exp.Expr], str] = {
    exp.ArrayAgg: "Sort it: sort_array(collect_list(x)).",
    exp.ArrayUniqueAgg: "Sort it: sort_array(collect_set(x)).",
    exp.GroupConcat: "Use array_join(sort_array(collect_list(x)), ',').",
    exp.Mode: "Use mode(x, true), which takes the smallest of equally frequent values.",
    exp.ApproxQuantile: "Use percentile(x, p), which is exact.",
}
_POSITIONAL = (
    exp.RowNumber, exp.Lead, exp.Lag, exp.First, exp.Last, exp.FirstValue, exp.LastValue, exp.NthValue, exp.Ntile,
)  # fmt: skip
_INEXACT = (
    exp.Sum, exp.Avg, exp.Stddev, exp.StddevPop, exp.StddevSamp, exp.Variance, exp.VariancePop, exp.Corr, exp.CovarPop,
    exp.CovarSamp, exp.Skewness, exp.Kurtosis, exp.RegrSlope, exp.RegrIntercept, exp.RegrR2, exp.RegrAvgx, exp.RegrAvgy,
    exp.RegrSxx, exp.RegrSxy, exp.RegrSyy,
)  # fmt: skip
_INEXACT_NAMES = {"MEAN", "STD", "TRY_SUM", "TRY_AVG", "SKEWNESS", "KURTOSIS"}


@dataclass(frozen=True)
class Definition:
    """A view's definition, ready to be maintained."""

    text: str
    sources: dict[str, Relation]  # by the name in the text
    names: tuple[str, ...]
    refresh: str  # "auto" | "incremental" | "full"
    lowered: Lowered | None
    form: Form | None
    types: dict[str, str]  # of stored columns
    reason: str  # why it is recomputed; empty if it is maintained incrementally
    obstacles: tuple[tuple[Node, str], ...] = ()  # operators that would be recomputed, each with its reason

    @property
    def incremental(self) -> bool:
        return not self.reason and self.refresh != "full"

    @property
    def hindrance(self) -> str:
        """What would be recomputed, named by its operator, and why."""
        if self.lowered is None or not self.obstacles:
            return self.reason
        return "; ".join(f"{operator_of(self.lowered, node)}: {reason}" for node, reason in self.obstacles)


def refuse_indeterminate(text: str) -> None:
    """A view must be a function of its tables; say which call is not."""
    tree = sqlglot.parse_one(text, read="spark")
    for node in tree.walk():
        name = node.name.upper() if isinstance(node, exp.Anonymous) else node.key.upper()
        if isinstance(node, _RANDOM_NODES) or _is_random(node):
            raise NotMaintainable(
                f"{node.sql(dialect='spark')}", "its value is not determined by the tables",
                "Leave it out, or put the value into a table.",
            )  # fmt: skip
        if _is_undetermined(node, name):
            raise NotMaintainable(
                f"{node.sql(dialect='spark')}", "which row it takes, or in which order, is not determined",
                _WAYS_OUT.get(type(node), "Use min, max, min_by or max_by."),
            )  # fmt: skip


def _is_random(node: exp.Expr) -> bool:
    """A call whose value the tables do not determine, or a date that is written 'today'."""
    if isinstance(node, exp.Cast | exp.TryCast | exp.TsOrDsToDate | exp.StrToTime | exp.StrToDate):
        return isinstance(node.this, exp.Literal) and node.this.name.strip().lower() in _MOMENTS
    names = [node.name.upper()] if isinstance(node, exp.Anonymous) else _names_of(node)
    return not _RANDOM.isdisjoint(names)


def _names_of(node: exp.Expr) -> list[str]:
    return node.sql_names() if isinstance(node, exp.Func) else []


def _is_undetermined(node: exp.Expr, name: str) -> bool:
    """Does an aggregate depend on the order of its rows? Sorted it does not, and in windows ties are broken."""
    named = isinstance(node, exp.Anonymous) and (name in _UNORDERED_NAMES or name.startswith(_SKETCHES))
    if not named and not isinstance(node, _UNORDERED):
        return False
    if isinstance(node, exp.Mode) and node.args.get("deterministic") == exp.true():
        return False
    above = node.parent
    while isinstance(above, exp.IgnoreNulls | exp.RespectNulls | exp.Filter):
        above = above.parent
    if isinstance(above, exp.ArraySort) and above.expression is None:
        return not isinstance(node, exp.ArrayAgg | exp.ArrayUniqueAgg)
    return not (isinstance(above, exp.Window) and isinstance(node, _POSITIONAL))


def analyse(
    text: str, sources: Mapping[str, Relation], columns: Mapping[str, tuple[str, ...]], names: tuple[str, ...],
    refresh: str, types_of: TypesOf,
) -> Definition:  # fmt: skip
    """How a definition can be stored and maintained. `columns` are its sources' columns at CREATE."""
    lowered: Lowered | None = None
    form: Form | None = None
    types: dict[str, str] = {}
    obstacles: list[tuple[Node, str]] = []
    reason = ""
    try:
        _require_readable(text)
        lowered = _with_tie_breaks(best_by_pairs(lower(text, columns, names), types_of))
        form = choose_form(lowered, names, types_of)
        types = dict(types_of(form.tree))
        obstacles = _obstacles(form, types_of)
        if obstacles:
            form = rows_form(lowered, names)
            types = dict(types_of(form.tree))
    except Unsupported as unsupported:
        undetermined = sqlglot.parse_one(text, read="spark").find(exp.Limit, exp.ArgMax, exp.ArgMin)
        if undetermined is not None:
            limit = isinstance(undetermined, exp.Limit)
            raise NotMaintainable(
                "LIMIT" if limit else undetermined.sql(dialect="spark"),
                f"which of equal rows it keeps is not determined, since {unsupported} has no algebra here",
                "Leave LIMIT out, or use rank() in a subquery." if limit else f"Use {_PAIRS}.",
            ) from unsupported
        lowered = form = None
        reason = f"{unsupported} has no delta rule"
    reason = reason or "; ".join(dict.fromkeys(why for _, why in obstacles))
    found = Definition(text, dict(sources), names, refresh, lowered, form, types, reason, tuple(obstacles))
    if refresh == "incremental" and reason:
        raise NotMaintainable(
            "view", f"it would have to be recomputed: {found.hindrance}", "Rewrite it, or leave 'refresh' at 'auto'."
        )
    return found


def _require_readable(text: str) -> None:
    """What would not be written again as it was read has no algebra: percentile_cont would become approximate."""
    found = sqlglot.parse_one(text, read="spark").find(exp.PercentileCont, exp.PercentileDisc)
    if found is not None:
        raise Unsupported(found.key)


def _obstacles(form: Form, types_of: TypesOf) -> list[tuple[Node, str]]:
    """Operators for which the general rules would not be exact or not be better than recomputing, and why."""
    found: list[tuple[Node, str]] = []
    for node in bottom_up(form.tree):
        if isinstance(node, TopK):
            found.append((node, "ORDER BY … LIMIT over the whole input has no key"))
        elif isinstance(node, Window) and not node.partition:
            found.append((node, "a window without PARTITION BY has no key"))
        elif isinstance(node, Aggregate | Window) and node is not form.root:
            calls = [(n, e) for n, e in node.items if any(map(_is_inexact, e.walk()))]
            types = types_of(node) if calls else {}
            inexact = [e.sql(dialect="spark") for n, e in calls if types[n] in ("double", "float")]
            if inexact:
                found.append((node, f"{inexact[0]} is inexact and stands below another operator"))
    return found


def _is_inexact(node: exp.Expr) -> bool:
    """Does a call on doubles depend on the order in which they are added?"""
    return isinstance(node, _INEXACT) or (isinstance(node, exp.Anonymous) and node.name.upper() in _INEXACT_NAMES)


def _with_tie_breaks(lowered: Lowered) -> Lowered:
    """Positional window functions order ties by all columns of the row, the same on every path."""
    def rule(node: Node) -> Node:
        if not isinstance(node, Window):
            return node
        items = []
        for name, call in node.items:
            call = call.copy()
            spec = call.args.get("spec")
            positional = any(isinstance(x, _POSITIONAL) for x in call.walk()) or (
                spec is not None and str(spec.args.get("kind", "")).upper() == "ROWS"
            )
            if positional:
                order = call.args.get("order")
                terms = list(order.expressions) if order is not None else []
                terms += [exp.Ordered(this=column(c), desc=False) for c in node.input.columns]
                call.set("order", exp.Order(expressions=terms))
            items.append((name, call))
        return replace(node, items=tuple(items))

    return Lowered(rewrite(lowered.node, rule), lowered.outputs)


def best_by_pairs(lowered: Lowered, types_of: TypesOf) -> Lowered:
    """max_by(x, y) and min_by(x, y) as the best pair (y, x): of equal y the best x wins, the same on every path.

    As in Spark, rows without y do not count, and x may be NULL.
    """

    def rule(node: Node) -> Node:
        if not isinstance(node, Aggregate | Window):
            return node
        found = {name: call for name, call in node.items if _best_by(call) is not None}
        if not found:
            return node
        _refuse_unordered(node, list(found.values()), types_of)
        items = tuple((f"{n}__pair", _paired(e)) if n in found else (n, e) for n, e in node.items)
        pairs: Node = replace(node, items=items)
        shown = [(n, exp.Dot(this=column(f"{n}__pair"), expression=exp.to_identifier("x"))) for n in found]
        others = [(c, column(c)) for c in node.columns if c not in found]
        return Project(pairs, (*others, *shown))

    return Lowered(rewrite(lowered.node, rule), lowered.outputs)


_PAIRS = "max(named_struct('y', y, 'x', x)).x"  # the way out, in the user's hands


def _best_by(call: exp.Expr) -> exp.ArgMax | exp.ArgMin | None:
    """The max_by or min_by of a call with FILTER and OVER around it."""
    while isinstance(call, exp.Window | exp.Filter):
        call = call.this
    return call if isinstance(call, exp.ArgMax | exp.ArgMin) else None


def _paired(call: exp.Expr) -> exp.Expr:
    holder = exp.Paren(this=call.copy())
    best = _best_by(holder.this)
    assert best is not None
    x, y = best.this, best.expression
    fields = [exp.PropertyEQ(this=exp.to_identifier(n), expression=e.copy()) for n, e in (("y", y), ("x", x))]
    known = exp.Not(this=exp.Is(this=y.copy(), expression=exp.Null()))
    pair = case(known, exp.Struct(expressions=fields))
    best.replace(exp.Max(this=pair) if isinstance(best, exp.ArgMax) else exp.Min(this=pair))
    whole: exp.Expr = holder.this
    return whole


def _refuse_unordered(node: Aggregate | Window, calls: list[exp.Expr], types_of: TypesOf) -> None:
    """Ties are broken by x, so it needs an order."""
    found = [best for best in map(_best_by, calls) if best is not None]
    types = types_of(Project(node.input, tuple((f"x{i}", b.this.copy()) for i, b in enumerate(found))))
    for i, best in enumerate(found):
        text = best.sql(dialect="spark")
        if best.args.get("count") is not None:
            raise NotMaintainable(text, "which of equal rows it takes is not determined", f"Use {_PAIRS}, or rank().")
        if re.search(r"\b(map<|variant)", types[f"x{i}"]):
            raise NotMaintainable(
                text, f"of rows with equal order, which one it takes is not determined: {types[f'x{i}']} has no order",
                "Take a key by max_by, and join the rest to it.",
            )  # fmt: skip


def sources_to_json(sources: Mapping[str, Relation]) -> str:
    return json.dumps({n: {"id": r.id, "columns": visible_columns(r)} for n, r in sources.items()})


def visible_columns(relation: Relation) -> tuple[str, ...]:
    """The columns of a relation that queries see: a view's hidden ones are left out."""
    if relation.kind != "view":
        return relation.schema.names
    return tuple(json.loads(relation.properties["columns"]))


def shown_column(relation: Relation) -> str | None:
    """The column of a stored view that says which rows belong to it; None: all of them."""
    if relation.kind != "view":
        return None
    name = hidden("shown", visible_columns(relation))
    return name if name in relation.schema.names else None


def check_output_names(names: tuple[str, ...]) -> None:
    seen: set[str] = set()
    for name in names:
        if name.casefold() in seen:
            raise InvalidStatement(
                f"column {name}", "the view gives it twice", "Give each column a name of its own with AS."
            )
        seen.add(name.casefold())
