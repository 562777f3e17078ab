"""Classes of nodes that give the same rows, over several plans; part of `together.py`.

A class is an operator over classes. Projections make no class: what they compute are columns of the class below, so
that nodes which show different columns of the same rows are of one class.
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
    ScanSource,
    SetOperation,
    TopK,
    Union,
    Values,
    Window,
    column,
    conjuncts,
    names_in,
)
from freshview.algebra.traversal import bottom_up

ColumnNames = Mapping[str, str]  # from the columns of a node to those of its class
InputNames = tuple[ColumnNames, ...]  # per input
Restrictions = tuple[tuple[str, bool, tuple[tuple[int, str], ...]], ...]  # of a scan: column, nulls, classes' columns
SourceOf = Callable[[int, Scan], tuple[ScanSource, str]]  # what a scan of the plan at a place reads, and its version


@dataclass
class Class:
    """Rows: an operator over classes, and the columns that can be seen of them."""

    operator: Node  # the first node of the class
    inputs: tuple[int, ...]
    origins: frozenset[int]  # the classes in which columns of this one may have been named
    given: InputNames  # the columns of the operator's inputs
    restrictions: Restrictions = ()
    right: dict[str, str] = field(default_factory=dict)  # of a join of rows with themselves: the right side, renamed
    base: dict[str, Hashable] = field(default_factory=dict)  # columns that the operator makes, and of what
    computed: dict[str, exp.Expr] = field(default_factory=dict)  # columns computed of others of the class, in order
    needed: set[str] = field(default_factory=set)


class Classes:
    """The classes of the nodes of several plans."""

    def __init__(self, read: SourceOf) -> None:
        self.classes: list[Class] = []
        self.scans: dict[Scan, int] = {}
        self._read = read
        self._known: dict[Node, tuple[int, ColumnNames]] = {}
        self._numbers: dict[Hashable, int] = {}
        self._names: dict[Hashable, str] = {}
        self._named_in: dict[str, int] = {}  # the class in which a column was named

    def of(self, root: Node, place: int) -> tuple[int, ColumnNames]:
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

    def _formed(self, node: Node, place: int) -> tuple[int, ColumnNames]:
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

    def _projected(self, node: Project, number: int, given: ColumnNames) -> tuple[int, ColumnNames]:
        names = {}
        for name, expression in node.items:
            if isinstance(expression, exp.Column):
                names[name] = given[expression.name]
                continue
            meant = renamed(expression, given)
            names[name] = self.name(number, exactly(meant))
            self.classes[number].computed.setdefault(names[name], meant)
        return number, names

    def _operated(
        self, node: Node, inputs: list[tuple[int, ColumnNames]], restrictions: Restrictions
    ) -> tuple[int, ColumnNames]:
        numbers, given = tuple(n for n, _ in inputs), tuple(names for _, names in inputs)
        meets_itself = isinstance(node, Join) and bool(self._origins(numbers[:1]) & self._origins(numbers[1:]))
        right = {n: f"{n}r{numbers[0]}_{numbers[1]}" for n in given[1].values()} if meets_itself else {}
        if meets_itself:
            given = (given[0], {c: right[n] for c, n in given[1].items()})
        key = (type(node), numbers, _described(node, given), restrictions)
        number = self._numbers.setdefault(key, len(self.classes))
        if number == len(self.classes):
            origins = frozenset({number}) | self._origins(numbers)
            self.classes.append(Class(node, numbers, origins, given, restrictions))
        made = self.classes[number]
        made.right.update(right)
        every = names_of(given)
        names = {c: every[c] for c in node.columns if c in every} if not isinstance(node, Union | SetOperation) else {}
        for c, what in _made(node, given).items():
            names[c] = self.name(number, what)
            made.base.setdefault(names[c], what)
        return number, names

    def _origins(self, numbers: Iterable[int]) -> frozenset[int]:
        return frozenset[int]().union(*(self.classes[n].origins for n in numbers))

    def _restrictions(self, scan: Scan, place: int) -> Restrictions:
        found = {
            (s.column, s.nulls, tuple(sorted({(self.of(source, place)[0], c) for source, c in s.sources})))
            for s in scan.semijoins
        }
        return tuple(sorted(found))

    # -- needs -------------------------------------------------------------------------------------

    def need(self, roots: Sequence[tuple[int, ColumnNames]]) -> None:
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

    def _asked(self, one: Class, place: int) -> set[str]:
        """The columns that a class needs of an input, by the names that they have there."""
        node, given = one.operator, one.given[place]
        handed = {n for n in one.needed if n not in one.computed and n not in one.base}
        made = [one.base[n] for n in one.needed if n in one.base]
        match node:
            case Filter():
                return handed | _used(node.predicate, given)
            case Join():
                condition = _used(node.condition, names_of(one.given)) if node.condition is not None else set[str]()
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
                return {column_at(what, place) for what in made or list(one.base.values())[:1]}
            case SetOperation():
                return set(given.values())
        raise TypeError(type(node).__name__)

    def _of_side(self, one: Class, place: int, wanted: set[str]) -> set[str]:
        """The columns of a join that come from one side of it."""
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


def _described(node: Node, given: InputNames) -> Hashable:
    """What an operator does to the rows of its inputs, whatever columns it makes."""
    every = names_of(given)
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
            return exactly(renamed(node.generator, every)), node.outer
        case TopK():
            return tuple(exactly(renamed(e, every)) for e in node.order), node.limit, node.offset
        case Union():
            return ()
        case SetOperation():
            sides = zip(node.inputs, given, strict=True)
            return node.kind, node.sets, tuple(tuple(names[c] for c in side.columns) for side, names in sides)
    raise TypeError(type(node).__name__)


def _made(node: Node, given: InputNames) -> dict[str, Hashable]:
    """The columns that an operator makes, and what each of them is."""
    match node:
        case Scan():
            fields: dict[str, Hashable] = {name: stored for stored, name in node.fields}
            return {**fields, WEIGHT: WEIGHT} if node.version == "delta" else fields
        case Aggregate() | Window():
            meant = {c: renamed(e, given[0]) for c, e in node.items}
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


def expression_of(what: Hashable) -> exp.Expr:
    """The expression that a column of a grouping or a window is."""
    assert isinstance(what, _Meaning)
    return what.expression


def _of_meanings(made: Iterable[Hashable]) -> set[str]:
    return {n for what in made for n in names_in(expression_of(what))}


def column_at(what: Hashable, place: int) -> str:
    """The column of one part of a union."""
    assert isinstance(what, tuple)
    return str(what[place])


def names_of(given: InputNames) -> dict[str, str]:
    """What the columns of all inputs of an operator are called in their classes."""
    return {c: n for names in given for c, n in names.items()}


def renamed(expression: exp.Expr, names: ColumnNames) -> exp.Expr:
    """An expression over the columns of classes."""

    def rename(part: exp.Expr) -> exp.Expr:
        return column(names[part.name]) if isinstance(part, exp.Column) else part

    return expression.transform(rename)


def _used(expression: exp.Expr, names: ColumnNames) -> set[str]:
    return {names[n] for n in names_in(expression)}


def _conditions(condition: exp.Expr | None, names: ColumnNames) -> frozenset[str]:
    found = conjuncts(condition) if condition is not None else []
    return frozenset(exactly(renamed(c, names)) for c in found)


def exactly(expression: exp.Expr) -> str:
    """An expression as a text that no other one has: sqlglot's own form of a tree strips some strings, and rendering
    leaves out what a dialect does not write."""
    return f"{expression!r} {expression.sql(dialect='spark')}"
