"""Views as queries see them: as of a CSN, from what is stored where that is exact, else from the definition."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

from freshview.catalog.records import Relation, RelationState
from freshview.catalog.views import ViewCatalog
from freshview.definition.analysis import visible_schema
from freshview.definition.known import Definitions, settings_of
from freshview.definition.properties import BASE_LOG, is_deferred, policy_of
from freshview.errors import FreshviewError
from freshview.events import Events
from freshview.refresh.jobs import JobRunner
from freshview.refresh.relevance import Matching, Relevance
from freshview.refresh.runner import Runner
from freshview.refresh.span import Point, Span
from freshview.refresh.tasks import Pending, pending
from freshview.spark.engines import Engines
from freshview.spark.running import Frame
from freshview.storage.segments import in_memory
from freshview.storage.store import Storage
from freshview.transactions.transaction import Transaction
from freshview.views.commits import Inside
from freshview.views.deferred import Deferred
from freshview.views.maintenance import Maintenance

States = Callable[[Relation], RelationState]
Freshness = str | timedelta | None  # "fresh", "any", at most so old; None: as the view's mode has it


class Reading:
    """Reads the views of one warehouse."""

    def __init__(
        self, views: ViewCatalog, storage: Storage, events: Events, engines: Engines, definitions: Definitions,
        jobs: JobRunner, deferred: Deferred, maintenance: Maintenance,
    ) -> None:  # fmt: skip
        self._views = views
        self._catalog = views.catalog
        self._storage = storage
        self._engines = engines
        self._definitions = definitions
        self._jobs = jobs
        self._deferred = deferred
        self._maintenance = maintenance
        self._relevance = Relevance(self._catalog, storage, events, definitions, engines)

    def read(self, view: Relation, csn: int, *, freshness: Freshness = None, matching: Matching | None = None) -> Frame:
        """The view's rows at a CSN, or older ones where the reader or a deferred view's own mode allows that.

        `matching` tells what the reader asks of the rows: what does not match may be of an earlier CSN.
        """
        since = self._maintenance.right_since(view)
        if is_deferred(view):
            return self._read_deferred(view, csn, freshness, matching)
        if freshness == "any" or (isinstance(freshness, timedelta) and self.age(view, csn) <= freshness):
            return self._at(view, self._views.frontier(view), self._reader())
        return self._read_fresh(view, csn, matching) if csn >= since else self.from_definition(view, csn)

    def _read_deferred(self, view: Relation, csn: int, freshness: Freshness, matching: Matching | None) -> Frame:
        """What it shows, unless more is asked for; then the differentials, and the log, as far as that takes."""
        policy = policy_of(view)
        if freshness is None and policy.refresh.kind == "query":
            self._deferred.partial_refresh(view) if policy.partial else self._deferred.refresh(view)
        limit = freshness if isinstance(freshness, timedelta) else None
        if freshness in (None, "any") or (limit is not None and self._deferred.catalog.age(view) <= limit):
            return self.read_shown(view)
        left = pending(self._views, view, csn)
        if limit is not None and left.age(self._catalog.now()) <= limit:
            return self._at(view, left.frontier.readable, self._reader())
        if policy.scenario == BASE_LOG and left.tasks and csn >= left.frontier.readable:
            return self._with_log(view, left, csn)
        return self._read_fresh(view, csn, matching)

    def read_shown(self, view: Relation, seen: dict[int, int] | None = None) -> Frame:
        """What a deferred view shows; the same again to a reader who keeps what it has `seen` (view id → CSN)."""
        seen = {} if seen is None else seen
        state = self._deferred.catalog.shown(view, seen.get(view.id))
        seen[view.id] = state.csn
        return self._reader().shown(state)

    def read_inside(self, view: Relation, transaction: Transaction) -> Frame | None:
        """The view with the writes of a transaction: by their deltas, or else from the definition; None if it has not
        written what the view reads. A deferred view shows the same all the time, without them."""
        inside = transaction.company
        assert isinstance(inside, Inside)
        self._maintenance.right_since(view)
        if is_deferred(view):
            return self.read_shown(view, inside.seen)
        if not transaction.written.intersection(self._views.inputs(view)):
            return None
        state = inside.state(view) if self._definitions.of(view).incremental else None
        if state is None:
            return self.from_definition(view, transaction.snapshot, transaction.state)
        return self._reader().shown(state)

    def _with_log(self, view: Relation, left: Pending, csn: int) -> Frame:
        """MV with the log on top, for one reader: a view without differential tables keeps nothing of it."""
        try:
            if (
                not self._definitions.of(view).incremental
                or self._jobs.reached(self._maintenance.sources(view), csn) != csn
            ):
                return self.from_definition(view, csn)
            start = left.frontier
            stored = self._views.stored(view, start.csn)
            span = Span(self._catalog, self._storage, Point(start.csn, start.stmtsn), Point(csn))
            work = self._maintenance.change(view, span, stored, full=left.reset)
        except FreshviewError:
            return self.from_definition(view, csn)
        own = in_memory(view.id, work.rows)
        state = replace(stored, segments=(*stored.segments, own)) if own is not None else stored
        return self._reader().shown(state)

    def _read_fresh(self, view: Relation, csn: int, matching: Matching | None) -> Frame:
        """The view's rows at a CSN: from its store where that is exact, else from its definition."""
        reader = self._reader()
        left = pending(self._views, view, csn)
        if not left.tasks and left.frontier.readable <= csn:  # nothing to do, which one question tells
            return self._at(view, csn, reader)
        stored = None
        if matching is not None:
            stored = self._relevance.unaffected(view, left, csn, matching, reader.engine)
        if stored is not None:
            return reader.shown(stored)
        if csn >= left.frontier.readable:
            try:
                self._maintenance.bring(view, csn, left)
            except FreshviewError:
                return self.from_definition(view, csn)
        at = self._views.stored_at(view, csn)
        return self.from_definition(view, csn) if at is None else self._at(view, at, reader)

    def _at(self, view: Relation, csn: int, runner: Runner) -> Frame:
        """What is stored at a CSN, as queries see it."""
        return runner.shown(self._views.stored(view, csn))

    def from_definition(self, view: Relation, csn: int, state: States | None = None) -> Frame:
        """What the definition gives at a CSN, or over states of the caller's (a transaction's)."""
        reader = self._reader()
        settings = settings_of(view)
        if settings == reader.engine.settings():
            return self.defined(view, csn, state, reader)
        runner = Runner(
            self._engines.under(settings), self._catalog, self._storage
        )  # another session means other things: hand over rows, not a plan
        shown = visible_schema(view)
        return reader.engine.frame(runner.fetch(self.defined(view, csn, state, runner), shown), shown)

    def defined(self, view: Relation, csn: int, state: States | None, runner: Runner) -> Frame:
        """What the definition gives at a CSN, as a query of this runner's session."""
        definition = self._definitions.of(view)
        frames = {}
        for name, relation in definition.sources.items():
            if relation.kind == "view":
                frames[name] = self.defined(relation, csn, state, runner)
            elif state is not None:
                frames[name] = runner.engine.scan(state(relation))
            else:
                frames[name] = runner.frame(relation, csn)
        return runner.defined(definition, frames)

    def _reader(self) -> Runner:
        """The session in which the user's queries run."""
        return Runner(self._engines.user(), self._catalog, self._storage)

    def age(self, view: Relation, csn: int) -> timedelta:
        """How long ago the oldest commit was made that the view has not seen."""
        return pending(self._views, view, csn).age(self._catalog.now())
