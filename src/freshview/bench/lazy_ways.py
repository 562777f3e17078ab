"""Which way V1 is maintained after a large update (Figure 9), beside the time that each way takes."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Sequence

from freshview import Warehouse
from freshview.bench.data import V1
from freshview.bench.lazy_world import set_mode
from freshview.bench.measure import Bars, Figure, Timing
from freshview.bench.strategy import FORCED, WITHIN, JudgedChoice, measured_choice


def both_ways(
    wh: Warehouse,
    update: Callable[[int], Callable[[], object]],
    counts: Sequence[int],
    of: int,
    repeat: int,
    *,
    warmup: int = 1,
) -> dict[int, list[JudgedChoice]]:
    """Maintain V1, and V1 forced to either way, after updates of so many rows out of `of`: the same rows for all three.

    Which of the forced ways goes first alternates.
    """
    for suffix, way in FORCED.items():
        wh.sql(f"CREATE MATERIALIZED VIEW v1_{suffix} TBLPROPERTIES ('refresh' = '{way}') AS {V1}")
    set_mode(wh, ["v1"], "lazy")
    found: dict[int, list[JudgedChoice]] = {count: [] for count in counts}
    for i in range(warmup + repeat):
        for count in counts:
            update(count)()
            choice = measured_choice(wh, "v1", count / of, first=i % 2)
            print(f"{count:,} of {of:,} rows, both ways: {choice}", file=sys.stderr, flush=True)
            if i >= warmup:
                found[count].append(choice)
    return found


def choice_figure(name: str, choices: Sequence[JudgedChoice]) -> Figure:
    """Return how much longer the chosen way takes than the better one: 1 if the better one is chosen."""
    regrets = [choice.regret for choice in choices]
    chosen = [choice.chosen for choice in choices]
    details = {"chosen": ", ".join(f"{way} ({chosen.count(way)} of {len(chosen)})" for way in dict.fromkeys(chosen))}
    details |= {f"forced {way}": str(timing) for way, timing in _timings(choices).items()}
    spread = min(regrets), max(regrets)
    return Figure(f"{name}: chosen way / better way", statistics.median(regrets), WITHIN, "×", details, spread=spread)


def way_bars(title: str, choices: Sequence[JudgedChoice]) -> Bars:
    """Return a bar for each way, with a mark at those that were chosen."""
    chosen = {choice.chosen for choice in choices}
    return {
        f"{title}, {way}{' (chosen)' * (way in chosen)}": {"maintenance": timing.p50}
        for way, timing in _timings(choices).items()
    }


def _timings(choices: Sequence[JudgedChoice]) -> dict[str, Timing]:
    """Return the times of each forced way."""
    found = {way: tuple(c.seconds[way] for c in choices if way in c.seconds) for way in FORCED.values()}
    return {way: Timing(seconds) for way, seconds in found.items() if seconds}
