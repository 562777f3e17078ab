"""`freshview optimize` without views, which needs no Spark: its options, its files, its errors."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from tests.cli.calls import call, told

import freshview


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with freshview.connect(tmp_path / "sales") as wh:
        wh.sql("CREATE TABLE orders (id INT PRIMARY KEY, amount INT)")
    return tmp_path / "sales"


def test_the_report_is_text_json_or_a_picture(folder: Path, tmp_path: Path) -> None:
    assert call("optimize", "-w", folder).stdout.startswith("views: 0, queries: 0; ")
    assert "search space" in call("optimize", "-w", folder, "--dag").stdout
    found = told("optimize", "-w", folder, "--space", "1.5 GB", "--changed", "0.01")
    assert (found["before"], found["after"], found["executed"]) == (0, 0, 0)
    assert (found["views"], found["left_out"]) == ([], {})
    assert found["prices"]["is_default"] is True
    picture = tmp_path / "plans.svg"
    assert "plans.svg has the picture" in " ".join(call("optimize", "-w", folder, "--svg", picture).stdout.split())
    ET.fromstring(picture.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        (["--space", "much"], "--space much: is no size"),
        (["--space", "-1"], "--space -1: is no size"),
        (["--changed", "often"], "--changed often: is no share"),
        (["--changed", "2"], "is no share of a table"),
        (["--queries", "nowhere.sql"], "file nowhere.sql: cannot be read"),
        (["--svg", "nowhere/plans.svg"], "file nowhere/plans.svg"),
    ],
)
def test_bad_options_are_refused_with_what_to_do(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], cause: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cause in " ".join(call("optimize", "-w", folder, *options, code=1).stderr.split())
