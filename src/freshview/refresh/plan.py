"""A job as data: one record describes completely what a refresh of a view will do, before anything of it is done.

    alternatives   every way to compute a view's change, from its definition and the changes of its sources
    JobFacts       what the job's input knows of these ways: the rows of their scans, looked up or in files, and the
                   query for the embedded engine (`job_facts.py` gathers them)
    choose         the best of them, by these facts

Law: `alternatives` and `choose` are pure: they take data and call nothing that reads. `execute` runs the record;
EXPLAIN prints the same record. The choice decides how long a refresh takes, never what it gives.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from freshview.algebra.nodes import Node, Scan, Shared
from freshview.algebra.stages import Staged, staged
from freshview.algebra.traversal import scans
from freshview.definition.analysis import Definition
from freshview.delta.condense import BY_ROWS, Condense
from freshview.delta.forms import delta_plan
from freshview.delta.semijoin import reduced
from freshview.local.plans import LocalPlan
from freshview.refresh.condense import condensed, full_step
from freshview.refresh.cost import CANCELLED, DEFAULT, Estimate, Rates, comparison, estimate, in_process, on_spark
from freshview.refresh.points import Point

INCREMENTAL, FULL, NOTHING = "incremental", "full", "nothing"
EMBEDDED, SPARK, TOGETHER = "embedded", "spark", "together"

_SMALL_DELTA = 300_000  # rows of all deltas up to which the rows that meet them are looked up, and the result fetched
_SLACK = 0.3  # seconds by which a delta plan may cost more: it writes less


@dataclass(frozen=True)
class SourceChange:
    """The change of one source over the span of a job."""

    source: str
    read: int  # rows in its segments
    rows: int  # of them, after condensing; all of them if Spark condenses
    grows: bool  # the change only adds rows
    in_spark: bool = False  # the change stays in Spark: it is too large for the driver
    condense: Condense = BY_ROWS  # the partial condense of its rows

    @property
    def cost(self) -> int:
        """The rows that Spark reads in the time that it needs for the change: rows that are not condensed are read."""
        return 0 if not self.in_spark else CANCELLED * self.rows if self.condense.runs else self.rows


SourceChanges = Sequence[SourceChange]
Factors = Mapping[str, float]  # by way: actual time over estimated time, learnt from earlier jobs


@dataclass(frozen=True)
class Way:
    """One way to compute the change of a view's stored rows."""

    query: Node | None = None  # of the delta; None: the definition is recomputed, and compared with the stored rows
    is_small: bool = False  # the deltas are small: rows that meet them are looked up
    obstacle: str = ""  # why this way is impossible


@dataclass(frozen=True)
class Rejected:
    """A way that was not chosen."""

    strategy: str
    why: str
    seconds: float | None = None  # its expected time, if it was possible
    engine: str = ""  # that would have run its rules; its past jobs are in that time


@dataclass(frozen=True)
class ScanPlan:
    """A scan of a job's query: where its rows are read, and how many they are."""

    scan: Scan
    from_files: int  # rows that Spark reads from files; 0: the rows are on the driver, or part of Spark's plan
    looked_up: int | None = None  # rows that were looked up by the values of a delta; None: none were
    joined: int = 0  # pairs of these rows and rows that they were looked up for, if they are many


@dataclass(frozen=True)
class JobFacts:
    """What the choice of a way depends on, beside the definition and the changes; all of it was read before."""

    scans: Mapping[Scan, ScanPlan]  # of the ways; a scan that is missing here is not at hand
    full: Estimate  # of recomputing the view
    factors: Factors = field(default_factory=dict)
    local: LocalPlan | None = None  # the inward query for the embedded engine, if its rows are at hand
    why_spark: str = ""  # what keeps that query on Spark

    def is_at_hand(self, way: Way) -> bool:
        """Are all rows that a way reads on the driver, or few?"""
        return all(s in self.scans and not self.scans[s].from_files for s in scans(_query(way)))

    def at_hand(self, query: Node, changes: SourceChanges) -> int:
        """The rows on the driver that a query reads: those of the changes, and those that were looked up, or the pairs
        that they are joined to."""
        found = (max(self.scans[scan].looked_up or 0, self.scans[scan].joined) for scan in set(scans(query)))
        return sum(c.rows for c in changes) + sum(found)

    def counted(self, scan: Scan) -> int:
        """The rows that a scan reads from files, as an estimate counts them. Rows that were not looked up count double:
        a delta meets many of them, or they would have been looked up."""
        return self.scans[scan].from_files * (1 if scan.version == "delta" else 2)


@dataclass(frozen=True)
class ViewSpan:
    """A view that a refresh takes from one point to another."""

    view: str
    start: Point
    end: Point


