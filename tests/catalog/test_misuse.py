"""What cannot be meant gets a sentence, and changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import freshview
from freshview.errors import InvalidStatement, NotFound, TypeMismatch, WarehouseClosed


@pytest.mark.parametrize("path", ["", "  ", "a\0b", "\ud800", None, 5])
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
        wh.engine,
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


@pytest.mark.parametrize("text", [None, 5, b"SELECT 1"])
def test_a_statement_that_is_no_text(text: Any, tmp_path: Path) -> None:
    with freshview.connect(tmp_path / "w") as wh:
        with pytest.raises(InvalidStatement, match=r"statement .* is no text"):
            wh.sql(text)
        with wh.transaction() as tx, pytest.raises(InvalidStatement, match=r"statement .* is no text"):
            tx.sql(text)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"busy_load": "a"}, "busy_load 'a'"),
        ({"busy_load": -1}, "busy_load -1"),
        ({"busy_load": float("nan")}, "busy_load nan"),
        ({"workers": "a"}, "workers a"),
        ({"workers": 0}, "workers 0"),
    ],
)
def test_options_that_are_no_numbers(options: dict[str, Any], what: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidStatement, match=what):
        freshview.connect(tmp_path / "w", **options)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("hours", ["99999999999999", "1e400", "100000000"])
def test_a_retention_of_more_hours_than_there_are(hours: str, tmp_path: Path) -> None:
    with freshview.connect(tmp_path / "w") as wh:
        with pytest.raises(InvalidStatement):
            wh.sql(f"VACUUM RETAIN {hours} HOURS")
        assert wh.sql("VACUUM RETAIN 100000 HOURS").csn == 0


@pytest.mark.parametrize("retention", [timedelta(-1), timedelta.max, 5, None])
def test_a_retention_that_is_no_time(retention: Any, tmp_path: Path) -> None:
    with freshview.connect(tmp_path / "w") as wh:
        wh.sql("CREATE TABLE t (k INT PRIMARY KEY)")
        wh.sql("INSERT INTO t VALUES (1)")
        with pytest.raises(InvalidStatement, match=r"retention .* Give a time from 0 to 1,000 years"):
            wh.vacuum(retention)
        assert wh.history() == []
        assert wh.vacuum().csn == 0  # every version can still be read


@pytest.mark.parametrize("depth", [51, 90, 300, 3000])
def test_types_that_are_nested_too_deeply(depth: int, tmp_path: Path) -> None:
    def nested(levels: int, leaf: str) -> str:
        return "ARRAY<" * levels + leaf + ">" * levels

    with freshview.connect(tmp_path / "w") as wh:
        wh.sql(f"CREATE TABLE t (k INT PRIMARY KEY, deep {nested(49, 'INT')}, wide STRUCT<a: {nested(30, 'INT')}>)")
        for text in (
            f"CREATE TABLE u (k {nested(depth, 'INT')})",
            f"CREATE TABLE u (k STRUCT<a: {nested(depth, 'INT')}>)",
            f"ALTER TABLE t ADD COLUMN z {nested(depth, 'INT')}",
        ):
            with pytest.raises((InvalidStatement, TypeMismatch), match="nested"):
                wh.sql(text)
        assert wh.status().csn == 1


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
            with pytest.raises(NotFound, match=r"time 2001-02-03 .* is before the oldest commit .* later time"):
                ask()
