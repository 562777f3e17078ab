"""Dimension views: views of remote tables, kept from the partial deltas of their sources (PARTIAL §5).

To everything above it, a dimension view is a table that is written by cycles (`cycles`). Here such views are created
and dropped, and it is decided when they are polled.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

import pyarrow as pa

from freshview.catalog.lineage import source_ids
from freshview.catalog.records import REMOTE, Relation
from freshview.catalog.views import ViewCatalog
from freshview.cdc.opening import poll_of
from freshview.cdc.remote import RemoteTable, RemoteTables, installing, snapshots, whole_states
from freshview.cdc.shaping import HOLD
from freshview.definition.analysis import analyse, check_output_names, sources_to_json
from freshview.definition.determinism import refuse_indeterminate, refuse_users_functions
from freshview.definition.known import Definitions, empty_rows
from freshview.definition.verdict import FACT
from freshview.delta.tolerance import Difference
from freshview.errors import FreshviewError, InvalidStatement, NotMaintainable
from freshview.events import Events
from freshview.refresh.runner import Runner
from freshview.relation.conditions import Conditions
from freshview.spark.engines import Engines
from freshview.sql.statements import CreateView
from freshview.storage.store import Storage
from freshview.transactions.transaction import Outcome, Transaction
from freshview.views.cycles import Cycles, NewView
from freshview.views.lifecycle import named_sources
from freshview.views.recomputation import Recomputation, Whole
from freshview.views.shapes import Shape, Shapes, checked_properties


@dataclass
class DimensionViews:
    """Creates and drops the dimension views of one warehouse, and polls them when it is time."""

    views: ViewCatalog
    storage: Storage
    events: Events
    engines: Engines
    definitions: Definitions
    begin: Callable[[], Transaction]
    tables: RemoteTables

    def __post_init__(self) -> None:
        self.shapes = Shapes(self.tables, self.definitions, self._runner)
        self.recomputation = Recomputation(self.shapes, self._runner)
        self.cycles = Cycles(
            self.views, self.storage, self.events, self.begin, self.tables, self.shapes, self.recomputation
        )

    # -- remote tables -----------------------------------------------------------------------------

    def create_table(self, name: str, source: str, table: str, keys: Sequence[str]) -> int:
        """CREATE REMOTE TABLE: name a table of a source; return the CSN."""
        table = table if "." in table else f"public.{table}"
        record, found = self.tables.source(source, table)
        if keys and sorted(map(str.casefold, keys)) != sorted(map(str.casefold, found.schema.key)):
            raise InvalidStatement(
                f"remote table {name}",
                f"the primary key of {source}.{table} is ({', '.join(found.schema.key)})",
                "Name that key, or leave KEYS out.",
            )
        transaction = self.begin()
        try:
            transaction.create(name, found.schema, {}, REMOTE, {"source": record.name, "table": found.name})
            return transaction.commit()
        except BaseException:
            transaction.rollback()
            raise

    def contents(self, relations: Iterable[Relation], asked: Mapping[str, Conditions]) -> dict[str, pa.Table]:
        """The rows of remote tables now, by their names; those of one server in one snapshot.

        Where `asked` has conditions on the rows of a table, rows that do not meet them may be missing.
        """
        tables = [self.tables.open(r) for r in relations]
        with snapshots(tables) as opened:
            return whole_states(tables, opened, asked)

    # -- views -------------------------------------------------------------------------------------

    def all(self) -> list[Relation]:
        """All dimension views."""
        return self.cycles.all()

    def create(self, statement: CreateView) -> Outcome:
        """Create a dimension view with the rows that its tables give now."""
        if statement.or_replace and self.views.catalog.find(statement.name) is not None:
            raise InvalidStatement(
                f"view {statement.name}", "a view of remote tables cannot be replaced", "Drop it, and create it anew."
            )
        self.views.catalog.require_free(statement.name)
        refuse_indeterminate(statement.query)
        new = self._new(statement)
        with installing(self._unread(new.shape.tables)):
            first = self._unread(new.shape.tables)
            try:
                for table in first:
                    self.tables.install(table)
                return self.cycles.run(frozenset(t.server for t in new.shape.tables), new=new)
            except BaseException:
                self._uninstall(t.relation for t in first)
                raise

    def _unread(self, tables: Iterable[RemoteTable]) -> list[RemoteTable]:
        """The tables among these that no view reads yet."""
        return [t for t in tables if self.views.catalog.position(t.relation.id) is None]

    def _uninstall(self, relations: Iterable[Relation]) -> None:
        """Remove the captures of tables that no view reads; one that cannot be removed now is reported."""
        for relation in relations:
            if self.views.catalog.position(relation.id) is None:
                try:
                    self.tables.uninstall(self.tables.open(relation))
                except FreshviewError as error:
                    label = f"{relation.facts['source']}.{relation.facts['table']}"
                    self.events.emit("remote.left", table=label, error=str(error))

    def drop(self, view: Relation) -> int:
        """Drop a dimension view; the positions of tables that no other view reads are forgotten."""
        others = {i for v in self.all() if v.id != view.id for i in source_ids(v).values()}
        unread = [r for r in self._sources(view) if r.id not in others]
        csn = self.views.catalog.drop(view.name, [r.id for r in unread])
        self._uninstall(unread)
        return csn

    def shape(self, view: Relation) -> Shape:
        """A dimension view, ready to be kept."""
        return self.shapes.of_view(view)

    def _new(self, statement: CreateView) -> NewView:
        catalog, user, given = self.views.catalog, self.engines.user(), checked_properties(dict(statement.properties))
        sources = named_sources(catalog, statement.query, catalog.snapshot())
        if held := [n for n, r in sources.items() if r.kind != REMOTE]:
            raise NotMaintainable(
                f"view {statement.name}",
                f"it reads remote tables and {held[0]}, which is kept here: their states are not of one moment",
                f"Create a view of the remote tables alone, and this view over that one; or {HOLD}.",
            )
        settings = user.settings()
        runner = self._runner(settings, small=True)
        refuse_users_functions(statement.query, user.users_functions() | runner.engine.users_functions())
        frames = {n: empty_rows(runner.engine, r) for n, r in sources.items()}
        names = tuple(runner.original(statement.query, frames).columns)
        check_output_names(names)
        columns = {n: r.schema.names for n, r in sources.items()}
        self.shapes.definitions.refuse_undetermined(statement.query, sources, columns, settings)
        read = analyse(statement.query, sources, columns, names, "auto", runner.types_of(frames))
        definition, verdict = self.shapes.definitions.asked(read, statement.name, settings, given)
        shape = self.shapes.of(statement.name, definition, settings, given)
        facts = {"definition": statement.query, "sources": sources_to_json(sources)}
        facts |= {"settings": json.dumps(settings), "columns": json.dumps(list(names)), FACT: verdict.to_json()}
        return NewView(statement.name, definition, shape, given, facts)

    def _runner(self, settings: Mapping[str, str], *, small: bool) -> Runner:
        return Runner(self.engines.under(settings, small=small), self.views.catalog, self.storage)

    # -- cycles ------------------------------------------------------------------------------------

    def refresh(self, views: Iterable[Relation], *, full: bool = False) -> Outcome:
        """Bring dimension views, and all others of their servers, to the present state of the servers.

        `full`: install the captures anew, and compute the views from all rows of their tables. A view that was left
        behind is computed from them in any case; CaptureFailed if that fails again, after the others were refreshed.
        """
        wanted = list(views)
        ids = [v.id for v in wanted]
        outcomes = [self.cycles.run(group, anew=full, repair=ids) for group in self.cycles.groups(wanted)]
        self.cycles.require_kept(wanted)
        return Outcome(sum(o.rows for o in outcomes), max((o.csn or 0 for o in outcomes), default=None))

    def refresh_for(self, names: Callable[[], Iterable[str]], freshness: object = None) -> None:
        """Poll before a query, for the dimension views below the relations it names whose source asks for that."""
        if freshness == "any" or not (every := self.all()):
            return
        read = self.below(names(), every)
        wanted = [v for v in read if self._poll_mode(v) == "on query"]
        if isinstance(freshness, timedelta):
            now, most, polled_at = time.monotonic(), freshness.total_seconds(), self.cycles.polled_at
            wanted = [v for v in wanted if now - polled_at.get(v.id, -1e9) > most]
        self.poll(wanted)
        self.cycles.require_kept(read)

    def poll(self, views: Sequence[Relation]) -> None:
        """Run the cycles of views, without computing those that were left behind: that reads whole tables."""
        for group in self.cycles.groups(views) if views else ():
            self.cycles.run(group)

    def below(self, names: Iterable[str], every: Sequence[Relation] | None = None) -> list[Relation]:
        """The dimension views among these relations and what they read."""
        every = self.all() if every is None else every
        ids: set[int] = set()
        for found in filter(None, map(self.views.catalog.find, names)) if every else ():
            ids |= {found.id, *(self.views.inputs(found) if found.kind == "view" else ())}
        return [v for v in every if v.id in ids]

    def refresh_due(self) -> None:
        """Poll the sources whose time has come; an error is reported as an event, and the others are polled."""
        due = []
        for view in self.all():
            every = self._poll_mode(view)
            last = self.cycles.polled_at.get(view.id)
            if isinstance(every, timedelta) and (last is None or time.monotonic() - last >= every.total_seconds()):
                due.append(view)
        for view in due:
            try:
                self.poll([view])
                self.cycles.require_kept([view])
            except FreshviewError as error:
                self.cycles.polled_at[view.id] = time.monotonic()
                self.events.emit("remote.failed", view=view.name, error=str(error))

    def _poll_mode(self, view: Relation) -> timedelta | str:
        """When the view is polled: by the options of its sources, most often first."""
        modes = [poll_of(self.tables.record(r).options) for r in self._sources(view)]
        spans = [m for m in modes if isinstance(m, timedelta)]
        return "on query" if "on query" in modes else min(spans) if spans else "manual"

    def _sources(self, view: Relation) -> list[Relation]:
        """The remote tables of a view."""
        return list(self.views.catalog.relations_by_id(source_ids(view).values()).values())

    def difference(self, view: Relation) -> Difference:
        """Compare a view with its definition over the states of its tables, after a cycle in the same snapshots."""
        found: list[Difference] = []

        def inspect(whole: Whole, csn: int) -> None:
            self.cycles.require_kept([view])
            found.append(self.recomputation.difference(view, whole, csn))

        (group,) = self.cycles.groups([view])
        self.cycles.run(group, inspect=(self._sources(view), inspect))
        return found[-1]

    def close(self) -> None:
        self.shapes.close()
