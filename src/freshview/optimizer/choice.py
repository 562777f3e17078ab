"""What the optimiser proposes, as data: which results to store, share and sort, and which way for each view.

Every part can be executed: an auxiliary view has a definition (a tree over relations and other auxiliary views), a
shared result has its tree, and each view has its own tree *rewritten* over both. In these trees a stored result is a
scan of a `Table` by its name, a shared one a scan of `Shared`; delta rules see both as leaves. A view that another one
reads is read as it is stored: hidden columns included, and with the groups that its HAVING excludes. If a delta plan
reads a shared result in a state that was not kept, its tree takes the scan's place. A view's own text stays its
definition.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from freshview.algebra.nodes import Node, Project, Scan, ScanSource, Shared, Table, column
from freshview.algebra.traversal import scans
from freshview.optimizer.cost import (
    FULL,
    INCREMENTAL,
    NOT_STORED,
    PERMANENT,
    TRANSIENT,
    Cluster,
    Costs,
    Decision,
    Share,
    Store,
)
from freshview.optimizer.dag import Dag, Root
from freshview.optimizer.greedy import Limits, Selection, opposite, select
from freshview.optimizer.identity import Identities
from freshview.optimizer.operations import Block, Equivalence, Grouping, Other, StoredRelation
from freshview.optimizer.prices import Prices
from freshview.optimizer.statistics import Statistics
from freshview.optimizer.terms import conditions
from freshview.optimizer.trees import Given, Picked, plan_tree, root_tree
from freshview.optimizer.words import column_in_words, in_words, text_in_words

_NEAR = 12  # alternatives that are listed


@dataclass(frozen=True)
class StoredResult:
    """A result to be stored permanently, as a hidden view."""

    name: str
    node: int
    what: str
    tree: Node  # its definition
    sorted_by: str  # a column of it, or empty
    rows: float
    bytes: float
    seconds: float  # per refresh, to maintain it
    saves: float  # per refresh, its own cost taken off


@dataclass(frozen=True)
class SharedResult:
    """A result to be kept for the duration of one refresh: the full result after the change, or its differentials."""

    number: int  # in `nodes.Shared`
    node: int
    what: str
    tree: Node
    full: bool
    differentials: tuple[str, ...]  # relations by whose changes
    bytes: float
    seconds: float
    saves: float


@dataclass(frozen=True)
class Sorting:
    """A stored relation or view whose files are to be sorted by a column."""

    relation: str
    column: str
    saves: float


@dataclass(frozen=True)
class ViewPlan:
    """The way for one view, and the way that lost."""

    name: str
    way: str
    seconds: float
    other_way: str
    other_seconds: float
    tree: Node  # of its stored columns, rewritten
    reads: tuple[str, ...]
    why: str


@dataclass(frozen=True)
class QueryPlan:
    """The plan of a query of the workload."""

    name: str
    rate: float  # how often it runs between two refreshes
    seconds: float
    reads: tuple[str, ...]


@dataclass(frozen=True)
class Alternative:
    """A near alternative that lost."""

    what: str
    alone: float  # seconds per refresh that it would save if nothing else were chosen
    saves: float  # seconds per refresh that it would save beside the choice; negative: it would cost more
    bytes: float  # that it would take; only JSON reports have it
    why: str


@dataclass(frozen=True)
class Choice:
    """What to store, share and sort, and how each view is then maintained."""

    before: float  # expected seconds per refresh with no decision
    after: float
    executed: float  # after, without what is proposed and not executed (see `_Choosing._is_executed`)
    auxiliaries: tuple[StoredResult, ...]
    shared: tuple[SharedResult, ...]
    sortings: tuple[Sorting, ...]
    views: tuple[ViewPlan, ...]
    queries: tuple[QueryPlan, ...]
    alternatives: tuple[Alternative, ...]
    selection: Selection = field(repr=False)


def optimise(
    dag: Dag,
    statistics: Statistics,
    prices: Prices | None = None,
    limits: Limits | None = None,
    *,
    rounds: float = 1000.0,
) -> Choice:
    """The choice for a set of views, and queries of a workload, whose DAG has been expanded by the rules."""
    return choice_of(dag, select(dag, statistics, prices, limits, rounds=rounds))


def choice_of(dag: Dag, selection: Selection) -> Choice:
    """The choice that a selection amounts to; decisions that no plan reads are taken back."""
    while True:
        choosing = _Choosing(dag, selection)
        choice = choosing.choice()
        unread = choosing.unread()
        if not unread:
            return choice
        selection = selection.without(unread, "no view's plan as a whole reads it")


class _Choosing:
    def __init__(self, dag: Dag, selection: Selection) -> None:
        self._dag = dag
        self._selection = selection
        self._costs: Costs = selection.costs
        self._saved = {(type(t.change), t.change.node): t for t in selection.taken}
        self._names = Identities(dag)
        self._used: dict[int, set[str]] = {}
        kept = [n.number for n in self._costs.nodes if self._is_kept(n.number)]
        self._numbers = {number: i + 1 for i, number in enumerate(kept)}

    def _is_kept(self, number: int) -> bool:
        mode = self._costs.mode[number]
        return mode == TRANSIENT or (mode == NOT_STORED and number in self._costs.shared)

    def unread(self) -> set[int]:
        """The nodes about which something was decided and that no plan reads."""
        decided = {t.change.node for t in self._selection.taken if not isinstance(t.change, Cluster)}
        return decided - self._used.keys()

    def choice(self) -> Choice:
        views, queries = self._plans()
        auxiliaries, shared = [], []
        for node in reversed(self._costs.nodes):  # users come first: the columns that they need are known then
            if node.number in self._used and node.number not in self._costs.owner:
                if self._costs.mode[node.number] == PERMANENT:
                    auxiliaries.append(self._auxiliary(node))
                elif self._is_kept(node.number):
                    shared.append(self._shared(node))
        return Choice(
            before=self._selection.before,
            after=self._selection.after,
            executed=self._executed(views, auxiliaries, shared),
            auxiliaries=tuple(reversed(auxiliaries)),
            shared=tuple(reversed(shared)),
            sortings=tuple(self._sortings()),
            views=tuple(views),
            queries=tuple(queries),
            alternatives=tuple(self._alternatives()),
            selection=self._selection,
        )

    def _executed(
        self, views: Sequence[ViewPlan], auxiliaries: Sequence[StoredResult], shared: Sequence[SharedResult]
    ) -> float:
        """The expected seconds per refresh with what is executed of the choice."""
        trees = {a.name: a.tree for a in auxiliaries} | {f"shared {s.number}": s.tree for s in shared}
        waiting = [name for view in views if view.way == INCREMENTAL for name in view.reads]
        read = set[str]()
        while waiting:
            name = waiting.pop()
            if name in trees and name not in read:
                read.add(name)
                waiting += _reads(trees[name])
        stored = {a.node for a in auxiliaries if a.name in read}
        left = [t.change for t in reversed(self._selection.taken) if not self._is_executed(t.change, stored)]
        return self._costs.tried(*map(opposite, left))

    def _is_executed(self, change: Decision, stored: Collection[int]) -> bool:
        """Is a decision executed? Tables are not sorted anew, no full result is kept for one refresh, and none is
        stored that no incremented view reads."""
        return isinstance(change, Share) or (change.node in stored and change != Store(change.node, TRANSIENT))

    # -- trees -------------------------------------------------------------------------------------

    def _given(self, way: str) -> Given:
        """The nodes that a plan reads instead of computing them."""
        stored = [
            n
            for n in self._costs.nodes
            if not isinstance(n, StoredRelation) and self._costs.mode[n.number] != NOT_STORED
        ]
        kept = [self._dag.nodes[n] for n in self._numbers] if way == INCREMENTAL else []
        return {n.number: self._reader(n) for n in (*stored, *kept)}

    def _reader(self, node: Equivalence) -> Callable[[tuple[str, ...]], Node]:
        owner = self._costs.owner.get(node.number)

        def read(names: tuple[str, ...]) -> Node:
            self._used.setdefault(node.number, set()).update(names)
            if owner is not None:
                wanted = names or tuple(owner.provides)[:1]
                return Scan(Table(owner.name), tuple((owner.provides[n], n) for n in wanted))
            names = names or tuple(sorted(node.needs))[:1]
            self._used[node.number].update(names)
            if self._is_kept(node.number):
                return Scan(Shared(self._numbers[node.number]), tuple((n, n) for n in names))
            return Scan(self._table(node), tuple((self._names.stored(n), n) for n in names))

        return read

    def _table(self, node: Equivalence) -> Table:
        return Table(self._names.table(node))

    def _picked(self, way: str) -> Picked:
        return self._costs.by_deltas if way == INCREMENTAL else self._costs.by_full

    def _plans(self) -> tuple[list[ViewPlan], list[QueryPlan]]:
        views, queries = [], []
        for root in self._dag.roots:
            if root.is_query:
                tree = self._root_tree(root, FULL)
                queries.append(QueryPlan(root.name, root.rate, self._costs.cost(root.node.number), _reads(tree)))
                continue
            cost = self._costs.mntcost(root)
            tree = self._root_tree(root, cost.way)
            other = FULL if cost.way == INCREMENTAL else INCREMENTAL
            seconds = {INCREMENTAL: cost.incremental, FULL: cost.full}
            pinned = root.why or f"'refresh' = '{cost.pinned}'"
            why = pinned if cost.pinned else "it is expected to take longer"
            both = (cost.way, seconds[cost.way], other, seconds[other])
            views.append(ViewPlan(root.name, *both, tree, _reads(tree), why))
        return views, queries

    def _root_tree(self, root: Root, way: str) -> Node:
        given = self._given(way)
        if root.node.number in given and self._costs.owner.get(root.node.number) is not root:
            items = tuple((c, t.expression) for c, t in root.items)
            return Project(given[root.node.number](tuple(sorted(root.needs))), items)
        return root_tree(root, self._picked(way), given)

    def _part(self, node: Equivalence, way: str) -> Node:
        names = sorted(self._used[node.number])
        return plan_tree(node, names, self._picked(way), self._given(way))

    def _auxiliary(self, node: Equivalence) -> StoredResult:
        number, size = node.number, self._costs.size(node)
        part = self._part(node, INCREMENTAL)
        by = self._costs.clustered.get(number)
        return StoredResult(
            name=self._table(node).name,
            node=number,
            what=described(self._dag, node),
            tree=Project(part, tuple((self._names.stored(c), column(c)) for c in part.columns)),
            sorted_by=self._names.stored(by) if by else "",
            rows=size.rows,
            bytes=size.bytes,
            seconds=self._costs.imntcost(number),
            saves=self._benefit(Store, number) + self._benefit(Cluster, number),
        )

    def _shared(self, node: Equivalence) -> SharedResult:
        number, size = node.number, self._costs.size(node)
        is_full, places = self._costs.mode[number] == TRANSIENT, sorted(self._costs.shared.get(number, ()))
        changes = [self._costs.updated[i] for i in places]
        deltas = sum(size.deltas[relation] for relation in changes) * size.width
        seconds = self._costs.trmatcost(number) if is_full else 0.0
        seconds += sum(self._costs.computed_delta(number, i) for i in places)
        return SharedResult(
            number=self._numbers[number],
            node=number,
            what=described(self._dag, node),
            tree=self._part(node, FULL if is_full else INCREMENTAL),
            full=is_full,
            differentials=tuple(changes),
            bytes=deltas + (size.bytes if is_full else 0.0),
            seconds=seconds,
            saves=self._benefit(Store, number) + self._benefit(Share, number),
        )

    def _sortings(self) -> list[Sorting]:
        found = []
        for (kind, number), taken in self._saved.items():
            node, owner = self._dag.nodes[number], self._costs.owner.get(number)
            if kind is Cluster and isinstance(taken.change, Cluster):
                if isinstance(node, StoredRelation):
                    found.append(Sorting(node.name, node.fields[taken.change.by], taken.benefit))
                elif owner is not None:
                    found.append(Sorting(owner.name, owner.provides[taken.change.by], taken.benefit))
        return found

    def _benefit(self, kind: type, number: int) -> float:
        found = [t for t in self._selection.taken if isinstance(t.change, kind) and t.change.node == number]
        return sum(t.benefit for t in found)

    def _alternatives(self) -> list[Alternative]:
        found = []
        for refused in self._selection.refused[:_NEAR]:
            node = self._dag.nodes[refused.change.node]
            what = described(self._dag, node)
            match refused.change:
                case Store(mode=mode):
                    what = f"{'store' if mode == PERMANENT else 'share'} {what}"
                case Share(place=place):
                    by = "" if place is None else f" by {self._costs.updated[place]}"
                    what = f"share the differentials{by} of {what}"
                case Cluster(by=by):
                    what = f"sort {what} by {column_in_words(self._dag, by)}"
            found.append(Alternative(what, refused.alone, refused.benefit, refused.bytes, refused.why))
        return found


def _reads(tree: Node) -> tuple[str, ...]:
    names = [s.source.name if isinstance(s.source, Table) else f"shared {_number(s.source)}" for s in scans(tree)]
    return tuple(dict.fromkeys(names))


def _number(source: ScanSource) -> int:
    assert isinstance(source, Shared)
    return source.number


def described(dag: Dag, node: Equivalence) -> str:
    """What a node is, in words of the definitions."""
    match node:
        case StoredRelation():
            return node.name
        case Block():
            leaves = [f"{_leaf(dag, dag.nodes[n])}{f'#{k + 1}' if k else ''}" for n, k in node.leaves]
            found = " AND ".join(sorted(t.text for c in node.conditions for t in conditions(in_words(dag, c))))
            return " ⋈ ".join(sorted(leaves)) + (f" [{found}]" if found else "").replace("`", "")
        case Grouping():
            keys = ", ".join(sorted(text_in_words(dag, t) for _, t in node.keys))
            return f"γ[{keys}] ({described(dag, node.input)})"
        case Other():
            below = ", ".join(described(dag, u.node) for u in node.operations[0].inputs)
            return f"{operator(node)} ({below})"
    raise TypeError(type(node).__name__)


def _leaf(dag: Dag, node: Equivalence) -> str:
    return node.name if isinstance(node, StoredRelation) else f"({described(dag, node)})"


def operator(node: Other) -> str:
    """The operator of a node that is not taken apart."""
    template = node.template
    kind = getattr(template, "kind", "")
    return f"{kind} {type(template).__name__.lower()}".strip()
