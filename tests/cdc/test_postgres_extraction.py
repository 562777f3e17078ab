"""Large tables are read in parts, by several connections in one snapshot; Spark loads the table of a new flow."""

from __future__ import annotations

import uuid
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from tests.catalog.helpers import contents

from freshview import Warehouse
from freshview.cdc.postgres.audit import Audit, AuditColumns
from freshview.cdc.postgres.extraction import extraction
from freshview.cdc.postgres.server import Server
from freshview.cdc.postgres.tracking import Tracking
from freshview.spark.parts import workers_have

pytestmark = pytest.mark.postgres

_COLUMNS = '"id%" text PRIMARY KEY, n numeric(12,2), at timestamptz NOT NULL DEFAULT now(), note text, f real'
_ROWS = "SELECT 'k' || i, i / 4.0, now(), nullif('it''s ' || i % 7, 'it''s 0'), 'NaN' FROM generate_series(1, 3000) i"


@pytest.fixture
def table(database: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a table with about 20 pages, which are a part each."""
    monkeypatch.setattr("freshview.cdc.postgres.extraction.LARGE", 0)
    monkeypatch.setattr("freshview.cdc.postgres.extraction._PART", 8192)
    name = f"big_{uuid.uuid4().hex[:8]}"
    _run(database, f"CREATE TABLE {name} ({_COLUMNS})", f"INSERT INTO {name} {_ROWS}")
    return name


def _run(url: str, *commands: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url) as connection:
        for command in commands:
            cursor = connection.execute(command.encode())
        return cursor.fetchall() if cursor.description else []


def _cells(rows: pa.Table) -> list[str]:
    return sorted(repr(row) for row in rows.to_pylist())


def test_the_parts_of_a_table_are_its_rows_in_one_snapshot(database: str, table: str) -> None:
    source = Tracking(Server(database), f"public.{table}")
    source.install()
    expected = _cells(source.poll(None).delta.ins)
    with extraction(source) as found:
        assert found is not None
        rows, poll = found
        assert len(rows.starts) > 5
        first = rows.read(0)
        _run(database, f"UPDATE {table} SET n = n + 1", f"DELETE FROM {table} WHERE n < 300")
        parts = [first, *(rows.read(part) for part in range(1, len(rows.starts)))]
        assert _cells(pa.concat_tables(parts)) == expected
    assert poll.delta.num_changes == 0
    later = source.poll(poll.position).delta
    assert (later.up.num_rows + later.delk.num_rows, later.ins.num_rows) == (3000, 0)
    source.drop()


def test_a_table_whose_position_depends_on_its_rows_is_read_by_one_connection(database: str, table: str) -> None:
    times = AuditColumns("at", never=frozenset({"deletions"}))
    with extraction(Audit(Server(database), f"public.{table}", times)) as found:
        assert found is None


def test_spark_loads_a_large_table_and_the_flow_goes_on_from_there(swh: Warehouse, database: str, table: str) -> None:
    swh.sql(f"CREATE SOURCE s USING POSTGRES OPTIONS (url '{database}', capture 'decoding')")
    swh.sql(f"CREATE FLOW f AS AUTO CDC INTO t FROM s.public.{table} KEYS (`id%`) COLUMNS * EXCEPT (note)")
    parts: list[int] = []
    swh.events.listen(lambda e: parts.append(e.details["parts"]) if "parts" in e.details else None)
    assert swh.sql("REFRESH FLOW f").rows == 3000
    assert len(parts) == 1
    assert parts[0] > 5
    for change in ("", f"UPDATE {table} SET n = -n WHERE n < 10", f"DELETE FROM {table} WHERE n > 700"):
        if change:
            _run(database, change)
            swh.sql("REFRESH FLOW f")
        there = _run(database, f'SELECT "id%", n, at, f FROM {table}')
        here = [(r["id%"], r["n"], r["at"], r["f"]) for r in contents(swh, "t")]
        assert _plain(here) == _plain(there)
    swh.sql("DROP FLOW f")
    assert not workers_have(swh.engine(), ["a_module_that_workers_lack"])  # then the driver reads


def _plain(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return sorted((key, n, at.timestamp(), repr(f)) for key, n, at, f in rows)
