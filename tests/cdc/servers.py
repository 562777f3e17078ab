"""Tables on a real PostgreSQL server, captured by every technique, and a consumer that stores what they deliver."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
import pyarrow as pa
from tests.unit.cdc.applying import applied
from tests.unit.cdc.running_example import cells

from freshview.cdc.postgres.audit import Audit, AuditColumns
from freshview.cdc.postgres.decoding import Decoding
from freshview.cdc.postgres.server import Server, Snapshot
from freshview.cdc.postgres.tables import PostgresTable
from freshview.cdc.postgres.tracking import Tracking
from freshview.cdc.postgres.triggers import TriggerLog

_STAMPS = (
    "changed timestamptz NOT NULL DEFAULT clock_timestamp(), inserted timestamptz NOT NULL DEFAULT clock_timestamp(), "
    "deleted timestamptz"
)
_ONE = AuditColumns("changed", never=frozenset({"deletions"}))
_TWO = AuditColumns("changed", "inserted", never=frozenset({"deletions"}))
_THREE = AuditColumns("changed", "inserted", "deleted")


def _installed(source: Any) -> PostgresTable:
    source.install()
    return source  # type: ignore[no-any-return]


TECHNIQUES: dict[str, Callable[[Server, str], PostgresTable]] = {
    "one audit column": lambda s, t: Audit(s, t, _ONE),
    "two audit columns": lambda s, t: Audit(s, t, _TWO),
    "three audit columns": lambda s, t: Audit(s, t, _THREE),
    "triggers": lambda s, t: _installed(TriggerLog(s, t)),
    "triggers, cheap": lambda s, t: _installed(TriggerLog(s, t, precise=False)),
    "tracking": lambda s, t: _installed(Tracking(s, t)),
    "decoding, full": lambda s, t: _installed(_full(s, t)),
    "decoding": lambda s, t: _installed(Decoding(s, t, f"fv_{uuid.uuid4().hex[:12]}")),
    "decoding, cheap": lambda s, t: _installed(Decoding(s, t, f"fv_{uuid.uuid4().hex[:12]}", precise=False)),
}


def _full(server: Server, table: str) -> Decoding:
    server.run(f"ALTER TABLE {table} REPLICA IDENTITY FULL")
    return Decoding(server, table, f"fv_{uuid.uuid4().hex[:12]}")


class Captured:
    """A table (id, ref, name) whose applications write as its technique asks: stamped, and deleted only logically."""

    def __init__(self, url: str, technique: str) -> None:
        self.url, self.technique, self.name = url, technique, f"public.t_{uuid.uuid4().hex[:12]}"
        self._audited = "audit" in technique
        self.may_delete = technique not in ("one audit column", "two audit columns")
        with self.connect() as connection:
            stamps = f", {_STAMPS}" if self._audited else ""
            connection.execute(f"CREATE TABLE {self.name} (id int PRIMARY KEY, ref int, name text{stamps})".encode())

    def source(self) -> PostgresTable:
        return TECHNIQUES[self.technique](Server(self.url), self.name)

    @contextmanager
    def connect(self) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
        with psycopg.connect(self.url) as connection:
            yield connection

    def insert(self, connection: psycopg.Connection[Any], key: int, ref: int, name: str) -> None:
        again = " ON CONFLICT (id) DO UPDATE SET ref = excluded.ref, name = excluded.name"
        if self._audited:  # a row that was deleted logically is there, and stays deleted
            again += ", changed = clock_timestamp() WHERE t.deleted IS NULL"
        query = f"INSERT INTO {self.name} AS t (id, ref, name) VALUES (%s, %s, %s){again}"
        connection.execute(query.encode(), (key, ref, name))

    def update(self, connection: psycopg.Connection[Any], key: int, name: str) -> None:
        stamp = ", changed = clock_timestamp()" if self._audited else ""
        live = " AND deleted IS NULL" if self._audited else ""
        query = f"UPDATE {self.name} SET name = %s{stamp} WHERE id = %s{live}"
        connection.execute(query.encode(), (name, key))

    def delete(self, connection: psycopg.Connection[Any], key: int) -> None:
        assert self.may_delete
        query = f"DELETE FROM {self.name} WHERE id = %s"
        if self._audited:
            query = f"UPDATE {self.name} SET deleted = clock_timestamp() WHERE id = %s AND deleted IS NULL"
        connection.execute(query.encode(), (key,))

    def revive(self, connection: psycopg.Connection[Any], key: int, ref: int, name: str) -> None:
        """Have a row that was deleted by a mark come back as another one."""
        query = (
            f"UPDATE {self.name} SET ref = %s, name = %s, deleted = NULL, changed = clock_timestamp(), "
            "inserted = clock_timestamp() WHERE id = %s AND deleted IS NOT NULL"
        )
        connection.execute(query.encode(), (ref, name, key))

    def move(self, connection: psycopg.Connection[Any], key: int, new: int) -> None:
        """Change a key."""
        connection.execute(f"UPDATE {self.name} SET id = %s WHERE id = %s".encode(), (new, key))


class Consumer:
    """Rows and the position that they came with."""

    def __init__(self, source: PostgresTable) -> None:
        self.source = source
        self.rows = source.schema.arrow.empty_table()
        self.position: str | None = None

    def poll_in(self, snapshot: Snapshot) -> frozenset[str]:
        poll = self.source.poll_in(snapshot, self.position)
        self.rows, self.position = applied(self.rows, poll.delta), poll.position
        return poll.delta.filled

    def poll(self) -> frozenset[str]:
        """Poll, and compare with the table in the same snapshot."""
        with self.source.server.snapshot() as snapshot:
            filled = self.poll_in(snapshot)
            assert cells(self.rows) == cells(self.remote(snapshot))
        return filled

    def remote(self, snapshot: Snapshot) -> pa.Table:
        return self.source.rows(snapshot, self.source.live)

    def confirm(self) -> None:
        assert self.position is not None
        self.source.confirm(self.position)


class SnapshotStates:
    """The states of tables in one snapshot, for the rules of views (`rules.States`)."""

    def __init__(self, snapshot: Snapshot, tables: Sequence[PostgresTable]) -> None:
        self._snapshot = snapshot
        self._tables = {t.name: t for t in tables}

    def rows(self, name: str, columns: tuple[str, ...], values: pa.Table) -> pa.Table:
        return self._tables[name].lookup(self._snapshot, columns, values)
