"""What the optimiser chooses to store and to share, measured (MQO §7.2.1, Figure 4): the ten views of the workload
together, and each of them by itself.

    none         each view is maintained by itself, over the tables
    transient    all views are maintained by one refresh, which shares what they have in common
    permanent    each view is maintained by itself, over the results that are stored for it in addition
    both         all views and stored results are maintained by one refresh

`wh.optimize(apply=True)` chooses and stores. Times of views over stored results include the maintenance of these.
"""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from freshview import Warehouse
from freshview.bench.estimates import keep_estimates
from freshview.bench.measure import Chart, Figure, Timing, duration, is_trial, seconds_of, spread
from freshview.bench.tables import copied, prepared, tables
from freshview.bench.views import exact
from freshview.bench.workload import COPIED, VIEWS, create, grow
from freshview.display import counted

NONE, TRANSIENT, PERMANENT, BOTH = "none", "transient", "permanent", "transient and permanent"
_SHARES = (0.001, 0.01)  # of all tables, inserted
_ROUNDS = 2  # of each view that is measured by itself, at most
_SINGLE = 0.01


def workload(folder: Path, scale: float) -> Path:
    """Prepare a warehouse with the views of the workload."""
    return prepared(folder, "workload", lambda wh: create(wh, VIEWS), on=tables(folder, scale))


def apart(wh: Warehouse) -> float:
    """Maintain the views one by one; return the seconds."""
    return sum(seconds_of(lambda name=name: wh.maintain([name])) for name in VIEWS)  # type: ignore[misc]


def at_once(wh: Warehouse) -> float:
    """Maintain all views and stored results by one refresh; return the seconds."""
    return seconds_of(wh.maintain)


def together(folder: Path, scale: float, repeat: int) -> list[Figure]:
    """Time the ten views by all four ways, after 0.1 % and after 1 % of all tables were inserted (Figure 4).

    At scale 1 about ten minutes on two cores. The ways without stored results take turns, at both shares; then results
    are stored, and the ways with them take turns. If nothing is worth storing these are the same ways: they have the
    times of those without, and are not measured once more. Views by themselves over stored results are the paper's
    variant without shared differentials.
    """
    draw, times = random.Random(18), dict[float, dict[str, Timing]]()
    more: dict[float, dict[str, str]] = {}
    with copied(workload(folder, scale), folder / "optimizer") as wh:
        grow(wh, draw, 0.001)
        wh.maintain()  # warm-up
        for share in _SHARES:
            times[share] = _measured(wh, draw, share, repeat, {NONE: apart, TRANSIENT: at_once})
        for share in _SHARES:
            choice = wh.optimize(apply=True, changed=share).proposal.choice
            more[share] = {"stored": _stored(wh), "expected": f"{choice.executed / choice.before:.2f}×"}
            times[share] |= _over_stored(wh, draw, share, repeat, times[share])
        keep_estimates(folder, scale, "together", wh)
        figures = [figure for share in _SHARES for figure in _ratios(share, times[share], more[share])]
        lines = {way: {f"{100 * share:g}": times[share][way].p50 for share in _SHARES} for way in times[_SHARES[0]]}
        chart = Chart("figure4", "Figure 4: ten views together", {}, lines=lines, along="inserted, % of all tables")
        return [replace(figures[0], chart=chart), *figures[1:], exact(wh, list(VIEWS))]


def _over_stored(
    wh: Warehouse, draw: random.Random, share: float, repeat: int, without: dict[str, Timing]
) -> dict[str, Timing]:
    """Time both ways over stored results; if there are none, these are the ways that were timed without."""
    if not _auxiliaries(wh):
        return {PERMANENT: without[NONE], BOTH: without[TRANSIENT]}
    return _measured(wh, draw, share, repeat, {PERMANENT: apart, BOTH: at_once})


def _measured(
    wh: Warehouse, draw: random.Random, share: float, repeat: int, ways: dict[str, Callable[[Warehouse], float]]
) -> dict[str, Timing]:
    """Time ways to maintain the workload in turn, each after a change of its own; a first turn is a warm-up."""
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(1 + repeat):
        for way, maintain in ways.items():
            grow(wh, draw, share)
            taken = maintain(wh)
            print(f"{share:.1%}, {way}: {duration(taken)}", file=sys.stderr, flush=True)
            if turn:
                seconds[way].append(taken)
    return {way: Timing(tuple(found)) for way, found in seconds.items()}


