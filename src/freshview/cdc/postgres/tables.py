"""A table of a PostgreSQL server: its columns, its rows in a snapshot, and lookups by values."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import pyarrow as pa

from freshview.cdc.captures import Capture
from freshview.cdc.columns import NotColumns, table_of_texts
from freshview.cdc.model import PartialDelta, partial_delta
from freshview.cdc.net import Change
from freshview.cdc.postgres.copying import copied
from freshview.cdc.postgres.server import ANEW, History, Server, Snapshot, missing, qualified, quoted
from freshview.cdc.source import Poll
from freshview.errors import CaptureFailed, FreshviewError, first_line
from freshview.relation.ingest import store
from freshview.relation.schema import Column, Schema
from freshview.relation.types import DataType, parse_type

# Types with the same values in Spark. All others arrive as PostgreSQL's text of the value.
_TYPES = {
    "smallint": "smallint",
    "integer": "int",
    "bigint": "bigint",
    "real": "float",
    "double precision": "double",
    "boolean": "boolean",
    "text": "string",
    "character varying": "string",
    "bytea": "binary",
    "date": "date",
    "timestamp without time zone": "timestamp_ntz",
    "timestamp with time zone": "timestamp",
}
_LONGEST = 63 - len("fv_track_")  # bytes of a name in PostgreSQL
_COLUMNS = """
    SELECT a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, k.place, k.indimmediate,
           a.attnum, a.xmin::text, pg_relation_filenode(c.oid)::bigint, c.relreplident::text, c.oid,
           CASE WHEN c.relkind <> 'r' OR c.relhassubclass THEN 'partitions or inherited tables'
                WHEN c.relpersistence <> 'p' THEN 'no log (it is unlogged or temporary)' END
    FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    LEFT JOIN (SELECT indrelid, indimmediate, unnest(indkey::int2[]) AS attnum, generate_subscripts(indkey, 1) AS place
               FROM pg_index WHERE indisprimary) k ON k.indrelid = c.oid AND k.attnum = a.attnum
    WHERE c.oid = to_regclass(%s) ORDER BY a.attnum"""


@dataclass(frozen=True)
class Marks:
    """The numbers of the columns, the file that holds the rows, and a checksum of when the columns were last defined.

    A column that is dropped and added again has another number. ALTER COLUMN … TYPE … USING writes another file and
    defines the column; VACUUM FULL does only the first, and SET DEFAULT only the second.
    """

    columns: list[int]
    file: int
    defined: str

    def same_values(self, then: Marks) -> bool:
        """Whether no statement about columns has set values since then."""
        return self.columns == then.columns and (self.file == then.file or self.defined == then.defined)


@dataclass(frozen=True)
class Layout:
    """A table as the server has it: its schema, PostgreSQL's type of each column, replica identity and number (oid).

    `marks` tell whether values changed without a change of any row, which no technique reports.
    """

    schema: Schema
    types: Mapping[str, str]
    replica_identity: str
    oid: int
    marks: Marks

    def __str__(self) -> str:
        columns = ", ".join(f"{c} {t}" for c, t in self.types.items())
        return f"{columns}; key {', '.join(self.schema.key)}; replica identity {self.replica_identity}; oid {self.oid}"


def layout(snapshot: Snapshot, name: str, without: Sequence[str] = ()) -> Layout:
    """The columns of a table, except for those `without`; CaptureFailed if its changes cannot be reported by key."""
    found = snapshot.fetch(_COLUMNS, (qualified(name).replace("%%", "%"),))
    if not found:
        raise missing(name)
    *_, identity, oid, obstacle = found[0]
    if obstacle:
        raise CaptureFailed(f"table {name}", f"it has {obstacle}", "Capture a plain table, or dump it instead.")
    if any(row[4] is False for row in found):
        raise CaptureFailed(
            f"table {name}",
            "its primary key is deferrable: two rows may have one key while a statement or transaction runs",
            "Create the key anew as NOT DEFERRABLE: changes are reported by key.",
        )
    kept = [row[:4] for row in found if row[0] not in without]
    defined = hashlib.sha256(",".join(row[6] for row in found).encode()).hexdigest()[:16]
    marks = Marks([row[5] for row in found], found[0][7], defined)
    key = [c for _, c in sorted((place, c) for c, _, _, place in kept if place is not None)]
    if not key:
        raise CaptureFailed(f"table {name}", "it has no primary key", "Add one: changes are reported by key.")
    columns = tuple(Column(c, spark_type(t), nullable=not required) for c, t, required, _ in kept)
    return Layout(Schema(columns, tuple(key)), {c: t for c, t, _, _ in kept}, identity, oid, marks)


def spark_type(type_: str) -> DataType:
    """The Spark type of a PostgreSQL type, as format_type() writes it."""
    sized = re.fullmatch(r"numeric\((\d+),(\d+)\)", type_)
    if sized and int(sized[1]) <= 38 and int(sized[2]) <= int(sized[1]):
        return parse_type(f"DECIMAL({sized[1]},{sized[2]})")
    if match := re.fullmatch(r"character\((\d+)\)", type_):
        return parse_type(f"CHAR({match[1]})")
    return parse_type(_TYPES.get(re.sub(r"\(\d+\)", "", type_), "STRING"))


def is_text_form(type_: str) -> bool:
    """Whether values of a PostgreSQL type arrive as texts because Spark has no such type."""
    plain = re.sub(r"\(\d+\)", "", type_)
    return spark_type(type_).kind == "string" and plain not in ("text", "character varying")


Changes = PartialDelta | list[Change]


class UnreadableChange(CaptureFailed):
    """A change that no row can express or whose image the server did not send; the table's present rows can be read."""


