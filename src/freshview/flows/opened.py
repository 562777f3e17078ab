"""A flow that is ready to be polled: its record, its source as it is now, and the tables that it feeds."""

from __future__ import annotations

from dataclasses import dataclass, replace

from freshview.catalog.flows import FlowCatalog, FlowRecord, SourceRecord
from freshview.catalog.records import Relation
from freshview.catalog.writer import Catalog
from freshview.cdc.dumps import Comparing, Dumps
from freshview.cdc.event_files import EventFiles
from freshview.cdc.flow import END, SEQUENCE, START, Plan, from_spec
from freshview.cdc.opening import KNOWN_COLUMNS, open_table
from freshview.cdc.postgres.tables import PostgresTable
from freshview.cdc.source import Source
from freshview.errors import InvalidStatement
from freshview.flows.feeding import Feed
from freshview.flows.positions import unwrapped
from freshview.relation.schema import Column, Schema, fold
from freshview.sql.statements import CreateFlow


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
class Opener:
    """Opens flows and their sources; `compare` compares large dumps."""

    catalog: Catalog
    compare: Comparing

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
        """Return the table of the source, with the columns that the source, the statement or the target names."""
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
        """Return a flow, with its source as it is now."""
        flow = from_spec(record.spec)
        target = self.catalog.relation_by_id(record.relation_id)
        memory = self.catalog.relation_by_id(record.memory_id) if record.memory_id is not None else None
        if target is None:
            raise InvalidStatement(f"flow {record.name}", "its table was dropped", "Drop the flow.")
        kept = FlowCatalog(self.catalog).source(flow.source)
        known = self.catalog.position(target.id)
        start = unwrapped(known[1], flow)[0] if known is not None else None
        owner = record.spec["owner"]
        source = self.open_source(kept, flow, target, owner, each=bool(flow.sequence), position=start)
        type_ = memory.schema.column(SEQUENCE).type if memory is not None else None
        plan = Plan(flow, source.schema, source.capture, type_)
        feed = Feed(plan, target, memory, is_sized=isinstance(source, PostgresTable))
        if isinstance(source, EventFiles) and not feed.fit.is_certain:
            source = source.fitting(feed.fit.unfit)
        return Opened(record, source, dict(kept.options), feed)


def confirming(opened: Opened, names: tuple[str, ...]) -> Opened:
    """Return a flow whose source takes these dumps although they are small; InvalidStatement if it takes no dumps."""
    if not names:
        return opened
    if not isinstance(opened.source, Dumps):
        raise InvalidStatement(
            f"flow {opened.record.name}", "it takes no dumps, so there is none to confirm", "Leave CONFIRM out."
        )
    return replace(opened, source=opened.source.confirming(names))


def _required_here(column: Column, target: Relation | None, *, ignored: bool) -> Column:
    """Return a column of events, NOT NULL if the target's is: an event without a value is a bad one."""
    required = target is not None and target.schema.has(column.name) and not target.schema.column(column.name).nullable
    return replace(column, nullable=ignored or (column.nullable and not required))
