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
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from freshview.catalog.flows import FlowCatalog, FlowRecord, SourceRecord
from freshview.catalog.positions import Move
from freshview.catalog.records import Relation
from freshview.catalog.writer import Catalog
from freshview.cdc.arrivals import Evaluate, arrivals
from freshview.cdc.delta_versions import DeltaVersions
from freshview.cdc.dumps import Comparing, Dumps, difference
from freshview.cdc.event_files import EventFiles
from freshview.cdc.fitting import fitting
from freshview.cdc.flow import END, SEQUENCE, START, Plan, from_spec
from freshview.cdc.model import PartialDelta
from freshview.cdc.opening import KNOWN_COLUMNS, Installed, adds_columns, on_error_of, open_table
from freshview.cdc.postgres.extraction import Extraction, extraction
from freshview.cdc.postgres.tables import PostgresTable, UnreadableChange
from freshview.cdc.sequenced import Key, SequencedChange
from freshview.cdc.sequenced_columns import SequencedColumns
from freshview.cdc.source import BadEvents, Poll, Quarantined, Source, bad_events
from freshview.cdc.turns import INSTALLING, taking_turns
from freshview.errors import CaptureFailed, FreshviewError, InvalidStatement, WriteConflict, first_line
from freshview.events import Events
from freshview.flows.feeding import Feed, take_rows, value_of, value_text
from freshview.relation.ingest import to_table
from freshview.relation.names import backticked
from freshview.relation.schema import Column, Schema, fold
from freshview.sql.dml import ROW_ID, RowQuery, one_value
from freshview.sql.statements import CreateFlow
from freshview.transactions.user_transaction import UserTransaction

if TYPE_CHECKING:
    from freshview.spark.engine import SparkEngine

_AT_ONCE = 50_000  # rows over which Spark evaluates expressions at once
_FAILING = 100  # changes of one poll on which expressions may fail: each takes several queries to be found


