"""The maintainability report: for each operator of a view, how its change is found, and why so.

    linear          the operator is applied to the change of its input
    multilinear     one term per changed input, each joined outward from that input's change
    affected keys   computed again for the keys that a change touches, minus the old rows of these keys
    state           the aggregates of the change are added to the stored state
    buffer          the change is merged into the stored rows, which reach beyond those of the view
    recompute       no key narrows the work: the operator is computed over all rows

A report is data: EXPLAIN prints it, and errors take the operator's name from it. Ways follow the rules in
delta/derive.py (operators inside), delta/forms.py (the aggregate at the root, whose old rows are stored) and
delta/top.py (ORDER BY … LIMIT at the root).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sqlglot import exp

from freshview.algebra.nodes import (
    Aggregate,
    Filter,
    Generate,
    Join,
    Lowered,
    Node,
    Project,
    Scan,
    SetOperation,
    TopK,
    Union,
    Values,
    Window,
    equalities,
    names_in,
)
from freshview.algebra.traversal import fold, scans
from freshview.delta.forms import Form
from freshview.delta.top import unkept

SOURCE, CONSTANT, LINEAR, MULTILINEAR = "source", "constant", "linear", "multilinear"
AFFECTED_KEYS, STATE, BUFFER, RECOMPUTE = "affected keys", "state", "buffer", "recompute"
WAYS = (SOURCE, CONSTANT, LINEAR, MULTILINEAR, AFFECTED_KEYS, STATE, BUFFER, RECOMPUTE)
_WIDTH = 70  # characters of an operator's text


@dataclass(frozen=True)
class Step:
    """One operator: its text, the way its change is computed, the reason, and the steps of its inputs."""

    operator: str
    way: str
    reason: str
    keys: tuple[str, ...] = ()  # the affected keys, by the user's names
    inputs: tuple[Step, ...] = ()

    def walk(self) -> Iterator[Step]:
        """The step and all below it, inputs after their operator."""
        yield self
        for step in self.inputs:
            yield from step.walk()


def report(lowered: Lowered, form: Form, obstacles: Mapping[Node, str] | None = None) -> Step:
    """How each operator of a view is maintained.

    `obstacles` maps operators to the reason why the view is recomputed because of them, even if they have a rule.
    """
    names = _names(lowered.node)

    def step(node: Node, inputs: tuple[Step, ...]) -> Step:
        way, reason, keys = _way(node, form)
        if obstacles and node in obstacles:
            way, reason, keys = RECOMPUTE, obstacles[node], ()
        return Step(_operator(node, names), way, reason, tuple(_name(k, names) for k in keys), inputs)

    return fold(lowered.node, step)


def unreadable(reason: str) -> Step:
    """The report on a definition that has no algebra."""
    return Step("query", RECOMPUTE, reason)


def operator_of(lowered: Lowered, node: Node) -> str:
    """The text of one operator of a view, with the user's names."""
    return _operator(node, _names(lowered.node))


def lines(step: Step, indent: str = "") -> list[str]:
    """A report as an indented tree, one operator to a line, each with its way and the reason."""
    keys = f" ({', '.join(step.keys)})" if step.keys else ""
    found = [f"{indent}{step.operator}  <- {step.way}{keys}: {step.reason}"]
    return found + [line for i in step.inputs for line in lines(i, indent + "  ")]


# -- ways ------------------------------------------------------------------------------------------


def _way(node: Node, form: Form) -> tuple[str, str, tuple[str, ...]]:
    """(way, reason, keys) of one operator."""
    match node:
        case Scan():
            return SOURCE, "its net change since the frontier", ()
        case Values():
            return CONSTANT, "never changes", ()
        case Filter() | Project() | Generate():
            return LINEAR, "row by row, applied to the change", ()
        case Union():
            return LINEAR, "the changes of its parts together", ()
        case Join(kind="inner"):
            return MULTILINEAR, "one term per changed input, from its change outward", ()
        case Join():
            return _outer(node)
        case Aggregate() if node is form.root:
            return _root(node, form)
        case Aggregate() | Window():
            return _grouped(node)
        case SetOperation():
            return AFFECTED_KEYS, "counted again for the rows that occur in a change", node.left.columns
        case TopK() if form.top is not None and node is form.top.source:
            return BUFFER, f"merged into the stored rows; {form.top.proviso}", ()
        case TopK():
            return RECOMPUTE, unkept(node), ()
    raise TypeError(type(node).__name__)


