"""Capture by triggers into a log table: old and new images of every change.

The net effect is precise (all records of a key count) or cheap (the last one does, which the server picks).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from freshview.cdc.captures import LOG, LOG_CHEAP, Capture
from freshview.cdc.columns import DELETED, ChangeColumns, net_effect_of
from freshview.cdc.model import key_schema, partial_delta
from freshview.cdc.postgres.server import Server, Snapshot, literal, qualified, quoted
from freshview.cdc.postgres.tables import (
    Changes,
    Helper,
    PostgresTable,
    check_triggers,
    drop_commands,
    trigger_commands,
    unreadable,
)

_WHAT = "log"


class TriggerLog(PostgresTable):
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
        super().__init__(server, name, columns)
        self._precise, self._each = precise or each, each
        self._helper = Helper(name, _WHAT, owner)
        self._log = qualified(self._helper.name)

    @property
    def capture(self) -> Capture:
        return LOG if self._precise else LOG_CHEAP

    def install(self) -> None:
        """Create the log table and the trigger. A changed key is recorded as a deletion and an insertion."""
        insert = f"INSERT INTO {self._log} (op, old, new) VALUES"
        old_key, new_key = (", ".join(f"{row}.{quoted(k)}" for k in self.schema.key) for row in ("OLD", "NEW"))
        body = f"""
            IF TG_OP = 'TRUNCATE' THEN {insert} ('T', NULL, NULL);
            ELSIF TG_OP = 'INSERT' THEN {insert} ('I', NULL, to_json(NEW));
            ELSIF TG_OP = 'DELETE' THEN {insert} ('D', to_json(OLD), NULL);
            ELSIF ({old_key}) IS DISTINCT FROM ({new_key}) THEN
                {insert} ('D', to_json(OLD), NULL), ('I', NULL, to_json(NEW));
            ELSE {insert} ('U', to_json(OLD), to_json(NEW)); END IF;"""
        self.server.run(
            f"CREATE TABLE {self._log} (seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, "
            'xid xid8 NOT NULL DEFAULT pg_current_xact_id(), op "char" NOT NULL, old json, new json)',
            *trigger_commands(self._helper, body),
        )

    def drop(self) -> None:
        """Remove the trigger and the log."""
        self.server.run(*drop_commands(self._helper))

    def confirm(self, position: str) -> None:
        """Delete the records up to a position."""
        query = f"DELETE FROM {self._log} WHERE pg_visible_in_snapshot(xid, %s::pg_snapshot)"
        self.server.run(query, parameters=(json.loads(position)["snapshot"],))

    def start(self, snapshot: Snapshot, records: int | None = None) -> dict[str, Any]:
        return {"snapshot": snapshot.text, "records": check_triggers(snapshot, self._helper, records)}

    def changes(self, snapshot: Snapshot, position: dict[str, Any] | None) -> tuple[Changes, dict[str, Any]]:
        end = self.start(snapshot, (position or {}).get("records"))
        if position is None:
            rows = self.rows(snapshot)
            return partial_delta(self.name, self.schema, **{"ins" if self._precise else "ups": rows}), end
        records = self._records(snapshot, position["snapshot"])
        return (records.rows() if self._each else net_effect_of(self.name, records, precise=self._precise)), end

    def _records(self, snapshot: Snapshot, before: str) -> ChangeColumns:
        """The records that were not visible at the position, in the order of their numbers.

        Changes of one row wait for each other's locks, so for each key this is the order of commits.
        """
        snapshot.since(before, f"table {self.name}")
        key = ", ".join(f"coalesce(l.new, l.old) ->> {literal(k)}" for k in self.schema.key)
        last_only = "" if self._precise else f"DISTINCT ON (op = 'T', {key})"
        order = "l.seq" if self._precise else f"op = 'T', {key}, l.seq DESC"
        of_table = f"json_populate_record(NULL::{qualified(self.name)}, "
        query = (
            f"SELECT {last_only} l.seq::text, l.op::text, {self.expressions('o')}, {self.expressions('n')} "
            f"FROM {self._log} l, LATERAL {of_table}l.old) o, LATERAL {of_table}l.new) n "
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
