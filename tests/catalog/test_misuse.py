"""What cannot be meant gets a sentence, and changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import freshview
from freshview.errors import InvalidStatement, NotFound, WarehouseClosed


@pytest.mark.parametrize("path", ["", "  ", "a\0b", None, 5])
def test_a_path_that_names_no_folder(path: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidStatement, match=r"is not the path of a folder\. Name a folder"):
        freshview.connect(path)
    assert list(tmp_path.iterdir()) == []


def test_a_closed_warehouse_says_so(tmp_path: Path, catalog_url: str | None) -> None:
    with freshview.connect(tmp_path / "w", catalog=catalog_url) as wh:
        wh.sql("CREATE TABLE t (k INT PRIMARY KEY)")
    for call in (
        lambda: wh.sql("INSERT INTO t VALUES (1)"),
        lambda: wh.sql("SELECT * FROM t"),
        wh.transaction,
        wh.status,
        wh.maintain,
        wh.history,
        wh.vacuum,
        lambda: wh.check("t"),
        lambda: wh.explain("t"),
        lambda: wh.refresh("t"),
    ):
        with pytest.raises(WarehouseClosed, match="the warehouse was closed"):
            call()
    wh.close()
    with freshview.connect(tmp_path / "w", catalog=catalog_url) as again:
        assert again.status().csn == 1


def test_names_that_are_no_text(tmp_path: Path) -> None:
    with freshview.connect(tmp_path / "w") as wh:
        for call in (wh.refresh, wh.check, wh.explain, wh.propagate, lambda name: wh.maintain([name])):
            for name in (None, 5, b"t"):
                with pytest.raises(InvalidStatement, match="is no text"):
                    call(name)  # type: ignore[arg-type]
        with wh.transaction() as tx, pytest.raises(InvalidStatement, match="is no text"):
            tx.insert(5, [{"k": 1}])  # type: ignore[arg-type]
        assert wh.status().csn == 0


def test_a_freshness_that_is_negative(tmp_path: Path) -> None:
    with freshview.connect(tmp_path / "w") as wh, pytest.raises(InvalidStatement, match="is negative"):
        wh.sql("SELECT 1 AS one", freshness=timedelta(seconds=-1))


def test_a_time_before_the_first_commit_is_named_with_that_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the engine only the zone of times without one is asked: no session need be started for it."""
    monkeypatch.setattr(freshview.Warehouse, "engine", lambda _: SimpleNamespace(time_zone=lambda: UTC))
    with freshview.connect(tmp_path / "w") as wh:
        wh.sql("CREATE TABLE t (k INT PRIMARY KEY)")
        ways: list[Callable[[], object]] = [
            lambda: wh.sql("SELECT * FROM t", as_of=datetime(2001, 2, 3, tzinfo=UTC)),
            lambda: wh.sql("SELECT * FROM t TIMESTAMP AS OF '2001-02-03 00:00:00+00:00'"),
        ]
        for ask in ways:
            with pytest.raises(NotFound, match=r"time 2001-02-03 .* is before the first commit, .* later time"):
                ask()
