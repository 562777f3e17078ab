"""Catalogs that are damaged, locked, unreachable or somebody else's: one clear sentence, nothing changed."""

from __future__ import annotations

import shutil
import socket
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa
from tests.catalog.helpers import contents
from tests.internals import internals

import freshview
from freshview import Warehouse
from freshview.catalog import engine
from freshview.catalog import tables as t
from freshview.catalog.engine import Database, sqlite_url
from freshview.errors import CatalogUnavailable, CorruptWarehouse, FreshviewError, StorageUnavailable

if TYPE_CHECKING:
    from tests.conftest import PostgresServer


def _make(path: Path, catalog: str | None = None) -> None:
    with freshview.connect(path, catalog=catalog) as wh:
        wh.sql("CREATE TABLE t (k INT, v STRING, PRIMARY KEY (k))")
        with wh.transaction() as tx:
            tx.insert("t", [{"k": k, "v": "x" * 50} for k in range(2000)])


def _said(error: FreshviewError, thing: object) -> None:
    """The message names the thing, the cause and the remedy."""
    assert str(thing) in error.what
    assert error.cause
    assert error.remedy
    assert "Traceback" not in str(error)
    assert "\n" not in str(error)


def test_garbage_in_place_of_a_catalog(tmp_path: Path) -> None:
    garbage = b"this is no database" * 100
    (tmp_path / "catalog.db").write_bytes(garbage)
    with pytest.raises(CorruptWarehouse) as caught:
        freshview.connect(tmp_path)
    _said(caught.value, tmp_path)
    assert (tmp_path / "catalog.db").read_bytes() == garbage


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_a_truncated_catalog(tmp_path: Path, share: float) -> None:
    """A catalog file cut at any place is reported before wrong rows are read."""
    _make(tmp_path)
    path = tmp_path / "catalog.db"
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])

    def read_all() -> None:
        with freshview.connect(tmp_path) as wh:
            contents(wh, "t")
            internals(wh).commits()

    with pytest.raises(CorruptWarehouse) as caught:
        read_all()
    _said(caught.value, tmp_path)


def test_overwritten_pages_of_a_catalog(tmp_path: Path) -> None:
    _make(tmp_path)
    path = tmp_path / "catalog.db"
    damaged = bytearray(path.read_bytes())
    damaged[4096:] = b"\xff" * (len(damaged) - 4096)
    path.write_bytes(damaged)
    with pytest.raises(CorruptWarehouse) as caught, freshview.connect(tmp_path) as wh:
        contents(wh, "t")
    _said(caught.value, tmp_path)


@pytest.mark.parametrize("table", [t.clock, t.relations, t.segments])
def test_a_missing_table_of_a_catalog(tmp_path: Path, catalog_url: str | None, table: sa.Table) -> None:
    _make(tmp_path, catalog_url)
    with freshview.connect(tmp_path, catalog=catalog_url) as wh:
        with internals(wh).writing_database() as c:
            table.drop(c)
        with pytest.raises(CorruptWarehouse) as caught:
            contents(wh, "t")
    _said(caught.value, "catalog")


def test_a_missing_counter_row(tmp_path: Path, catalog_url: str | None) -> None:
    with freshview.connect(tmp_path, catalog=catalog_url) as wh:
        with internals(wh).writing_database() as c:
            c.execute(t.clock.delete())
        for action in (wh.status, wh.transaction, lambda: wh.sql("CREATE TABLE t (a INT)")):
            with pytest.raises(CorruptWarehouse, match="counter row"):
                action()


def test_a_damaged_inline_segment(tmp_path: Path, catalog_url: str | None) -> None:
    _make(tmp_path, catalog_url)
    with freshview.connect(tmp_path, catalog=catalog_url) as wh:
        with internals(wh).writing_database() as c:
            c.execute(t.segments.update().values(payload=b"\0" * 100))
        with pytest.raises(CorruptWarehouse) as caught:
            contents(wh, "t")
    _said(caught.value, "segment")


@pytest.mark.parametrize("damage", ["missing", "truncated"])
def test_a_damaged_data_file(tmp_path: Path, damage: str) -> None:
    _make(tmp_path)
    with freshview.connect(tmp_path) as wh:
        wh.sql("CHECKPOINT t")
        (file,) = tmp_path.rglob("*.parquet")
        before = wh.status()
        if damage == "missing":
            file.unlink()
        else:
            file.write_bytes(file.read_bytes()[:-100])
        for action in (
            lambda: contents(wh, "t"),
            lambda: wh.sql("UPDATE t SET v = 'y' WHERE k = 1"),
            lambda: wh.sql("INSERT INTO t VALUES (5, 'y')"),
        ):
            with pytest.raises(CorruptWarehouse) as caught:
                action()
            assert file.name in str(caught.value)
        assert wh.status() == before


def test_a_file_in_place_of_the_folder(tmp_path: Path) -> None:
    path = tmp_path / "warehouse"
    path.write_text("mine")
    for place in (path, path / "below"):
        with pytest.raises(StorageUnavailable) as caught:
            freshview.connect(place)
        _said(caught.value, place)
    assert path.read_text() == "mine"


def test_a_folder_in_place_of_the_catalog(tmp_path: Path) -> None:
    (tmp_path / "catalog.db").mkdir()
    with pytest.raises(StorageUnavailable) as caught:
        freshview.connect(tmp_path)
    _said(caught.value, tmp_path)


