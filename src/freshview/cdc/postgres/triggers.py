"""Capture by triggers into a log table: old and new images of every change.

The net effect is precise (all records of a key count) or cheap (the last one does, which the server picks). Images are
stored as the text of the row, from which the server reads each value again as it was; JSON would not do, which has one
null for SQL's and its own.

Limit: a trigger or a cascade that changes a row while the statement that fired it has still to record its own change
of that row puts the records out of order. `depth` shows it, and the poll is an error: change tracking has no order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from freshview.cdc.captures import LOG, LOG_CHEAP, Capture
from freshview.cdc.columns import DELETED, ChangeColumns, net_effect_of
from freshview.cdc.model import key_schema, partial_delta
from freshview.cdc.postgres.records import RecordedTable
from freshview.cdc.postgres.server import Server, Snapshot, qualified, quoted
from freshview.cdc.postgres.tables import Changes, unreadable
from freshview.errors import CaptureFailed


class TriggerLog(RecordedTable):
    """A table whose changes a trigger records."""

    def __init__(
        self,
        server: Server,
        name: str,
        *,
        precise: bool = True,
        owner: str = "",
        each: bool = False,
        columns: Sequence[str] | None = None,
    ) -> None:
        """`each`: deliver each record, not the net effect."""
        super().__init__(server, name, "log", owner, columns)
        self._precise, self._each = precise or each, each

    @property
    def capture(self) -> Capture:
        return LOG if self._precise else LOG_CHEAP

    def install(self) -> None:
        """Create the log table and the trigger. A changed key is recorded as a deletion and an insertion."""
        insert = f"INSERT INTO {self.records} (op, old, new) VALUES"
        body = f"""
            IF TG_OP = 'TRUNCATE' THEN {insert} ('T', NULL, NULL);
            ELSIF TG_OP = 'INSERT' THEN {insert} ('I', NULL, NEW::text);
            ELSIF TG_OP = 'DELETE' THEN {insert} ('D', OLD::text, NULL);
            ELSIF {self.is_other_key} THEN
                {insert} ('D', OLD::text, NULL), ('I', NULL, NEW::text);
            ELSE {insert} ('U', OLD::text, NEW::text); END IF;"""
        columns = "old text, new text, depth int NOT NULL DEFAULT pg_trigger_depth()"
        self.install_triggers(columns, body)

    def changes(self, snapshot: Snapshot, position: dict[str, Any] | None) -> tuple[Changes, dict[str, Any]]:
        end = self.start(snapshot, (position or {}).get("records"))
        if position is None:
            rows = self.rows(snapshot)
            return partial_delta(self.name, self.schema, **{"ins" if self._precise else "ups": rows}), end
        records = self._records(snapshot, position["snapshot"])
        return (records if self._each else net_effect_of(self.name, records, precise=self._precise)), end

    def _records(self, snapshot: Snapshot, before: str) -> ChangeColumns:
        """The records that were not visible at the position, in the order of their numbers.

        Changes of one row wait for each other's locks, so for each key this is the order of commits.
        """
        self.since(snapshot, before)
        self._require_order(snapshot, before)
        key, images = self._key(), self._images()
        last_only = "" if self._precise else f"DISTINCT ON (op = 'T', {key})"
        order = "l.seq" if self._precise else f"op = 'T', {key}, l.seq DESC"
        query = (
            f"SELECT {last_only} l.seq::text, l.op::text, {self.expressions('o')}, {self.expressions('n')} "
            f"FROM {self.records} l, {images} "
            f"WHERE NOT pg_visible_in_snapshot(l.xid, %s::pg_snapshot) ORDER BY {order}"
        )
        names = self.schema.names
        (numbers, ops), (old, new) = self.extracted(snapshot, query, (before,), 2, names, names)
        truncated = pc.index(ops, "T").as_py()
        if truncated >= 0:
            cause = f"it was truncated (record {numbers[truncated].as_py()} of its log)"
            raise unreadable(f"table {self.name}", cause)
        kinds = pc.index_in(ops, pa.array(["I", "U", "D"])).to_numpy()  # INSERTED, UPDATED, DELETED
        is_gone = pa.array(kinds == DELETED)
        keys = [pc.if_else(is_gone, old.column(k), new.column(k)) for k in self.schema.key]
        key_columns = pa.table(keys, schema=key_schema(self.schema).arrow)
        return ChangeColumns(self.schema, kinds, key_columns, new, old, numbers, "record")

    def _require_order(self, snapshot: Snapshot, before: str) -> None:
        """Raise if a transaction recorded a change of a row before another one that was made earlier, further outside.

        Records of a transaction without any change by a trigger or a cascade are in order.
        """
        new = "NOT pg_visible_in_snapshot({}.xid, %s::pg_snapshot)"
        query = (
            "SELECT seq FROM (SELECT l.seq, l.depth, max(l.depth) OVER (PARTITION BY l.xid, "
            f"{self._key()} ORDER BY l.seq) AS deepest FROM {self.records} l, {self._images()} WHERE {new.format('l')} "
            f"AND l.xid IN (SELECT d.xid FROM {self.records} d WHERE d.depth > 1 AND {new.format('d')})) x "
            "WHERE depth < deepest ORDER BY seq LIMIT 1"
        )
        found = snapshot.fetch(query, (before, before))
        if found:
            cause = f"a trigger or a cascade changed a row before record {found[0][0]} of the change that fired it"
            remedy = "The order of such changes is not known: create the source with capture 'tracking'."
            raise CaptureFailed(f"table {self.name}", cause, remedy)

    def _key(self) -> str:
        """The key of a record `l` with its images `o` and `n`."""
        both = ((self.identity(f"{row}.{quoted(k)}", k) for row in ("n", "o")) for k in self.schema.key)
        return ", ".join(f"coalesce({new}, {old})" for new, old in both)

    def _images(self) -> str:
        """The old and the new image of a record `l` as rows `o` and `n` of the table."""
        row = f"LATERAL (SELECT (x.r).* FROM (SELECT l.{{}}::{qualified(self.name)} AS r OFFSET 0) x)"
        return f"{row.format('old')} o, {row.format('new')} n"
