"""EXPLAIN FLOW: where a flow takes changes from, what its capture costs at the source, and what applying costs here."""

from __future__ import annotations

from freshview.catalog.flows import FlowRecord
from freshview.cdc.captures import Capture
from freshview.cdc.delta_versions import DeltaVersions
from freshview.cdc.dumps import Dumps
from freshview.cdc.flow import Plan
from freshview.cdc.postgres.audit import Audit
from freshview.cdc.postgres.decoding import Decoding
from freshview.cdc.postgres.tables import PostgresTable
from freshview.cdc.postgres.tracking import Tracking
from freshview.cdc.postgres.triggers import TriggerLog
from freshview.cdc.source import Source
from freshview.errors import FreshviewError
from freshview.flows.refreshing import Flows
from freshview.flows.states import time_text

# What a technique costs at the source (PARTIAL §4): at each change, and at each poll.
_COSTS = {
    Tracking: "a trigger notes the key of each changed row; a poll joins the noted keys to the table",
    TriggerLog: "a trigger stores the old and the new image of each changed row; a poll reads the images",
    Decoding: "nothing at a change; the server keeps its log until it is confirmed, and a poll decodes it",
    Audit: "the application keeps the times; a poll reads the rows by time (add an index on the columns)",
    DeltaVersions: "nothing at a change; a poll reads changed files and, after insertions, the key columns",
    Dumps: "the writer of the dumps reads the whole table; a poll reads two dumps",
}
# The option of a technique of PostgreSQL, and the sets that it delivers at best.
_INSTEAD = {
    Tracking: ("tracking", "keys with the new rows (ins, up, delk)"),
    TriggerLog: ("triggers", "old and new images (ins, del, un/uo)"),
    Decoding: ("decoding", "new images, with REPLICA IDENTITY FULL the old ones too (ins, del, un/uo)"),
    Audit: ("audit", "changed rows, of deletions only those by a mark (ups; ins, up; ins, del, up, delk)"),
}


def explain_flow(flows: Flows, name: str) -> str:
    """Return the text of EXPLAIN FLOW."""
    opened = flows.poller.opener.open(flows.records.flow(name))
    plan, record, source = opened.feed.plan, opened.record, opened.source
    flow = plan.flow
    known = flows.poller.catalog.position(opened.feed.target.id)
    lines = [
        f"flow {record.name}: {opened.origin} into {opened.feed.target.name}, SCD type {flow.scd_type}",
        f"  polled: {opened.options.get('poll', 'manual')}; {_last(record)}",
        f"  on error: {opened.options.get('on error', 'stop')}; set aside: {len(flows.records.set_aside(record.id))}",
        f"  capture: {source.capture.technique}, delivers {', '.join(sorted(source.capture.sets))}",
        *_undetected(source.capture),
        f"  at the source: {_cost(source)}",
        f"  here: {_application(plan)}",
        *_instead(source),
        f"  key: {', '.join(plan.keys)}",
        f"  columns: {', '.join(c.name for c in plan.values)}",
    ]
    lines += [f"  deleted when: {flow.delete_when}"] if flow.delete_when else []
    lines += [f"  emptied when: {flow.truncate_when}"] if flow.truncate_when else []
    lines.append(f"  order: {flow.sequence or 'that of the source'}")
    if opened.feed.memory is not None:
        lines.append(f"  remembered: table {opened.feed.memory.name}")
    lines += [f"  {text}" for text in [slot_text(source)] if text]
    lines.append(f"  position: {known[1] if known else 'before the first poll, which takes all rows'}")
    return "\n".join(lines)


def _last(record: FlowRecord) -> str:
    last = f"last {time_text(record.polled_at)}" if record.polled_at else "not yet"
    return f"{last}; failed {time_text(record.failed_at)}: {record.error}" if record.failed_at else last


def _undetected(capture: Capture) -> list[str]:
    if not capture.undetected:
        return []
    return [f"  not seen: {', '.join(capture.undetected)} (declare them as 'never', or capture in another way)"]


def _cost(source: Source) -> str:
    known = [cost for kind, cost in _COSTS.items() if isinstance(source, kind)]
    return known[0] if known else "the writer of the events; a poll reads what is new in the files"


def _instead(source: Source) -> list[str]:
    """The other techniques of a server, with what they would deliver and cost at the source (PARTIAL §4)."""
    if not isinstance(source, PostgresTable):
        return []
    others = [(kind, text) for kind, text in _INSTEAD.items() if not isinstance(source, kind)]
    return [f"  instead: capture '{option}' delivers {sets}; {_COSTS[kind]}" for kind, (option, sets) in others]


def _application(plan: Plan) -> str:
    if plan.flow.scd_type == 2:
        return "the rows of each changed key are read, and those that differ are written"
    if plan.flow.sequence:
        return "the last sequence of each changed key is read; rows are written without reading the old ones"
    if plan.flow.ignore_null_updates:
        return "the row of each changed key is read and written"
    return "rows are written without reading the old ones"


def slot_text(source: Source) -> str:
    """Return what the server keeps for the replication slot of a source; an empty text if it has none."""
    if not isinstance(source, Decoding):
        return ""
    try:
        return f"replication slot: {source.slot}, {source.retained()} bytes of log are kept for it"
    except FreshviewError as error:
        return f"replication slot: {error}"
