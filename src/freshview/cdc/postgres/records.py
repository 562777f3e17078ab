"""Records of changes beside a captured table: triggers write them, polls read them, confirmations remove them.

Law: no poll misses a record that was removed. A confirmation removes the records that its position has seen, and in the
same statement keeps that position in the table (the row with number 0), unless it has a later one. So whatever was ever
removed had been seen by that position, and a poll from a position that has not seen all of it is refused: that of a
warehouse which was restored from a backup, or of a copy whose original went on.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from freshview.cdc.postgres.server import ANEW, Server, Snapshot, Visible, fetch, qualified, quoted
from freshview.cdc.postgres.tables import PostgresTable
from freshview.errors import CaptureFailed

_LONGEST = 63 - len("fv_track_")  # bytes of a name in PostgreSQL
# What the row with number 0 holds: the last position that removed records, and when and by whom it was confirmed.
_TAKEN = ("taken pg_snapshot", "taken_at timestamptz", "taken_by text")


@dataclass(frozen=True)
class Helper:
    """What a technique installs beside a table: a table of records, a function and two triggers.

    Each reader has its own, by its name (`owner`): a reader removes the records that it has taken.
    """

    table: str
    what: str
    owner: str = ""

    @property
    def name(self) -> str:
        """The name of the table of records and of the function."""
        schema, _, name = self.table.partition(".")
        name = self.owner or name
        if len(name.encode()) > _LONGEST:
            raise CaptureFailed(f"table {self.table}", "its name is too long for that of a log beside it", "Rename it.")
        return f"{schema}.fv_{self.what}_{name}"

    @property
    def triggers(self) -> tuple[str, str]:
        """The names of the triggers for rows and for TRUNCATE."""
        name = f"fv_{self.what}_{self.owner}" if self.owner else f"fv_{self.what}"
        return name, f"{name}_all"


class RecordedTable(PostgresTable):
    """A table whose changes are written to a table of records (`records`) by triggers; a technique adds what they
    write."""

    def __init__(self, server: Server, name: str, what: str, owner: str, columns: Sequence[str] | None) -> None:
        super().__init__(server, name, columns)
        self._helper = Helper(name, what, owner)
        self.records = qualified(self._helper.name)

    @property
    def installed(self) -> str:
        return self._helper.name

    @property
    def is_other_key(self) -> str:
        """The condition that an update of a row changed its key."""
        sides = (", ".join(self.identity(f"{row}.{quoted(k)}", k) for k in self.schema.key) for row in ("OLD", "NEW"))
        return " IS DISTINCT FROM ".join(f"({side})" for side in sides)

    def install_triggers(self, columns: str, body: str) -> None:
        """Create the table of records with these columns, and triggers that run a body of PL/pgSQL."""
        self.server.run(create_command(self._helper, columns), *trigger_commands(self._helper, body))

    def drop(self) -> None:
        """Remove the triggers and the table of records."""
        self.server.run(*drop_commands(self._helper))

    def confirm(self, position: str) -> None:
        """Delete the records up to a position."""
        remove(self.server, self._helper, json.loads(position)["snapshot"])

    def start(self, snapshot: Snapshot, records: int | None = None) -> dict[str, Any]:
        return {"snapshot": snapshot.text, "records": check_triggers(snapshot, self._helper, records)}

    def since(self, snapshot: Snapshot, position: str) -> str:
        """The snapshot of a position; CaptureFailed if records that it has not seen were removed, or if the server's
        transactions went back behind it."""
        then = snapshot.since(position, f"table {self.name}")
        found = snapshot.fetch(  # by JSON: a table that an earlier version installed may lack the columns
            "SELECT r ->> 'taken', left(r ->> 'taken_at', 19), r ->> 'taken_by' "
            f"FROM (SELECT to_jsonb(t) AS r FROM {self.records} t WHERE seq = 0) x"
        )
        if found and not then.covers(Visible.of(found[0][0])):
            taken, at, by = found[0]
            raise CaptureFailed(
                f"table {self.name}",
                f"changes after the position ({position}) were taken up to {taken} at {at} by {by}, "
                "and what was noted of them is removed",
                "This warehouse was restored from a backup, or a copy of it or another reader has the same capture: "
                f"{ANEW}.",
            )
        return position


def trigger_commands(helper: Helper, body: str) -> list[str]:
    """A trigger on every changed row of a table, and on TRUNCATE, that runs a body of PL/pgSQL.

    The function's own settings keep the writer's from changing how values are written.
    """
    function = qualified(helper.name)
    settings = "extra_float_digits = 1 SET IntervalStyle = 'postgres' SET DateStyle = 'ISO, MDY' SET lc_monetary = 'C'"
    table = helper.table
    rows, all_rows = map(quoted, helper.triggers)
    return [
        f"CREATE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER "
        f"SET search_path = pg_catalog, pg_temp SET {settings} AS $fv$ BEGIN {body} RETURN NULL; END $fv$",
        f"CREATE TRIGGER {rows} AFTER INSERT OR UPDATE OR DELETE ON {qualified(table)} "
        f"FOR EACH ROW EXECUTE FUNCTION {function}()",
        f"CREATE TRIGGER {all_rows} AFTER TRUNCATE ON {qualified(table)} "
        f"FOR EACH STATEMENT EXECUTE FUNCTION {function}()",
        f"ALTER TABLE {qualified(table)} ENABLE ALWAYS TRIGGER {rows}, ENABLE ALWAYS TRIGGER {all_rows}",
    ]


def check_triggers(snapshot: Snapshot, helper: Helper, records: int | None) -> int:
    """The number (oid) of the table of records. CaptureFailed if changes may have been missed: if a trigger was dropped
    or disabled, or the table of records is not the one of the position (`records`)."""
    query = """SELECT (SELECT count(*) FROM pg_trigger WHERE tgrelid = to_regclass(%s) AND tgenabled = 'A'
        AND tgname IN (%s, %s)), to_regclass(%s)::oid::bigint"""
    parameters = (
        qualified(helper.table).replace("%%", "%"),
        *helper.triggers,
        qualified(helper.name).replace("%%", "%"),
    )
    triggers, found = snapshot.fetch(query, parameters)[0]
    if triggers != 2 or found is None:
        cause = f"its triggers {helper.triggers[0]} are missing or disabled"
    elif records not in (None, found):
        cause = f"its table of records {helper.name} was created anew"
    else:
        return int(found)
    raise CaptureFailed(f"table {helper.table}", cause, f"Changes may have been missed: install them, and {ANEW}.")


def drop_commands(helper: Helper) -> list[str]:
    """Remove what a technique installed beside a table."""
    return [
        f"DROP FUNCTION IF EXISTS {qualified(helper.name)}() CASCADE",
        f"DROP TABLE IF EXISTS {qualified(helper.name)}",
    ]


def create_command(helper: Helper, columns: str) -> str:
    """Create the table of records, with these columns beside the number and the transaction of each."""
    return (
        f"CREATE TABLE {qualified(helper.name)} (seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, "
        f'xid xid8 NOT NULL DEFAULT pg_current_xact_id(), op "char" NOT NULL, {columns}, {", ".join(_TAKEN)})'
    )


def remove(server: Server, helper: Helper, snapshot: str) -> None:
    """Remove the records that a snapshot has seen, and keep it as the position that was taken, if there were any.

    The row with number 0 counts as seen by every snapshot, so no poll reads it. Two that confirm at once wait for each
    other at that row, and the later snapshot stays.
    """
    from psycopg import errors

    table = qualified(helper.name)
    command = f"""
        WITH removed AS (DELETE FROM {table} WHERE seq > 0 AND pg_visible_in_snapshot(xid, %s::pg_snapshot) RETURNING 1)
        INSERT INTO {table} AS r (seq, xid, op, taken, taken_at, taken_by) OVERRIDING SYSTEM VALUE
        SELECT 0, '0', 'C', %s::pg_snapshot, clock_timestamp(),
            session_user || coalesce(' from ' || host(inet_client_addr()), '') WHERE EXISTS (SELECT FROM removed)
        ON CONFLICT (seq) DO UPDATE
        SET taken = excluded.taken, taken_at = excluded.taken_at, taken_by = excluded.taken_by
        WHERE pg_snapshot_xmax(r.taken) <= pg_snapshot_xmax(excluded.taken) AND NOT EXISTS
            (SELECT FROM pg_snapshot_xip(excluded.taken) x WHERE pg_visible_in_snapshot(x, r.taken))"""
    with server.connect() as connection:
        try:
            fetch(connection, command, (snapshot, snapshot))
        except errors.UndefinedColumn:  # the table was installed by an earlier version
            columns = ", ".join(f"ADD COLUMN IF NOT EXISTS {column}" for column in _TAKEN)
            fetch(connection, f"ALTER TABLE {table} {columns}")
            fetch(connection, command, (snapshot, snapshot))
