"""The measured figures as documents: docs/benchmarks.md, and the table in the README."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from freshview.bench.measure import Bars, duration
from freshview.bench.quick import is_quick
from freshview.bench.views import LIMITS

BEGIN, END = "<!-- measured: written by make bench -->", "<!-- measured: end -->"
CHOSEN = (  # the figures in the README
    "V1, UPDATE of 100 rows, response: eager / lazy",
    "V1, upsert of 100 rows, response: eager / lazy",
    "lazy upsert of 100 customers, 10 views / 1 view",
    "V1, upsert of 100 rows, total work: lazy / eager",
    "100 transactions, skewed, maintenance: eager / lazy combined",
    "query after maintenance / of a view never touched",
    "what checking freshness adds to a query",
    "point lookup, p95 with a background job / quiet",
    "V1, 100 customers: recompute / refresh",
    "V1, 0.1 % of orders and lineitem: recompute / refresh",
    "TPC-H views, 0.1 % of orders and lineitem: median of recompute / refresh",
    "partial refresh, the longest",
    "upsert of 100 customers / allowed (10 × bare SQLite or 5 ms)",
    "aggregate over lineitem with 1,000 transactions / checkpointed",
)
_GROWTH = "growth-growth.svg"  # the chart in the README
_HEAD, _RULE = "| figure | measured | limit | met |", "| --- | --- | --- | --- |"


# Steps that are newer than figures that do not name their steps yet.
_LATER = {"lazy": ("served", "side_by_side"), "views": ("queries", "all_asked")}


def reports(folder: Path) -> list[dict[str, Any]]:
    """Return the suites that have been run in full, from their JSON, judged by the present limits."""
    found = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    full = [report for report in found if not is_quick(report)]
    return [{**report, "figures": [_judged(f) for f in report["figures"]]} for report in full]


def _judged(figure: dict[str, Any]) -> dict[str, Any]:
    """Return a figure, judged by the limit that it has today."""
    limit = LIMITS.get(figure["name"])
    if limit is None:
        return figure
    met = figure["value"] >= limit if figure.get("at_least") else figure["value"] <= limit
    return {**figure, "limit": limit, "met": met}


def unmeasured(found: Sequence[dict[str, Any]], suites: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the steps of suites that no report has, as suite: step, step."""
    lines = []
    for suite, steps in suites.items():
        report: dict[str, Any] = next((r for r in found if r["suite"] == suite), {"steps": [], "figures": []})
        measured = {step["name"] for step in report.get("steps", ()) if not step.get("failed")}
        if "steps" not in report or any("step" not in figure for figure in report.get("figures", ())):
            measured |= set(steps) - set(_LATER.get(suite, ()))
        missing = [step for step in steps if step not in measured]
        if missing:
            lines.append(f"{suite}: {', '.join(missing)}")
    return lines


def document(folder: Path) -> str:
    """Return a page of all suites with all their figures."""
    lines = ["# Benchmarks", "", "Written by `make bench` from the numbers in [benchmarks](benchmarks)."]
    for report in reports(folder):
        machine = ", ".join(f"{k} {v}" for k, v in report["machine"].items())
        lines += ["", f"## {report['suite']}", "", f"TPC-H scale {report['scale']:g}; {machine}.", ""]
        lines += [*comparison(report), *table(report)]
        charts = sorted(folder.glob(f"{report['suite']}-*.svg"))
        lines += [""] * bool(charts) + [f"![{c.stem}](benchmarks/{c.name})" for c in charts]
    return "\n".join(lines) + "\n"


