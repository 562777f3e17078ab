"""The query DAG of a set of views (MQO §4.2): every equivalence node once, with all ways to compute it.

    inner joins    a block is a set of leaves and a set of conditions with canonical columns (relation, column,
                   occurrence): commutativity and associativity hold by construction. It has an equivalence node for
                   every connected subset of its leaves, and an operation for every split of such a subset in two.
    γ              by keys over a block, with the union of the calls that its users need; see `rules` for its laws
    other          outer, semi and anti joins, windows, set operations …: shared when equal, by normal form

Bounds. A block of up to 8 leaves has all its connected subsets; a larger one the prefixes of the orders that start at
one leaf and join outward, one order per leaf. Occurrences of one relation are labelled canonically by trying all
orders, up to 720; beyond that equal blocks may count as different. Inlined expressions stop at 2,000 characters.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import factorial, prod

from sqlglot import exp

from freshview.algebra.nodes import Aggregate, Filter, Join, Node, Project, Scan, Table, column, conjuncts
from freshview.algebra.normal import NormalForms
from freshview.algebra.traversal import bottom_up, with_inputs
from freshview.delta.aggregates import plain_call
from freshview.delta.forms import Form
from freshview.optimizer.operations import (
    COUNT,
    Applied,
    Block,
    Call,
    CanonicalNames,
    Equivalence,
    Group,
    Grouping,
    Joined,
    Leaf,
    OperationInput,
    Other,
    ReadRelation,
    Relabel,
    StoredRelation,
)
from freshview.optimizer.subsets import adjacent, connected, outward, picked, splits
from freshview.optimizer.terms import Term, conditions, substituted, term

MOST_LEAVES = 8  # of a block with all its connected subsets
_MOST_ORDERS = 720  # of equal leaves that are tried for a canonical labelling
_LONGEST = 2_000  # characters of an expression that is inlined

ColumnTypes = Mapping[str, Mapping[str, str]]  # Spark's type of each column, by relation
Meaning = dict[str, exp.Expr]  # the columns of a tree as expressions over an equivalence node


@dataclass(frozen=True)
class View:
    """A materialized view, or a query, as the optimiser sees it: its stored form, and Spark's types of the columns."""

    name: str
    form: Form
    types: Mapping[str, str]
    pinned: str = ""  # "incremental" or "full": the only way that is possible, or that its user fixed
    why: str = ""  # what pins it


@dataclass(frozen=True, eq=False)
class Root:
    """Where a view, or a query of the workload, stands in the DAG: its columns as expressions over a node."""

    name: str
    node: Equivalence
    items: tuple[tuple[str, Term], ...]
    pinned: str = ""
    why: str = ""  # what pins it
    rate: float = 0.0  # how often a query runs between two refreshes; 0 for a view
    provides: Mapping[str, str] = field(default_factory=dict)  # canonical column → column that the view stores

    @property
    def is_query(self) -> bool:
        return self.rate > 0

    @property
    def needs(self) -> set[str]:
        return set[str]().union(*(t.columns for _, t in self.items))


