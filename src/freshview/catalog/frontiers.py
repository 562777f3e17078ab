"""Frontiers of views, read and moved inside a database transaction that the caller holds.

A view's frontier is the truth about what it has seen. A maintenance commit is a compare-and-set on
(view, epoch, frontier): it writes the view's segment and the new frontier, or nothing.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import sqlalchemy as sa

from freshview.catalog import tables as t
from freshview.catalog.records import Frontier, Relation, Segment, segment_values
from freshview.errors import NotFound

REFRESH = "refresh"  # commits by which views above learn that a view was computed anew, and had been wrong
RESETS = ("reset", REFRESH)  # changes to which no delta leads
CHANGES = ("data", *RESETS)  # commits that a view has to follow; others change no rows
MAINTAIN = "maintain"  # jobs that took a view from one version to the next
COMPOSED = "composed"  # jobs whose versions were composed with later ones: no version ends there any more
MAINTAINED = (MAINTAIN, COMPOSED)  # jobs that maintained a view, whatever became of their versions


@dataclass(frozen=True, kw_only=True)
class Job:
    """A finished maintenance job as the history lists it: a view went from one CSN to another, many tasks at once.

    >>> job = freshview.Job(view_id=1, view="totals", from_csn=2, to_csn=7, strategy="incremental", tasks=5, seconds=2)
    >>> job.view, job.to_csn, job.tasks, job.error
    ('totals', 7, 5, None)
    """

    view_id: int
    from_csn: int  # of the rows before the job
    to_csn: int  # of the rows after it
    strategy: str
    tasks: int = 0  # transactions that the view had not seen
    delta_rows: int = 0  # of the sources, after condensing
    view_rows: int = 0  # applied to the view
    seconds: float
    error: str | None = None
    view: str = ""
    rows_in: int = 0  # in the segments of all tasks
    condensed: int = 0  # rows of `rows_in` that never reached a join
    phases: Mapping[str, float] = field(default_factory=dict)  # seconds: wait, sources, compute, store; shared
    condense: Mapping[str, Sequence[int]] = field(default_factory=dict)  # per delta: rows read, rows left
    engine: str = ""  # "embedded", or "spark", and what kept a small job there; "" if nothing was computed
    replaced: str = ""  # why the computed rows took the place of the stored ones; "": only differences were stored
    expected: float = 0.0  # seconds of "compute", of the way that was chosen; 0 if they were not estimated
    otherwise: float = 0.0  # seconds that the best rejected way was expected to take; 0 if there was no other way

    @property
    def regret(self) -> float:
        """Seconds by which computing took longer than the best rejected way was expected to take."""
        took = self.phases.get("compute", self.seconds) + self.phases.get("shared", 0.0)
        return max(took - self.otherwise, 0.0) if self.otherwise else 0.0


@dataclass(frozen=True)
class ViewStep:
    """A view's step from one version to the next, computed by a job."""

    view: Relation
    start: Frontier
    end: int
    segments: tuple[Segment, ...]
    leases: tuple[str, ...]
    job: Job  # as the history lists it
    anew: bool = False  # all rows were computed, whatever the view had seen
    factors: Mapping[str, float] = field(default_factory=dict)  # learnt of the view's costs; empty: nothing new
    ends: tuple[str, ...] = ()  # the lease of its turn and its pin, which are given up when it is published


@dataclass(frozen=True)
class ViewChange:
    """The change of a view's stored rows that a transaction publishes with its commit."""

    view: Relation
    base: int  # the CSN on top of which the transaction's statements were taken
    start: Frontier  # of the view when the change was computed
    stored: int  # the CSN whose stored rows the change applies to
    segments: tuple[Segment, ...]
    leases: tuple[str, ...]
    stmtsn: int  # 0: all statements are included; else those up to this one, and a partial task remains
    needs: tuple[int, ...]  # ids of lower views whose changes must be published for this one to be right
    job: Job  # as the history lists it
    factors: Mapping[str, float] = field(default_factory=dict)  # learnt of the view's costs; empty: nothing new


class Outdated(Exception):
    """Eager views have no change for this commit, or other commits have changed what it was computed from."""

    def __init__(self, view_ids: Collection[int]) -> None:
        super().__init__(f"views {sorted(view_ids)}")
        self.view_ids = frozenset(view_ids)


_FRONTIER = sa.select(t.frontiers.c.csn, t.frontiers.c.stmtsn).where(t.frontiers.c.view_id == sa.bindparam("view"))


def frontier_of(c: sa.Connection, view: Relation) -> Frontier:
    """The last commit that a view has seen, and its last statement if it has seen only a part; NotFound if dropped."""
    row = c.execute(_FRONTIER, {"view": view.id}).one_or_none()
    if row is None:
        raise NotFound(f"view {view.name}", "it was dropped meanwhile", "See SHOW MATERIALIZED VIEWS.")
    return Frontier(row.csn, row.stmtsn)


_OLDEST_COMMIT = sa.select(sa.func.min(t.commits.c.csn))


def changed(c: sa.Connection, view: Relation, after: int, upto: int) -> bool:
    """Whether a commit with after < csn ≤ upto changed what the view reads, or may have: vacuum deletes the oldest
    commits, and every CSN has one, so what lies before the oldest that is left is not known."""
    if after >= upto:
        return False
    csn = t.commits.c.csn
    if c.execute(changes_after(view, after, csn).where(csn <= upto).limit(1)).first() is not None:
        return True
    oldest = c.execute(_OLDEST_COMMIT).scalar()
    return oldest is not None and after + 1 < oldest


