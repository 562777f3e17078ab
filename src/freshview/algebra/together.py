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

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

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
    SemiJoin,
    SetOperation,
    Shared,
    Source,
    TopK,
    Union,
    Values,
    Window,
    chosen,
    column,
    conjuncts,
    names_in,
    same,
)
from freshview.algebra.traversal import bottom_up

_Names = Mapping[str, str]  # from the columns of a node to those of its class
_Given = tuple[_Names, ...]  # per input
_Restrictions = tuple[tuple[str, bool, tuple[tuple[int, str], ...]], ...]  # of a scan: column, nulls, classes' columns
Worth = Callable[[Node, int], bool]  # is a part with so many users computed before them?
Read = Callable[[int, Scan], tuple[Source, str]]  # what a scan of the plan at a place reads, and in which version


@dataclass(frozen=True)
class Part:
    """A part that several plans read, and the scan by which they read its rows."""

    node: Node
    scan: Scan
    users: frozenset[int]  # the places of the plans that read it, directly or through other parts


@dataclass(frozen=True)
class Together:
    """Plans put together: parts in the order in which they are computed, and each plan over them."""

    parts: tuple[Part, ...]
    plans: tuple[Node, ...]
    scans: Mapping[Scan, Scan]  # from the scans that the plans had before to those that took their place


def _as_named(_: int, scan: Scan) -> tuple[Source, str]:
    return scan.source, scan.version


def _any_operator(node: Node, _: int) -> bool:
    return not isinstance(node, Scan)


def put_together(plans: Sequence[Node], read: Read = _as_named, worth: Worth = _any_operator) -> Together:
    """Plans over common parts. Scans are of one class if `read` is the same for them; `worth` decides which parts are
    computed before the plans."""
    classes = _Classes(read)
    roots = [classes.of(plan, place) for place, plan in enumerate(plans)]
    classes.need(roots)
    users: dict[int, set[int]] = {}
    for place, (number, _) in enumerate(roots):
        for below in classes.cone(number):
            users.setdefault(below, set()).add(place)
    return _Building(classes, users, worth).together(plans, roots)


@dataclass
class _Class:
    """Rows: an operator over classes, and the columns that can be seen of them."""

    operator: Node  # the first node of the class
    inputs: tuple[int, ...]
    origins: frozenset[int]  # the classes in which columns of this one may have been named
    given: _Given  # the columns of the operator's inputs
    restrictions: _Restrictions = ()
    right: dict[str, str] = field(default_factory=dict)  # of a join of rows with themselves: the right side, renamed
    base: dict[str, Hashable] = field(default_factory=dict)  # columns that the operator makes, and of what
    computed: dict[str, exp.Expr] = field(default_factory=dict)  # columns computed of others of the class, in order
    needed: set[str] = field(default_factory=set)


