"""Views: created, brought up to date, read, checked, explained.

A job (`jobs.py`) takes one view from its frontier c0 to c1. It computes the change of the stored rows, by delta rules
or as the difference between the recomputed definition and what is stored, and shows it by compare-and-set on
the frontier. Whatever goes wrong leaves the last good state in place.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from freshview.catalog.records import PENDING, Frontier, Lease, Relation, RelationState, Segment
from freshview.catalog.views import Job, ViewCatalog
from freshview.catalog.writer import Catalog
from freshview.errors import FreshviewError, InvalidStatement, NotMaintainable, ViewUnusable
from freshview.events import Events
from freshview.maintenance.advice import keeps_lazy
from freshview.maintenance.checking import Difference, compared
from freshview.maintenance.cost import Pace
from freshview.maintenance.definition import (
    Definition,
    analyse,
    check_output_names,
    sources_to_json,
    visible_columns,
)
from freshview.maintenance.determinism import refuse_indeterminate
from freshview.maintenance.explain import explained
from freshview.maintenance.inside import Inside
from freshview.maintenance.jobs import Jobs, give_up, store
from freshview.maintenance.manager import Candidate, candidate, parse_deadline
from freshview.maintenance.overview import mode_line
from freshview.maintenance.relevance import Matching, Relevance
from freshview.maintenance.runner import Frame, Runner
from freshview.maintenance.span import Point, Span
from freshview.maintenance.tasks import JOB_ROWS, pending
from freshview.maintenance.work import Work, Working, estimate_full
from freshview.relation.delta import INSERT, tag
from freshview.relation.schema import Schema
from freshview.sql.binding import bind
from freshview.sql.statements import CreateView
from freshview.storage.store import Storage
from freshview.transactions.transaction import INLINE_BYTES, Transaction

if TYPE_CHECKING:
    from freshview.spark.engine import SparkEngine

States = Callable[[Relation], RelationState]


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
        self._paces: dict[int, Pace] = {}
        self._guard = threading.Lock()
        self._eager_turn = threading.RLock()
        self._jobs = Jobs(catalog, storage, events, self._work)
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
        refresh = _checked_properties(dict(statement.properties))
        pin = self._catalog.begin("view")
        try:
            sources = self._sources(statement.query, pin.csn)
            if existing is not None and any(existing.id == r.id for r in self._closure(sources)):
                raise InvalidStatement(f"view {statement.name}", "its definition would use itself", "Use other tables.")
            csn = self._jobs.reached([r for r in sources.values() if r.kind == "view"], pin.csn)
            settings = self._user_engine().settings()
            runner = self._runner(settings)
            frames = {n: runner.frame(r, csn) for n, r in sources.items()}
            names = tuple(runner.original(statement.query, frames).columns)
            check_output_names(names)
            columns = {n: visible_columns(r) for n, r in sources.items()}
            eager = dict(statement.properties).get("maintenance", "").lower() == "eager"
            if eager:
                self._require_eager_sources(statement.name, list(sources.values()))
            definition = analyse(statement.query, sources, columns, names, refresh, runner.types_of(frames))
            rows = runner.recomputed(definition, frames)
            schema = runner.engine.schema_of(rows, ())
            properties = {
                **dict(statement.properties), "definition": statement.query, "sources": sources_to_json(sources),
                "settings": json.dumps(settings),
                "columns": json.dumps(list(names)), "refresh": refresh,
            }  # fmt: skip
            if existing is not None:
                self.require_unused(existing)
            view_id = self._catalog.reserve_id()
            begun = time.monotonic()
            segments, leases = self._first_rows(runner, rows, view_id, schema)
            self._learn_full(view_id, definition, csn, time.monotonic() - begun)
            bases = {b for r in sources.values() for b in (self._views.bases(r) if r.kind == "view" else [r.id])}
            try:
                view, created = self._views.create(
                    view_id, statement.name, schema, properties, list(sources.values()), sorted(bases), segments,
                    leases, csn, existing, eager=eager,
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
            sources = self._views.sources(view)
            columns = {n: tuple(e["columns"]) for n, e in json.loads(view.properties["sources"]).items()}
            runner = self._runner_of(view)
            frames = {n: runner.empty(r) for n, r in sources.items()}
            names = tuple(json.loads(view.properties["columns"]))
            refresh = view.properties.get("refresh", "auto")
            known = analyse(view.properties["definition"], sources, columns, names, refresh, runner.types_of(frames))
            if known.form is not None and known.form.stored != view.schema.names:
                raise ViewUnusable(
                    f"view {view.name}", "its rows were stored by another version of Freshview, in another form",
                    "Create it again: CREATE OR REPLACE MATERIALIZED VIEW.",
                )  # fmt: skip
            self._definitions[key] = known
        return known

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
        return self._jobs.bring(view, csn)

    def step(self, view: Relation, csn: int, *, most_rows: int = JOB_ROWS) -> Job | None:
        """One job towards a CSN, if nobody else is at it."""
        return self._jobs.step(view, csn, most_rows=most_rows, wait=False)

    def refresh(self, view: Relation) -> Job:
        """Compute a view anew, whatever it has seen."""
        return self._jobs.refresh(view)

    def candidates(self) -> list[Candidate]:
        """The views that have something to do, as the manager's policies see them."""
        now, uses = self._catalog.now(), self._views.uses()
        found = ((b, self._catalog.relation_by_id(b.view_id)) for b in self._views.backlogs())
        return [candidate(b, view, uses.get(view.id), now) for b, view in found if view is not None]

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
            view, self.definition(view), span, stored, lambda small: self._runner_of(view, small=small), pace
        )
        return working.work(full=full)

    # -- inside transactions -----------------------------------------------------------------------

    def inside(self, transaction: Transaction, make_way: Callable[[Iterable[str]], None]) -> Inside:
        """What views are to a transaction, from its begin to its commit."""
        return Inside(self._views, self._storage, self, transaction, self._eager_turn, make_way)

    def sources(self, view: Relation) -> list[Relation]:
        return list(self.definition(view).sources.values())

    def set_eager(self, view: Relation, eager: bool) -> None:
        """Have commits maintain a view from now on, or no more."""
        if eager:
            self._require_eager_sources(view.name, self.sources(view))
            self.bring(view, self._catalog.snapshot())
        elif above := [d.name for d in self._views.dependents(view) if self._views.is_eager(d)]:
            raise NotMaintainable(
                f"view {view.name}", f"the eager view {above[0]} reads it", "Make that one lazy first."
            )
        self._views.set_eager(view, eager)

    def _require_eager_sources(self, name: str, sources: Sequence[Relation]) -> None:
        source = keeps_lazy(sources, self._views.is_eager)
        if source is not None and source.is_external:
            raise NotMaintainable(
                f"view {name}", f"others write {source.name}, so no commit can maintain the view", "Leave it lazy."
            )
        if source is not None:
            raise NotMaintainable(
                f"view {name}", f"it reads {source.name}, which is not eager", f"Make {source.name} eager first."
            )

    # -- reading -----------------------------------------------------------------------------------

    def read_inside(self, view: Relation, transaction: Transaction) -> Frame:
        """The view with the writes of a transaction: by their deltas, or else from the definition."""
        inside = transaction.company
        state = inside.state(view) if isinstance(inside, Inside) and self.definition(view).incremental else None
        if state is None:
            return self.from_definition(view, transaction.snapshot, transaction.state)
        reader = self._reader()
        return reader.visible(view, reader.engine.scan(state))

    def read(self, view: Relation, csn: int, *, fresh: bool = True, matching: Matching | None = None) -> Frame:
        """The view's rows at a CSN: from its store where that is exact, else from its definition.

        `matching` tells what the reader asks of the rows: what does not match may be of an earlier CSN.
        """
        reader = self._reader()
        if not fresh:
            return self._shown(view, self._views.frontier(view), reader)
        left = pending(self._views, view, csn)
        if not left.tasks and left.frontier.readable <= csn:  # nothing to do, which one question tells
            return self._shown(view, csn, reader)
        stored = None
        if matching is not None:
            stored = self._relevance.unaffected(view, left, csn, matching, reader.engine)
        if stored is not None:
            return reader.visible(view, reader.engine.scan(stored))
        if csn >= left.frontier.readable:
            try:
                self.bring(view, csn)
            except FreshviewError:
                return self.from_definition(view, csn)
        at = self._views.stored_at(view, csn)
        return self.from_definition(view, csn) if at is None else self._shown(view, at, reader)

    def _shown(self, view: Relation, csn: int, runner: Runner) -> Frame:
        """What is stored at a CSN, as queries see it."""
        return runner.visible(view, runner.engine.scan(self._views.stored(view, csn)))

    def from_definition(self, view: Relation, csn: int, state: States | None = None) -> Frame:
        """What the definition gives at a CSN, or over states of the caller's (a transaction's)."""
        reader = self._reader()
        settings = json.loads(view.properties["settings"])
        if settings == reader.engine.settings():
            return self._defined(view, csn, state, reader)
        runner = self._runner(settings)  # another session means other things: hand over rows, not a plan
        shown = Schema(tuple(view.schema.column(c) for c in self.definition(view).names))
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

    def bases(self, view: Relation) -> list[int]:
        return self._views.bases(view)

    def history(self, view: Relation | None = None) -> list[Job]:
        return self._views.history(view)

    def set_properties(self, view: Relation, properties: Mapping[str, str]) -> int:
        refresh = _checked_properties(dict(properties))
        merged = {**dict(properties), "refresh": refresh} if "refresh" in properties else dict(properties)
        if merged.get("refresh") == "incremental" and self.definition(view).reason:
            raise NotMaintainable(f"view {view.name}", self.definition(view).hindrance, "Leave 'refresh' at 'auto'.")
        mode = merged.get("maintenance", "").lower()
        if mode in ("lazy", "eager"):  # 'auto' goes on from what it is
            self.set_eager(view, mode == "eager")
        return self._views.set_properties(view, merged)

    def difference(self, view: Relation) -> Difference:
        """Rows that the store lacks, and rows it has too many, against the definition at its frontier."""
        at = self._views.frontier(view)
        runner = self._runner_of(view)
        shown = Schema(tuple(view.schema.column(c) for c in self.definition(view).names))
        return compared(runner.engine, self._defined(view, at, None, runner), self._shown(view, at, runner), shown)

    def explain(self, view: Relation) -> str:
        """How the view is stored and maintained, operator by operator, and the query a refresh would run."""
        mode = mode_line(self._catalog, view)
        done = [job for job in self._views.history(view) if job.error is None]
        last = done[-1].condense if done else None
        return explained(view.name, self.definition(view), self._views.frontier(view), mode, last)


def _checked_properties(properties: dict[str, str]) -> str:
    known = {"refresh": ("auto", "incremental", "full"), "maintenance": ("lazy", "eager", "auto")}
    for name, value in properties.items():
        if name in known and value.lower() not in known[name]:
            raise InvalidStatement(
                f"property '{name}'='{value}'", f"is not among {', '.join(known[name])}", "Choose one of them."
            )
    if "deadline" in properties:
        parse_deadline(properties["deadline"])
    return properties.get("refresh", "auto").lower()
