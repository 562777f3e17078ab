"""Change tracking: a trigger notes keys and operations; rows are joined to the table when they are read.

What the join finds is the row as of the snapshot, so the new state is exact and the old one unknown. Whether there was
one follows from the numbers of notes, whatever their order (a trigger of the table may write to the table itself):

    the row is there now = the row was there + insertions noted - deletions noted
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from freshview.cdc.captures import TRACKING, Capture
from freshview.cdc.model import PartialDelta, partial_delta
from freshview.cdc.postgres.records import RecordedTable
from freshview.cdc.postgres.server import Server, Snapshot, qualified, quoted
from freshview.cdc.postgres.tables import unreadable


class Tracking(RecordedTable):
    """A table of whose changes a trigger notes the keys."""

    def __init__(self, server: Server, name: str, *, owner: str = "", columns: Sequence[str] | None = None) -> None:
        super().__init__(server, name, "track", owner, columns)

    @property
    def capture(self) -> Capture:
        return TRACKING

    def install(self) -> None:
        """Create the table of notes and the trigger."""
        key = self.schema.key
        names = ", ".join(f'"k{i}"' for i in range(len(key)))
        types = ", ".join(f'"k{i}" {self.layout.types[k]}' for i, k in enumerate(key))
        old, new = (", ".join(f"{row}.{quoted(k)}" for k in key) for row in ("OLD", "NEW"))
        insert = f"INSERT INTO {self.records} (op, {names}) VALUES"
        body = f"""
            IF TG_OP = 'TRUNCATE' THEN INSERT INTO {self.records} (op) VALUES ('T');
            ELSIF TG_OP = 'INSERT' THEN {insert} ('I', {new});
            ELSIF TG_OP = 'DELETE' THEN {insert} ('D', {old});
            ELSIF {self.is_other_key} THEN {insert} ('D', {old}), ('I', {new});
            ELSE {insert} ('U', {new}); END IF;"""
        self.install_triggers(types, body)

    def changes(self, snapshot: Snapshot, position: dict[str, Any] | None) -> tuple[PartialDelta, dict[str, Any]]:
        end = self.start(snapshot, (position or {}).get("records"))
        if position is None:
            return partial_delta(self.name, self.schema, ins=self.rows(snapshot)), end
        before = self.since(snapshot, position["snapshot"])
        key = self.schema.key
        noted = [f'"k{i}"' for i in range(len(key))]
        grouped = ", ".join([*noted, *(self.identity(n, k) for n, k in zip(noted, key, strict=True))])
        as_key = ", ".join(f"c.{n}{self.suffix(k)}" for n, k in zip(noted, key, strict=True))
        on = " AND ".join(
            f"t.{quoted(k)} = c.{n} AND {self.identity(f't.{quoted(k)}', k)} = {self.identity(f'c.{n}', k)}"
            for n, k in zip(noted, key, strict=True)
        )
        query = (
            f"SELECT c.emptied::text, c.more::text, {as_key}, {self.expressions('t')} FROM "
            f"(SELECT {', '.join(noted)}, bool_or(op = 'T') AS emptied, "
            f"count(*) FILTER (WHERE op = 'I') - count(*) FILTER (WHERE op = 'D') AS more "
            f"FROM {self.records} WHERE NOT pg_visible_in_snapshot(xid, %s::pg_snapshot) GROUP BY {grouped}) c "
            f"LEFT JOIN {qualified(self.name)} t ON {on}"
        )
        (emptied, more), (keys, rows) = self.extracted(snapshot, query, (before,), 2, key, self.schema.names)
        if pc.any(pc.equal(emptied, "true")).as_py():
            raise unreadable(f"table {self.name}", "it was truncated")
        is_live = pc.is_valid(rows.column(key[0]))
        existed = pc.subtract(is_live.cast(pa.int64()), more.cast(pa.int64()))
        if pc.any(pc.or_(pc.less(existed, 0), pc.greater(existed, 1))).as_py():
            raise unreadable(f"table {self.name}", f"notes of its changes are missing from {self._helper.name}")
        is_gone, was_new = pc.invert(is_live), pc.equal(existed, 0)
        delta = partial_delta(
            self.name,
            self.schema,
            ins=rows.filter(pc.and_(is_live, was_new)),
            up=rows.filter(pc.and_not(is_live, was_new)),
            delk=keys.filter(pc.and_not(is_gone, was_new)),
        )
        return delta, end