class _Classes:
    """The classes of the nodes of several plans."""

    def __init__(self, read: Read) -> None:
        self.classes: list[_Class] = []
        self.scans: dict[Scan, int] = {}
        self._read = read
        self._known: dict[Node, tuple[int, _Names]] = {}
        self._numbers: dict[Hashable, int] = {}
        self._names: dict[Hashable, str] = {}
        self._named_in: dict[str, int] = {}  # the class in which a column was named

    def of(self, root: Node, place: int) -> tuple[int, _Names]:
        """The class of a node of the plan at a place, and what its columns are called there."""
        if root not in self._known:
            for node in bottom_up(root):
                if node not in self._known:
                    self._known[node] = self._formed(node, place)
        return self._known[root]

    def name(self, number: int, what: Hashable) -> str:
        """The name of a column that a class makes."""
        made = self._names.setdefault((number, what), f"k{len(self._names)}")
        self._named_in.setdefault(made, number)
        return made

    def _formed(self, node: Node, place: int) -> tuple[int, _Names]:
        inputs = [self._known[i] for i in node.inputs]
        if isinstance(node, Project):
            return self._projected(node, *inputs[0])
        if not isinstance(node, Scan):
            return self._operated(node, inputs, ())
        source, version = self._read(place, node)
        number, names = self._operated(
            replace(node, source=source, version=version), [], self._restrictions(node, place)
        )
        self.scans[node] = number
        return number, names

    def _projected(self, node: Project, number: int, given: _Names) -> tuple[int, _Names]:
        names = {}
        for name, expression in node.items:
            if isinstance(expression, exp.Column):
                names[name] = given[expression.name]
                continue
            meant = _renamed(expression, given)
            names[name] = self.name(number, exactly(meant))
            self.classes[number].computed.setdefault(names[name], meant)
        return number, names

    def _operated(
        self, node: Node, inputs: list[tuple[int, _Names]], restrictions: _Restrictions
    ) -> tuple[int, _Names]:
        numbers, given = tuple(n for n, _ in inputs), tuple(names for _, names in inputs)
        meets_itself = isinstance(node, Join) and bool(self._origins(numbers[:1]) & self._origins(numbers[1:]))
        right = {n: f"{n}r{numbers[0]}_{numbers[1]}" for n in given[1].values()} if meets_itself else {}
        if meets_itself:
            given = (given[0], {c: right[n] for c, n in given[1].items()})
        key = (type(node), numbers, _described(node, given), restrictions)
        number = self._numbers.setdefault(key, len(self.classes))
        if number == len(self.classes):
            origins = frozenset({number}) | self._origins(numbers)
            self.classes.append(_Class(node, numbers, origins, given, restrictions))
        made = self.classes[number]
        made.right.update(right)
        every = _all(given)
        names = {c: every[c] for c in node.columns if c in every} if not isinstance(node, Union | SetOperation) else {}
        for c, what in _made(node, given).items():
            names[c] = self.name(number, what)
            made.base.setdefault(names[c], what)
        return number, names

    def _origins(self, numbers: Iterable[int]) -> frozenset[int]:
        return frozenset[int]().union(*(self.classes[n].origins for n in numbers))

    def _restrictions(self, scan: Scan, place: int) -> _Restrictions:
        found = {
            (s.column, s.nulls, tuple(sorted({(self.of(source, place)[0], c) for source, c in s.sources})))
            for s in scan.semijoins
        }
        return tuple(sorted(found))

    # -- needs -------------------------------------------------------------------------------------

    def need(self, roots: Sequence[tuple[int, _Names]]) -> None:
        """Mark the columns that the plans need of each class; a class has a higher number than those that it reads."""
        for number, names in roots:
            self.classes[number].needed |= set(names.values())
        for number in sorted(set[int]().union(*(self.cone(n) for n, _ in roots)), reverse=True):
            one = self.classes[number]
            for name in reversed(list(one.computed)):
                if name in one.needed:
                    one.needed |= names_in(one.computed[name])
            for place, child in enumerate(one.inputs):
                self.classes[child].needed |= self._asked(one, place)
            for _, _, sources in one.restrictions:
                for source, stored in sources:
                    name = self.name(source, stored)
                    self.classes[source].needed.add(name)
                    self.classes[source].base.setdefault(name, stored)

    def _asked(self, one: _Class, place: int) -> set[str]:
        """The columns that a class needs of an input, by the names that they have there."""
        node, given = one.operator, one.given[place]
        handed = {n for n in one.needed if n not in one.computed and n not in one.base}
        made = [one.base[n] for n in one.needed if n in one.base]
        match node:
            case Filter():
                return handed | _used(node.predicate, given)
            case Join():
                condition = _used(node.condition, _all(one.given)) if node.condition is not None else set[str]()
                return self._of_side(one, place, handed | condition)
            case Aggregate():
                return {given[k] for k in node.keys} | _of_meanings(made)
            case Window():
                return handed | {given[p] for p in node.partition} | _of_meanings(made)
            case Generate():
                return handed | _used(node.generator, given)
            case TopK():
                return handed | {n for term in node.order for n in _used(term, given)}
            case Union():
                return {_at(what, place) for what in made or list(one.base.values())[:1]}
            case SetOperation():
                return set(given.values())
        raise TypeError(type(node).__name__)

    def _of_side(self, one: _Class, place: int, wanted: set[str]) -> set[str]:
        """Those columns of a join that come from one side of it."""
        if one.right:
            back = {own: n for n, own in one.right.items()}
            return {back[n] for n in wanted if n in back} if place else {n for n in wanted if n not in back}
        side = self._origins(one.inputs[place : place + 1])
        return {n for n in wanted if self._origin(n) in side}

    def _origin(self, name: str) -> int:
        """The class in which a column was named, before joins of rows with themselves renamed it."""
        return self._named_in[name.split("r", 1)[0]]

    def cone(self, number: int) -> set[int]:
        """A class and all that it reads, also for the restrictions of scans."""
        seen: set[int] = set()
        stack = [number]
        while stack:
            one = stack.pop()
            if one not in seen:
                seen.add(one)
                made = self.classes[one]
                stack += [*made.inputs, *(s for _, _, sources in made.restrictions for s, _ in sources)]
        return seen


