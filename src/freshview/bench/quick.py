"""`--quick`: every suite once at a small scale, a trial of the machine and the code, never a result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

SCALE = 0.02
REPEAT = 1
# They measure memory, and whether Spark was started.
_APART = {("foundation", "load"), ("foundation", "write"), ("large", "all_rows")}


def out_folder(folder: Path) -> Path:
    """Return the default folder of quick results: beside the data, away from the documentation."""
    return folder / "quick"


def is_apart(suite: str, step: str) -> bool:
    """Return whether a step needs its own process. The others share one: starting Spark is most of a trial's time."""
    return (suite, step) in _APART


def is_of_documents(out: Path) -> bool:
    """Return whether the documentation is written from the numbers in a folder; quick results must not go there."""
    return (out.parent / "benchmarks.md").exists() or out.resolve() == Path("docs/benchmarks").resolve()


def marked(report: dict[str, Any]) -> dict[str, Any]:
    """Return a report marked as quick, without the limits, which are meant for larger data."""
    return {**report, "quick": True, "figures": [_unjudged(figure) for figure in report["figures"]]}


def _unjudged(figure: dict[str, Any]) -> dict[str, Any]:
    judged = {} if figure.get("always") else {"limit": None, "met": None}
    chart = figure.get("chart")
    titled = {"chart": {**chart, "title": f"{chart['title']} (quick)"}} if chart else {}
    return {**figure, **judged, **titled}


def is_quick(report: dict[str, Any]) -> bool:
    return bool(report.get("quick"))
