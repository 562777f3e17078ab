"""The documents show the measured numbers, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from freshview.bench.report import BEGIN, CHOSEN, END, document, headline, reports, unmeasured, write
from freshview.bench.views import LIMITS

_ROOT = Path(__file__).parents[3]
_FIGURE = {"name": "a / b", "value": 1.234567, "unit": "×", "details": {"a": "2 s"}}


def test_the_documents_are_those_of_the_numbers() -> None:
    """What is typed into them is a defect: `python -m freshview.bench.report` writes them."""
    folder = _ROOT / "docs" / "benchmarks"
    assert (folder.parent / "benchmarks.md").read_text() == document(folder)
    readme = headline(folder)
    assert readme in (_ROOT / "README.md").read_text()
    assert all(f"| {name} | " in readme for name in CHOSEN)


def test_limits_that_are_missed_say_so(tmp_path: Path) -> None:
    folder = tmp_path / "docs" / "benchmarks"
    folder.mkdir(parents=True)
    figures = [
        {**_FIGURE, "limit": 1.1, "met": False},
        {**_FIGURE, "name": CHOSEN[0], "limit": 1.0, "met": True, "at_least": True},
        {**_FIGURE, "name": "not chosen", "limit": 2.0, "met": True},
        {**_FIGURE, "name": "no limit", "limit": None, "met": None},
    ]
    report = {"suite": "s", "scale": 1.0, "machine": {"cores": 2}, "figures": figures}
    (folder / "s.json").write_text(json.dumps(report))
    (tmp_path / "README.md").write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    write(folder)
    readme = (tmp_path / "README.md").read_text()
    assert "| a / b | 1.23 × | ≤ 1.1 | **no** |" in readme
    assert f"| {CHOSEN[0]} | 1.23 × | ≥ 1 | yes |" in readme
    assert "2 of 3 figures meet their limit" in readme
    assert "no limit" not in readme
    assert "not chosen" not in readme
    assert readme.startswith("before\n")
    assert readme.endswith("\nafter\n")
    assert "\nold\n" not in readme
    assert "growth.svg" not in readme
    (folder / "growth-growth.svg").write_text("")
    assert "](docs/benchmarks/growth-growth.svg)" in headline(folder)
    assert "| no limit | 1.23 × |  |  | a: 2 s |" in (folder.parent / "benchmarks.md").read_text()


def test_figures_are_judged_by_the_limits_of_today(tmp_path: Path) -> None:
    """A figure that was measured while its limit was lower does not say that it met the present one."""
    name, limit = next(iter(LIMITS.items()))
    old = {**_FIGURE, "name": name, "limit": limit - 1, "value": limit - 0.5, "met": True, "at_least": True}
    report = {"suite": "views", "scale": 1.0, "machine": {}, "figures": [old, {**_FIGURE, "limit": 2.0, "met": True}]}
    (tmp_path / "views.json").write_text(json.dumps(report))
    judged, other = reports(tmp_path)[0]["figures"]
    assert (judged["limit"], judged["met"]) == (limit, False)
    assert other["met"]
    assert f"≥ {limit:.3g} | **no** |" in headline(tmp_path)


def test_steps_that_were_never_measured_are_named() -> None:
    found: list[dict[str, Any]] = [
        {"suite": "a", "steps": [{"name": "one", "failed": False}, {"name": "two", "failed": True}]},
        {"suite": "views"},  # before reports had lists of steps
    ]
    suites = {"a": ["one", "two", "three"], "views": ["refresh", "all_asked"], "b": ["four"]}
    assert unmeasured(found, suites) == ["a: two, three", "views: all_asked", "b: four"]
    assert unmeasured(found[:1], {"a": ["one"]}) == []


def test_the_readme_names_steps_that_were_never_measured(tmp_path: Path) -> None:
    assert "never measured in full, so that their figures are missing here: b: four." in headline(
        tmp_path, {"b": ["four"]}
    )
    assert "never measured" not in headline(tmp_path, {})
