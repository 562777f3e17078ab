"""Charts of measured figures as SVG: equal numbers give equal files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure as Sheet
from matplotlib.patches import Patch

from freshview.bench.measure import Bars, Chart, duration

_STYLE: Any = {
    "svg.hashsalt": "freshview",  # without it the names of shapes are random
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
_COLORS = {
    "update": "#d1603d",
    "interval": "#d9d9d9",
    "maintenance": "#3d6fa5",
    "query": "#5b9a68",
    "fresh answer": "#5b9a68",
    "statement": "#d9d9d9",
    "capture": "#d1603d",
    "poll": "#3d6fa5",
    "commit": "#5b9a68",
}
_ROOM = 1.3  # width of a panel over its longest bar, so that the bar's number fits beside it


def draw(chart: Chart, path: Path) -> Path:
    """Draw the panels side by side, with bars from top to bottom in the given order; return the path."""
    with matplotlib.rc_context(_STYLE):
        if chart.lines:
            return _lines(chart, path)
        rows = max(len(bars) for bars in chart.panels.values())
        sheet = Sheet(figsize=(4.6 * len(chart.panels), 1.3 + 0.32 * rows), layout="constrained")
        FigureCanvasSVG(sheet)
        sheet.suptitle(chart.title)
        places = sheet.subplots(1, len(chart.panels), squeeze=False)[0]
        for axes, (title, bars) in zip(places, chart.panels.items(), strict=True):
            _panel(axes, title, bars, log=chart.log)
        _legend(sheet, chart)
        return _saved(sheet, path)


def _saved(sheet: Sheet, path: Path) -> Path:
    sheet.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
    return path


def _lines(chart: Chart, path: Path) -> Path:
    """Draw a line for each name over the numbers, both axes logarithmic: what grows with its input rises by 45°."""
    sheet = Sheet(figsize=(6.4, 4.2), layout="constrained")
    FigureCanvasSVG(sheet)
    axes = sheet.subplots()
    axes.set_title(chart.title)
    for name, points in chart.lines.items():
        places, seconds = [float(at) for at in points], list(points.values())
        axes.plot(places, seconds, marker="o", label=name, linewidth=1.8)
        axes.annotate(f" {duration(seconds[-1])}", (places[-1], seconds[-1]), va="center")
    axes.set_xscale("log")
    axes.set_yscale("log")
    ticks = sorted({float(at) for points in chart.lines.values() for at in points})
    axes.set_xticks(ticks, [f"{at:g}" for at in ticks], minor=False)
    axes.set_xticks([], minor=True)
    axes.set_xlim(ticks[0] / 1.3, ticks[-1] * 2.2)
    axes.set_xlabel(chart.along)
    axes.set_ylabel("seconds")
    axes.legend(frameon=False, loc="upper left")
    return _saved(sheet, path)


def _panel(axes: Axes, title: str, bars: Bars, *, log: bool) -> None:
    """Draw the parts of each bar one after the other, and their sum at its end."""
    axes.set_title(title, fontsize=9)
    for name, parts in bars.items():
        left = 0.0
        for part, seconds in parts.items():
            axes.barh(name, seconds, left=left, color=_COLORS[part])
            left += seconds
        axes.annotate(f" {duration(left)}", (left, name), va="center")
    axes.invert_yaxis()
    axes.set_xlabel("seconds")
    longest = max(sum(parts.values()) for parts in bars.values())
    if log:
        axes.set_xscale("log")
        shortest = min(sum(parts.values()) for parts in bars.values())
        axes.set_xlim(shortest / 2, longest * 10)
    else:
        axes.set_xlim(0, longest * _ROOM)


def _legend(sheet: Sheet, chart: Chart) -> None:
    parts = {part for bars in chart.panels.values() for bar in bars.values() for part in bar}
    if len(parts) > 1:
        names = [name for name in _COLORS if name in parts]
        handles = [Patch(color=_COLORS[name]) for name in names]
        sheet.legend(handles, names, loc="outside lower center", ncols=len(names), frameon=False)
