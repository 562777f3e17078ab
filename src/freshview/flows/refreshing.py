"""When flows are polled: by a statement, before a query that reads their tables, and at times; and what they forget."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from freshview.catalog.flows import FlowCatalog, FlowRecord
from freshview.cdc.flow import from_spec
from freshview.cdc.opening import poll_of
from freshview.errors import WriteConflict
from freshview.flows.definitions import FlowDefinitions
from freshview.flows.feeding import forgettable, table_of
from freshview.flows.polling import Poller
from freshview.sql.statements import FlowStatement, Quarantine, RefreshFlow
from freshview.transactions.transaction import Outcome
from freshview.views.reading import Freshness


@dataclass(frozen=True)
class Flows:
    """Runs the statements about sources and flows, and polls flows when it is time."""

    definitions: FlowDefinitions

    @property
    def poller(self) -> Poller:
        return self.definitions.poller

    @property
    def records(self) -> FlowCatalog:
        return self.definitions.records

    def run(self, statement: FlowStatement) -> Outcome:
        """Run a statement about sources and flows."""
        match statement:
            case RefreshFlow():
                return self.refresh(statement.name, full=statement.full, confirmed=statement.confirmed)
            case Quarantine():
                return self._replay(statement.flow) if statement.what == "replay" else self._clear(statement.flow)
        self.definitions.run(statement)
        return Outcome(0, self.poller.catalog.snapshot())

    # -- polling -------------------------------------------------------------------------------

    def refresh(self, name: str, *, full: bool = False, confirmed: tuple[str, ...] = ()) -> Outcome:
        """Take all that changed at the source; return the changed rows and the CSN.

        `full` reads the source anew and writes the difference to what is here: the way out where changes were lost.
        `confirmed` names dumps that are right although they are small.
        """
        done = self.poller.poll(name, full=full, confirmed=confirmed)
        rows = done.rows
        while done.more:
            done = self.poller.poll(name, confirmed=confirmed)
            rows += done.rows
        return Outcome(rows, done.csn)

    def _replay(self, name: str) -> Outcome:
        """Read the events that a flow set aside once more, and all that came after them; return the changed rows."""
        aside = self.records.set_aside(self.records.flow(name).id)
        if not aside:
            return Outcome(0, self.poller.catalog.snapshot())
        done = self.poller.poll(name, replayed=tuple((event.id, event.place) for event in aside))
        rows = done.rows
        while done.more:
            done = self.poller.poll(name)
            rows += done.rows
        return Outcome(rows, done.csn)

    def _clear(self, name: str) -> Outcome:
        """Forget the events that a flow set aside."""
        aside = self.records.set_aside(self.records.flow(name).id)
        self.records.discard([event.id for event in aside])
        return Outcome(len(aside), self.poller.catalog.snapshot())

    def look(self, relation_ids: Collection[int] | None = None, freshness: Freshness = None) -> None:
        """Poll the flows that are polled on query, into these tables (default: all), before a fresh query reads them.

        An error is raised: what the query would show is not fresh.
        """
        for record, when in self._timed():
            if when != "on query" or (relation_ids is not None and record.relation_id not in relation_ids):
                continue
            if isinstance(freshness, timedelta) and self._age(record) <= freshness:
                continue
            self.refresh(record.name)

    @property
    def on_query(self) -> frozenset[int]:
        """Ids of the tables whose flows are polled on query."""
        return frozenset(record.relation_id for record, when in self._timed() if when == "on query")

    def turn(self) -> None:
        """Poll the flows whose time has come. An error is noted and reported, and the flow polled again later."""
        for record, when in self._timed():
            if isinstance(when, timedelta) and self._age(record, tried=True) >= when:
                with suppress(Exception):  # whatever it is, the other flows go on
                    self.refresh(record.name)

    def _timed(self) -> Sequence[tuple[FlowRecord, timedelta | str]]:
        flows = self.records.flows()
        options = {s.id: s.options for s in self.records.sources()} if flows else {}
        return [(f, poll_of(options[f.source_id])) for f in flows if f.source_id in options]

    def _age(self, record: FlowRecord, *, tried: bool = False) -> timedelta:
        """The time since a flow was last polled with success (or `tried`)."""
        last = max(record.polled_at or 0, (record.failed_at or 0) if tried else 0)
        return timedelta(microseconds=self.poller.catalog.now() - last)

    # -- upkeep --------------------------------------------------------------------------------

    def forget(self, retention: timedelta) -> None:
        """Forget deletions and superseded events that are older than the retention; those of a flow that is polled
        meanwhile are left to the next time."""
        before = datetime.now(UTC) - retention
        for record in self.records.flows():
            catalog = self.poller.catalog
            memory = catalog.relation_by_id(record.memory_id) if record.memory_id is not None else None
            if memory is None:
                continue
            flow, schema = from_spec(record.spec), memory.schema
            with suppress(WriteConflict), self.poller.begin() as transaction:
                transaction.write_for(record.name)
                old = forgettable(transaction.contents(memory.name), flow.keys, flow.scd_type, before)
                if old:
                    transaction.delete(memory.name, table_of(old, schema.key, schema))
