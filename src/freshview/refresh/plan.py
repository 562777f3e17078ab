"""A job as data: one record describes completely what a refresh of a view will do, before anything of it is done.

    alternatives   every way to compute a view's change, from its definition and the changes of its sources
    choose         the best of them, once it is known how many rows each of their scans reads

Law: both are pure. `execute` runs the record and decides nothing; EXPLAIN prints the same record. The choice decides
how long a refresh takes, never what it gives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from freshview.algebra.nodes import Node, Scan, Shared
from freshview.algebra.traversal import scans
from freshview.definition.analysis import Definition
from freshview.delta.cancelling import can_cancel
from freshview.delta.condense import BY_ROWS, Condense
from freshview.delta.forms import delta_plan
from freshview.delta.semijoin import reduced
from freshview.local.plans import LocalPlan
from freshview.local.typed import Unproven
from freshview.refresh.condense import condensed
from freshview.refresh.cost import CANCELLED, Estimate, estimate, in_process, on_spark

INCREMENTAL, FULL, NOTHING = "incremental", "full", "nothing"
EMBEDDED, SPARK = "embedded", "spark"

_SMALL_DELTA = 50_000  # deltas up to this many rows are broadcast to the other sides, and the result is fetched
_ADDED = "all changes add rows, so that no two rows of the result cancel"
_SLACK = 0.3  # seconds by which a delta plan may cost more: it writes less


@dataclass(frozen=True)
class SourceChange:
    """The change of one source over the span of a job."""

    source: str
    read: int  # rows in its segments
    rows: int  # of them, after condensing; all of them if Spark condenses
    grows: bool  # the change only adds rows
    size: int  # rows of the source after the change, at most
    in_spark: bool = False  # the change stays in Spark: it is too large for the driver
    condense: Condense = BY_ROWS  # the partial condense of its rows

    @property
    def cost(self) -> int:
        """The rows that Spark reads in the time that it needs for the change: rows that are not condensed are read."""
        return 0 if not self.in_spark else CANCELLED * self.rows if self.condense.runs else self.rows


SourceChanges = Sequence[SourceChange]
Reads = Callable[[Scan], int]  # the rows that a scan reads from files
Embed = Callable[[Node], LocalPlan]
Factors = Mapping[str, float]  # by way: actual time over estimated time, learnt from earlier jobs


@dataclass(frozen=True)
class Way:
    """One way to compute the change of a view's stored rows."""

    strategy: str
    query: Node | None = None  # of the delta; None: the definition is recomputed, and compared with the stored rows
    is_small: bool = False  # the deltas are small: rows that meet them are looked up
    obstacle: str = ""  # why this way is impossible


@dataclass(frozen=True)
class Rejected:
    """A way that was not chosen."""

    strategy: str
    why: str
    seconds: float | None = None  # its expected time, if it was possible


@dataclass(frozen=True)
class ScanPlan:
    """A scan of a job's query, and its cost."""

    scan: Scan
    from_files: int  # rows that Spark reads from files; 0: the rows are on the driver, or part of Spark's plan


@dataclass(frozen=True)
class JobPlan:
    """The plan of one job for one view."""

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
        return FULL if self.strategy == FULL else self.engine

    @property
    def otherwise(self) -> float:
        """The seconds that the best rejected way was expected to take; 0 if there was no other way."""
        return min((r.seconds for r in self.rejected if r.seconds is not None), default=0.0)

    @property
    def delta_rows(self) -> int:
        return sum(c.rows for c in self.changes) if self.strategy == INCREMENTAL else 0

    def on_spark(self, why: str) -> JobPlan:
        """This plan on Spark, since the embedded engine could not compute its query."""
        assert self.estimate is not None
        return replace(self, local=None, why_spark=why, estimate=on_spark(self.estimate))

    def instead(self, why: str) -> JobPlan:
        """The plan to recompute, since this one could not be carried out."""
        return recompute(self.changes, (*self.rejected, Rejected(self.strategy, why)))


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


@dataclass(frozen=True)
class RefreshPlan:
    """The plan of one refresh of several views over one span: what is computed once, and a job for each view.

    The queries of jobs in the embedded engine read the shared parts. A job on Spark has its own query, for EXPLAIN, and
    here the one that reads the parts.
    """

    jobs: tuple[JobPlan | None, ...]  # None: the view's own job computes it
    parts: tuple[SharedPart, ...] = ()
    queries: Mapping[int, Node] = field(default_factory=dict)  # by the place of a job


