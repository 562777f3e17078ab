"""Capture by logical decoding: the server's own log, read from a replication slot by plain SQL (test_decoding).

The slot is peeked at, and advanced only when a position is confirmed. Whatever it repeats after a crash is recognised
by the snapshot in the position. With REPLICA IDENTITY FULL old images are whole; else updates have none, and deletions
have the key.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from freshview.cdc.captures import LOG, LOG_CHEAP, LOG_WITHOUT_OLD_IMAGES, Capture
from freshview.cdc.columns import NotColumns, net_effect_of
from freshview.cdc.model import partial_delta
from freshview.cdc.net import LoggedChange, key_of, net_effect
from freshview.cdc.postgres.lines import NOT_SENT, Lines
from freshview.cdc.postgres.server import ANEW, InUse, Server, Snapshot, Visible
from freshview.cdc.postgres.tables import Changes, PostgresTable, unreadable
from freshview.cdc.texts import BadEvent, typed, typed_key, typed_row
from freshview.errors import CaptureFailed
from freshview.relation.types import DataType

_NAME = r'(?:"(?:[^"]|"")*"|[^\s".:\[\],]+)'
_HEAD = re.compile(rf"table ((?:{_NAME}\.{_NAME}(?:, )?)+): (INSERT|UPDATE|DELETE|TRUNCATE):")
_COLUMN = re.compile(rf" (?:(old-key|new-tuple):|({_NAME})\[(.*?)\]:((?:B?'(?:[^']|'')*')|[^\s]+))", re.DOTALL)
_PATIENCE = 30.0  # seconds for a slot that another session reads
T = TypeVar("T")


@dataclass(frozen=True)
class _PrintedChange:
    """A change as the plug-in prints it: values as texts, None for NULL; NULLs of old images are left out.

    `not_sent` are large values of the new image that did not change, and which the log does not have.
    """

    operation: str
    old: dict[str, str | None] | None
    new: dict[str, str | None] | None
    not_sent: frozenset[str] = frozenset()

    def without(self, columns: Collection[str]) -> _PrintedChange:
        """The change of the other columns."""
        old, new = (
            image and {name: value for name, value in image.items() if name not in columns}
            for image in (self.old, self.new)
        )
        return _PrintedChange(self.operation, old, new, self.not_sent.difference(columns))


class Decoding(PostgresTable):
    """A table whose changes are decoded from the log."""

    def __init__(
        self,
        server: Server,
        name: str,
        slot: str,
        *,
        precise: bool = True,
        each: bool = False,
        columns: Sequence[str] | None = None,
    ) -> None:
        """`precise`: all changes of a key count, else the last one; `each`: deliver each change, not the net effect."""
        super().__init__(server, name, columns)
        self.slot = slot
        self._left_out = self.layout.types.keys() - set(self.schema.names)
        self._precise, self._each = precise or each, each
        if self.layout.replica_identity == "n":
            raise CaptureFailed(
                f"table {name}", "its REPLICA IDENTITY is NOTHING", "ALTER TABLE … REPLICA IDENTITY DEFAULT or FULL."
            )

    @property
    def capture(self) -> Capture:
        if not self._precise:
            return LOG_CHEAP
        return LOG if self._is_full else LOG_WITHOUT_OLD_IMAGES

    @property
    def _is_full(self) -> bool:
        return self.layout.replica_identity == "f"

    @property
    def installed(self) -> str:
        return self.slot

    def install(self) -> None:
        """Create the slot: from now on the server keeps its log until positions are confirmed."""
        query = "SELECT pg_create_logical_replication_slot(%s, 'test_decoding')"
        self.server.run(query, parameters=(self.slot,))

    def drop(self) -> None:
        """Remove the slot, which would keep the server's log for ever."""
        query = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s"
        self._patiently(lambda: self.server.run(query, parameters=(self.slot,)))

    def confirm(self, position: str) -> None:
        """Let the server forget the log up to a position."""
        lsn = json.loads(position)["lsn"]
        query = """SELECT pg_replication_slot_advance(slot_name, %s::pg_lsn) FROM pg_replication_slots
            WHERE slot_name = %s AND confirmed_flush_lsn < %s::pg_lsn"""
        self._patiently(lambda: self.server.run(query, parameters=(lsn, self.slot, lsn)))

    def retained(self) -> int:
        """The bytes of log that the server keeps for the slot."""
        with self.server.snapshot() as snapshot:
            self._confirmed(snapshot)
            query = "SELECT pg_current_wal_lsn() - restart_lsn FROM pg_replication_slots WHERE slot_name = %s"
            return int(snapshot.fetch(query, (self.slot,))[0][0])

    def start(self, snapshot: Snapshot) -> dict[str, Any]:
        return {"snapshot": snapshot.text, "lsn": self._confirmed(snapshot)}

    def changes(self, snapshot: Snapshot, position: dict[str, Any] | None) -> tuple[Changes, dict[str, Any]]:
        if position is None:
            rows = {"ins" if self._precise else "ups": self.rows(snapshot)}
            return partial_delta(self.name, self.schema, **rows), self.start(snapshot)
        before = snapshot.since(position["snapshot"], f"table {self.name}")
        self._require_unread(snapshot, position["lsn"])
        form = self._form(snapshot)
        lines, lsn = self._peeked(snapshot, form.head, before, position["lsn"])
        self._require_unread(snapshot, position["lsn"])  # a slot has no snapshots: it may have moved before the peek
        end = {"snapshot": snapshot.text, "lsn": lsn}
        try:
            if self.layout.replica_identity not in ("d", "f"):
                raise NotColumns  # the old key is that of another index
            data = lines.column("data").combine_chunks()
            if isinstance(data, pa.ChunkedArray):
                raise NotColumns  # more than one array can hold
            found = form.changes(data, lines.column("lsn"), self.name)
            return (found if self._each else net_effect_of(self.name, found, precise=self._precise)), end
        except NotColumns:
            read = zip(lines.column("lsn").to_pylist(), lines.column("data").to_pylist(), strict=True)
            changes = [change for at, data in read for change in self._decoded(data, f"LSN {at}")]
        if self._each:
            return changes, end
        return net_effect(self.name, self.schema, changes, precise=self._precise), end

    def _peeked(self, snapshot: Snapshot, head: str, before: Visible, lsn: str) -> tuple[pa.Table, str]:
        """The lines of the table (and of truncations) that an earlier snapshot did not see; and the end of the last
        transaction before which all were delivered."""
        now = Visible.of(snapshot.text)
        query = (
            "SELECT lsn::text, xid::text, data FROM pg_logical_slot_peek_changes(%s, NULL, NULL, 'include-xids', '1') "
            "WHERE starts_with(data, 'COMMIT') OR starts_with(data, %s) "
            "OR starts_with(data, 'table ') AND strpos(data, ': TRUNCATE:') > 0"
        )
        texts, _ = self._patiently(lambda: self._extracted_or_undone(snapshot, query, head))
        peeked = pa.table(texts, names=["lsn", "xid", "data"])
        short = peeked.column("xid").unique().to_pylist()
        numbers = {xid: now.whole(int(xid)) for xid in short}
        is_commit = pc.starts_with(peeked.column("data"), "COMMIT")
        commits = peeked.filter(is_commit)
        for at, xid in zip(commits.column("lsn").to_pylist(), commits.column("xid").to_pylist(), strict=True):
            if not now.sees(numbers[xid]):
                break  # committed after the snapshot: it stays in the slot
            lsn = max(lsn, at, key=_number)
        fresh = [xid for xid in short if now.sees(numbers[xid]) and not before.sees(numbers[xid])]
        is_fresh = pc.is_in(peeked.column("xid"), pa.array(fresh, pa.string()))
        return peeked.filter(pc.and_not(is_fresh, is_commit)), lsn

    def _extracted_or_undone(self, snapshot: Snapshot, query: str, head: str) -> tuple[list[pa.ChunkedArray], Any]:
        """The result of a query of the slot; after an error the snapshot can be used on."""
        with snapshot.connection.transaction():
            return self.extracted(snapshot, query, (self.slot, head), 3)

    def _patiently(self, act: Callable[[], T]) -> T:
        """Do what needs the slot, which one session at a time may use: another process may be polling it."""
        until = time.monotonic() + _PATIENCE
        while True:
            try:
                return act()
            except InUse as error:
                if time.monotonic() > until:
                    remedy = "Poll again when that session is done with it."
                    raise CaptureFailed(f"replication slot {self.slot}", error.cause, remedy) from None
                time.sleep(0.02)

    def _require_unread(self, snapshot: Snapshot, lsn: str) -> None:
        """Raise if the slot no longer has all that follows a position."""
        confirmed = self._confirmed(snapshot)
        if _number(confirmed) > _number(lsn):
            raise CaptureFailed(
                f"replication slot {self.slot}",
                f"it is at {confirmed}, past the position {lsn}: somebody else read it",
                "This warehouse was restored from a backup, or a copy of it or another reader has the same slot: "
                f"{ANEW}.",
            )

    def _form(self, snapshot: Snapshot) -> Lines:
        """How the plug-in prints the table, whose name it quotes as the server does."""
        schema, _, name = self.name.partition(".")
        head = snapshot.fetch("SELECT 'table ' || quote_ident(%s) || '.' || quote_ident(%s) || ':'", (schema, name))
        return Lines(head[0][0], self.schema, tuple(self.layout.types), self._is_full)

    def _confirmed(self, snapshot: Snapshot) -> str:
        query = "SELECT confirmed_flush_lsn::text, plugin, database = current_database() FROM pg_replication_slots"
        found = snapshot.fetch(query + " WHERE slot_name = %s", (self.slot,))
        if not found or found[0][1:] != ("test_decoding", True):
            raise CaptureFailed(
                f"replication slot {self.slot}",
                "it is gone" if not found else "it belongs to another plug-in or database",
                f"Changes since the last poll are lost: install the slot, and {ANEW}.",
            )
        return str(found[0][0])

    def _decoded(self, data: str, place: str) -> Iterator[LoggedChange]:
        head = _HEAD.match(data)
        tables = [] if head is None else [_plain(t) for t in re.findall(rf"{_NAME}\.{_NAME}", head[1])]
        if head is None or self.name not in tables:
            return
        try:
            yield self._change(_parsed(head[2], data[head.end() :]).without(self._left_out), place)
        except BadEvent as reason:
            raise unreadable(f"change of {self.name} at {place}", str(reason)) from reason

    def _change(self, line: _PrintedChange, place: str) -> LoggedChange:
        if line.operation == "TRUNCATE":
            raise BadEvent("the table was truncated, which no change of rows can express")
        old = line.old
        new = None
        if line.new is not None:
            given = {**line.new}
            for name in line.not_sent:
                if not self._is_full or old is None:
                    raise BadEvent(f"the log lacks the large value {name}; set REPLICA IDENTITY FULL")
                given[name] = old.get(name)
            new = typed_row(given, self.schema, _convert)
        if line.operation == "INSERT":
            assert new is not None
            return LoggedChange(key_of(new, self.schema), False, new, None, place)
        if old is None:
            if new is None:
                raise BadEvent("it names no row: the log has neither an image nor a key")
            return LoggedChange(key_of(new, self.schema), True, new, None, place)
        if not self._is_full:
            return LoggedChange(typed_key(old, self.schema, _convert), True, new, None, place)
        image = typed_row({**dict.fromkeys(self.schema.names), **old}, self.schema, _convert)
        return LoggedChange(key_of(image, self.schema), True, new, image, place)


