"""Connections to PostgreSQL servers: one idle connection per server is kept open, for the next poll.

A new connection costs the server a process with cold caches: several times as much as the queries of a small poll.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import psycopg

    Connection = psycopg.Connection[tuple[Any, ...]]


class Kept:
    """The idle connections of this process, at most one per server."""

    def __init__(self) -> None:
        self._idle: dict[Hashable, Connection] = {}
        self._process = os.getpid()
        self._lock = threading.Lock()

    @contextmanager
    def connection(self, server: Hashable, connect: Callable[[], Connection]) -> Iterator[Connection]:
        """A connection to a server, for one user at a time; an error closes it."""
        connection = self._taken(server) or connect()
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        self._give_back(server, connection)

    def _taken(self, server: Hashable) -> Connection | None:
        """The idle connection, if there is one and the server still answers on it."""
        from psycopg import Error

        with self._lock:
            if self._process != os.getpid():  # of the parent, which goes on using them
                self._idle, self._process = {}, os.getpid()
            connection = self._idle.pop(server, None)
        if connection is not None:
            try:
                connection.execute("SELECT")
                return connection
            except Error:
                connection.close()
        return None

    def _give_back(self, server: Hashable, connection: Connection) -> None:
        from psycopg.pq import TransactionStatus

        with self._lock:
            if connection.info.transaction_status == TransactionStatus.IDLE and server not in self._idle:
                self._idle[server] = connection
                return
        connection.close()

    def close(self) -> None:
        """Close the idle connections."""
        with self._lock:
            idle, self._idle = self._idle, {}
        if self._process == os.getpid():
            for connection in idle.values():
                connection.close()


KEPT = Kept()
atexit.register(KEPT.close)
