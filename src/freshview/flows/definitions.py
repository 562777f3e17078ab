"""CREATE, ALTER and DROP of sources and flows."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from freshview.catalog.flows import FlowCatalog, FlowRecord, SourceRecord
from freshview.catalog.records import FLOW, Relation
from freshview.catalog.writer import Catalog
from freshview.cdc.altering import Follower, altered
from freshview.cdc.flow import Plan, from_spec, to_spec
from freshview.cdc.opening import Installed, check_source
from freshview.cdc.postgres.server import Server
from freshview.errors import AlreadyExists, FreshviewError, InvalidStatement
from freshview.flows.expressions import check_conditions, sequence_type
from freshview.flows.polling import Poller
from freshview.flows.positions import unwrapped
from freshview.sql.statements import AlterSource, CreateFlow, CreateSource, DropFlow, DropSource
from freshview.views.cycles import Position


@dataclass(frozen=True)
class FlowDefinitions:
    """Runs the statements that create, alter and drop sources and flows.

    `drop_table` drops a remote table with all views over it.
    """

    poller: Poller
    drop_table: Callable[[str], object]

    @property
    def records(self) -> FlowCatalog:
        return FlowCatalog(self.poller.catalog)

    def run(self, statement: CreateSource | AlterSource | DropSource | CreateFlow | DropFlow) -> None:
        match statement:
            case CreateSource():
                self._create_source(statement)
            case AlterSource():
                _alter_source(self.poller.catalog, statement)
            case DropSource():
                self._drop_source(statement)
            case CreateFlow():
                self._create(statement)
            case DropFlow():
                self._drop(statement)

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
                self.poller.opener.open(flow)
        except FreshviewError as error:
            first = " and ".join(["DROP FLOW … FORCE"] * bool(flows) + ["DROP REMOTE TABLE … CASCADE"] * bool(tables))
            raise InvalidStatement(
                f"source {source.name}",
                f"what is installed there (fv_…) cannot be removed, so nothing was dropped: {error}",
                f"Try again; or {first}, then drop the source, and remove by hand what is left there.",
            ) from error

    # -- flows ---------------------------------------------------------------------------------

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
        source = self.poller.opener.open_source(record, statement, target, owner)
        plan = Plan(statement, source.schema, source.capture)
        plan = replace(plan, sequence_type=sequence_type(self.poller.engine, plan))
        if target is not None:
            plan.check_target(target.schema, target.name)
        check_conditions(self.poller.engine, plan)
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

    def _drop(self, statement: DropFlow) -> None:
        """DROP FLOW: remove what the technique installed at the source, then the record and the memory."""
        if statement.if_exists and self.records.find_flow(statement.name) is None:
            return
        record = self.records.flow(statement.name)
        try:
            if self.records.source(record.spec["source"]).kind == "POSTGRES":  # other kinds install nothing
                source = self.poller.opener.open(record).source
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


def _alter_source(catalog: Catalog, statement: AlterSource) -> None:
    """Give a source other options, in one transaction and with regard to all that reads the source.

    Positions of flows and remote tables stay, and so does what is installed.
    """
    records = FlowCatalog(catalog)
    record = records.source(statement.name)
    flows = [f for f in records.flows() if f.source_id == record.id]
    tables = records.remote_tables(record)
    readers = [*(_of_flow(catalog, f) for f in flows), *(_of_table(catalog, t) for t in tables)]
    records.alter_source(record, altered(record, dict(statement.options), readers), len(readers))


def _of_flow(catalog: Catalog, flow: FlowRecord) -> Follower:
    known = catalog.position(flow.relation_id)
    position = unwrapped(known[1] if known is not None else None, from_spec(flow.spec))[0]
    return Follower(f"flow {flow.name}", flow.spec["table"], position, f"REFRESH FLOW {flow.name}")


def _of_table(catalog: Catalog, table: Relation) -> Follower:
    known = catalog.position(table.id)
    position = Position.of(known[1]).at if known is not None else None
    poll = "REFRESH MATERIALIZED VIEW of a view of it"
    return Follower(f"remote table {table.name}", table.facts["table"], position, poll)
