"""The states of flows, from the catalog alone: when each was last polled, and what is wrong with it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from freshview.catalog.flows import FlowCatalog, FlowRecord, SourceRecord
from freshview.catalog.writer import Catalog

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
                _time(flow.polled_at) if flow.polled_at else "",
                aside.count(flow.id),
                _warning(flow, source, now),
            )
        )
    return tuple(found)


def _warning(flow: FlowRecord, source: SourceRecord | None, now: int) -> str:
    if flow.error:
        return flow.error
    keeps_log = source is not None and source.options.get("capture", "").lower() == "decoding"
    if keeps_log and flow.polled_at and now - flow.polled_at > UNREAD / timedelta(microseconds=1):
        return f"not polled since {_time(flow.polled_at)}: the server keeps its log for the replication slot"
    return "ok"


def _time(micros: int) -> str:
    return f"{datetime.fromtimestamp(micros / 1e6, UTC):%Y-%m-%d %H:%M:%S} UTC"
