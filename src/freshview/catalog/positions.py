"""Positions of sources: up to where their changes were taken into a table, moved by compare-and-set."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from freshview.catalog import tables as t
from freshview.errors import WriteConflict


@dataclass(frozen=True)
class Move:
    """A source's move from one position to another, with the changes in between; None is before the first.

    Of a flow: `set_aside` are the events that it could not read (place, cause, text), and `replayed` the numbers of
    those that were read again.
    """

    relation_id: int
    table: str
    source: str
    before: str | None
    after: str
    flow_id: int | None = None
    set_aside: tuple[tuple[str, str, str], ...] = ()
    replayed: tuple[int, ...] = ()


def position_of(c: Connection, relation_id: int) -> tuple[str, str] | None:
    """The source that feeds a table, and its position."""
    p = t.positions.c
    row = c.execute(sa.select(p.source, p.position).where(p.relation_id == relation_id)).one_or_none()
    return None if row is None else (row.source, row.position)


def positions_of(c: Connection, relation_ids: Collection[int]) -> dict[int, str]:
    """The positions of the sources of some tables, by their ids."""
    p = t.positions.c
    found = c.execute(sa.select(p.relation_id, p.position).where(p.relation_id.in_(list(relation_ids))))
    return {row.relation_id: row.position for row in found}


def move(c: Connection, to: Move, now: int) -> None:
    """Move a position inside a transaction that holds the clock; WriteConflict if another process moved it first."""
    known = position_of(c, to.relation_id)
    if known != (None if to.before is None else (to.source, to.before)):
        raise WriteConflict(
            f"table {to.table}", f"another process took changes of {to.source} meanwhile", "Capture again."
        )
    if known is None:
        values = {"relation_id": to.relation_id, "source": to.source, "position": to.after}
        c.execute(t.positions.insert().values(**values))
    else:
        at = t.positions.c.relation_id == to.relation_id
        c.execute(t.positions.update().where(at).values(position=to.after))
    if to.flow_id is not None:
        _note(c, to, now)


def _note(c: Connection, to: Move, now: int) -> None:
    """Note that a flow was polled, and what it set aside."""
    polled = t.flows.update().where(t.flows.c.id == to.flow_id).values(polled_at=now, failed_at=None, error=None)
    if not c.execute(polled).rowcount:
        raise WriteConflict(f"table {to.table}", "its flow was dropped meanwhile", "SHOW FLOWS lists what there is.")
    q = t.quarantine.c
    c.execute(t.quarantine.delete().where(q.flow_id == to.flow_id, q.id.in_(to.replayed)))
    known = set(c.execute(sa.select(q.place).where(q.flow_id == to.flow_id)).scalars())
    for place, cause, text in to.set_aside:
        if place not in known:
            values = {"flow_id": to.flow_id, "place": place, "cause": cause, "text": text, "at": now}
            c.execute(t.quarantine.insert().values(**values))
