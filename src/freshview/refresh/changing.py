"""The change of a view's stored rows over a span: planned, carried out, and its time kept for the next plan."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import pyarrow as pa

from freshview.catalog.records import Relation, RelationState
from freshview.catalog.statistics import StatisticsCatalog
from freshview.catalog.views import ViewCatalog
from freshview.catalog.writer import Catalog
from freshview.definition.analysis import Definition
from freshview.definition.known import Definitions, settings_of
from freshview.definition.properties import is_deferred
from freshview.delta.signed import RanOut
from freshview.errors import (
    BroadcastTooLarge,
    FreshviewError,
    InvalidStatement,
    NotFound,
    QueryFailed,
    SnapshotExpired,
    TypeMismatch,
    first_line,
)
from freshview.events import Events
from freshview.local.engine import LocalEngine, LocalError
from freshview.optimizer.prices import Prices
from freshview.refresh.combined import Combinations
from freshview.refresh.cost import Calibration, Estimate, Rates, estimate_full
from freshview.refresh.execute import Change, execute
from freshview.refresh.execute_together import Alone, execute_together
from freshview.refresh.job_facts import facts_of
from freshview.refresh.job_input import GroupInput, JobInput, SourceImages, uses
from freshview.refresh.losses import Losses
from freshview.refresh.plan import FULL, INCREMENTAL, NOTHING, JobPlan, RefreshPlan, Rejected, Way, choose, recompute
from freshview.refresh.runner import Runner
from freshview.refresh.span import Span
from freshview.refresh.stages import Pauses, Stages
from freshview.refresh.together import plan_together
from freshview.refresh.ways import Ways
from freshview.relation.schema import Schema
from freshview.spark.engines import Engines
from freshview.spark.running import PlanRunner
from freshview.storage.checkpoint import Checkpointer
from freshview.storage.reader import LOCAL_ROWS, rows_in_files
from freshview.storage.store import Storage

# The rows that the delta rules need cannot be read, or are not stored; those of the definition still can be read.
_NO_INPUT = (SnapshotExpired, BroadcastTooLarge, RanOut)
# Spark accepts the view's text, so an error of the delta query is ours, never the user's. The rules may also evaluate
# an expression that the definition does not; otherwise the definition fails with the same error. A plan of the rules is
# many times as deep as the text: Python's stack may end in it (RecursionError).
_NOT_BY_RULES = (
    *_NO_INPUT,
    InvalidStatement,
    NotFound,
    TypeMismatch,
    pa.ArrowException,
    QueryFailed,
    RecursionError,
)


class Changing:
    """Computes the changes of one warehouse's views, and learns from how long they take."""

    def __init__(
        self, catalog: Catalog, storage: Storage, events: Events, engines: Engines, definitions: Definitions
    ) -> None:
        self._catalog = catalog
        self._views = ViewCatalog(catalog)
        self._checkpointer = Checkpointer(catalog, storage, events, engines.user)
        self._storage = storage
        self._events = events
        self._engines = engines
        self._definitions = definitions
        self._local = LocalEngine()
        self.pauses = Pauses(catalog, storage)
        self._ways = Ways()
        self._losses = Losses()
        self._combinations = Combinations()

    def change(
        self, view: Relation, span: Span, stored: RelationState, *, full: bool = False, in_memory: bool = False
    ) -> Change:
        """The change of a view's stored rows over a span; `full`: recompute it. `in_memory`: its rows are needed as
        differences and on the driver."""
        given = self.given(view, span, stored, in_memory=in_memory)
        plan = recompute(given.takes, rejected=[Rejected(INCREMENTAL, "asked for")])
        if not full:
            given, plan = self._planned(given)
        while plan.strategy != FULL:
            try:
                return self._executed(plan, given)
            except LocalError as error:
                plan = plan.on_spark(first_line(error))
            except _NOT_BY_RULES as error:
                if given.is_rewritten:  # it may fail on rows that the view does not have
                    given, plan = self._planned(given.by_text())
                else:
                    plan = plan.instead(self._obstacle(view, error))
        return self._executed(self._storing(plan, given), given)

    def changes(self, views: Sequence[tuple[Relation, RelationState]], span: Span) -> list[Change | Alone]:
        """The changes of several views over one span, all of which have rules and the same settings; for a view that
        has to be computed alone, why."""
        group, begun = self.group(views, span), time.monotonic()
        try:
            plan = self.plan_together(group)
        except _NOT_BY_RULES as error:
            return [first_line(error)] * len(views)
        planned = (time.monotonic() - begun) / max(sum(one is not None for one in plan.jobs), 1)
        found: dict[int, Change | Alone] = {}
        with Stages(self._catalog, self._storage) as stages:
            changes = execute_together(plan, group, partial(self._runner, views[0][0]), self._local, stages)
        for one, job, change in zip(plan.jobs, group.jobs, changes, strict=True):
            if one is None or isinstance(change, Alone):
                found[job.view.id] = change
            else:
                found[job.view.id] = self._learnt(change, one, job, change.seconds + change.shared + planned)
        return [found.get(view.id, "it knows another schema of a source") for view, _ in views]

    def group(self, views: Sequence[tuple[Relation, RelationState]], span: Span) -> GroupInput:
        """The input of one refresh of several views; without those that know a source by another schema than a view
        before them: a definition keeps the schema that it was analysed with."""
        schemas: dict[int, Schema] = {}
        known = []
        for view, stored in views:
            definition = self._read(view, span)
            if all(schemas.get(s.id, s.schema) == s.schema for s in definition.sources.values()):
                schemas |= {source.id: source.schema for source in definition.sources.values()}
                known.append((view, definition, stored))
        shared = SourceImages(span, (use for _, definition, _ in known for use in uses(definition)))
        rates = rates_in(self._catalog)
        jobs = tuple(JobInput(view, read, span, stored, shared=shared, rates=rates) for view, read, stored in known)
        return GroupInput(jobs, span, shared, rates)

    def plan_together(self, group: GroupInput) -> RefreshPlan:
        """The plan of one refresh of several views."""
        settings = settings_of(group.jobs[0].view)

        def small() -> PlanRunner:
            return PlanRunner(self._engines.under(settings, small=True))

        def ways(job: JobInput) -> tuple[Way, ...]:
            return self._ways.of(job.view, job.definition, job.changes)

        return plan_together(group, ways, self._combinations, small)

    def _runner(self, view: Relation, small: bool) -> Runner:
        """A runner under the settings of a view; `small`: for a job over few rows."""
        return Runner(self._engines.under(settings_of(view), small=small), self._catalog, self._storage)

    def sharing(self, view: Relation) -> Hashable:
        """What views that are refreshed together have in common; None if a view is not computed by delta rules: then it
        is computed alone."""
        return tuple(sorted(settings_of(view).items())) if self._definitions.of(view).incremental else None

    def given(self, view: Relation, span: Span, stored: RelationState, *, in_memory: bool = False) -> JobInput:
        """The input of a job. A transaction computes its own view from what it wrote, by the definition."""
        definition = self._definitions.of(view) if in_memory else self._read(view, span)
        return JobInput(view, definition, span, stored, in_memory, rates=rates_in(self._catalog))

    def _read(self, view: Relation, span: Span) -> Definition:
        """What a job reads: the view's rewriting if all that this reads has versions at both ends of the span, else its
        definition."""
        definition = self._definitions.of(view)
        rewriting = definition.rewriting
        return rewriting if rewriting is not None and self._spanned(rewriting, span) else definition

    def _spanned(self, rewriting: Definition, span: Span) -> bool:
        """Do the views that a rewriting reads have versions at both ends of a span?"""
        if span.start.stmtsn or span.start.own or span.end.own:
            return False
        views = [source for source in rewriting.sources.values() if source.kind == "view"]
        try:
            return all(self._views.has_version(v, p.csn) for v in views for p in (span.start, span.end))
        except NotFound:  # one of them was dropped
            return False

    def plan(self, given: JobInput) -> JobPlan:
        """The plan of a job with this input."""
        given, plan = self._planned(given)
        return self._storing(plan, given)

    def _storing(self, plan: JobPlan, given: JobInput) -> JobPlan:
        """A plan with the decision how a large result is stored: `JobPlan.stored_for`, by what is known of the views
        that read this one. A deferred view stores differences: they are its differential tables."""
        if plan.strategy != FULL or given.in_memory:
            return plan
        if is_deferred(self._catalog.relation_by_id(given.view.id) or given.view):  # it may have become so meanwhile
            return plan
        try:
            readers = {view.name: self._full(view, given.rates).seconds for view in self._views.above(given.view)}
        except FreshviewError:  # that view cannot be computed; this one has to be
            return plan
        return plan.stored_for(readers, given.stored.rows_at_most, given.rates)

    def _full(self, view: Relation, rates: Rates) -> Estimate:
        """The estimated cost of recomputing a view from its newest sources; 0 for one that takes no differences."""
        definition, csn = self._definitions.of(view), self._catalog.snapshot()
        if not definition.incremental:
            return Estimate(0, 0, rates)

        def rows(source: str) -> int:
            return rows_in_files(self._catalog.state(definition.sources[source], csn))

        return estimate_full(definition, rows, rates)

    def _planned(self, given: JobInput) -> tuple[JobInput, JobPlan]:
        """The plan of a job, and the input that it reads: by the view's own text where the rewriting cannot be used."""
        try:
            return given, self._plan(given)
        except _NOT_BY_RULES as error:
            if given.is_rewritten:
                return self._planned(given.by_text())
            return given, recompute(given.takes, rejected=[Rejected(INCREMENTAL, self._obstacle(given.view, error))])

    def _plan(self, given: JobInput) -> JobPlan:
        """The plan of a job; an error of _NOT_BY_RULES if rules cannot be used."""
        definition = given.definition

        def small() -> PlanRunner:
            return PlanRunner(self._engines.under(settings_of(given.view), small=True))

        changes = given.changes if definition.incremental else ()
        if definition.incremental and not changes:
            return JobPlan(NOTHING, given.written, takes=given.takes)
        lost = self._losses.plan(given, changes) if changes else None
        if lost is not None:
            return lost
        ways = self._ways.of(given.view, definition, changes)
        facts = facts_of(given, ways, small)
        return choose(definition, given.written if changes else (), ways, facts, given.takes)

    def _obstacle(self, view: Relation, error: Exception) -> str:
        """Why the delta rules cannot be used for this job. Raise the error if the definition would fail with it too."""
        if isinstance(error, QueryFailed) and type(error) not in (QueryFailed, BroadcastTooLarge):
            raise error
        if not isinstance(error, _NO_INPUT):
            self._events.emit("job.recomputes", view=view.name, error=str(error))
        return first_line(error)

    def _executed(self, plan: JobPlan, given: JobInput) -> Change:
        """Run a plan, and learn from the time that it took."""
        begun = time.monotonic()
        kept = (
            Stages(self._catalog, self._storage)
            if given.in_memory
            else self.pauses.job(given.view, given.span, _asked(plan, given))
        )
        with kept as stages:
            change = execute(plan, given, partial(self._runner, given.view), self._local, stages)
        self._losses.note(given, plan)
        return self._learnt(change, plan, given, time.monotonic() - begun)

    def _learnt(self, change: Change, plan: JobPlan, given: JobInput, took: float) -> Change:
        """A change with what its time teaches of the view's costs."""
        if plan.strategy == NOTHING or not given.full.rows:
            return change  # where all is small there is little to choose, and times say more of the machine
        cost = plan.estimate if plan.estimate is not None else given.full
        learnt = given.calibration.after(plan.way, cost.seconds, took).learnt
        return replace(change, expected=plan.seconds, otherwise=plan.otherwise, factors=learnt)

    def close(self) -> None:
        self.pauses.close()
        self._local.close()

    def applied(self, state: RelationState) -> None:
        """Scan a small view that queries have read in the user's session, so that the next one need not; make the files
        of a view whose rows were replaced part of main, so that its next job can look rows up."""
        if state.main is None and any(s.files for s in state.segments):
            self._checkpointer.adopt(state.relation)
        elif state.is_small(LOCAL_ROWS) and self._engines.user().has_scanned(state.relation):
            Runner(self._engines.user(), self._catalog, self._storage).visible(state)


def _asked(plan: JobPlan, given: JobInput) -> Hashable:
    """What a job computes over its span, and by which steps; the reasons for them may change between two attempts."""
    steps = tuple((change.source, change.in_spark, change.condense.step) for change in plan.changes)
    return plan.query or given.whole.text, steps, plan.condense and plan.condense.step


def rates_in(catalog: Catalog) -> Rates:
    """What `calibrate` has measured, or the defaults. They are read for each job: another process may calibrate."""
    return Rates.of(Prices.of(StatisticsCatalog(catalog).prices()))


def learnt_at_creation(
    definition: Definition, rows: Callable[[str], int], seconds: float, rates: Rates
) -> Mapping[str, float]:
    """What the time that computing all rows of a new view took teaches of its costs."""
    expected = estimate_full(definition, rows, rates)
    return Calibration().after(FULL, expected.seconds, seconds).learnt if expected.rows else {}
