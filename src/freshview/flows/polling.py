"""Polling a flow: what changed at its source, as the flow means it, in one commit with the position.

    poll from the stored position → changes, with their sequences → one commit with the position → confirm

Law: the commit has the rows, what is remembered of them, the position and the events that were set aside, or nothing. A
crash before it changes nothing; a crash after it leaves the confirmation to the next poll.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from freshview.catalog.flows import FlowCatalog
from freshview.catalog.positions import Move
from freshview.catalog.records import Relation
from freshview.catalog.writer import Catalog
from freshview.cdc.delta_versions import DeltaVersions
from freshview.cdc.dumps import Dumps
from freshview.cdc.event_files import EventFiles
from freshview.cdc.opening import Installed, adds_columns, on_error_of
from freshview.cdc.postgres.extraction import Extraction, extraction
from freshview.cdc.postgres.tables import PostgresTable, UnreadableChange
from freshview.cdc.sequenced_columns import SequencedColumns
from freshview.cdc.source import BadEvents, Poll, Quarantined, Source, bad_events
from freshview.cdc.turns import INSTALLING, taking_turns
from freshview.errors import CaptureFailed, FreshviewError, InvalidStatement, WriteConflict, first_line
from freshview.events import Events
from freshview.flows.delivery import Delivery, TooManyBad, differing, taken
from freshview.flows.expressions import evaluation
from freshview.flows.feeding import take_rows
from freshview.flows.opened import Opened, Opener, confirming
from freshview.flows.positions import unwrapped, wrapped
from freshview.relation.names import backticked
from freshview.relation.schema import Schema
from freshview.transactions.user_transaction import UserTransaction

if TYPE_CHECKING:
    from freshview.spark.engine import SparkEngine


@dataclass(frozen=True)
class Polled:
    """What one poll did: rows that changed, the CSN, and whether there is more to poll at once."""

    rows: int
    csn: int | None
    more: bool


@dataclass(frozen=True)
class Poller:
    """Polls flows, and commits what they bring."""

    catalog: Catalog
    events: Events
    begin: Callable[[], UserTransaction]
    engine: Callable[[], SparkEngine]
    opener: Opener
    turns: dict[int, threading.Lock] = field(default_factory=dict, compare=False)

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
                    return self._poll(confirming(self.opener.open(record), confirmed), full=full, replayed=replayed)
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
            except TooManyBad as reason:
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
        start, truncated = unwrapped(before, flow)
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
        delivery = taken(poll, opened, evaluation(self.engine, opened.feed.plan))
        self.events.emit("flow.polled", flow=flow.name, changes=delivery.number)
        with self.begin() as transaction:
            transaction.write_for(opened.record.name)
            whole = full and isinstance(source, PostgresTable | Dumps | DeltaVersions)
            if whole:
                delivery = differing(transaction, delivery, opened)
            rows, truncated = self._write(transaction, delivery, opened, truncated, whole=whole)
            bad = tuple(dict.fromkeys((*poll.quarantined, *delivery.bad)))
            aside = tuple((e.place, e.cause, e.text) for e in bad)
            position = wrapped(poll.position, truncated, opened.feed.plan)
            numbers = tuple(number for number, _ in replayed)
            moved = (target.id, target.name, opened.origin, before, position, opened.record.id, aside, numbers)
            transaction.move(Move(*moved))
        self.events.emit("flow.committed", flow=flow.name, rows=rows)
        self._report(bad, poll, delivery, opened)
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
        return self.opener.open(opened.record)

    def _write(
        self, transaction: UserTransaction, delivery: Delivery, opened: Opened, truncated: Any, *, whole: bool
    ) -> tuple[int, Any]:
        feed, plan = opened.feed, opened.feed.plan
        if delivery.delta is not None:
            names = [c.name for c in plan.values]
            return take_rows(transaction, feed.target, delivery.delta, names), truncated
        bad: list[Quarantined] = []
        if plan.flow.scd_type == 2:
            changes = delivery.changes.rows() if isinstance(delivery.changes, SequencedColumns) else delivery.changes
            rows = feed.write_history(transaction, changes, bad)
        else:
            whole = whole and not plan.is_feed
            rows, truncated = feed.write_latest(transaction, delivery.changes, truncated, bad, whole=whole)
        if bad and on_error_of(opened.options) == "stop":
            raise bad_events(opened.origin, bad)
        delivery.bad.extend(bad)
        return rows, truncated

    def _report(self, bad: Sequence[Quarantined], poll: Poll, delivery: Delivery, opened: Opened) -> None:
        name = opened.feed.target.name
        for event in bad:
            details = {"place": event.place, "cause": event.cause, "text": event.text}
            self.events.emit("capture.quarantined", relation=name, **details)
        for table, count in poll.skipped.items():
            self.events.emit("capture.skipped", relation=name, table=table, events=count)
        if delivery.ignored:
            table = f"{opened.origin} (deleted)"
            self.events.emit("capture.skipped", relation=name, table=table, events=delivery.ignored)


def _gained_columns(source: Source, start: str, options: dict[str, str]) -> bool:
    if not isinstance(source, PostgresTable | DeltaVersions) or not adds_columns(options):
        return False
    return source.adds_columns_since(start)