def source_of(scan: Scan) -> Shared:
    """What a scan of a shared part reads."""
    assert isinstance(scan.source, Shared)
    return scan.source


def recompute(changes: Iterable[SourceChange] = (), rejected: Iterable[Rejected] = ()) -> JobPlan:
    """The plan that recomputes the definition."""
    return JobPlan(FULL, tuple(changes), rejected=tuple(rejected))


def alternatives(definition: Definition, changes: SourceChanges) -> tuple[Way, ...]:
    """All ways to compute a view's change, those by delta rules first."""
    if not definition.incremental:
        return (Way(INCREMENTAL, obstacle=definition.reason or "the view is to be recomputed"), Way(FULL))
    is_small = are_small(changes)
    inward, outward = (_delta_way(definition, changes, is_small, outward=o) for o in (False, True))
    return (inward, outward, Way(FULL))


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
    return Way(INCREMENTAL, reduced(query) if is_small else query, is_small)


def choose(
    definition: Definition,
    written: SourceChanges,
    ways: Sequence[Way],
    reads: Reads,
    full: Estimate,
    factors: Factors,
    embed: Embed | None = None,
) -> JobPlan:
    """The plan of a job.

    `written` are the changes of all sources; the `ways` are those by the changes that have rows. `full` is the estimate
    of recomputing. `factors` do not count where all is small: there times depend on the machine
    more than on the strategy. `embed` returns a query for the embedded engine, or raises Unproven.
    """
    changes, emptied = (tuple(c for c in written if bool(c.rows) is has_rows) for has_rows in (True, False))
    factors = factors if full.rows else {}
    anew = full.seconds * factors.get(FULL, 1.0)
    possible = [w for w in ways if w.query is not None]
    if not possible:
        why = next(w.obstacle for w in ways if w.obstacle)
        return replace(recompute(changes, [Rejected(INCREMENTAL, why)]), estimate=full, seconds=anew)
    inward, outward = possible
    at_hand = not any(map(reads, scans(_query(inward))))
    way = inward if at_hand else outward

    def counted(scan: Scan) -> int:
        """Rows that were not looked up count double: a delta meets many of them, or they would have been looked up."""
        return reads(scan) if scan.version == "delta" else 2 * reads(scan)

    cost = estimate(_query(way), counted, full.rates)
    is_local = at_hand and way.is_small
    local, why_spark = _embedded(_query(way), embed) if is_local and embed is not None else (None, "")
    cost = in_process(cost, len(local.prepared)) if local is not None else cost
    seconds = cost.seconds * factors.get(EMBEDDED if local is not None else SPARK, 1.0)
    if definition.refresh != INCREMENTAL and seconds > anew + _SLACK:
        dearer = Rejected(INCREMENTAL, "it is expected to take longer", seconds)
        return replace(recompute(changes, [dearer]), estimate=full, seconds=anew)
    forced = "'refresh' = 'incremental'" if definition.refresh == INCREMENTAL else ""
    planned = tuple(ScanPlan(scan, reads(scan)) for scan in dict.fromkeys(scans(_query(way))))
    rejected = (Rejected(FULL, forced or "it is expected to take longer", anew),)
    plan = JobPlan(INCREMENTAL, tuple(changes), way.query, planned, is_local, cost, seconds, rejected)
    proviso = definition.form.proviso if definition.form is not None else ""
    growing = {c.source for c in changes if c.grows}
    condenses = is_local or can_cancel(_query(way), growing)  # a few rows are condensed in no time
    full_step = BY_ROWS if condenses else Condense(runs=False, why=_ADDED)
    return replace(plan, local=local, why_spark=why_spark, proviso=proviso, condense=full_step, emptied=emptied)


def _embedded(query: Node, embed: Embed) -> tuple[LocalPlan | None, str]:
    try:
        return embed(query), ""
    except Unproven as error:
        return None, str(error)


def sketch(definition: Definition) -> JobPlan | None:
    """The plan for a change of a few rows in every source, without an estimate; None if it recomputes."""
    changes = [SourceChange(n, 1, 1, False, 0, condense=condensed(r)) for n, r in sorted(definition.sources.items())]
    ways = alternatives(definition, changes)
    if ways[0].query is None:
        return None
    return JobPlan(INCREMENTAL, tuple(changes), ways[0].query, condense=BY_ROWS)


def _query(way: Way) -> Node:
    assert way.query is not None
    return way.query
