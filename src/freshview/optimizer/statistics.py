"""Facts about relations, and the sizes of nodes that follow from them (the logical properties of MQO §4.2.2).

A node has a size before the refresh, one differential per updated relation, and a size after each of them; relations
are updated in the order of their names. Wrong facts make plans slow, never wrong: nothing here decides what a plan
means.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

from sqlglot import exp

from freshview.algebra.nodes import Aggregate, Join, Node, SetOperation, TopK, Values
from freshview.algebra.nodes import Union as UnionAll
from freshview.optimizer.dag import Dag
from freshview.optimizer.operations import Block, Equivalence, Grouping, Leaf, Other, StoredRelation
from freshview.optimizer.terms import Term

_RANGE, _NULL, _UNKNOWN = 1 / 3, 0.1, 0.25  # shares of rows that conditions of a kind are taken to keep
_SAME_VALUE = 10  # rows per value of a column whose distinct values were not counted
_WIDTHS = {"bigint": 8, "int": 4, "smallint": 2, "tinyint": 1, "date": 4, "timestamp": 8, "double": 8, "boolean": 1}
_WIDE = 20  # bytes of a value of another type
_INDEXED = ("bigint", "int", "smallint", "tinyint", "date")  # types of columns that have an index in memory
_NOT_KEPT = ("array", "map", "struct", "binary", "variant")  # types of columns that are not kept in memory


@dataclass(frozen=True)
class Facts:
    """What is known of a relation: its rows, distinct values, order in its files, and its change until the refresh."""

    rows: float
    distinct: Mapping[str, float] = field(default_factory=dict)
    inserted: float = 0
    deleted: float = 0
    clustered: str = ""  # the column by which its files are sorted

    @property
    def changed(self) -> float:
        return self.inserted + self.deleted


Statistics = Mapping[str, Facts]
_NO_FACTS = Facts(1000)


@dataclass(frozen=True)
class NodeSize:
    """The estimated size of a node."""

    rows: float  # before the refresh
    width: float  # bytes per row, in the columns that are needed
    deltas: Mapping[str, float]  # rows of the differential per updated relation
    growth: Mapping[str, float]  # rows after the differential over rows before it
    shrinks: frozenset[str] = frozenset()  # relations whose differential deletes rows

    @property
    def bytes(self) -> float:
        return self.rows * self.width

    @cached_property
    def new(self) -> float:
        """The rows after the differentials of all relations were merged: what a recomputation reads and writes."""
        return self.rows * prod(self.growth.values())

    def before(self, relation: str) -> float:
        """The rows that the differential of a relation sees: those of the relations before it were merged."""
        return self.rows * prod(growth for earlier, growth in self.growth.items() if earlier < relation)

    def grown(self, relation: str) -> float:
        """The rows if nothing but the differential of a relation was merged."""
        return self.rows * self.growth.get(relation, 1.0)


class Sizes:
    """The sizes of the nodes of a DAG."""

    def __init__(self, dag: Dag, nodes: Sequence[Equivalence], statistics: Statistics) -> None:
        self._dag = dag
        self._statistics = statistics
        self._shares: dict[str, float] = {}
        self.of: dict[int, NodeSize] = {}
        for node in nodes:
            self.of[node.number] = self._size(node)

    def _size(self, node: Equivalence) -> NodeSize:
        width = 8 + sum(_WIDTHS.get(self._dag.type_of(c), _WIDE) for c in node.needs)
        match node:
            case StoredRelation():
                facts = self._statistics.get(node.name, _NO_FACTS)
                rows = max(facts.rows, 1.0)
                deltas = {node.name: facts.changed} if facts.changed else {}
                growth = {node.name: max(rows + facts.inserted - facts.deleted, 0.0) / rows} if facts.changed else {}
                return NodeSize(rows, width, deltas, growth, frozenset([node.name] if facts.deleted else ()))
            case Block():
                return self._block(node, width)
            case Grouping():
                below = self.of[node.input.number]
                groups = prod(self._distinct_of(t) for _, t in node.keys) if node.keys else 1.0
                rows = max(1.0, min(below.rows, groups))
                growth = {r: max(1.0, min(below.grown(r), groups)) / rows for r in below.deltas}
                deltas = {r: min(d, rows * max(growth[r], 1.0)) for r, d in below.deltas.items()}
                return NodeSize(rows, width, deltas, growth, below.shrinks)
            case Other():
                return self._other(node, width)
        raise TypeError(type(node).__name__)

    def _block(self, node: Block, width: float) -> NodeSize:
        leaves = [self.of[n] for n, _ in node.leaves]
        kept = self._kept(node)
        rows = prod(s.rows for s in leaves) * kept
        deltas: dict[str, float] = {}
        growth: dict[str, float] = {}
        for leaf in leaves:
            for relation, rows_of in leaf.deltas.items():
                met = rows / leaf.rows * prod(o.before(relation) / o.rows for o in leaves if o is not leaf)
                deltas[relation] = deltas.get(relation, 0.0) + met * rows_of
                growth[relation] = growth.get(relation, 1.0) * leaf.growth[relation]
        return NodeSize(max(rows, 1.0), width, deltas, growth, frozenset().union(*(s.shrinks for s in leaves)))

    def _other(self, node: Other, width: float) -> NodeSize:
        inputs = [self.of[u.node.number] for u in node.operations[0].inputs]
        rows = _rows_of(node.template, [s.rows for s in inputs])
        deltas: dict[str, float] = {}
        for size in inputs:
            for relation, changed in size.deltas.items():
                deltas[relation] = min(deltas.get(relation, 0.0) + changed * max(1.0, rows / size.rows), 2 * rows)
        rows = max(rows, 1.0)
        growth = {r: max(_rows_of(node.template, [s.grown(r) for s in inputs]), 1.0) / rows for r in deltas}
        return NodeSize(rows, width, deltas, growth, frozenset(deltas))

    def width_in_memory(self, node: Equivalence, by: Collection[str]) -> float:
        """The bytes of a row of a node in the columns that an index in memory needs to find rows by one of these base
        columns; 0 if there is none by them."""
        if not any(self._dag.type_of(c) in _INDEXED for c in by):
            return 0.0
        is_kept = not any(self._dag.type_of(c).startswith(_NOT_KEPT) for c in node.needs)
        return self.of[node.number].width if is_kept else 0.0

    # -- columns and conditions --------------------------------------------------------------------

    def distinct(self, name: str) -> float:
        """The estimated number of distinct values of a canonical column."""
        owner, base, _ = self._dag.names.origins[name]
        node = self._dag.nodes[owner]
        rows = self.of[owner].rows
        if isinstance(node, StoredRelation):
            facts = self._statistics.get(node.name, _NO_FACTS)
            return max(1.0, min(rows, facts.distinct.get(node.fields[base], rows / _SAME_VALUE)))
        if isinstance(node, Grouping):
            for own, key in node.keys:
                if own == base:
                    return min(rows, self._distinct_of(key))
        return max(1.0, rows / _SAME_VALUE)

    def _distinct_of(self, given: Term) -> float:
        return prod(self.distinct(c) for c in given.columns)

    def _kept(self, block: Block) -> float:
        """The share of its leaves' product that a block keeps.

        Several equalities between two leaves are taken for one over a composite key, of which the smaller side has all
        values: their columns are rarely independent.
        """
        pairs: dict[frozenset[Leaf], list[Term]] = defaultdict(list)
        kept = 1.0
        for condition in block.conditions:
            leaves = frozenset(map(self._dag.names.leaf, condition.columns))
            if isinstance(condition.expression, exp.EQ) and len(leaves) == 2:
                pairs[leaves].append(condition)
            else:
                kept *= self._share(condition)
        for leaves, equal in pairs.items():
            kept *= (
                self._share(equal[0]) if len(equal) == 1 else 1 / min(self._values_in(leaf, equal) for leaf in leaves)
            )
        return kept

    def _values_in(self, leaf: Leaf, equal: Sequence[Term]) -> float:
        own = {c for t in equal for c in t.columns if self._dag.names.leaf(c) == leaf}
        return min(self.of[leaf[0]].rows, prod(map(self.distinct, own)))

    def _share(self, condition: Term) -> float:
        """The share of rows that a condition keeps."""
        if condition.text not in self._shares:
            self._shares[condition.text] = self._estimated(condition.expression)
        return self._shares[condition.text]

    def _estimated(self, tree: exp.Expr) -> float:
        match tree:
            case exp.EQ() | exp.NullSafeEQ():
                return 1 / max(self._values(tree.this), self._values(tree.expression))
            case exp.In():
                return min(1.0, len(tree.expressions) / self._values(tree.this))
            case exp.LT() | exp.LTE() | exp.GT() | exp.GTE() | exp.Like():
                return _RANGE
            case exp.Is():
                return _NULL
            case exp.Not():
                return max(1 - self._estimated(tree.this), _NULL)
            case exp.Paren():
                return self._estimated(tree.this)
            case exp.Or():
                return min(1.0, self._estimated(tree.this) + self._estimated(tree.expression))
            case exp.And():
                return self._estimated(tree.this) * self._estimated(tree.expression)
        return _UNKNOWN

    def _values(self, tree: exp.Expr) -> float:
        return prod(self.distinct(c.name) for c in tree.find_all(exp.Column)) or 1.0


def _rows_of(template: Node, inputs: Sequence[float]) -> float:
    """The estimated rows of an operator that is not taken apart, over inputs of so many rows."""
    match template:
        case Values():
            return float(len(template.rows))
        case UnionAll():
            return sum(inputs)
        case Join(kind="left"):
            return inputs[0]
        case Join() | SetOperation() | Aggregate():
            return inputs[0] / 2
        case TopK(limit=int(limit)):
            return min(float(limit), inputs[0])
    return inputs[0]
