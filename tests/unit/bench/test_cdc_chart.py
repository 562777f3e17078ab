"""The chart of what techniques of capture cost at the source and here (PARTIAL §4)."""

from __future__ import annotations

from pathlib import Path

from freshview.bench.cdc import _Cost, _trade_off
from freshview.bench.charts import draw
from freshview.bench.measure import Timing


def test_the_trade_off_has_what_each_technique_costs_on_both_sides(tmp_path: Path) -> None:
    seconds = [Timing((s,)) for s in (1.0, 3.0, 0.5, 0.75)]
    chart = _trade_off(100_000, {"tracking": _Cost(*seconds), "log (decoding)": _Cost(*seconds)})
    assert list(chart.panels) == ["at the source", "here"]
    assert chart.panels["at the source"]["tracking"] == {"statement": 1.0, "capture": 2.0}
    assert chart.panels["here"]["tracking"] == {"poll": 0.5, "commit": 0.25}
    drawn = draw(chart, tmp_path / "chart.svg").read_text()
    assert "log (decoding)" in drawn
    assert "Capturing 100,000 updates" in drawn
