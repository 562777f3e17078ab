"""Views brought up to date on somebody's wish.

A job (`refresh/jobs.py`) takes one view from its frontier c0 to c1. It computes the change of the stored rows, by delta
rules or as the difference between the recomputed definition and what is stored, and shows it by compare-and-set on
the frontier. Whatever goes wrong leaves the last good state in place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from freshview.catalog.frontiers import Job
from freshview.catalog.records import Relation
from freshview.catalog.views import ViewCatalog
from freshview.definition.known import Definitions
from freshview.definition.properties import is_deferred
from freshview.definition.verdict import FACT, RECOMPUTED, Verdict
from freshview.errors import FreshviewError
from freshview.refresh.hand import Hand
from freshview.refresh.jobs import JobRunner, is_transient
from freshview.refresh.plan import JobPlan
from freshview.refresh.span import Point, Span
from freshview.refresh.tasks import JOB_ROWS, Pending, pending
from freshview.refresh.work import Changing
from freshview.storage.store import Storage
from freshview.views.deferred import Deferred


class Maintenance:
    """Maintains the views of one warehouse."""

    def __init__(
        self, views: ViewCatalog, storage: Storage, definitions: Definitions, changing: Changing, jobs: JobRunner,
        deferred: Deferred,
    ) -> None:  # fmt: skip
        self.change = changing.change
        self._changing = changing
        self._storage = storage
        self._views = views
        self._catalog = views.catalog
        self._definitions = definitions
        self._jobs = jobs
        self._deferred = deferred
        self._right_since: dict[tuple[int, int], int] = {}  # of views whose reading was asked about again (id, epoch)

    def sources(self, view: Relation) -> list[Relation]:
        return list(self._definitions.of(view).sources.values())

    def bring(self, view: Relation, csn: int, left: Pending | None = None) -> list[Job]:
        """Maintain a view up to a CSN; the jobs that took, none if it had seen everything already.

        `left` is what was pending up to that CSN, where somebody has asked already.
        """
        self.right_since(view)
        return self._jobs.bring(view, csn, left=left)

    def next_job(self, view: Relation) -> tuple[Span, JobPlan] | None:
        """What the next job of a view would do; None if nothing is pending, if views below it have to go first, or if
        what it would read cannot be had now."""
        pin = self._catalog.begin("query", at=self._views.frontier(view))
        try:
            left = pending(self._views, view, self._catalog.snapshot())
            if not left.tasks or left.reset:
                return None
            end = self._jobs.next_end(left)
            below = [source for source in self.sources(view) if source.kind == "view"]
            if any(self._views.stored_at(source, end) != end for source in below):
                return None
            span = Span(self._catalog, self._storage, Point(left.frontier.csn, left.frontier.stmtsn), Point(end))
            stored = self._views.stored(view, left.frontier.csn)
            return span, self._changing.plan(Hand(view, self._definitions.of(view), span, stored))
        except FreshviewError:
            return None
        finally:
            self._catalog.release(pin)

    def maintain(self, view: Relation, csn: int, *, named: bool) -> list[Job]:
        """Bring a view up to date on somebody's wish; a deferred one as far as its mode has it, unless it was named."""
        return self._deferred.maintain(view, named=named) if is_deferred(view) else self.bring(view, csn)

    def propagate(self, view: Relation) -> list[Job]:
        """Have the log of a deferred view go into its differential tables."""
        self.right_since(view)
        return self._deferred.propagate(view)

    def partial_refresh(self, view: Relation) -> tuple[int, int]:
        """Have a deferred view show what was propagated; how many delta rows, and as of which CSN."""
        self.right_since(view)
        return self._deferred.partial_refresh(view)

    def refresh_deferred(self, view: Relation) -> tuple[int, int]:
        """Have a deferred view show all commits of now; how many delta rows, and as of which CSN."""
        self.right_since(view)
        return self._deferred.refresh(view)

    def step(self, view: Relation, csn: int, *, most_rows: int = JOB_ROWS) -> Job | None:
        """One job towards a CSN, if nobody else is at it."""
        self.right_since(view)
        return self._jobs.step(view, csn, most_rows=most_rows)

    def refresh(self, view: Relation) -> Job:
        """Compute a view anew, whatever it has seen; if it was wrong, also all views above it, which took it for right.

        They have a task for it, so that nothing is lost if this ends in between. One that fails on its data does not
        hold up the others; its error is told when they are done.
        """
        job, failed = self._jobs.refresh(view), []
        for above in self._views.above(view) if job.view_rows else ():
            try:
                if is_deferred(above):
                    self._deferred.refresh(above)  # what it shows may be wrong, so that it shows this instead
                else:
                    self.bring(above, self._catalog.snapshot())
            except FreshviewError as error:
                if is_transient(error):
                    raise
                failed.append(error)
        if failed:
            raise failed[0]
        return job

    def advance(self) -> None:
        """Views with nothing to do hold back nothing: they are as good at the newest commit."""
        self._views.advance(self._catalog.snapshot())

    def note_uses(self, uses: Mapping[int, tuple[int, int]]) -> None:
        self._views.note_uses(uses)

    def right_since(self, view: Relation) -> int:
        """The CSN from which on the stored rows of a view are right.

        A view whose reading was never asked about, or by another version of the program, is asked about now. If Spark
        reads it otherwise, its rows may be wrong: they are computed anew before anybody sees them, and so are those of
        views above it; older versions of both are answered from the definition.
        """
        key, before = (view.id, view.epoch), Verdict.of(view.facts)
        if key in self._right_since:
            return self._right_since[key]
        if before is not None and before.is_current:
            return before.since
        definition = self._definitions.of(view)
        lower = [self.right_since(r) for r in definition.sources.values() if r.kind == "view"]
        verdict, since = definition.verdict, max([0, *lower])
        assert verdict is not None
        if definition.form is None and (before is None or before.kind != RECOMPUTED):
            since = max(since, self.refresh(view).to_csn)
            if is_deferred(view):
                self._deferred.partial_refresh(view)
            for above in self._views.above(view):
                self._right_since[above.id, above.epoch] = since
                known = Verdict.of(above.facts)
                if known is not None:
                    self._views.note(above, FACT, replace(known, since=since).to_json())
        self._views.note(view, FACT, replace(verdict, since=since).to_json())
        self._right_since[key] = since
        return since
