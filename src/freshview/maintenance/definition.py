"""What a view is: its text, the relations it reads, how it is stored, and how it can be maintained."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import sqlglot
from sqlglot import exp

from freshview.algebra.nodes import Aggregate, Lowered, Node, TopK, Window
from freshview.algebra.traversal import bottom_up
from freshview.catalog.records import Relation
from freshview.delta.forms import Form, choose_form, rows_form
from freshview.delta.report import operator_of
from freshview.errors import InvalidStatement, NotMaintainable
from freshview.sql.lowering import Unsupported, lower

_RANDOM = {
    "RAND", "RANDN", "RANDOM", "UUID", "NOW", "CURRENT_TIMESTAMP", "CURRENT_DATE", "CURRENT_TIME", "LOCALTIMESTAMP",
    "UNIX_TIMESTAMP", "MONOTONICALLY_INCREASING_ID", "SPARK_PARTITION_ID", "INPUT_FILE_NAME", "SHUFFLE", "RANDSTR",
    "UNIFORM", "CURDATE", "CURRENT_USER", "USER", "SESSION_USER", "CURRENT_CATALOG", "CURRENT_SCHEMA",
    "CURRENT_DATABASE", "CURRENT_TIMEZONE", "VERSION", "INPUT_FILE_BLOCK_START", "INPUT_FILE_BLOCK_LENGTH",
}  # fmt: skip
_RANDOM_NODES = (exp.Rand, exp.Randn, exp.Uuid, exp.CurrentTimestamp, exp.CurrentDate, exp.CurrentTime, exp.CurrentUser)
_UNORDERED = (exp.First, exp.Last, exp.AnyValue, exp.ArrayAgg, exp.ArrayUniqueAgg, exp.GroupConcat)
_UNORDERED_NAMES = {
    "FIRST",
    "LAST",
    "FIRST_VALUE",
    "LAST_VALUE",
    "COLLECT_LIST",
    "COLLECT_SET",
    "ARRAY_AGG",
    "LISTAGG",
    "STRING_AGG",
    "MODE",
}
_POSITIONAL = (exp.RowNumber, exp.Lead, exp.Lag, exp.FirstValue, exp.LastValue, exp.NthValue, exp.Ntile)
_INEXACT = (
    exp.Sum,
    exp.Avg,
    exp.Stddev,
    exp.StddevPop,
    exp.StddevSamp,
    exp.Variance,
    exp.VariancePop,
    exp.Corr,
    exp.CovarPop,
    exp.CovarSamp,
)

TypesOf = Callable[[Node], Mapping[str, str]]  # Spark's types of a tree's columns


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
        if isinstance(node, _RANDOM_NODES) or (isinstance(node, exp.Anonymous) and name in _RANDOM):
            raise NotMaintainable(
                f"{node.sql(dialect='spark')}", "its value is not determined by the tables",
                "Leave it out, or put the value into a table.",
            )  # fmt: skip
        unordered = isinstance(node, _UNORDERED) or (isinstance(node, exp.Anonymous) and name in _UNORDERED_NAMES)
        if unordered and not isinstance(node.parent, exp.Window | exp.IgnoreNulls | exp.RespectNulls):
            raise NotMaintainable(
                f"{node.sql(dialect='spark')}", "which row it takes, or in which order, is not determined",
                "Use min, max, min_by, max_by or sort_array over a set.",
            )  # fmt: skip


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
        lowered = _with_tie_breaks(lower(text, columns))
        form = choose_form(lowered, names, exact_sums=True)
        types = dict(types_of(form.tree))
        if form.rule == "sums" and any(c.startswith("__sum") and types[c] in ("double", "float") for c in form.stored):
            form = choose_form(lowered, names, exact_sums=False)
            types = dict(types_of(form.tree))
        obstacles = _obstacles(form, types_of)
        if obstacles:
            form = rows_form(lowered, names)
            types = dict(types_of(form.tree))
    except Unsupported as unsupported:
        if sqlglot.parse_one(text, read="spark").find(exp.Limit):
            raise NotMaintainable(
                "LIMIT", f"which of equal rows it keeps is not determined, since {unsupported} has no algebra here",
                "Leave LIMIT out, or use rank() in a subquery.",
            ) from unsupported  # fmt: skip
        lowered = form = None
        reason = f"{unsupported} has no delta rule"
    reason = reason or "; ".join(dict.fromkeys(why for _, why in obstacles))
    found = Definition(text, dict(sources), names, refresh, lowered, form, types, reason, tuple(obstacles))
    if refresh == "incremental" and reason:
        raise NotMaintainable(
            "view", f"it would have to be recomputed: {found.hindrance}", "Rewrite it, or leave 'refresh' at 'auto'."
        )
    return found


def _obstacles(form: Form, types_of: TypesOf) -> list[tuple[Node, str]]:
    """Operators for which the general rules would not be exact or not be better than recomputing, and why."""
    found: list[tuple[Node, str]] = []
    for node in bottom_up(form.tree):
        if isinstance(node, TopK):
            found.append((node, "ORDER BY … LIMIT over the whole input has no key"))
        elif isinstance(node, Window) and not node.partition:
            found.append((node, "a window without PARTITION BY has no key"))
        elif isinstance(node, Aggregate | Window) and node is not form.root:
            calls = [(n, e) for n, e in node.items if any(isinstance(x, _INEXACT) for x in e.walk())]
            types = types_of(node) if calls else {}
            inexact = [e.sql(dialect="spark") for n, e in calls if types[n] in ("double", "float")]
            if inexact:
                found.append((node, f"{inexact[0]} is inexact and stands below another operator"))
    return found


def _with_tie_breaks(lowered: Lowered) -> Lowered:
    """Positional window functions order ties by all columns of the row, the same on every path."""
    from dataclasses import replace

    from freshview.algebra.nodes import column
    from freshview.algebra.traversal import rewrite

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


def sources_to_json(sources: Mapping[str, Relation]) -> str:
    return json.dumps({n: {"id": r.id, "columns": visible_columns(r)} for n, r in sources.items()})


def visible_columns(relation: Relation) -> tuple[str, ...]:
    """The columns of a relation that queries see: a view's hidden ones are left out."""
    if relation.kind != "view":
        return relation.schema.names
    return tuple(json.loads(relation.properties["columns"]))


def check_output_names(names: tuple[str, ...]) -> None:
    seen: set[str] = set()
    for name in names:
        if name.casefold() in seen:
            raise InvalidStatement(
                f"column {name}", "the view gives it twice", "Give each column a name of its own with AS."
            )
        seen.add(name.casefold())
