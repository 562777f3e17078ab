"""ALTER TYPE … RENAME VALUE changes the values of rows, and no technique reports that: the poll is an error."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.catalog.helpers import contents
from tests.cdc.servers import TECHNIQUES, Consumer

import freshview
from freshview.cdc.postgres.server import Server
from freshview.errors import CaptureFailed

pytestmark = pytest.mark.postgres
_STAMPS = "changed timestamptz NOT NULL DEFAULT now(), inserted timestamptz NOT NULL DEFAULT now(), deleted timestamptz"
# How a column can hold labels of an enumeration {e}, and a value with the label a.
_HOLDERS = {
    "enum": ("", "{e}", "'a'"),
    "array": ("", "{e}[]", "'{{a,b}}'"),
    "domain": ("CREATE DOMAIN {e}_d AS {e}", "{e}_d", "'a'"),
    "composite": ("CREATE TYPE {e}_c AS (x int, y {e}[])", "{e}_c", "'(1,{{a}})'"),
    "range": ("CREATE TYPE {e}_r AS RANGE (subtype = {e}, multirange_type_name = {e}_m)", "{e}_r", "'[a,b]'"),
    "multirange": ("CREATE TYPE {e}_r AS RANGE (subtype = {e}, multirange_type_name = {e}_m)", "{e}_m", "'{{[a,b]}}'"),
}


def _run(url: str, *commands: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for command in filter(None, commands):
            connection.execute(command.encode())


def _table(url: str, holder: str, key: str = "id int PRIMARY KEY", more: str = "") -> tuple[str, str]:
    """A table with a row (1, a value with the label a), and the name of the enumeration."""
    name, enum = f"public.t_{uuid.uuid4().hex[:10]}", f"e_{uuid.uuid4().hex[:10]}"
    type_, column, value = (part.format(e=enum) for part in _HOLDERS[holder])
    _run(
        url,
        f"CREATE TYPE {enum} AS ENUM ('a', 'b')",
        type_,
        f"CREATE TABLE {name} ({key.format(e=enum)}, v {column}{more})",
        f"INSERT INTO {name} VALUES ({'1' if key.startswith('id int') else repr('a')}, {value})",
    )
    return name, enum


def _polled(url: str, technique: str, name: str) -> Consumer:
    source: Any = TECHNIQUES[technique](Server(url), name)
    consumer = Consumer(source)
    consumer.poll()
    return consumer


def _drop(consumer: Consumer) -> None:
    source: Any = consumer.source
    if hasattr(source, "drop"):
        source.drop()


@pytest.mark.parametrize("technique", TECHNIQUES)
def test_a_renamed_label_is_an_error(database: str, technique: str) -> None:
    name, enum = _table(database, "enum", more=f", {_STAMPS}" if "audit" in technique else "")
    consumer = _polled(database, technique, name)
    position = consumer.position
    _run(database, f"ALTER TYPE {enum} ADD VALUE 'aa' BEFORE 'b'", f"INSERT INTO {name} VALUES (2, 'aa')")
    consumer.poll()  # a label that is added changes no row
    assert [r["v"] for r in consumer.rows.select(["id", "v"]).sort_by("id").to_pylist()] == ["a", "aa"]
    _run(database, f"ALTER TYPE {enum} RENAME VALUE 'a' TO 'z'")
    for at in (consumer.position, position):
        with pytest.raises(CaptureFailed, match=r"ALTER TYPE has renamed 'a', a value of rows, .* FULL") as raised:
            consumer.source.poll(at)
        assert raised.value.what == f"table {name}"
    assert position is not None
    assert position in raised.value.remedy
    _drop(consumer)


@pytest.mark.parametrize("holder", _HOLDERS)
def test_a_renamed_label_is_noticed_wherever_a_column_has_it(database: str, holder: str) -> None:
    name, enum = _table(database, holder)
    consumer = _polled(database, "tracking", name)
    consumer.poll()
    _run(database, f"ALTER TYPE {enum} RENAME VALUE 'a' TO 'z'")
    with pytest.raises(CaptureFailed, match="ALTER TYPE has renamed 'a'"):
        consumer.source.poll(consumer.position)
    _drop(consumer)


def test_a_renamed_label_of_a_key_is_noticed(database: str) -> None:
    name, enum = _table(database, "enum", key="id {e} PRIMARY KEY")
    consumer = _polled(database, "triggers", name)
    _run(database, f"ALTER TYPE {enum} RENAME VALUE 'a' TO 'z'", f"DELETE FROM {name}")
    with pytest.raises(CaptureFailed, match="ALTER TYPE has renamed 'a'"):
        consumer.source.poll(consumer.position)
    _drop(consumer)


@pytest.mark.parametrize("capture", ["tracking", "decoding"])
def test_a_flow_goes_on_by_a_full_refresh(database: str, tmp_path: Path, capture: str) -> None:
    name, enum = _table(database, "enum")
    with freshview.connect(tmp_path / "warehouse") as wh:
        wh.sql(f"CREATE SOURCE s USING POSTGRES OPTIONS (url '{database}', capture '{capture}')")
        wh.sql(f"CREATE FLOW f AS AUTO CDC INTO t FROM s.{name} KEYS (id)")
        wh.sql("REFRESH FLOW f")
        _run(database, f"ALTER TYPE {enum} RENAME VALUE 'a' TO 'z'", f"INSERT INTO {name} VALUES (2, 'b')")
        with pytest.raises(CaptureFailed, match="ALTER TYPE has renamed 'a'"):
            wh.sql("REFRESH FLOW f")
        assert [r["v"] for r in contents(wh, "t")] == ["a"]
        wh.sql("REFRESH FLOW f FULL")
        _run(database, f"INSERT INTO {name} VALUES (3, 'z')")
        wh.sql("REFRESH FLOW f")
        assert sorted((r["id"], r["v"]) for r in contents(wh, "t")) == [(1, "z"), (2, "b"), (3, "z")]
        wh.sql("DROP FLOW f")
