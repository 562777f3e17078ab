"""Operations: the events that the page lists are those that there are, and a backup made as it says can be restored."""

from __future__ import annotations

import re
import shutil
import sqlite3
from datetime import timedelta
from pathlib import Path

from tests.docs.blocks import ROOT
from tests.internals import internals

import freshview
from freshview import Warehouse

_PAGE = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")


def test_every_event_is_listed() -> None:
    texts = [p.read_text(encoding="utf-8") for p in (ROOT / "src" / "freshview").rglob("*.py")]
    emitted = {name for text in texts for name in re.findall(r'emit\(\s*"([a-z_.]+)"', text)}
    assert emitted
    assert emitted == _listed()


def _listed() -> set[str]:
    cells = re.findall(r"^\| (`[a-z]+\.[a-z_.`, ]+`) \|", _PAGE, re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`([a-z_.]+)`", cell)}


def test_a_backup_taken_while_others_write_is_the_past(tmp_path: Path) -> None:
    """Catalog first, then the folder; what came in between is gone for good, whatever is written afterwards."""
    with freshview.connect(tmp_path / "warehouse") as wh:
        wh.sql("CREATE TABLE t (id INT PRIMARY KEY, v STRING)")
        wh.sql("INSERT INTO t VALUES (1, 'kept')")
        wh.sql("CHECKPOINT t")
        saved = wh.status().csn
        _copy_catalog(tmp_path)
        for i in range(2, 5):
            wh.sql(f"INSERT INTO t VALUES ({i}, 'lost')")
        wh.sql("CHECKPOINT t")
        wh.sql("CREATE TABLE u (id INT PRIMARY KEY, v STRING)")
        wh.sql("INSERT INTO u VALUES (1, 'lost')")
        wh.sql("CHECKPOINT u")
        lost = wh.status().csn
        _copy_folder(tmp_path)
    with freshview.connect(tmp_path / "backup") as restored:
        assert restored.status().csn == saved
        assert _rows(restored, "t") == [(1, "kept")]
        restored.sql("CREATE TABLE w (id BIGINT, v STRING, x INT)")  # in the folder of the lost table
        while restored.status().csn <= lost:  # as many commits as the lost ones
            restored.sql(f"INSERT INTO t VALUES ({restored.status().csn + 10}, 'new')")
        restored.sql("INSERT INTO w VALUES (7, 'new', 1)")
        for name in ("t", "w"):
            restored.sql(f"CHECKPOINT {name}")
        assert {v for _, v in _rows(restored, "t")} == {"kept", "new"}
        assert _rows(restored, "w") == [(7, "new")]
        restored.vacuum(timedelta(0))
        assert len(_rows(restored, "t")) == lost - saved + 1


def _copy_catalog(folder: Path) -> None:
    (folder / "backup").mkdir()
    with sqlite3.connect(folder / "warehouse" / "catalog.db") as connection:
        connection.execute(f"VACUUM INTO '{folder / 'backup' / 'catalog.db'}'")
    connection.close()


def _copy_folder(folder: Path) -> None:
    shutil.copytree(folder / "warehouse" / "tables", folder / "backup" / "tables")
    shutil.copy(folder / "warehouse" / "freshview.json", folder / "backup")


def _rows(wh: Warehouse, name: str) -> list[tuple[object, ...]]:
    return sorted((row["id"], row["v"]) for row in internals(wh).rows(name).to_pylist())
