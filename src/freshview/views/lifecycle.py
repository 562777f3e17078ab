"""CREATE, CREATE OR REPLACE and DROP of views."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass

from freshview.catalog.lineage import AUXILIARY, is_auxiliary
from freshview.catalog.records import Lease, Relation, Segment
from freshview.catalog.rewritings import RewritingCatalog
from freshview.catalog.views import ViewCatalog
from freshview.catalog.writer import Catalog
from freshview.definition.analysis import analyse, check_output_names, sources_to_json, visible_columns
from freshview.definition.determinism import refuse_indeterminate, refuse_users_functions
from freshview.definition.known import Definitions
from freshview.definition.properties import DEFERRED, checked_refresh, commits_maintain, mode_in
from freshview.definition.rewriting import Auxiliary
from freshview.definition.verdict import FACT
from freshview.errors import InvalidStatement, NotMaintainable
from freshview.events import Events
from freshview.refresh.changing import learnt_at_creation, rates_in
from freshview.refresh.jobs import JobRunner, give_up, store
from freshview.refresh.runner import Runner
from freshview.relation.delta import INSERT, tag
from freshview.relation.schema import Schema
from freshview.relation.types import quote
from freshview.spark.engines import Engines
from freshview.spark.running import Frame
from freshview.sql.binding import bind, refuse_foreign
from freshview.sql.statements import CreateView
from freshview.storage.reader import LOCAL_ROWS, rows_in_files
from freshview.storage.segments import fits_inline, in_files
from freshview.storage.store import Storage
from freshview.views.modes import Modes


@dataclass(frozen=True)
class Lifecycle:
    """Creates and drops the views of one warehouse."""

    views: ViewCatalog
    storage: Storage
    events: Events
    engines: Engines
    definitions: Definitions
    jobs: JobRunner
    modes: Modes

    def create(self, statement: CreateView, auxiliary: Auxiliary | None = None) -> tuple[int, int]:
        """Create a view with its rows at one snapshot; return (rows, CSN). `auxiliary`: the optimiser stores it."""
        existing = self.views.catalog.find(statement.name)
        if existing is not None and is_auxiliary(existing):
            self.views.catalog.require_free(statement.name)
        if existing is not None and not (statement.or_replace and existing.kind == "view"):
            self.views.catalog.require_free(statement.name)
        refuse_indeterminate(statement.query)
        given = dict(statement.properties)
        refresh = checked_refresh(given, given)
        pin = self.views.catalog.begin("view")
        try:
            sources = named_sources(self.views.catalog, statement.query, pin.csn)
            if existing is not None and any(existing.id == r.id for r in self._closure(sources)):
                raise InvalidStatement(f"view {statement.name}", "its definition would use itself", "Use other tables.")
            if auxiliary is None and (hidden := [r.name for r in sources.values() if is_auxiliary(r)]):
                cause = f"{hidden[0]} is an auxiliary view, which comes and goes with the optimiser's choices"
                raise InvalidStatement(f"view {statement.name}", cause, "Read the tables that it is made of.")
            csn = self.jobs.reached(sources.values(), pin.csn)
            user = self.engines.user()
            settings = user.settings() if auxiliary is None else dict(auxiliary.settings)
            states = {n: self.views.catalog.state(r, csn) for n, r in sources.items()}
            small = all(state.is_small(LOCAL_ROWS) for state in states.values())
            runner = Runner(self.engines.under(settings, small=small), self.views.catalog, self.storage)
            refuse_users_functions(statement.query, user.users_functions() | runner.engine.users_functions())
            frames = {n: runner.visible(state) for n, state in states.items()}
            names = tuple(runner.original(statement.query, frames).columns)
            check_output_names(names)
            columns = {n: visible_columns(r) for n, r in sources.items()}
            eager = commits_maintain(given)
            if eager:
                self.modes.require_eager_sources(statement.name, sources.values())
            self.definitions.refuse_undetermined(statement.query, sources, columns, settings)
            read = analyse(statement.query, sources, columns, names, refresh, runner.types_of(frames))
            definition, verdict = self.definitions.asked(read, statement.name, settings, given)
            rows = runner.recomputed(definition, frames)
            schema = runner.engine.schema_of(rows, definition.key)
            facts = {"definition": statement.query, "sources": sources_to_json(sources)}
            facts |= {"settings": json.dumps(settings), "columns": json.dumps(list(names)), FACT: verdict.to_json()}
            facts |= {AUXILIARY: auxiliary.to_json()} if auxiliary is not None else {}
            if auxiliary is not None and auxiliary.sorted_by and not small:
                rows = rows.sort(quote(auxiliary.sorted_by))
            if existing is not None:
                self.require_unused(existing)
            view_id = self.views.catalog.reserve_id()
            begun = time.monotonic()
            segments, leases = self._first_rows(runner, rows, view_id, schema, small=small)
            took = time.monotonic() - begun
            rates = rates_in(self.views.catalog)
            learnt = learnt_at_creation(definition, lambda n: rows_in_files(states[n]), took, rates)
            try:
                new = (view_id, statement.name, schema, {**given, "refresh": refresh}, facts, list(sources.values()))
                deferred = mode_in(given) == DEFERRED
                rows_and_place = (segments, leases, csn, existing)
                view, created = self.views.create(*new, *rows_and_place, eager=eager, deferred=deferred, factors=learnt)
            except BaseException:
                give_up(self.views.catalog, self.storage, view_id, segments, leases)
                raise
            count = sum(s.rows for s in segments)
            self.events.emit("view.created", view=view.name, rows=count)
            if existing is not None:
                self.drop_unread()
            return count, created
        finally:
            self.views.catalog.release(pin)

    def _first_rows(
        self, runner: Runner, rows: Frame, view_id: int, schema: Schema, *, small: bool
    ) -> tuple[list[Segment], list[str]]:
        """Store the rows of a new view: over `small` sources they are fetched if they are few; else Spark writes them,
        and the files stay if they are large. Return the segments and the leases."""
        if small:
            table = runner.fetch(rows.limit(LOCAL_ROWS + 1), schema, small=True)
            if table.num_rows <= LOCAL_ROWS:
                return store(self.views.catalog, self.storage, view_id, tag(table, schema, INSERT, 1))
        lease = self.views.catalog.lease(view_id, self.storage.layout.new_folder("bulk"))
        assert lease is not None
        try:
            files = runner.engine.write(rows, view_id, lease.path, "view")
            segment = in_files(view_id, files, stmtsn=1, action=INSERT)
            if not fits_inline(segment.size):
                return [segment], [lease.id]
            table = runner.read(view_id, files, schema)
        except BaseException:
            self._drop_folder(view_id, lease)
            raise
        self._drop_folder(view_id, lease)
        return store(self.views.catalog, self.storage, view_id, tag(table, schema, INSERT, 1))

    def _drop_folder(self, view_id: int, lease: Lease) -> None:
        self.storage.discard(view_id, lease.path)
        self.views.catalog.drop_leases([lease.id])

    def _closure(self, sources: Mapping[str, Relation]) -> list[Relation]:
        """The sources, and all relations that the views among them read."""
        result = list(sources.values())
        for relation in result:
            if relation.kind == "view":
                result += [r for r in self.definitions.of(relation).sources.values() if r not in result]
        return result

    def drop(self, name: str, *, cascade: bool = False) -> int:
        view = self.views.catalog.relation(name)
        if view.kind != "view":
            raise InvalidStatement(f"{view.kind} {view.name}", "is not a materialized view", "Use DROP TABLE.")
        self.require_unused(view, cascade=cascade)
        csn = self.views.drop(view)
        self.drop_unread()
        return csn

    def require_unused(self, relation: Relation, *, cascade: bool = False) -> None:
        """Raise if views read a relation that is to be dropped; with `cascade`, drop those views instead.

        Auxiliary views are dropped in any case, and views that are maintained from the relation by a rewriting are
        maintained by their own text from now on.
        """
        dependents = self.views.dependents(relation)
        if not cascade and (users := [d.name for d in dependents if not is_auxiliary(d)]):
            what = f"{relation.kind} {relation.name}"
            raise InvalidStatement(what, f"is used by {', '.join(users)}", "Drop those first, or say CASCADE.")
        for view in self._rewritings.rewritten_over(relation):
            self._rewritings.detach(view)
        for dependent in dependents:
            if self.views.catalog.find(dependent.name) is not None:  # else it went with another one
                self.drop(dependent.name, cascade=True)

    def drop_unread(self) -> list[Relation]:
        """Drop the auxiliary views that no view reads, unless a choice is being applied, which does so; return them."""
        if not self._rewritings.auxiliaries():
            return []
        with self._rewritings.alone() as is_alone:
            dropped = self._rewritings.drop_unread() if is_alone else []
        for view in dropped:
            self.events.emit("auxiliary.dropped", view=view.name)
        return dropped

    @property
    def _rewritings(self) -> RewritingCatalog:
        return RewritingCatalog(self.views)


def named_sources(catalog: Catalog, text: str, csn: int) -> dict[str, Relation]:
    """The relations that a definition names; raise if it reads anything else."""
    found: dict[str, Relation] = {}

    def is_ours(name: str) -> bool:
        found[name] = catalog.relation(name, csn)
        return True

    bound = bind(text, is_ours)
    refuse_foreign(bound)
    if any(ref.version or ref.timestamp for ref in bound.tables.values()):
        remedy = "Leave VERSION and TIMESTAMP AS OF out."
        raise NotMaintainable("view", "its definition reads a fixed version", remedy)
    return found