def _outer(node: Join) -> tuple[str, str, tuple[str, ...]]:
    """The way of a left, semi or anti join: linear on the left; a change on the right touches the rows it matches."""
    keys = [name for own, _, _ in equalities(node) for name in sorted(names_in(own))]
    how = "by these keys" if keys else "by its condition, each pair compared"
    return AFFECTED_KEYS, f"linear on the left; rows of the left that a change on the right matches, {how}", tuple(keys)


def _root(node: Aggregate, form: Form) -> tuple[str, str, tuple[str, ...]]:
    """The way of the aggregate whose old rows are stored."""
    if form.rule == "sums":
        return STATE, "counts, exact sums, best values of the change are added to those stored", node.keys
    if not node.keys:
        return AFFECTED_KEYS, "its one group is all rows, computed again if one of them changed", ()
    return AFFECTED_KEYS, "these groups are computed again; their old rows are the stored ones", node.keys


def _grouped(node: Aggregate | Window) -> tuple[str, str, tuple[str, ...]]:
    """The way of another aggregate or a window: both its old and its new rows are computed."""
    keys = node.keys if isinstance(node, Aggregate) else node.partition
    if keys:
        return AFFECTED_KEYS, "computed for these keys, over the old and the new rows", keys
    if isinstance(node, Window):
        return RECOMPUTE, "a window without PARTITION BY has no key", ()
    return RECOMPUTE, "without GROUP BY its one group is all rows, old and new", ()


# -- texts -----------------------------------------------------------------------------------------


def _names(root: Node) -> dict[str, str]:
    """The columns of scans, as the user calls them: relation.column."""
    return {name: f"{s.relation}.{c}" for s in scans(root) for c, name in s.fields}


def _name(column: str, names: Mapping[str, str]) -> str:
    """The user's name of a column; that of a computed one is without the number that makes it unique."""
    return names.get(column) or re.sub(r"_\d+$", "", column)


def _text(expression: exp.Expr, names: Mapping[str, str]) -> str:
    def rename(node: exp.Expr) -> exp.Expr:
        return exp.column(_name(node.name, names)) if isinstance(node, exp.Column) else node

    return _cut(expression.copy().transform(rename).sql(dialect="spark"))


def _cut(text: str) -> str:
    text = " ".join(text.replace("`", "").split())
    return text if len(text) <= _WIDTH else f"{text[: _WIDTH - 1]}…"


def _listed(expressions: list[str]) -> str:
    return _cut(", ".join(expressions))


def _operator(node: Node, names: Mapping[str, str]) -> str:
    match node:
        case Scan():
            return f"scan {node.relation}"
        case Values():
            return f"values, {len(node.rows)} rows"
        case Filter():
            return f"filter {_text(node.predicate, names)}"
        case Project():
            return f"project {_listed([_text(e, names) for _, e in node.items])}"
        case Generate():
            return f"generate {'outer ' if node.outer else ''}{_text(node.generator, names)}"
        case Union():
            return "union all"
        case Join():
            kind = "cross" if node.kind == "inner" and node.condition is None else node.kind
            return f"{kind} join" + (f" on {_text(node.condition, names)}" if node.condition is not None else "")
        case Aggregate():
            by = f" by {_listed([_name(k, names) for k in node.keys])}" if node.keys else ""
            if not node.items:
                return f"distinct{by}"
            return f"aggregate {_listed([_text(e, names) for _, e in node.items])}{by}"
        case Window():
            return f"window {_listed([_text(e, names) for _, e in node.items])}"
        case SetOperation():
            return f"{node.kind} all"
        case TopK():
            first = "all" if node.limit is None else node.limit
            skipped = f" offset {node.offset}" if node.offset else ""
            return f"top {first}{skipped} by {_listed([_text(e, names) for e in node.order])}"
    raise TypeError(type(node).__name__)
