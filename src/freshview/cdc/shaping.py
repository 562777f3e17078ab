"""The definition of a view over remote tables as a dimension view (PARTIAL §5.2, Definition 2).

An inner-join block is a set of inputs and a set of conditions. One input is the root; the others are joined to it one
after the other, each by its whole primary key:

    block = σ_rest(… ((root ⋈ T1) ⋈ T2) …)        every column of the key of Ti equals a column of what is joined before

Conditions on one input are applied before the joins, as Spark's own optimiser does. A block may have several roots; one
whose key the view keeps is preferred. What has no such form is refused, with the reason.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from sqlglot import exp

from freshview.algebra import nodes as algebra
from freshview.algebra.facts import flat_join
from freshview.algebra.nodes import conjunction, names_in
from freshview.cdc.dimension import Extend, KeyJoin, Projection, Remote, RemoteNode, RowFilter, RowTest
from freshview.errors import NotMaintainable
from freshview.relation.schema import Schema

_OVER_IT = (
    "Create a dimension view of the tables (columns, filters, joins to primary keys), and this view over that one"
)
HOLD = "copy the tables into the warehouse by a flow (CREATE FLOW), where every view works"
_OPERATORS = {
    algebra.Aggregate: "a grouping or DISTINCT",
    algebra.Union: "a UNION",
    algebra.SetOperation: "an EXCEPT or INTERSECT",
    algebra.Window: "a window function",
    algebra.TopK: "ORDER BY with LIMIT",
    algebra.Generate: "a generator",
    algebra.Values: "constant rows",
    algebra.Join: "an outer join or a subquery",
}


class Evaluator(Protocol):
    """Gives expressions the meaning that Spark gives them."""

    def condition(self, schema: Schema, predicate: exp.Expr) -> RowTest: ...

    def extended(self, node: RemoteNode, items: Sequence[tuple[str, exp.Expr]]) -> Extend: ...


def shaped(lowered: algebra.Lowered, tables: Mapping[str, Remote], evaluator: Evaluator) -> RemoteNode:
    """The dimension view of a query over remote tables, by their names in the query; NotMaintainable if it is none."""
    kept = [column for column, _ in lowered.outputs]
    node = _Shaping(tables, evaluator).node(lowered.node, kept)
    return Projection(node, tuple((name, column) for column, name in lowered.outputs))


class _Shaping:
    def __init__(self, tables: Mapping[str, Remote], evaluator: Evaluator) -> None:
        self._tables = tables
        self._evaluator = evaluator

    def node(self, node: algebra.Node, kept: Collection[str]) -> RemoteNode:
        """A node of the algebra as a node of a dimension view; `kept` are the columns that the view still needs."""
        match node:
            case algebra.Scan():
                return Projection(self._tables[node.relation], tuple((name, stored) for stored, name in node.fields))
            case algebra.Project():
                return self._project(node, kept)
            case algebra.Filter() | algebra.Join(kind="inner"):
                return self._block(node, kept)
        raise NotMaintainable(
            "view of remote tables",
            f"it has {_OPERATORS.get(type(node), type(node).__name__)}, and only columns, filters and joins to primary "
            "keys can be kept from partial deltas",
            f"{_OVER_IT}; or {HOLD}.",
        )

    def _project(self, node: algebra.Project, kept: Collection[str]) -> RemoteNode:
        items = [(name, expression.unnest()) for name, expression in node.items if name in kept]
        plain = {name: e.name for name, e in items if isinstance(e, exp.Column)}
        computed = [(name, e) for name, e in items if name not in plain]
        below = self.node(node.input, {*plain.values(), *(c for _, e in computed for c in names_in(e))})
        if computed:
            below = self._evaluator.extended(below, computed)
        return Projection(below, tuple((name, plain.get(name, name)) for name, _ in items))

    def _block(self, node: algebra.Node, kept: Collection[str]) -> RemoteNode:
        inputs, conditions = flat_join(node)
        used = {*kept, *(c for condition in conditions for c in names_in(condition))}
        leaves: list[RemoteNode] = []
        rest = conditions
        for given in inputs:
            leaf = self.node(given, used & set(given.columns))
            own = [c for c in rest if names_in(c) and names_in(c) <= set(given.columns)]
            rest = [c for c in rest if c not in own]
            leaves.append(self._selected(leaf, own))
        equal = [e for e in map(_equality, rest) if e is not None]
        orders = [o for o in (_joined(root, leaves, equal) for root in leaves) if o is not None]
        if not orders:
            raise _unjoinable(leaves)
        built = [(joined, [c for c in rest if c not in done]) for joined, done in orders]
        joined, left = next((b for b in built if _keeps_key(b[0], kept)), built[0])
        return self._selected(joined, left)

    def _selected(self, node: RemoteNode, conditions: list[exp.Expr]) -> RemoteNode:
        predicate = conjunction(conditions)
        return node if predicate is None else RowFilter(node, self._evaluator.condition(node.schema, predicate))


_Equality = tuple[exp.Expr, str, str]  # the condition, and the two columns


def _equality(condition: exp.Expr) -> _Equality | None:
    """A condition that equates two columns. A key is never NULL, so a null-safe equality with one is an equality."""
    if not isinstance(condition, exp.EQ | exp.NullSafeEQ):
        return None
    sides = condition.this.unnest(), condition.expression.unnest()
    if not all(isinstance(s, exp.Column) for s in sides):
        return None
    return condition, sides[0].name, sides[1].name


def _joined(
    root: RemoteNode, leaves: Sequence[RemoteNode], equal: Sequence[_Equality]
) -> tuple[RemoteNode, list[exp.Expr]] | None:
    """All inputs joined to one of them, and the conditions that this fulfils; None if one has no whole key equated."""
    done: list[exp.Expr] = []
    node, waiting = root, [leaf for leaf in leaves if leaf is not root]
    while waiting:
        found = next(((leaf, on) for leaf in waiting if (on := _partners(node, leaf, equal)) is not None), None)
        if found is None:
            return None
        leaf, on = found
        waiting.remove(leaf)
        node = KeyJoin(node, leaf, tuple(column for column, _ in on))
        done += [condition for _, condition in on]
    return node, done


def _partners(node: RemoteNode, leaf: RemoteNode, equal: Sequence[_Equality]) -> list[tuple[str, exp.Expr]] | None:
    """For each column of a leaf's key, a column of the node that equals it, and the condition that says so."""
    found = []
    for key in leaf.schema.key:
        pairs = [(c, a if b == key else b) for c, a, b in equal if key in (a, b)]
        partner = next(((other, c) for c, other in pairs if node.schema.has(other)), None)
        if partner is None:
            return None
        found.append(partner)
    return found or None


def _keeps_key(node: RemoteNode, kept: Collection[str]) -> bool:
    names = tuple((n, n) for n in node.schema.names if n in kept)
    return bool(names) and bool(Projection(node, names).schema.key)


def _unjoinable(leaves: Sequence[RemoteNode]) -> NotMaintainable:
    described = "; ".join(f"({', '.join(leaf.schema.key) or 'its key was dropped'})" for leaf in leaves)
    return NotMaintainable(
        "view of remote tables",
        f"no order of its joins equates the primary key of each further table with columns before it: {described}",
        f"Join to whole primary keys by `=`; or {HOLD}.",
    )
