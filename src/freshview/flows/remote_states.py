"""The states of remote tables, from the catalog alone: when each was last polled, and what is wrong with it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from freshview.catalog.flows import FlowCatalog
from freshview.catalog.records import REMOTE
from freshview.catalog.writer import Catalog
from freshview.flows.states import time_text, unread_slot


@dataclass(frozen=True)
class RemoteState:
    """A remote table: its source's table, how that is captured, and when it was last polled for the views over it."""

    name: str
    origin: str
    capture: str
    poll: str
    polled: str = field(compare=False)  # time of the last poll, to a minute; empty while no view reads the table
    warning: str = field(compare=False)  # what is wrong, or "ok"


def remote_states(catalog: Catalog) -> tuple[RemoteState, ...]:
    """Return the states of all remote tables."""
    with catalog.database.read() as c:
        relations = catalog.relations_in(c, kind=REMOTE)
    if not relations:
        return ()
    sources, now = {s.name: s for s in FlowCatalog(catalog).sources()}, catalog.now()
    found = []
    for relation in relations:
        source, position = sources.get(relation.facts["source"]), catalog.position(relation.id)
        options = source.options if source else {}
        at = json.loads(position[1]).get("at") if position else None  # earlier versions stored no time
        found.append(
            RemoteState(
                relation.name,
                f"{relation.facts['source']}.{relation.facts['table']}",
                options.get("capture", "tracking").lower(),
                options.get("poll", "manual"),
                time_text(at) if at else "",
                unread_slot(source, at, now) or "ok",
            )
        )
    return tuple(found)
