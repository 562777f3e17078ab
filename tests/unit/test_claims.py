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
    runs = [_run(tmp_path, order) for order in (modules, modules[::-1])]
    printed = [run.communicate()[0] for run in runs]
    assert [run.returncode for run in runs] == [0, 0], printed
    assert _notes(tmp_path) == _all_notes(modules)


def test_a_run_goes_on_in_another_folder_after_modules_of_other_runs(tmp_path: Path) -> None:
    """Law: what a folder's last test of ours has set up is torn down, though the folder's last test is not ours."""
    modules = [tmp_path / "one" / "test_a.py", tmp_path / "one" / "test_b.py", tmp_path / "two" / "test_c.py"]
    (tmp_path / "claims").mkdir()
    assert Claims(tmp_path / "claims").is_ours(modules[1])
    run = _run(tmp_path, modules)
    printed = run.communicate()[0]
    assert run.returncode == 0, printed
    assert _notes(tmp_path) == _all_notes([modules[0], modules[2]])


def _run(folder: Path, modules: list[Path]) -> subprocess.Popen[str]:
    for module in modules:
        module.parent.mkdir(exist_ok=True)
        module.write_text(_MODULE)
    (folder / "claims").mkdir(exist_ok=True)
    environment = {**os.environ, FOLDER: str(folder / "claims"), "NOTES": str(folder / "notes")}
    environment["PYTHONPATH"] = f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.claims", "-p", "no:cacheprovider", *map(str, modules)]
    return subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True)


def _notes(folder: Path) -> list[str]:
    return sorted((folder / "notes").read_text().splitlines())


def _all_notes(modules: list[Path]) -> list[str]:
    return sorted(f"{module.stem}{what}" for module in modules for what in ("", " ended", " 0", " 1", " 2"))
