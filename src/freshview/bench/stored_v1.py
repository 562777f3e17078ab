"""V1 of LAZY after a change of 100 customers, with what the optimiser chooses to store by itself.

It knows what the history of the first rounds says: that customers change, and nothing else.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from freshview.bench.data import tpch
from freshview.bench.estimates import keep_estimates
from freshview.bench.measure import Figure, Timing, duration, is_trial, spread
from freshview.bench.peers import (
    OURS,
    PATHWAY,
    STORED,
    TABLES,
    Maker,
    Row,
    System,
    TableChanges,
    agreed,
    canonical,
    gathered,
    timed,
)
from freshview.bench.processes import stopped

_HISTORY = 2  # rounds before the optimiser is asked
_TENFOLD = (0.3, 3.0)  # the compared scales, over the scale of the run
_WARMUP = 5  # further rounds that are not counted


def chosen_for_v1(folder: Path, scale: float, repeat: int) -> list[Figure]:
    """Time the fresh answer of V1 with what is stored for it, without, and of Pathway, in one run.

    At scale 1 about five minutes on two cores.
    """
    from freshview.bench.peers_pathway import pathway  # listing the suites does not need these packages
    from freshview.bench.peers_systems import Freshview, WithStored

    makers: dict[str, Maker] = {OURS: Freshview, STORED: WithStored, PATHWAY: pathway}
    with gathered(folder, scale, makers) as found:
        changes, systems = TableChanges(folder, scale, seed=21), found.systems
        ours = next(system for system in systems if isinstance(system, WithStored))
        seconds, compared = _raced(systems, changes, repeat, 0 if is_trial(scale) else _WARMUP, ours.optimise)
        keep_estimates(folder, scale, "v1", ours.warehouse)
        timings = {name: Timing(tuple(taken)) for name, taken in seconds.items()}
        details = {name: str(timing) for name, timing in timings.items()} | {"stored": ours.stored} | found.missing
        figures = [_ratio("with what is stored / without", timings[STORED], timings[OURS], 0.5, details)]
        if PATHWAY in timings:
            figures.append(_ratio(f"{STORED} / {PATHWAY}", timings[STORED], timings[PATHWAY], 1.0, details))
        equal = Figure("answers that equal those of all others", compared, compared, "", {}, at_least=True, always=True)
        return [*figures, equal]


def _raced(
    systems: Sequence[System], changes: TableChanges, repeat: int, warmup: int, optimise: Callable[[], None]
) -> tuple[dict[str, list[float]], int]:
    """Time fresh answers of all systems after equal changes; what is stored is chosen after some of them."""
    seconds: dict[str, list[float]] = {system.name: [] for system in systems}
    compared = 0
    for i in range(_HISTORY + warmup + repeat):
        if i == _HISTORY:
            optimise()
        change, answers = changes.customers(), dict[str, list[Row]]()
        for system in [*systems[i % len(systems) :], *systems[: i % len(systems)]]:
            with stopped(pid for other in systems if other is not system for pid in other.processes()):
                _, answered, rows = timed(system, change)
            answers[system.name] = canonical(rows)
            print(f"{change.name}, {system.name}: fresh answer {duration(answered)}", file=sys.stderr, flush=True)
            if i >= _HISTORY + warmup:
                seconds[system.name].append(answered)
        compared += agreed(answers, change)
    return seconds, compared


def _ratio(what: str, over: Timing, under: Timing, limit: float, details: dict[str, str]) -> Figure:
    name = f"V1, 100 customers, fresh answer: {what}"
    return Figure(name, over.p50 / under.p50, limit, "×", details, spread=spread(over, under))


def v1_tenfold(folder: Path, scale: float, repeat: int) -> list[Figure]:
    """Time the fresh answer of V1 with what is stored for it, at two scales of which one is ten times the other.

    Loading takes most of the time, at scale 10 about half an hour on two cores. So a run at scale 1 compares scales 0.3
    and 3, in about ten minutes; `--scale 3.34 --only v1_tenfold` compares 1 and 10.
    """
    from freshview.bench.peers_systems import WithStored

    timings, details, warmup = dict[float, Timing](), dict[str, str](), 0 if is_trial(scale) else _WARMUP
    small_scale, large_scale = (float(f"{part * scale:.2g}") for part in _TENFOLD)
    for at in (small_scale, large_scale):
        home = folder / "peers"
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        system = WithStored(home, tpch(folder, at, TABLES))
        try:
            seconds, _ = _raced([system], TableChanges(folder, at, seed=22), repeat, warmup, system.optimise)
        finally:
            system.close()
            shutil.rmtree(home, ignore_errors=True)
        timings[at] = Timing(tuple(seconds[STORED]))
        details |= {f"scale {at:g}": str(timings[at]), f"scale {at:g}, stored": system.stored}
    small, large = timings.values()
    name = f"V1, 100 customers, with what is stored, fresh answer: scale {large_scale:g} / scale {small_scale:g}"
    return [Figure(name, large.p50 / small.p50, 1.5, "×", details, spread=spread(large, small))]
