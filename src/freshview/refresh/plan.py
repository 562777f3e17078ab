"""A job as data: one record says completely what a refresh of a view will do, before anything of it is done.

    alternatives   every way to take a view over a change: from its definition and what changed
    choose         the best of them, once it is known how many rows each of their scans reads

Law: both are pure. `execute` does what the record says and decides nothing; EXPLAIN prints the same record. Which way
is taken decides how long a refresh takes, never what it gives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from freshview.algebra.nodes import Node, Scan
from freshview.algebra.traversal import scans
from freshview.definition.analysis import Definition
from freshview.delta.forms import delta_plan
from freshview.delta.semijoin import reduced
from freshview.refresh.cost import Estimate, estimate

INCREMENTAL, FULL, NOTHING = "incremental", "full", "nothing"

_SMALL_DELTA = 50_000  # deltas up to this many rows are sent to the other sides, and the result is fetched
_SLACK = 0.3  # seconds by which a delta plan may be dearer: it writes less
_RECOMPUTE_SHARE = 0.3  # a change of more than this share of a table is recomputed


@dataclass(frozen=True)
class SourceChange:
    """The change of one source over the span of a job."""

    source: str
    read: int  # rows in its segments
    rows: int  # what is left of them, condensed
    grows: bool  # it only adds rows
    size: int  # rows that the source has after it, at most

    @property
    def is_large(self) -> bool:
        """Does the change touch so much of the source that recomputing is expected to be cheaper?"""
        return self.rows > max(1000, _RECOMPUTE_SHARE * self.size)


@dataclass(frozen=True)
class Way:
    """One way to compute the change of a view's stored rows."""

    strategy: str
    query: Node | None = None  # of the delta; None: the definition is recomputed, and compared with what is stored
    is_small: bool = False  # the deltas are: rows that meet them are looked up
    obstacle: str = ""  # why it cannot be taken


@dataclass(frozen=True)
class Rejected:
    """A way that was not taken."""

    strategy: str
    why: str
    seconds: float | None = None  # that it was expected to take, if it could have been taken


@dataclass(frozen=True)
class ScanPlan:
    """What the query of a job reads of a relation's state."""

    scan: Scan
    from_files: int  # rows that Spark reads from files; 0: they are on the driver, or part of Spark's plan


@dataclass(frozen=True)
class JobPlan:
    """What one job does for one view."""

    strategy: str
    changes: tuple[SourceChange, ...] = ()
    query: Node | None = None
    scans: tuple[ScanPlan, ...] = ()
    is_local: bool = False  # all that the query reads is at hand, and so is its result
    estimate: Estimate | None = None
    seconds: float = 0.0  # expected, by the estimate and by what earlier jobs took
    rejected: tuple[Rejected, ...] = ()

    @property
    def delta_rows(self) -> int:
        return sum(c.rows for c in self.changes) if self.strategy == INCREMENTAL else 0

    def instead(self, why: str) -> JobPlan:
        """Recompute, since the way that was chosen could not be carried out."""
        return recompute(self.changes, (*self.rejected, Rejected(self.strategy, why)))


def recompute(changes: Iterable[SourceChange] = (), rejected: Iterable[Rejected] = ()) -> JobPlan:
    """The plan that needs nothing but the definition."""
    return JobPlan(FULL, tuple(changes), rejected=tuple(rejected))


def alternatives(definition: Definition, changes: Sequence[SourceChange]) -> tuple[Way, ...]:
    """All ways to take a view over a change, those by delta rules first."""
    if not definition.incremental:
        return (Way(INCREMENTAL, obstacle=definition.reason or "the view is to be recomputed"), Way(FULL))
    large = [c for c in changes if c.is_large]
    if large and definition.refresh != INCREMENTAL:
        first = large[0]
        why = f"{first.rows:,} of about {first.size:,} rows of {first.source} have changed"
        return (Way(INCREMENTAL, obstacle=why), Way(FULL))
    is_small = sum(c.rows for c in changes) <= _SMALL_DELTA
    inward, outward = (_delta_way(definition, changes, is_small, outward=o) for o in (False, True))
    return (inward, outward, Way(FULL))


def _delta_way(definition: Definition, changes: Sequence[SourceChange], is_small: bool, *, outward: bool) -> Way:
    """A way by delta rules. `outward`: what is small is sent to what is large; else all is small, as Spark sees."""
    assert definition.form is not None
    assert definition.lowered is not None
    query = delta_plan(
        definition.form, definition.lowered, {c.source for c in changes}, definition.types,
        small=is_small and outward, inserts_only=frozenset(c.source for c in changes if c.grows),
    )  # fmt: skip
    assert query is not None
    return Way(INCREMENTAL, reduced(query) if is_small else query, is_small)


def choose(
    definition: Definition, changes: Sequence[SourceChange], ways: Sequence[Way], reads: Callable[[Scan], int],
    full: Estimate, factors: Mapping[str, float],
) -> JobPlan:  # fmt: skip
    """The plan of a job.

    `reads` gives the rows that a scan reads from files, `full` is the estimate of recomputing, and `factors` are what
    was learnt of both strategies; where all is small, times tell more of the machine than of the way.
    """
    factors = factors if full.rows else {}
    anew = full.seconds * factors.get(FULL, 1.0)
    possible = [w for w in ways if w.query is not None]
    if not possible:
        why = next(w.obstacle for w in ways if w.obstacle)
        return replace(recompute(changes, [Rejected(INCREMENTAL, why)]), estimate=full, seconds=anew)
    inward, outward = possible
    at_hand = not any(map(reads, scans(_query(inward))))
    way = inward if at_hand else outward
    # Rows that were not looked up count double: a delta meets many of them, else they would have been.
    cost = estimate(_query(way), lambda scan: 2 * reads(scan))
    seconds = cost.seconds * factors.get(INCREMENTAL, 1.0)
    if definition.refresh != INCREMENTAL and seconds > anew + _SLACK:
        dearer = Rejected(INCREMENTAL, "it is expected to take longer", seconds)
        return replace(recompute(changes, [dearer]), estimate=full, seconds=anew)
    forced = "'refresh' = 'incremental'" if definition.refresh == INCREMENTAL else ""
    return JobPlan(
        INCREMENTAL, tuple(changes), way.query,
        tuple(ScanPlan(scan, reads(scan)) for scan in dict.fromkeys(scans(_query(way)))),
        is_local=at_hand and way.is_small, estimate=cost, seconds=seconds,
        rejected=(Rejected(FULL, forced or "it is expected to take longer", anew),),
    )  # fmt: skip


def sketch(definition: Definition) -> JobPlan | None:
    """The plan when all sources have changed by a few rows, of which nothing is known yet; None if it recomputes."""
    changes = [SourceChange(name, 1, 1, grows=False, size=0) for name in definition.sources]
    ways = alternatives(definition, changes)
    if ways[0].query is None:
        return None
    return JobPlan(INCREMENTAL, tuple(changes), ways[0].query)


def _query(way: Way) -> Node:
    assert way.query is not None
    return way.query
