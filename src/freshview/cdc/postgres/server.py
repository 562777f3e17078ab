"""Connections to a PostgreSQL server, and its snapshots.

Passwords come from the environment (PGPASSWORD), ~/.pgpass or a file (passfile=…), which the driver reads by itself;
other secrets come from a service file (service=…). A URL with a secret is refused, so that no message and no record can
show one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from freshview.cdc.postgres.connections import KEPT
from freshview.errors import CaptureFailed, first_line

if TYPE_CHECKING:
    import psycopg

_EPOCH = 2**32
ANEW = (
    "load the table anew (of a flow: REFRESH FLOW … FULL; of a view: REFRESH MATERIALIZED VIEW … FULL; "
    "of wh.capture: into a new table)"
)
_SECRETS = {"password", "sslpassword", "scram_client_key", "scram_server_key", "oauth_client_secret"}
# Rows of transactions that ran at this moment may still appear, with times from their start on. A second more covers a
# transaction that has taken its time and is not listed yet, and another one times that are cut to whole seconds.
_SETTLED = """
    SELECT pg_has_role('pg_read_all_stats', 'usage'),
           EXISTS (SELECT FROM pg_prepared_xacts WHERE database = current_database()),
           (extract(epoch FROM least(clock_timestamp(), min(xact_start))) * 1000000)::bigint - 2000000
    FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"""


@dataclass(frozen=True)
class Visible:
    """What one snapshot sees, as pg_current_snapshot() writes it: xmin:xmax:transactions in progress."""

    xmin: int
    xmax: int
    running: frozenset[int]

    @staticmethod
    def of(text: str) -> Visible:
        xmin, xmax, running = text.split(":")
        return Visible(int(xmin), int(xmax), frozenset(map(int, filter(None, running.split(",")))))

    def sees(self, xid: int) -> bool:
        return xid < self.xmin or (xid < self.xmax and xid not in self.running)

    def covers(self, other: Visible) -> bool:
        """Whether this snapshot sees all that another one of the same history sees."""
        return other.xmax <= self.xmax and not any(other.sees(xid) for xid in self.running)

    def whole(self, short: int) -> int:
        """A transaction number of 32 bits as the nearest number of 64 bits."""
        return self.xmax + (short - self.xmax + _EPOCH // 2) % _EPOCH - _EPOCH // 2


@dataclass(frozen=True)
class Lineage:
    """The one course of transactions that numbers and log positions belong to.

    A server that is initialised anew has another system identifier. A standby that is promoted, and a server that is
    restored from its archive, begins another timeline: transactions of the old one may be missing there, and others
    have their numbers. A restart changes neither.
    """

    system: str
    timeline: int

    def check(self, then: Lineage | None, table: str) -> None:
        """Raise CaptureFailed if a position was taken in another history; None is one of which that is not known."""
        if then in (None, self):
            return
        assert then is not None
        cause = f"the server is on timeline {self.timeline}, and the position on timeline {then.timeline}: it was "
        cause += "promoted from a standby, or restored from a backup"
        if then.system != self.system:
            cause = f"the server has the system identifier {self.system}, and that of the position has {then.system}: "
            cause += "it is another one, or was initialised anew"
        raise CaptureFailed(
            f"table {table}",
            cause,
            f"Changes since the position may be missing there, or have the numbers of others: {ANEW}.",
        )


@dataclass(frozen=True)
class Snapshot:
    """One state of the server, in an open transaction.

    `settled` is a time (µs since 1970) before which no more rows will appear, None if prepared transactions hide it;
    `may_know` is whether the role may see when others began; `at` is the server's time.
    """

    server: Server
    connection: psycopg.Connection[tuple[Any, ...]]
    text: str
    settled: int | None
    may_know: bool
    at: datetime | None = None

    def fetch(self, query: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self.server.reported():  # snapshots of several servers may be open
            return fetch(self.connection, query, parameters)

    def since(self, earlier: str, what: str) -> Visible:
        """The earlier snapshot; CaptureFailed if the server's transactions went back behind it."""
        then = Visible.of(earlier)
        if then.xmax > Visible.of(self.text).xmax:
            raise CaptureFailed(
                what,
                f"the server is at transaction {Visible.of(self.text).xmax}, before that of the position ({then.xmax})",
                f"It was restored or replaced: {ANEW}.",
            )
        return then

    @cached_property
    def history(self) -> Lineage:
        """The history that has all commits which the snapshot sees; CaptureFailed if the server is a standby.

        The timeline is that of the log that is written now. The control file has that of the last checkpoint, which is
        the old one for a while after a promotion. An asynchronous commit is visible before it is flushed: a crash would
        lose it and give its number to another transaction. A synchronous commit of a message that nobody reads flushes
        the log up to there.
        """
        system, segment, is_behind = self.fetch(
            """SELECT (SELECT system_identifier::text FROM pg_control_system()),
                CASE WHEN NOT pg_is_in_recovery() THEN pg_walfile_name(pg_current_wal_lsn()) END,
                CASE WHEN NOT pg_is_in_recovery() THEN pg_current_wal_flush_lsn() < pg_current_wal_insert_lsn() END"""
        )[0]
        if segment is None:
            raise CaptureFailed(
                f"PostgreSQL {self.server.name}",
                "it is a standby: when transactions of its primary began is not known there, and nothing can be noted",
                "Capture changes at the primary.",
            )
        if is_behind:
            message = "SELECT pg_logical_emit_message(true, 'freshview', '')"
            self.server.run("SET TRANSACTION READ WRITE", "SET LOCAL synchronous_commit = on", message)
        return Lineage(system, int(segment[:8], 16))


