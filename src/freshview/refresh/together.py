"""The plan of one refresh of several views over one span.

The delta queries of the views are put together (`algebra/together.py`): what several of them compute is a part of the
refresh, and is computed once. Queries over rows at hand are put together for the embedded engine, the others for Spark:

    embedded   a part is a table in memory; filters and projections are not worth one. Selections stand above the joins
               as on Spark, if the joins that are left out are expected to take longer than rows that are joined in vain
    Spark      a part is held in files, if it comes from a delta and reading and joining it again for its other users
               is expected to take longer than writing it. Where that is expected to save time, selections stand above
               the joins (`algebra/loosening.py`): views that select otherwise then have their joins in common

A view that shares nothing on Spark, that is to be recomputed or whose query cannot be planned has no plan here: its own
job computes it.

Law: a view's change is the one that its own job would give. What is shared decides how long it takes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache

from freshview.algebra.facts import comes_from_delta
from freshview.algebra.loosening import loosened
from freshview.algebra.nodes import (
    Aggregate,
    Filter,
    Join,
    Node,
    Scan,
    ScanSource,
    SetOperation,
    Shared,
    Window,
    conjuncts,
)
from freshview.algebra.together import CommonPart, Together, Worth, put_together
from freshview.algebra.traversal import bottom_up, scans
from freshview.local.plans import LocalPlan
from freshview.refresh.combined import Combinations, Combined, Translation
from freshview.refresh.cost import Rates, estimate
from freshview.refresh.embedded import preparing
from freshview.refresh.job_facts import gathered
from freshview.refresh.job_input import GroupInput, JobInput
from freshview.refresh.plan import (
    EMBEDDED,
    INCREMENTAL,
    NOTHING,
    TOGETHER,
    JobPlan,
    RefreshPlan,
    ScanPlan,
    SharedPart,
    Way,
    choose,
)
from freshview.spark.running import PlanRunner

Alternatives = Callable[[JobInput], Sequence[Way]]
Measure = Callable[[Scan], ScanPlan]
_HEAVY = (Join, Aggregate, Window, SetOperation)  # operators that are worth a table of their own
_OTHERS = 1  # rows from files: a scan that is not at hand reads some
_PASSING = 1 / 3  # the share of rows that a condition is taken to keep


def plan_together(
    group: GroupInput, alternatives: Alternatives, combinations: Combinations, runner: Callable[[], PlanRunner]
) -> RefreshPlan:
    """The plan of one refresh of the views of a group, which have the same settings.

    `runner` computes parts for the embedded engine that are not proven.
    """
    ways = [tuple(w for w in alternatives(job) if w.query is not None) if job.changes else () for job in group.jobs]
    plans: dict[int, JobPlan] = {
        p: JobPlan(NOTHING, job.written, takes=job.takes) for p, job in enumerate(group.jobs) if not job.changes
    }
    small = [place for place, found in enumerate(ways) if found and found[0].is_small]
    embedded = _Embedded(group, small, [ways[place][0] for place in small], combinations, runner)
    plans |= embedded.plans(ways)
    rest = [place for place, found in enumerate(ways) if found and place not in plans]
    spark = _OnSpark(group, rest, [ways[place][1] for place in rest])
    plans |= spark.plans(ways)
    return RefreshPlan(
        tuple(job.takes for job in group.jobs),
        tuple(plans.get(place) for place in range(len(ways))),
        (*embedded.parts(plans), *spark.parts(plans)),
    )


class _Combination:
    """The queries of some of the jobs, put together for one engine."""

    def __init__(self, group: GroupInput, places: Sequence[int], ways: Sequence[Way], together: Together) -> None:
        self.group = group
        self.places = places
        self.ways = ways
        self.together = together
        self._read: dict[Scan, ScanPlan] = {}

    def users(self, part: CommonPart, plans: Mapping[int, JobPlan]) -> tuple[str, ...]:
        """The views that are planned and read a part."""
        places = (self.places[i] for i in sorted(part.users))
        return tuple(self.group.jobs[place].view.name for place in places if place in plans)

    def scans(self, i: int) -> set[Scan]:
        return {self.together.scans[scan] for scan in scans(_query(self.ways[i]))}

    def measured(self, scan: Scan) -> ScanPlan:
        """How a scan of a job's query is read in the refresh; one of another query is not at hand."""
        known = self.together.scans.get(scan)
        if known is None:
            return ScanPlan(scan, _OTHERS)
        if known not in self._read:
            self._read[known] = self.group.measured(known)
        return replace(self._read[known], scan=scan)


