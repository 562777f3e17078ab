"""Steps of the optimiser's suite: what they keep and compare, and the order in which they do it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from freshview.bench import peers_systems, stored, stored_v1
from freshview.bench.data import tpch
from freshview.bench.estimates import estimated, keep_estimates
from freshview.bench.measure import Timing
from freshview.bench.peers import STORED, TABLES, TableChange, TableChanges
from freshview.bench.stored import BOTH, NONE, PERMANENT, TRANSIENT, _over_stored, _ratios, _single
from freshview.bench.stored_v1 import _raced
from freshview.bench.variants import variants
from freshview.catalog.frontiers import Job
from freshview.errors import FreshviewError

_SCALE = 0.001


def _kept(folder: Path, step: str, times: Sequence[tuple[float, float]], scale: float = 1.0, **more: Any) -> None:
    """Keep jobs with these expected and actual seconds."""
    jobs = [
        Job(view_id=1, from_csn=1, to_csn=2, strategy="incremental", seconds=took, expected=expected, **more)
        for expected, took in times
    ]
    keep_estimates(folder, scale, step, SimpleNamespace(history=lambda: jobs))  # type: ignore[arg-type]


def test_estimates_of_all_steps_are_compared_and_count_either_way(tmp_path: Path) -> None:
    with pytest.raises(FreshviewError, match="no jobs have been kept"):
        estimated(tmp_path, 1.0, 1)
    _kept(tmp_path, "one", [(1.0, 2.0)] * 6)
    _kept(tmp_path, "two", [(9.0, 3.0), (0.0, 5.0)])  # nothing was expected of the second: it is left out
    _kept(tmp_path, "failed", [(1.0, 50.0)], error="bad data")
    _kept(tmp_path, "trial", [(1.0, 99.0)], scale=0.01)
    median, most = estimated(tmp_path, 1.0, 1)
    assert (median.value, median.limit, median.details["jobs"]) == (2.0, 1.3, "7")
    assert (most.value, most.limit) == (3.0, 2.0)


def test_ratios_of_the_workload_are_against_views_by_themselves() -> None:
    times = {NONE: 8.0, TRANSIENT: 4.0, PERMANENT: 6.0, BOTH: 1.0}
    found = _ratios(0.01, {way: Timing((seconds,)) for way, seconds in times.items()}, {"stored": "2 results"})
    assert [(f.value, f.limit) for f in found] == [(0.5, 0.5), (0.125, 0.25), (0.75, None)]
    single = {view: {NONE: Timing((4.0,)), PERMANENT: Timing((p,))} for view, p in (("a", 1.0), ("b", 4.0))}
    assert _single(single, {"a": "1 results", "b": "nothing"}).value == 5 / 8


@pytest.mark.parametrize("mode", ["lazy", "auxiliary"])
def test_ways_over_stored_results_are_those_without_if_nothing_is_stored(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that is faster by then would make them look better."""
    without = {NONE: Timing((8.0,)), TRANSIENT: Timing((4.0,))}
    measured = {PERMANENT: Timing((6.0,)), BOTH: Timing((1.0,))}
    monkeypatch.setattr(stored, "_measured", lambda *_: measured)
    status = SimpleNamespace(views=[SimpleNamespace(name="v", mode=mode)])
    wh: Any = SimpleNamespace(status=lambda: status)
    same = {PERMANENT: without[NONE], BOTH: without[TRANSIENT]}
    assert _over_stored(wh, random.Random(1), 0.01, 1, without) == (measured if mode == "auxiliary" else same)


class _Counted:
    """A system that notes how often it was changed before it was optimised."""

    name = STORED
    setup = "made up"

    def __init__(self) -> None:
        self.changes = 0
        self.optimised_after = 0

    def optimise(self) -> None:
        self.optimised_after = self.changes

    def apply(self, change: TableChange) -> None:
        assert change.customers is not None
        self.changes += 1

    def answer(self) -> list[tuple[object, ...]]:
        return [("FRANCE", "BUILDING", 3, Decimal("1.50"), Decimal("2"))]

    def processes(self) -> list[int]:
        return []

    def close(self) -> None: ...


def test_the_optimiser_knows_two_changes_and_what_follows_is_measured(tmp_path: Path) -> None:
    tpch(tmp_path, _SCALE, TABLES)
    system = _Counted()
    seconds, compared = _raced([system], TableChanges(tmp_path, _SCALE, seed=1), 3, 1, system.optimise)
    assert (system.optimised_after, system.changes) == (2, 6)
    assert len(seconds[STORED]) == 3
    assert compared == 6


@pytest.mark.parametrize(("scale", "compared"), [(1.0, "scale 3 / scale 0.3"), (3.34, "scale 10 / scale 1")])
def test_the_tenfold_scale_is_named_as_it_is(
    scale: float, compared: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loading ten times the scale of a run would take half an hour."""
    system = SimpleNamespace(optimise=int, close=int, stored="nothing")
    loaded: list[float] = []
    monkeypatch.setattr(peers_systems, "WithStored", lambda *_: system)
    monkeypatch.setattr(stored_v1, "tpch", lambda _, at, __: loaded.append(at))
    monkeypatch.setattr(stored_v1, "TableChanges", lambda *_, **__: None)
    monkeypatch.setattr(stored_v1, "_raced", lambda *_: ({STORED: [loaded[-1]]}, 0))
    (figure,) = stored_v1.v1_tenfold(tmp_path, scale, 1)
    assert figure.name.endswith(compared)
    assert figure.value == pytest.approx(10, rel=0.01)


def test_variants_of_the_search_are_compared_with_the_whole() -> None:
    chosen, without, each, searched = variants(Path(), 1.0, 1)
    assert chosen.value < 1
    assert without.value >= 0.99  # a greedy choice with more freedom may end at a slightly worse plan
    assert each.value == pytest.approx(1, rel=0.05)
    assert searched.value > 0
