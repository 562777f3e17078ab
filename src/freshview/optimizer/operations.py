"""The nodes of the query DAG (MQO §4.2): equivalence nodes, and the operations that compute them.

An equivalence node stands for one bag, whatever way it is computed; its columns are whatever its users need, so two
users that need different columns share one node (the projection to the union). Each operation computes the node from
other equivalence nodes, and can be turned back into an algebra tree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from sqlglot import exp

from freshview.algebra.nodes import Aggregate, Filter, Join, Node, Project, Scan, Table, column, conjunction, same
from freshview.algebra.traversal import with_inputs
from freshview.delta.aggregates import case
from freshview.optimizer.terms import Term, conditions, renamed, term

Leaf = tuple[int, int]  # an equivalence node as a leaf of a block, and which of its occurrences there
COUNT, SUM, MIN, MAX = "count", "sum", "min", "max"
_CALLS: dict[str, type[exp.Expr]] = {COUNT: exp.Count, SUM: exp.Sum, MIN: exp.Min, MAX: exp.Max}


class CanonicalNames:
    """Canonical column names: (equivalence node, column, occurrence in a block), each under a name of its own.

    No two names differ only in case: Spark and DuckDB would take them for one.
    """

    def __init__(self) -> None:
        self.origins: dict[str, tuple[int, str, int]] = {}
        self._later: dict[tuple[str, int], str] = {}
        self._folded: set[str] = set()

    def new(self, owner: int, wanted: str) -> str:
        """A name for a column of a node, in its first occurrence."""
        name = self._free("".join(c if c.isalnum() else "_" for c in wanted))
        self.origins[name] = (owner, name, 0)
        return name

    def at(self, base: str, occurrence: int) -> str:
        """The name of a column in a later occurrence of its node."""
        if not occurrence:
            return base
        if (base, occurrence) not in self._later:
            name = self._later[(base, occurrence)] = self._free(f"{base}__{occurrence}")
            self.origins[name] = (self.origins[base][0], base, occurrence)
        return self._later[(base, occurrence)]

    def _free(self, name: str) -> str:
        while name.casefold() in self._folded:
            name += "_"
        self._folded.add(name.casefold())
        return name

    def leaf(self, name: str) -> Leaf:
        owner, _, occurrence = self.origins[name]
        return owner, occurrence


@dataclass(frozen=True)
class Relabel:
    """Other occurrence numbers for the leaves of a block; a leaf that is not listed keeps its own."""

    names: CanonicalNames = field(repr=False)
    leaves: Mapping[Leaf, int] = field(default_factory=dict)

    def name(self, name: str) -> str:
        owner, base, occurrence = self.names.origins[name]
        return self.names.at(base, self.leaves.get((owner, occurrence), occurrence))

    def leaf(self, leaf: Leaf) -> Leaf:
        return leaf[0], self.leaves.get(leaf, leaf[1])

    @cached_property
    def is_identity(self) -> bool:
        return all(leaf[1] == number for leaf, number in self.leaves.items())

    def expression(self, expression: exp.Expr, columns: frozenset[str]) -> exp.Expr:
        names = {c: n for c in columns if (n := self.name(c)) != c}
        return renamed(expression, names) if names else expression

    def term(self, given: Term) -> Term:
        """The expression with its columns in the other labels."""
        if self.is_identity:
            return given
        moved = self.expression(given.expression, given.columns)
        return given if moved is given.expression else term(moved)

    def condition(self, given: Term) -> Term:
        """The condition with its columns in the other labels, its sides in canonical order."""
        moved = self.term(given)
        return given if moved is given else conditions(moved.expression)[0]

    def inverse(self) -> Relabel:
        return Relabel(self.names, {(owner, new): old for (owner, old), new in self.leaves.items()})


# -- equivalence nodes -----------------------------------------------------------------------------


@dataclass(eq=False)
class Equivalence:
    """One bag (the paper's equivalence node), with all known ways to compute it."""

    number: int
    relations: frozenset[str]  # tables and views that it is computed from
    operations: list[Operation] = field(default_factory=list, repr=False)
    needs: set[str] = field(default_factory=set, repr=False)  # columns that its users need
    asked: set[str] = field(default_factory=set, repr=False)  # those of them that other nodes need

    def add(self, operation: Operation) -> None:
        """Add a way to compute the node, unless it is known."""
        if all(o.key != operation.key for o in self.operations):
            self.operations.append(operation)


@dataclass(eq=False)
class StoredRelation(Equivalence):
    """A stored table or view."""

    name: str = ""
    fields: dict[str, str] = field(default_factory=dict)  # canonical column → stored column


@dataclass(eq=False)
class Block(Equivalence):
    """Leaves that are joined and filtered: σ conditions (leaf × … × leaf)."""

    leaves: tuple[Leaf, ...] = ()
    conditions: tuple[Term, ...] = ()
    is_expanded: bool = False


@dataclass(frozen=True)
class Call:
    """An aggregate that adds up: a count, sum, minimum or maximum of an argument (None: of the rows)."""

    kind: str
    argument: Term | None
    type: str = field(compare=False)  # Spark's type of the result

    @property
    def columns(self) -> frozenset[str]:
        return self.argument.columns if self.argument is not None else frozenset()


@dataclass(eq=False)
class Grouping(Equivalence):
    """γ by keys over another node, with calls that add up."""

    input: Equivalence = field(default=None, repr=False)  # type: ignore[assignment]  # always given
    keys: tuple[tuple[str, Term], ...] = ()  # (own column, expression over the input)
    calls: dict[Call, str] = field(default_factory=dict)  # own column of each call
    names: CanonicalNames = field(default_factory=CanonicalNames, repr=False)

    def column_of(self, call: Call) -> str:
        """The column that holds a call; a call that is new is asked of all finer groupings, too."""
        if call not in self.calls:
            self.calls[call] = self.names.new(self.number, f"g{self.number}_{call.kind}{len(self.calls)}")
            merging = {o: o.finer for o in self.operations if isinstance(o, Group) and o.finer is not None}
            self.operations = [o for o in self.operations if o not in merging or merging[o].accepts(call)]
            for finer in merging.values():
                if finer.accepts(call):
                    finer.column_for(call)
        return self.calls[call]

    def call_of(self, name: str) -> Call:
        return next(call for call, own in self.calls.items() if own == name)

    @cached_property
    def key_of(self) -> Mapping[str, str]:
        """The own column of each key, by the text of its expression."""
        return {key.text: own for own, key in self.keys}


@dataclass(eq=False)
class Other(Equivalence):
    """An operator that is shared when it is equal, and not taken apart."""

    template: Node = field(default=None, repr=False)  # type: ignore[assignment]  # always given


# -- operations ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OperationInput:
    """An input of an operation; `labels` leads from its occurrences to those of the operation's node."""

    node: Equivalence
    labels: Relabel

    def lifted(self, tree: Node) -> Node:
        """The input's tree with the column names of the operation's node."""
        moved = tuple((self.labels.name(c), column(c)) for c in tree.columns)
        return tree if all(new == old.name for new, old in moved) else Project(tree, moved)


@dataclass(frozen=True, eq=False)
class Operation:
    """One way to compute an equivalence node (the paper's operation node); `rule` names the law that allows it."""

    rule: str
    inputs: tuple[OperationInput, ...]

    @property
    def key(self) -> object:
        return self.rule, tuple(u.node.number for u in self.inputs)

    def asks(self, needs: set[str]) -> list[set[str]]:
        """The columns that are needed of each input, if these of the node are needed."""
        raise NotImplementedError

    def tree(self, inputs: Sequence[Node], needs: Sequence[str]) -> Node:
        """The algebra tree of the node over the trees of its inputs, with at least the columns `needs`."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class ReadRelation(Operation):
    """A stored relation is read."""

    relation: StoredRelation

    def asks(self, needs: set[str]) -> list[set[str]]:  # noqa: ARG002
        return []

    def tree(self, inputs: Sequence[Node], needs: Sequence[str]) -> Node:  # noqa: ARG002
        wanted = needs or list(self.relation.fields)[:1]  # a relation with rows has a column
        return Scan(Table(self.relation.name), tuple((self.relation.fields[n], n) for n in wanted))


@dataclass(frozen=True, eq=False)
class Joined(Operation):
    """σ conditions (A × B); one input: σ conditions (A)."""

    conditions: tuple[Term, ...]

    @property
    def key(self) -> object:
        return self.rule, tuple((u.node.number, tuple(sorted(u.labels.leaves.items()))) for u in self.inputs)

    def asks(self, needs: set[str]) -> list[set[str]]:
        wanted = needs.union(*(c.columns for c in self.conditions))
        found = []
        for use in self.inputs:
            back = use.labels.inverse()
            own = {use.labels.leaf(leaf) for leaf in leaves_of(use.node)}
            found.append({back.name(c) for c in wanted if use.labels.names.leaf(c) in own})
        return found

    def tree(self, inputs: Sequence[Node], needs: Sequence[str]) -> Node:  # noqa: ARG002
        lifted = [use.lifted(tree) for use, tree in zip(self.inputs, inputs, strict=True)]
        condition = conjunction([c.expression for c in self.conditions])
        if len(lifted) == 2:
            return Join(lifted[0], lifted[1], "inner", condition)
        return lifted[0] if condition is None else Filter(lifted[0], condition)


def leaves_of(node: Equivalence) -> tuple[Leaf, ...]:
    """The leaves whose columns a node has: those of a block, or the node itself."""
    return node.leaves if isinstance(node, Block) else ((node.number, 0),)


def conditions_of(node: Equivalence) -> tuple[Term, ...]:
    """The conditions of a block; a leaf alone has none."""
    return node.conditions if isinstance(node, Block) else ()


@dataclass(frozen=True)
class Finer:
    """A finer grouping that another one is computed from: as its input, or as a leaf of its input, below a join.

    `inner` leads from the columns of the coarser grouping's own input to those of the finer one's, `outer` to those of
    the operation's input, and `lift` from the finer grouping's columns to that input. Arguments over the leaves
    `inside` were aggregated below (None: all arguments).
    """

    grouping: Grouping
    inner: Relabel
    outer: Relabel
    lift: Relabel
    inside: frozenset[Leaf] | None = None

    def holds(self, call: Call) -> bool:
        """Was the argument of a call aggregated by the finer grouping?"""
        return self.inside is None or self._leaves(call) <= self.inside

    def accepts(self, call: Call) -> bool:
        """Can a call be computed from what the finer grouping keeps?"""
        return self.holds(call) or (
            call.kind != SUM and self.inside is not None and not self._leaves(call) & self.inside
        )

    def column_for(self, call: Call) -> str | None:
        """The column of the finer grouping that a call is computed from; None if it needs none."""
        if self.holds(call):
            argument = self.inner.term(call.argument) if call.argument is not None else None
            return self.grouping.column_of(Call(call.kind, argument, call.type))
        return self.grouping.column_of(ROWS) if call.kind == COUNT else None

    def over(self, call: Call) -> exp.Expr:
        """The aggregate over the operation's input that merges the parts of a call.

        A row of the finer grouping stands for as many rows as its count.
        """
        partial = self.column_for(call)
        if self.holds(call):
            assert partial is not None
            return _CALLS[SUM if call.kind == COUNT else call.kind](this=column(self.lift.name(partial)))
        assert call.argument is not None
        argument = self.outer.term(call.argument)
        if call.kind != COUNT:
            return _plain(call.kind, argument)
        assert partial is not None
        unknown = exp.Is(this=exp.Paren(this=argument.expression.copy()), expression=exp.Null())
        return exp.Sum(this=case(unknown, exp.Literal.number(0), column(self.lift.name(partial))))

    def _leaves(self, call: Call) -> set[Leaf]:
        return {self.lift.names.leaf(c) for c in call.columns}


@dataclass(frozen=True, eq=False)
class Group(Operation):
    """γ over the rows of an input, or over the partial results of a finer grouping."""

    node: Grouping
    keys: tuple[tuple[str, Term], ...]  # (own column, expression over the input)
    filters: tuple[Term, ...] = ()  # over the input
    finer: Finer | None = None

    def _over(self, call: Call) -> exp.Expr:
        return _plain(call.kind, call.argument) if self.finer is None else self.finer.over(call)

    def _finished(self, call: Call, merged: str) -> exp.Expr:
        """The call from the sum of its parts, which has a wider type; without keys there may be no count to add."""
        if self.finer is not None and call.kind == SUM and call.type != "bigint":
            return exp.cast(column(merged), call.type, dialect="spark")
        if self.finer is not None and call.kind == COUNT and not self.keys:
            return exp.Coalesce(this=column(merged), expressions=[exp.Literal.number(0)])
        return column(merged)

    def asks(self, needs: set[str]) -> list[set[str]]:
        wanted = set[str]().union(*(t.columns for _, t in self.keys), *(t.columns for t in self.filters))
        for name in needs - {own for own, _ in self.keys}:
            over = self._over(self.node.call_of(name))
            wanted |= {c.name for c in over.find_all(exp.Column)}
        back = self.inputs[0].labels.inverse()
        return [{back.name(c) for c in wanted}]

    def tree(self, inputs: Sequence[Node], needs: Sequence[str]) -> Node:
        source = self.inputs[0].lifted(inputs[0])
        condition = conjunction([t.expression for t in self.filters])
        if condition is not None:
            source = Filter(source, condition)
        own = {name for name, _ in self.keys}
        calls = {n: self.node.call_of(n) for n in needs if n not in own}
        if not self.keys and not calls:  # a relation with rows has a column
            calls = {self.node.column_of(ROWS): ROWS}
        finished = {n: self._finished(call, n) for n, call in calls.items()}
        merged = {n: n if isinstance(e, exp.Column) else f"{n}__merged" for n, e in finished.items()}
        items = tuple((merged[n], self._over(call)) for n, call in calls.items())
        plain = dict.fromkeys(c.name for _, e in items for c in e.find_all(exp.Column))
        keyed = (*((name, t.expression) for name, t in self.keys), *same(plain))
        keys = tuple(name for name, _ in self.keys)
        groups = Aggregate(Project(source, keyed) if keyed else source, keys, items)
        if all(n == m for n, m in merged.items()):
            return groups
        return Project(groups, (*same(keys), *((n, self._finished(call, merged[n])) for n, call in calls.items())))


ROWS = Call(COUNT, None, "bigint")


def _plain(kind: str, argument: Term | None) -> exp.Expr:
    return _CALLS[kind](this=exp.Star() if argument is None else argument.expression.copy())


@dataclass(frozen=True, eq=False)
class Applied(Operation):
    """An operator over projections of its inputs, as it stands in a definition."""

    node: Other
    given: tuple[tuple[tuple[str, Term], ...], ...]  # for each input: (column of the template, expression)
    own: tuple[tuple[str, str], ...]  # (canonical column, column of the template)

    @property
    def key(self) -> object:
        return self.rule, self.node.number

    def asks(self, needs: set[str]) -> list[set[str]]:  # noqa: ARG002
        return [set[str]().union(*(t.columns for _, t in items)) for items in self.given]

    def tree(self, inputs: Sequence[Node], needs: Sequence[str]) -> Node:
        below = [
            Project(tree, tuple((c, t.expression) for c, t in items))
            for tree, items in zip(inputs, self.given, strict=True)
        ]
        applied = with_inputs(self.node.template, tuple(below)) if below else self.node.template
        held = dict(self.own)
        wanted = needs or list(held)[:1]
        return Project(applied, tuple((n, column(held[n])) for n in wanted)) if wanted else applied