def headline(folder: Path, suites: Mapping[str, Sequence[str]] | None = None) -> str:
    """Return the README's section: chosen figures, all that miss their limit, the number that meet theirs, and the
    steps of the suites (by default all) that have no report."""
    suites = _all_steps() if suites is None else suites
    found = reports(folder)
    figures = [f for report in found for f in report["figures"] if f["limit"] is not None]
    by_name = {f["name"]: f for f in figures}
    chosen = [by_name[name] for name in CHOSEN if name in by_name]
    missed = [f for f in figures if not f["met"] and f not in chosen]
    lines = [BEGIN, "", _HEAD, _RULE, *(_row(list(_cells(f, behind=False))) for f in chosen + missed), ""]
    met = sum(bool(f["met"]) for f in figures)
    lines += [f"{met} of {len(figures)} figures meet their limit: [all of them](docs/benchmarks.md).", ""]
    if missing := unmeasured(found, suites):
        lines += [
            f"Steps that were never measured in full, so that their figures are missing here: {'; '.join(missing)}.",
            "",
        ]
    for report in found:
        lines += comparison(report)
    if (folder / _GROWTH).exists():
        lines += [f"![Fresh answers of V1 over three scales](docs/benchmarks/{_GROWTH})", ""]
    return "\n".join([*lines, END])


def _all_steps() -> dict[str, list[str]]:
    from freshview.bench.__main__ import SUITES  # which imports this module

    return {suite: [step.__name__ for step in steps] for suite, steps in SUITES.items()}


def table(report: dict[str, Any]) -> list[str]:
    """Return the lines of a table: the figures of a suite, with the numbers behind them."""
    lines = [f"{_HEAD} numbers behind it |", f"{_RULE} --- |"]
    return lines + [_row(list(_cells(f, behind=True))) for f in report["figures"]]


def comparison(report: dict[str, Any]) -> list[str]:
    """Return the lines of a table of systems, if a suite compares some, and those faster than Freshview."""
    panels: dict[str, Bars] = next((f["chart"]["panels"] for f in report["figures"] if _compares(f)), {})
    if not panels:
        return []
    head = ["system", *(f"{kind}: {part}" for kind in panels for part in ("update", "fresh answer"))]
    lines = [_row(head), _row(["---"] * len(head))]
    for system in next(iter(panels.values())):
        parts = [panels[kind][system][part] for kind in panels for part in ("update", "fresh answer")]
        lines.append(_row([system, *map(duration, parts)]))
    return [*lines, "", *_faster(panels)]


def _compares(figure: dict[str, Any]) -> bool:
    """Return whether a figure has a chart of systems, each with the time of an update and of the fresh answer."""
    bars = [b for panel in (figure.get("chart") or {"panels": {}})["panels"].values() for b in panel.values()]
    return bool(bars) and all(set(b) == {"update", "fresh answer"} for b in bars)


def _faster(panels: dict[str, Bars]) -> list[str]:
    """Return sentences that name the systems faster than Freshview, which comes first in the bars."""
    lines = []
    for kind, bars in panels.items():
        (ours, mine), *others = [(name, bar["fresh answer"]) for name, bar in bars.items()]
        faster = [f"{name} {duration(theirs)}" for name, theirs in others if theirs < mine]
        if faster:
            lines.append(f"Faster than {ours} ({duration(mine)}) after a change of {kind}: {'; '.join(faster)}.")
    if lines:
        lines.append("On one machine, with data that fits it, those are the better choice for such a view.")
    return [*lines, ""] if lines else []


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _cells(figure: dict[str, Any], behind: bool) -> Iterator[str]:
    sign = "≥" if figure.get("at_least") else "≤"
    yield figure["name"].replace("|", "/")
    between = f" ({figure['spread'][0]:.3g} to {figure['spread'][1]:.3g})" if figure.get("spread") else ""
    yield f"{figure['value']:.3g} {figure['unit']}{between}".strip()
    yield "" if figure["limit"] is None else f"{sign} {figure['limit']:.3g}"
    yield {True: "yes", False: "**no**", None: ""}[figure["met"]]
    if behind:
        yield "; ".join(f"{k}: {v}" for k, v in figure["details"].items()).replace("|", "/")


def write(folder: Path) -> None:
    """Write docs/benchmarks.md and the README's section from the numbers in a folder."""
    (folder.parent / "benchmarks.md").write_text(document(folder))
    readme = folder.parent.parent / "README.md"
    if readme.exists() and BEGIN in (text := readme.read_text()):
        before, rest = text.split(BEGIN, 1)
        readme.write_text(before + headline(folder) + rest.split(END, 1)[1])


if __name__ == "__main__":
    write(Path("docs/benchmarks"))
