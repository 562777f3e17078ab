"""What one operation costs, for the full result and for each differential, as a formula over the costs of its inputs.

The formulas do not depend on what is stored or kept; `cost.py` evaluates them under a choice.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sqlglot import exp

from freshview.algebra.nodes import Filter, Generate, Join, Project, TopK, Union, Values, Window, names_in
from freshview.optimizer.operations import (
    MAX,
    MIN,
    Applied,
    Block,
    Equivalence,
    Group,
    Grouping,
    Joined,
    Operation,
    OperationInput,
    ReadRelation,
    StoredRelation,
)
from freshview.optimizer.prices import Prices
from freshview.optimizer.statistics import NodeSize, Sizes

NEVER = float("inf")


@dataclass(frozen=True)
class Lookup:
    """The full result of a node, of which the rows with some values are needed."""

    node: int
    rows: float  # of the node, in the state that the differential sees
    values: float
    by: frozenset[str]  # base columns of the node that are compared with the values
    width: float = 0.0  # bytes of a row in the columns that an index in memory needs; 0: they are not kept
    otherwise: float = NEVER  # the cost of looking them up in the relations below, if the node is not stored
    through: Lookup | None = None  # for σ(leaf): the lookup in the leaf


@dataclass(frozen=True)
class Formula:
    """The cost of one operation, for the full result or for one differential."""

    local: float
    full: tuple[int, ...] = ()  # inputs whose full result is read
    deltas: tuple[int, ...] = ()  # inputs whose differential is read
    lookups: tuple[Lookup, ...] = ()


@dataclass(frozen=True)
class Priced:
    """The formulas of an operation: for the full result, and per updated relation, by its place in the order."""

    full: Formula
    deltas: Mapping[int, Formula]


class Formulas:
    """The formulas of the operations of all nodes, for relations that are updated in this order."""

    def __init__(self, nodes: Sequence[Equivalence], sizes: Sizes, prices: Prices, updated: Sequence[str]) -> None:
        self._sizes = sizes
        self._prices = prices
        self._updated = updated
        self._nodes = {n.number: n for n in nodes}
        # The places of the updated relations that change each node.
        self.changes = {n.number: [i for i, r in enumerate(updated) if r in self._size(n).deltas] for n in nodes}
        self._relations = {n.name: self._size(n) for n in nodes if isinstance(n, StoredRelation)}

    def _size(self, node: Equivalence) -> NodeSize:
        return self._sizes.of[node.number]

    def of(self, node: Equivalence, operation: Operation) -> Priced:
        own, inputs = self._size(node), [self._size(u.node) for u in operation.inputs]
        numbers = tuple(u.node.number for u in operation.inputs)
        if isinstance(operation, ReadRelation):
            at_hand = {
                i: Formula(self._prices.embedded.row * own.deltas[self._updated[i]]) for i in self.changes[node.number]
            }
            return Priced(Formula(self._prices.scanned(own.new)), at_hand)
        full = Formula(self._prices.processed(sum(s.new for s in inputs), own.new), numbers)
        deltas = {i: self._delta(node, operation, i) for i in self.changes[node.number]}
        return Priced(full, deltas)

    def _delta(self, node: Equivalence, operation: Operation, place: int) -> Formula:
        """The formula of one differential of an operation."""
        relation = self._updated[place]
        out = self._size(node).deltas[relation]
        changed = [u for u in operation.inputs if relation in self._size(u.node).deltas]
        rows = sum(self._size(u.node).deltas[relation] for u in changed)
        numbers = tuple(u.node.number for u in changed)
        local = self._prices.processed(rows, out)
        match operation:
            case Joined(inputs=(_, _)):
                lookups = [self._lookup(operation, u, relation) for u in changed]
                return Formula(local, deltas=numbers, lookups=tuple(lookups))
            case Group() if self._is_linear(operation, relation):
                return Formula(local, deltas=numbers)
            case Joined():
                return Formula(local, deltas=numbers)
            case Applied() if isinstance(operation.node.template, Filter | Project | Generate | Union):
                return Formula(local, deltas=numbers)
            case Applied() if isinstance(operation.node.template, TopK | Values) or _has_no_key(operation):
                everything = tuple(u.node.number for u in operation.inputs)
                read = sum(self._size(u.node).before(relation) for u in operation.inputs)
                return Formula(2 * self._prices.processed(read, out), everything)
        # Affected keys: the groups before and after.
        near = tuple(self._near(u, relation, rows) for u in operation.inputs)
        return Formula(2 * local, deltas=numbers, lookups=near)

    def _is_linear(self, operation: Group, relation: str) -> bool:
        """Are the groups of a differential added to those stored? A deleted minimum or maximum is looked for."""
        best = any(call.kind in (MIN, MAX) for call in operation.node.calls)
        return not best or relation not in self._size(operation.node.input).shrinks

    def _lookup(self, operation: Joined, changed: OperationInput, relation: str) -> Lookup:
        """What the differential of one side of a join needs of the other side."""
        other = next(u for u in operation.inputs if u is not changed)
        return self._near(other, relation, self._size(changed.node).deltas[relation], _compared(operation, other))

    def _near(self, use: OperationInput, relation: str, values: float, by: frozenset[str] = frozenset()) -> Lookup:
        node = use.node
        otherwise, through = NEVER, None
        if isinstance(node, Block) and len(node.leaves) == 1:
            leaf = self._nodes[node.leaves[0][0]]
            below = self._below(leaf, relation, values, by)
            width = self._sizes.width_in_memory(leaf, by)
            through = Lookup(leaf.number, self._size(leaf).before(relation), values, by, width, below)
        else:
            otherwise = self._below(node, relation, values, by)
        width = self._sizes.width_in_memory(node, by)
        return Lookup(node.number, self._size(node).before(relation), values, by, width, otherwise, through)

    def _below(self, node: Equivalence, relation: str, values: float, by: frozenset[str]) -> float:
        """The cost of looking values up in the relations below a node that is not stored; keys of a γ pass it."""
        is_keyed = isinstance(node, Grouping) and by and by <= {own for own, _ in node.keys}
        if not is_keyed and by:
            return NEVER
        is_indexed = self._sizes.width_in_memory(node, by) > 0.0
        reached = sum(
            self._prices.looked_up(size.before(relation), values, width=size.width if is_indexed else 0.0)
            for size in (self._relations[r] for r in sorted(node.relations))
        )
        return reached + self._prices.processed(values, values)


def lookups_by(priced: Iterable[Priced]) -> dict[int, set[str]]:
    """The columns by which each node is looked up in some of these operations."""
    found: dict[int, set[str]] = defaultdict(set)
    for each in priced:
        for formula in each.deltas.values():
            for lookup in formula.lookups:
                for one in (lookup, lookup.through):
                    if one is not None:
                        found[one.node] |= one.by
    return found


def children(formula: Formula) -> set[int]:
    """The nodes whose costs a formula takes."""
    found = {*formula.full, *formula.deltas}
    for lookup in formula.lookups:
        found.add(lookup.node)
        if lookup.through is not None:
            found.add(lookup.through.node)
    return found


def _compared(operation: Joined, side: OperationInput) -> frozenset[str]:
    """The base columns of one side of a join that an equality compares with the other side."""
    names = side.labels.names
    own = {side.labels.leaf(leaf) for leaf in _leaves(side)}
    found = set()
    for condition in operation.conditions:
        tree = condition.expression
        if isinstance(tree, exp.EQ | exp.NullSafeEQ):
            for a, b in ((tree.this, tree.expression), (tree.expression, tree.this)):
                if isinstance(a, exp.Column) and names.leaf(a.name) in own:
                    if not any(names.leaf(c) in own for c in names_in(b)):
                        found.add(names.origins[a.name][1])
    return frozenset(found)


def _leaves(use: OperationInput) -> Sequence[tuple[int, int]]:
    return use.node.leaves if isinstance(use.node, Block) else ((use.node.number, 0),)


def _has_no_key(operation: Applied) -> bool:
    template = operation.node.template
    return (isinstance(template, Window) and not template.partition) or (
        not isinstance(template, Join) and not template.inputs
    )