def _ratios(share: float, times: dict[str, Timing], more: dict[str, str]) -> list[Figure]:
    """Return the ways with sharing and with stored results against the way without either."""
    none, details = times[NONE], {way: str(timing) for way, timing in times.items()}
    limits = {TRANSIENT: 0.5, BOTH: 0.25, PERMANENT: None}
    return [
        Figure(
            f"workload of MQO §7.1, {share:.1%} inserted: {way} / none",
            times[way].p50 / none.p50,
            limit,
            "×",
            details | (more if way != TRANSIENT else {}),
            spread=spread(times[way], none),
        )
        for way, limit in limits.items()
    ]


def _stored(wh: Warehouse) -> str:
    """What is stored in addition, in a few words."""
    found = _auxiliaries(wh)
    return counted(len(found), "result") if found else "nothing"


def _auxiliaries(wh: Warehouse) -> list[str]:
    return [v.name for v in wh.status().views if v.mode == "auxiliary"]


def separately(folder: Path, scale: float, repeat: int) -> list[Figure]:
    """Time each of the ten views as if it were the only one, without and with what is stored for it (Figure 4, left),
    after 1 % of the tables that it reads were inserted.

    At scale 1 about ten minutes on two cores; a trial takes three of the views.
    """
    draw, rounds = random.Random(20), min(repeat, _ROUNDS)
    times: dict[str, dict[str, Timing]] = {}
    stored: dict[str, str] = {}
    wrong: list[str] = []
    some = dict(list(VIEWS.items())[::4]) if is_trial(scale) else VIEWS
    with copied(tables(folder, scale), folder / "optimizer") as wh:
        for view, text in some.items():
            read, begun = [table for table in COPIED if re.search(rf"\b{table}\b", text)], wh.status().csn
            create(wh, {view: text})
            found = {NONE: _alone(wh, draw, read, rounds)}
            wh.optimize(apply=True, changed=_SINGLE)
            stored[view] = _stored(wh)
            found[PERMANENT] = _alone(wh, draw, read, rounds) if _auxiliaries(wh) else found[NONE]
            times[view] = found
            line = ", ".join(f"{way} {timing}" for way, timing in found.items())
            print(f"{view}: {line}; {stored[view]} stored", file=sys.stderr, flush=True)
            wrong += [] if wh.check(view).ok else [view]
            keep_estimates(folder, scale, f"separately-{view}", wh, since=begun)
            wh.sql(f"DROP MATERIALIZED VIEW {view}")
    return [_single(times, stored), _right(wrong, len(some))]


def _alone(wh: Warehouse, draw: random.Random, read: Sequence[str], rounds: int) -> Timing:
    """Time the maintenance of the only view; a first change is a warm-up."""
    seconds = []
    for _ in range(1 + rounds):
        grow(wh, draw, _SINGLE, read)
        seconds.append(seconds_of(wh.maintain))
    return Timing(tuple(seconds[1:]))


def _single(times: dict[str, dict[str, Timing]], stored: dict[str, str]) -> Figure:
    totals = {way: sum(found[way].p50 for found in times.values()) for way in (NONE, PERMANENT)}
    details = {view: ", ".join(f"{way} {t}" for way, t in found.items()) for view, found in times.items()}
    details |= {f"{view}, stored": what for view, what in stored.items()}
    bars = {view: {way: timing.p50 for way, timing in found.items()} for view, found in times.items()}
    panels = {way: {view: {"maintenance": found[way]} for view, found in bars.items()} for way in (NONE, PERMANENT)}
    chart = Chart("figure4-single", "Figure 4: ten views separately, 1 % inserted", panels)
    name = f"{len(times)} views of MQO §7.1 separately, {_SINGLE:.0%} inserted: permanent / none"
    return Figure(name, totals[PERMANENT] / totals[NONE], 0.5, "×", details, chart=chart)


def _right(wrong: Sequence[str], views: int) -> Figure:
    details = {"wrong": ", ".join(wrong) or "none"}
    name = "views that equal their definition afterwards"
    return Figure(name, views - len(wrong), views, "", details, at_least=True, always=True)