class _Building:
    """Builds the nodes of classes, and cuts them where the sets of their users part."""

    def __init__(self, classes: _Classes, users: Mapping[int, set[int]], worth: Worth) -> None:
        self._classes = classes
        self._users = users
        self._worth = worth
        self._parts: list[Part] = []
        self._built: dict[int, Node] = {}
        self._scans: dict[int, Scan] = {}

    def together(self, plans: Sequence[Node], roots: Sequence[tuple[int, _Names]]) -> Together:
        parting = self._parting(roots)
        for number, users in sorted(self._users.items()):
            node = self._node(number)
            self._built[number] = node
            if number in parting and self._worth(node, len(users)):
                needed = self._classes.classes[number].needed
                kept = tuple(c for c in node.columns if c in needed) or node.columns[:1]
                scan = Scan(Shared(-1 - len(self._parts)), tuple((c, c) for c in kept))
                self._parts.append(Part(chosen(node, kept), scan, frozenset(users)))
                self._built[number] = scan
        ends = [
            Project(self._built[number], tuple((c, column(names[c])) for c in plan.columns))
            for plan, (number, names) in zip(plans, roots, strict=True)
        ]
        scans = {old: self._scans[number] for old, number in self._classes.scans.items()}
        return Together(tuple(self._parts), tuple(ends), scans)

    def _parting(self, roots: Sequence[tuple[int, _Names]]) -> set[int]:
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

    def _operator(self, number: int, one: _Class) -> Node:
        node, inputs = one.operator, [self._built[i] for i in one.inputs]
        own = sorted((n for n in one.needed if n in one.base), key=lambda n: int(n[1:]))
        every = _all(one.given)
        match node:
            case Scan():
                return self._scan(number, node, one, own)
            case Values():
                return Values(tuple(self._classes.name(number, i) for i in range(len(node.names))), node.rows)
            case Filter():
                return Filter(inputs[0], _renamed(node.predicate, every))
            case Join():
                right = inputs[1]
                if one.right:
                    right = Project(right, tuple((o, column(n)) for n, o in one.right.items() if n in right.columns))
                condition = _renamed(node.condition, every) if node.condition is not None else None
                return Join(inputs[0], right, node.kind, condition, node.small)
            case Aggregate():
                keys = tuple(dict.fromkeys(every[k] for k in node.keys))
                items = tuple((n, _expression(one.base[n])) for n in own or ([] if keys else list(one.base)[:1]))
                return Aggregate(inputs[0], keys, items)
            case Window():
                items = tuple((n, _expression(one.base[n])) for n in own)
                partition = tuple(dict.fromkeys(every[p] for p in node.partition))
                return Window(inputs[0], partition, items) if items else inputs[0]
            case Generate():
                outputs = tuple(self._classes.name(number, ("generated", i)) for i in range(len(node.outputs)))
                return Generate(inputs[0], _renamed(node.generator, every), outputs, node.outer)
            case TopK():
                return TopK(inputs[0], tuple(_renamed(e, every) for e in node.order), node.limit, node.offset)
            case Union():
                names = tuple(own) or tuple(one.base)[:1]
                parts = (_placed(i, [_at(one.base[n], p) for n in names], names) for p, i in enumerate(inputs))
                return Union(tuple(parts), names)
            case SetOperation():
                names = tuple(self._classes.name(number, i) for i in range(len(node.names)))
                sides = zip(inputs, one.given, node.inputs, strict=True)
                left, right = (_placed(i, [g[c] for c in side.columns], names) for i, g, side in sides)
                return SetOperation(left, right, node.kind, names, node.sets)
        raise TypeError(type(node).__name__)

    def _scan(self, number: int, node: Scan, one: _Class, own: Sequence[str]) -> Node:
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


