"""Connections to the catalog database (SQLite or PostgreSQL), and their errors as FreshviewErrors."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import URL, Connection, Engine, make_url

from freshview.catalog import tables as t
from freshview.errors import (
    CatalogUnavailable,
    CorruptWarehouse,
    FreshviewError,
    StorageUnavailable,
    WarehouseClosed,
    first_line,
)

BUSY_SECONDS = 30
_LONG_LOG = 10_000  # pages of 4 KiB
_SQLITE_STORAGE = (
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_PERM,
)
# SQLITE_ERROR: a statement does not fit the tables, so these are not the tables that Freshview created.
_SQLITE_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)
_NO_PRIVILEGE = "42501"
_CLOCK = sa.select(t.clock).where(t.clock.c.id == 1)  # built once: asked by every commit
_LOCKED_CLOCK = _CLOCK.with_for_update()

Clock = sa.Row[tuple[int, int, int, int, int]]  # the counter row: CSN, TXSN, time of the last commit, horizon


def micros() -> int:
    """Wall-clock time in microseconds since the epoch."""
    return time.time_ns() // 1000


class Database:
    """Read and write transactions on the catalog, alike on SQLite and PostgreSQL."""

    def __init__(self, url: str | URL, clock: Callable[[], int] = micros) -> None:
        self._url = _normalised(url)
        self._clock = clock
        self.is_closed = False
        self.is_sqlite = self._url.get_backend_name() == "sqlite"
        if self._url.get_backend_name() not in ("sqlite", "postgresql"):
            raise CatalogUnavailable(
                f"catalog {self}", "is neither SQLite nor PostgreSQL", "Use sqlite:///… or postgresql://…"
            )
        if self.is_sqlite:
            self._engine = _sqlite_engine(self._url, "FULL")
            # Pins need not outlive a power cut: the process that holds them dies with it.
            self._relaxed = _sqlite_engine(self._url, "NORMAL")
            event.listen(self._relaxed, "connect", _leave_log)
        else:
            self._engine = self._relaxed = _postgres_engine(self._url)

    def __str__(self) -> str:
        return self._url.render_as_string(hide_password=True)

    def close(self) -> None:
        """Close all connections; later transactions raise WarehouseClosed."""
        self.is_closed = True
        self.release()

    def require_open(self) -> None:
        """Raise WarehouseClosed if the connections were closed."""
        if self.is_closed:
            raise WarehouseClosed(f"catalog {self}", "the warehouse was closed", "Open it again.")

    def release(self) -> None:
        """Close all connections; later transactions open new ones."""
        self._engine.dispose()
        self._relaxed.dispose()

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A transaction that reads one state of the catalog throughout."""
        with self._guard(), self._engine.connect() as connection:
            if not self.is_sqlite:
                connection = connection.execution_options(isolation_level="REPEATABLE READ")
            with connection.begin():
                yield connection

    @contextmanager
    def write(self, *, durable: bool = True) -> Iterator[Connection]:
        """A write transaction; it begins as a writer, since an upgrade from reading can fail (law 11.14)."""
        with self._guard(), (self._engine if durable else self._relaxed).connect() as connection:
            connection = connection.execution_options(fv_begin="BEGIN IMMEDIATE")
            with connection.begin():
                if not durable and not self.is_sqlite:
                    connection.exec_driver_sql("SET LOCAL synchronous_commit = off")
                yield connection

    def fold_log(self) -> None:
        """Move what SQLite's log holds into the database file, as far as no reader needs the log; waits for nobody.

        Else a pin of a query would do it now and then, with its writes to the disk. Durable commits do it too.
        """
        if self.is_sqlite:
            with self._guard():
                connection = self._relaxed.raw_connection()
                try:
                    connection.cursor().execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
                except sqlite3.OperationalError:
                    return  # another process does it, or the next heartbeat
                finally:
                    connection.close()

    def now(self, connection: Connection) -> int:
        """The time in microseconds on the catalog's clock: PostgreSQL's own, since several machines may share it."""
        if self.is_sqlite:
            return self._clock()
        seconds = connection.exec_driver_sql("SELECT extract(epoch FROM clock_timestamp())").scalar_one()
        return int(seconds * 1_000_000)

    def clock(self, connection: Connection, *, locked: bool = False) -> Clock:
        """The counter row: CSN, transaction number, time of the last commit, horizon."""
        query = _LOCKED_CLOCK if locked and not self.is_sqlite else _CLOCK
        row = connection.execute(query).one_or_none()
        if row is None:
            raise CorruptWarehouse(
                f"catalog {self}", "the counter row is missing", "Restore the catalog from a backup."
            )
        return row

    def lock_clock(self, connection: Connection) -> Clock:
        """The counter row, locked to the end of the transaction."""
        return self.clock(connection, locked=True)

    @contextmanager
    def _guard(self) -> Iterator[None]:
        self.require_open()
        try:
            yield
        except FreshviewError:
            raise
        except (sa.exc.SQLAlchemyError, sqlite3.Error) as error:
            raise self._translated(error) from error

    def _translated(self, error: Exception) -> FreshviewError:
        what = f"catalog {self}"
        original = getattr(error, "orig", None) or error
        cause = first_line(original)
        if isinstance(original, sqlite3.Error):
            code = getattr(original, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
            if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                return CatalogUnavailable(what, cause, f"Another process held it over {BUSY_SECONDS} s; try again.")
            if code in _SQLITE_STORAGE:
                return StorageUnavailable(
                    what, cause, "Check that the warehouse folder exists, is writable and not full."
                )
            if code in _SQLITE_DAMAGE:
                return CorruptWarehouse(what, cause, "Restore the catalog from a backup.")
        if getattr(original, "sqlstate", None) == _NO_PRIVILEGE:
            return CatalogUnavailable(what, cause, "Grant the user the right to create and write tables there.")
        if isinstance(error, sa.exc.OperationalError | sa.exc.InterfaceError | sa.exc.TimeoutError):
            return CatalogUnavailable(what, cause, "Check that the server runs and the address and password are right.")
        if isinstance(error, sa.exc.ProgrammingError):
            return CorruptWarehouse(what, cause, "The catalog's tables are not as expected; restore it from a backup.")
        return CatalogUnavailable(what, cause, "Try again; if it stays, check the catalog database.")


def _normalised(url: str | URL) -> URL:
    try:
        parsed = make_url(url)
    except sa.exc.ArgumentError as error:
        raise CatalogUnavailable(
            f"catalog {url!r}", "is not a database URL", "Use sqlite:///… or postgresql://…"
        ) from error
    if parsed.drivername in ("postgresql", "postgres"):
        parsed = parsed.set(drivername="postgresql+psycopg")
    return parsed


def sqlite_url(path: Path) -> URL:
    return URL.create("sqlite", database=str(path))


def _sqlite_engine(url: URL, synchronous: str) -> Engine:
    engine = sa.create_engine(
        url, connect_args={"timeout": BUSY_SECONDS, "check_same_thread": False}, pool_size=16, max_overflow=64
    )

    @event.listens_for(engine, "connect")
    def _prepare(connection: sqlite3.Connection, _record: object) -> None:
        connection.isolation_level = None  # `_begin` sends BEGIN
        _use_wal(connection)
        connection.execute(f"PRAGMA synchronous={synchronous}")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        connection.exec_driver_sql(connection.get_execution_options().get("fv_begin", "BEGIN"))

    return engine


def _leave_log(connection: sqlite3.Connection, _record: object) -> None:
    """Have a connection for pins leave the log to heartbeats and durable commits, unless it has become long."""
    connection.execute(f"PRAGMA wal_autocheckpoint={_LONG_LOG}")


def _use_wal(connection: sqlite3.Connection) -> None:
    """Set write-ahead logging, once per file; SQLite does not wait for a lock there, so this function does."""
    give_up = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            if connection.execute("PRAGMA journal_mode").fetchone() != ("wal",):
                connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > give_up:
                raise
            time.sleep(0.01)


def _postgres_engine(url: URL) -> Engine:
    try:
        return sa.create_engine(url, pool_size=16, max_overflow=64, pool_pre_ping=True)
    except ModuleNotFoundError as error:
        raise CatalogUnavailable(
            f"catalog {url.render_as_string(hide_password=True)}",
            "the PostgreSQL driver is not installed",
            "Install it with: pip install 'freshview[postgres]'",
        ) from error
