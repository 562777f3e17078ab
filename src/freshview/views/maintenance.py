"""Maintenance of views on request, in jobs (`refresh/jobs.py`). A job that fails leaves the last good state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace

from freshview.algebra.traversal import columns_read
from freshview.catalog.frontiers import Job
from freshview.catalog.records import Relation, RelationState
from freshview.catalog.views import ViewCatalog
from freshview.definition.analysis import identified
from freshview.definition.known import Definitions
from freshview.definition.properties import is_deferred
from freshview.definition.verdict import FACT, RECOMPUTED, Verdict
from freshview.delta.signed import part
from freshview.errors import FreshviewError
from freshview.refresh.changing import Changing
from freshview.refresh.execute import Change
from freshview.refresh.group import GroupRunner
from freshview.refresh.jobs import JobRunner, is_transient
from freshview.refresh.plan import JobPlan, RefreshPlan
from freshview.refresh.points import Point
from freshview.refresh.span import Span
from freshview.refresh.tasks import Pending, pending
from freshview.storage.store import Storage
from freshview.views.deferred import Deferred

_GIVEN_UP = "key given up"  # a fact of a view: its rows are to be recomputed as a bag


@dataclass(frozen=True)
class Maintenance:
    """Maintains the views of one warehouse."""

    views: ViewCatalog
    storage: Storage
    definitions: Definitions
    changing: Changing
    jobs: JobRunner
    groups: GroupRunner
    deferred: Deferred
    _right_since: dict[tuple[int, int], int] = field(default_factory=dict)  # by (id, epoch) of views checked again

    def change(self, view: Relation, span: Span, stored: RelationState, *, full: bool = False) -> Change:
        """The change of a view's stored rows over a span, as differences on the driver, for a caller that holds them
        in memory; `full`: recompute it."""
        return self.changing.change(view, span, stored, full=full, in_memory=True)

    def sources(self, view: Relation) -> list[Relation]:
        return list(self.definitions.of(view).sources.values())

    def bring(self, view: Relation, csn: int, left: Pending | None = None) -> list[Job]:
        """Maintain a view up to a CSN; return the jobs that this took.

        `left` are the tasks up to that CSN, if the caller has asked for them already.
        """
        self.right_since(view)
        return self.jobs.bring(view, csn, left=left)

    def next_job(self, view: Relation) -> JobPlan | None:
        """The plan of a view's next job; None if nothing is pending, if views below it have to go first,
        or if the job's input cannot be read now."""
        pin = self.views.catalog.begin("query", at=self.views.frontier(view))
        try:
            left = pending(self.views, view, self.views.catalog.snapshot())
            if not left.tasks or left.reset:
                return None
            end = self.jobs.next_end(view, left)
            below = [source for source in self.sources(view) if source.kind == "view"]
            below += self.views.rewriting_sources(view)
            if not all(self.views.has_version(source, end) for source in below):
                return None
            span = Span(self.views.catalog, self.storage, Point(left.frontier.csn, left.frontier.stmtsn), Point(end))
            stored = self.views.stored(view, left.frontier.csn)
            return self.changing.plan(self.changing.given(view, span, stored))
        except FreshviewError:
            return None
        finally:
            self.views.catalog.release(pin)

    def next_refresh(self, view: Relation) -> RefreshPlan | None:
        """The plan of the refresh that would take a view with others now; None if there are no others, or if its input
        cannot be read now."""
        waiting = {backlog.view_id for backlog in self.views.backlogs()}
        others = [v for v in self.views.by_id(waiting - {view.id}) if waiting.isdisjoint(self.views.inputs(v))]
        if view.id not in waiting or not waiting.isdisjoint(self.views.inputs(view)):
            return None
        pin = self.views.catalog.begin("query", at=self.views.frontier(view))
        try:
            members = self.groups.members(view, others, self.views.catalog.snapshot())
            if not members:
                return None
            given = self.changing.group([(m.view, self.groups.stored(m)) for m in members], self.groups.span(members))
            takes_it = any(job.view.id == view.id for job in given.jobs)
            return self.changing.plan_together(given) if takes_it else None
        except (FreshviewError, RecursionError):
            return None
        finally:
            self.views.catalog.release(pin)

    def maintain(self, view: Relation, csn: int, *, named: bool) -> list[Job]:
        """Maintain a view on request; a deferred one only as far as its mode allows, unless it was `named`."""
        return self.deferred.maintain(view, named=named) if is_deferred(view) else self.bring(view, csn)

    def together(self, views: Sequence[Relation]) -> AbstractContextManager[None]:
        """While the block lasts, rows that jobs of several of these views look up are read for all of them."""
        waiting = {backlog.view_id for backlog in self.views.backlogs()} if len(views) > 1 else set()
        columns: dict[int, set[str]] = {}
        for view in views:
            if view.id in waiting:
                with suppress(FreshviewError):  # maintenance of the view raises it again
                    definition = self.definitions.of(view)
                    used = columns_read(definition.form.tree) if definition.form is not None else {}
                    for name, source in definition.sources.items():
                        columns.setdefault(source.id, set()).update(used.get(name, ()))
        return self.storage.reader.together(columns)

    def bring_together(
        self, views: Sequence[Relation], csn: int, *, known: Mapping[int, Pending] | None = None
    ) -> list[Job]:
        """Maintain views up to a CSN in refreshes of several of them; return their jobs. A view that is left behind
        has to be maintained by itself, and so are deferred views. `known` are tasks that were asked for already."""
        return self.groups.bring(self._known(views), csn, known=known)

    def step_together(
        self, view: Relation, others: Sequence[Relation], csn: int, *, most_rows: int | None = None
    ) -> list[Job]:
        """Run one refresh of a view towards a CSN, with those of the others that share its change; return the jobs."""
        known = self._known([view, *others])
        return self.groups.step(view, known[1:], csn, most_rows=most_rows) if view in known[:1] else []

    def _known(self, views: Sequence[Relation]) -> list[Relation]:
        """The views that can be maintained by jobs: their rows are right, and they are not deferred."""
        known = []
        for view in views:
            with suppress(FreshviewError):  # maintenance of the view raises it again
                if not is_deferred(view):
                    self.right_since(view)
                    known.append(view)
        return known

    def propagate(self, view: Relation) -> list[Job]:
        """Move the log of a deferred view into its differential tables."""
        self.right_since(view)
        return self.deferred.propagate(view)

    def partial_refresh(self, view: Relation) -> tuple[int, int]:
        """Have a deferred view show what was propagated; return how many delta rows, and as of which CSN."""
        self.right_since(view)
        return self.deferred.partial_refresh(view)

    def refresh_deferred(self, view: Relation) -> tuple[int, int]:
        """Have a deferred view show all commits so far; return how many delta rows, and as of which CSN."""
        self.right_since(view)
        return self.deferred.refresh(view)

    def refresh_as_asked(self, view: Relation, how: str) -> tuple[int, int]:
        """Refresh a view by all commits so far (""), by recomputing it ("full"), or in part ("propagate", "partial");
        return how many delta rows that took, and the CSN that the view has then."""
        match how:
            case "partial":
                return self.partial_refresh(view)
            case "propagate":
                jobs = self.propagate(view)
            case "full":
                jobs = [self.refresh(view)]
                if is_deferred(view):
                    self.refresh_deferred(view)
            case _ if is_deferred(view):
                return self.refresh_deferred(view)
            case _:
                jobs = self.bring(view, self.views.catalog.snapshot())
        return sum(job.view_rows for job in jobs), self.views.frontier(view)

    def step(self, view: Relation, csn: int, *, most_rows: int | None = None) -> Job | None:
        """Run one job towards a CSN; None if nothing is pending, or another process runs a job of the view."""
        self.right_since(view)
        return self.jobs.step(view, csn, most_rows=most_rows)

    def refresh(self, view: Relation) -> Job:
        """Recompute a view, whatever it has seen; if its rows were wrong, maintain all views above it as well.

        Each of those has a task for this refresh, so that a crash in between loses nothing. A view that fails on its
        data does not hold up the others; its error is raised when they are done.
        """
        job, failed = self.jobs.refresh(view), []
        for above in self.views.above(view) if job.view_rows else ():
            try:
                if is_deferred(above):
                    self.deferred.refresh(above)  # the rows that it shows may be wrong
                else:
                    self.bring(above, self.views.catalog.snapshot())
            except FreshviewError as error:
                if is_transient(error):
                    raise
                failed.append(error)
        if failed:
            raise failed[0]
        return job

    def advance(self) -> None:
        """Move the frontiers of views without tasks to the newest commit, so that they hold back no old versions."""
        self.views.advance(self.views.catalog.snapshot())

    def note_uses(self, uses: Mapping[int, tuple[int, int]]) -> None:
        self.views.note_uses(uses)

    def right_since(self, view: Relation) -> int:
        """The CSN from which on the stored rows of a view are right.

        If Spark was never asked how it reads the view, or by another version of the program, it is asked now. If Spark
        reads the view otherwise, its rows may be wrong: they are recomputed before a query sees them, and so are those
        of views above it; queries of older versions of both are answered from the definition. So it is if the view's
        key no longer follows from its definition: then it and the views above it become bags first.
        """
        key, before = (view.id, view.epoch), Verdict.of(view.facts)
        given_up = bool(view.facts.get(_GIVEN_UP))
        if before is not None and before.is_current and not given_up:
            return max(before.since, self._right_since.get(key, 0))  # another process may have corrected it since
        if key in self._right_since:
            return self._right_since[key]
        definition = self.definitions.of(view)
        read = [*definition.sources.values(), *self.views.rewriting_sources(view)]
        lower = [self.right_since(r) for r in read if r.kind == "view"]
        verdict, since = definition.verdict, max([0, *lower])
        assert verdict is not None
        broken = given_up or (bool(view.schema.key) and not identified(definition, view.schema.key))
        if broken:
            view = self._as_bags(view)
        if broken or (definition.form is None and (before is None or before.kind != RECOMPUTED)):
            since = max(since, self.refresh(view).to_csn)
            if is_deferred(view):
                self.deferred.refresh(view)  # in any scenario: the rows that it shows may be wrong
            for above in self.views.above(view):
                if above.facts.get(_GIVEN_UP):
                    continue  # it is recomputed when it is asked for
                self._right_since[above.id, above.epoch] = since
                known = Verdict.of(above.facts)
                if known is not None:
                    self.views.note(above, FACT, replace(known, since=since).to_json())
        self.views.note(view, FACT, replace(verdict, since=since).to_json())
        if broken:
            self.views.note(view, _GIVEN_UP, "")
        self._right_since[key] = since
        return since

    def judge(self, view: Relation, verdict: Verdict) -> None:
        """Store a new verdict on a view; rows that may be wrong by it are recomputed."""
        before = Verdict.of(view.facts)
        assert before is not None
        noted = replace(verdict, since=before.since)
        if verdict.kind == RECOMPUTED:
            noted = replace(before, version="")  # not current: Spark is asked again, here or after a crash, and heard
        self.views.note(view, FACT, noted.to_json())
        self._right_since.pop((view.id, view.epoch), None)
        self.definitions.forget()
        found = self.views.catalog.relation_by_id(view.id)
        if found is not None:
            self.right_since(found)

    def _as_bags(self, view: Relation) -> Relation:
        """Make a view and those above it bags; return the view. Their segments have both images of every update, so
        that they can be laid over by whole rows as well. A mark stays with each until it has been recomputed, so that
        a crash in between loses nothing."""
        keyed = [one for one in (view, *self.views.above(view)) if one.schema.key]
        for one in keyed:
            self.views.note(one, _GIVEN_UP, "true")
        for one in keyed:
            self.views.catalog.alter(one.name, lambda schema: part(schema, None))
        self.definitions.forget()
        found = self.views.catalog.relation_by_id(view.id)
        assert found is not None
        return found