def _described(node: Node, given: _Given) -> Hashable:
    """What an operator does to the rows of its inputs, whatever columns it makes."""
    every = _all(given)
    match node:
        case Scan():
            return node.source, node.version
        case Values():
            return tuple(tuple(exactly(e) for e in row) for row in node.rows)
        case Filter():
            return _conditions(node.predicate, every)
        case Join():
            return node.kind, node.small, _conditions(node.condition, every)
        case Aggregate():
            return frozenset(every[k] for k in node.keys)
        case Window():
            return frozenset(every[p] for p in node.partition)
        case Generate():
            return exactly(_renamed(node.generator, every)), node.outer
        case TopK():
            return tuple(exactly(_renamed(e, every)) for e in node.order), node.limit, node.offset
        case Union():
            return ()
        case SetOperation():
            sides = zip(node.inputs, given, strict=True)
            return node.kind, node.sets, tuple(tuple(names[c] for c in side.columns) for side, names in sides)
    raise TypeError(type(node).__name__)


def _made(node: Node, given: _Given) -> dict[str, Hashable]:
    """The columns that an operator makes, and what each of them is."""
    match node:
        case Scan():
            fields: dict[str, Hashable] = {name: stored for stored, name in node.fields}
            return {**fields, WEIGHT: WEIGHT} if node.version == "delta" else fields
        case Aggregate() | Window():
            meant = {c: _renamed(e, given[0]) for c, e in node.items}
            return {c: _Meaning(exactly(e), e) for c, e in meant.items()}
        case Generate():
            return {c: ("generated", i) for i, c in enumerate(node.outputs)}
        case Union():
            sides = [[names[c] for c in part.columns] for part, names in zip(node.parts, given, strict=True)]
            return {c: tuple(side[i] for side in sides) for i, c in enumerate(node.names)}
        case Values() | SetOperation():
            return {c: i for i, c in enumerate(node.columns)}
    return {}


@dataclass(frozen=True)
class _Meaning:
    """An expression over columns of classes; two of them are equal if their trees are, to the letter."""

    tree: str
    expression: exp.Expr = field(compare=False)


def _expression(what: Hashable) -> exp.Expr:
    assert isinstance(what, _Meaning)
    return what.expression


def _of_meanings(made: Iterable[Hashable]) -> set[str]:
    return {n for what in made for n in names_in(_expression(what))}


def _at(what: Hashable, place: int) -> str:
    """The column of one part of a union."""
    assert isinstance(what, tuple)
    return str(what[place])


def _placed(node: Node, columns: Sequence[str], names: Sequence[str]) -> Node:
    """These columns of a node in order, for a union or a set operation; one that is there twice gets two names."""
    if len(set(columns)) == len(columns):
        return chosen(node, tuple(columns))
    return Project(node, tuple((n, column(c)) for n, c in zip(names, columns, strict=True)))


def _all(given: _Given) -> dict[str, str]:
    return {c: n for names in given for c, n in names.items()}


def _renamed(expression: exp.Expr, names: _Names) -> exp.Expr:
    def rename(part: exp.Expr) -> exp.Expr:
        return column(names[part.name]) if isinstance(part, exp.Column) else part

    return expression.transform(rename)


def _used(expression: exp.Expr, names: _Names) -> set[str]:
    return {names[n] for n in names_in(expression)}


def _conditions(condition: exp.Expr | None, names: _Names) -> frozenset[str]:
    found = conjuncts(condition) if condition is not None else []
    return frozenset(exactly(_renamed(c, names)) for c in found)


def exactly(expression: exp.Expr) -> str:
    """An expression as a text that no other one has: sqlglot's own form of a tree strips some strings, and rendering
    leaves out what a dialect does not write."""
    return f"{expression!r} {expression.sql(dialect='spark')}"
