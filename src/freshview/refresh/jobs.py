"""Jobs: one view, a run of its tasks combined into one, from its frontier c0 to c1 (LAZY §3.3 to §3.5).

Law: jobs of one view follow each other in commit order. A job publishes its result by compare-and-set on the frontier,
or not at all; that alone makes it right. Taking turns (`turns.py`) only saves double work.

Law: a view that reads views is computed at a CSN at which each of them has a version. They are maintained up to that
CSN first; where one of them is past it already, the job ends at that view's next version. What only its rewriting reads
is brought along as well as that goes: a job whose ends are no versions of it uses the view's own definition.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Protocol

from freshview.catalog.frontiers import Job, ViewStep
from freshview.catalog.records import Frontier, Relation, RelationState, Segment
from freshview.catalog.views import ViewCatalog
from freshview.catalog.writer import Catalog
from freshview.errors import (
    Cancelled,
    CatalogUnavailable,
    Crowded,
    FreshviewError,
    SparkFailed,
    SparkUnavailable,
    StorageUnavailable,
    WriteConflict,
)
from freshview.events import Events
from freshview.refresh.execute import Change, CondenseSizes, Rows
from freshview.refresh.points import Point
from freshview.refresh.span import Span
from freshview.refresh.stages import Pauses
from freshview.refresh.tasks import Pending, combined, pending
from freshview.refresh.turns import JobTurn, Turns, crowded
from freshview.storage.segments import Written, fits_inline, in_files, inline
from freshview.storage.store import Storage

_ATTEMPTS = 20

Phases = Mapping[str, float]  # seconds of a job's phases: wait, sources, compute, store


class Executor(Protocol):
    """Computes the results of jobs."""

    def change(self, view: Relation, span: Span, stored: RelationState, *, full: bool = False) -> Change:
        """The change of a view's stored rows over a span; `full`: recompute it."""

    def applied(self, state: RelationState) -> None:
        """Note that a job is done, and that its view is in this state."""