class _TooManyBad(CaptureFailed):
    """Expressions fail on many changes of one poll; `place` is that of the last one that was looked at."""

    place = ""

    def at(self, place: str) -> _TooManyBad:
        self.place = place
        return self


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
        self,
        record: SourceRecord,
        statement: CreateFlow,
        target: Relation | None,
        owner: str,
        *,
        each: bool = False,
        position: str | None = None,
    ) -> Source:
        """The table of the source, with the columns that the source has, the statement names, or the target has."""
        schema: Schema | None = None
        if record.kind in KNOWN_COLUMNS:
            if statement.columns:
                raise InvalidStatement(
                    f"flow {statement.name}", "the source knows the table's columns", "Leave the columns out."
                )
        elif statement.columns or target is not None:
            columns = statement.columns
            if not columns and target is not None:
                ends = {fold(START), fold(END)} if statement.scd_type == 2 else set()
                columns = tuple(c for c in target.schema.columns if fold(c.name) not in ends)
            columns = tuple(_required_here(c, target, ignored=statement.ignore_null_updates) for c in columns)
            named = Schema(columns)
            schema = Schema(columns, tuple(named.column(k).name for k in statement.keys))
        more = {"compare": self.compare, "reader": statement.name, "keys": statement.keys, "position": position}
        return open_table(record, statement.table, schema, owner, each=each, **more)  # type: ignore[arg-type]

    def open(self, record: FlowRecord) -> Opened:
        """A flow, with its source as it is now."""
        flow = from_spec(record.spec)
        target = self.catalog.relation_by_id(record.relation_id)
        memory = self.catalog.relation_by_id(record.memory_id) if record.memory_id is not None else None
        if target is None:
            raise InvalidStatement(f"flow {record.name}", "its table was dropped", "Drop the flow.")
        kept = FlowCatalog(self.catalog).source(flow.source)
        known = self.catalog.position(target.id)
        start = _unwrapped(known[1], flow)[0] if known is not None else None
        owner = record.spec["owner"]
        source = self.open_source(kept, flow, target, owner, each=bool(flow.sequence), position=start)
        type_ = memory.schema.column(SEQUENCE).type if memory is not None else None
        plan = Plan(flow, source.schema, source.capture, type_)
        feed = Feed(plan, target, memory, is_sized=isinstance(source, PostgresTable))
        if isinstance(source, EventFiles) and not feed.fit.is_certain:
            source = source.fitting(feed.fit.unfit)
        return Opened(record, source, dict(kept.options), feed)

    def poll(
        self,
        name: str,
        *,
        full: bool = False,
        replayed: tuple[tuple[int, str], ...] = (),
        confirmed: tuple[str, ...] = (),
    ) -> Polled:
        """One poll of a flow and its commit; after a write conflict, again. An error is noted in the catalog.

        `full`: read the source anew, and write the difference to what is here. `replayed` are the numbers and places of
        events that were set aside, from which on a file is read once more. `confirmed` are dumps that are right
        although they are small.
        """
        records = FlowCatalog(self.catalog)

        def once() -> Polled:
            record = records.flow(name)
            try:
                with self.turns.setdefault(record.id, threading.Lock()):  # one thread at a time polls a flow
                    return self._poll(_confirming(self.open(record), confirmed), full=full, replayed=replayed)
            except WriteConflict:
                raise
            except Exception as error:  # also what nobody foresaw is to be seen in the state of the flow
                cause = (
                    str(error) if isinstance(error, FreshviewError) else f"{type(error).__name__}: {first_line(error)}"
                )
                with suppress(FreshviewError):
                    records.failed(record.id, cause)
                self.events.emit("flow.failed", flow=record.name, error=cause)
                raise

        return taking_turns(once)

    def _poll(self, opened: Opened, *, full: bool, replayed: tuple[tuple[int, str], ...]) -> Polled:
        """One poll. An event that can neither be taken nor set aside is a bad one to the reader of files: that delivers
        what is before it, and fails if nothing is."""
        while True:
            source = opened.source
            try:
                return self._polled(opened, full=full, replayed=replayed)
            except BadEvents as reason:
                if not isinstance(source, EventFiles) or all(source.refuses(e.place) for e in reason.events):
                    raise
                opened = replace(opened, source=source.refusing({e.place: e.cause for e in reason.events}))
            except _TooManyBad as reason:
                if not isinstance(source, EventFiles):
                    raise
                opened = replace(opened, source=source.until(reason.place))

    def _polled(self, opened: Opened, *, full: bool, replayed: tuple[tuple[int, str], ...]) -> Polled:
        """Poll from the stored position; while a capture is installed, no other process installs or replaces it."""
        source, target = opened.source, opened.feed.target
        known = self.catalog.position(target.id)
        is_first = known is None
        full = full or is_first or (bool(replayed) and not isinstance(source, EventFiles))
        if not (full and isinstance(source, PostgresTable) and isinstance(source, Installed)):
            return self._poll_from(known, opened, full=full, replayed=replayed)
        with source.installing():
            if is_first:
                self._require_position(target, known)
            return self._poll_from(self.catalog.position(target.id), opened, full=True, replayed=replayed)

    def _require_position(self, target: Relation, known: tuple[str, str] | None) -> None:
        """WriteConflict if another process has moved the position of a table."""
        if self.catalog.position(target.id) != known:
            raise WriteConflict(f"table {target.name}", "another process polled its flow meanwhile", "Poll again.")

    def _require_last(self, opened: Opened, known: tuple[str, str] | None) -> None:
        """Raise WriteConflict if an error of a poll does not count, because another process has moved the position
        meanwhile, or has installed the capture anew and is about to."""
        self._require_position(opened.feed.target, known)
        if isinstance(opened.source, PostgresTable) and isinstance(opened.source, Installed):
            with suppress(CaptureFailed), opened.source.installing(INSTALLING):
                pass
            self._require_position(opened.feed.target, known)

    def _poll_from(
        self,
        known: tuple[str, str] | None,
        opened: Opened,
        *,
        full: bool,
        replayed: tuple[tuple[int, str], ...],
    ) -> Polled:
        source, target, flow = opened.source, opened.feed.target, opened.feed.plan.flow
        if known is not None and known[0] != opened.origin:
            raise InvalidStatement(f"table {target.name}", f"it takes the changes of {known[0]}", "Feed another table.")
        before = known[1] if known is not None else None
        start, truncated = _unwrapped(before, flow)
        if full and isinstance(source, Installed):
            source.drop()
            source.install()
        elif start is not None and _gained_columns(source, start, opened.options):
            opened = self._with_added_columns(opened)
            full = isinstance(source, PostgresTable)  # its rows may have a default in the new columns
            source, target = opened.source, opened.feed.target
        if full and self._may_load(opened):
            assert isinstance(source, PostgresTable)
            with extraction(source) as found:
                if found is not None and self._workers_can_read():
                    return self._load(opened, *found, before, tuple(number for number, _ in replayed))
        try:
            poll = self._changes(opened, None if full else start, replayed)
        except CaptureFailed as error:
            if not full:
                self._require_last(opened, known)
            if not isinstance(error, UnreadableChange) or on_error_of(opened.options) == "stop":
                raise
            event = Quarantined(error.what, error.cause, "the table was read anew")
            poll, full = replace(source.poll(None), quarantined=(event,)), True
        opened.feed.plan.check_target(target.schema, target.name)
        taken = self._taken(poll, opened)
        self.events.emit("flow.polled", flow=flow.name, changes=taken.number)
        with self.begin() as transaction:
            transaction.write_for(opened.record.name)
            whole = full and isinstance(source, PostgresTable | Dumps | DeltaVersions)
            if whole:
                taken = self._difference(transaction, taken, opened)
            rows, truncated = self._write(transaction, taken, opened, truncated, whole=whole)
            bad = tuple(dict.fromkeys((*poll.quarantined, *taken.bad)))
            aside = tuple((e.place, e.cause, e.text) for e in bad)
            position = _wrapped(poll.position, truncated, opened.feed.plan)
            numbers = tuple(number for number, _ in replayed)
            moved = (target.id, target.name, opened.origin, before, position, opened.record.id, aside, numbers)
            transaction.move(Move(*moved))
        self.events.emit("flow.committed", flow=flow.name, rows=rows)
        self._report(bad, poll, taken, opened)
        source.confirm(poll.position)
        return Polled(rows, transaction.csn, poll.more)

    def _may_load(self, opened: Opened) -> bool:
        """Whether all rows of a source are to be written as they are: into a table that has none yet."""
        target, plan = opened.feed.target, opened.feed.plan
        if not isinstance(opened.source, PostgresTable) or not plan.is_plain or not opened.feed.fit.is_certain:
            return False
        return not self._has_rows(target)

    def _has_rows(self, target: Relation) -> bool:
        return self.catalog.state(target, self.catalog.snapshot()).rows_at_most != 0

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

    def _changes(self, opened: Opened, start: str | None, replayed: Sequence[tuple[int, str]]) -> Poll:
        source = opened.source
        if start is None and isinstance(source, Dumps) and self._has_rows(opened.feed.target):
            source = source.from_newest()
        if start is not None and replayed and isinstance(source, EventFiles):
            whole = source.replaying()  # a part of what is read again would be an older state
            return whole.poll(whole.rewound([place for _, place in replayed], start))
        poll = source.poll(start)
        return poll if poll.at is not None else replace(poll, at=datetime.now(UTC))

    def _with_added_columns(self, opened: Opened) -> Opened:
        """Add the columns that appeared at the source."""
        plan = opened.feed.plan
        for relation, wanted in ((opened.feed.target, plan.target), (opened.feed.memory, plan.memory)):
            if relation is None or wanted is None:
                continue
            new = [replace(c, nullable=True) for c in wanted.columns if not relation.schema.has(c.name)]
            if new:
                self.catalog.alter(relation.name, partial(Schema.with_columns, added=new))
                self.events.emit("flow.altered", flow=plan.flow.name, columns=[c.name for c in new])
        return self.open(opened.record)

    def _taken(self, poll: Poll, opened: Opened) -> _Delivery:
        """What a poll brought, as the flow means it."""
        plan, fit = opened.feed.plan, opened.feed.fit
        stops = on_error_of(opened.options) == "stop"
        if plan.is_plain and poll.changes is None:
            delta, unfit, keys = fitting(poll.delta, fit, plan.keys)
            if unfit and stops:
                raise bad_events(opened.origin, unfit)
            return _Delivery(poll, delta, bad=unfit, bad_keys=keys)
        limit = 1 if stops else _FAILING
        found = arrivals(poll, plan, fit, self.evaluate(plan), limit=limit)
        is_net = isinstance(opened.source, EventFiles) and poll.changes is None
        if found.bad and (stops or is_net):  # without a bad event, the net effect of the others of its row is another
            raise bad_events(opened.origin, found.bad)
        if found.failed >= limit:
            last = found.bad[-1]
            raise _TooManyBad(
                f"flow {plan.flow.name}",
                f"its expressions fail on {limit} changes of one poll or more, such as {last.place}: {last.cause}",
                "Correct the expressions: drop the flow, and create it anew.",
            ).at(last.place)
        return _Delivery(poll, None, found.changes, found.bad, found.ignored, frozenset(found.bad_keys))

    def _difference(self, transaction: UserTransaction, taken: _Delivery, opened: Opened) -> _Delivery:
        """What was taken, which is all rows of the source, as the difference to the rows that are here."""
        feed, plan = opened.feed, opened.feed.plan
        here, schema = transaction.contents(feed.target.name), feed.target.schema
        if plan.flow.scd_type == 2:
            here = here.filter(pc.is_null(here.column(schema.column(END).name)))
        if isinstance(opened.source, Dumps) and here.num_rows:
            opened.source.check_first(taken.poll.position, taken.poll.delta.num_changes, here.num_rows)
        if taken.delta is not None:
            part = Schema(
                tuple(schema.column(c.name) for c in plan.values), tuple(schema.column(k).name for k in plan.keys)
            )
            if taken.bad_keys:  # rows that cannot be taken are there all the same
                keys = zip(*(here.column(schema.column(k).name).to_pylist() for k in plan.keys), strict=True)
                here = here.filter(pa.array([key not in taken.bad_keys for key in keys], pa.bool_()))
            all_rows = [taken.delta.ins, taken.delta.un, taken.delta.up, taken.delta.ups]
            there = pa.concat_tables(all_rows).select([c.name for c in plan.values])
            there = to_table(there, part, feed.target.name)
            return replace(taken, delta=difference(feed.target.name, part, here.select(list(part.names)), there))
        if plan.is_feed:
            return taken
        names = [schema.column(k).name for k in plan.keys]
        if isinstance(taken.changes, SequencedColumns):
            return replace(taken, changes=taken.changes.without(here.select(names)))
        known = set(zip(*(here.column(n).to_pylist() for n in names), strict=True))
        gone = sorted(known - {change.key for change in taken.changes} - taken.bad_keys, key=repr)
        ended = [SequencedChange(key, None, None, taken.poll.at, is_reported=True) for key in gone]
        return replace(taken, changes=[*taken.changes, *ended])

    def _write(
        self, transaction: UserTransaction, taken: _Delivery, opened: Opened, truncated: Any, *, whole: bool
    ) -> tuple[int, Any]:
        feed, plan = opened.feed, opened.feed.plan
        if taken.delta is not None:
            names = [c.name for c in plan.values]
            return take_rows(transaction, feed.target, taken.delta, names), truncated
        bad: list[Quarantined] = []
        if plan.flow.scd_type == 2:
            changes = taken.changes.rows() if isinstance(taken.changes, SequencedColumns) else taken.changes
            rows = feed.write_history(transaction, changes, bad)
        else:
            whole = whole and not plan.is_feed
            rows, truncated = feed.write_latest(transaction, taken.changes, truncated, bad, whole=whole)
        if bad and on_error_of(opened.options) == "stop":
            raise bad_events(opened.origin, bad)
        taken.bad.extend(bad)
        return rows, truncated

    def _report(self, bad: Sequence[Quarantined], poll: Poll, taken: _Delivery, opened: Opened) -> None:
        name = opened.feed.target.name
        for event in bad:
            details = {"place": event.place, "cause": event.cause, "text": event.text}
            self.events.emit("capture.quarantined", relation=name, **details)
        for table, count in poll.skipped.items():
            self.events.emit("capture.skipped", relation=name, table=table, events=count)
        if taken.ignored:
            self.events.emit("capture.skipped", relation=name, table=f"{opened.origin} (deleted)", events=taken.ignored)

    def evaluate(self, plan: Plan) -> Evaluate:
        """How Spark evaluates expressions over rows of the driver, without a job."""

        def values(rows: pa.Table, schema: Schema, expressions: Sequence[str]) -> list[pa.ChunkedArray]:
            engine, what = self.engine(), f"flow {plan.flow.name}"
            items = (ROW_ID, *(f"{one_value(text)} AS __fv_c{i}" for i, text in enumerate(expressions)))
            parts: list[pa.Table] = []
            for start in range(0, max(rows.num_rows, 1), _AT_ONCE):
                frame = engine.numbered(rows.slice(start, _AT_ONCE), schema, ROW_ID)
                frame = engine.evaluated(frame, RowQuery(qualifier(plan), "", items), what)
                parts.append(engine.collect(frame, engine.arrow_fields(frame), what).sort_by(ROW_ID))
            found = pa.concat_tables(parts)
            return [found.column(i + 1) for i in range(len(expressions))]

        return values