def test_a_read_only_catalog(tmp_path: Path) -> None:
    """SQLite itself is told that it may not write, since permissions do not stop an administrator."""
    _make(tmp_path)
    url = f"sqlite:///file:{tmp_path / 'catalog.db'}?mode=ro&uri=true"
    with pytest.raises(StorageUnavailable, match="readonly") as caught, freshview.connect(tmp_path, catalog=url) as wh:
        wh.sql("CREATE TABLE u (a INT)")
    _said(caught.value, tmp_path)


def test_a_locked_catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "BUSY_SECONDS", 0.2)
    with freshview.connect(tmp_path) as wh:
        wh.sql("CREATE TABLE t (a INT)")
        other = sqlite3.connect(tmp_path / "catalog.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        try:
            with pytest.raises(CatalogUnavailable, match="locked") as caught:
                wh.sql("CREATE TABLE u (a INT)")
            _said(caught.value, tmp_path)
            assert [x.name for x in wh.status().tables] == ["t"]  # reading goes on
        finally:
            other.execute("ROLLBACK")
            other.close()
        wh.sql("CREATE TABLE u (a INT)")


def test_an_unreachable_server(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with pytest.raises(CatalogUnavailable) as caught:
        freshview.connect(tmp_path, catalog=f"postgresql://me:secret@127.0.0.1:{port}/db")
    _said(caught.value, port)
    assert "secret" not in str(caught.value)


@pytest.mark.postgres
def test_a_database_that_is_not_there(tmp_path: Path, postgres: PostgresServer) -> None:
    url = postgres.url("no_such_database")
    with pytest.raises(CatalogUnavailable, match="no_such_database") as caught:
        freshview.connect(tmp_path, catalog=url)
    _said(caught.value, "no_such_database")


@pytest.mark.postgres
def test_a_user_without_rights(tmp_path: Path, postgres: PostgresServer) -> None:
    """Missing rights are not reported as a damaged catalog, since restoring a backup would not help."""
    url = postgres.new_database()
    admin = sa.create_engine(url.replace("postgresql://", "postgresql+psycopg://"), isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.exec_driver_sql("CREATE ROLE guest LOGIN")
    admin.dispose()
    try:
        with pytest.raises(CatalogUnavailable, match="permission denied") as caught:
            freshview.connect(tmp_path, catalog=url.replace("freshview@", "guest@"))
        assert "Grant" in caught.value.remedy
    finally:
        with admin.connect() as connection:
            connection.exec_driver_sql("DROP ROLE guest")
        admin.dispose()


@pytest.mark.parametrize("url", ["mysql://x/y", "no url at all", "oracle://x", ""])
def test_a_catalog_of_another_kind(tmp_path: Path, url: str) -> None:
    with pytest.raises(CatalogUnavailable, match="Use sqlite"):
        freshview.connect(tmp_path, catalog=url)


# -- folders and catalogs that do not belong together ----------------------------------------------


def test_two_warehouses_do_not_mix(tmp_path: Path) -> None:
    _make(tmp_path / "one")
    _make(tmp_path / "two")
    url = f"sqlite:///{tmp_path / 'one' / 'catalog.db'}"
    with pytest.raises(CorruptWarehouse, match="belongs to another catalog") as caught:
        freshview.connect(tmp_path / "two", catalog=url)
    _said(caught.value, tmp_path / "two")


def test_a_copied_warehouse_opens(tmp_path: Path) -> None:
    _make(tmp_path / "one")
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    with freshview.connect(tmp_path / "two") as wh:
        assert len(contents(wh, "t")) == 2000


def test_a_refused_pairing_leaves_the_other_database_empty(tmp_path: Path) -> None:
    _make(tmp_path / "one")
    other = Database(sqlite_url(tmp_path / "other.db"))
    with pytest.raises(CorruptWarehouse):
        freshview.connect(tmp_path / "one", catalog=f"sqlite:///{tmp_path / 'other.db'}")
    with other.read() as c:
        names = sa.inspect(c).get_table_names()
    other.close()
    assert names == []


def test_a_catalog_does_not_take_another_folder(tmp_path: Path) -> None:
    """Its data files lie in the first one; opening it with an empty one would lose them from sight."""
    _make(tmp_path / "one", f"sqlite:///{tmp_path / 'c.db'}")
    with pytest.raises(CorruptWarehouse):
        freshview.connect(tmp_path / "two", catalog=f"sqlite:///{tmp_path / 'c.db'}").close()


def test_a_kill_while_the_marker_is_written_needs_no_repair(tmp_path: Path) -> None:
    _make(tmp_path)
    (tmp_path / "freshview.json").write_text("")  # as a kill between open and write leaves it
    with freshview.connect(tmp_path) as wh:
        assert len(contents(wh, "t")) == 2000


def test_a_damaged_marker_is_said_to_be_one(tmp_path: Path) -> None:
    _make(tmp_path)
    (tmp_path / "freshview.json").write_text("[1, 2")
    with pytest.raises(CorruptWarehouse, match=r"freshview\.json") as caught:
        freshview.connect(tmp_path)
    _said(caught.value, tmp_path)


def test_work_after_close_does_not_commit(wh: Warehouse) -> None:
    wh.sql("CREATE TABLE t (a INT)")
    tx = wh.transaction()
    tx.insert("t", [{"a": 1}])
    wh.close()
    with pytest.raises(FreshviewError, match="closed"):
        tx.commit()
    internals(wh).catalog.database.close()
