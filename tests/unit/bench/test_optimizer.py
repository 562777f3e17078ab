"""The search scales as the bench measures it: seconds of the processor, and bytes that are allocated;
forced strategies are what the chosen ones are judged by."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from freshview.bench import optimizer
from freshview.bench.charts import draw
from freshview.bench.optimizer import _adapted, memory_of, scalability, stars


@pytest.mark.parametrize(("views", "most"), [(10, 1.0), (100, 30.0)])
def test_star_views_are_optimised_within_the_limit(views: int, most: float) -> None:
    stars(1)
    begun = time.process_time()
    choice = stars(views)
    assert time.process_time() - begun < most
    assert len(choice.views) == views
    assert choice.after < choice.before


def test_ten_star_views_over_22_relations_take_less_than_100_megabytes() -> None:
    assert memory_of(10) < 100e6


def test_the_adaptive_strategy_is_judged_by_its_worst_share() -> None:
    lines = {
        "auto": {"1": 1.0, "80": 6.0},
        "incremental": {"1": 1.0, "80": 9.0},
        "full": {"1": 4.0, "80": 5.0},
    }
    (figure,) = _adapted(lines)
    assert (round(figure.value, 2), figure.met) == (1.2, False)
    assert figure.details["80 %"] == "1.20× (auto 6.00 s, incremental 9.00 s, full 5.00 s)"
    assert figure.chart is not None
    assert figure.chart.lines == lines


def test_the_figures_have_their_limits_and_a_chart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimizer, "stars", lambda _: None)
    figures = scalability(tmp_path, 1.0, 2)
    assert [(f.limit, f.unit) for f in figures] == [(1, "s"), (30, "s"), (100, "MB")]
    assert len(figures[0].details) == 9
    assert figures[0].chart is not None
    assert draw(figures[0].chart, tmp_path / "chart.svg").exists()