@dataclass(frozen=True)
class _Delivery:
    """What a poll brought: its net effect (`delta`), or else each change with its sequence."""

    poll: Poll
    delta: PartialDelta | None
    changes: Sequence[SequencedChange] | SequencedColumns = ()
    bad: list[Quarantined] = field(default_factory=list)
    ignored: int = 0
    bad_keys: frozenset[Key] = frozenset()

    @property
    def number(self) -> int:
        return self.delta.num_changes if self.delta is not None else len(self.changes)


def _required_here(column: Column, target: Relation | None, *, ignored: bool) -> Column:
    """A column of events, NOT NULL if the target's is: an event without a value is a bad one."""
    required = target is not None and target.schema.has(column.name) and not target.schema.column(column.name).nullable
    return replace(column, nullable=ignored or (column.nullable and not required))


def _confirming(opened: Opened, names: tuple[str, ...]) -> Opened:
    """A flow whose source takes these dumps although they are small; InvalidStatement if it takes no dumps."""
    if not names:
        return opened
    if not isinstance(opened.source, Dumps):
        raise InvalidStatement(
            f"flow {opened.record.name}", "it takes no dumps, so there is none to confirm", "Leave CONFIRM out."
        )
    return replace(opened, source=opened.source.confirming(names))


def qualifier(plan: Plan) -> str:
    """The name by which expressions may qualify columns."""
    return plan.flow.table.rpartition(".")[2]


def _gained_columns(source: Source, start: str, options: dict[str, str]) -> bool:
    if not isinstance(source, PostgresTable | DeltaVersions) or not adds_columns(options):
        return False
    return source.adds_columns_since(start)


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
