"""Dimension views: views of remote tables, kept from the partial deltas of their sources (PARTIAL §5).

To everything above it, a dimension view is a table that is written by cycles. One cycle takes all dimension views of
one server a step further:

    poll        the changes of all their tables since the stored positions, and the states that the rules ask for, in
                one snapshot of the server
    propagate   the delta rules, for each view
    commit      the delta rows of all views and the new positions, in one catalog transaction
    confirm     the server may forget what lies before the positions

Law: the views show the server's state at the stored positions, all at once, whatever dies between two of these steps. A
position is stored with a turn, which each commit counts up: a cycle that did not see a view that was created meanwhile
fails, and is repeated.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

import pyarrow as pa

from freshview.catalog.positions import Move
from freshview.catalog.records import DIMENSION, REMOTE, Relation
from freshview.catalog.views import ViewCatalog, source_ids
from freshview.cdc.model import PartialDelta
from freshview.cdc.opening import poll_of
from freshview.cdc.remote import RemoteTable, RemoteTables, States, by_server, one_snapshot, whole_states
from freshview.cdc.rules import propagate
from freshview.cdc.shaping import HOLD
from freshview.cdc.source import Poll
from freshview.definition.analysis import Definition, analyse, check_output_names, sources_to_json, visible_schema
from freshview.definition.determinism import refuse_indeterminate, refuse_users_functions
from freshview.definition.known import Definitions, empty_rows, settings_of
from freshview.definition.verdict import FACT
from freshview.delta.tolerance import Difference
from freshview.errors import CaptureFailed, FreshviewError, InvalidStatement, NotMaintainable, WriteConflict
from freshview.events import Events
from freshview.refresh.runner import Runner
from freshview.relation.delta import INSERT, tag
from freshview.spark.engines import Engines
from freshview.spark.running import Frame
from freshview.sql.statements import CreateView
from freshview.storage.reader import LOCAL_ROWS
from freshview.storage.store import Storage
from freshview.transactions.transaction import Outcome, Transaction
from freshview.views.invariants import compared
from freshview.views.lifecycle import named_sources
from freshview.views.shapes import Shape, Shapes, all_rows, checked_properties

_RETRIES = 5  # of a cycle that another process overtook
_IDLE_SECONDS = 60.0  # after which positions move although nothing changed, so that the server can forget its log


@dataclass(frozen=True)
class Cycle:
    """What one cycle did to one view: the changes of its tables by set, its own, and what was fetched."""

    tables: Mapping[str, Mapping[str, int]]
    view: Mapping[str, int]
    fetched_rows: int
    fetched_bytes: int
    seconds: float


@dataclass(frozen=True)
class _New:
    """A view that is to be created."""

    name: str
    definition: Definition
    shape: Shape
    properties: Mapping[str, str]
    facts: Mapping[str, str]


@dataclass(frozen=True)
class _Polled:
    """What was read in one snapshot: the changes of tables, the deltas of views, and whole states if they were asked
    for."""

    polls: Mapping[str, Poll]
    deltas: Mapping[int, PartialDelta]
    whole: Mapping[str, pa.Table]
    states: States

    @property
    def has_changes(self) -> bool:
        return any(p.delta.num_changes for p in self.polls.values())


@dataclass(frozen=True)
class _Position:
    """The position of a remote table as it is stored."""

    text: str | None = None
    turn: int = 0
    at: str | None = None


@dataclass
class DimensionViews:
    """Creates and keeps the dimension views of one warehouse."""

    views: ViewCatalog
    storage: Storage
    events: Events
    engines: Engines
    definitions: Definitions
    begin: Callable[[], Transaction]
    tables: RemoteTables
    last: dict[int, Cycle] = field(default_factory=dict)  # the last cycle of each view that changed a table of it
    _known: dict[tuple[int, int], Shape] = field(default_factory=dict)
    _moved_at: dict[int, float] = field(default_factory=dict)
    _polled_at: dict[int, float] = field(default_factory=dict)
    _turn: threading.RLock = field(default_factory=threading.RLock)

    def __post_init__(self) -> None:
        self._shapes = Shapes(self.tables, self._runner)

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

    def contents(self, relations: Collection[Relation]) -> dict[str, pa.Table]:
        """All rows of remote tables now, by their names; those of one server in one snapshot."""
        found: dict[str, pa.Table] = {}
        for group in by_server([self.tables.open(r) for r in relations]):
            with one_snapshot(group) as snapshot:
                found |= whole_states(group, snapshot)
        return found

    # -- views -------------------------------------------------------------------------------------

    def all(self) -> list[Relation]:
        """All dimension views."""
        with self.views.catalog.database.read() as c:
            return self.views.catalog.relations_in(c, kind=DIMENSION)

    def create(self, statement: CreateView) -> Outcome:
        """Create a dimension view with the rows that its tables give now."""
        if statement.or_replace and self.views.catalog.find(statement.name) is not None:
            raise InvalidStatement(
                f"view {statement.name}", "a view of remote tables cannot be replaced", "Drop it, and create it anew."
            )
        self.views.catalog.require_free(statement.name)
        refuse_indeterminate(statement.query)
        new = self._new(statement)
        first = [t for t in new.shape.tables if self._position(t).text is None]
        try:
            for table in first:
                self.tables.install(table)
            return self._run(list(new.shape.tables), new=new)
        except BaseException:
            self._uninstall(first)
            raise

    def _uninstall(self, tables: Iterable[RemoteTable]) -> None:
        """Remove the captures of tables that no view reads; one that cannot be removed now is reported."""
        for table in tables:
            if self._position(table).text is None:
                try:
                    self.tables.uninstall(table)
                except FreshviewError as error:
                    self.events.emit("remote.left", table=table.label, error=str(error))

    def drop(self, view: Relation) -> int:
        """Drop a dimension view; the positions of tables that no other view reads are forgotten."""
        others = {i for v in self.all() if v.id != view.id for i in source_ids(v).values()}
        unread = [r for r in self._sources(view) if r.id not in others]
        csn = self.views.catalog.drop(view.name, [r.id for r in unread])
        self._uninstall(map(self.tables.open, unread))
        return csn

    def shape(self, view: Relation) -> Shape:
        """A dimension view, ready to be kept; analysed once per process."""
        key = (view.id, view.epoch)
        if key not in self._known:
            definition, settings = self.definitions.of(view), settings_of(view)
            self._known[key] = self._shapes.of(view.name, definition, settings, view.properties)
        return self._known[key]

    def _new(self, statement: CreateView) -> _New:
        catalog, user, given = self.views.catalog, self.engines.user(), checked_properties(dict(statement.properties))
        sources = named_sources(catalog, statement.query, catalog.snapshot())
        if held := [n for n, r in sources.items() if r.kind != REMOTE]:
            raise NotMaintainable(
                f"view {statement.name}",
                f"it reads remote tables and {held[0]}, which is kept here: their states are not of one moment",
                f"Create a view of the remote tables alone, and this view over that one; or {HOLD}.",
            )
        refuse_users_functions(statement.query, user.users_functions())
        settings = user.settings()
        runner = self._runner(settings, small=True)
        frames = {n: empty_rows(runner.engine, r) for n, r in sources.items()}
        names = tuple(runner.original(statement.query, frames).columns)
        check_output_names(names)
        columns = {n: r.schema.names for n, r in sources.items()}
        read = analyse(statement.query, sources, columns, names, "auto", runner.types_of(frames))
        definition, verdict = self.definitions.asked(read, statement.name, settings, given)
        shape = self._shapes.of(statement.name, definition, settings, given)
        facts = {"definition": statement.query, "sources": sources_to_json(sources)}
        facts |= {"settings": json.dumps(settings), "columns": json.dumps(list(names)), FACT: verdict.to_json()}
        return _New(statement.name, definition, shape, given, facts)

    def _runner(self, settings: Mapping[str, str], *, small: bool) -> Runner:
        return Runner(self.engines.under(settings, small=small), self.views.catalog, self.storage)

    # -- cycles ------------------------------------------------------------------------------------

    def refresh(self, views: Iterable[Relation]) -> Outcome:
        """Bring dimension views, and all others of their servers, to the present state of the servers."""
        tables = {t.relation.id: t for v in views for t in self.shape(v).tables}
        outcomes = [self._run(group) for group in by_server(list(tables.values()))]
        return Outcome(sum(o.rows for o in outcomes), max((o.csn or 0 for o in outcomes), default=None))

    def refresh_for(self, names: Callable[[], Iterable[str]], freshness: object = None) -> None:
        """Poll before a query, for the dimension views below the relations it names whose source asks for that."""
        if freshness == "any" or not (every := self.all()):
            return
        wanted = [v for v in self.below(names(), every) if self._poll_mode(v) == "on query"]
        if isinstance(freshness, timedelta):
            wanted = [
                v for v in wanted if time.monotonic() - self._polled_at.get(v.id, -1e9) > freshness.total_seconds()
            ]
        self.refresh(wanted)

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
            last = self._polled_at.get(view.id)
            if isinstance(every, timedelta) and (last is None or time.monotonic() - last >= every.total_seconds()):
                due.append(view)
        for view in due:
            try:
                self.refresh([view])
            except FreshviewError as error:
                self._polled_at[view.id] = time.monotonic()
                self.events.emit("remote.failed", view=view.name, error=str(error))

    def _poll_mode(self, view: Relation) -> timedelta | str:
        """When the view is polled: as its sources say, most often first."""
        modes = [poll_of(self.tables.record(r).options) for r in self._sources(view)]
        spans = [m for m in modes if isinstance(m, timedelta)]
        return "on query" if "on query" in modes else min(spans) if spans else "manual"

    def _sources(self, view: Relation) -> list[Relation]:
        """The remote tables of a view."""
        return list(self.views.catalog.relations_by_id(source_ids(view).values()).values())

    def difference(self, view: Relation) -> Difference:
        """Compare a view with its definition over the states of its tables, after a cycle in the same snapshot."""
        found: list[Difference] = []

        def inspect(whole: Mapping[str, pa.Table], csn: int) -> None:
            settings = settings_of(view)
            runner = self._runner(settings, small=False)
            defined = self._defined(runner, self.definitions.of(view), whole)
            stored = runner.frame(view, csn)
            found.append(compared(runner.engine, defined, stored, visible_schema(view)))

        self._run(list(self.shape(view).tables), inspect=inspect)
        return found[-1]

    def _run(
        self,
        tables: list[RemoteTable],
        new: _New | None = None,
        inspect: Callable[[Mapping[str, pa.Table], int], None] | None = None,
    ) -> Outcome:
        """One cycle of the server of these tables; again if another process has moved a position meanwhile."""
        with self._turn:
            for attempt in range(_RETRIES):
                try:
                    return self._cycle(tables, new, inspect)
                except WriteConflict:
                    if attempt == _RETRIES - 1:
                        raise
        raise AssertionError("unreachable")

    def _cycle(
        self,
        tables: list[RemoteTable],
        new: _New | None,
        inspect: Callable[[Mapping[str, pa.Table], int], None] | None,
    ) -> Outcome:
        begun, server = time.monotonic(), tables[0].server
        every = [self.tables.open(r) for r in self.tables.relations() if self.tables.server(r) == server]
        positions = {t.relation.name: self._position(t) for t in every}
        # After the positions: a view that is created from here on moves them.
        views = [v for v in self.all() if any(self.tables.server(r) == server for r in self._sources(v))]
        read = [t for t in every if positions[t.relation.name].text or (new is not None and t in new.shape.tables)]
        polled = self._polled(read, positions, views, tables if new or inspect else [])
        is_idle = not (polled.has_changes or new or inspect)
        if is_idle and all(begun - self._moved_at.get(t.relation.id, begun - 1e9) < _IDLE_SECONDS for t in read):
            self._note(views, polled, begun)
            return Outcome(0, self.views.catalog.snapshot())
        moves = [
            Move(
                t.relation.id, t.relation.name, t.label, positions[t.relation.name].text, _stored(polled, t, positions)
            )
            for t in read
        ]
        outcome = self._commit(views, polled, new, moves)
        self.events.emit("remote.committed", csn=outcome.csn)
        for table in read:
            table.table.confirm(polled.polls[table.relation.name].position)
            self._moved_at[table.relation.id] = begun
        self._note(views, polled, begun)
        if inspect is not None:
            assert outcome.csn is not None
            inspect(polled.whole, outcome.csn)
        return outcome

    def _polled(
        self,
        read: Sequence[RemoteTable],
        positions: Mapping[str, _Position],
        views: Sequence[Relation],
        whole: Sequence[RemoteTable],
    ) -> _Polled:
        with one_snapshot(read) as snapshot:
            polls = {t.relation.name: t.poll_in(snapshot, positions[t.relation.name].at) for t in read}
            states = States(snapshot, read)
            changed = {n: p.delta for n, p in polls.items() if positions[n].text and p.delta.num_changes}
            for delta in changed.values():
                for rows in delta.sets.values():
                    states.count(rows)
            deltas = {}
            for view in views:
                shape = self.shape(view)
                own = {t.relation.name: changed[t.relation.name] for t in shape.tables if t.relation.name in changed}
                if own:
                    deltas[view.id] = self._propagated(view, shape, own, states)
            self.events.emit("remote.polled", tables=len(read))
            first = {n: all_rows(p.delta) for n, p in polls.items() if not positions[n].text}
            later = [t for t in whole if t.relation.name not in first]
            return _Polled(polls, deltas, {**first, **whole_states(later, snapshot)}, states)

    def _propagated(
        self, view: Relation, shape: Shape, deltas: Mapping[str, PartialDelta], states: States
    ) -> PartialDelta:
        try:
            return propagate(shape.node, view.name, deltas, states, effectiveness=shape.effectiveness)
        except CaptureFailed:
            raise
        except FreshviewError as error:  # of an expression: the other views of the server wait too
            raise CaptureFailed(
                f"dimension view {view.name}",
                f"a changed row cannot be computed ({error.cause})",
                "Correct the row at the source, or drop the view: until then no view of this server moves.",
            ) from error

    def _commit(self, views: Sequence[Relation], polled: _Polled, new: _New | None, moves: Sequence[Move]) -> Outcome:
        transaction = self.begin()
        rows = 0
        try:
            for view in views:
                if view.id in polled.deltas:
                    delta = self.shape(view).rows(polled.deltas[view.id], transaction.next_stmtsn)
                    rows += transaction.apply_delta(view, delta)
            if new is not None:
                rows = self._create(transaction, new, polled.whole)
            for move in moves:
                transaction.move_position(move)
            return Outcome(rows, transaction.commit())
        except BaseException:
            transaction.rollback()
            raise

    def _create(self, transaction: Transaction, new: _New, whole: Mapping[str, pa.Table]) -> int:
        settings = json.loads(new.facts["settings"])
        small = sum(rows.num_rows for rows in whole.values()) <= LOCAL_ROWS
        runner = self._runner(settings, small=small)
        defined = self._defined(runner, new.definition, whole)
        found = [(c.name, c.type) for c in runner.engine.schema_of(defined, ()).columns]
        if found != [(c.name, c.type) for c in new.shape.schema.columns]:
            given = ", ".join(f"{name} {type_}" for name, type_ in found)
            wanted = ", ".join(f"{c.name} {c.type}" for c in new.shape.schema.columns)
            raise NotMaintainable(f"view {new.name}", f"Spark gives ({given}), its rules ({wanted})", "Add casts.")
        rows = new.shape.schema.conform(runner.fetch(defined, new.shape.schema, small=small))
        relation = transaction.create(new.name, new.shape.schema, new.properties, DIMENSION, new.facts)
        return transaction.apply_delta(relation, tag(rows, new.shape.schema, INSERT, transaction.next_stmtsn))

    def _defined(self, runner: Runner, definition: Definition, whole: Mapping[str, pa.Table]) -> Frame:
        """The definition over whole states of its tables, by Spark."""
        frames = {n: runner.engine.frame(whole[r.name], r.schema) for n, r in definition.sources.items()}
        return runner.original(definition.text, frames)

    def _position(self, table: RemoteTable) -> _Position:
        known = self.views.catalog.position(table.relation.id)
        if known is None:
            return _Position()
        stored = json.loads(known[1])
        return _Position(known[1], stored["turn"], stored["position"])

    def _note(self, views: Sequence[Relation], polled: _Polled, begun: float) -> None:
        took, states = time.monotonic() - begun, polled.states
        for view in views:
            self._polled_at[view.id] = begun
            if view.id in polled.deltas:
                tables = {t.relation.name: _sizes(polled.polls[t.relation.name].delta) for t in self.shape(view).tables}
                fetched = states.fetched_rows, states.fetched_bytes
                self.last[view.id] = Cycle(tables, _sizes(polled.deltas[view.id]), *fetched, took)

    def close(self) -> None:
        self._shapes.close()


def _stored(polled: _Polled, table: RemoteTable, positions: Mapping[str, _Position]) -> str:
    name = table.relation.name
    return json.dumps({"turn": positions[name].turn + 1, "position": polled.polls[name].position})


def _sizes(delta: PartialDelta) -> dict[str, int]:
    return {name: rows.num_rows for name, rows in delta.sets.items() if rows.num_rows}