@dataclass(frozen=True)
class JobPlan:
    """The plan of one job for one view: what `execute` runs and EXPLAIN prints. Where a result is netted depends on its
    size, which `execute` finds."""

    strategy: str
    changes: tuple[SourceChange, ...] = ()
    query: Node | None = None
    scans: tuple[ScanPlan, ...] = ()
    is_local: bool = False  # the query reads only rows that are on the driver, and its result is small
    estimate: Estimate | None = None
    seconds: float = 0.0  # expected, by the estimate and by the times of earlier jobs
    rejected: tuple[Rejected, ...] = ()
    local: LocalPlan | None = None  # the query for the embedded engine; None: Spark runs it
    why_spark: str = ""  # what kept a query over rows on the driver on Spark
    proviso: str = ""  # when the view is recomputed after all, as the query finds out
    condense: Condense | None = None  # the full condense of the query's result; None: there is no query
    replaces: str = ""  # of a plan that recomputes: why a large result replaces the stored rows; "": it is compared
    emptied: tuple[SourceChange, ...] = ()  # changes of which condensing left no row: the query does not read them
    takes: ViewSpan | None = None  # the view, and from where to where; None: a sketch, for no span
    is_shared: bool = False  # its input is read for several views, each of which has a share of the time

    @property
    def stages(self) -> Staged:
        """The parts of the query that Spark computes before the rest of it."""
        assert self.query is not None
        return staged(self.query)

    @property
    def holds_stages_in_files(self) -> bool:
        """Are the parts that Spark computes first held in files? Those of a large change do not fit the driver."""
        return any(change.in_spark for change in self.changes)

    @property
    def written(self) -> tuple[SourceChange, ...]:
        """The changes of all sources that were written to."""
        return (*self.changes, *self.emptied)

    @property
    def engine(self) -> str:
        return EMBEDDED if self.local is not None else SPARK if self.strategy != NOTHING else ""

    @property
    def way(self) -> str:
        """What the time of the job is learnt for."""
        if self.strategy == FULL:
            return FULL
        return TOGETHER if self.is_shared and self.engine == EMBEDDED else self.engine

    @property
    def otherwise(self) -> float:
        """The seconds that the best rejected way was expected to take; 0 if there was no other way."""
        return min((r.seconds for r in self.rejected if r.seconds is not None), default=0.0)

    @property
    def delta_rows(self) -> int:
        return sum(c.rows for c in self.changes) if self.strategy == INCREMENTAL else 0

    def on_spark(self, why: str) -> JobPlan:
        """The plan on Spark, since the embedded engine could not compute its query."""
        assert self.estimate is not None
        return replace(self, local=None, why_spark=why, estimate=on_spark(self.estimate))

    def instead(self, why: str) -> JobPlan:
        """The plan to recompute, since this one could not be carried out."""
        return recompute(self.takes, self.changes, (*self.rejected, Rejected(self.strategy, why)))

    def stored_for(self, readers: Mapping[str, float], rows: int, rates: Rates = DEFAULT) -> JobPlan:
        """The plan to recompute, with the decision whether a large result replaces the stored rows or is compared with
        them. `readers` are the views that read this one, with the seconds in which they recompute; `rows` are stored.

        If no view reads this one, nobody needs the differences. Otherwise they are computed unless the readers
        recompute in less time.
        """
        if not readers:
            return replace(self, replaces="no view reads it")
        if sum(readers.values()) > comparison(2 * rows, rates):
            return self
        return replace(self, replaces=f"recomputing {', '.join(readers)} takes less time than comparing the rows")


@dataclass(frozen=True)
class SharedPart:
    """A part of the queries of several views, which is computed before them."""

    scan: Scan  # by which the queries read it
    query: Node
    users: tuple[str, ...]  # names of the views
    local: LocalPlan | None  # None: Spark computes it, and holds it in files

    @property
    def source(self) -> Shared:
        return source_of(self.scan)

    @property
    def stages(self) -> Staged:
        """The parts of the query that Spark computes before the rest of it."""
        return staged(self.query)


@dataclass(frozen=True)
class RefreshPlan:
    """The plan of one refresh of several views over one span: what is computed once, and a job for each view.

    The queries of the jobs read the shared parts.
    """

    takes: tuple[ViewSpan, ...]  # the views, and from where to where
    jobs: tuple[JobPlan | None, ...]  # of each view; None: its own job computes it
    parts: tuple[SharedPart, ...] = ()


def source_of(scan: Scan) -> Shared:
    """What a scan of a shared part reads."""
    assert isinstance(scan.source, Shared)
    return scan.source


def recompute(
    takes: ViewSpan | None, changes: Iterable[SourceChange] = (), rejected: Iterable[Rejected] = ()
) -> JobPlan:
    """The plan that recomputes the definition."""
    return JobPlan(FULL, tuple(changes), rejected=tuple(rejected), takes=takes)


