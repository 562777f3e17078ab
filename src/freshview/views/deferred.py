"""Deferred views: makesafe, propagate, partial refresh and refresh of DEFER §5 (Figure 3), on segments and main.

The log consists of segments that the warehouse keeps anyway: those of the base tables beyond the view's frontier. So
makesafe of 'base-log' and 'combined' adds nothing to a commit; in 'differential' the commit maintains the view, as in
eager mode. Propagating is a job, like any other: it appends to the differential tables and moves the frontier, which
empties the log. Partial refresh makes the view show its rows at the frontier. Refresh is both.

Law (INV_C): PAST(L, Q) ≡ (MV ∸ ∇MV) ⊎ ΔMV, at any time; INV_BL and INV_DT are its cases without differential tables and
without a log. Readers see MV, whatever is being propagated.
Law: composed differentials are strongly minimal: no row is both deleted and inserted.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from freshview.catalog.deferred import DeferredCatalog
from freshview.catalog.frontiers import Job
from freshview.catalog.records import Deferral, Relation, Segment
from freshview.catalog.views import ViewCatalog
from freshview.definition.properties import BASE_LOG, is_deferred, policy_of
from freshview.delta.signed import part
from freshview.errors import FreshviewError, InvalidStatement
from freshview.events import Events
from freshview.refresh.jobs import JobRunner, give_up, store
from freshview.refresh.tasks import pending
from freshview.relation.delta import overlay
from freshview.storage.reader import OVERLAY_ROWS
from freshview.storage.store import Storage

_DEFER = (
    "REFRESH MATERIALIZED VIEW brings any view up to date; "
    "ALTER … SET TBLPROPERTIES ('maintenance'='deferred') defers it."
)
_WORTH_WHILE = 8  # differentials that make composing in the background worth while: it writes all of them again


@dataclass(frozen=True)
class Deferred:
    """Runs the transactions of deferred views."""

    views: ViewCatalog
    storage: Storage
    events: Events
    jobs: JobRunner

    @property
    def catalog(self) -> DeferredCatalog:
        return DeferredCatalog(self.views)

    # -- the transactions of Figure 3 ----------------------------------------------------------------

    def propagate(self, view: Relation) -> list[Job]:
        """propagate_C: move the log into the differential tables; what readers see does not change."""
        self._require(view, "propagated")
        jobs = self._empty_log(view)
        self.compose(view)
        return jobs

    def partial_refresh(self, view: Relation) -> tuple[int, int]:
        """partial_refresh_C, refresh_DT: show what was propagated; return how many delta rows, and as of which CSN."""
        self._require(view, "partially refreshed")
        return self._show(view)

    def refresh(self, view: Relation) -> tuple[int, int]:
        """refresh_C: propagate, then show; return how many delta rows, and as of which CSN. Until the last step readers
        see the old state; a crash leaves that state."""
        self._empty_log(view)
        return self._show(view)

    def refresh_for_query(self, view: Relation) -> None:
        """Refresh a view whose policy is 'on query', as far as the policy goes. Nothing is written if nothing moves."""
        partial, stand = policy_of(view).partial, self.catalog.deferral(view)
        if partial and stand.shown < stand.propagated:
            self.partial_refresh(view)
        elif not partial and (
            stand.shown < stand.propagated or pending(self.views, view, self.views.catalog.snapshot()).tasks
        ):
            self.refresh(view)

    def maintain(self, view: Relation, *, named: bool) -> list[Job]:
        """Refresh a deferred view that was `named`; else only propagate its log, if its scenario allows that."""
        if not named:
            return [] if policy_of(view).scenario == BASE_LOG else self.propagate(view)
        jobs = self._empty_log(view)
        self._show(view)
        return jobs

    def _empty_log(self, view: Relation) -> list[Job]:
        now = self.views.catalog.now()
        jobs = self.jobs.bring(view, self.views.catalog.snapshot())
        self.catalog.propagated(view.id, now)
        return jobs

    def _show(self, view: Relation, at: int | None = None) -> tuple[int, int]:
        """Show what was propagated; return how many delta rows, and as of which CSN. `at` is noted as refresh time."""
        job = self.catalog.show(view, at)
        self.events.emit("view.shown", view=view.name, from_csn=job.from_csn, to_csn=job.to_csn)
        return job.view_rows, job.to_csn

    def _require(self, view: Relation, what: str) -> None:
        if not is_deferred(view):
            raise InvalidStatement(f"view {view.name}", f"it is not deferred, so it cannot be {what}", _DEFER)
        if policy_of(view).scenario == BASE_LOG:
            cause = f"its scenario is 'base-log', without differential tables: it cannot be {what}"
            raise InvalidStatement(f"view {view.name}", cause, "REFRESH it, or set 'scenario'='combined'.")

    # -- differential tables -------------------------------------------------------------------------

    def compose(self, view: Relation, at_least: int = 2) -> bool:
        """Replace the stored differentials by one strongly minimal one (Lemma 3, then cancellation); True if done.

        Only where no reader and no view can notice, and as far as they fit the driver; else they stay as they are.
        """
        found = self.catalog.composable(view, at_least, OVERLAY_ROWS)
        if found is None:
            return False
        deferral, old = found
        new, leases = self._stored(view, old)
        done = False
        try:
            done = self.catalog.compose(view, deferral, old, new, leases)
        finally:
            if not done:
                give_up(self.views.catalog, self.storage, view.id, new, leases)
        if done:
            removed = sum(s.rows for s in old) - sum(s.rows for s in new)
            self.events.emit("view.composed", view=view.name, segments=len(old), removed=removed)
        return done

    def _stored(self, view: Relation, old: Collection[Segment]) -> tuple[list[Segment], list[str]]:
        parts = [self.storage.reader.segment_rows(s, view.schema) for s in old]
        rows = overlay(parts, part(view.schema, None)).rows
        return store(self.views.catalog, self.storage, view.id, rows)

    # -- policies --------------------------------------------------------------------------------------

    def keep_schedule(self) -> None:
        """Do for all views what is due and needs no job. The manager runs the jobs that are due."""
        waiting = {b.view_id: b.oldest_at for b in self.views.backlogs()}
        for view_id, deferral in self.catalog.all().items():
            view = self.views.catalog.relation_by_id(view_id)
            if view is not None and is_deferred(view):
                self._keep(view, deferral, waiting.get(view_id))

    def _keep(self, view: Relation, deferral: Deferral, oldest_at: int | None) -> None:
        policy, now = policy_of(view), self.views.catalog.now()
        propagate = policy.propagate.due(deferral.propagated_at, now)
        refresh = policy.refresh.due(deferral.refreshed_at, now)

        def is_in(moment: int) -> bool:
            """Has everything been propagated that was committed before a moment?"""
            return oldest_at is None or oldest_at > moment

        try:
            if propagate is not None and is_in(propagate):
                self.catalog.propagated(view.id, propagate)
                self.compose(view)
            if refresh is not None and (policy.partial or is_in(refresh)):
                self._show(view, refresh)
            elif oldest_at is None:
                self.compose(view, _WORTH_WHILE)
        except FreshviewError as error:  # the others go on; this one is tried again at the next turn
            self.events.emit("schedule.failed", relation=view.name, error=str(error))
