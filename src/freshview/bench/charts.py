"""Charts of measured figures as SVG: the same numbers always make the same file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure as Sheet
from matplotlib.patches import Patch

from freshview.bench.measure import Bars, Chart, shown

_STYLE: Any = {
    "svg.hashsalt": "freshview",  # else names of shapes are drawn at random
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
_COLORS = {
    "update": "#d1603d", "interval": "#d9d9d9", "maintenance": "#3d6fa5", "query": "#5b9a68", "fresh answer": "#5b9a68",
}  # fmt: skip
_ROOM = 1.3  # of the longest bar, so that its number fits beside it


def draw(chart: Chart, path: Path) -> Path:
    """One panel beside the other, bars from top to bottom in the order given."""
    with matplotlib.rc_context(_STYLE):
        rows = max(len(bars) for bars in chart.panels.values())
        sheet = Sheet(figsize=(4.6 * len(chart.panels), 1.3 + 0.32 * rows), layout="constrained")
        FigureCanvasSVG(sheet)
        sheet.suptitle(chart.title)
        places = sheet.subplots(1, len(chart.panels), squeeze=False)[0]
        for axes, (title, bars) in zip(places, chart.panels.items(), strict=True):
            _panel(axes, title, bars, log=chart.log)
        _legend(sheet, chart)
        sheet.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
    return path


def _panel(axes: Axes, title: str, bars: Bars, *, log: bool) -> None:
    """Parts of a bar stand one after the other; the sum stands at its end."""
    axes.set_title(title, fontsize=9)
    for name, parts in bars.items():
        left = 0.0
        for part, seconds in parts.items():
            axes.barh(name, seconds, left=left, color=_COLORS[part])
            left += seconds
        axes.annotate(f" {shown(left)}", (left, name), va="center")
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
