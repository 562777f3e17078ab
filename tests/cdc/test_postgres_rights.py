"""Users who see only some rows, and users with a password from a file."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.catalog.helpers import contents
from tests.conftest import PostgresServer

import freshview
from freshview.cdc.postgres.server import Server
from freshview.cdc.postgres.tracking import Tracking
from freshview.errors import CaptureFailed, FreshviewError

pytestmark = pytest.mark.postgres


def _run(url: str, *commands: str) -> None:
    with psycopg.connect(url) as connection:
        for command in commands:
            connection.execute(command.encode())


@pytest.fixture
def role() -> str:
    return f"r_{uuid.uuid4().hex[:10]}"


def _owned(database: str, role: str) -> tuple[str, str]:
    """A table of two rows that a role owns, and the URL of the role."""
    name = f"public.t_{uuid.uuid4().hex[:10]}"
    _run(
        database,
        f"CREATE ROLE {role} LOGIN REPLICATION",
        f"GRANT CREATE ON SCHEMA public TO {role}",
        f"CREATE TABLE {name} (id int PRIMARY KEY, v text)",
        f"INSERT INTO {name} VALUES (1, 'a'), (2, 'b')",
        f"ALTER TABLE {name} OWNER TO {role}",
    )
    return name, database.replace("freshview@", f"{role}@")


# -- row-level security ------------------------------------------------------------------------------


def _hide(database: str, name: str) -> None:
    """Hide rows from all users, the owner included, but for those with BYPASSRLS."""
    _run(
        database,
        f"CREATE POLICY p ON {name} USING (id < 2)",
        f"ALTER TABLE {name} ENABLE ROW LEVEL SECURITY",
        f"ALTER TABLE {name} FORCE ROW LEVEL SECURITY",
    )


def test_a_user_from_whom_rows_are_hidden_is_refused(database: str, role: str) -> None:
    """Without an error a row that is updated so that a policy hides it would be taken for a deleted one."""
    name, url = _owned(database, role)
    source = Tracking(Server(url), name)
    source.install()
    position = source.poll(None).position
    _hide(database, name)
    _run(database, f"UPDATE {name} SET v = 'z' WHERE id = 2")
    for poll in (lambda: source.poll(position), lambda: source.poll(None), lambda: Tracking(Server(url), name)):
        with pytest.raises(CaptureFailed) as raised:
            poll()
        assert raised.value.what == f"table {name}"
        assert f"its row-level security hides rows from the user {role}" in raised.value.cause
        assert raised.value.remedy.startswith(f"ALTER ROLE {role} BYPASSRLS")
    _run(database, f"ALTER ROLE {role} BYPASSRLS")
    assert source.poll(position).delta.up.to_pylist() == [{"id": 2, "v": "z"}]
    source.drop()


def test_the_server_itself_refuses_to_hide_rows(database: str, role: str) -> None:
    """Where the table was checked before a policy was made, and in all that is not about one table."""
    name, url = _owned(database, role)
    _hide(database, name)
    with (
        pytest.raises(CaptureFailed, match="would be affected by row-level security policy"),
        Server(url).snapshot() as snapshot,
    ):
        snapshot.fetch(f"SELECT * FROM {name}")
    with Server(f"{url}?options=-c%20row_security%3Don").connect() as connection:
        assert connection.execute("SHOW row_security").fetchall() == [("off",)]


# -- passwords in files --------------------------------------------------------------------------------


def _demand_password(postgres: PostgresServer, role: str, password: str) -> None:
    """Have the server ask this role for a password; all others are trusted, as before."""
    with psycopg.connect(postgres.url(), autocommit=True) as connection:
        connection.execute(f"ALTER ROLE {role} PASSWORD '{password}'".encode())
        found = connection.execute("SHOW hba_file").fetchone()
        assert found is not None
        file = Path(found[0])
        file.write_text(f"host all {role} 127.0.0.1/32 scram-sha-256\n{file.read_text()}")
        connection.execute("SELECT pg_reload_conf()")
        for _ in range(100):
            lines = connection.execute("SELECT user_name FROM pg_hba_file_rules").fetchall()
            if ([role],) in lines:
                break


def _in_home(file: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    shutil.copy(file, file.parent / ".pgpass")
    monkeypatch.setenv("HOME", str(file.parent))
    return url


def _in_environment(file: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("PGPASSFILE", str(file))
    return url


def _in_url(file: Path, url: str, _: pytest.MonkeyPatch) -> str:
    return f"{url}?passfile={file}"


@pytest.mark.parametrize("capture", ["tracking", "decoding"])
@pytest.mark.parametrize("given", [_in_home, _in_environment, _in_url], ids=["~/.pgpass", "PGPASSFILE", "passfile"])
def test_a_password_comes_from_a_file_and_is_written_nowhere(
    postgres: PostgresServer,
    database: str,
    role: str,
    tmp_path: Path,
    given: Callable[..., str],
    capture: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    secret = f"hush{uuid.uuid4().hex}"
    monkeypatch.delenv("PGPASSWORD", raising=False)
    name, url = _owned(database, role)
    _demand_password(postgres, role, secret)
    with pytest.raises(psycopg.OperationalError, match="no password supplied"), psycopg.connect(url):
        pass
    home = tmp_path / "home"
    home.mkdir()
    file = home / "passwords"
    file.write_text(f"127.0.0.1:*:*:{role}:{secret}\n")
    file.chmod(0o600)
    url = given(file, url, monkeypatch)
    said: list[Any] = []
    with caplog.at_level("DEBUG"), freshview.connect(tmp_path / "warehouse") as wh:
        wh.events.listen(lambda event: said.append(repr(event)))
        wh.sql(f"CREATE SOURCE s USING POSTGRES OPTIONS (url '{url}', capture '{capture}')")
        wh.sql(f"CREATE FLOW f AS AUTO CDC INTO t FROM s.{name} KEYS (id)")
        wh.sql("REFRESH FLOW f")
        _run(database, f"DELETE FROM {name} WHERE id = 1")
        wh.sql("REFRESH FLOW f")
        assert contents(wh, "t") == [{"id": 2, "v": "b"}]
        wh.sql("DROP FLOW f")
        _run(database, f"DROP TABLE {name}")
        with pytest.raises(FreshviewError) as raised:
            wh.sql(f"CREATE FLOW g AS AUTO CDC INTO u FROM s.{name} KEYS (id)")
        said += [str(raised.value), repr(wh.status()), caplog.text]
    written = [path.read_bytes() for path in (tmp_path / "warehouse").rglob("*") if path.is_file()]
    assert any(role.encode() in content for content in written)  # the catalog is among what was read
    assert not any(secret in text for text in said)
    assert not any(secret.encode() in content for content in written)


def test_a_wrong_password_in_a_file_is_an_error_that_does_not_show_it(
    postgres: PostgresServer, database: str, role: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PGPASSWORD", raising=False)
    name, url = _owned(database, role)
    _demand_password(postgres, role, "right")
    file = tmp_path / "passwords"
    file.write_text(f"127.0.0.1:*:*:{role}:hushwrong\n")
    file.chmod(0o600)
    with pytest.raises(CaptureFailed, match="password authentication failed") as raised:
        Tracking(Server(f"{url}?passfile={file}"), name)
    assert "hushwrong" not in str(raised.value)
