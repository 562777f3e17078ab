"""`--quick`: every suite at a small scale, once: a trial of the machine and the code, never a result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

SCALE = 0.02
REPEAT = 1
_APART = {("foundation", "load"), ("foundation", "write")}  # they tell memory, and whether Spark was started


def out_folder(folder: Path) -> Path:
    """Where quick results go unless told: beside the data, away from the documentation."""
    return folder / "quick"


def is_apart(suite: str, step: str) -> bool:
    """A step that needs a process of its own. The others share one: to start and warm up Spark is most of a trial."""
    return (suite, step) in _APART


def is_of_documents(out: Path) -> bool:
    """A folder whose numbers the documentation shows; quick ones have no place there."""
    return (out.parent / "benchmarks.md").exists() or out.resolve() == Path("docs/benchmarks").resolve()


def marked(report: dict[str, Any]) -> dict[str, Any]:
    """A report that says it is quick, and judges no figure by a limit that is meant for larger data."""
    return {**report, "quick": True, "figures": [_unjudged(figure) for figure in report["figures"]]}


def _unjudged(figure: dict[str, Any]) -> dict[str, Any]:
    judged = {} if figure.get("always") else {"limit": None, "met": None}
    chart = figure.get("chart")
    titled = {"chart": {**chart, "title": f"{chart['title']} (quick)"}} if chart else {}
    return {**figure, **judged, **titled}


def is_quick(report: dict[str, Any]) -> bool:
    return bool(report.get("quick"))
