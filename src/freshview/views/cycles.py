"""Cycles of dimension views: from the positions of their tables to the present states of the servers (PARTIAL §5).

One cycle takes all dimension views of a group of servers a step further. Servers that one view joins are in one group,
and each other server is a group of its own:

    poll        the changes of all tables since the stored positions, and the states that the rules ask for, in one
                snapshot of each server, all of which are open together
    propagate   the delta rules, for each view
    commit      the delta rows of all views and the new positions, in one catalog transaction
    confirm     the servers may forget what lies before the positions

Law: the views show their definitions over the servers' states at the stored positions, all at once, whatever dies
between two of these steps. Let these be A at a and B at b. The polls deliver a → a' and b → b', and the rules read A at
a', B at b' and no other state; so the views become those over (a', b'), from where the next cycle starts. A position is
stored with a turn, which each commit counts up: a cycle that did not see a view that was created meanwhile, be it one
that joins its servers to others, fails and is repeated.

A view for which an expression fails on a changed row is left behind: the commit that moves the positions marks it, and
the others go on. A marked view is behind the positions, so no delta can bring it forward: `repair` computes it from
whole states, in the snapshots of a cycle, and takes the mark away.

Where changes were lost at a server (a truncated table, a dropped slot, an ALTER, a failover), no cycle succeeds. Then
`anew` begins anew for all dimension views of the group: it installs the captures, reads the tables in one snapshot of
each server, and commits the differences between the stored rows and the definitions with the positions.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import pyarrow as pa

from freshview.catalog.lineage import source_ids
from freshview.catalog.positions import Move
from freshview.catalog.records import DIMENSION, Relation
from freshview.catalog.views import ViewCatalog
from freshview.cdc.model import PartialDelta
from freshview.cdc.remote import FetchedStates, Identity, RemoteTable, RemoteTables, installing, snapshots, whole_states
from freshview.cdc.rules import propagate
from freshview.cdc.source import Poll
from freshview.cdc.turns import INSTALLING, taking_turns
from freshview.definition.analysis import Definition
from freshview.errors import CaptureFailed, QueryFailed, SparkFailed, WriteConflict
from freshview.events import Events
from freshview.relation.delta import INSERT, tag
from freshview.storage.store import Storage
from freshview.transactions.transaction import Outcome, Transaction
from freshview.views.recomputation import Recomputation
from freshview.views.shapes import Shape, Shapes, all_rows

# Tables whose whole states are wanted, and what is called with these and the CSN of the commit.
Inspect = tuple[Sequence[Relation], Callable[[Mapping[str, pa.Table], int], None]]
_IDLE_SECONDS = 60.0  # after which positions move although nothing changed, so that the servers can forget their logs


@dataclass(frozen=True)
class Cycle:
    """What one cycle did to one view: the changes of its tables by set, its own, and what was fetched."""

    tables: Mapping[str, Mapping[str, int]]
    view: Mapping[str, int]
    fetched_rows: int
    fetched_bytes: int
    seconds: float


@dataclass(frozen=True)
class NewView:
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
class Position:
    """The position of a remote table as it is stored."""

    text: str | None = None
    turn: int = 0
    at: str | None = None

    @staticmethod
    def of(text: str | None) -> Position:
        if text is None:
            return Position()
        stored = json.loads(text)
        return Position(text, stored["turn"], stored["position"])


@dataclass(frozen=True)
class _ServerGroup:
    """Servers that belong together: their remote tables, the positions of these, and the dimension views.

    `marks` are the stored texts of views that are or were left behind.
    """

    servers: frozenset[Identity]
    tables: Sequence[Relation]
    positions: Mapping[str, Position]
    views: Sequence[Relation]
    marks: Mapping[int, str]

    def sources(self, views: Iterable[Relation]) -> list[Relation]:
        """The tables that views read."""
        ids = {i for view in views for i in source_ids(view).values()}
        return [table for table in self.tables if table.id in ids]


@dataclass(frozen=True)
class _Snapshots:
    """What was read in one snapshot of each server: the changes of tables, the deltas of views or why there is none,
    and whole states if they were asked for."""

    polls: Mapping[str, Poll]
    deltas: Mapping[int, PartialDelta]
    failed: Mapping[int, str]
    whole: Mapping[str, pa.Table]
    states: FetchedStates

    @property
    def has_changes(self) -> bool:
        return any(p.delta.num_changes for p in self.polls.values())


@dataclass
class Cycles:
    """Runs the cycles of the dimension views of one warehouse."""

    views: ViewCatalog
    storage: Storage
    events: Events
    begin: Callable[[], Transaction]
    tables: RemoteTables
    shapes: Shapes
    recomputation: Recomputation
    last: dict[int, Cycle] = field(default_factory=dict)  # the last cycle of each view that changed a table of it
    polled_at: dict[int, float] = field(default_factory=dict)  # of each view, on the clock of this process
    _moved_at: dict[int, float] = field(default_factory=dict)
    _turn: threading.RLock = field(default_factory=threading.RLock)

    def all(self) -> list[Relation]:
        """All dimension views."""
        with self.views.catalog.database.read() as c:
            return self.views.catalog.relations_in(c, kind=DIMENSION)

    def groups(self, views: Iterable[Relation]) -> list[frozenset[Identity]]:
        """The groups of servers to which these views belong."""
        servers = self.tables.servers(self.tables.relations())
        every = [_servers(v, servers) for v in self.all()]
        return list(dict.fromkeys(connected(_servers(v, servers), every) for v in views))

    def run(
        self,
        servers: frozenset[Identity],
        *,
        new: NewView | None = None,
        inspect: Inspect | None = None,
        anew: bool = False,
        repair: Collection[int] = (),
    ) -> Outcome:
        """One cycle of the group of these servers; again if another process has moved a position meanwhile. While it
        begins `anew`, other processes do not install captures of the group.

        `repair` has the ids of views that are computed from whole states if they were left behind.
        """
        with self._turn, installing(self._read_tables(servers) if anew else ()):
            try:
                return taking_turns(lambda: self._cycle(servers, new, inspect, anew=anew, repair=repair))
            except CaptureFailed:
                self._forget(servers)  # another process may set it right, for tables as they are then
                raise

    def _forget(self, servers: Collection[Identity]) -> None:
        """Have the tables of servers, and all views, opened anew."""
        relations = self.tables.relations()
        known = self.tables.servers(relations)
        self.tables.forget(r for r in relations if known.get(r.id) in servers)
        self.shapes.forget()

    def _group(self, servers: frozenset[Identity]) -> _ServerGroup:
        """The group of these servers. Positions are read before the views: one that is created later moves them."""
        relations = self.tables.relations()
        known = self.tables.servers(relations)
        stored = self.views.catalog.positions([r.id for r in relations])
        every = [(v, _servers(v, known)) for v in self.all()]
        group = connected(servers, [s for _, s in every])
        tables = [r for r in relations if known.get(r.id) in group]
        positions = {r.name: Position.of(stored.get(r.id)) for r in tables}
        views = [v for v, s in every if s & group]
        return _ServerGroup(group, tables, positions, views, self.views.catalog.positions([v.id for v in views]))

    def require_kept(self, views: Iterable[Relation]) -> None:
        """Raise CaptureFailed if one of these views was left behind."""
        named = {v.id: v for v in views}
        for id_, mark in self.views.catalog.positions(named).items() if named else ():
            if cause := left_behind(mark):
                raise CaptureFailed(
                    f"dimension view {named[id_].name}",
                    f"a changed row cannot be computed ({cause})",
                    "Correct the row at the source, and REFRESH MATERIALIZED VIEW; or drop the view. Others go on.",
                )

    def _cycle(
        self,
        servers: frozenset[Identity],
        new: NewView | None,
        inspect: Inspect | None,
        *,
        anew: bool,
        repair: Collection[int],
    ) -> Outcome:
        begun = time.monotonic()
        group = self._group(servers)
        views, positions = group.views, group.positions
        first = {r.id for r in new.sources} if new is not None else set()
        if anew:
            self._forget(group.servers)
        read = [self.tables.open(r) for r in group.tables if positions[r.name].text or r.id in first]
        if anew:
            for table in read:
                self.tables.install(table)
            positions = {name: replace(position, at=None) for name, position in positions.items()}
        behind = {id_ for id_, mark in group.marks.items() if left_behind(mark)}
        repaired = [v for v in views if anew or v.id in behind.intersection(repair)]
        whole = [*(inspect[0] if inspect else new.sources if new else ()), *group.sources(repaired)]
        try:
            polled = self._polled(read, positions, [v for v in views if v.id not in behind], whole)
        except CaptureFailed:
            if not anew:
                self._require_last(read, group.positions)
            raise
        computed, failed = self._computed(repaired, polled.whole)
        failed |= polled.failed
        is_idle = not (polled.has_changes or new or inspect or repaired)
        if is_idle and all(begun - self._moved_at.get(t.relation.id, begun - 1e9) < _IDLE_SECONDS for t in read):
            self._note(views, polled, begun)
            return Outcome(0, self.views.catalog.snapshot())
        now, moves = self.views.catalog.now(), []
        for t in read:
            known, after = positions[t.relation.name], polled.polls[t.relation.name].position
            text = json.dumps({"turn": known.turn + 1, "position": after, "at": now})
            moves.append(Move(t.relation.id, t.relation.name, t.label, known.text, text))
        for view in views:
            if view.id in failed or view.id in computed.keys() & group.marks.keys():
                mark = json.dumps({"failed": failed.get(view.id)})
                moves.append(Move(view.id, view.name, DIMENSION, group.marks.get(view.id), mark))
        outcome = self._commit(views, polled, computed, new, moves)
        self.events.emit("remote.committed", csn=outcome.csn)
        for table in read:
            table.table.confirm(polled.polls[table.relation.name].position)
            self._moved_at[table.relation.id] = begun
        self._note(views, polled, begun)
        if inspect is not None:
            assert outcome.csn is not None
            inspect[1](polled.whole, outcome.csn)
        return outcome

    def _read_tables(self, servers: frozenset[Identity]) -> list[RemoteTable]:
        """The tables of the group that views read, opened as they are now."""
        self._forget(servers)
        group = self._group(servers)
        return [self.tables.open(r) for r in group.tables if group.positions[r.name].text]

    def _require_last(self, read: Sequence[RemoteTable], positions: Mapping[str, Position]) -> None:
        """Raise WriteConflict if an error of a poll does not count, because another process has moved a position
        meanwhile, or has installed a capture anew and is about to."""
        known = [t for t in read if positions[t.relation.name].text]
        for is_again in (False, True):
            if is_again:
                with suppress(CaptureFailed), installing(known, INSTALLING):
                    pass
            stored = self.views.catalog.positions([t.relation.id for t in known])
            for t in known:
                if stored.get(t.relation.id) != positions[t.relation.name].text:
                    self._forget({t.server for t in read})
                    raise WriteConflict(
                        f"remote table {t.relation.name}", "another process polled it meanwhile", "Try again."
                    )

    def _polled(
        self,
        read: Sequence[RemoteTable],
        positions: Mapping[str, Position],
        views: Sequence[Relation],
        whole: Collection[Relation],
    ) -> _Snapshots:
        """Poll tables, with the states of `whole` and of those that are polled from the beginning."""
        with snapshots(read) as opened:
            polls = {t.relation.name: t.poll_in(opened, positions[t.relation.name].at) for t in read}
            states = FetchedStates(opened, read)
            changed = {n: p.delta for n, p in polls.items() if positions[n].at and p.delta.num_changes}
            for delta in changed.values():
                for rows in delta.sets.values():
                    states.count(rows)
            deltas, failed = {}, {}
            for view in views:
                shape = self.shapes.of_view(view)
                own = {t.relation.name: changed[t.relation.name] for t in shape.tables if t.relation.name in changed}
                try:
                    if own:
                        tested = shape.effectiveness
                        deltas[view.id] = propagate(shape.node, view.name, own, states, effectiveness=tested)
                except QueryFailed as error:
                    failed[view.id] = _of_the_data(error)
            self.events.emit("remote.polled", tables=len(read))
            first = {n: all_rows(p.delta) for n, p in polls.items() if not positions[n].at}
            names = {r.name for r in whole} - first.keys()
            later = [t for t in read if t.relation.name in names]
            return _Snapshots(polls, deltas, failed, {**first, **whole_states(later, opened)}, states)

    def _computed(
        self, views: Sequence[Relation], whole: Mapping[str, pa.Table]
    ) -> tuple[dict[int, pa.Table], dict[int, str]]:
        """The rows of views over whole states, and why those of others cannot be computed."""
        computed, failed = {}, {}
        for view in views:
            try:
                computed[view.id] = self.recomputation.of(view, whole)
            except QueryFailed as error:
                failed[view.id] = _of_the_data(error)
        return computed, failed

    def _commit(
        self,
        views: Sequence[Relation],
        polled: _Snapshots,
        computed: Mapping[int, pa.Table],
        new: NewView | None,
        moves: Sequence[Move],
    ) -> Outcome:
        transaction = self.begin()
        rows = 0
        try:
            for view in views:
                if view.id in computed:
                    rows += self._write_difference(transaction, view, computed[view.id])
                elif view.id in polled.deltas:
                    delta = self.shapes.of_view(view).rows(polled.deltas[view.id], transaction.next_stmtsn)
                    rows += transaction.apply_delta(view, delta)
            if new is not None:
                rows = self._create(transaction, new, polled.whole)
            for move in moves:
                transaction.move_position(move)
            return Outcome(rows, transaction.commit())
        except BaseException:
            transaction.rollback()
            raise

    def _create(self, transaction: Transaction, new: NewView, whole: Mapping[str, pa.Table]) -> int:
        settings, schema = json.loads(new.facts["settings"]), new.shape.schema
        rows = self.recomputation.rows(new.name, new.definition, settings, new.shape, whole)
        relation = transaction.create(new.name, schema, new.properties, DIMENSION, new.facts)
        return transaction.apply_delta(relation, tag(rows, schema, INSERT, transaction.next_stmtsn))

    def _write_difference(self, transaction: Transaction, view: Relation, rows: pa.Table) -> int:
        """Write the difference between the stored rows of a view and others."""
        stored = self.storage.reader.contents(transaction.state(view))
        delta = self.shapes.of_view(view).difference(view.name, stored, rows, transaction.next_stmtsn)
        return transaction.apply_delta(view, delta)

    def _note(self, views: Sequence[Relation], polled: _Snapshots, begun: float) -> None:
        took, states = time.monotonic() - begun, polled.states
        for view in views:
            self.polled_at[view.id] = begun
            if view.id in polled.deltas:
                shape = self.shapes.of_view(view)
                tables = {t.relation.name: _sizes(polled.polls[t.relation.name].delta) for t in shape.tables}
                fetched = states.fetched_rows, states.fetched_bytes
                self.last[view.id] = Cycle(tables, _sizes(polled.deltas[view.id]), *fetched, took)


def connected(start: frozenset[Identity], joined: Iterable[frozenset[Identity]]) -> frozenset[Identity]:
    """All servers that are reached from these by sets of servers that belong together."""
    found, sets = start, list(joined)
    while True:
        wider = found.union(*(s for s in sets if s & found))
        if wider == found:
            return found
        found = wider


def left_behind(mark: str | None) -> str:
    """Why a view was left behind, by its mark; empty if it was not."""
    return (json.loads(mark)["failed"] or "") if mark else ""


def _of_the_data(error: QueryFailed) -> str:
    """The cause of an error that the data makes; raise it if Spark could not run, which is nobody's fault here."""
    if isinstance(error, SparkFailed):
        raise error
    return error.cause


def _servers(view: Relation, servers: Mapping[int, Identity]) -> frozenset[Identity]:
    """The servers of the tables of a view."""
    return frozenset(servers[i] for i in source_ids(view).values() if i in servers)


def _sizes(delta: PartialDelta) -> dict[str, int]:
    return {name: rows.num_rows for name, rows in delta.sets.items() if rows.num_rows}