class JobRunner:
    """Runs the jobs of one warehouse's views."""

    def __init__(
        self,
        catalog: Catalog,
        storage: Storage,
        events: Events,
        executor: Executor,
        pauses: Pauses | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._catalog = catalog
        self._views = ViewCatalog(catalog)
        self._storage = storage
        self._events = events
        self._executor = executor
        self._pauses = pauses or Pauses(catalog, storage)
        self._clock = clock
        self.turns = Turns(self._views, events, clock, sleep)
        self._latest = threading.local()

    def bring(
        self, view: Relation, csn: int, *, most_rows: int | None = None, left: Pending | None = None
    ) -> list[Job]:
        """Maintain a view up to a CSN, in as many jobs as that takes; return those that ran here.

        `left` are the tasks up to that CSN, if the caller has asked for them already.
        """
        done: list[Job] = []
        left = left if left is not None else pending(self._views, view, csn)
        attempts = _ATTEMPTS
        while left.tasks:
            job = self._towards(view, csn, left, most_rows, wait=True)
            if job is not None:
                done.append(job)
                left, attempts = left.after(job.to_csn), _ATTEMPTS
            elif attempts := attempts - 1:
                left = pending(self._views, view, csn)  # another process moved the frontier
            else:
                raise crowded(view)
        return done

    def refresh(self, view: Relation) -> Job:
        """Recompute all rows of a view, with all commits so far."""
        for _ in range(_ATTEMPTS):
            before = self._views.position(view)
            csn = self._views.reserve_csn(view)  # later commits are not in it
            end = self._reached_with_rewriting(view, csn, csn)
            taken = pending(self._views, view, end)
            asked = self._clock()
            with self.turns.turn(view, before, wait=True) as ours:
                job = self._run(view, taken, end, ours, self._clock() - asked, full=True) if ours else None
            if job is not None:
                return job
        raise crowded(view)

    def step(self, view: Relation, csn: int, *, most_rows: int | None = None) -> Job | None:
        """Run one job towards a CSN; None if nothing is pending, or another process runs a job of the view."""
        left = pending(self._views, view, csn)
        return self._towards(view, csn, left, most_rows, wait=False) if left.tasks else None

    def next_end(self, view: Relation, left: Pending, most_rows: int | None = None) -> int:
        """The CSN at which the next job of a view with these tasks ends: where a job that gave way was to end, if it
        still may."""
        readers = self._views.snapshots(left.frontier.readable, left.tasks[-1].csn)
        paused = self._pauses.end(view, left.frontier.csn)
        if paused is not None and paused <= combined(left.tasks, readers):
            return paused
        return combined(left.tasks, readers, most_rows)

    def _towards(self, view: Relation, csn: int, left: Pending, most_rows: int | None, *, wait: bool) -> Job | None:
        """Run a job that takes the first of these tasks or, if it fails on its data, all of them: a later commit may
        have corrected the data. None if another process moved the frontier."""
        end, last = self.next_end(view, left, most_rows), left.tasks[-1].csn
        try:
            return self._attempt(view, csn, left, end, wait)
        except FreshviewError as error:
            if is_transient(error) or end == last:
                raise
            return self._attempt(view, csn, left, last, wait)

    def _attempt(self, view: Relation, csn: int, left: Pending, end: int, wait: bool) -> Job | None:
        """Run a job from the frontier to an end; `left` are all tasks up to `csn`."""
        begun = self._clock()
        try:
            end = self._reached_with_rewriting(view, end, csn)
        except FreshviewError as error:
            self._failed(view, left.frontier, end, left, begun, error)
            raise
        taken = left.upto(end) if end <= csn else pending(self._views, view, end)
        asked = self._clock()
        with self.turns.turn(view, left.frontier, wait=wait) as ours:
            return self._run(view, taken, end, ours, self._clock() - asked, sources=asked - begun) if ours else None

    # -- the order of views ------------------------------------------------------------------------

    def reached(self, sources: Iterable[Relation], end: int) -> int:
        """Maintain the views among these up to a CSN, or to the first later one at which all of them have a version;
        return that CSN."""
        views = [source for source in sources if source.kind == "view"]
        for _ in range(_ATTEMPTS):
            for view in views:
                self.bring(view, end)
            ahead = [self._views.next_version(v, end) for v in views if not self._views.has_version(v, end)]
            if not ahead:
                return end
            end = max(version or end for version in ahead)
        raise crowded(views[0])

    def _reached_with_rewriting(self, view: Relation, end: int, most: int) -> int:
        """Maintain what a view reads up to a CSN; return the CSN at which the view's job ends.

        If a relation of the view's rewriting is past that CSN, the job ends at its next version, up to `most`. One that
        fails on its data is left behind: the rewriting may read rows that the view does not have.
        """
        sources, others = self._views.sources(view).values(), self._views.rewriting_sources(view)
        end = self.reached(sources, end)
        for other in others if end <= most else ():
            try:
                self.bring(other, end)
            except FreshviewError as error:
                if is_transient(error):
                    raise
        versions = [self._views.next_version(v, end) for v in others if not self._views.has_version(v, end)]
        later = max((v for v in versions if v is not None and v <= most), default=end)
        return self.reached(sources, later) if later > end else end

    # -- one job -----------------------------------------------------------------------------------

    def _run(
        self,
        view: Relation,
        left: Pending,
        c1: int,
        turn: JobTurn,
        waited: float,
        *,
        full: bool = False,
        sources: float = 0.0,
    ) -> Job | None:
        """Compute and publish the change by these tasks; None if the frontier moved meanwhile."""
        start, begun = left.frontier, self._clock()
        c0, job = start.readable, None
        pin = self._catalog.begin("job", at=c0)
        try:
            span = Span(self._catalog, self._storage, Point(start.csn, start.stmtsn), Point(c1))
            # The rows are read as they will be from now on, though the view may have had a key when they were stored.
            stored = replace(self._views.stored(view, start.csn), relation=view)
            change = self._executor.change(view, span, stored, full=full or left.reset)
            phases = {"wait": waited, "sources": sources, "compute": self._clock() - begun}
            job = self._publish(view, left, c1, change, begun, phases, full, (turn.lease, pin.id))
        except Exception as error:
            self._failed(view, start, c1, left, begun, error)
            raise
        finally:
            turn.ended = job is not None
            if job is None:
                self._catalog.release(pin)
        self.ended(view, left, c1, done=job is not None)
        return job

    def ended(self, view: Relation, left: Pending, c1: int, *, done: bool) -> None:
        """Emit the event that a job has ended: its result was published, or another process had moved the frontier."""
        emit = partial(self._events.emit, view=view.name, from_csn=left.frontier.readable, to_csn=c1, rows=left.rows)
        emit("job.done") if done else emit("job.lost")
        if done:
            with suppress(FreshviewError):  # the job stands
                state = self._latest.state = self._views.stored(view, c1)
                self._executor.applied(state)

    def state_after(self, job: Job) -> RelationState | None:
        """The rows of a view after a job, if it was the last one that this thread ran; handed out once."""
        state: RelationState | None = getattr(self._latest, "state", None)
        self._latest.state = None
        is_its = state is not None and (state.relation.id, state.csn) == (job.view_id, job.to_csn)
        return state if is_its else None

    def _publish(
        self,
        view: Relation,
        left: Pending,
        c1: int,
        change: Change,
        begun: float,
        phases: Phases,
        full: bool,
        ends: tuple[str, ...],
    ) -> Job | None:
        """Store a change, move the frontier, and end what the job held; None if the frontier moved meanwhile: then
        nothing stays stored, and nothing has ended."""
        step, done = self.stored(view, left, c1, change, phases, self._clock() - begun, anew=full), False
        step = replace(step, ends=ends)
        try:
            done = self._views.apply([step])
            return step.job if done else None
        finally:
            if not done:
                self.give_up(step)

    def stored(
        self,
        view: Relation,
        left: Pending,
        c1: int,
        change: Change,
        phases: Phases,
        seconds: float,
        *,
        anew: bool = False,
    ) -> ViewStep:
        """A change that is stored and can be published: its job took so many `seconds` until now."""
        computed, c0 = self._clock(), left.frontier.readable
        segments, leases = store(self._catalog, self._storage, view.id, change.rows)
        try:
            self._events.emit("job.computed", view=view.name, from_csn=c0, to_csn=c1)
            took = self._clock() - computed
            job = Job(view_id=view.id, from_csn=c0, to_csn=c1, strategy=change.strategy, seconds=seconds + took)
            job = replace(job, tasks=len(left.tasks), delta_rows=change.delta_rows, view_rows=change.rows.num_rows)
            job = replace(job, engine=change.engine, expected=change.expected, otherwise=change.otherwise)
            job = replace(job, replaced=change.replaced)
            job = detailed(job, view, left.rows, {**phases, "store": took}, change.sizes)
            return ViewStep(view, left.frontier, c1, tuple(segments), tuple(leases), job, anew, change.factors)
        except BaseException:
            give_up(self._catalog, self._storage, view.id, segments, leases)
            raise

    def give_up(self, step: ViewStep) -> None:
        """Remove what was stored for a step that is not published."""
        give_up(self._catalog, self._storage, step.view.id, step.segments, step.leases)

    def _failed(self, view: Relation, start: Frontier, c1: int, left: Pending, begun: float, error: Exception) -> None:
        """Record a failed job in the history, unless the frontier has moved meanwhile: then the view has no error."""
        c0, seconds = start.readable, self._clock() - begun
        what = str(error) or type(error).__name__
        how = "cancelled" if isinstance(error, Cancelled) else "failed"
        with suppress(FreshviewError):  # the caller raises the job's own error
            if self._views.position(view) == start:
                job = Job(view_id=view.id, from_csn=c0, to_csn=c1, strategy=how, seconds=seconds, error=what)
                self._views.record(replace(job, view=view.name, tasks=len(left.tasks), rows_in=left.rows))
        emit = partial(self._events.emit, view=view.name, from_csn=c0, to_csn=c1, error=what)
        emit("job.cancelled") if isinstance(error, Cancelled) else emit("job.failed")


def detailed(job: Job, view: Relation, rows_in: int, phases: Phases, sizes: CondenseSizes) -> Job:
    """A finished job with what else the history keeps; a job that recomputed condensed none of its rows."""
    condensed = max(rows_in - job.delta_rows, 0) if job.strategy in ("incremental", "nothing") else 0
    return replace(job, view=view.name, rows_in=rows_in, condensed=condensed, phases=phases, condense=sizes)


# -- storing ---------------------------------------------------------------------------------------


def store(catalog: Catalog, storage: Storage, view_id: int, rows: Rows) -> tuple[list[Segment], list[str]]:
    """Store delta rows as a segment: inline, or as files under a lease; return the segments and the leases."""
    if isinstance(rows, Written):
        return [rows.segment], [rows.lease]
    if rows.num_rows == 0:
        return [], []
    if fits_inline(rows.nbytes):
        return [inline(view_id, rows)], []
    lease = catalog.lease(view_id, storage.layout.new_folder("delta"))
    assert lease is not None
    try:
        files = storage.write_parquet(view_id, lease.path, rows)
    except BaseException:
        storage.discard(view_id, lease.path)
        catalog.drop_leases([lease.id])
        raise
    return [in_files(view_id, files)], [lease.id]


def give_up(
    catalog: Catalog, storage: Storage, view_id: int, segments: Sequence[Segment], leases: Sequence[str]
) -> None:
    """Remove the files of a result that was not published; only files whose lease is still held are ours to remove."""
    if leases and catalog.drop_leases(leases):
        for folder in {f.path.split("/")[0] for s in segments for f in s.files}:
            storage.discard(view_id, folder)


# -- errors ----------------------------------------------------------------------------------------

_PASSING = (CatalogUnavailable, Crowded, SparkFailed, SparkUnavailable, StorageUnavailable, WriteConflict)


def is_transient(error: BaseException) -> bool:
    """Can a job succeed later on the same data? (memory, cancelling, I/O; not a cast or a missing source)"""
    return isinstance(error, _PASSING) or not isinstance(error, FreshviewError)