def unreadable(what: str, cause: str) -> UnreadableChange:
    return UnreadableChange(what, cause, f"{ANEW[0].upper()}{ANEW[1:]}.")


class PostgresTable:
    """What all sources of this server have in common; a technique adds `capture`, `changes` and what it installs."""

    hidden: tuple[str, ...] = ()  # columns that are not part of the relation

    def __init__(self, server: Server, name: str, columns: Sequence[str] | None = None) -> None:
        """`columns` are those of the relation, as far as the table has them (default: all); its key is always added."""
        self.server = server
        self.name = name
        with server.snapshot() as snapshot:
            self.layout = layout(snapshot, name, self.hidden)
        whole = self.layout.schema
        by_name = {c.name: c for c in whole.columns}
        kept = dict.fromkeys([*(whole.names if columns is None else columns), *whole.key])
        self.schema = Schema(tuple(by_name[n] for n in kept if n in by_name), whole.key)

    @property
    def capture(self) -> Capture:
        raise NotImplementedError

    def poll(self, position: str | None) -> Poll:
        """The changes since a position, in a snapshot of their own."""
        with self.server.snapshot(self.name) as snapshot:
            return self.poll_in(snapshot, position)

    def poll_in(self, snapshot: Snapshot, position: str | None) -> Poll:
        """The changes from a position to a snapshot: several tables may be polled in one.

        A position of an earlier version lacks the server's history and the marks, and gets them by its next poll.
        """
        return self._polled(snapshot, position, self.changes)

    def start_in(self, snapshot: Snapshot) -> Poll | None:
        """The first poll without its rows, which the caller reads in the same snapshot; None if the position depends on
        the rows."""
        start = self.start(snapshot)
        if start is None:
            return None
        return self._polled(snapshot, None, lambda *_: (partial_delta(self.name, self.schema), start))

    def _polled(
        self,
        snapshot: Snapshot,
        position: str | None,
        changes: Callable[[Snapshot, dict[str, Any] | None], tuple[Changes, dict[str, Any]]],
    ) -> Poll:
        given = None if position is None else json.loads(position)
        known = (given or {}).get("server")
        snapshot.history.check(History(**known) if known else None, self.name)
        found = layout(snapshot, self.name, self.hidden)
        now, then = str(found), given["layout"] if given else str(self.layout)
        if {now, then} != {str(self.layout)}:
            raise CaptureFailed(
                f"table {self.name}",
                f"it was ({then}) and is ({now})",
                f"No change was taken since the position {position}: change the target in the same way, and {ANEW}.",
            )
        if given and "marks" in given and not found.marks.same_values(Marks(**given["marks"])):
            raise CaptureFailed(
                f"table {self.name}",
                "ALTER TABLE has set values of a column, which is reported as a change of no row",
                f"No change was taken since the position {position}: {ANEW}.",
            )
        delta, end = changes(snapshot, given)
        each = None if isinstance(delta, PartialDelta) else tuple(delta)
        net = delta if isinstance(delta, PartialDelta) else partial_delta(self.name, self.schema)
        after = json.dumps({**end, "layout": now, "marks": asdict(found.marks), "server": asdict(snapshot.history)})
        return Poll(self.capture, net, after, changes=each, at=snapshot.at)

    def adds_columns_since(self, position: str) -> bool:
        """Whether the table is that of a position but for columns that were added at its end."""
        then, now = json.loads(position)["layout"], str(self.layout)
        (columns, _, rest), (columns_now, _, rest_now) = then.partition("; key "), now.partition("; key ")
        return rest == rest_now and columns_now.startswith(f"{columns}, ")

    def changes(self, snapshot: Snapshot, position: dict[str, Any] | None) -> tuple[Changes, dict[str, Any]]:
        """The changes (their net effect, or each), and the position after them."""
        raise NotImplementedError

    def start(self, snapshot: Snapshot) -> dict[str, Any] | None:  # noqa: ARG002
        """The position after all rows of a snapshot; None if it depends on the rows."""
        return None

    def confirm(self, position: str) -> None:
        raise NotImplementedError

    def suffix(self, column: str) -> str:
        """The cast that follows a column in a select list."""
        return "::text" if is_text_form(self.layout.types[column]) else ""

    def identity(self, value: str, column: str) -> str:
        """What tells values of a column apart as the relation does: texts by their characters.

        The server finds other values equal where a collation or type says so, such as 1.0 and 1.00, or one day and 24
        hours; to the relation these are different texts.
        """
        return f'({value})::text COLLATE "C"' if self.schema.column(column).type.is_text else value

    def is_other_key(self, some: str, others: str) -> str:
        """The condition that the keys of two rows, by their aliases, are different ones."""
        sides = (", ".join(self.identity(f"{row}.{quoted(k)}", k) for k in self.schema.key) for row in (some, others))
        return " IS DISTINCT FROM ".join(f"({side})" for side in sides)

    def expressions(self, alias: str) -> str:
        """The columns of the relation as a select list, over a row with this alias."""
        return ", ".join(f"{alias}.{quoted(c)}{self.suffix(c)}" for c in self.schema.names)

    def rows(self, snapshot: Snapshot, where: str = "true", parameters: Sequence[Any] = ()) -> pa.Table:
        """The rows of the table, aliased t, that satisfy a condition."""
        query = f"SELECT {self.expressions('t')} FROM {qualified(self.name)} t WHERE {where}"
        if parameters:
            return self.table(snapshot.fetch(query, parameters))
        return self.extracted(snapshot, query, (), 0, self.schema.names)[1][0]

    def extracted(
        self, snapshot: Snapshot, query: str, parameters: Sequence[Any], texts: int, *parts: Sequence[str]
    ) -> tuple[list[pa.ChunkedArray], list[pa.Table]]:
        """The result of a query as columns: as many texts, then each part, which names columns of the relation.

        A value that a column cannot take is read once more by itself, so that the error names it.
        """
        edges = [texts]
        for part in parts:
            edges.append(edges[-1] + len(part))
        try:
            found = copied(snapshot, query, parameters, edges[-1])
            tables = [
                table_of_texts(found[start:end], self.schema, part, self.name)
                for part, (start, end) in zip(parts, pairwise(edges), strict=True)
            ]
            return found[:texts], tables
        except NotColumns:
            rows = snapshot.fetch(query, parameters)
            tables = [
                self.table([row[start:end] for row in rows], part)
                for part, (start, end) in zip(parts, pairwise(edges), strict=True)
            ]
            return [pa.chunked_array([pa.array([row[i] for row in rows], pa.string())]) for i in range(texts)], tables

    def table(self, rows: Sequence[Sequence[Any]], columns: Sequence[str] | None = None) -> pa.Table:
        """Fetched values as Arrow columns (of the relation, or those named)."""
        names = self.schema.names if columns is None else columns
        cells = [list(c) for c in zip(*rows, strict=True)] if rows else [[] for _ in names]
        try:
            stored = [store(c, self.schema.column(n), self.name) for n, c in zip(names, cells, strict=True)]
        except FreshviewError as error:
            raise CaptureFailed(
                f"table {self.name}", first_line(error), "Leave the column out, or change it."
            ) from error
        return pa.table(stored, schema=pa.schema([self.schema.arrow.field(n) for n in names]))

    @property
    def live(self) -> str:
        """The condition that a row of the table, aliased t, is a row of the relation."""
        return "true"

    def lookup(self, snapshot: Snapshot, columns: Sequence[str], values: pa.Table) -> pa.Table:
        """The rows of the relation whose columns have one of the combinations of values."""
        arrays = ", ".join(f"%s::{self.layout.types[c]}[]" for c in columns)
        names = ", ".join(f"t.{quoted(c)}" for c in columns)
        given = [list(values.column(c).to_pylist()) for c in columns]
        return self.rows(snapshot, f"({names}) IN (SELECT * FROM unnest({arrays})) AND {self.live}", given)


class SnapshotStates:
    """The states of tables in one snapshot, for the rules of views (`rules.States`)."""

    def __init__(self, snapshot: Snapshot, tables: Sequence[PostgresTable]) -> None:
        self._snapshot = snapshot
        self._tables = {t.name: t for t in tables}

    def rows(self, name: str, columns: tuple[str, ...], values: pa.Table) -> pa.Table:
        return self._tables[name].lookup(self._snapshot, columns, values)


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