def changes_after(view: Relation, csn: int, *columns: Any) -> sa.Select[Any]:
    """The query for commits after a CSN that changed what the view reads."""
    r, i = t.commits.c, t.inputs.c
    return (
        sa.select(*columns)
        .join_from(t.inputs, t.commits, r.relation_id == i.relation_id)
        .where(i.view_id == view.id, r.csn > csn, r.kind.in_(CHANGES))
    )


# Built once: every job runs them.
_MOVED = t.frontiers.update().where(
    t.frontiers.c.view_id == sa.bindparam("its"),
    t.frontiers.c.epoch == sa.bindparam("its_epoch"),
    t.frontiers.c.csn == sa.bindparam("from_csn", type_=sa.BigInteger),
    t.frontiers.c.stmtsn == sa.bindparam("from_stmtsn"),
)
_MOVED_UNDEFERRED = _MOVED.where(t.frontiers.c.shown.is_(None))
_ROWS_AT = sa.select(sa.func.count()).where(
    t.segments.c.relation_id == sa.bindparam("view"), t.segments.c.csn == sa.bindparam("at", type_=sa.BigInteger)
)


def move_frontier(c: sa.Connection, step: ViewStep | ViewChange, start: Frontier, end: Frontier) -> bool:
    """Move a view's frontier from `start` to `end`, with the step's rows and what it taught of the view's costs; False
    if the frontier is no longer at `start`, or the rows replace those of a view that was made deferred meanwhile: its
    segments are differential tables. Both are conditions of the update, which waits for others that change the row."""
    view, segments = step.view, step.segments
    learnt = {"costs": json.dumps(dict(step.factors))} if step.factors else {}
    expected = {"its": view.id, "its_epoch": view.epoch, "from_csn": start.csn, "from_stmtsn": start.stmtsn}
    update = _MOVED_UNDEFERRED if any(segment.replaces for segment in segments) else _MOVED
    moved = c.execute(update, {**expected, "csn": end.csn, "stmtsn": end.stmtsn, **learnt})
    if moved.rowcount != 1:
        return False
    # A commit that was seen in part has rows already.
    first = c.execute(_ROWS_AT, {"view": view.id, "at": end.csn}).scalar_one() if segments else 0
    for seq, segment in enumerate(segments, first):
        c.execute(t.segments.insert().values(**segment_values(segment, end.csn, seq)))
    end_leases(c, step.leases)
    return True


def end_leases(c: sa.Connection, leases: Sequence[str]) -> None:
    """Delete leases whose files become visible with this transaction."""
    if leases:
        c.execute(t.leases.delete().where(t.leases.c.id.in_(list(leases))))


def record(c: sa.Connection, now: int, job: Job, kind: str = MAINTAIN) -> None:
    """Add a job to the history."""
    elsewhere = ("view_id", "from_csn", "to_csn", "error", "view")
    report = json.dumps({k: v for k, v in asdict(job).items() if k not in elsewhere})
    ends = {"relation_id": job.view_id, "kind": kind, "from_csn": job.from_csn, "to_csn": job.to_csn}
    times = {"started_at": now - int(job.seconds * 1e6), "finished_at": now}
    c.execute(t.jobs.insert().values(**ends, **times, report=report, error=job.error))


# -- with a commit ---------------------------------------------------------------------------------

# Built once: every commit runs this query.
_EAGER_OVER = (
    sa.select(t.frontiers.c.view_id)
    .distinct()
    .join_from(t.inputs, t.frontiers, t.frontiers.c.view_id == t.inputs.c.view_id)
    .where(t.inputs.c.relation_id.in_(sa.bindparam("touched", expanding=True)), t.frontiers.c.eager == 1)
)


def publish_with_commit(
    c: sa.Connection, csn: int, now: int, written: Sequence[int], changes: Sequence[ViewChange]
) -> tuple[ViewChange, ...]:
    """Publish the changes of views that come with a commit to these tables; return those that were published.

    Law: an eager view is as of the commit, or the commit does not happen (`Outdated`). The change of another view is
    published if no other commit has touched what the view reads since the change was computed.
    """
    kept: list[ViewChange] = []
    eager = set(c.execute(_EAGER_OVER, {"touched": list(written)}).scalars())
    if missing := eager - {change.view.id for change in changes if not change.stmtsn}:
        raise Outdated(missing)
    for change in changes:
        below = all(any(k.view.id == i and not k.stmtsn for k in kept) for i in change.needs)
        if below and _publish(c, change, csn, now):
            kept.append(change)
        elif change.view.id in eager:
            raise Outdated({change.view.id})
    return tuple(kept)


def _publish(c: sa.Connection, change: ViewChange, csn: int, now: int) -> bool:
    """Publish a change if neither what the view reads nor its rows have changed since; return whether it was.

    The frontier may have moved on meanwhile, if no task lay in between.
    """
    seen = frontier_of(c, change.view)
    since = min(change.base, change.start.csn)
    if change.start.stmtsn or seen.stmtsn or changed(c, change.view, since, csn - 1):
        return False
    s = t.segments.c
    newer = sa.select(s.csn).where(s.relation_id == change.view.id, s.csn > change.stored, s.csn <= seen.csn)
    if c.execute(newer.limit(1)).first() is not None:
        return False
    if not move_frontier(c, change, seen, Frontier(csn, change.stmtsn)):
        return False
    if not change.stmtsn:
        record(c, now, replace(change.job, to_csn=csn))
    return True
