"""`make repeat` counts the runs that ended well, and shows what the others printed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.repeat import WITH_SPARK, green_runs
from tests.runs import paths_of_tests


def test_green_runs_are_counted_and_others_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mark = tmp_path / "mark"
    script = f"import pathlib; p = pathlib.Path({str(mark)!r}); print('broken'); p.mkdir() if p.exists() else p.touch()"
    assert green_runs([sys.executable, "-c", script], 3) == 1
    printed = capsys.readouterr().out
    assert printed.count("broken") == printed.count("FileExistsError") == 2
    assert [line.split(", ")[0] for line in printed.splitlines() if line.startswith("run ")] == [
        "run 1 of 3: green",
        "run 2 of 3: red",
        "run 3 of 3: red",
    ]


def test_the_parts_with_spark_are_known() -> None:
    assert set(WITH_SPARK) < set(paths_of_tests())
