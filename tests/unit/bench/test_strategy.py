"""Choices of strategies are judged by the times of both ways; the growth chart is drawn from what was measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from freshview.bench.charts import draw
from freshview.bench.growth import compared
from freshview.bench.lazy_ways import choice_figure, way_bars
from freshview.bench.measure import Timing, memory, peak_memory, reset_peak
from freshview.bench.peers import DUCKDB, OURS
from freshview.bench.profile import PartSeconds, profiled
from freshview.bench.strategy import JudgedChoice, judged
from freshview.errors import FreshviewError


def _choice(chosen: str, rules: float, anew: float) -> JudgedChoice:
    return JudgedChoice("q1", 0.01, chosen, {"incremental": rules, "full": anew})


def test_a_choice_is_right_within_15_percent_of_the_better_way() -> None:
    assert _choice("incremental", 1.14, 1.0).is_right
    assert not _choice("incremental", 1.16, 1.0).is_right
    assert _choice("full", 5.0, 1.0).is_right
    assert JudgedChoice("q1", 0.01, "full", {"full": 3.0}).is_right  # there is no other way
    assert JudgedChoice("q1", 0.01, "nothing", {"incremental": 0.1, "full": 3.0}).is_right


def test_wrong_choices_are_listed_with_both_times() -> None:
    share, cost = judged([_choice("incremental", 2.0, 1.0), _choice("full", 2.0, 1.0)], left_out=3)
    assert (share.name, share.value, share.met) == ("right strategy, 22 TPC-H views at 1 %", 50.0, False)
    assert share.details["not measured in time"] == "3"
    assert share.details["wrong: q1 at 1.00%"] == "chose incremental (incremental 2.00 s, full 1.00 s)"
    assert cost.value == 1.5


def test_figure_9_has_the_time_of_the_way_that_was_not_chosen() -> None:
    """Law: a size at which the dearer way was chosen misses its limit, and both times stand beside the choice."""
    right, wrong = [_choice("incremental", 1.0, 3.0)] * 3, [_choice("incremental", 4.0, 1.0)] * 3
    figure = choice_figure("V1, UPDATE of 150 rows, maintenance", [*right[:2], wrong[0]])
    assert (figure.value, figure.met, figure.spread) == (1.0, True, (1.0, 4.0))
    assert figure.details["chosen"] == "incremental (3 of 3)"
    assert figure.details["forced full"].startswith("3.00 s (1.00 s to 3.00 s")
    assert choice_figure("", wrong).met is False
    assert way_bars("150 rows", right) == {
        "150 rows, incremental (chosen)": {"maintenance": 1.0},
        "150 rows, full": {"maintenance": 3.0},
    }


def test_a_system_that_does_not_get_far_has_a_shorter_line(tmp_path: Path) -> None:
    def times(**seconds: float) -> dict[str, Timing]:
        return {name: Timing((value,)) for name, value in seconds.items()}

    found = {
        "tenth": times(**{OURS: 0.1, DUCKDB: 0.1, "Pathway": 0.1}),
        "same": times(**{OURS: 0.2, DUCKDB: 1.0, "Pathway": 0.1}),
        "tenfold": times(**{OURS: 0.3, DUCKDB: 9.0}),
    }
    larger, ahead = compared(found, 1.0)
    assert (round(larger.value, 2), larger.met) == (1.5, True)
    assert (round(ahead.value), ahead.met) == (30, True)
    assert larger.chart is not None
    assert list(larger.chart.lines["Pathway"]) == ["0.1", "1"]
    drawn = draw(larger.chart, tmp_path / "growth.svg").read_text()
    assert all(name in drawn for name in (OURS, DUCKDB, "Pathway", "TPC-H scale"))
    with pytest.raises(FreshviewError, match="fewer than two scales"):
        compared({"same": found["same"]}, 1.0)


def test_the_peak_of_memory_begins_anew() -> None:
    reset_peak()
    before = memory()
    held = bytearray(b"x" * 60_000_000)
    assert peak_memory() - before > 50_000_000
    del held
    reset_peak()
    assert peak_memory() - memory() < 20_000_000


def test_the_time_of_a_part_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 1.0, 3.0, 10.0])
    with monkeypatch.context() as patched:
        patched.setattr("freshview.bench.profile.time.perf_counter", lambda: next(clock))
        profile = PartSeconds()
        with profile.part("outer"), profile.part("inner"):
            pass
    assert profile.seconds == {"inner": 2.0, "outer": 8.0}


def test_all_parts_of_the_profile_are_functions_of_the_product() -> None:
    """One that was renamed would fail here, and not in the middle of a run."""
    with profiled() as profile:
        pass
    assert set(profile.seconds) == {"the rest"}