def recompute_instead(
    dearer: Rejected, changes: Iterable[SourceChange], full: Estimate, factors: Factors, takes: ViewSpan | None = None
) -> JobPlan | None:
    """The plan that recomputes the definition, if rules take clearly longer; else None."""
    assert dearer.seconds is not None
    anew = full.seconds * factors.get(FULL, 1.0)
    if dearer.seconds <= anew + _SLACK:
        return None
    return replace(recompute(takes, changes, [dearer]), estimate=full, seconds=anew)


def alternatives(definition: Definition, changes: SourceChanges) -> tuple[Way, ...]:
    """All ways to compute a view's change, those by delta rules first."""
    if not definition.incremental:
        return (Way(obstacle=definition.reason or "the view is to be recomputed"), Way())
    is_small = are_small(changes)
    try:
        inward, outward = (_delta_way(definition, changes, is_small, outward=o) for o in (False, True))
    except RecursionError:
        return (Way(obstacle="the plan of its change is nested too deeply"), Way())
    return (inward, outward, Way())


def are_small(changes: SourceChanges) -> bool:
    """Are the rows that meet these changes looked up, and the result fetched?"""
    return sum(c.rows for c in changes) <= _SMALL_DELTA and not any(c.in_spark for c in changes)


def _delta_way(definition: Definition, changes: SourceChanges, is_small: bool, *, outward: bool) -> Way:
    """A way by delta rules. `outward`: small deltas are broadcast to large relations; else all relations are small."""
    form, lowered = definition.form, definition.lowered
    assert form is not None
    assert lowered is not None
    changed, grows = {c.source for c in changes}, frozenset(c.source for c in changes if c.grows)
    query = delta_plan(form, lowered, changed, definition.types, small=is_small and outward, inserts_only=grows)
    assert query is not None
    return Way(reduced(query) if is_small else query, is_small)


def possible(ways: Iterable[Way]) -> list[Way]:
    """The ways by delta rules, inward and outward; none if rules cannot be used."""
    return [way for way in ways if way.query is not None]


def choose(
    definition: Definition,
    written: SourceChanges,
    ways: Sequence[Way],
    facts: JobFacts,
    takes: ViewSpan | None = None,
) -> JobPlan:
    """The plan of a job.

    `written` are the changes of all sources; the `ways` are those by the changes that have rows. What was learnt of the
    view's times does not count where all is small: there times depend on the machine more than on the strategy.
    """
    changes, emptied = (tuple(c for c in written if bool(c.rows) is has_rows) for has_rows in (True, False))
    full, factors = facts.full, facts.factors if facts.full.rows else {}
    anew = full.seconds * factors.get(FULL, 1.0)
    if not possible(ways):
        why = next(w.obstacle for w in ways if w.obstacle)
        return replace(recompute(takes, changes, [Rejected(INCREMENTAL, why)]), estimate=full, seconds=anew)
    inward, outward = possible(ways)
    way = inward if facts.is_at_hand(inward) else outward
    query, is_local = _query(way), way is inward and way.is_small
    cost = estimate(query, facts.counted, full.rates)
    local, why_spark = (facts.local, facts.why_spark) if is_local else (None, "")
    cost = in_process(cost, facts.at_hand(query, changes), len(local.prepared)) if local is not None else cost
    engine = EMBEDDED if local is not None else SPARK
    seconds = cost.seconds * factors.get(engine, 1.0)
    dearer = Rejected(INCREMENTAL, "it is expected to take longer", seconds, engine)
    if definition.refresh != INCREMENTAL and (better := recompute_instead(dearer, changes, full, factors, takes)):
        return better
    forced = "'refresh' = 'incremental'" if definition.refresh == INCREMENTAL else ""
    growing = {c.source for c in changes if c.grows}
    below = changes[0].condense if len(changes) == 1 and changes[0].in_spark else None
    # A few rows are condensed in no time.
    step = Condense(definition.key) if is_local else full_step(query, definition.key, growing, below)
    return JobPlan(
        INCREMENTAL,
        changes,
        query,
        tuple(facts.scans[scan] for scan in scans(query)),
        is_local,
        cost,
        seconds,
        rejected=(Rejected(FULL, forced or "it is expected to take longer", anew),),
        local=local,
        why_spark=why_spark,
        proviso=definition.form.proviso if definition.form is not None else "",
        condense=step,
        emptied=emptied,
        takes=takes,
    )


def sketch(definition: Definition) -> JobPlan | None:
    """The plan for a change of a few rows in every source, without an estimate; None if it recomputes."""
    changes = [SourceChange(n, 1, 1, False, condense=condensed(r)) for n, r in sorted(definition.sources.items())]
    ways = alternatives(definition, changes)
    if ways[0].query is None:
        return None
    return JobPlan(INCREMENTAL, tuple(changes), ways[0].query, condense=Condense(definition.key))


def _query(way: Way) -> Node:
    assert way.query is not None
    return way.query
