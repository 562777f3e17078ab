"""Views as queries see them: as of a CSN, from the stored rows where these are exact, else from the definition."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta

from freshview.catalog.records import Relation, RelationState
from freshview.catalog.views import ViewCatalog
from freshview.definition.analysis import visible_schema
from freshview.definition.known import Definitions, settings_of
from freshview.definition.properties import BASE_LOG, is_deferred, policy_of
from freshview.errors import FreshviewError
from freshview.refresh.execute import Change
from freshview.refresh.jobs import JobRunner
from freshview.refresh.points import Point
from freshview.refresh.relevance import Matching, Needed, Relevance
from freshview.refresh.runner import Runner
from freshview.refresh.span import Span
from freshview.refresh.tasks import Pending, pending
from freshview.spark.engines import Engines
from freshview.spark.running import Frame
from freshview.storage.segments import in_memory
from freshview.storage.store import Storage
from freshview.transactions.transaction import Transaction
from freshview.views.deferred import Deferred
from freshview.views.maintenance import Maintenance

StateOf = Callable[[Relation], RelationState]
Reads = tuple[int, int]  # a view's id, and the CSN at which a query reads it
Freshness = str | timedelta | None  # "fresh", "any", or the greatest age; None: as the view's mode has it


@dataclass(frozen=True)
class Reading:
    """Reads the views of one warehouse."""

    views: ViewCatalog
    storage: Storage
    engines: Engines
    definitions: Definitions
    jobs: JobRunner
    deferred: Deferred
    maintenance: Maintenance
    relevance: Relevance

    def read(
        self,
        view: Relation,
        csn: int,
        *,
        freshness: Freshness = None,
        matching: Matching | None = None,
        left: Pending | None = None,
    ) -> Frame:
        """The view's rows at a CSN, or older ones where the reader or a deferred view's own mode allows that.

        `matching` gives the reader's conditions on the rows: rows that do not match may be of an earlier CSN. `left`
        are the view's tasks up to the CSN, if they were asked for already.
        """
        since = self.maintenance.right_since(view)
        if is_deferred(view):
            return self._read_deferred(view, csn, freshness, matching, since)
        if freshness == "any" or (isinstance(freshness, timedelta) and self.age(view, csn) <= freshness):
            return self._at(view, self.views.frontier(view), self._reader())
        return self._read_fresh(view, csn, matching, left) if csn >= since else self.from_definition(view, csn)

    def refresh_together(self, asked: Sequence[tuple[Relation, int, Matching | None]]) -> dict[Reads, Pending]:
        """Maintain views, up to the CSNs at which a query is going to read them, together where that is possible;
        return the tasks that are left of each, as far as they are known.

        Views whose changes the query cannot see are left alone. Nothing is raised: `read` maintains what is left.
        """
        left: dict[Reads, Pending] = {}
        with suppress(FreshviewError):
            waiting = [one for one in asked if not is_deferred(one[0])]
            left |= {(view.id, csn): pending(self.views, view, csn) for view, csn, _ in waiting}
            stale = [one for one in waiting if _is_behind(left[one[0].id, one[1]], one[1])]
            if len(stale) > 1:
                self._bring(stale, left)
        return left

    def _bring(self, stale: Sequence[tuple[Relation, int, Matching | None]], left: dict[Reads, Pending]) -> None:
        """Maintain the views whose changes a query can see, and take the tasks that this took from those left."""
        engine, seen = self._reader().engine, dict[int, list[Relation]]()
        for view, csn, matching in stale:
            unseen = None
            if matching is not None:
                unseen = self.relevance.needed(view, left[view.id, csn], csn, matching, engine, report=False)
            if unseen is None:
                seen.setdefault(csn, []).append(view)
        for csn, views in seen.items():
            known = {view.id: left[view.id, csn] for view in views}
            for job in self.maintenance.bring_together(views, csn, known=known):
                if (job.view_id, csn) in left:
                    left[job.view_id, csn] = left[job.view_id, csn].after(job.to_csn)

    def _read_deferred(
        self, view: Relation, csn: int, freshness: Freshness, matching: Matching | None, since: int
    ) -> Frame:
        """What a deferred view shows; if that is not fresh enough, with its differentials, and with its log. Rows that
        were stored before the CSN `since` may be wrong."""
        policy = policy_of(view)
        if freshness is None and policy.refresh.kind == "query":
            self.deferred.refresh_for_query(view)
        limit = freshness if isinstance(freshness, timedelta) else None
        if freshness in (None, "any") or (limit is not None and self.deferred.catalog.age(view) <= limit):
            return self.read_shown(view)
        if csn < since:
            return self.from_definition(view, csn)
        left = pending(self.views, view, csn)
        if limit is not None and left.age(self.views.catalog.now()) <= limit:
            return self._at(view, left.frontier.readable, self._reader())
        if policy.scenario == BASE_LOG and left.tasks and csn >= left.frontier.readable:
            return self._with_log(view, left, csn)
        return self._read_fresh(view, csn, matching, left)

    def read_shown(self, view: Relation, seen: dict[int, int] | None = None) -> Frame:
        """What a deferred view shows; to a reader that keeps what it has `seen` (view id → CSN), always one state."""
        seen = {} if seen is None else seen
        state = self.deferred.catalog.shown(view, seen.get(view.id))
        seen[view.id] = state.csn
        return self._reader().visible(state)

    def read_inside(self, view: Relation, transaction: Transaction) -> Frame | None:
        """The view with the writes of a transaction: by their deltas, or else from the definition; None if they do not
        touch what the view reads. A deferred view shows one state throughout, without the writes."""
        inside = transaction.company
        assert inside is not None
        is_right = transaction.snapshot >= self.maintenance.right_since(view)
        if is_deferred(view):
            return self.read_shown(view, inside.seen)
        if not transaction.written.intersection(self.views.inputs(view)):
            return None
        state = inside.state(view) if is_right and self.definitions.of(view).incremental else None
        if state is None:
            return self.from_definition(view, transaction.snapshot, transaction.state)
        return self._reader().visible(state)

    def _with_log(self, view: Relation, left: Pending, csn: int) -> Frame:
        """MV with the log on top, for one reader: a view without differential tables has no place to store that."""
        try:
            sources = self.maintenance.sources(view)
            if not self.definitions.of(view).incremental or self.jobs.reached(sources, csn) != csn:
                return self.from_definition(view, csn)
            start = left.frontier
            stored = self.views.stored(view, start.csn)
            if self.views.position(view) != start:  # a job has moved it, and what it had stored may be composed
                return self.from_definition(view, csn)
            span = Span(self.views.catalog, self.storage, Point(start.csn, start.stmtsn), Point(csn))
            change = self.maintenance.change(view, span, stored, full=left.reset)
        except FreshviewError:
            return self.from_definition(view, csn)
        return self._reader().visible(_with(stored, change))

    def _in_part(self, view: Relation, left: Pending, needed: Needed) -> RelationState | None:
        """The stored rows with the part of the pending change that a query has to see, for this query alone; None if
        they cannot be computed."""
        if not needed.own:
            return needed.stored
        start = left.frontier.csn
        pin = self.views.catalog.begin("job", at=start)
        try:
            if self.views.catalog.horizon() > start:
                return None
            span = Span(self.views.catalog, self.storage, Point(start), Point(start, own=needed.own))
            return _with(needed.stored, self.maintenance.change(view, span, needed.stored))
        except FreshviewError:
            return None
        finally:
            self.views.catalog.release(pin)

    def _read_fresh(self, view: Relation, csn: int, matching: Matching | None, left: Pending | None = None) -> Frame:
        """The view's rows at a CSN: from its store where that is exact, else from its definition."""
        reader = self._reader()
        left = left if left is not None else pending(self.views, view, csn)
        if not left.tasks and left.frontier.readable <= csn:  # nothing to do: the catalog was asked once
            # Only of deferred views a job can compose what was stored at the frontier that was read just now.
            return self._at(view, csn, reader) if is_deferred(view) else reader.visible(self.views.stored(view, csn))
        needed = None
        if matching is not None:
            needed = self.relevance.needed(view, left, csn, matching, reader.engine)
        if needed is not None and (state := self._in_part(view, left, needed)) is not None:
            return reader.visible(state)
        if csn >= left.frontier.readable:
            try:
                done = self.maintenance.bring(view, csn, left)
            except FreshviewError:
                return self.from_definition(view, csn)
            state = self.jobs.state_after(done[-1]) if done else None
            if state is not None and state.csn == csn and not is_deferred(view):
                return reader.visible(state)  # the catalog was asked for it a moment ago
        return self._at(view, csn, reader)

    def _at(self, view: Relation, csn: int, runner: Runner) -> Frame:
        """The rows at a CSN, as queries see them: those stored, or else those of the definition."""
        stored = self.views.version(view, csn)
        return self.from_definition(view, csn) if stored is None else runner.visible(stored)

    def from_definition(self, view: Relation, csn: int, state: StateOf | None = None) -> Frame:
        """The rows that the definition gives at a CSN, or over the states of the caller's transaction."""
        reader = self._reader()
        settings = settings_of(view)
        if settings == reader.engine.settings():
            return self.defined(view, csn, state, reader)
        # A plan means other things in a session with other settings: the reader gets rows instead.
        runner = Runner(self.engines.under(settings), self.views.catalog, self.storage)
        schema = visible_schema(view)
        return reader.engine.frame(runner.fetch(self.defined(view, csn, state, runner), schema), schema)

    def defined(self, view: Relation, csn: int, state: StateOf | None, runner: Runner) -> Frame:
        """The definition at a CSN, as a query of this runner's session."""
        definition = self.definitions.of(view)
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
        """A runner on the session in which the user's queries run."""
        return Runner(self.engines.user(), self.views.catalog, self.storage)

    def age(self, view: Relation, csn: int) -> timedelta:
        """The age of the oldest commit that the view has not seen."""
        return pending(self.views, view, csn).age(self.views.catalog.now())


def _is_behind(left: Pending, csn: int) -> bool:
    """Has a view tasks before a CSN that is not before its frontier?"""
    return bool(left.tasks) and csn >= left.frontier.readable


def _with(stored: RelationState, change: Change) -> RelationState:
    """A state with a change on the driver on top."""
    own = in_memory(stored.relation.id, change.rows)
    return replace(stored, segments=(*stored.segments, own)) if own is not None else stored
