"""`freshview doctor`: what it finds, what it advises, and that it changes nothing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.cli.calls import call, told
from tests.forks import run_in_fork
from typer.testing import CliRunner

import freshview
from freshview.cli import doctor
from freshview.cli.main import app


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Java that will do, without the time it takes to start one."""
    return _java(tmp_path / "jdk", 'openjdk version "21.0.2" 2024-01-16', monkeypatch)


def _java(home: Path, says: str, patch: pytest.MonkeyPatch) -> Path:
    (home / "bin").mkdir(parents=True)
    command = home / "bin" / "java"
    command.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    command.chmod(0o755)
    patch.setenv("JAVA_HOME", str(home))
    patch.delenv("SPARK_REMOTE", raising=False)
    return command


def _finding(what: str, *arguments: str | Path, code: int = 0) -> tuple[bool, str, str]:
    (found,) = [f for f in told("doctor", *arguments, code=code) if f["what"] == what]
    return found["ok"], found["found"], found["remedy"]


@pytest.mark.usefixtures("java")
def test_all_is_well_and_nothing_is_made(tmp_path: Path) -> None:
    result = call("doctor", "-w", tmp_path / "wh")
    lines = result.stdout.splitlines()
    assert lines[-1] == "All is well."
    assert [line.split()[0] for line in lines[:-1]] == ["ok"] * 10
    assert any("freshview init" in line for line in lines)
    assert not (tmp_path / "wh").exists()
    freshview.connect(tmp_path / "wh").close()
    assert _finding("Catalog", "-w", tmp_path / "wh")[1].endswith("answers, CSN 0")


def test_java_that_will_not_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _java(tmp_path / "jdk", 'openjdk version "11.0.2" 2019-01-15', monkeypatch)
    ok, found, remedy = _finding("Java", code=1)
    assert (ok, found) == (False, "version 11 is too old for Spark")
    assert remedy == "Install Java 17 or newer, or set JAVA_HOME."
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    assert "not found" in _finding("Java", code=1)[1]
    assert "problem Java: not found" in call("doctor", code=1).stdout
    assert call("doctor", code=1).stdout.splitlines()[-1] == "1 problem."
    monkeypatch.setenv("SPARK_REMOTE", "sc://elsewhere")
    assert _finding("Java")[0]


@pytest.mark.usefixtures("java")
def test_a_folder_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    ok, found, _ = _finding("Folder", "-w", tmp_path / "file" / "wh", code=1)
    assert (ok, found) == (False, f"{tmp_path}/file is not a folder")


@pytest.mark.usefixtures("java")
def test_a_catalog_that_does_not_answer(tmp_path: Path) -> None:
    url = "postgresql://nobody:secret@127.0.0.1:1/none"
    ok, found, remedy = _finding("Catalog", "-w", tmp_path / "wh", "--catalog", url, code=1)
    assert not ok
    assert "secret" not in found
    assert remedy
    other = f"sqlite:///{tmp_path}/other.db"
    assert _finding("Catalog", "-w", tmp_path / "wh", "--catalog", other)[1].endswith("freshview init makes it")
    assert not (tmp_path / "other.db").exists()
    assert not _finding("Catalog", "-w", tmp_path / "wh", "--catalog", "mysql://x/y", code=1)[0]


@pytest.mark.parametrize(
    ("found", "wanted", "expected"),
    [
        ("4.2.0", "pyspark==4.2.0", True),
        ("4.2", "pyspark==4.2.0", True),
        ("4.1.9", "pyspark==4.2.0", False),
        ("30.30.1", "sqlglot<31,>=30.30", True),
        ("31.0", "sqlglot<31,>=30.30", False),
        ("9.1", "sqlglot>=30.30", False),
        ("2.0.0rc1", "SQLAlchemy>=2.0.40", True),
        ("1", "", True),
    ],
)
def test_versions_are_compared_as_numbers(found: str, wanted: str, expected: bool) -> None:
    assert doctor._satisfies(found, wanted) is expected


def test_a_package_that_is_missing_or_old(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor._package("pyspark").ok
    monkeypatch.setattr(doctor, "version", lambda _: "3.5.0")
    old = doctor._package("pyspark")
    assert (old.ok, old.found) == (False, "3.5.0")
    assert "pip install 'pyspark==" in old.remedy
    monkeypatch.undo()
    assert doctor._package("not-there").found == "is not installed"


def _load_no_spark(folder: Path) -> None:
    result = CliRunner().invoke(app, ["doctor", "-w", str(folder)])
    assert "pyspark: " in result.stdout
    assert "pyspark" not in sys.modules


def test_it_loads_no_spark(tmp_path: Path) -> None:
    run_in_fork(_load_no_spark, tmp_path)
