"""Sources in the catalog: what their options may be, and that no password is ever among them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from tests.internals import internals

import freshview
from freshview import Warehouse
from freshview.catalog.flows import FlowCatalog
from freshview.cdc.event_files import EventFiles
from freshview.cdc.opening import open_table, poll_of
from freshview.errors import AlreadyExists, CaptureFailed, FreshviewError, InvalidStatement, NotFound
from freshview.relation.schema import Column, Schema
from freshview.relation.types import parse_type
from freshview.sql.statements import Delete, Insert, Merge, Update
from freshview.views.reading import Freshness
from freshview.warehouse.queries import Queries

_SCHEMA = Schema((Column("id", parse_type("INT")),), ("id",))


@pytest.fixture
def wh(tmp_path: Path) -> Iterator[Warehouse]:
    with freshview.connect(tmp_path / "warehouse") as wh:
        yield wh


def _sources(wh: Warehouse) -> FlowCatalog:
    return FlowCatalog(internals(wh).catalog)


def test_a_source_is_stored_until_it_is_dropped(wh: Warehouse, tmp_path: Path) -> None:
    wh.sql("CREATE SOURCE shop USING DEBEZIUM OPTIONS (path '/data', 'on error' 'quarantine')")
    with freshview.connect(tmp_path / "warehouse") as other:
        found = _sources(other).source("SHOP")
    assert (found.name, found.kind, found.options) == (
        "shop",
        "DEBEZIUM",
        {"path": "/data", "on error": "quarantine"},
    )
    with pytest.raises(AlreadyExists, match="source Shop"):
        wh.sql("CREATE SOURCE Shop USING CANAL OPTIONS (path '/data')")
    wh.sql("CREATE SOURCE IF NOT EXISTS Shop USING CANAL OPTIONS (path '/data')")
    assert [s.kind for s in _sources(wh).sources()] == ["DEBEZIUM"]
    wh.sql("DROP SOURCE shop")
    assert _sources(wh).sources() == []
    wh.sql("DROP SOURCE IF EXISTS shop")
    with pytest.raises(NotFound, match="source shop"):
        wh.sql("DROP SOURCE shop")


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("ORACLE", "path '/x'", "Use one of POSTGRES"),
        ("CANAL", "", "'path' is missing"),
        ("CANAL", "path '/x', url 'y'", "option 'url' of CANAL: is not known"),
        ("CANAL", "path '/x', 'on error' 'ignore'", "Use 'stop' or 'quarantine'"),
        ("CANAL", "path '/x', poll 'often'", "Use 'every 10 seconds', 'on query' or 'manual'"),
        ("CANAL", "path '/x', poll 'every 0 seconds'", "is not known"),
        ("CSV", "path '/x', least '2'", "from 0 to 1"),
        ("POSTGRES", "capture 'tracking'", "'url' is missing"),
        ("POSTGRES", "url 'host=h', capture 'magic'", "Use one of tracking, triggers, decoding, audit"),
        ("POSTGRES", "url 'host=h', capture 'audit'", "'changed' is missing"),
        ("POSTGRES", "url 'host=h', capture 'tracking', changed 'ts'", "option 'changed' of POSTGRES: is not known"),
    ],
)
def test_options_that_are_not_known_are_refused(wh: Warehouse, kind: str, options: str, message: str) -> None:
    with pytest.raises(FreshviewError, match=message):
        wh.sql(f"CREATE SOURCE s USING {kind}" + (f" OPTIONS ({options})" if options else ""))
    assert _sources(wh).sources() == []


@pytest.mark.parametrize("url", ["postgresql://me:hush@h/d", "host=h password=hush", "host=h sslpassword=hush"])
def test_a_password_is_refused_and_shown_nowhere(wh: Warehouse, tmp_path: Path, url: str) -> None:
    with pytest.raises(CaptureFailed, match=r"has a (password|secret \(sslpassword\))") as caught:
        wh.sql(f"CREATE SOURCE s USING POSTGRES OPTIONS (url '{url}')")
    assert "hush" not in str(caught.value)
    wh.close()
    for file in (tmp_path / "warehouse").rglob("*"):
        assert not file.is_file() or b"hush" not in file.read_bytes()


def test_tables_of_a_source_are_opened_by_its_record(wh: Warehouse) -> None:
    wh.sql("CREATE SOURCE shop USING MAXWELL OPTIONS (path '/data')")
    record = _sources(wh).source("shop")
    assert isinstance(open_table(record, "db.orders", _SCHEMA), EventFiles)
    with pytest.raises(InvalidStatement, match="files do not list its columns"):
        open_table(record, "db.orders")


def test_times_of_polling() -> None:
    assert poll_of({}) == "manual"
    assert poll_of({"poll": "On  Query"}) == "on query"
    assert [
        getattr(poll_of({"poll": f"every {text}"}), "total_seconds")()  # noqa: B009
        for text in ("10 seconds", "1.5 minutes", "2 h")
    ] == [10, 90, 7200]


def test_small_writes_ask_next_to_nothing_about_polling_where_nothing_is_polled(
    open_warehouse: Callable[[], Warehouse], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: INSERT … VALUES reads nothing and asks nothing; others ask once whether there is any source."""
    wh = open_warehouse()
    wh.sql("CREATE TABLE t (k INT, v INT, PRIMARY KEY (k))")
    asked: list[str] = []
    engine = internals(wh).catalog.database._engine
    sa.event.listen(engine, "before_cursor_execute", lambda *args: asked.append(args[2]))
    poll_for, more = Queries.poll_for, []
    asks = {"INSERT INTO t VALUES (1, 1), (2, 2)": 0, "DELETE FROM t WHERE k = 1": 1, "DELETE FROM t WHERE v = 2": 1}

    def counted(queries: Queries, statement: Insert | Update | Delete | Merge, freshness: Freshness) -> None:
        before = sum(text.startswith("SELECT") for text in asked)
        poll_for(queries, statement, freshness)
        more.append(sum(text.startswith("SELECT") for text in asked) - before)

    monkeypatch.setattr(Queries, "poll_for", counted)
    for text in asks:
        wh.sql(text)
    assert more == [*asks.values()]
