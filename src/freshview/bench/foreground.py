"""Small queries of users while the maintenance manager works (LAZY §2.2.2: maintenance gives way to queries)."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

import freshview
from freshview import Warehouse
from freshview.bench.lazy_world import TWO, VIEWS, Customers, opened, upsert
from freshview.bench.measure import Figure, Timing, duration, is_trial, meanwhile, seconds_of
from freshview.bench.views import exact
from freshview.schedule import upkeep

_LONGEST = 120.0  # seconds of small queries


def foreground(folder: Path, scale: float, repeat: int) -> list[Figure]:
    """Time small queries while the manager maintains V1 and V2 under a stream of changes, and without changes."""
    small = {
        "point lookup": "SELECT n_name FROM nation WHERE n_nationkey = 7",
        "small aggregate": "SELECT n_regionkey, count(*) FROM nation GROUP BY n_regionkey",
    }
    customers = Customers(folder, scale, seed=10)
    # The manager polls more often, so that more queries meet a job; the load of other programs does not pause it.
    with (
        patch.object(upkeep, "SECONDS", 0.2),
        opened(folder, scale, TWO, background=True, busy_load=math.inf) as wh,
        freshview.connect(wh.path) as other,
    ):
        pause = customers.draw.uniform
        count = (5 if is_trial(scale) else 15) * repeat
        quiet = _small_queries(wh, small, 2 * count, lambda: time.sleep(pause(0.05, 0.3)))
        with meanwhile(lambda: upsert(other, customers.moved(customers.some(20))), 0.3):
            busy = _small_queries(wh, small, count, lambda: await_job(wh, pause(0.0, 0.5)))
        jobs = wh.history()
        wh.maintain()
        cancelled = sum(j.strategy == "cancelled" for j in jobs)
        return [
            *(_slowed(name, quiet[name], busy[name], len(jobs), cancelled) for name in small),
            exact(wh, list(VIEWS[TWO])),
        ]


@dataclass
class _Small:
    """Seconds of a small query, and how often a job was running."""

    seconds: list[float] = field(default_factory=list)
    met: int = 0

    @property
    def timing(self) -> Timing:
        return Timing(tuple(self.seconds))


def _small_queries(wh: Warehouse, texts: dict[str, str], count: int, wait: Callable[[], object]) -> dict[str, _Small]:
    """Time small queries in turn, each after `wait`; stop early after two minutes."""
    until = time.monotonic() + _LONGEST
    found = {name: _Small() for name in texts}
    manager = wh._upkeep.manager
    assert manager is not None
    for i in range(count + 3):
        for name, text in texts.items():
            wait()
            met = bool(manager.running)
            taken = seconds_of(lambda text=text: wh.sql(text).collect())  # type: ignore[misc]
            if i >= 3:
                found[name].seconds.append(taken)
                found[name].met += met
        if time.monotonic() > until:
            break
    return found


def await_job(wh: Warehouse, later: float, patience: float = 5.0) -> None:
    """Wait until the manager runs a job, and `later` seconds longer."""
    until = time.monotonic() + patience
    manager = wh._upkeep.manager
    assert manager is not None
    while not manager.running and time.monotonic() < until:
        time.sleep(0.005)
    time.sleep(later)


def _slowed(name: str, quiet: _Small, busy: _Small, jobs: int, cancelled: int) -> Figure:
    details = {
        "quiet": f"{quiet.timing}, p95 {duration(quiet.timing.p95)}",
        "with a job": f"{busy.timing}, p95 {duration(busy.timing.p95)}",
        "met a job at work": f"{busy.met} of {len(busy.seconds)} queries; {jobs} jobs, {cancelled} of them cancelled",
    }
    ratio = busy.timing.p95 / quiet.timing.p95
    limit = 3.0 if 2 * busy.met > len(busy.seconds) else None  # if most met no job, the ratio measures nothing
    return Figure(f"{name}, p95 with a background job / quiet", ratio, limit, "×", details)
