"""Polling a flow: what changed at its source, as the flow means it, in one commit with the position.

    poll from the stored position → changes, with their sequences → one commit with the position → confirm

Law: the commit has the rows, what is remembered of them, the position and the events that were set aside, or nothing. A
crash before it changes nothing; a crash after it leaves the confirmation to the next poll.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from freshview.catalog.flows import FlowCatalog, FlowRecord, SourceRecord
from freshview.catalog.positions import Move
from freshview.catalog.records import Relation
from freshview.catalog.writer import Catalog
from freshview.cdc.arrivals import Evaluate, arrivals, refuse
from freshview.cdc.dumps import Comparing, Dumps, difference
from freshview.cdc.event_files import EventFiles
from freshview.cdc.flow import END, SEQUENCE, START, Plan, from_spec
from freshview.cdc.model import PartialDelta
from freshview.cdc.opening import Installed, adds_columns, on_error_of, open_table
from freshview.cdc.postgres.extraction import Extraction, extraction
from freshview.cdc.postgres.tables import PostgresTable, UnreadableChange
from freshview.cdc.sequenced import SequencedChange
from freshview.cdc.source import Poll, Quarantined, Source
from freshview.errors import FreshviewError, InvalidStatement, WriteConflict
from freshview.events import Events
from freshview.relation.ingest import to_table
from freshview.relation.names import backticked
from freshview.relation.schema import Column, Schema, fold
from freshview.sql.dml import ROW_ID, RowQuery
from freshview.sql.statements import CreateFlow
from freshview.warehouse.feeding import Feed, value_of, value_text
from freshview.warehouse.transaction import UserTransaction

if TYPE_CHECKING:
    from freshview.spark.engine import SparkEngine

_AT_ONCE = 50_000  # rows over which Spark evaluates expressions at once
_RETRIES = 5  # of a poll that met a write conflict


@dataclass(frozen=True)
class Opened:
    """A flow that is ready to be polled."""

    record: FlowRecord
    source: Source
    options: dict[str, str]
    feed: Feed

    @property
    def origin(self) -> str:
        """The name of the source's table, as positions know it."""
        return f"{self.feed.plan.flow.source}.{self.feed.plan.flow.table}"


@dataclass(frozen=True)
class Polled:
    """What one poll did: rows that changed, the CSN, and whether there is more to poll at once."""

    rows: int
    csn: int | None
    more: bool


