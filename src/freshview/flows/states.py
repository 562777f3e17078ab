"""The states of flows, from the catalog alone: when each was last polled, and what is wrong with it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from freshview.catalog.flows import FlowCatalog, FlowRecord, SourceRecord
from freshview.catalog.writer import Catalog
from freshview.cdc.captures import ONE_AUDIT_COLUMN, THREE_AUDIT_COLUMNS, TWO_AUDIT_COLUMNS

UNREAD = timedelta(hours=1)  # after which a slot that nobody reads is reported: the server keeps its log for it


@dataclass(frozen=True)
class FlowState:
    """A flow: the table that it feeds, its source's table, and when it was last polled."""

    name: str
    target: str
    origin: str
    scd_type: int
    poll: str
    polled: str = field(compare=False)  # time of the last poll, empty before the first
    set_aside: int  # events in the quarantine
    warning: str = field(compare=False)  # what is wrong, or "ok"


def flow_states(catalog: Catalog) -> tuple[FlowState, ...]:
    """Return the states of all flows."""
    records = FlowCatalog(catalog)
    flows = records.flows()
    if not flows:
        return ()
    sources = {s.id: s for s in records.sources()}
    aside = [event.flow_id for event in records.set_aside()]
    now = catalog.now()
    found = []
    for flow in flows:
        target = catalog.relation_by_id(flow.relation_id)
        source = sources.get(flow.source_id)
        found.append(
            FlowState(
                flow.name,
                target.name if target else "",
                f"{flow.spec['source']}.{flow.spec['table']}",
                flow.spec["scd_type"],
                source.options.get("poll", "manual") if source else "",
                time_text(flow.polled_at) if flow.polled_at else "",
                aside.count(flow.id),
                _warning(flow, source, now),
            )
        )
    return tuple(found)


def _warning(flow: FlowRecord, source: SourceRecord | None, now: int) -> str:
    return flow.error or unread_slot(source, flow.polled_at, now) or unseen_changes(source) or "ok"


def unseen_changes(source: SourceRecord | None) -> str:
    """Return a warning if the capture of a source misses a kind of change that its owner did not rule out."""
    if source is None or source.options.get("capture", "").lower() != "audit":
        return ""
    options = source.options
    kind = TWO_AUDIT_COLUMNS if options.get("inserted") else ONE_AUDIT_COLUMN
    never = filter(None, map(str.strip, options.get("never", "").lower().split(",")))
    missed = (THREE_AUDIT_COLUMNS if options.get("deleted") else kind).without(*never).undetected
    if not missed:
        return ""
    kinds = ", ".join(missed)
    return f"{kinds} at the source are not seen (capture 'audit' sees them by 'deleted'; never '{kinds}' declares none)"


def unread_slot(source: SourceRecord | None, polled_at: int | None, now: int) -> str:
    """Return a warning if a table of a source was last polled long ago, and its server keeps the log since then."""
    keeps_log = source is not None and source.options.get("capture", "").lower() == "decoding"
    if not keeps_log or not polled_at or now - polled_at <= UNREAD / timedelta(microseconds=1):
        return ""
    return f"not polled since {time_text(polled_at)}: the server keeps its log for the replication slot"


def time_text(micros: int) -> str:
    """Return a time of the catalog's clock as text."""
    return f"{datetime.fromtimestamp(micros / 1e6, UTC):%Y-%m-%d %H:%M:%S} UTC"
