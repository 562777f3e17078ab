"""The delta of a view: from the change of its inputs to the change of its rows, as signed bags.

For a view E and a job from an old state to a new one:   new(E) = old(E) + Δ(E).
`old` and `new` are the same tree over explicit versions, so the state bug (DEFER §1) cannot be written.

    σ, π, generators, ⊎     Δ(op E)       = op Δ(E)                                    linear
    inner join              Δ(L ⋈ R)      = Δ(L) ⋈ old(R)  ⊎  new(L) ⋈ Δ(R)            bilinear (LAZY §3.3)
    left, semi, anti join   Δ(L op R)     = Δ(L) op old(R) ⊎ A op new(R) − A op old(R)  linear in L;
                                            A = rows of new(L) that match a row of Δ(R)
    per key K               Δ(op E)       = op(new(E) ⋉ K) − op(old(E) ⋉ K),  K = keys in Δ(E)   affected keys
      (γ, windows with PARTITION BY, EXCEPT/INTERSECT ALL by row)
    no key                  Δ(op E)       = op(new(E)) − op(old(E))                     recompute

⋉K is null-safe; the operators keep their own comparison (law 11.6).
"""

from __future__ import annotations

import itertools
from dataclasses import replace

from sqlglot import exp

from freshview.algebra.nodes import (
    WEIGHT,
    Aggregate,
    Filter,
    Generate,
    Join,
    Node,
    Project,
    Scan,
    SetOperation,
    TopK,
    Union,
    Values,
    Window,
    column,
)
from freshview.algebra.traversal import bottom_up, rewrite


def at_version(root: Node, version: str) -> Node:
    """The tree over the old or the new state of its relations."""
    return rewrite(root, lambda n: replace(n, version=version) if isinstance(n, Scan) else n)


def derive(root: Node, changed: set[str]) -> Node | None:
    """The delta of a tree whose relations `changed` have changed; None if nothing it reads has.

    The result has the tree's columns and a weight.
    """
    return _Deriving(changed).delta(root)


class _Deriving:
    def __init__(self, changed: set[str]) -> None:
        self._changed = changed
        self._numbers = itertools.count(1)
        self._old: dict[int, Node] = {}
        self._new: dict[int, Node] = {}

    def delta(self, root: Node) -> Node | None:
        done: dict[int, Node | None] = {}
        for node in bottom_up(root):
            done[id(node)] = self._delta(node, [done[id(i)] for i in node.inputs])
        return done[id(root)]

    def old(self, node: Node) -> Node:
        return self._old.setdefault(id(node), at_version(node, "old"))

    def new(self, node: Node) -> Node:
        return self._new.setdefault(id(node), at_version(node, "new"))

    def _delta(self, node: Node, deltas: list[Node | None]) -> Node | None:
        if isinstance(node, Scan):
            return replace(node, version="delta") if node.relation in self._changed else None
        if all(d is None for d in deltas):
            return None
        match node:
            case Filter() | Generate():
                assert deltas[0] is not None
                return _ordered(replace(node, input=deltas[0]), node)
            case Project():
                assert deltas[0] is not None
                return Project(deltas[0], (*node.items, (WEIGHT, column(WEIGHT))))
            case Union():
                return self._united(node, [_named(d, node) for d in deltas if d is not None])
            case Join(kind="inner"):
                return self._inner(node, deltas[0], deltas[1])
            case Join():
                return self._linear_in_left(node, deltas[0], deltas[1])
            case Aggregate():
                return self._per_key(node, deltas, (node.keys,))
            case Window():
                return self._per_key(node, deltas, (node.partition,))
            case SetOperation():
                return self._per_key(node, deltas, (node.left.columns, node.right.columns))
            case TopK():
                return self._difference(node, self.new(node), self.old(node))
            case Values():
                return None
        raise TypeError(type(node).__name__)

    def _inner(self, node: Join, left: Node | None, right: Node | None) -> Node:
        terms = []
        if left is not None:
            terms.append(_ordered(Join(left, self.old(node.right), "inner", node.condition), node))
        if right is not None:
            terms.append(_ordered(Join(self.new(node.left), right, "inner", node.condition), node))
        return self._united(node, terms)

    def _linear_in_left(self, node: Join, left: Node | None, right: Node | None) -> Node:
        terms = []
        if left is not None:
            terms.append(_ordered(Join(left, self.old(node.right), node.kind, node.condition), node))
        if right is not None:
            touched = Project(right, tuple((c, column(c)) for c in node.right.columns))
            affected = Join(self.new(node.left), touched, "semi", node.condition)
            for side, weight in ((self.new(node.right), 1), (self.old(node.right), -1)):
                near = Join(side, affected, "semi", node.condition)
                terms.append(weighted(Join(affected, near, node.kind, node.condition), weight))
        return self._united(node, terms)

    def _per_key(self, node: Node, deltas: list[Node | None], keys: tuple[tuple[str, ...], ...]) -> Node:
        """Affected keys. `keys` names the key columns of each input, matched by place."""
        if not keys[0]:
            return self._difference(node, self.new(node), self.old(node))
        names = tuple(f"{k}__k{next(self._numbers)}" for k in keys[0])
        touched = [
            Project(delta, tuple((n, column(k)) for n, k in zip(names, own, strict=True)))
            for delta, own in zip(deltas, keys, strict=True)
            if delta is not None
        ]
        affected: Node = touched[0] if len(touched) == 1 else Union(tuple(touched), names)
        affected = Aggregate(affected, names, ())

        def restricted(inputs: tuple[Node, ...]) -> tuple[Node, ...]:
            return tuple(Join(i, affected, "semi", null_safe(own, names)) for i, own in zip(inputs, keys, strict=True))

        new = restricted(tuple(self.new(i) for i in node.inputs))
        old = restricted(tuple(self.old(i) for i in node.inputs))
        return self._difference(node, _over(node, new), _over(node, old))

    def _difference(self, node: Node, new: Node, old: Node) -> Node:
        return self._united(node, [weighted(new, 1), weighted(old, -1)])

    def _united(self, node: Node, terms: list[Node]) -> Node:
        return terms[0] if len(terms) == 1 else Union(tuple(terms), (*node.columns, WEIGHT))


def _over(node: Node, inputs: tuple[Node, ...]) -> Node:
    match node:
        case Aggregate() | Window():
            return replace(node, input=inputs[0])
        case SetOperation():
            return replace(node, left=inputs[0], right=inputs[1])
    raise TypeError(type(node).__name__)


def _ordered(delta: Node, node: Node) -> Node:
    """The node's columns in their order, the weight last."""
    wanted = (*node.columns, WEIGHT)
    return delta if delta.columns == wanted else Project(delta, tuple((c, column(c)) for c in wanted))


def _named(delta: Node, union: Union) -> Node:
    """A part's delta under the union's names, by place."""
    own = [c for c in delta.columns if c != WEIGHT]
    pairs = zip((*union.names, WEIGHT), (*own, WEIGHT), strict=True)
    return Project(delta, tuple((name, column(c)) for name, c in pairs))


def weighted(node: Node, weight: int) -> Node:
    items = tuple((c, column(c)) for c in node.columns)
    sign: exp.Expr = exp.Literal.number(abs(weight))
    return Project(node, (*items, (WEIGHT, exp.Neg(this=sign) if weight < 0 else sign)))


def null_safe(left: tuple[str, ...], right: tuple[str, ...]) -> exp.Expr:
    pairs = [exp.NullSafeEQ(this=column(a), expression=column(b)) for a, b in zip(left, right, strict=True)]
    return exp.and_(*pairs)
