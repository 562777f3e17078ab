"""Steps of several suites of the bench: each runs on tiny data, measures its figures, and leaves its views exact."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from tests.effort import IS_SOAK

from freshview.bench import growth, large, lazy, optimizer, profile, serving, stored, strategy, views
from freshview.bench.measure import Figure
from freshview.bench.peers import OURS, Maker
from freshview.bench.peers_systems import Duck, Freshview
from freshview.errors import FreshviewError

pytestmark = pytest.mark.usefixtures("spark")

_SCALE = 0.01  # the smallest at which the keys of partsupp are unique
Step = Callable[[Path, float, int], list[Figure]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder for all steps, which share the warehouses that they prepare."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(views, "_SOME", ("q1", "q3"))
        yield tmp_path_factory.mktemp("bench")


_STEPS: dict[Step, tuple[str, ...]] = {
    views.all_asked: ("one change of 10 orders",),
    strategy.refresh_full: ("REFRESH FULL", "REFRESH FULL"),
    large.large_view: ("large view, read", "large view, checkpoint"),
    large.large_insert: ("V1, a sixth of lineitem inserted",),
    large.all_rows: ("all rows of lineitem changed",),
    stored.together: (*["workload of MQO §7.1, 0.1% inserted"] * 3, *["workload of MQO §7.1, 1.0% inserted"] * 3),
    stored.separately: ("3 views of MQO §7.1 separately",),
    optimizer.adaptive: ("workload of MQO §7.1: chosen strategies",),
    profile.fresh_answer: ("V1, 100 customers, fresh answer, in parts",),
}

_LIGHT = (large.large_view, profile.fresh_answer)  # for every commit; `make soak` runs all of them


@pytest.mark.parametrize("step", _STEPS if IS_SOAK else _LIGHT, ids=lambda step: step.__name__)
def test_a_step_measures_its_figures_and_leaves_its_views_exact(step: Step, folder: Path) -> None:
    *figures, exact = step(folder, _SCALE, 1)
    assert exact.met
    assert exact.always
    assert len(figures) == len(_STEPS[step])
    assert all(f.name.startswith(begin) for f, begin in zip(figures, _STEPS[step], strict=True))
    assert all(f.value > 0 or f.unit == "MB" for f in figures)


# The steps of the lazy suite whose figures the published ones wait for, with their charts.
_LAZY: dict[Step, tuple[str, ...]] = {
    lazy.sizes: ("figure9",),
    lazy.updates: ("figure5", "figure6"),
    lazy.queries: ("figure7",),
    serving.served: (),
    serving.side_by_side: (),
}


@pytest.mark.parametrize("step", _LAZY if IS_SOAK else (lazy.sizes,), ids=lambda step: step.__name__)
def test_a_step_of_the_lazy_suite_runs_to_its_end(step: Step, folder: Path) -> None:
    figures = step(folder, _SCALE, 1)
    assert figures[-1].always, "the views are compared at the end"
    assert all(figure.met for figure in figures if figure.always)
    assert tuple(figure.chart.name for figure in figures if figure.chart is not None) == _LAZY[step]
    assert all(figure.value > 0 for figure in figures if not figure.always)
    if step is lazy.updates:
        assert figures[0].name.startswith("V1, UPDATE of 1 row"), "the form of the paper comes before the blind upsert"
    if step is lazy.sizes:
        assert all("lazy: " in figure.details["strategy"] for figure in figures if "total work" in figure.name)
    chosen = [figure for figure in figures if figure.name.endswith("chosen way / better way")]
    assert len(chosen) == (2 if step is lazy.sizes else 0)
    assert all({"chosen", "forced incremental", "forced full"} == set(figure.details) for figure in chosen)


@pytest.mark.skipif(not IS_SOAK, reason="six steps; how their times are judged: tests/unit/bench/test_strategy.py")
def test_both_ways_of_every_view_are_measured(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[strategy.JudgedChoice] = []

    def judged(choices: Sequence[strategy.JudgedChoice], left_out: int) -> list[Figure]:
        assert not left_out
        found.extend(choices)
        return []

    monkeypatch.setattr(strategy, "judged", judged)
    assert [step.__name__ for step in strategy.STEPS[:2]] == ["choices_0_01", "choices_0_1"]
    for step in strategy.STEPS[:-2]:
        assert all(figure.met for figure in step(folder, _SCALE, 1))
    assert strategy.judgement(folder, _SCALE, 1) == []
    assert {(c.view, c.share) for c in found} == {(q, share) for q in ("q1", "q3") for share in (0.001, 0.2)}
    assert all(set(c.seconds) == {"incremental", "full"} for c in found)


@pytest.mark.skipif(not IS_SOAK, reason="six loads; what is made of their times: tests/unit/bench/test_strategy.py")
def test_growth_is_of_the_scales_that_were_measured(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    makers: dict[str, Maker] = {OURS: Freshview, Duck.name: Duck}
    monkeypatch.setattr("freshview.bench.peers_systems.MAKERS", makers)
    for step in (growth.tenth, growth.same):
        times, answers = step(folder, _SCALE, 1)
        assert set(times.details) == set(makers)
        assert answers.value == 6  # three rounds of two systems
    kept = json.loads((folder / "growth" / "same.json").read_text())
    assert all(len(seconds) == 1 for seconds in kept["seconds"].values())  # two rounds are a warm-up
    larger, ahead = growth.growth(folder, _SCALE, 1)
    assert larger.chart is not None
    assert set(larger.chart.lines[OURS]) == {"0.001", "0.01"}
    assert ahead.value > 0
    assert "loaded in" in capsys.readouterr().err
    with pytest.raises(FreshviewError, match="fewer than two scales"):
        growth.growth(folder, 10 * _SCALE, 1)  # what another scale has left says nothing about this one