def _put(group: GroupInput, places: Sequence[int], queries: Sequence[Node], worth: Worth) -> Together:
    def reading(i: int, scan: Scan) -> tuple[ScanSource, str]:
        return group.reading(places[i], scan)

    return put_together(queries, reading, worth)


def _query(way: Way) -> Node:
    assert way.query is not None
    return way.query


def worth_a_table(node: Node, users: int) -> bool:
    """Is a part of the embedded engine computed before its users?"""
    return users > 1 and any(isinstance(n, _HEAVY) for n in bottom_up(node))


class _Embedded(_Combination):
    """Jobs over rows at hand, in the embedded engine."""

    def __init__(
        self,
        group: GroupInput,
        places: Sequence[int],
        ways: Sequence[Way],
        combinations: Combinations,
        runner: Callable[[], PlanRunner],
    ) -> None:
        queries = tuple(map(_query, ways))
        combined = _cheaper(
            [
                combinations.of("as they are", queries, lambda: _put(group, places, queries, worth_a_table)),
                combinations.of(
                    "loosened",
                    queries,
                    lambda: _put(group, places, [loosened(query) for query in queries], worth_a_table),
                ),
            ],
            group,
        )
        super().__init__(group, places, ways, combined.together)
        self._at_hand = {i for i in range(len(places)) if not any(map(group.reads, self.scans(i)))}
        self._translation = Translation(combined, group.relation, preparing(group, runner))
        self._parts = [
            (part, self._translation.part(part)) for part in self.together.parts if part.users & self._at_hand
        ]

    def plans(self, ways: Sequence[Sequence[Way]]) -> dict[int, JobPlan]:
        """The plans by place; a view that is to be recomputed, or whose query is Spark's, has none."""
        found = {}
        for i in sorted(self._at_hand):
            place = self.places[i]
            job = self.group.jobs[place]

            def embed(_: Node, i: int = i, job: JobInput = job) -> LocalPlan:
                return self._translation.query(i, job.view)

            plan = _chosen(job, ways[place], self.measured, embed)
            if plan.strategy == INCREMENTAL and plan.local is not None:
                found[place] = replace(plan, query=self.together.plans[i])
        return found

    def parts(self, plans: Mapping[int, JobPlan]) -> list[SharedPart]:
        return [
            SharedPart(part.scan, part.node, users, local)
            for part, local in self._parts
            if local is not None and (users := self.users(part, plans))
        ]


def _cheaper(found: Sequence[Combined], group: GroupInput) -> Combined:
    """The combination that is expected to take less time in the embedded engine."""

    def rows(scan: Scan) -> int:
        delta = group.rows(scan) if scan.version == "delta" else None
        return delta.num_rows if delta is not None else 0

    return min(found, key=lambda combined: seconds_in_process(combined.together, rows, group.rates))


