"""Several plans put together: what they have in common is one part, in the columns that any of its users needs.

Two nodes are of one *class* if they give the same rows, whatever columns of them are seen. Projections make no class of
their own: they choose and compute columns of the rows of their input.

    class(A) = class(B)   ⟹   A and B are projections of one bag E, and E has all columns of both
    σ_p(E), γ_K(E), E ⋈ F …   equal operators over equal classes, in equal columns of them, are of one class

A class is built once, over the classes below it, with the columns that its users need. Each plan is then a projection
of its root's class. A class that plans of different sets of users read is a *part*: it is computed before them, and
they read its rows.

Law: each plan gives the bag that it gave before. Joins in another order count as different.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from freshview.algebra.classes import Class, Classes, ColumnNames, SourceOf, column_at, expression_of, names_of, renamed
from freshview.algebra.nodes import (
    WEIGHT,
    Aggregate,
    Filter,
    Generate,
    Join,
    Node,
    Project,
    Scan,
    ScanSource,
    SemiJoin,
    SetOperation,
    Shared,
    TopK,
    Union,
    Values,
    Window,
    chosen,
    column,
    names_in,
    same,
)

Worth = Callable[[Node, int], bool]  # is a part with so many users computed before them?


@dataclass(frozen=True)
class CommonPart:
    """A part that several plans read, and the scan by which they read its rows."""

    node: Node
    scan: Scan
    users: frozenset[int]  # the places of the plans that read it, directly or through other parts


@dataclass(frozen=True)
class Together:
    """Plans put together: parts in the order in which they are computed, and each plan over them."""

    parts: tuple[CommonPart, ...]
    plans: tuple[Node, ...]
    scans: Mapping[Scan, Scan]  # from the scans that the plans had before to those that took their place


def _as_named(_: int, scan: Scan) -> tuple[ScanSource, str]:
    return scan.source, scan.version


def _any_operator(node: Node, _: int) -> bool:
    return not isinstance(node, Scan)


def put_together(plans: Sequence[Node], read: SourceOf = _as_named, worth: Worth = _any_operator) -> Together:
    """Plans over common parts. Scans are of one class if `read` is the same for them; `worth` decides which parts are
    computed before the plans."""
    classes = Classes(read)
    roots = [classes.of(plan, place) for place, plan in enumerate(plans)]
    classes.need(roots)
    users: dict[int, set[int]] = {}
    for place, (number, _) in enumerate(roots):
        for below in classes.cone(number):
            users.setdefault(below, set()).add(place)
    return _Cutting(classes, users, worth).together(plans, roots)


class _Cutting:
    """Builds the nodes of classes, and cuts them where the sets of their users part."""

    def __init__(self, classes: Classes, users: Mapping[int, set[int]], worth: Worth) -> None:
        self._classes = classes
        self._users = users
        self._worth = worth
        self._parts: list[CommonPart] = []
        self._built: dict[int, Node] = {}
        self._scans: dict[int, Scan] = {}

    def together(self, plans: Sequence[Node], roots: Sequence[tuple[int, ColumnNames]]) -> Together:
        parting = self._parting(roots)
        for number, users in sorted(self._users.items()):
            node = self._node(number)
            self._built[number] = node
            if number in parting and self._worth(node, len(users)):
                needed = self._classes.classes[number].needed
                kept = tuple(c for c in node.columns if c in needed) or node.columns[:1]
                scan = Scan(Shared(-1 - len(self._parts)), tuple((c, c) for c in kept))
                self._parts.append(CommonPart(chosen(node, kept), scan, frozenset(users)))
                self._built[number] = scan
        ends = [
            Project(self._built[number], tuple((c, column(names[c])) for c in plan.columns))
            for plan, (number, names) in zip(plans, roots, strict=True)
        ]
        scans = {old: self._scans[number] for old, number in self._classes.scans.items()}
        return Together(tuple(self._parts), tuple(ends), scans)

    def _parting(self, roots: Sequence[tuple[int, ColumnNames]]) -> set[int]:
        """Classes that several plans read and that a class of fewer plans reads: the largest common parts."""
        found = {number for number, _ in roots if len(self._users[number]) > 1}
        for number, users in self._users.items():
            found |= {i for i in self._classes.classes[number].inputs if len(self._users[i]) > len(users)}
        return found

    def _node(self, number: int) -> Node:
        one = self._classes.classes[number]
        node = self._operator(number, one)
        waiting = [n for n in one.computed if n in one.needed]
        while waiting:
            ready = [n for n in waiting if names_in(one.computed[n]) <= set(node.columns)]
            assert ready, "a computed column comes after those that it is computed of"
            kept = [c for c in node.columns if c in one.needed]
            node = Project(node, (*same(kept), *((n, one.computed[n]) for n in ready)))
            waiting = [n for n in waiting if n not in ready]
        return node

    def _operator(self, number: int, one: Class) -> Node:
        node, inputs = one.operator, [self._built[i] for i in one.inputs]
        own = sorted((n for n in one.needed if n in one.base), key=lambda n: int(n[1:]))
        every = names_of(one.given)
        match node:
            case Scan():
                return self._scan(number, node, one, own)
            case Values():
                return Values(tuple(self._classes.name(number, i) for i in range(len(node.names))), node.rows)
            case Filter():
                return Filter(inputs[0], renamed(node.predicate, every))
            case Join():
                right = inputs[1]
                if one.right:
                    right = Project(right, tuple((o, column(n)) for n, o in one.right.items() if n in right.columns))
                condition = renamed(node.condition, every) if node.condition is not None else None
                return Join(inputs[0], right, node.kind, condition, node.small)
            case Aggregate():
                keys = tuple(dict.fromkeys(every[k] for k in node.keys))
                items = tuple((n, expression_of(one.base[n])) for n in own or ([] if keys else list(one.base)[:1]))
                return Aggregate(inputs[0], keys, items)
            case Window():
                items = tuple((n, expression_of(one.base[n])) for n in own)
                partition = tuple(dict.fromkeys(every[p] for p in node.partition))
                return Window(inputs[0], partition, items) if items else inputs[0]
            case Generate():
                outputs = tuple(self._classes.name(number, ("generated", i)) for i in range(len(node.outputs)))
                return Generate(inputs[0], renamed(node.generator, every), outputs, node.outer)
            case TopK():
                return TopK(inputs[0], tuple(renamed(e, every) for e in node.order), node.limit, node.offset)
            case Union():
                names = tuple(own) or tuple(one.base)[:1]
                parts = (_placed(i, [column_at(one.base[n], p) for n in names], names) for p, i in enumerate(inputs))
                return Union(tuple(parts), names)
            case SetOperation():
                names = tuple(self._classes.name(number, i) for i in range(len(node.names)))
                sides = zip(inputs, one.given, node.inputs, strict=True)
                left, right = (_placed(i, [g[c] for c in side.columns], names) for i, g, side in sides)
                return SetOperation(left, right, node.kind, names, node.sets)
        raise TypeError(type(node).__name__)

    def _scan(self, number: int, node: Scan, one: Class, own: Sequence[str]) -> Node:
        """A scan of all needed columns, at least one; the weight of a delta gets a name of its own."""
        stored = {n: str(w) for n, w in one.base.items() if w != WEIGHT}
        fields = tuple((stored[n], n) for n in own if n in stored) or tuple((c, n) for n, c in stored.items())[:1]
        restrictions = tuple(
            SemiJoin(restricted, tuple((self._scans[s], c) for s, c in sources), nulls)
            for restricted, nulls, sources in one.restrictions
        )
        self._scans[number] = scan = Scan(node.source, fields, node.version, restrictions)
        weight = next((n for n in own if n not in stored), None)
        return scan if weight is None else Project(scan, (*same(n for _, n in fields), (weight, column(WEIGHT))))


def _placed(node: Node, columns: Sequence[str], names: Sequence[str]) -> Node:
    """Some columns of a node in order, for a union or a set operation; one that is there twice gets two names."""
    if len(set(columns)) == len(columns):
        return chosen(node, tuple(columns))
    return Project(node, tuple((n, column(c)) for n, c in zip(names, columns, strict=True)))
