"""Sources and flows: the statements about them, and when flows are polled."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from freshview.catalog.flows import FlowCatalog, FlowRecord, SourceRecord
from freshview.catalog.records import FLOW, Relation
from freshview.cdc.arrivals import described_schema
from freshview.cdc.flow import Plan, from_spec, to_spec
from freshview.cdc.opening import Installed, check_source, poll_of
from freshview.cdc.postgres.server import Server
from freshview.errors import AlreadyExists, FreshviewError, InvalidStatement, WriteConflict
from freshview.flows.altering import alter_source
from freshview.flows.feeding import forgettable, table_of
from freshview.flows.polling import Poller, qualifier
from freshview.relation.types import DataType
from freshview.sql.dml import ROW_ID, RowQuery, one_value
from freshview.sql.statements import (
    AlterSource,
    CreateFlow,
    CreateSource,
    DropFlow,
    DropSource,
    FlowStatement,
    Quarantine,
    RefreshFlow,
)
from freshview.transactions.transaction import Outcome
from freshview.views.reading import Freshness


@dataclass(frozen=True)
class Flows:
    """Runs the statements about sources and flows, and polls flows when it is time.

    `drop_table` drops a remote table with all views over it.
    """

    poller: Poller
    drop_table: Callable[[str], object]

    @property
    def records(self) -> FlowCatalog:
        return FlowCatalog(self.poller.catalog)

    def run(self, statement: FlowStatement) -> Outcome:
        """Run a statement about sources and flows."""
        match statement:
            case CreateSource():
                self._create_source(statement)
            case AlterSource():
                alter_source(self.poller.catalog, statement)
            case DropSource():
                self._drop_source(statement)
            case CreateFlow():
                self._create(statement)
            case DropFlow():
                self._drop(statement)
            case RefreshFlow():
                return self.refresh(statement.name, full=statement.full, confirmed=statement.confirmed)
            case Quarantine():
                return self._replay(statement.flow) if statement.what == "replay" else self._clear(statement.flow)
        return Outcome(0, self.poller.catalog.snapshot())

    # -- sources -------------------------------------------------------------------------------

    def _create_source(self, statement: CreateSource) -> None:
        if statement.if_not_exists and self.records.find_source(statement.name) is not None:
            return
        options = dict(statement.options)
        check_source(statement.kind, options)
        self.records.create_source(statement.name, statement.kind, options)

    def _drop_source(self, statement: DropSource) -> None:
        if statement.if_exists and self.records.find_source(statement.name) is None:
            return
        source = self.records.source(statement.name)
        if statement.cascade:
            flows = [f for f in self.records.flows() if f.source_id == source.id]
            tables = self.records.remote_tables(source)
            self._require_open(source, flows, tables)
            for table in tables:
                self.drop_table(table.name)
            for flow in flows:
                self._drop(DropFlow(flow.name))
        self.records.drop_source(source)

    def _require_open(self, source: SourceRecord, flows: Sequence[FlowRecord], tables: Sequence[Relation]) -> None:
        """Raise before anything is dropped, if what flows and tables of a source installed there cannot be removed."""
        try:
            if source.kind == "POSTGRES" and (flows or tables):
                with Server(source.options["url"]).connect():
                    pass
            for flow in flows if source.kind == "POSTGRES" else ():  # other kinds install nothing
                self.poller.open(flow)
        except FreshviewError as error:
            first = " and ".join(["DROP FLOW … FORCE"] * bool(flows) + ["DROP REMOTE TABLE … CASCADE"] * bool(tables))
            raise InvalidStatement(
                f"source {source.name}",
                f"what is installed there (fv_…) cannot be removed, so nothing was dropped: {error}",
                f"Try again; or {first}, then drop the source, and remove by hand what is left there.",
            ) from error

    # -- definitions ---------------------------------------------------------------------------

    def _create(self, statement: CreateFlow) -> None:
        """CREATE FLOW: check all that can be checked, create what is missing here, and store the flow.

        At the source nothing changes before the first poll, which installs what the technique needs.
        """
        catalog = self.poller.catalog
        known, target = self.records.find_flow(statement.name), catalog.find(statement.target)
        if known is not None:
            if statement.if_not_exists:
                return
            raise AlreadyExists(f"flow {known.name}", "exists already", "Choose another name, or use IF NOT EXISTS.")
        record = self.records.source(statement.source)
        other = [f.name for f in self.records.flows() if target is not None and f.relation_id == target.id]
        if other:
            raise AlreadyExists(f"flow {other[0]}", "feeds that table already", "A table is fed by one flow.")
        owner = uuid.uuid4().hex[:12]
        if target is not None and target.kind != "table":
            raise InvalidStatement(f"{target.kind} {target.name}", "is read-only here", "Feed a table.")
        source = self.poller.open_source(record, statement, target, owner)
        plan = Plan(statement, source.schema, source.capture)
        plan = replace(plan, sequence_type=self._sequence_type(plan))
        if target is not None:
            plan.check_target(target.schema, target.name)
        self._check_conditions(plan)
        memory_name = f"__flow_{statement.name}"
        self._drop_unused(memory_name)
        with self.poller.begin() as transaction:
            if target is None:
                transaction.create(statement.target, plan.target, {})
            if plan.memory is not None:
                comment = {"comment": f"what flow {statement.name} remembers"}
                transaction.create(memory_name, plan.memory, comment, {FLOW: statement.name})
        made = catalog.relation(statement.target)
        memory = catalog.relation(memory_name).id if plan.memory is not None else None
        self.records.create_flow(statement.name, made.id, record.id, to_spec(statement, owner), memory)

    def _drop_unused(self, name: str) -> None:
        """Remove the memory of a flow that was never stored, or no longer is: its process died in between."""
        left = self.poller.catalog.find(name)
        if left is not None and left.id not in {flow.memory_id for flow in self.records.flows()}:
            self.poller.catalog.drop(name)

    def _sequence_type(self, plan: Plan) -> DataType | None:
        """The type of SEQUENCE BY; Spark is asked if it is more than a column."""
        if not plan.flow.sequence:
            return None
        plain = plan.plain_sequence
        if plain is not None:
            return plan.source.column(plain).type
        engine, schema = self.poller.engine(), described_schema(plan.source)
        frame = engine.numbered(schema.arrow.empty_table(), schema, ROW_ID)
        query = RowQuery(qualifier(plan), "", (f"{one_value(plan.flow.sequence)} AS sequence",))
        what = f"SEQUENCE BY of flow {plan.flow.name}"
        return engine.schema_of(engine.evaluated(frame, query, what), ()).columns[0].type

    def _check_conditions(self, plan: Plan) -> None:
        """Have Spark analyse the conditions, so that a wrong name is an error of CREATE FLOW."""
        asked = [text for text in (plan.flow.delete_when, plan.flow.truncate_when) if text]
        if asked:
            schema = described_schema(plan.source)
            self.poller.evaluate(plan)(schema.arrow.empty_table(), schema, asked)

    def _drop(self, statement: DropFlow) -> None:
        """DROP FLOW: remove what the technique installed at the source, then the record and the memory."""
        if statement.if_exists and self.records.find_flow(statement.name) is None:
            return
        record = self.records.flow(statement.name)
        try:
            if self.records.source(record.spec["source"]).kind == "POSTGRES":  # other kinds install nothing
                source = self.poller.open(record).source
                if isinstance(source, Installed):
                    source.drop()
        except FreshviewError as error:
            left = f"fv_…{record.spec['owner']}"
            if not statement.force:
                raise InvalidStatement(
                    f"flow {record.name}",
                    f"what it installed at its source ({left}) cannot be removed: {error}",
                    f"Try again; or DROP FLOW {record.name} FORCE, and remove it there by hand.",
                ) from error
            self.poller.events.emit("flow.left", flow=record.name, installed=left, error=str(error))
        catalog = self.poller.catalog
        memory = catalog.relation_by_id(record.memory_id) if record.memory_id is not None else None
        self.records.drop_flow(record.id)
        if memory is not None:
            catalog.drop(memory.name)

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