def _parsed(operation: str, text: str) -> _PrintedChange:
    """The columns of a printed change; a value is NULL, a quoted text, or a bare word."""
    images: dict[str, dict[str, str | None]] = {"old-key": {}, "new-tuple": {}}
    current = "old-key" if operation == "DELETE" else "new-tuple"
    place, not_sent = 0, set()
    for match in _COLUMN.finditer(text):
        if match.start() != place:
            break
        place = match.end()
        marker, name, _, value = match.groups()
        if marker:
            current = marker
        else:
            images[current][_unquoted(name)] = _value(value)
            not_sent.update([_unquoted(name)] if value == NOT_SENT and current == "new-tuple" else [])
    if operation != "TRUNCATE" and place != len(text) and text != " (no-tuple-data)":
        raise BadEvent(f"it cannot be parsed after character {place}")
    return _PrintedChange(operation, images["old-key"] or None, images["new-tuple"] or None, frozenset(not_sent))


def _value(printed: str) -> str | None:
    if printed == "null":
        return None
    if printed.endswith("'"):
        return printed[printed.index("'") + 1 : -1].replace("''", "'")
    return printed


def _unquoted(name: str) -> str:
    return name[1:-1].replace('""', '"') if name.startswith('"') else name


def _plain(table: str) -> str:
    return ".".join(map(_unquoted, re.findall(_NAME, table)))


def _convert(_: str, given: Any, type_: DataType) -> Any:
    return typed(given, type_, lambda text: bytes.fromhex(text.removeprefix("\\x")))


def _number(lsn: str) -> int:
    high, low = lsn.split("/")
    return int(high, 16) * 2**32 + int(low, 16)