class Dag:
    """The search space of all plans for a set of views; `columns` has the types of the relations' columns."""

    def __init__(self, columns: ColumnTypes) -> None:
        self.nodes: list[Equivalence] = []
        self.roots: list[Root] = []
        self.names = CanonicalNames()
        self.types: dict[str, str] = {}  # of canonical columns in their first occurrence, where they are known
        self._columns = columns
        self._same = Relabel(self.names)
        self._known: dict[object, Equivalence] = {}
        self._forms = NormalForms()
        self._own: dict[int, dict[str, str]] = {}  # of other operators: canonical names of their columns
        self._adding: dict[Node, tuple[tuple[str, str, exp.Expr | None, str], ...]] = {}

    # -- views and queries -------------------------------------------------------------------------

    def add_view(self, view: View) -> None:
        """Add a view by the tree of its stored columns."""
        node, items = self._entered(view)
        stored = {t.text: c for c, t in reversed(items)}
        needed = set[str]().union(*(t.columns for _, t in items))
        provided = {n: stored[text] for n in needed if (text := column(n).sql(dialect="spark")) in stored}
        self.roots.append(Root(view.name, node, items, view.pinned, view.why, provides=provided))

    def add_query(self, query: View, rate: float) -> None:
        """Add a query of the workload, which runs so often between two refreshes."""
        node, items = self._entered(query)
        self.roots.append(Root(query.name, node, items, rate=rate))

    def _entered(self, view: View) -> tuple[Equivalence, tuple[tuple[str, Term], ...]]:
        form = view.form
        if form.rule == "sums":
            assert form.root is not None
            assert form.state is not None
            names = [p.name for p in form.state.parts]
            base = next(
                n
                for n in bottom_up(form.tree)
                if isinstance(n, Aggregate) and n.input is form.root.input and [i for i, _ in n.items] == names
            )
            self._adding[base] = tuple((p.name, p.kind, p.argument, view.types[p.name]) for p in form.state.parts)
        node, meaning = self.enter(form.tree)
        return node, tuple((c, term(meaning[c])) for c in form.tree.columns)

    # -- trees -------------------------------------------------------------------------------------

    def enter(self, tree: Node) -> tuple[Equivalence, Meaning]:
        """The equivalence node of a tree, and the tree's columns as expressions over that node's."""
        if _is_part_of_block(tree):
            leaves: list[Leaf] = []
            found: list[Term] = []
            meaning = self._flattened(tree, leaves, found, Counter())
            node, labels = self.block(leaves, found)
            return node, {c: labels.expression(e, term(e).columns) for c, e in meaning.items()}
        if isinstance(tree, Aggregate):
            calls = self._calls(tree)
            if calls is not None:
                return self._aggregate(tree, calls)
        return self._other(tree)

    def _flattened(self, tree: Node, leaves: list[Leaf], found: list[Term], seen: Counter[int]) -> Meaning:
        """Add the leaves and conditions of a block; return its columns as expressions over those of the leaves."""
        node: Equivalence
        match tree:
            case Filter():
                meaning = self._flattened(tree.input, leaves, found, seen)
                for c in conjuncts(tree.predicate):
                    found += conditions(substituted(c, meaning))
                return meaning
            case Project():
                before = len(leaves), len(found), seen.copy()
                meaning = self._flattened(tree.input, leaves, found, seen)
                inlined = {name: substituted(e, meaning) for name, e in tree.items}
                if not _is_long(inlined):
                    return inlined
                del leaves[before[0] :], found[before[1] :]
                seen.clear()
                seen.update(before[2])
                node, meaning = self._other(tree)
            case Join(kind="inner"):
                meaning = self._flattened(tree.left, leaves, found, seen)
                meaning |= self._flattened(tree.right, leaves, found, seen)
                for c in conjuncts(tree.condition) if tree.condition is not None else ():
                    found += conditions(substituted(c, meaning))
                return meaning
            case Scan():
                node, meaning = self._relation(tree)
            case _:
                node, meaning = self.enter(tree)
        leaf = (node.number, seen[node.number])
        seen[node.number] += 1
        leaves.append(leaf)
        labels = Relabel(self.names, {(node.number, 0): leaf[1]})
        return {c: labels.expression(e, term(e).columns) for c, e in meaning.items()}

    def _relation(self, scan: Scan) -> tuple[StoredRelation, Meaning]:
        assert isinstance(scan.source, Table)
        assert scan.version == "now"
        name = scan.relation
        found = self._known.get(("relation", name))
        node = found if isinstance(found, StoredRelation) else None
        if node is None:
            node = StoredRelation(len(self.nodes), frozenset([name]), name=name)
            self._intern(("relation", name), node)
            for stored, type_ in self._columns[name].items():
                own = self.names.new(node.number, f"{name}_{stored}")
                node.fields[own] = stored
                self.types[own] = type_
            node.add(ReadRelation("stored", (), node))
        held = {stored: own for own, stored in node.fields.items()}
        return node, {own: column(held[stored]) for stored, own in scan.fields}

    def _calls(self, tree: Aggregate) -> tuple[tuple[str, str, exp.Expr | None, str], ...] | None:
        """The calls of an aggregate that adds up: name, kind, argument and type; None if it does not, or may not."""
        if tree in self._adding:
            return self._adding[tree]
        plain = [(name, plain_call(e)) for name, e in tree.items]
        if all(p is not None and p[0] == COUNT for _, p in plain):
            return tuple((name, COUNT, p[1], "bigint") for name, p in plain if p is not None)
        return None

    def _aggregate(
        self, tree: Aggregate, calls: Iterable[tuple[str, str, exp.Expr | None, str]]
    ) -> tuple[Grouping, Meaning]:
        below, held = self.enter(tree.input)
        keys = {k: term(held[k]) for k in tree.keys}
        node = self.grouping(below, keys.values())
        meaning: Meaning = {k: column(node.key_of[t.text]) for k, t in keys.items()}
        for name, kind, argument, type_ in calls:
            over = term(substituted(argument, held)) if argument is not None else None
            meaning[name] = column(self._typed(node, Call(kind, over, type_)))
        return node, meaning

    def _typed(self, node: Grouping, call: Call) -> str:
        own = node.column_of(call)
        self.types[own] = call.type
        return own

    def _other(self, tree: Node) -> tuple[Other, Meaning]:
        entered = [self.enter(i) for i in tree.inputs]
        given = tuple(
            tuple((c, term(held[c])) for c in i.columns) for i, (_, held) in zip(tree.inputs, entered, strict=True)
        )
        below: list[Node] = []
        for (node, _), items in zip(entered, given, strict=True):
            wanted = sorted(set[str]().union(*(t.columns for _, t in items)))
            scan = Scan(Table(f"node {node.number}"), tuple((c, c) for c in wanted))
            below.append(Project(scan, tuple((c, t.expression) for c, t in items)))
        form = self._forms.of(with_inputs(tree, tuple(below)) if below else tree)
        key = ("other", form.number)
        other = self._known.get(key)
        if other is None:
            relations = frozenset[str]().union(*(n.relations for n, _ in entered))
            other = Other(len(self.nodes), relations, template=tree)
            self._intern(key, other)
            first: dict[str, str] = {}
            for c in tree.columns:
                first.setdefault(form.names[c], c)
            own = {f: self.names.new(other.number, f"x{other.number}_{i}") for i, f in enumerate(first)}
            self._own[other.number] = own
            uses = tuple(OperationInput(n, self._same) for n, _ in entered)
            other.add(Applied("as written", uses, other, given, tuple((own[f], c) for f, c in first.items())))
        assert isinstance(other, Other)
        return other, {c: column(self._own[other.number][form.names[c]]) for c in tree.columns}

    # -- nodes -------------------------------------------------------------------------------------

    def grouping(self, below: Equivalence, keys: Iterable[Term]) -> Grouping:
        """The grouping of a node by these keys."""
        distinct = {t.text: t for t in keys}
        key = ("grouping", below.number, frozenset(distinct))
        node = self._known.get(key)
        if node is None:
            node = Grouping(len(self.nodes), below.relations, input=below, names=self.names)
            self._intern(key, node)
            pairs = []
            for i, (_, t) in enumerate(sorted(distinct.items())):
                own = self.names.new(node.number, f"g{node.number}_key{i}")
                pairs.append((own, t))
                if isinstance(t.expression, exp.Column):
                    self.types[own] = self.type_of(t.expression.name)
            node.keys = tuple(pairs)
            node.add(Group("of rows", (OperationInput(below, self._same),), node, node.keys))
        assert isinstance(node, Grouping)
        return node

    def block(self, leaves: Sequence[Leaf], found: Iterable[Term]) -> tuple[Equivalence, Relabel]:
        """The node of a block in canonical labels, with its subsets; and the way from the given labels to those."""
        node, labels = self._member(leaves, tuple(dict.fromkeys(found)))
        if isinstance(node, Block) and not node.is_expanded:
            self._expand(node)
        return node, labels

    def _member(self, leaves: Sequence[Leaf], found: Sequence[Term]) -> tuple[Equivalence, Relabel]:
        """The node of a block, without its subsets if it is new."""
        ordered, own, labels = self._canonical(leaves, found)
        if len(ordered) == 1 and not own:
            return self.nodes[ordered[0][0]], labels
        key = ("block", ordered, frozenset(own))
        node = self._known.get(key)
        if node is None:
            relations = frozenset[str]().union(*(self.nodes[n].relations for n, _ in ordered))
            node = Block(len(self.nodes), relations, leaves=ordered, conditions=own)
            self._intern(key, node)
        return node, labels

    def _canonical(
        self, leaves: Sequence[Leaf], found: Sequence[Term]
    ) -> tuple[tuple[Leaf, ...], tuple[Term, ...], Relabel]:
        """Leaves and conditions under labels that do not depend on how the block was written."""
        occurrences: dict[int, list[int]] = defaultdict(list)
        for owner, occurrence in leaves:
            occurrences[owner].append(occurrence)
        several = prod(factorial(len(o)) for o in occurrences.values())
        orders: Iterator[tuple[tuple[int, ...], ...]] = itertools.product(
            *(itertools.permutations(o) if several <= _MOST_ORDERS else iter([tuple(o)]) for o in occurrences.values())
        )
        best: tuple[tuple[str, ...], tuple[Term, ...], Relabel] | None = None
        for order in orders:
            mapping = {
                (n, old): new for n, olds in zip(occurrences, order, strict=True) for new, old in enumerate(olds)
            }
            labels = Relabel(self.names, mapping)
            own = tuple(sorted(map(labels.condition, found), key=lambda t: t.text))
            texts = tuple(t.text for t in own)
            if best is None or texts < best[0]:
                best = (texts, own, labels)
        assert best is not None
        ordered = tuple(sorted(best[2].leaf(leaf) for leaf in leaves))
        return ordered, best[1], best[2]

    def _expand(self, node: Block) -> None:
        """Add the subsets of a block and the operations between them."""
        node.is_expanded = True
        leaves, masks = node.leaves, self._masks(node)
        near = adjacent(len(leaves), masks.values())
        everything = (1 << len(leaves)) - 1
        complete = len(leaves) <= MOST_LEAVES
        subsets = sorted(connected(near) if complete else outward(near), key=lambda m: (m.bit_count(), m))
        members: dict[int, tuple[Equivalence, Relabel]] = {}
        for mask in subsets:
            own = [t for t, m in masks.items() if not m & ~mask]
            part = picked(leaves, mask)
            member, labels = members[mask] = self._member(part, own)
            if not isinstance(member, Block) or (member.is_expanded and member is not node):
                continue
            member.is_expanded = member.is_expanded or complete
            for left, right in splits(mask, members, complete):
                between = [t for t in own if masks[t] & left and masks[t] & right]
                uses = tuple(
                    OperationInput(
                        n, Relabel(self.names, {back.leaf(x): labels.leaf(x)[1] for x in picked(leaves, side)})
                    )
                    for side in (left, right)
                    for n, back in [members[side]]
                )
                member.add(Joined("join", uses, tuple(map(labels.condition, between))))
            if mask.bit_count() == 1:
                leaf = part[0]
                use = OperationInput(self.nodes[leaf[0]], Relabel(self.names, {(leaf[0], 0): labels.leaf(leaf)[1]}))
                member.add(Joined("select", (use,), tuple(map(labels.condition, own))))
        assert members[everything][0] is node

    def _masks(self, node: Block) -> dict[Term, int]:
        """The leaves of each condition; a condition without columns belongs to the first leaf."""
        place = {leaf: i for i, leaf in enumerate(node.leaves)}
        return {t: sum({1 << place[self.names.leaf(c)] for c in t.columns}) or 1 for t in node.conditions}

    def _intern(self, key: object, node: Equivalence) -> None:
        self._known[key] = node
        self.nodes.append(node)

    def type_of(self, name: str) -> str:
        """Spark's type of a canonical column; empty if it is not known."""
        return self.types.get(self.names.origins[name][1], "")

    # -- the whole ---------------------------------------------------------------------------------

    def ordered(self) -> list[Equivalence]:
        """The nodes that a root can use, each after its inputs."""
        found: list[Equivalence] = []
        state: dict[int, int] = {}
        stack: list[tuple[Equivalence, bool]] = [(r.node, False) for r in reversed(self.roots)]
        while stack:
            node, ready = stack.pop()
            if ready:
                state[node.number] = 2
                found.append(node)
            elif node.number not in state:
                state[node.number] = 1
                stack.append((node, True))
                stack += [(u.node, False) for o in node.operations for u in o.inputs if state.get(u.node.number) != 2]
        return found

    def finish(self) -> list[Equivalence]:
        """Find out what columns each node needs; return the nodes in use, each after its inputs."""
        nodes = self.ordered()
        for node in nodes:
            node.needs, node.asked = set(), set()
        for root in self.roots:
            root.node.needs |= root.needs
        for node in reversed(nodes):
            for operation in node.operations:
                for use, names in zip(operation.inputs, operation.asks(node.needs), strict=True):
                    use.node.needs |= names
                    use.node.asked |= names
        return nodes


def _is_long(meaning: Meaning) -> bool:
    return any(len(e.sql(dialect="spark")) > _LONGEST for e in meaning.values() if not isinstance(e, exp.Column))


def _is_part_of_block(tree: Node) -> bool:
    return isinstance(tree, Scan | Filter | Project) or (isinstance(tree, Join) and tree.kind == "inner")
