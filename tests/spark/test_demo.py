"""The demo: it runs, twice, tells what it measured, and leaves nothing behind that was not asked for."""

from __future__ import annotations

import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from rich.console import Console

import freshview
from freshview import CheckReport, demo
from freshview.bench.data import tpch

_SMALL = "0.01"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: SparkSession) -> Path:
    """A folder where the demo works too, with few rounds; the shared session is the one it finds."""
    assert spark
    monkeypatch.setattr(demo, "_WARMUP", 0)
    monkeypatch.setattr(demo, "_ROUNDS", 1)
    monkeypatch.setattr(demo, "_UPDATES", 2)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_it_measures_both_modes_proves_freshness_and_keeps_what_it_is_asked_to(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = place / "kept"
    assert demo.main(["--keep", str(home), "--scale", _SMALL]) == 0
    told = capsys.readouterr().out
    for line in ("update of 10 customers", "after 2 updates", "refresh of both views", "total waited"):
        assert line in told
    assert "v1 has 1 pending task, v2 has 1 pending task" in " ".join(told.split())
    assert told.count("fresh, equal to its definition") == 2
    assert "4 jobs" in told  # eager: two updates, two views
    assert "2 jobs" in told  # lazy: one combined job for each view
    assert f"status -w {home}" in told
    assert list(place.iterdir()) == [home]
    with freshview.connect(home) as wh:
        assert {v.name: v.mode for v in wh.status().views} == {"v1": "lazy", "v2": "lazy"}
        assert [v.pending_tasks for v in wh.status().views] == [0, 0]
    _never_over_something_else(home, capsys)


def _never_over_something_else(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(home.rglob("*"))
    assert demo.main(["--keep", str(home), "--scale", _SMALL]) == 1
    assert "is there already" in capsys.readouterr().err
    assert sorted(home.rglob("*")) == before


def test_options_that_cannot_be_are_refused_first(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert demo.main(["--keep", str(place / "none" / "kept")]) == 1
    assert "there is no folder" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        demo.main(["--scale", "0.001"])
    assert "--scale must be at least 0.01" in capsys.readouterr().err
    assert list(place.iterdir()) == []


def test_every_update_of_every_mode_moves_its_customers(tmp_path: Path) -> None:
    """Else one mode would be given an update that costs nothing."""
    data = tpch(tmp_path, 0.01, ("customer",))
    home = {r["c_custkey"]: r["c_nationkey"] for r in pq.read_table(data / "customer.parquet").to_pylist()}
    movers = demo.Movers(data)
    numbers = [
        r * updates + n
        for rounds, updates in ((demo._WARMUP, demo._FEW), (demo._ROUNDS, demo._UPDATES))
        for r in range(rounds)
        for _ in demo._MODES
        for n in range(updates)
    ]
    for number in [*numbers, 0]:
        moved = movers.moved(number).to_pylist()
        assert len({r["c_custkey"] for r in moved}) == demo._ROWS
        stayed = [r for r in moved if home[r["c_custkey"]] == r["c_nationkey"]]
        assert len(stayed) <= 1  # one that two updates share may happen to
        home.update({r["c_custkey"]: r["c_nationkey"] for r in moved})


def test_ctrl_c_leaves_nothing(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "load", interrupted)
    assert demo.main(["--keep", str(place / "kept"), "--scale", _SMALL]) == 130
    assert "nothing is left behind" in capsys.readouterr().err
    assert list(place.iterdir()) == []


@pytest.mark.parametrize(
    ("wrong", "pending", "told"),
    [("v2", {}, "v2: WRONG: 3 rows missing, 0 too many"), ("", {"v2": 1}, "v2: NOT FRESH"), ("", {}, "v2: fresh")],
)
def test_a_view_that_is_wrong_or_behind_is_told(
    wrong: str, pending: dict[str, int], told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("upsert", "_ask"):
        monkeypatch.setattr(demo, name, lambda *_: None)
    views = [SimpleNamespace(name=v, pending_tasks=pending.get(v, 0)) for v in ("v1", "v2")]
    wh: Any = SimpleNamespace(
        sql=lambda _: None,
        status=lambda: SimpleNamespace(views=views),
        check=lambda name: CheckReport(name, name != wrong, [], [], 3 if name == wrong else 0, 0),
    )
    movers: Any = SimpleNamespace(moved=lambda _: None)
    is_fresh = demo._proved(wh, movers, demo._Printer(Console()))
    assert is_fresh == ("fresh" in told)
    shown = capsys.readouterr().out
    assert told in shown
    assert "v1: fresh" in shown


def test_a_missing_generator_is_a_sentence(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("freshview.bench.data.shutil.which", lambda *_, **__: None)
    assert demo.main(["--scale", _SMALL]) == 1
    assert "pip install tpchgen-cli" in capsys.readouterr().err
    assert list(place.iterdir()) == []
