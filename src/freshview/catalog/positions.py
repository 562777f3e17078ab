"""Positions of sources: up to where their changes were taken into a table, moved by compare-and-set."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from freshview.catalog import tables as t
from freshview.errors import WriteConflict


@dataclass(frozen=True)
class Move:
    """A source's move from one position to another, with the changes in between; None is before the first."""

    relation_id: int
    table: str
    source: str
    before: str | None
    after: str


def position_of(c: Connection, relation_id: int) -> tuple[str, str] | None:
    """The source that feeds a table, and its position."""
    p = t.positions.c
    row = c.execute(sa.select(p.source, p.position).where(p.relation_id == relation_id)).one_or_none()
    return None if row is None else (row.source, row.position)


def move(c: Connection, to: Move) -> None:
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
