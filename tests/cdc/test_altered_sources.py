"""ALTER SOURCE of a PostgreSQL server: flows and remote views go on at another address of the same server alone."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa
from tests.catalog.helpers import contents
from tests.conftest import PostgresServer
from tests.internals import internals

import freshview
from freshview import Warehouse
from freshview.catalog import tables as t
from freshview.catalog.flows import FlowCatalog
from freshview.errors import CaptureFailed, InvalidStatement

pytestmark = pytest.mark.postgres


@pytest.fixture
def wh(tmp_path: Path) -> Iterator[Warehouse]:
    with freshview.connect(tmp_path / "warehouse") as wh:
        yield wh


def _run(url: str, *commands: str) -> None:
    with psycopg.connect(url) as connection:
        for command in commands:
            connection.execute(command.encode())


def _flow(wh: Warehouse, url: str, capture: str = "tracking", clauses: str = "") -> str:
    table = f"t_{uuid.uuid4().hex[:10]}"
    _run(url, f"CREATE TABLE {table} (id int PRIMARY KEY, changed timestamptz DEFAULT clock_timestamp())")
    _run(url, f"INSERT INTO {table} VALUES (1)")
    more = ", changed 'changed'" if capture == "audit" else ""
    wh.sql(f"CREATE SOURCE s USING POSTGRES OPTIONS (url '{url}', capture '{capture}'{more})")
    wh.sql(f"CREATE FLOW f AS AUTO CDC INTO t FROM s.public.{table} KEYS (id) COLUMNS (id) {clauses}")
    wh.sql("REFRESH FLOW f")
    return table


def _url(wh: Warehouse) -> str:
    return FlowCatalog(internals(wh).catalog).source("s").options["url"]


def _ids(wh: Warehouse) -> list[int]:
    return [row["id"] for row in contents(wh, "t")]


@pytest.mark.parametrize("capture", ["tracking", "triggers", "decoding", "audit"])
def test_a_flow_goes_on_at_another_address(wh: Warehouse, database: str, capture: str) -> None:
    table = _flow(wh, database, capture)
    _run(database, f"INSERT INTO {table} VALUES (2)")
    other = f"{database}{'&' if '?' in database else '?'}application_name=other"
    wh.sql(f"ALTER SOURCE s SET OPTIONS (url '{other}')")
    assert wh.sql("REFRESH FLOW f").rows == 1
    assert _ids(wh) == [1, 2]
    wh.sql("DROP FLOW f")


def test_another_database_or_user_or_capture_is_refused(wh: Warehouse, database: str, postgres: PostgresServer) -> None:
    """A copy of the database on the same server has the same tables, and no position would notice it."""
    _flow(wh, database, "audit")
    for url, message in (
        (postgres.new_database(), "its dbname would be .* the tables of flow f might be others.*another source"),
        (f"{database}{'&' if '?' in database else '?'}options=-csearch_path%3Dx", "its options would be"),
    ):
        with pytest.raises(InvalidStatement, match=message):
            wh.sql(f"ALTER SOURCE s SET OPTIONS (url '{url}')")
    with pytest.raises(InvalidStatement, match=r"'changed' of source s.*flow f has a position"):
        wh.sql("ALTER SOURCE s SET OPTIONS (changed 'id')")
    with pytest.raises(CaptureFailed, match="has a password"):
        wh.sql("ALTER SOURCE s SET OPTIONS (url 'host=h password=hush')")
    assert _url(wh) == database


def test_a_position_that_does_not_name_its_server_must_be_polled_first(wh: Warehouse, database: str) -> None:
    _flow(wh, database)
    catalog = internals(wh).catalog
    with catalog.database.write() as c:
        position = json.loads(c.execute(sa.select(t.positions.c.position)).scalar_one())
        del position["server"]
        c.execute(t.positions.update().values(position=json.dumps(position)))
    other = f"{database}{'&' if '?' in database else '?'}application_name=other"
    with pytest.raises(InvalidStatement, match="Poll it at the old address first: REFRESH FLOW f"):
        wh.sql(f"ALTER SOURCE s SET OPTIONS (url '{other}')")
    wh.sql("REFRESH FLOW f")
    wh.sql(f"ALTER SOURCE s SET OPTIONS (url '{other}')")


def test_remote_tables_are_read_at_the_new_address(wh: Warehouse, database: str) -> None:
    table = f"t_{uuid.uuid4().hex[:10]}"
    _run(database, f"CREATE TABLE {table} (id int PRIMARY KEY)", f"INSERT INTO {table} VALUES (1)")
    wh.sql(f"CREATE SOURCE s USING POSTGRES OPTIONS (url '{database}')")
    wh.sql(f"CREATE REMOTE TABLE r FROM s.{table}")
    other = f"{database}{'&' if '?' in database else '?'}application_name=other"
    relation = internals(wh).catalog.relation("r")
    tables = internals(wh).dimensions.tables
    before = tables.open(relation)
    assert tables.open(relation) is before
    wh.sql(f"ALTER SOURCE s SET OPTIONS (url '{other}')")
    after = tables.open(relation)
    assert ("application_name", "other") in after.server
    assert after.server in tables.servers([relation]).values()
    with pytest.raises(InvalidStatement, match="drop remote table r first"):
        wh.sql("ALTER SOURCE s SET OPTIONS (capture 'triggers')")
