"""ALTER SOURCE: the options of a source change in one transaction, with regard to all that reads the source."""

from __future__ import annotations

import json

from freshview.catalog.flows import FlowCatalog, FlowRecord
from freshview.catalog.records import Relation
from freshview.catalog.writer import Catalog
from freshview.cdc.altering import Follower, altered
from freshview.sql.statements import AlterSource
from freshview.views.cycles import Position


def alter_source(catalog: Catalog, statement: AlterSource) -> None:
    """Give a source other options; positions of flows and remote tables stay, and so does what is installed."""
    records = FlowCatalog(catalog)
    record = records.source(statement.name)
    flows = [f for f in records.flows() if f.source_id == record.id]
    tables = records.remote_tables(record)
    readers = [*(_of_flow(catalog, f) for f in flows), *(_of_table(catalog, t) for t in tables)]
    records.alter_source(record, altered(record, dict(statement.options), readers), len(readers))


def _of_flow(catalog: Catalog, flow: FlowRecord) -> Follower:
    known = catalog.position(flow.relation_id)
    position = known[1] if known is not None else None
    if position is not None and flow.spec["truncate_when"]:
        position = json.loads(position)["source"]
    return Follower(f"flow {flow.name}", flow.spec["table"], position, f"REFRESH FLOW {flow.name}")


def _of_table(catalog: Catalog, table: Relation) -> Follower:
    known = catalog.position(table.id)
    position = Position.of(known[1]).at if known is not None else None
    poll = "REFRESH MATERIALIZED VIEW of a view of it"
    return Follower(f"remote table {table.name}", table.facts["table"], position, poll)