@dataclass(frozen=True)
class Poller:
    """Opens flows and polls them; `compare` compares large dumps."""

    catalog: Catalog
    events: Events
    begin: Callable[[], UserTransaction]
    engine: Callable[[], SparkEngine]
    compare: Comparing
    turns: dict[int, threading.Lock] = field(default_factory=dict, compare=False)

    def open_source(
        self, record: SourceRecord, statement: CreateFlow, target: Relation | None, owner: str, *, each: bool = False
    ) -> Source:
        """The table of the source, with the columns that the server has, the statement names, or the target has."""
        schema: Schema | None = None
        if record.kind == "POSTGRES":
            if statement.columns:
                raise InvalidStatement(
                    f"flow {statement.name}", "the server knows the table's columns", "Leave the columns out."
                )
        elif statement.columns or target is not None:
            columns = statement.columns
            if not columns and target is not None:
                ends = {fold(START), fold(END)} if statement.scd_type == 2 else set()
                columns = tuple(c for c in target.schema.columns if fold(c.name) not in ends)
            columns = tuple(_required_here(c, target, ignored=statement.ignore_null_updates) for c in columns)
            named = Schema(columns)
            schema = Schema(columns, tuple(named.column(k).name for k in statement.keys))
        return open_table(record, statement.table, schema, owner, each=each, compare=self.compare)

    def open(self, record: FlowRecord) -> Opened:
        """A flow, with its source as it is now."""
        flow = from_spec(record.spec)
        target = self.catalog.relation_by_id(record.relation_id)
        memory = self.catalog.relation_by_id(record.memory_id) if record.memory_id is not None else None
        if target is None:
            raise InvalidStatement(f"flow {record.name}", "its table was dropped", "Drop the flow.")
        kept = FlowCatalog(self.catalog).source(flow.source)
        source = self.open_source(kept, flow, target, record.spec["owner"], each=bool(flow.sequence))
        type_ = memory.schema.column(SEQUENCE).type if memory is not None else None
        plan = Plan(flow, source.schema, source.capture, type_)
        return Opened(record, source, dict(kept.options), Feed(plan, target, memory))

    def poll(self, name: str, *, full: bool = False, replayed: tuple[tuple[int, str], ...] = ()) -> Polled:
        """One poll of a flow and its commit; after a write conflict, once more. An error is noted in the catalog.

        `full`: read the source anew, and write the difference to what is here. `replayed` are the numbers and places of
        events that were set aside, from which on a file is read once more.
        """
        records = FlowCatalog(self.catalog)
        for attempt in range(_RETRIES):
            record = records.flow(name)
            try:
                with self.turns.setdefault(record.id, threading.Lock()):  # one thread at a time polls a flow
                    return self._poll(self.open(record), full=full, replayed=replayed)
            except WriteConflict:
                if attempt == _RETRIES - 1:
                    raise
            except FreshviewError as error:
                with suppress(FreshviewError):
                    records.failed(record.id, str(error))
                self.events.emit("flow.failed", flow=record.name, error=str(error))
                raise
        raise AssertionError("unreachable")

    def _poll(self, opened: Opened, *, full: bool, replayed: tuple[tuple[int, str], ...]) -> Polled:
        source, target, flow = opened.source, opened.feed.target, opened.feed.plan.flow
        known = self.catalog.position(target.id)
        if known is not None and known[0] != opened.origin:
            raise InvalidStatement(f"table {target.name}", f"it takes the changes of {known[0]}", "Feed another table.")
        before = known[1] if known is not None else None
        start, truncated = _unwrapped(before, flow)
        full = full or start is None or (bool(replayed) and not isinstance(source, EventFiles))
        if full and isinstance(source, Installed):
            source.drop()
            source.install()
        elif start is not None and _gained_columns(source, start, opened.options):
            opened, full = self._with_added_columns(opened), True
            source, target = opened.source, opened.feed.target
        if full and self._may_load(opened):
            assert isinstance(source, PostgresTable)
            with extraction(source) as found:
                if found is not None and self._workers_can_read():
                    return self._load(opened, *found, before, tuple(number for number, _ in replayed))
        try:
            poll = self._changes(source, None if full else start, replayed)
        except UnreadableChange as error:
            if on_error_of(opened.options) == "stop":
                raise
            event = Quarantined(error.what, error.cause, "the table was read anew")
            poll, full = replace(source.poll(None), quarantined=(event,)), True
        opened.feed.plan.check_target(target.schema, target.name)
        taken = self._taken(poll, opened)
        self.events.emit("flow.polled", flow=flow.name, changes=taken.number)
        with self.begin() as transaction:
            transaction.write_for(opened.record.name)
            whole = full and isinstance(source, PostgresTable | Dumps)
            if whole:
                taken = self._difference(transaction, taken, opened)
            rows, truncated = self._write(transaction, taken, opened, truncated, whole=whole)
            aside = tuple((e.place, e.cause, e.text) for e in (*poll.quarantined, *taken.bad))
            position = _wrapped(poll.position, truncated, opened.feed.plan)
            numbers = tuple(number for number, _ in replayed)
            moved = (target.id, target.name, opened.origin, before, position, opened.record.id, aside, numbers)
            transaction.move(Move(*moved))
        self.events.emit("flow.committed", flow=flow.name, rows=rows)
        self._report(poll, taken, opened)
        source.confirm(poll.position)
        return Polled(rows, transaction.csn, poll.more)

    def _may_load(self, opened: Opened) -> bool:
        """Whether all rows of a source are to be written as they are: into a table that has none yet."""
        target, plan = opened.feed.target, opened.feed.plan
        if not isinstance(opened.source, PostgresTable) or not plan.is_plain:
            return False
        return self.catalog.state(target, self.catalog.snapshot()).rows_at_most == 0

    def _workers_can_read(self) -> bool:
        """Whether Spark's workers have what reading a server needs; else the driver reads it."""
        from freshview.spark.parts import workers_have

        return workers_have(self.engine(), [extraction.__module__, "psycopg"])

    def _load(
        self, opened: Opened, rows: Extraction, poll: Poll, before: str | None, replayed: tuple[int, ...]
    ) -> Polled:
        """Write all rows of a large table, which Spark's workers read in parallel, in one commit with the position."""
        from freshview.spark.parts import frame_of_parts

        plan, target = opened.feed.plan, opened.feed.target
        plan.check_target(target.schema, target.name)
        schema, name = opened.source.schema, plan.flow.name
        self.events.emit("flow.polled", flow=name, parts=len(rows.starts))
        frame = frame_of_parts(self.engine(), rows.read, len(rows.starts), schema, f"flow {name}")
        with self.begin() as transaction:
            written = transaction.upsert(target.name, frame.select(*(backticked(c.name) for c in plan.values))).rows
            moved = (target.id, target.name, opened.origin, before, poll.position, opened.record.id, (), replayed)
            transaction.move(Move(*moved))
        self.events.emit("flow.committed", flow=name, rows=written)
        opened.source.confirm(poll.position)
        return Polled(written, transaction.csn, more=False)

    def _changes(self, source: Source, start: str | None, replayed: Sequence[tuple[int, str]]) -> Poll:
        if start is not None and replayed and isinstance(source, EventFiles):
            whole = source.unlimited()  # a part of what is read again would be an older state
            return whole.poll(whole.rewound([place for _, place in replayed], start))
        return source.poll(start)

    def _with_added_columns(self, opened: Opened) -> Opened:
        """Add the columns that appeared at the source; its rows are then read anew, since defaults changed them all."""
        plan = opened.feed.plan
        for relation, wanted in ((opened.feed.target, plan.target), (opened.feed.memory, plan.memory)):
            if relation is None or wanted is None:
                continue
            new = [replace(c, nullable=True) for c in wanted.columns if not relation.schema.has(c.name)]
            if new:
                self.catalog.alter(relation.name, partial(Schema.with_columns, added=new))
                self.events.emit("flow.altered", flow=plan.flow.name, columns=[c.name for c in new])
        return self.open(opened.record)

    def _taken(self, poll: Poll, opened: Opened) -> _Taken:
        """What a poll brought, as the flow means it."""
        plan = opened.feed.plan
        if plan.is_plain and poll.changes is None:
            return _Taken(poll, poll.delta)
        found = arrivals(poll, plan, opened.feed.target.schema, self.evaluate(plan))
        if on_error_of(opened.options) == "stop":
            refuse(found.bad, opened.origin)
        return _Taken(poll, None, found.changes, tuple(found.bad), found.ignored)

    def _difference(self, transaction: UserTransaction, taken: _Taken, opened: Opened) -> _Taken:
        """What was taken, which is all rows of the source, as the difference to the rows that are here."""
        feed, plan = opened.feed, opened.feed.plan
        here, schema = transaction.contents(feed.target.name), feed.target.schema
        if taken.delta is not None:
            part = Schema(
                tuple(schema.column(c.name) for c in plan.values), tuple(schema.column(k).name for k in plan.keys)
            )
            all_rows = [taken.delta.ins, taken.delta.un, taken.delta.up, taken.delta.ups]
            there = pa.concat_tables(all_rows).select([c.name for c in plan.values])
            there = to_table(there, part, feed.target.name)
            return replace(taken, delta=difference(feed.target.name, part, here.select(list(part.names)), there))
        if plan.is_feed:
            return taken
        if plan.flow.scd_type == 2:
            here = here.filter(pc.is_null(here.column(schema.column(END).name)))
        names = [schema.column(k).name for k in plan.keys]
        known = set(zip(*(here.column(n).to_pylist() for n in names), strict=True))
        gone = sorted(known - {change.key for change in taken.changes}, key=repr)
        ended = [SequencedChange(key, None, None, taken.poll.at, is_reported=True) for key in gone]
        return replace(taken, changes=[*taken.changes, *ended])

    def _write(
        self, transaction: UserTransaction, taken: _Taken, opened: Opened, truncated: Any, *, whole: bool
    ) -> tuple[int, Any]:
        feed, plan = opened.feed, opened.feed.plan
        if taken.delta is not None:
            names = [c.name for c in plan.values]
            return transaction.take_rows(feed.target.name, taken.delta, names), truncated
        if plan.flow.scd_type == 2:
            return feed.write_history(transaction, taken.changes), truncated
        return feed.write_latest(transaction, taken.changes, truncated, whole=whole and not plan.is_feed)

    def _report(self, poll: Poll, taken: _Taken, opened: Opened) -> None:
        name = opened.feed.target.name
        for event in (*poll.quarantined, *taken.bad):
            details = {"place": event.place, "cause": event.cause, "text": event.text}
            self.events.emit("capture.quarantined", relation=name, **details)
        for table, count in poll.skipped.items():
            self.events.emit("capture.skipped", relation=name, table=table, events=count)
        if taken.ignored:
            self.events.emit("capture.skipped", relation=name, table=f"{opened.origin} (deleted)", events=taken.ignored)

    def evaluate(self, plan: Plan) -> Evaluate:
        """How Spark evaluates expressions over rows of the driver, without a job."""

        def values(rows: pa.Table, schema: Schema, expressions: Sequence[str]) -> list[list[Any]]:
            engine, what = self.engine(), f"flow {plan.flow.name}"
            items = (ROW_ID, *(f"({text}) AS c{i}" for i, text in enumerate(expressions)))
            parts: list[pa.Table] = []
            for start in range(0, max(rows.num_rows, 1), _AT_ONCE):
                frame = engine.numbered(rows.slice(start, _AT_ONCE), schema, ROW_ID)
                frame = engine.evaluated(frame, RowQuery(qualifier(plan), "", items), what)
                parts.append(engine.collect(frame, engine.arrow_fields(frame), what).sort_by(ROW_ID))
            found = pa.concat_tables(parts)
            return [found.column(i + 1).to_pylist() for i in range(len(expressions))]

        return values


