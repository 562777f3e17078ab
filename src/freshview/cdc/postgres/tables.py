"""A table of a PostgreSQL server: its columns, its rows in a snapshot, and lookups by values."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import pyarrow as pa

from freshview.cdc.captures import Capture
from freshview.cdc.columns import ChangeColumns, NotColumns, table_of_texts
from freshview.cdc.model import PartialDelta, partial_delta
from freshview.cdc.net import LoggedChange
from freshview.cdc.postgres.copying import copied
from freshview.cdc.postgres.server import ANEW, Lineage, Server, Snapshot, missing, qualified, quoted
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
_COLUMNS = """
    SELECT a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, k.place, k.indimmediate,
           a.attnum, a.xmin::text, pg_relation_filenode(c.oid)::bigint, c.relreplident::text, c.oid,
           CASE WHEN c.relkind <> 'r' OR c.relhassubclass THEN 'partitions or inherited tables'
                WHEN c.relpersistence <> 'p' THEN 'no log (it is unlogged or temporary)' END,
           row_security_active(c.oid), quote_ident(current_user), bool_or(a.atttypid >= 16384) OVER ()
    FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    LEFT JOIN (SELECT indrelid, indimmediate, unnest(indkey::int2[]) AS attnum, generate_subscripts(indkey, 1) AS place
               FROM pg_index WHERE indisprimary) k ON k.indrelid = c.oid AND k.attnum = a.attnum
    WHERE c.oid = to_regclass(%s) ORDER BY a.attnum"""
# The labels of enumerations in the columns: also of arrays, domains, ranges and composite types of them.
_LABELS = """
    WITH RECURSIVE used AS (
        SELECT atttypid AS id FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped
        UNION
        SELECT part.id FROM used JOIN pg_type t ON t.oid = used.id CROSS JOIN LATERAL (
            VALUES (t.typelem), (t.typbasetype)
            UNION ALL
            SELECT a.atttypid FROM pg_attribute a WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped
            UNION ALL
            SELECT r.rngsubtype FROM pg_range r
            WHERE t.oid IN (r.rngtypid, (to_jsonb(r) ->> 'rngmultitypid')::oid)  -- PostgreSQL 13 has no multiranges
        ) AS part (id))
    SELECT e.oid::text, e.enumlabel::text FROM pg_enum e JOIN used ON e.enumtypid = used.id ORDER BY e.oid"""


@dataclass(frozen=True)
class Marks:
    """The numbers of the columns, the file that holds the rows, and a checksum of when the columns were last defined.

    A column that is dropped and added again has another number. ALTER COLUMN … TYPE … USING writes another file and
    defines the column; VACUUM FULL does only the first, and SET DEFAULT only the second. `labels` are those of
    enumerations, by their numbers (oid): a renamed one is another value of all rows that have it.
    """

    columns: list[int]
    file: int
    defined: str
    labels: Mapping[str, str] = field(default_factory=dict)

    def same_values(self, then: Marks) -> bool:
        """Whether no statement about columns has set values since then."""
        return self.columns == then.columns and (self.file == then.file or self.defined == then.defined)

    def renamed_labels(self, then: Marks) -> list[str]:
        """The labels of enumerations at that time that are other ones now."""
        return [label for number, label in then.labels.items() if self.labels.get(number) != label]


@dataclass(frozen=True)
class ServerTable:
    """A table as the server has it: its schema, PostgreSQL's type of each column, replica identity and number (oid).

    `marks` show whether values changed without a change of any row, which no technique reports.
    """

    schema: Schema
    types: Mapping[str, str]
    replica_identity: str
    oid: int
    marks: Marks

    def __str__(self) -> str:
        columns = ", ".join(f"{c} {t}" for c, t in self.types.items())
        return f"{columns}; key {', '.join(self.schema.key)}; replica identity {self.replica_identity}; oid {self.oid}"


def layout(snapshot: Snapshot, name: str, without: Sequence[str] = ()) -> ServerTable:
    """The columns of a table, except for those `without`; CaptureFailed if its changes cannot be reported by key."""
    found = snapshot.fetch(_COLUMNS, (qualified(name).replace("%%", "%"),))
    if not found:
        raise missing(name)
    *_, identity, oid, obstacle, hides_rows, user, has_users_types = found[0]
    if obstacle:
        raise CaptureFailed(f"table {name}", f"it has {obstacle}", "Capture a plain table, or dump it instead.")
    if hides_rows:
        raise CaptureFailed(
            f"table {name}",
            f"its row-level security hides rows from the user {user}, and a hidden row looks like a deleted one",
            f"ALTER ROLE {user} BYPASSRLS, or connect as a user for whom the policies do not count.",
        )
    if any(row[4] is False for row in found):
        raise CaptureFailed(
            f"table {name}",
            "its primary key is deferrable: two rows may have one key while a statement or transaction runs",
            "Create the key anew as NOT DEFERRABLE: changes are reported by key.",
        )
    kept = [row[:4] for row in found if row[0] not in without]
    defined = hashlib.sha256(",".join(row[6] for row in found).encode()).hexdigest()[:16]
    parameters = (qualified(name).replace("%%", "%"),)
    labels = dict(snapshot.fetch(_LABELS, parameters)) if has_users_types else {}
    marks = Marks([row[5] for row in found], found[0][7], defined, labels)
    key = [c for _, c in sorted((place, c) for c, _, _, place in kept if place is not None)]
    if not key:
        raise CaptureFailed(f"table {name}", "it has no primary key", "Add one: changes are reported by key.")
    columns = tuple(Column(c, spark_type(t), nullable=not required) for c, t, required, _ in kept)
    return ServerTable(Schema(columns, tuple(key)), {c: t for c, t, _, _ in kept}, identity, oid, marks)


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


# The texts of all values of a type; every text of this form is a value.
_FORMS = {
    "uuid": re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"),
    "numeric": re.compile(r"NaN|-?Infinity|-?[0-9]{1,131072}(\.[0-9]{1,16383})?"),
}

Changes = PartialDelta | ChangeColumns | list[LoggedChange]


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
        snapshot.history.check(Lineage(**known) if known else None, self.name)
        found = layout(snapshot, self.name, self.hidden)
        now, then = str(found), given["layout"] if given else str(self.layout)
        if {now, then} != {str(self.layout)}:
            raise CaptureFailed(
                f"table {self.name}",
                f"it was ({then}) and is ({now})",
                f"No change was taken since the position {position}: change the target in the same way, and {ANEW}.",
            )
        before = Marks(**given["marks"]) if given and "marks" in given else found.marks
        cause = "" if found.marks.same_values(before) else "ALTER TABLE has set values of a column"
        if renamed := found.marks.renamed_labels(before):
            cause = f"ALTER TYPE has renamed {', '.join(map(repr, renamed))}, a value of rows"
        if cause:
            raise CaptureFailed(
                f"table {self.name}",
                f"{cause}, which is reported as a change of no row",
                f"No change was taken since the position {position}: {ANEW}.",
            )
        delta, end = changes(snapshot, given)
        net = delta if isinstance(delta, PartialDelta) else partial_delta(self.name, self.schema)
        each = None if isinstance(delta, PartialDelta) else tuple(delta) if isinstance(delta, list) else delta
        after = json.dumps({**end, "layout": now, "marks": asdict(found.marks), "server": asdict(snapshot.history)})
        return Poll(self.capture, net, after, changes=each, at=snapshot.at)

    @property
    def installed(self) -> str:
        """The name of what the technique installs at the server, if it does."""
        return self.name

    def installing(self, patience: int = 0) -> AbstractContextManager[None]:
        """Hold off other processes that install the capture, from the installation to the commit of the position after
        it: that would be a position of records, or of a slot, that the other process replaced."""
        return self.server.locked(f"installs {self.installed}", patience)

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
        """An expression that is equal where the relation takes values of a column for equal: texts by their characters.

        The server finds other values equal where a collation or type says so, such as 1.0 and 1.00, or one day and 24
        hours; to the relation these are different texts.
        """
        return f'({value})::text COLLATE "C"' if self.schema.column(column).type.is_text else value

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
        asked = [self._asked(c) for c in columns]
        names, arrays = ", ".join(a.of_table for a in asked), ", ".join(f"%s::{a.type}[]" for a in asked)
        rows = zip(*(values.column(c).to_pylist() for c in columns), strict=True)
        given = [
            row for row in rows if all(a.form is None or a.form.fullmatch(v) for a, v in zip(asked, row, strict=True))
        ]
        return self.rows(
            snapshot,
            f"({names}) IN (SELECT * FROM unnest({arrays})) AND {self.live}",
            [list(c) for c in zip(*given, strict=True)] or [[] for _ in asked],
        )

    def _asked(self, column: str) -> _LookupColumn:
        """How values of a column are looked up: those of a type that Spark has not are texts here, and may be any.

        Where the texts of a type have a form that is easily checked, the others are left out, and the server's own
        values are compared, which an index helps; else their texts.
        """
        type_, of_table = self.layout.types[column], f"t.{quoted(column)}"
        if not is_text_form(type_):
            return _LookupColumn(of_table, type_)
        plain = type_.partition("(")[0]
        if plain in _FORMS:
            return _LookupColumn(of_table, plain, _FORMS[plain])
        return _LookupColumn(self.identity(of_table, column), "text")


class _LookupColumn(NamedTuple):
    """A column of a lookup: what is compared of the table, with values of which type, and which form these have."""

    of_table: str
    type: str
    form: re.Pattern[str] | None = None
