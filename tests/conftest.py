"""Fixtures that all tests share: one Spark session, one PostgreSQL server, fresh warehouses."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

import freshview
from freshview import Warehouse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SERVER_FOLDERS = ("/usr/lib/postgresql/*/bin", "/usr/local/pgsql/bin", "/opt/homebrew/opt/postgresql*/bin")


def pytest_report_header() -> str:
    tools = _postgres_tools()
    return f"PostgreSQL: {tools or 'no server installed; the tests that need one are skipped'}"


def _postgres_tools() -> Path | None:
    """The folder of initdb and postgres, if a server is installed."""
    folders = [p for pattern in _SERVER_FOLDERS for p in sorted(Path("/").glob(pattern[1:]), reverse=True)]
    on_path = shutil.which("initdb")
    if on_path:
        folders.append(Path(on_path).parent)
    return next((f for f in folders if (f / "initdb").exists() and (f / "postgres").exists()), None)


class PostgresServer:
    """A real server on loopback and a free port, in a folder of its own."""

    def __init__(self, tools: Path) -> None:
        self._tools = tools
        self._folder = Path(tempfile.mkdtemp(prefix="freshview-pg-"))
        self._user = "postgres" if os.geteuid() == 0 else None  # the server refuses to run as root
        if self._user:
            shutil.chown(self._folder, self._user)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        data = self._folder / "data"
        self._run("initdb", "-D", str(data), "-U", "freshview", "-A", "trust", "-E", "UTF8", "--no-sync")
        options = f"-h 127.0.0.1 -p {self.port} -k {self._folder} -c max_connections=300"
        log = str(self._folder / "log")
        self._run("pg_ctl", "-D", str(data), "-o", options, "-l", log, "-w", "-t", "60", "start")

    def _run(self, tool: str, *arguments: str) -> None:
        subprocess.run(
            [str(self._tools / tool), *arguments], check=True, user=self._user, cwd=self._folder,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def new_database(self) -> str:
        """The URL of an empty database."""
        name = f"fv_{uuid.uuid4().hex[:12]}"
        engine = sa.create_engine(self.url("postgres", "postgresql+psycopg"), isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.exec_driver_sql(f"CREATE DATABASE {name}")
        engine.dispose()
        return self.url(name)

    def url(self, database: str, driver: str = "postgresql") -> str:
        return f"{driver}://freshview@127.0.0.1:{self.port}/{database}"

    def stop(self) -> None:
        self._run("pg_ctl", "-D", str(self._folder / "data"), "-m", "immediate", "-w", "stop")
        shutil.rmtree(self._folder, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    tools = _postgres_tools()
    if tools is None:
        pytest.skip("no PostgreSQL server is installed on this machine")
    server = PostgresServer(tools)
    yield server
    server.stop()


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def catalog_url(request: pytest.FixtureRequest) -> str | None:
    """The catalog of a fresh warehouse: None for SQLite in its folder, a URL for PostgreSQL."""
    if request.param == "sqlite":
        return None
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.new_database()


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The one Spark session of a test run."""
    from freshview.spark.session import obtain_session

    session = obtain_session()
    yield session
    session.stop()


@pytest.fixture
def wh(tmp_path: Path) -> Iterator[Warehouse]:
    """A warehouse on SQLite. Tests that run queries ask for `spark` too (or use `swh`)."""
    with freshview.connect(tmp_path / "warehouse") as warehouse:
        yield warehouse


@pytest.fixture
def swh(tmp_path: Path, spark: SparkSession) -> Iterator[Warehouse]:
    """A warehouse on SQLite that uses the shared Spark session."""
    with freshview.connect(tmp_path / "warehouse", spark=spark) as warehouse:
        yield warehouse


@pytest.fixture
def open_warehouse(tmp_path: Path, catalog_url: str | None) -> Iterator[Callable[[], Warehouse]]:
    """Opens the same warehouse again and again, on either catalog; without Spark."""
    opened: list[Warehouse] = []

    def open_() -> Warehouse:
        opened.append(freshview.connect(tmp_path / "warehouse", catalog=catalog_url))
        return opened[-1]

    yield open_
    for warehouse in opened:
        warehouse.close()