@dataclass(frozen=True)
class _Taken:
    """What a poll brought: its net effect (`delta`), or else each change with its sequence."""

    poll: Poll
    delta: PartialDelta | None
    changes: Sequence[SequencedChange] = ()
    bad: tuple[Quarantined, ...] = ()
    ignored: int = 0

    @property
    def number(self) -> int:
        return self.delta.num_changes if self.delta is not None else len(self.changes)


def _required_here(column: Column, target: Relation | None, *, ignored: bool) -> Column:
    """A column of events, NOT NULL if the target's is: an event without a value is a bad one."""
    required = target is not None and target.schema.has(column.name) and not target.schema.column(column.name).nullable
    return replace(column, nullable=ignored or (column.nullable and not required))


def qualifier(plan: Plan) -> str:
    """The name by which expressions may qualify columns."""
    return plan.flow.table.rpartition(".")[2]


def _gained_columns(source: Source, start: str, options: dict[str, str]) -> bool:
    return isinstance(source, PostgresTable) and adds_columns(options) and source.adds_columns_since(start)


def _wrapped(position: str, truncated: Any, plan: Plan) -> str:
    """A position with the sequence of the last truncation, if the flow has such."""
    if not plan.flow.truncate_when:
        return position
    assert plan.sequence_type is not None
    return json.dumps({"source": position, "truncated": value_text(truncated, plan.sequence_type)})


def _unwrapped(position: str | None, flow: CreateFlow) -> tuple[str | None, Any]:
    if position is None or not flow.truncate_when:
        return position, None
    data = json.loads(position)
    return data["source"], value_of(data["truncated"])
