"""Charts of benchmarks: made from the JSON, the same numbers make the same file."""

from __future__ import annotations

import json
from pathlib import Path

from freshview.bench.charts import draw
from freshview.bench.lazy import _dearer
from freshview.bench.measure import Chart, Figure, Timing

CHART = Chart(
    "figure6", "Total work", {"V1": {"eager": {"update": 0.01, "maintenance": 0.6}, "lazy": {"update": 0.02}}}
)


def test_the_same_numbers_make_the_same_file(tmp_path: Path) -> None:
    one, two = draw(CHART, tmp_path / "one.svg"), draw(CHART, tmp_path / "two.svg")
    assert one.read_bytes() == two.read_bytes()
    text = one.read_text()
    assert "Total work" in text
    assert "610.00 ms" in text  # the sum of a bar's parts
    assert "20.00 ms" in text
    assert "<dc:date>" not in text


def test_a_chart_survives_the_way_through_json() -> None:
    figure = Figure("total", 1.0, 1.15, "×", {}, chart=CHART)
    told = json.loads(json.dumps(figure.as_json()))
    assert Chart(**told["chart"]) == CHART
    assert "chart" not in Figure("total", 1.0, None, "", {}).as_json()


def test_commits_that_differ_show_though_their_medians_fall_on_the_same_slice() -> None:
    one = Timing((3.6e-3,) * 30 + (7.7e-3,) * 70)
    ten = Timing((5.0e-3,) * 30 + (7.7e-3,) * 70)
    figure = _dearer({"1 view": one, "10 views": ten}, "10 views", 1.2)
    assert one.p50 == ten.p50
    assert not figure.met


def test_p95_leaves_out_one_in_twenty() -> None:
    assert Timing(tuple(float(n) for n in range(1, 101))).p95 == 95.0
    assert Timing((3.0, 1.0, 2.0)).p95 == 3.0
