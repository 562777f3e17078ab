"""The cost of a refresh of all views, given what is stored and what is shared (MQO §5).

    compcost(e)   = min over the operations o of e:  localcost(o) + Σ inputs C(i)
    C(e)          = reusecost(e) if e is stored or kept, else compcost(e)
    trmatcost(e)  = compcost(e) + matcost(e)                       kept for one refresh
    imntcost(e)   = Σ over updated relations r:  compcost(δr e) + mergecost(δr e);  afterwards δr e is stored, too
    rmntcost(e)   = compcost(e) + matcost(e)
    mntcost(e)    = min(imntcost, rmntcost) for a view; imntcost for a result stored in addition
    totalcost     = Σ views and stored results mntcost + Σ kept results trmatcost + Σ queries rate · C + one commit

What is computed in full is read, joined and written with the rows after all changes; a differential meets the rows of
the state that it sees (logical properties after each update, §4.2.2).

A differential joins δA with the full result of B: looked up by value if B is stored, pruned if it is clustered on that
column. Relations are updated one after the other, in the order of `updated`, so δr sees the relations before r in their
new state and the others in their old one. A stored result has both states, but no mixture of them; a kept full result
has the new state. `Costs` follows the formulas after every change of what is stored: only ancestors are computed again,
and only as far as something changes (MQO §6.2, incremental cost update).
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from dataclasses import dataclass, field

from freshview.optimizer.dag import Dag, Root
from freshview.optimizer.formulas import NEVER, Formula, Formulas, Lookup, children, lookups_by
from freshview.optimizer.operations import (
    Equivalence,
    Grouping,
    Operation,
    StoredRelation,
)
from freshview.optimizer.prices import Prices
from freshview.optimizer.statistics import NodeSize, Sizes, Statistics

NOT_STORED, TRANSIENT, PERMANENT = 0, 1, 2
INCREMENTAL, FULL = "incremental", "full"


@dataclass(frozen=True)
class Maintained:
    """The maintenance cost of a view, by both ways."""

    incremental: float
    full: float
    pinned: str = ""

    @property
    def way(self) -> str:
        return self.pinned or (INCREMENTAL if self.incremental <= self.full else FULL)

    @property
    def seconds(self) -> float:
        return self.incremental if self.way == INCREMENTAL else self.full


@dataclass
class _Value:
    """The current costs of a node, and the operations that reach them."""

    full: float = NEVER
    full_by: int = 0
    deltas: dict[int, float] = field(default_factory=dict)
    deltas_by: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Store:
    """Store a full result permanently, keep it for one refresh, or neither."""

    node: int
    mode: int


@dataclass(frozen=True)
class Share:
    """Keep all differentials of a node for one refresh, or the one by the relation at a place; or do not."""

    node: int
    on: bool
    place: int | None = None


@dataclass(frozen=True)
class Cluster:
    """Sort the files of a stored result by a column, or by none."""

    node: int
    by: str


Decision = Store | Share | Cluster


class Costs:
    """The costs of all nodes under the current choice, kept up to date."""

    def __init__(self, dag: Dag, statistics: Statistics, prices: Prices, *, rounds: float = 1000.0) -> None:
        self.dag = dag
        self.prices = prices
        self.rounds = rounds  # refreshes over which building a stored result is written off
        self.nodes = dag.finish()
        self.sizes = Sizes(dag, self.nodes, statistics)
        self.updated = sorted({r for s in self.sizes.of.values() for r in s.deltas})
        self._relations = {n.number for n in self.nodes if isinstance(n, StoredRelation)}
        formulas = Formulas(self.nodes, self.sizes, prices, self.updated)
        self.changes = formulas.changes
        self.position = {n.number: i for i, n in enumerate(self.nodes)}
        self.mode = {n.number: PERMANENT if isinstance(n, StoredRelation) else NOT_STORED for n in self.nodes}
        self._reuse = {number: prices.scanned(size.new) for number, size in self.sizes.of.items()}
        self.shared: dict[int, frozenset[int]] = {}  # nodes whose differentials are kept: by the relations at places
        self.clustered: dict[int, str] = {}
        for node in self.nodes:
            if isinstance(node, StoredRelation) and node.name in statistics and statistics[node.name].clustered:
                held = {stored: own for own, stored in node.fields.items()}
                self.clustered[node.number] = held[statistics[node.name].clustered]
        self.roots: dict[int, list[Root]] = defaultdict(list)
        self.owner: dict[int, Root] = {}  # the view that stores a node's rows already
        for root in dag.roots:
            self.roots[root.node.number].append(root)
        for root in dag.roots:
            if not root.is_query and self._stores_all(root):
                self.owner.setdefault(root.node.number, root)
        for number in self.owner:
            self.mode[number] = PERMANENT
        self.priced = {n.number: [formulas.of(n, o) for o in n.operations] for n in self.nodes}
        self._users: dict[int, set[int]] = defaultdict(set)
        for n in self.nodes:
            for priced in self.priced[n.number]:
                for formula in (priced.full, *priced.deltas.values()):
                    for child in children(formula):
                        self._users[child].add(n.number)
        self.lookups_by = lookups_by(each for priced in self.priced.values() for each in priced)
        self._values: dict[int, _Value] = {}
        self._parts: dict[int, float] = {}
        self.total = 0.0
        self._journal: list[tuple[int, _Value, float]] | None = None  # what to take back
        self.compute()

    def compute(self) -> None:
        """Compute all costs anew."""
        for n in self.nodes:
            self._values[n.number] = self._computed(n.number)
        self._parts = {n.number: self._contribution(n.number) for n in self.nodes}
        self.total = sum(self._parts.values()) + self._commit()

    def _commit(self) -> float:
        """The one commit by which a refresh shows the changes of all views; a view that is recomputed has its own."""
        changes = any(self.changes[root.node.number] for root in self.dag.roots if not root.is_query)
        return self.prices.incremental * self.prices.commit if changes else 0.0

    def size(self, node: Equivalence) -> NodeSize:
        return self.sizes.of[node.number]

    def _stores_all(self, root: Root) -> bool:
        """Does a view store all that other users need of its node?"""
        others = set(root.node.asked)
        for other in self.roots[root.node.number]:
            others |= other.needs if other is not root else set()
        return others <= root.provides.keys()

    # -- the formulas of §5 ------------------------------------------------------------------------

    def compcost(self, number: int) -> float:
        """The cost of computing a node by its best operation."""
        return self._values[number].full

    def cost(self, number: int) -> float:
        """C(e): reusing a node that is stored or kept, else computing it."""
        return self.reusecost(number) if self.mode[number] else self._values[number].full

    def reusecost(self, number: int) -> float:
        return self._reuse[number]

    def matcost(self, number: int) -> float:
        return self.prices.kept(self.sizes.of[number].new)

    def trmatcost(self, number: int) -> float:
        return self.prices.full * (self.compcost(number) + self.matcost(number))

    def deltacost(self, number: int, place: int) -> float:
        """The cost of a differential: reusing it if it is kept, or has changed a stored result; else computing it."""
        is_kept = place in self.shared.get(number, ())
        if is_kept or (self.mode[number] == PERMANENT and number not in self._relations):
            return self.prices.embedded.row * self._delta_rows(number, place)
        return self.computed_delta(number, place)

    def computed_delta(self, number: int, place: int) -> float:
        """The cost of computing a differential by its best operation."""
        return self._values[number].deltas[place]

    def imntcost(self, number: int) -> float:
        """The cost of maintaining a stored node by its differentials."""
        places = self.changes[number]
        if not places:
            return 0.0
        rows = [self._delta_rows(number, i) for i in places]
        sorted_ = number in self.clustered
        changing = self.prices.merged(sum(rows), sorted_=sorted_)
        kept = self.shared.get(number, frozenset())
        changing += self.prices.embedded.row * sum(self._delta_rows(number, i) for i in kept)
        changing += sum(self.computed_delta(number, i) for i in places if i not in kept)
        node = self.dag.nodes[number]
        if isinstance(node, Grouping):  # the stored groups that change are read
            width = self.sizes.width_in_memory(node, [own for own, _ in node.keys])
            changing += self.prices.looked_up(self.sizes.of[number].rows, sum(rows), pruned=sorted_, width=width)
        return self.prices.incremental * (changing + self.prices.result + self.prices.engine(sum(rows)).query)

    def rmntcost(self, number: int, *, reuses: bool = False) -> float:
        """The cost of recomputing a stored node, which Spark does; `reuses`: its rows are taken from where they are
        stored or kept."""
        rows = self.sizes.of[number].new
        computed = self.cost(number) if reuses else self.compcost(number)
        return self.prices.full * (computed + self.prices.written(rows) + self.prices.spark.query)

    def mntcost(self, root: Root) -> Maintained:
        """The cost of maintaining a view by both ways."""
        number = root.node.number
        if not self.changes[number]:
            return Maintained(0.0, 0.0)
        is_owner = self.owner.get(number) is root
        full = self.rmntcost(number, reuses=not is_owner)
        if is_owner or self.mode[number] != PERMANENT:
            return Maintained(self.imntcost(number), full, root.pinned)
        rows = sum(self._delta_rows(number, i) for i in self.changes[number])  # another result has the changes
        copied = self.prices.embedded.row * rows + self.prices.merged(rows)
        copied = self.prices.incremental * (copied + self.prices.result + self.prices.engine(rows).query)
        return Maintained(copied, full, root.pinned)

    def buildcost(self, number: int) -> float:
        """The cost of building a result that is stored in addition, per refresh."""
        if number in self.owner or number in self._relations:
            return 0.0
        return self.rmntcost(number) / self.rounds

    def _contribution(self, number: int) -> float:
        """What a node adds to totalcost."""
        cost = 0.0
        for root in self.roots.get(number, ()):
            cost += root.rate * self.cost(number) if root.is_query else self.mntcost(root).seconds
        if self.mode[number] == PERMANENT and number not in self.owner:
            if number not in self._relations:
                cost += self.imntcost(number) + self.buildcost(number)
        elif self.mode[number] == TRANSIENT:
            cost += self.trmatcost(number)
        for place in self.shared.get(number, ()):
            kept = self.prices.kept(self._delta_rows(number, place))
            cost += self.prices.incremental * (self.computed_delta(number, place) + kept)
        if number in self.clustered and number in self._relations:
            rows = sum(self._delta_rows(number, i) for i in self.changes[number])
            cost += self.prices.incremental * self.prices.sort * (rows + self.sizes.of[number].rows / self.rounds)
        return cost

    def _delta_rows(self, number: int, place: int) -> float:
        return self.sizes.of[number].deltas[self.updated[place]]

    # -- keeping them up to date -------------------------------------------------------------------

    def _computed(self, number: int) -> _Value:
        """The costs of a node from those of its inputs."""
        value = _Value()
        for k, priced in enumerate(self.priced[number]):
            full = priced.full.local + sum(map(self.cost, priced.full.full))
            if full < value.full:
                value.full, value.full_by = full, k
            for place, formula in priced.deltas.items():
                cost = self.evaluated(formula, place)
                if cost < value.deltas.get(place, NEVER):
                    value.deltas[place], value.deltas_by[place] = cost, k
        return value

    def evaluated(self, formula: Formula, place: int) -> float:
        """The cost of a differential by one formula."""
        cost = formula.local
        for child in formula.full:
            stored = self.mode[child] and self.is_readable(child, place)
            cost += 2 * (self.reusecost(child) if stored else self.compcost(child))  # before and after
        for child in formula.deltas:
            cost += self.deltacost(child, place)
        for lookup in formula.lookups:
            cost += self._found(lookup, place)
        return cost

    def _found(self, lookup: Lookup, place: int) -> float:
        number = lookup.node
        if self.is_readable(number, place):
            if self.mode[number] == TRANSIENT:
                return self.prices.scanned(lookup.rows)
            pruned = self.clustered.get(number) in lookup.by
            values = lookup.values if lookup.by else lookup.rows
            return self.prices.looked_up(lookup.rows, values, pruned=pruned, width=lookup.width)
        cost = min(self.compcost(number), lookup.otherwise)
        return min(cost, self._found(lookup.through, place)) if lookup.through is not None else cost

    def is_readable(self, number: int, place: int) -> bool:
        """Has a stored or kept result the state that the differential of a relation needs?"""
        changes = self.changes[number]
        if self.mode[number] == PERMANENT:
            is_whole = not changes or changes[-1] < place or changes[0] > place or changes == [place]
            return number in self._relations or is_whole
        return self.mode[number] == TRANSIENT and (not changes or changes[-1] < place)

    def apply(self, change: Decision) -> None:
        """Change what is stored, kept or sorted of a node, and all costs that depend on it."""
        number = change.node
        match change:
            case Store():
                self.mode[number] = change.mode
            case Share():
                asked = frozenset(self.changes[number]) if change.place is None else frozenset({change.place})
                kept = self.shared.get(number, frozenset())
                self._share(number, kept | asked if change.on else kept - asked)
            case Cluster():
                self.clustered[number] = change.by
                if not change.by:
                    del self.clustered[number]
        self._recount(number)
        waiting = [(self.position[u], u) for u in self._users[number]]
        heapq.heapify(waiting)
        done: set[int] = set()
        while waiting:
            _, current = heapq.heappop(waiting)
            if current in done:
                continue
            done.add(current)
            old, new = self._values[current], self._computed(current)
            if old.full == new.full and old.deltas == new.deltas:
                continue  # nothing changes above this node either
            if self._journal is not None:
                self._journal.append((current, old, self._parts[current]))
            self._values[current] = new
            self._recount(current)
            for user in self._users[current]:
                heapq.heappush(waiting, (self.position[user], user))

    def _share(self, number: int, places: frozenset[int]) -> None:
        self.shared.pop(number, None)
        if places:
            self.shared[number] = places

    def _recount(self, number: int) -> None:
        part = self._contribution(number)
        self.total += part - self._parts[number]
        self._parts[number] = part

    def tried(self, *changes: Decision) -> float:
        """The total cost under changes, which are taken back."""
        before = {
            n: (self.mode[n], self._parts[n], self.shared.get(n, frozenset()), self.clustered.get(n))
            for n in {change.node for change in changes}
        }
        total, self._journal = self.total, []
        for change in changes:
            self.apply(change)
        after = self.total
        for node, value, part in reversed(self._journal):
            self._values[node], self._parts[node] = value, part
        self._journal, self.total = None, total
        for number, (mode, part, shared, clustered) in before.items():
            self.mode[number], self._parts[number] = mode, part
            self._share(number, shared)
            self.clustered.pop(number, None)
            if clustered:
                self.clustered[number] = clustered
        return after

    # -- what the choice reads ---------------------------------------------------------------------

    def by_full(self, node: Equivalence) -> Operation:
        """The operation by which a node is recomputed."""
        return node.operations[self._values[node.number].full_by]

    def by_deltas(self, node: Equivalence) -> Operation:
        """The operation whose differentials cost least together; the one to recompute by if there are none."""
        places = self.changes[node.number]
        if not places:
            return self.by_full(node)
        costs = [sum(self.evaluated(p.deltas[i], i) for i in places) for p in self.priced[node.number]]
        return node.operations[costs.index(min(costs))]
