"""The measured figures as documents: docs/benchmarks.md whole, README's table in part; written, never typed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- measured: written by make bench -->", "<!-- measured: end -->"


def reports(folder: Path) -> list[dict[str, Any]]:
    """The suites that have been run, from their JSON."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]


def document(folder: Path) -> str:
    """All suites with all their figures."""
    lines = ["# Benchmarks", "", "Written by `make bench` from the numbers in [benchmarks](benchmarks)."]
    for report in reports(folder):
        machine = ", ".join(f"{k} {v}" for k, v in report["machine"].items())
        lines += ["", f"## {report['suite']}", "", f"TPC-H scale {report['scale']:g}; {machine}.", ""]
        lines += table(report, behind=True)
        charts = sorted(folder.glob(f"{report['suite']}-*.svg"))
        lines += [""] * bool(charts) + [f"![{c.stem}](benchmarks/{c.name})" for c in charts]
    return "\n".join(lines) + "\n"


def headline(folder: Path) -> str:
    """The figures that have a limit, for the README."""
    lines = [BEGIN, ""]
    for report in reports(folder):
        lines += [f"**{report['suite']}**", "", *table(report, behind=False), ""]
    return "\n".join([*lines, END])


def table(report: dict[str, Any], *, behind: bool) -> list[str]:
    """One suite; `behind`: with figures that have no limit, and the numbers behind all of them."""
    head, rule = ("| figure | measured | limit | met |", "| --- | --- | --- | --- |")
    lines = [f"{head} numbers behind it |", f"{rule} --- |"] if behind else [head, rule]
    figures = [f for f in report["figures"] if behind or f["limit"] is not None]
    return lines + ["| " + " | ".join(_cells(f, behind)) + " |" for f in figures]


def _cells(figure: dict[str, Any], behind: bool) -> Iterator[str]:
    sign = "≥" if figure.get("at_least") else "≤"
    yield figure["name"].replace("|", "/")
    yield f"{figure['value']:.3g} {figure['unit']}".strip()
    yield "" if figure["limit"] is None else f"{sign} {figure['limit']:.3g}"
    yield {True: "yes", False: "**no**", None: ""}[figure["met"]]
    if behind:
        yield "; ".join(f"{k}: {v}" for k, v in figure["details"].items()).replace("|", "/")


def write(folder: Path) -> None:
    """Bring the documents beside the numbers up to date."""
    (folder.parent / "benchmarks.md").write_text(document(folder))
    readme = folder.parent.parent / "README.md"
    if readme.exists() and BEGIN in (text := readme.read_text()):
        before, rest = text.split(BEGIN, 1)
        readme.write_text(before + headline(folder) + rest.split(END, 1)[1])


if __name__ == "__main__":
    write(Path("docs/benchmarks"))
