"""Connections to a server are kept for the next poll, and never trusted to be alive."""

from __future__ import annotations

import psycopg
import pytest

from freshview.cdc.postgres.connections import KEPT
from freshview.cdc.postgres.server import Server, fetch
from freshview.errors import CaptureFailed

pytestmark = pytest.mark.postgres


def _pid(server: Server) -> int:
    with server.connect() as connection:
        return connection.info.backend_pid


def test_the_next_user_gets_the_same_connection_and_two_at_once_get_two(database: str) -> None:
    first = _pid(Server(database))
    assert _pid(Server(database)) == first
    with Server(database).connect() as one, Server(database).connect() as other:
        pids = one.info.backend_pid, other.info.backend_pid
        assert first == pids[0] != pids[1]
    assert one.closed != other.closed, "one is kept"
    with Server(database).connect(kept=False) as alone:
        assert alone.info.backend_pid not in pids
    assert alone.closed
    KEPT.close()
    assert _pid(Server(database)) not in pids


def test_a_connection_that_the_server_ended_is_replaced(database: str) -> None:
    first = _pid(Server(database))
    with psycopg.connect(database) as other:
        other.execute("SELECT pg_terminate_backend(%s, 5000)", (first,))
    assert _pid(Server(database)) != first


def test_another_role_of_the_environment_gets_a_connection_of_its_own(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = _pid(Server(database))
    monkeypatch.setenv("PGAPPNAME", "another")
    with Server(database).connect() as connection:
        assert connection.info.backend_pid != first
        assert fetch(connection, "SHOW application_name") == [("another",)]


def test_a_connection_with_an_error_is_closed(database: str) -> None:
    first = _pid(Server(database))
    with pytest.raises(CaptureFailed, match="division by zero"), Server(database).snapshot() as snapshot:
        snapshot.fetch("SELECT 1 / 0")
    assert _pid(Server(database)) != first


def test_a_changed_table_is_no_error_of_a_kept_connection(database: str) -> None:
    """Statements are not prepared: a plan of before would be refused after ALTER TABLE."""
    with psycopg.connect(database) as other:
        other.execute("CREATE TABLE kept (a int)")
        other.execute("INSERT INTO kept VALUES (1)")
    for _ in range(10):
        with Server(database).snapshot("kept") as snapshot:
            assert snapshot.fetch("SELECT * FROM kept") == [(1,)]
    with psycopg.connect(database) as other:
        other.execute("ALTER TABLE kept ALTER COLUMN a TYPE text")
    with Server(database).connect() as connection:
        assert fetch(connection, "SELECT * FROM kept") == [("1",)]
