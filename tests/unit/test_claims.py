"""Runs of tests side by side: each test is run once, by one of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.claims import FOLDER, Claims

ROOT = Path(__file__).parents[2]
_MODULE = """
import os, time
import pytest

@pytest.fixture(scope="module", autouse=True)
def made():
    with open(os.environ["NOTES"], "a") as notes:
        notes.write(f"{__name__}\\n")
    yield
    with open(os.environ["NOTES"], "a") as notes:
        notes.write(f"{__name__} ended\\n")

@pytest.mark.parametrize("n", range(3))
def test_it(n):
    time.sleep(0.02)
    with open(os.environ["NOTES"], "a") as notes:
        notes.write(f"{__name__} {n}\\n")
"""


def test_a_module_is_claimed_once(tmp_path: Path) -> None:
    first, second = Claims(tmp_path), Claims(tmp_path)
    assert first.is_ours(Path("/a/test_x.py"))
    assert not second.is_ours(Path("/a/test_x.py"))
    assert second.is_ours(Path("/b/test_x.py"))
    assert first.is_ours(Path("/a/test_x.py"))
    assert not first.is_ours(Path("/b/test_x.py"))


def test_halves_that_come_from_both_ends_run_each_test_once(tmp_path: Path) -> None:
    """Law: no test is left out and none runs twice; fixtures of modules end as they began."""
    modules = [tmp_path / f"test_{name}.py" for name in "abcdefg"]
    for module in modules:
        module.write_text(_MODULE)
    (tmp_path / "claims").mkdir()
    environment = {**os.environ, FOLDER: str(tmp_path / "claims"), "NOTES": str(tmp_path / "notes")}
    environment["PYTHONPATH"] = f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.claims", "-p", "no:cacheprovider"]
    runs = [
        subprocess.Popen([*command, *map(str, order)], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True)
        for order in (modules, modules[::-1])
    ]
    told = [run.communicate()[0] for run in runs]
    assert [run.returncode for run in runs] == [0, 0], told
    notes = (tmp_path / "notes").read_text().splitlines()
    names = [module.stem for module in modules]
    assert sorted(notes) == sorted(f"{name}{what}" for name in names for what in ("", " ended", " 0", " 1", " 2"))