class InUse(CaptureFailed):
    """Another session holds what was asked for, such as a replication slot."""


class Server:
    """A server and database, by a URL or connection string without a password or another secret."""

    def __init__(self, url: str) -> None:
        try:
            from psycopg import Error, pq
            from psycopg.conninfo import conninfo_to_dict
        except ImportError as error:
            raise CaptureFailed(
                "PostgreSQL", "the driver psycopg is not installed", "Install freshview[postgres]."
            ) from error
        try:
            given: Mapping[str, Any] = conninfo_to_dict(url)
        except Error:
            raise CaptureFailed(
                "PostgreSQL", "the connection string cannot be parsed", "Write postgresql://user@host:port/database."
            ) from None
        # The driver's library marks what is not to be shown by an asterisk; the names above may be newer than it.
        hidden = {option.keyword.decode() for option in pq.Conninfo.get_defaults() if option.dispchar == b"*"}
        for option in sorted((hidden | _SECRETS) & given.keys()):
            is_password = option == "password"
            raise CaptureFailed(
                "PostgreSQL",
                f"the connection string has a {'password' if is_password else f'secret ({option})'}",
                "Leave it out; give it as PGPASSWORD, in ~/.pgpass, or in a file named by passfile."
                if is_password
                else "Leave it out; give it in a service file (~/.pg_service.conf), and name that by service.",
            )
        self._given = given
        self.name = f"{given.get('host', 'localhost')}:{given.get('port', 5432)}/{given.get('dbname', '')}"

    @property
    def identity(self) -> frozenset[tuple[str, str]]:
        """The parts of the connection string that identify the server: servers with equal ones are the same."""
        return frozenset((key, str(value)) for key, value in self._given.items())

    @contextmanager
    def connect(self, *, kept: bool = True) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
        """A connection in autocommit mode, with times in UTC and floats to the last bit.

        `kept`: it may be one of before, and is kept for the next use; else it is closed.
        """
        import psycopg

        # Without row_security the server raises an error where a policy would hide rows.
        settings = "-c row_security=off -c TimeZone=UTC -c DateStyle=ISO -c extra_float_digits=1 -c bytea_output=hex"
        options = f"{self._given.get('options', '')} {settings} -c lc_monetary=C".strip()
        given = {**self._given, "options": options}

        def connect() -> psycopg.Connection[tuple[Any, ...]]:
            # A prepared statement of a kept connection would fail after ALTER TABLE.
            return psycopg.connect(**given, autocommit=True, prepare_threshold=None)

        if not kept:
            with self.reported(), connect() as connection:
                yield connection
            return
        environment = frozenset(item for item in os.environ.items() if item[0].startswith("PG"))  # the driver reads it
        with self.reported(), KEPT.connection((self.identity, environment), connect) as connection:
            yield connection

    @contextmanager
    def reported(self) -> Iterator[None]:
        """Raise what the driver reports as CaptureFailed with the name of the server."""
        import psycopg

        try:
            yield
        except psycopg.errors.ObjectInUse as error:
            raise InUse(f"PostgreSQL {self.name}", first_line(error), "Try again.") from None
        except psycopg.Error as error:
            raise CaptureFailed(
                f"PostgreSQL {self.name}", first_line(error), "Check the server, the user and its rights."
            ) from None

    @contextmanager
    def snapshot(self, *tables: str) -> Iterator[Snapshot]:
        """One state of the server, for all queries inside, which read these tables."""
        with self.connect() as connection, self.snapshot_on(connection, tables) as snapshot:
            yield snapshot

    @contextmanager
    def snapshot_on(
        self, connection: psycopg.Connection[tuple[Any, ...]], tables: Sequence[str], patience: int = 0
    ) -> Iterator[Snapshot]:
        """One state of the server on an open connection, which waits for locks for some seconds (0: without end).

        The tables are locked first, for readers: TRUNCATE and what rewrites a table are not versioned, so a snapshot
        that is older than them finds the table empty, also in its first query. Such statements wait for the snapshot
        to end, or the snapshot begins after them.
        """
        may_know, prepared, settled = fetch(connection, _SETTLED)[0]  # before the snapshot, never after
        with connection.transaction():
            fetch(connection, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            if patience:
                fetch(connection, f"SET LOCAL lock_timeout = '{patience}s'")
            for table in sorted(set(tables)):
                self._lock(connection, table)
            text, at = fetch(connection, "SELECT pg_current_snapshot()::text, clock_timestamp()")[0]
            yield Snapshot(self, connection, text, None if prepared else settled, may_know, at)

    def _lock(self, connection: psycopg.Connection[tuple[Any, ...]], table: str) -> None:
        from psycopg import errors

        try:
            fetch(connection, f"LOCK TABLE {qualified(table)} IN ACCESS SHARE MODE")
        except (errors.UndefinedTable, errors.InvalidSchemaName):
            raise missing(table) from None

    @contextmanager
    def locked(self, what: str, patience: int = 0) -> Iterator[None]:
        """Hold a lock that one session at a time has, by its name; wait for it for some seconds (0: without end).

        It has a connection of its own, with whose end the server releases it, also where the process dies.
        """
        with self.connect(kept=False) as connection:
            fetch(connection, f"SET lock_timeout = '{patience}s'")
            fetch(connection, "SELECT pg_advisory_lock(hashtextextended(%s, 0))", (f"freshview {what}",))
            yield

    def run(self, *commands: str, parameters: Sequence[Any] = ()) -> None:
        """Run commands in one transaction, each with the same parameters."""
        with self.connect() as connection, connection.transaction():
            for command in commands:
                fetch(connection, command, parameters)


def fetch(
    connection: psycopg.Connection[tuple[Any, ...]], query: str, parameters: Sequence[Any] = ()
) -> list[tuple[Any, ...]]:
    cursor = connection.execute(query.encode(), parameters)
    return cursor.fetchall() if cursor.description else []


def missing(table: str) -> CaptureFailed:
    """A table that its server does not have."""
    return CaptureFailed(f"table {table}", "the server does not have it", "Write schema.table, and check the rights.")


def quoted(name: str) -> str:
    """A name as an SQL identifier, in a text whose % stand for parameters."""
    return '"' + name.replace('"', '""').replace("%", "%%") + '"'


def qualified(name: str) -> str:
    """schema.table as an SQL name."""
    return ".".join(map(quoted, name.split(".", 1)))


def literal(text: str) -> str:
    """A text as an SQL literal."""
    return "'" + text.replace("'", "''").replace("%", "%%") + "'"
