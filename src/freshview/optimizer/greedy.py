"""The greedy choice of results to store or share (MQO §6).

Each step takes the candidate of the highest benefit: what the refreshes of all views (and the queries of a workload)
cost less with it, its own cost included. A candidate is

    a full result        stored permanently, or kept for one refresh, whichever saves more
    all differentials    of one node, as one unit, kept for one refresh
    a clustering         of a stored relation or result on a column by which it is looked up (the index of a lakehouse)

Three optimisations (§6.2): costs are followed incrementally (`cost`); benefits are taken to shrink as results are
chosen, so a candidate is looked at again only when its last benefit is the highest (monotonicity); differentials are
candidates only of nodes that one plan can use twice (sharability). In the end what is not used goes. Under a budget
(§6.3) candidates count by benefit per byte, and those that do not fit are skipped.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from freshview.optimizer.cost import NOT_STORED, PERMANENT, TRANSIENT, Cluster, Costs, Decision, Share, Store
from freshview.optimizer.dag import Dag
from freshview.optimizer.operations import Equivalence, StoredRelation
from freshview.optimizer.prices import Prices
from freshview.optimizer.statistics import Statistics

_NEAR = 40  # refused candidates whose benefit beside the final choice is computed
LEAST = 0.001  # seconds per refresh: a smaller benefit is not worth a decision
_Candidate = tuple[Decision, ...]  # ways to do one thing, of which one is taken at most


@dataclass(frozen=True)
class Limits:
    """What the choice may use; the variants of §7.2 are made of these."""

    transient: bool = True
    permanent: bool = True
    differentials: bool = True
    one_by_one: bool = False  # each differential of a node is a candidate of its own, not all of them as one unit
    clustering: bool = True
    permanent_bytes: float | None = None
    transient_bytes: float | None = None


@dataclass(frozen=True)
class Taken:
    """A decision, with what it saved when it was taken."""

    change: Decision
    benefit: float  # seconds per refresh
    bytes: float


@dataclass(frozen=True)
class Refused:
    """A candidate that was not taken, and why."""

    change: Decision
    alone: float  # its benefit before any decision
    benefit: float  # its benefit beside what was chosen, or instead of it
    bytes: float
    why: str


@dataclass(frozen=True)
class Selection:
    """The outcome of the search: costs under the final choice, its decisions, and the candidates that lost."""

    costs: Costs
    before: float  # totalcost without any decision
    taken: tuple[Taken, ...]
    refused: tuple[Refused, ...]

    @property
    def after(self) -> float:
        return self.costs.total

    def without(self, nodes: Collection[int], why: str) -> Selection:
        """The selection without its decisions about these nodes, which are refused for a reason."""
        gone = [t for t in self.taken if t.change.node in nodes]
        for decision in reversed(gone):
            self.costs.apply(opposite(decision.change))
        refused = (*(Refused(t.change, t.benefit, 0.0, t.bytes, why) for t in gone), *self.refused)
        return replace(self, taken=tuple(t for t in self.taken if t not in gone), refused=refused)


def select(
    dag: Dag,
    statistics: Statistics,
    prices: Prices | None = None,
    limits: Limits | None = None,
    *,
    rounds: float = 1000.0,
) -> Selection:
    """Choose what to store and share for the views and queries of a DAG."""
    return _Greedy(Costs(dag, statistics, prices or Prices(), rounds=rounds), limits or Limits()).run()


class _Greedy:
    def __init__(self, costs: Costs, limits: Limits) -> None:
        self._costs = costs
        self._limits = limits
        self._budget = {PERMANENT: limits.permanent_bytes, TRANSIENT: limits.transient_bytes}
        self._by_bytes = any(b is not None for b in self._budget.values())
        self._spent = {PERMANENT: 0.0, TRANSIENT: 0.0}
        self._taken: list[Taken] = []
        self._alone: dict[Decision, float] = {}
        self._refused: dict[Decision, Refused] = {}

    def run(self) -> Selection:
        before = self._costs.total
        heap: list[tuple[float, int, _Candidate]] = []
        for rank, ways in enumerate(self._candidates()):
            self._offer(heap, rank, ways)
        rank = len(heap) + 1
        while heap:
            claimed, place, ways = heapq.heappop(heap)
            best = self._best(ways)
            if best is None:
                continue
            if heap and self._priority(best) > heap[0][0]:  # another one may be better by now
                heapq.heappush(heap, (self._priority(best), place, ways))
                continue
            del claimed
            self._take(best)
            for change in self._clusterings(best.change):
                rank += 1
                self._offer(heap, rank, (change,))
        self._drop_unused()
        chosen = {t.change for t in self._taken}
        lost = [r for r in self._refused.values() if r.change not in chosen]
        lost.sort(key=lambda r: -r.alone)
        lost[:_NEAR] = [replace(r, benefit=self._costs.total - self._costs.tried(r.change)) for r in lost[:_NEAR]]
        return Selection(self._costs, before, tuple(self._taken), tuple(lost))

    def _offer(self, heap: list[tuple[float, int, _Candidate]], rank: int, ways: _Candidate) -> None:
        best = self._best(ways)
        if best is not None:
            heapq.heappush(heap, (self._priority(best), rank, ways))

    def _priority(self, candidate: Taken) -> float:
        return -candidate.benefit / max(candidate.bytes, 1.0) if self._by_bytes else -candidate.benefit

    def _best(self, ways: Iterable[Decision]) -> Taken | None:
        """The way of a candidate that saves most; None, with the reason noted, if none is worth it."""
        tried = [Taken(w, self._costs.total - self._costs.tried(w), self._bytes(w)) for w in ways if self._is_open(w)]
        fitting = [t for t in tried if self._fits(t)]
        best = max(fitting, key=lambda t: t.benefit, default=None)
        for t in tried:
            alone = self._alone.setdefault(t.change, t.benefit)
            why = _why_not(alone, t.benefit) if t in fitting else "it does not fit the space that is left"
            if best is not None and t is not best and t.benefit > LEAST:
                why = f"to {_word(best.change)} it saves more"
            self._refused[t.change] = Refused(t.change, alone, t.benefit, t.bytes, why)
        return best if best is not None and best.benefit > LEAST else None

    def _is_open(self, change: Decision) -> bool:
        if isinstance(change, Store):
            return self._costs.mode[change.node] == NOT_STORED
        if isinstance(change, Cluster):
            return self._costs.mode[change.node] == PERMANENT and change.node not in self._costs.clustered
        kept = self._costs.shared.get(change.node, frozenset())
        is_open = not kept if change.place is None else change.place not in kept
        return is_open and self._costs.mode[change.node] != PERMANENT

    def _fits(self, candidate: Taken) -> bool:
        place = _place(candidate.change)
        budget = self._budget.get(place) if place is not None else None
        return budget is None or place is None or self._spent[place] + candidate.bytes <= budget

    def _bytes(self, change: Decision) -> float:
        size = self._costs.sizes.of[change.node]
        if isinstance(change, Share):
            deltas = size.deltas
            if change.place is not None:
                return deltas[self._costs.updated[change.place]] * size.width
            return sum(deltas.values()) * size.width
        return size.bytes if isinstance(change, Store) else 0.0

    def _take(self, candidate: Taken) -> None:
        self._costs.apply(candidate.change)
        self._taken.append(candidate)
        place = _place(candidate.change)
        if place is not None:
            self._spent[place] += candidate.bytes

    def _drop_unused(self) -> None:
        """Drop what the final plans do not use, the latest decisions first."""
        for candidate in reversed(list(self._taken)):
            back = opposite(candidate.change)
            after = self._costs.tried(back)
            if after <= self._costs.total:
                if isinstance(candidate.change, Store) and candidate.change.node in self._costs.clustered:
                    continue
                self._costs.apply(back)
                self._taken.remove(candidate)
                why = "later decisions made it superfluous"
                self._refused[candidate.change] = Refused(
                    candidate.change, candidate.benefit, 0.0, candidate.bytes, why
                )

    # -- candidates --------------------------------------------------------------------------------

    def _candidates(self) -> Iterable[_Candidate]:
        costs, limits = self._costs, self._limits
        degrees = sharing(costs)
        for node in costs.nodes:
            number = node.number
            if isinstance(node, StoredRelation) or number in costs.owner:
                yield from ((c,) for c in self._clusterings(Store(number, PERMANENT)))
                continue
            if not node.needs:
                continue  # users need only how many rows there are: a relation without columns cannot be stored
            full: list[Decision] = []
            if limits.permanent:
                full.append(Store(number, PERMANENT))
            if limits.transient:
                full.append(Store(number, TRANSIENT))
            if full:
                yield tuple(full)
            if limits.transient and limits.differentials and costs.changes[number] and degrees[number] > 1:
                places: Sequence[int | None] = costs.changes[number] if limits.one_by_one else [None]
                yield from ((Share(number, on=True, place=place),) for place in places)

    def _clusterings(self, change: Decision) -> list[Cluster]:
        """The columns by which a result that has just been stored may be sorted."""
        if not isinstance(change, Store) or change.mode != PERMANENT or not self._limits.clustering:
            return []
        return [Cluster(change.node, by) for by in sorted(self._costs.lookups_by[change.node])]


def sharing(costs: Costs) -> Mapping[int, int]:
    """How often a single plan of all roots can use each node (sharability, §6.2)."""
    users: dict[int, list[Equivalence]] = {n.number: [] for n in costs.nodes}
    for node in costs.nodes:
        for child in {u.node.number for o in node.operations for u in o.inputs}:
            users[child].append(node)
    return {node.number: _degree(costs, node, users) for node in costs.nodes}


def _degree(costs: Costs, node: Equivalence, users: Mapping[int, list[Equivalence]]) -> int:
    degree: dict[int, int] = {node.number: 1}
    waiting = [(costs.position[u.number], u) for u in users[node.number]]
    heapq.heapify(waiting)
    while waiting:
        _, current = heapq.heappop(waiting)
        if current.number in degree:
            continue
        sums = (sum(degree.get(u.node.number, 0) for u in o.inputs) for o in current.operations)
        degree[current.number] = max(sums)
        for user in users[current.number]:
            heapq.heappush(waiting, (costs.position[user.number], user))
    return sum(n * len(costs.roots.get(number, ())) for number, n in degree.items())


def _place(change: Decision) -> int | None:
    if isinstance(change, Store):
        return change.mode
    return TRANSIENT if isinstance(change, Share) else None


def opposite(change: Decision) -> Decision:
    """What takes a decision back."""
    if isinstance(change, Store):
        return Store(change.node, NOT_STORED)
    return replace(change, on=False) if isinstance(change, Share) else Cluster(change.node, "")


def _why_not(alone: float, benefit: float) -> str:
    if alone > LEAST:
        return "what is chosen saves most of the same"
    if benefit > 0:
        return "it saves too little"
    return "it costs more than it saves" if benefit < 0 else "no plan would use it"


def _word(change: Decision) -> str:
    return "store" if isinstance(change, Store) and change.mode == PERMANENT else "share"
