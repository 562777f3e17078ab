"""Fixtures that all tests share: one Spark session, one PostgreSQL server, fresh warehouses."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from hypothesis import settings
from sqlalchemy.util import LRUCache
from tests import java
from tests.effort import IS_SOAK, SOAK_SEED

import freshview
from freshview import Warehouse
from freshview.bench.postgres_server import LocalServer, server_tools
from freshview.catalog import engine as catalog_engine
from freshview.definition import reading
from freshview.definition import selftest as self_test
from freshview.definition.known import Definitions
from freshview.definition.verdict import UNTESTED, Verdict
from freshview.refresh import embedded

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A busy machine fails no test; a failure of a draw that no other run makes prints what replays it.
settings.register_profile("every commit", derandomize=True, deadline=None)
settings.register_profile("soak", deadline=None, print_blob=True)
settings.load_profile("soak" if IS_SOAK else "every commit")
os.environ["SPARK_SUBMIT_OPTS"] = java.DRIVER  # of the processes that tests start
embedded.ENGINE = os.environ.get("FRESHVIEW_ENGINE", embedded.ENGINE)  # "spark": of all jobs in this process

INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
# Of a session for queries over a few rows: plans are final and short, and no code is generated. Spark's own settings
# hold in a soak, in tests/processes and in tests/cluster.
_FEW_ROWS = {
    **INTERPRETED,
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.leafNodeDefaultParallelism": "1",
    "spark.sql.ui.explainMode": "simple",
}

# Of a server whose databases end with the tests: what a crash of the machine would leave is nobody's concern.
_SERVER = {
    "max_connections": "300",
    "autovacuum": "off",
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "wal_level": "logical",
    "max_replication_slots": "100",
    "max_prepared_transactions": "2",
}


@pytest.fixture(scope="session", autouse=True)
def catalogs() -> Iterator[None]:
    """Thousands of short-lived ones: no write waits for the disk, and statements are compiled once for all of a kind.

    What a process has written outlives it without that, killed or not.
    """
    sqlite_engine, postgres_engine = catalog_engine._sqlite_engine, catalog_engine._postgres_engine
    known: dict[str, sa.Dialect] = {}
    compiled: LRUCache[Any, Any] = LRUCache(1000)

    def sharing(engine: sa.Engine) -> sa.Engine:
        kind = engine.dialect.name
        if kind in known:
            engine.dialect = known[kind]
        else:
            sa.event.listen(engine, "connect", lambda *_: known.setdefault(kind, engine.dialect))  # it knows its server
        engine.update_execution_options(compiled_cache=compiled)
        return engine

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        patch.setattr(catalog_engine, "_sqlite_engine", lambda url, _: sharing(sqlite_engine(url, "OFF")))
        patch.setattr(catalog_engine, "_postgres_engine", lambda url: sharing(postgres_engine(url)))
        yield


def pytest_report_header() -> list[str]:
    replay = [f"Seed of the random draws: FRESHVIEW_SEED={SOAK_SEED} replays them"] if IS_SOAK else []
    return [f"PostgreSQL: {server_tools() or 'no server installed; the tests that need one are skipped'}", *replay]


class PostgresServer(LocalServer):
    """A real server, with as many databases as tests ask for."""

    def new_database(self) -> str:
        """The URL of an empty database."""
        name = f"fv_{uuid.uuid4().hex[:12]}"
        self._ask(f"CREATE DATABASE {name}")
        return self.url(name)

    def drop(self, url: str) -> None:
        """Remove a database, if it can be removed: hundreds of them are gigabytes, which take minutes to remove."""
        with suppress(sa.exc.DBAPIError):
            self._ask(f"DROP DATABASE {url.rpartition('/')[2]} WITH (FORCE)")

    def _ask(self, statement: str) -> None:
        engine = sa.create_engine(self.url(driver="postgresql+psycopg"), isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.exec_driver_sql(statement)
        engine.dispose()


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    tools = server_tools()
    if tools is None:
        pytest.skip("no PostgreSQL server is installed on this machine")
    server = PostgresServer(tools, _SERVER)
    yield server
    server.stop()


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def catalog_url(request: pytest.FixtureRequest) -> Iterator[str | None]:
    """The catalog of a fresh warehouse: None for SQLite in its folder, a URL for PostgreSQL."""
    if request.param == "sqlite":
        yield None
        return
    server: PostgresServer = request.getfixturevalue("postgres")
    url = server.new_database()
    yield url
    server.drop(url)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The one Spark session of a test run, made for queries over a few rows.

    Shuffles are narrow, no plan changes while it runs, and no code is generated: compiling it is a quarter of the work.
    """
    from freshview.spark import session as sessions

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_SUBMIT_OPTS", java.SESSION)
        for key, value in {"spark.sql.shuffle.partitions": "2", **({} if IS_SOAK else _FEW_ROWS)}.items():
            patch.setitem(sessions._LOCAL_SETTINGS, key, value)
        session = sessions.obtain_session()
    with pytest.MonkeyPatch.context() as patch:
        java.remember_names(patch)
        yield session
    session.stop()


@pytest.fixture(autouse=True)
def selftest(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Views of tests are compared with plain Spark anyway: only tests about the reading of texts have Spark asked.

    A view that is wrong without being asked about is then wrong in a test, and not recomputed. A difference that a
    self-test finds is reduced where a test is about its example, or in a soak: that takes 30 times two queries.
    """
    marks = {mark.name for mark in request.node.iter_markers()}
    if "example" not in marks and not IS_SOAK:
        monkeypatch.setattr(self_test, "_QUESTIONS", 0)
    if "selftest" not in marks:
        monkeypatch.setattr(reading, "SELFTEST", "off")
        if "reading" not in marks:
            monkeypatch.setattr(reading.Reader, "_asked", _asked_if_told)
            monkeypatch.setattr(Definitions, "refuse_undetermined", lambda *_: None)


_ask = reading.Reader._asked


def _asked_if_told(reader: reading.Reader, selftest: bool, progress: reading.Progress) -> Verdict:
    """Ask Spark about a view with the property 'selftest' = 'on'."""
    return _ask(reader, selftest, progress) if selftest else Verdict(UNTESTED)


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