def seconds_in_process(together: Together, rows: Callable[[Scan], int], rates: Rates) -> float:
    """The expected time of all parts and queries in the embedded engine; `rows` are those of deltas.

    Rows that are looked up are taken to be as many as those that they were looked up for, and a join to have as many
    as its larger side, but for those that conditions on either side keep out.
    """

    @cache  # restrictions of many scans lead to the same ones
    def scanned(scan: Scan) -> float:
        if scan.version == "delta":
            return rows(scan)
        return min((sum(scanned(source) for source, _ in by.sources) for by in scan.semijoins), default=0.0)

    parts: dict[ScanSource, tuple[float, float]] = {}  # rows, and the share of them that conditions have kept
    seconds = 0.0
    for source, root in [
        *((part.scan.source, part.node) for part in together.parts),
        *((None, p) for p in together.plans),
    ]:
        sizes: dict[Node, tuple[float, float]] = {}
        for node in bottom_up(root):
            own = sizes[node] = _size(node, [sizes[i] for i in node.inputs], parts, scanned)
            seconds += rates.in_process
            if isinstance(node, _HEAVY):
                seconds += rates.row_in_process * sum(n * kept for n, kept in (own, *(sizes[i] for i in node.inputs)))
        seconds += rates.run
        if source is not None:
            parts[source] = sizes[root]
            seconds += rates.row_in_process * sizes[root][0] * sizes[root][1]
    return seconds


def _size(
    node: Node,
    inputs: Sequence[tuple[float, float]],
    parts: Mapping[ScanSource, tuple[float, float]],
    scanned: Callable[[Scan], float],
) -> tuple[float, float]:
    match node:
        case Scan(source=Shared()):
            return parts[node.source]
        case Scan():
            return scanned(node), 1.0
        case Filter():
            ((count, kept),) = inputs
            return count, kept * _PASSING ** len(conjuncts(node.predicate))
        case Join(kind="inner"):
            (left, kept), (right, kept_too) = inputs
            return max(left, right), kept * kept_too
    return sum(count for count, _ in inputs), max((kept for _, kept in inputs), default=1.0)


class _OnSpark(_Combination):
    """Jobs that have something to share on Spark."""

    def __init__(self, group: GroupInput, places: Sequence[int], ways: Sequence[Way]) -> None:
        def worth(node: Node, users: int) -> bool:
            return is_worth_files(node, users, group.reads, group.rates)

        def seconds(together: Together) -> float:
            """The expected time of all parts and queries."""
            nodes = (*(part.node for part in together.parts), *together.plans)
            computed = sum(estimate(node, group.reads, group.rates).seconds for node in nodes)
            return computed + len(together.parts) * group.rates.held

        queries = [_query(way) for way in ways]
        found = [_put(group, places, given, worth) for given in (queries, [loosened(query) for query in queries])]
        super().__init__(group, places, ways, min(found, key=seconds))

    def plans(self, ways: Sequence[Sequence[Way]]) -> dict[int, JobPlan]:
        """The plans by place of views that read a part."""
        found = {}
        for i, place in enumerate(self.places):
            if not any(i in part.users for part in self.together.parts):
                continue
            plan = _chosen(self.group.jobs[place], ways[place], self.measured, None)
            if plan.strategy == INCREMENTAL and plan.query is _query(self.ways[i]):
                found[place] = replace(plan, query=self.together.plans[i])
        return found if len(found) > 1 else {}

    def parts(self, plans: Mapping[int, JobPlan]) -> list[SharedPart]:
        found = ((part, self.users(part, plans)) for part in self.together.parts)
        return [SharedPart(part.scan, part.node, users, None) for part, users in found if users]


def is_worth_files(node: Node, users: int, reads: Callable[[Scan], int], rates: Rates) -> bool:
    """Is a part computed by Spark before its users? It has few rows if deltas have, and costs them more than files."""
    if users < 2 or not comes_from_delta(node):
        return False
    cost = estimate(node, reads, rates)
    return cost.rows > 0 and (users - 1) * cost.seconds > rates.held


def _chosen(
    job: JobInput, ways: Sequence[Way], measured: Measure, embed: Callable[[Node], LocalPlan] | None
) -> JobPlan:
    facts = gathered(job, ways, measured, embed)
    if TOGETHER in facts.factors:
        facts = replace(facts, factors={**facts.factors, EMBEDDED: facts.factors[TOGETHER]})
    return replace(choose(job.definition, job.written, ways, facts, job.takes), is_shared=True)
