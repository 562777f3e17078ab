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

Where changes were lost at the server (a truncated table, a dropped slot, an ALTER, a failover), no cycle succeeds. Then
`refresh(full=True)` begins anew for all dimension views of the server: it installs the captures, reads the tables in
one snapshot, and commits the differences between the stored rows and the definitions with the positions.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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

_Server = frozenset[tuple[str, str]]  # what its connection string says
# Tables whose whole states are wanted, and what is called with these and the CSN of the commit.
_Inspect = tuple[Sequence[Relation], Callable[[Mapping[str, pa.Table], int], None]]
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

    @property
    def sources(self) -> list[Relation]:
        return [t.relation for t in self.shape.tables]


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
        first = [t for t in new.shape.tables if self._position(t.relation).text is None]
        try:
            for table in first:
                self.tables.install(table)
            return self._run(new.shape.tables[0].server, new=new)
        except BaseException:
            self._uninstall(t.relation for t in first)
            raise

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

    def refresh(self, views: Iterable[Relation], *, full: bool = False) -> Outcome:
        """Bring dimension views, and all others of their servers, to the present state of the servers.

        `full`: install the captures anew, and compute the views from all rows of their tables.
        """
        servers = dict.fromkeys(self.tables.server(r) for v in views for r in self._sources(v))
        outcomes = [self._run(server, anew=full) for server in servers]
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

    def _server(self, view: Relation) -> _Server:
        """The server of a view; its tables are of one."""
        return self.tables.server(self._sources(view)[0])

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

        self._run(self._server(view), inspect=(self._sources(view), inspect))
        return found[-1]

    def _run(
        self, server: _Server, *, new: _New | None = None, inspect: _Inspect | None = None, anew: bool = False
    ) -> Outcome:
        """One cycle of a server; again if another process has moved a position meanwhile."""
        with self._turn:
            for attempt in range(_RETRIES):
                try:
                    return self._cycle(server, new, inspect, anew=anew)
                except WriteConflict:
                    if attempt == _RETRIES - 1:
                        raise
                except CaptureFailed:
                    self._forget(server)  # another process may set it right, for tables as they are then
                    raise
        raise AssertionError("unreachable")

    def _forget(self, server: _Server) -> None:
        """Have the tables and views of a server opened anew."""
        self.tables.forget(r for r in self.tables.relations() if self.tables.server(r) == server)
        self._known.clear()

    def _cycle(self, server: _Server, new: _New | None, inspect: _Inspect | None, *, anew: bool) -> Outcome:
        begun = time.monotonic()
        relations = [r for r in self.tables.relations() if self.tables.server(r) == server]
        positions = {r.name: self._position(r) for r in relations}
        # After the positions: a view that is created from here on moves them.
        views = [v for v in self.all() if self._server(v) == server]
        first = {t.relation.id for t in new.shape.tables} if new is not None else set()
        if anew:
            self._forget(server)
        read = [self.tables.open(r) for r in relations if positions[r.name].text or r.id in first]
        if anew:
            for table in read:
                self.tables.install(table)
            positions = {name: replace(position, at=None) for name, position in positions.items()}
        polled = self._polled(read, positions, views, inspect[0] if inspect else new.sources if new else ())
        is_idle = not (polled.has_changes or new or inspect or anew)
        if is_idle and all(begun - self._moved_at.get(t.relation.id, begun - 1e9) < _IDLE_SECONDS for t in read):
            self._note(views, polled, begun)
            return Outcome(0, self.views.catalog.snapshot())
        now, moves = self.views.catalog.now(), []
        for t in read:
            known, after = positions[t.relation.name], polled.polls[t.relation.name].position
            text = json.dumps({"turn": known.turn + 1, "position": after, "at": now})
            moves.append(Move(t.relation.id, t.relation.name, t.label, known.text, text))
        outcome = self._commit(views, polled, new, moves, anew=anew)
        self.events.emit("remote.committed", csn=outcome.csn)
        for table in read:
            table.table.confirm(polled.polls[table.relation.name].position)
            self._moved_at[table.relation.id] = begun
        self._note(views, polled, begun)
        if inspect is not None:
            assert outcome.csn is not None
            inspect[1](polled.whole, outcome.csn)
        return outcome

    def _polled(
        self,
        read: Sequence[RemoteTable],
        positions: Mapping[str, _Position],
        views: Sequence[Relation],
        whole: Collection[Relation],
    ) -> _Polled:
        """Poll tables in one snapshot, with the states of `whole` and of those that are polled from the beginning."""
        with one_snapshot(read) as snapshot:
            polls = {t.relation.name: t.poll_in(snapshot, positions[t.relation.name].at) for t in read}
            states = States(snapshot, read)
            changed = {n: p.delta for n, p in polls.items() if positions[n].at and p.delta.num_changes}
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
            first = {n: all_rows(p.delta) for n, p in polls.items() if not positions[n].at}
            names = {r.name for r in whole} - first.keys()
            later = [t for t in read if t.relation.name in names]
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

    def _commit(
        self, views: Sequence[Relation], polled: _Polled, new: _New | None, moves: Sequence[Move], *, anew: bool
    ) -> Outcome:
        transaction = self.begin()
        rows = 0
        try:
            for view in views:
                if anew:
                    rows += self._write_anew(transaction, view, polled.whole)
                elif view.id in polled.deltas:
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
        rows = self._computed(new.name, new.definition, json.loads(new.facts["settings"]), new.shape, whole)
        relation = transaction.create(new.name, new.shape.schema, new.properties, DIMENSION, new.facts)
        return transaction.apply_delta(relation, tag(rows, new.shape.schema, INSERT, transaction.next_stmtsn))

    def _write_anew(self, transaction: Transaction, view: Relation, whole: Mapping[str, pa.Table]) -> int:
        """Write the difference between the stored rows of a view and its definition over whole states."""
        shape = self.shape(view)
        rows = self._computed(view.name, self.definitions.of(view), settings_of(view), shape, whole)
        stored = self.storage.reader.contents(transaction.state(view))
        return transaction.apply_delta(view, shape.difference(view.name, stored, rows, transaction.next_stmtsn))

    def _computed(
        self,
        name: str,
        definition: Definition,
        settings: Mapping[str, str],
        shape: Shape,
        whole: Mapping[str, pa.Table],
    ) -> pa.Table:
        """The rows of a view over whole states of its tables, by Spark; NotMaintainable if its rules have others."""
        small = sum(whole[r.name].num_rows for r in definition.sources.values()) <= LOCAL_ROWS
        runner = self._runner(settings, small=small)
        defined = self._defined(runner, definition, whole)
        found = [(c.name, c.type) for c in runner.engine.schema_of(defined, ()).columns]
        if found != [(c.name, c.type) for c in shape.schema.columns]:
            given = ", ".join(f"{name} {type_}" for name, type_ in found)
            wanted = ", ".join(f"{c.name} {c.type}" for c in shape.schema.columns)
            raise NotMaintainable(f"view {name}", f"Spark gives ({given}), its rules ({wanted})", "Add casts.")
        return shape.schema.conform(runner.fetch(defined, shape.schema, small=small))

    def _defined(self, runner: Runner, definition: Definition, whole: Mapping[str, pa.Table]) -> Frame:
        """The definition over whole states of its tables, by Spark."""
        frames = {n: runner.engine.frame(whole[r.name], r.schema) for n, r in definition.sources.items()}
        return runner.original(definition.text, frames)

    def _position(self, relation: Relation) -> _Position:
        known = self.views.catalog.position(relation.id)
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


def _sizes(delta: PartialDelta) -> dict[str, int]:
    return {name: rows.num_rows for name, rows in delta.sets.items() if rows.num_rows}
