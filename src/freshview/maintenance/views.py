"""Views: created, brought up to date, read, checked, explained.

A job (`jobs.py`) takes one view from its frontier c0 to c1. It computes the change of the stored rows, by delta rules
or as the difference between the recomputed definition and what is stored, and shows it by compare-and-set on
the frontier. Whatever goes wrong leaves the last good state in place.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

from freshview.catalog.records import PENDING, Deferral, Frontier, Lease, Relation, RelationState, Segment
from freshview.catalog.views import Job, ViewCatalog
from freshview.catalog.writer import Catalog
from freshview.errors import FreshviewError, InvalidStatement, NotMaintainable, ViewUnusable
from freshview.events import Events
from freshview.maintenance.advice import mode_of
from freshview.maintenance.checking import Difference, compared
from freshview.maintenance.cost import Pace
from freshview.maintenance.deferred import Deferred
from freshview.maintenance.definition import (
    Definition,
    analyse,
    check_output_names,
    sources_to_json,
    unread,
    visible_columns,
    visible_schema,
)
from freshview.maintenance.determinism import refuse_indeterminate, refuse_users_functions
from freshview.maintenance.explain import explained
from freshview.maintenance.inside import Inside
from freshview.maintenance.invariants import Invariant, Invariants
from freshview.maintenance.jobs import Jobs, give_up, is_transient, store
from freshview.maintenance.manager import Candidate, candidate
from freshview.maintenance.modes import Modes, checked_refresh
from freshview.maintenance.overview import mode_line
from freshview.maintenance.policies import (
    BASE_LOG,
    COMBINED,
    DEFERRED,
    commits_maintain,
    is_deferred,
    mode_in,
    policy_of,
)
from freshview.maintenance.reading import TRIAL, Reader, wants_selftest
from freshview.maintenance.relevance import Matching, Relevance
from freshview.maintenance.runner import Frame, Runner
from freshview.maintenance.span import Point, Span, in_memory
from freshview.maintenance.tasks import JOB_ROWS, Pending, pending
from freshview.maintenance.verdict import PROPERTY, RECOMPUTED, Verdict
from freshview.maintenance.work import Work, Working, estimate_full
from freshview.relation.delta import INSERT, tag
from freshview.relation.schema import Schema
from freshview.sql.binding import bind, refuse_foreign
from freshview.sql.statements import CreateView
from freshview.storage.reader import LOCAL_ROWS
from freshview.storage.store import Storage
from freshview.transactions.transaction import INLINE_BYTES, Transaction

if TYPE_CHECKING:
    from freshview.spark.engine import SparkEngine

# Under other arithmetic than Spark's own, a plan says too little of the delta rules: they are tested.
_STRICT = ("spark.sql.ansi.enabled", "spark.sql.decimalOperations.allowPrecisionLoss")
States = Callable[[Relation], RelationState]
Freshness = str | timedelta | None  # "fresh", "any", at most so old; None: as the view's mode has it


class ViewKeeper:
    """Keeps the views of one warehouse."""

    def __init__(self, catalog: Catalog, storage: Storage, events: Events, engine: Callable[[], SparkEngine]) -> None:
        self._catalog = catalog
        self._views = ViewCatalog(catalog)
        self._storage = storage
        self._events = events
        self._user_engine = engine
        self._engines: dict[tuple[str, bool], SparkEngine] = {}
        self._definitions: dict[tuple[int, int, str], Definition] = {}
        self._right_since: dict[tuple[int, int], int] = {}  # of views whose reading was asked about again (id, epoch)
        self._paces: dict[int, Pace] = {}
        self._guard = threading.Lock()
        self._eager_turn = threading.RLock()
        self._jobs = Jobs(catalog, storage, events, self._work, self._make_ready)
        self.deferred = Deferred(self._views, storage, events, self.bring)
        self.modes = Modes(self._views, self.deferred, lambda view: self.definition(view).hindrance)
        self._relevance = Relevance(
            catalog, storage, events, self.definition, lambda view: self._runner_of(view, small=True)
        )

    # -- definitions -------------------------------------------------------------------------------

    def create(self, statement: CreateView) -> tuple[int, int]:
        """A view with its rows at one snapshot; (rows, CSN)."""
        existing = self._catalog.find(statement.name)
        if existing is not None and not (statement.or_replace and existing.kind == "view"):
            self._catalog.require_free(statement.name)
        refuse_indeterminate(statement.query)
        given = dict(statement.properties)
        refresh = checked_refresh(given, given)
        pin = self._catalog.begin("view")
        try:
            sources = self._sources(statement.query, pin.csn)
            if existing is not None and any(existing.id == r.id for r in self._closure(sources)):
                raise InvalidStatement(f"view {statement.name}", "its definition would use itself", "Use other tables.")
            csn = self._jobs.reached(sources.values(), pin.csn)
            user = self._user_engine()
            refuse_users_functions(statement.query, user.users_functions())
            settings = user.settings()
            runner = self._runner(settings)
            frames = {n: runner.frame(r, csn) for n, r in sources.items()}
            names = tuple(runner.original(statement.query, frames).columns)
            check_output_names(names)
            columns = {n: visible_columns(r) for n, r in sources.items()}
            eager = commits_maintain(given)
            if eager:
                self.modes.require_eager_sources(statement.name, sources.values())
            read = analyse(statement.query, sources, columns, names, refresh, runner.types_of(frames))
            definition, verdict = self._asked(read, statement.name, settings, given)
            rows = runner.recomputed(definition, frames)
            schema = runner.engine.schema_of(rows, ())
            properties = {
                **given, "definition": statement.query, "sources": sources_to_json(sources),
                "settings": json.dumps(settings),
                "columns": json.dumps(list(names)), "refresh": refresh, PROPERTY: verdict.to_json(),
            }  # fmt: skip
            if existing is not None:
                self.require_unused(existing)
            view_id = self._catalog.reserve_id()
            begun = time.monotonic()
            segments, leases = self._first_rows(runner, rows, view_id, schema)
            self._learn_full(view_id, definition, csn, time.monotonic() - begun)
            try:
                view, created = self._views.create(
                    view_id, statement.name, schema, properties, list(sources.values()), segments, leases, csn,
                    existing, eager=eager, deferred=mode_in(given) == DEFERRED,
                )  # fmt: skip
            except BaseException:
                give_up(self._catalog, self._storage, view_id, segments, leases)
                raise
            count = sum(s.rows for s in segments)
            self._events.emit("view.created", view=view.name, rows=count)
            return count, created
        finally:
            self._catalog.release(pin)

    def _learn_full(self, view_id: int, definition: Definition, csn: int, seconds: float) -> None:
        """What computing all rows took: the first thing that is known of a view's cost."""
        expected = estimate_full(definition, lambda source: self._catalog.state(source, csn))
        if expected.rows:
            self._paces.setdefault(view_id, Pace()).learn("full", expected.seconds, seconds)

    def _first_rows(self, runner: Runner, rows: Frame, view_id: int, schema: Schema) -> tuple[list[Segment], list[str]]:
        """The rows of a new view: written by Spark, kept as files if they are many."""
        lease = self._catalog.lease(view_id, self._storage.layout.new_folder("bulk"))
        assert lease is not None
        try:
            files = runner.engine.write(rows, view_id, lease.path, "view")
            count, size = sum(f.rows for f in files), sum(f.size for f in files)
            if size > INLINE_BYTES:
                segment = Segment(view_id, PENDING, 0, count, size, 1, stmtsn=1, action=INSERT, files=files)
                return [segment], [lease.id]
            table = runner.read(view_id, files, schema)
        except BaseException:
            self._drop_folder(view_id, lease)
            raise
        self._drop_folder(view_id, lease)
        return store(self._catalog, self._storage, view_id, tag(table, schema, INSERT, 1))

    def _drop_folder(self, view_id: int, lease: Lease) -> None:
        self._storage.discard(view_id, lease.path)
        self._catalog.drop_leases([lease.id])

    def _sources(self, text: str, csn: int) -> dict[str, Relation]:
        """The relations that a definition names; nothing else may be read."""
        found: dict[str, Relation] = {}

        def is_ours(name: str) -> bool:
            found[name] = self._catalog.relation(name, csn)
            return True

        bound = bind(text, is_ours)
        refuse_foreign(bound)
        if any(ref.version or ref.timestamp for ref in bound.tables.values()):
            raise NotMaintainable(
                "view", "its definition reads a fixed version", "Leave VERSION and TIMESTAMP AS OF out."
            )
        return found

    def _closure(self, sources: Mapping[str, Relation]) -> list[Relation]:
        """The sources and all that views among them read."""
        result = list(sources.values())
        for relation in result:
            if relation.kind == "view":
                result += [r for r in self.definition(relation).sources.values() if r not in result]
        return result

    def definition(self, view: Relation) -> Definition:
        """A view's definition, analysed once per process and epoch."""
        key = (view.id, view.epoch, view.properties.get("refresh", "auto"))
        known = self._definitions.get(key)
        if known is None:
            known = self._definitions[key] = self._opened(view)
        return known

    def _opened(self, view: Relation) -> Definition:
        """The definition of a stored view. What another version of the program said of its reading is asked again."""
        sources = self._views.sources(view)
        columns = {n: tuple(e["columns"]) for n, e in json.loads(view.properties["sources"]).items()}
        names = tuple(json.loads(view.properties["columns"]))
        text, refresh = view.properties["definition"], view.properties.get("refresh", "auto")
        verdict = Verdict.of(view.properties)
        runner = self._runner_of(view)
        try:
            if verdict is not None and verdict.is_current and verdict.kind == RECOMPUTED:
                return replace(unread(text, sources, columns, names, refresh, verdict.reason), verdict=verdict)
            frames = {n: runner.empty(r) for n, r in sources.items()}
            known = analyse(text, sources, columns, names, refresh, runner.types_of(frames))
            if verdict is None or not verdict.is_current:
                settings = json.loads(view.properties["settings"])
                known, verdict = self._asked(known, view.name, settings, view.properties)
            if known.form is not None and known.form.stored != view.schema.names:
                verdict = Verdict(RECOMPUTED, reason="its rows were stored in another form, by another version")
                known = unread(text, sources, columns, names, refresh, verdict.reason)
        except NotMaintainable as error:
            raise ViewUnusable(
                f"view {view.name}", f"this version of Freshview cannot keep it ({error})",
                "Create it again: CREATE OR REPLACE MATERIALIZED VIEW.",
            ) from error  # fmt: skip
        return replace(known, verdict=verdict)

    def _asked(
        self, definition: Definition, name: str, settings: Mapping[str, str], properties: Mapping[str, str]
    ) -> tuple[Definition, Verdict]:
        """A definition as far as Spark reads it as we do: one that it reads otherwise keeps its text."""

        def progress(step: str) -> None:
            self._events.emit("view.reading", view=name, step=step)

        schemas = {}
        for source, relation in definition.sources.items():
            shown = visible_schema(relation)
            schemas[source] = Schema(tuple(shown.column(c) for c in definition.columns[source]), relation.schema.key)
        runner = self._runner({**settings, **TRIAL}, small=True)
        strict = all(settings.get(key, "true").lower() == "true" for key in _STRICT)
        reader = Reader(definition, runner, schemas, strict)
        verdict = reader.verdict(selftest=wants_selftest(properties), progress=progress)
        if verdict.kind == RECOMPUTED and definition.form is not None:
            definition = unread(
                definition.text, definition.sources, definition.columns, definition.names, definition.refresh,
                verdict.reason,
            )  # fmt: skip
        return replace(definition, verdict=verdict), verdict

    def right_since(self, view: Relation) -> int:
        """The CSN from which on the stored rows of a view are right.

        A view whose reading was never asked about, or by another version of the program, is asked about now. If Spark
        reads it otherwise, its rows may be wrong: they are computed anew before anybody sees them, and so are those of
        views above it; older versions of both are answered from the definition.
        """
        key, before = (view.id, view.epoch), Verdict.of(view.properties)
        if key in self._right_since:
            return self._right_since[key]
        if before is not None and before.is_current:
            return before.since
        definition = self.definition(view)
        lower = [self.right_since(r) for r in definition.sources.values() if r.kind == "view"]
        verdict, since = definition.verdict, max([0, *lower])
        assert verdict is not None
        if definition.form is None and (before is None or before.kind != RECOMPUTED):
            since = max(since, self.refresh(view).to_csn)
            if is_deferred(view):
                self.deferred.partial_refresh(view)
            for above in self._views.above(view):
                self._right_since[above.id, above.epoch] = since
                known = Verdict.of(above.properties)
                if known is not None:
                    self._views.note(above, PROPERTY, replace(known, since=since).to_json())
        self._views.note(view, PROPERTY, replace(verdict, since=since).to_json())
        self._right_since[key] = since
        return since

    def drop(self, name: str, *, cascade: bool = False) -> int:
        view = self._catalog.relation(name)
        if view.kind != "view":
            raise InvalidStatement(f"{view.kind} {view.name}", "is not a materialized view", "Use DROP TABLE.")
        self.require_unused(view, cascade=cascade)
        return self._views.drop(view)

    def require_unused(self, relation: Relation, *, cascade: bool = False) -> None:
        """What views read is not dropped, unless they go with it."""
        dependents = self._views.dependents(relation)
        if dependents and not cascade:
            names = ", ".join(d.name for d in dependents)
            raise InvalidStatement(
                f"{relation.kind} {relation.name}", f"is used by {names}", "Drop those first, or say CASCADE."
            )
        for dependent in dependents:
            self.drop(dependent.name, cascade=True)

    # -- maintenance -------------------------------------------------------------------------------

    def bring(self, view: Relation, csn: int) -> list[Job]:
        """Maintain a view up to a CSN; the jobs that took, none if it had seen everything already."""
        self.right_since(view)
        return self._jobs.bring(view, csn)

    def maintain(self, view: Relation, csn: int, *, named: bool) -> list[Job]:
        """Bring a view up to date on somebody's wish; a deferred one as far as its mode has it, unless it was named."""
        return self.deferred.maintain(view, named=named) if is_deferred(view) else self.bring(view, csn)

    def step(self, view: Relation, csn: int, *, most_rows: int = JOB_ROWS) -> Job | None:
        """One job towards a CSN, if nobody else is at it."""
        self.right_since(view)
        return self._jobs.step(view, csn, most_rows=most_rows, wait=False)

    def refresh(self, view: Relation) -> Job:
        """Compute a view anew, whatever it has seen; if it was wrong, also all views above it, which took it for right.

        They have a task for it, so that nothing is lost if this ends in between. One that fails on its data does not
        hold up the others; its error is told when they are done.
        """
        job, failed = self._jobs.refresh(view), []
        for above in self._views.above(view) if job.view_rows else ():
            try:
                if is_deferred(above):
                    self.deferred.refresh(above)  # what it shows may be wrong, so that it shows this instead
                else:
                    self.bring(above, self._catalog.snapshot())
            except FreshviewError as error:
                if is_transient(error):
                    raise
                failed.append(error)
        if failed:
            raise failed[0]
        return job

    def candidates(self) -> list[Candidate]:
        """The views that have something to do, as the manager's policies see them; deferred ones when they are due."""
        now, uses, deferred = self._catalog.now(), self._views.uses(), self.deferred.catalog.all()
        found = ((b, self._catalog.relation_by_id(b.view_id)) for b in self._views.backlogs())
        result = []
        for backlog, view in found:
            if view is None:
                continue
            ready, due = True, None
            if is_deferred(view) and view.id in deferred:
                ready, due = policy_of(view).wants_job(deferred[view.id], backlog.oldest_at, now)
            if ready:
                known = candidate(backlog, view, uses.get(view.id), now)
                result.append(known if due is None else replace(known, deadline=due))
        return result

    def advance(self) -> None:
        """Views with nothing to do hold back nothing: they are as good at the newest commit."""
        self._views.advance(self._catalog.snapshot())

    def note_uses(self, uses: Mapping[int, tuple[int, int]]) -> None:
        self._views.note_uses(uses)

    def _work(self, view: Relation, start: Frontier, c1: int, full: bool) -> Work:
        """The change of the stored rows from the frontier to c1."""
        span = Span(self._catalog, self._storage, Point(start.csn, start.stmtsn), Point(c1))
        return self.change(view, span, self._views.stored(view, start.csn), full=full)

    def change(self, view: Relation, span: Span, stored: RelationState, *, full: bool = False) -> Work:
        """The change of a view's stored rows over a span."""
        with self._guard:
            pace = self._paces.setdefault(view.id, Pace())
        working = Working(
            view, self.definition(view), span, stored, lambda small: self._runner_of(view, small=small), pace,
            lambda error: self._events.emit("job.recomputes", view=view.name, error=str(error)),
        )  # fmt: skip
        return working.work(full=full)

    def _make_ready(self, view: Relation, csn: int) -> None:
        """Have a small view's rows at hand, so that the next query finds it as one that was never touched."""
        with suppress(FreshviewError):  # the job stands
            state = self._views.stored(view, csn)
            if state.is_small(LOCAL_ROWS):
                self._user_engine().scan(state)

    # -- inside transactions -----------------------------------------------------------------------

    def inside(self, transaction: Transaction, make_way: Callable[[Iterable[str]], None]) -> Inside:
        """What views are to a transaction, from its begin to its commit."""
        return Inside(self._views, self._storage, self, transaction, self._eager_turn, make_way)

    def sources(self, view: Relation) -> list[Relation]:
        return list(self.definition(view).sources.values())

    # -- reading -----------------------------------------------------------------------------------

    def read_inside(self, view: Relation, transaction: Transaction) -> Frame | None:
        """The view with the writes of a transaction: by their deltas, or else from the definition; None if it has not
        written what the view reads. A deferred view shows the same all the time, without them."""
        inside = transaction.company
        assert isinstance(inside, Inside)
        self.right_since(view)
        if is_deferred(view):
            return self.read_shown(view, inside.seen)
        if not transaction.written.intersection(self._views.inputs(view)):
            return None
        state = inside.state(view) if self.definition(view).incremental else None
        if state is None:
            return self.from_definition(view, transaction.snapshot, transaction.state)
        return self._reader().shown(state)

    def read(self, view: Relation, csn: int, *, freshness: Freshness = None, matching: Matching | None = None) -> Frame:
        """The view's rows at a CSN, or older ones where the reader or a deferred view's own mode allows that.

        `matching` tells what the reader asks of the rows: what does not match may be of an earlier CSN.
        """
        since = self.right_since(view)
        if is_deferred(view):
            return self._read_deferred(view, csn, freshness, matching)
        if freshness == "any" or (isinstance(freshness, timedelta) and self.age(view, csn) <= freshness):
            return self._at(view, self._views.frontier(view), self._reader())
        return self._read_fresh(view, csn, matching) if csn >= since else self.from_definition(view, csn)

    def _read_deferred(self, view: Relation, csn: int, freshness: Freshness, matching: Matching | None) -> Frame:
        """What it shows, unless more is asked for; then the differentials, and the log, as far as that takes."""
        policy = policy_of(view)
        if freshness is None and policy.refresh.kind == "query":
            self.deferred.partial_refresh(view) if policy.partial else self.deferred.refresh(view)
        limit = freshness if isinstance(freshness, timedelta) else None
        if freshness in (None, "any") or (limit is not None and self.deferred.catalog.age(view) <= limit):
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
        state = self.deferred.catalog.shown(view, seen.get(view.id))
        seen[view.id] = state.csn
        return self._reader().shown(state)

    def _with_log(self, view: Relation, left: Pending, csn: int) -> Frame:
        """MV with the log on top, for one reader: a view without differential tables keeps nothing of it."""
        try:
            if not self.definition(view).incremental or self._jobs.reached(self.sources(view), csn) != csn:
                return self.from_definition(view, csn)
            start = left.frontier
            stored = self._views.stored(view, start.csn)
            span = Span(self._catalog, self._storage, Point(start.csn, start.stmtsn), Point(csn))
            work = self.change(view, span, stored, full=left.reset)
        except FreshviewError:
            return self.from_definition(view, csn)
        own = in_memory(Segment(view.id, PENDING, 0, 0, 0, 1), work.rows)
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
                self.bring(view, csn)
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
        settings = json.loads(view.properties["settings"])
        if settings == reader.engine.settings():
            return self._defined(view, csn, state, reader)
        runner = self._runner(settings)  # another session means other things: hand over rows, not a plan
        shown = visible_schema(view)
        return reader.engine.frame(runner.fetch(self._defined(view, csn, state, runner), shown), shown)

    def _defined(self, view: Relation, csn: int, state: States | None, runner: Runner) -> Frame:
        definition = self.definition(view)
        frames = {}
        for name, relation in definition.sources.items():
            if relation.kind == "view":
                frames[name] = self._defined(relation, csn, state, runner)
            elif state is not None:
                frames[name] = runner.engine.scan(state(relation))
            else:
                frames[name] = runner.frame(relation, csn)
        return runner.defined(definition, frames)

    def _reader(self) -> Runner:
        """The session in which the user's queries run."""
        return Runner(self._user_engine(), self._catalog, self._storage)

    def _runner(self, settings: Mapping[str, str], *, small: bool = False) -> Runner:
        """A session of our own under these settings; small ones for small jobs."""
        key = (json.dumps(dict(settings), sort_keys=True), small)
        with self._guard:
            if key not in self._engines:
                self._engines[key] = self._user_engine().sibling(settings, small=small)
            return Runner(self._engines[key], self._catalog, self._storage)

    def _runner_of(self, view: Relation, *, small: bool = False) -> Runner:
        return self._runner(json.loads(view.properties["settings"]), small=small)

    def close(self) -> None:
        for engine in self._engines.values():
            engine.close()

    def frontier(self, view: Relation) -> int:
        return self._views.frontier(view)

    def age(self, view: Relation, csn: int) -> timedelta:
        """How long ago the oldest commit was made that the view has not seen."""
        return pending(self._views, view, csn).age(self._catalog.now())

    def inputs(self, view: Relation) -> list[int]:
        return self._views.inputs(view)

    def history(self, view: Relation | None = None) -> list[Job]:
        return self._views.history(view)

    def difference(self, view: Relation) -> Difference:
        """Rows that the store lacks, and rows it has too many, against the definition at its frontier."""
        pin = self._catalog.begin("query", at=self._views.frontier(view))
        try:
            runner = self._runner_of(view)
            stored = self._at(view, pin.csn, runner)
            return compared(runner.engine, self._defined(view, pin.csn, None, runner), stored, visible_schema(view))
        finally:
            self._catalog.release(pin)

    def invariants(self, view: Relation) -> list[Invariant]:
        """The invariants of the view's scenario (DEFER §3), checked on what is stored."""
        pin = self._catalog.begin("query", at=self._views.frontier(view))
        try:
            runner = self._runner_of(view)
            if is_deferred(view):
                scenario = policy_of(view).scenario
                if scenario == BASE_LOG and self._views.dependents(view):
                    scenario = COMBINED  # for a view above it, it is propagated all the same
                stand, segments = self.deferred.catalog.differential(view)
            else:
                scenario, segments = mode_of(self._views.is_eager(view)), []
                stand = Deferral(pin.csn, pin.csn, 0, 0)
            read = map(self._catalog.relation_by_id, self._views.inputs(view))
            bases = [r for r in read if r is not None and r.kind != "view"]
            checks = Invariants(
                view, visible_schema(view), runner, lambda csn: self._views.stored(view, csn),
                lambda csn: self._defined(view, csn, None, runner), bases,
            )  # fmt: skip
            log = bool(pending(self._views, view, self._catalog.snapshot()).tasks)
            return checks.check(scenario, stand, segments, log)
        finally:
            self._catalog.release(pin)

    def explain(self, view: Relation) -> str:
        """How the view is stored and maintained, operator by operator, and the query a refresh would run."""
        mode = mode_line(self._catalog, view)
        done = [job for job in self._views.history(view) if job.error is None]
        last = done[-1].condense if done else None
        return explained(view.name, self.definition(view), self._views.frontier(view), mode, last)
