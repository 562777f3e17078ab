"""Maintenance beside statements, across processes and side by side (LAZY §2.2.2, §3)."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import freshview
from freshview import Job, Warehouse
from freshview.bench.lazy_world import TWO, VIEWS, Customers, opened, upsert
from freshview.bench.measure import Figure, Timing, cpu_seconds, duration, is_trial, meanwhile, seconds_of, spread
from freshview.bench.tables import copied, prepared, replaced, tables
from freshview.bench.views import exact

_SERVE = [sys.executable, "-c", "from freshview.cli.main import main; main()", "serve", "--busy-load", "1000"]
_SMALL = {
    "point lookup": "SELECT n_name FROM nation WHERE n_nationkey = 7",
    "small aggregate": "SELECT n_regionkey, count(*) FROM nation GROUP BY n_regionkey",
}
_PAUSE = 0.2  # seconds between two queries
_WITHIN = 60.0  # seconds in which every view is to get a job
_PARTS = tuple(f"part_{i}" for i in range(8))


def served(folder: Path, scale: float, repeat: int) -> list[Figure]:
    """Time small queries of this process, one every 200 ms, while `freshview serve` maintains V1 and V2 in another.

    One transaction a second goes on beside both sides of the comparison: the difference is that of the maintenance.
    """
    customers = Customers(folder, scale, seed=17)
    window = 5.0 if is_trial(scale) else _WITHIN
    with opened(folder, scale, TWO) as wh, freshview.connect(wh.path) as other:

        def write() -> None:
            upsert(other, customers.moved(customers.some(20)))

        _asked(wh, 3.0)  # warm-up
        with meanwhile(write, 1.0):
            quiet = _asked(wh, window * min(repeat, 2))
        wh.maintain()
        with serving(wh.path):
            since = wh.status().csn
            with meanwhile(write, 1.0):
                busy, first, waited = _asked_beside(wh, since, window * min(repeat, 2))
        jobs, times = [job for job in wh.history() if job.to_csn > since], wh._views.catalog.job_times(since)
        wh.maintain()
        name = "seconds within which a background job of every view was done, with a query every 200 ms elsewhere"
        details = {view: _story([j for j in jobs if j.view == view], first.get(view), waited) for view in VIEWS[TWO]}
        longest = max(first.get(view, waited) for view in VIEWS[TWO])
        return [
            *(_slowed(query, quiet[query], busy[query], times) for query in _SMALL),
            Figure(name, longest, _WITHIN, "s", details),
            exact(wh, list(VIEWS[TWO])),
        ]


@dataclass(frozen=True)
class Asked:
    """A query: when it began, in seconds since the epoch, and how long it took."""

    at: float
    seconds: float

    def overlaps(self, began: int, ended: int) -> bool:
        """Return whether something ran at the same time that lasted from one time to another, in microseconds."""
        return self.at < ended / 1e6 and began / 1e6 < self.at + self.seconds


Answers = dict[str, list[Asked]]  # by query


def _asked_beside(wh: Warehouse, since: int, window: float) -> tuple[Answers, dict[str, float], float]:
    """Ask the small queries until the window is over and another process has finished a job of every view, but not for
    ever; return their seconds in the window, when the first job of each view was done, and how long that took."""
    busy: Answers = {name: [] for name in _SMALL}
    first: dict[str, float] = {}
    begun = time.monotonic()
    while (waited := time.monotonic() - begun) < window or (len(first) < len(VIEWS[TWO]) and waited < 2 * _WITHIN):
        asked = _asked(wh, 1.0)
        if waited < window:
            busy = {name: answers + asked[name] for name, answers in busy.items()}
        for job in wh.history():
            if job.to_csn > since and job.error is None:
                first.setdefault(job.view, time.monotonic() - begun)
    return busy, first, waited


def _story(jobs: list[Job], first: float | None, waited: float) -> str:
    """Return what became of the jobs of a view."""
    done = [job for job in jobs if job.error is None]
    yielded = [job.seconds for job in jobs if job.strategy == "cancelled"]
    found = [f"{len(done)} jobs done in {waited:.0f} s"]
    found += [f"the first after {first:.0f} s"] * (first is not None)
    found += [f"the longest took {duration(max(job.seconds for job in done))}"] * bool(done)
    return ", ".join(found) + (f"; {len(yielded)} gave way, after {duration(max(yielded))} at most" if yielded else "")


@contextmanager
def serving(home: Path) -> Iterator[None]:
    """Run `freshview serve` on a warehouse while the block runs; the block begins when the process serves."""
    with subprocess.Popen(
        [*_SERVE, str(home)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert "Serving" in process.stdout.readline()
            with meanwhile(lambda: process.stdout and process.stdout.readline()):
                try:
                    yield
                finally:
                    process.terminate()
        finally:
            process.terminate()


def _asked(wh: Warehouse, seconds: float) -> Answers:
    """Ask the small queries in turn, one every 200 ms, for so long; return when each began and what it took."""
    found: Answers = {name: [] for name in _SMALL}
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for name, text in _SMALL.items():
            at = time.time()
            taken = seconds_of(lambda text=text: wh.sql(text).collect())  # type: ignore[misc]
            found[name].append(Asked(at, taken))
            time.sleep(max(_PAUSE - taken, 0.0))
    return found


def _slowed(name: str, quiet: list[Asked], busy: list[Asked], jobs: list[tuple[int, int]]) -> Figure:
    """Compare the 95th percentiles, and tell how long the queries took that a job overlapped, and the others."""
    alone, beside = _timing(quiet), _timing(busy)
    met = [asked for asked in busy if any(asked.overlaps(*job) for job in jobs)]
    missed = [asked for asked in busy if asked not in met]
    details = {
        "quiet": f"{alone}, p95 {duration(alone.p95)}, {len(quiet)} queries",
        "while another process maintains": f"{beside}, p95 {duration(beside.p95)}, {len(busy)} queries",
    }
    for what, some in (("of these, beside a job", met), ("of these, between jobs", missed)):
        if some:
            details[what] = f"{_timing(some)}, p95 {duration(_timing(some).p95)}, {len(some)} queries"
    return Figure(f"{name}, p95 while another process maintains / quiet", beside.p95 / alone.p95, 1.5, "×", details)


def _timing(answers: list[Asked]) -> Timing:
    return Timing(tuple(asked.seconds for asked in answers))


def side_by_side(folder: Path, scale: float, repeat: int) -> list[Figure]:
    """Time maintain() of eight views over eight tables, each with 100 changed rows, by two workers and by one."""
    figures = []
    source = prepared(folder, "eight", _create, on=tables(folder, scale))
    with (
        copied(source, folder / "lazy" / "one_worker", workers=1) as one,
        copied(source, folder / "lazy" / "two_workers", workers=2) as two,
    ):
        for kind, refresh, limit in (("maintained by rules", "incremental", 0.65), ("recomputed", "full", None)):
            views = [f"{part}_{refresh}" for part in _PARTS]
            seconds: dict[str, list[float]] = {"one": [], "two": []}
            cores: dict[str, str] = {}
            for i in range(repeat + 1):
                seed = random.Random(100 * i).randrange(1_000_000)
                for way, wh in (("one", one), ("two", two)) if i % 2 else (("two", two), ("one", one)):
                    _change(wh, seed)
                    before = cpu_seconds()
                    taken = seconds_of(lambda wh=wh, views=views: wh.maintain(views))  # type: ignore[misc]
                    here, java = ((b - a) / taken for a, b in zip(before, cpu_seconds(), strict=True))
                    cores[way] = f"cores in use, last round: Python {here:.2f}, Java {java:.2f}"
                    print(f"{kind}, {way}: {duration(taken)}", file=sys.stderr, flush=True)
                    if i:
                        seconds[way].append(taken)
            alone, both = (Timing(tuple(s)) for s in seconds.values())
            details = {"one worker": f"{alone}; {cores['one']}", "two workers": f"{both}; {cores['two']}"}
            name = f"8 views over 8 tables, {kind}: two workers / one"
            figures.append(Figure(name, both.p50 / alone.p50, limit, "×", details, spread=spread(both, alone)))
        two.maintain()
        return [*figures, exact(two, [f"{part}_incremental" for part in _PARTS])]


def _create(wh: Warehouse) -> None:
    """Create eight tables, each an eighth of lineitem, and two views of each: one by rules, one recomputed."""
    for i, part in enumerate(_PARTS):
        wh.sql(
            f"CREATE TABLE {part} PRIMARY KEY (l_orderkey, l_linenumber) AS "
            f"SELECT * FROM lineitem WHERE pmod(l_orderkey, {len(_PARTS)}) = {i}"
        )
        for refresh in ("incremental", "full"):
            wh.sql(
                f"CREATE MATERIALIZED VIEW {part}_{refresh} TBLPROPERTIES ('refresh' = '{refresh}') AS "
                "SELECT l_shipmode, o_orderpriority, count(*) AS n, sum(l_extendedprice) AS price, "
                f"max(o_orderdate) AS last FROM {part}, orders WHERE o_orderkey = l_orderkey "
                "GROUP BY l_shipmode, o_orderpriority"
            )


def _change(wh: Warehouse, seed: int) -> None:
    """Change 100 rows of each table, the same ones for one seed."""
    for part in _PARTS:
        order = f"ORDER BY hash(l_orderkey, l_linenumber, {seed})"
        rows = wh.sql(f"SELECT * FROM {part} {order} LIMIT 100").toArrow()
        dearer = [price + 1 for price in rows.column("l_extendedprice").to_pylist()]
        with wh.transaction() as tx:
            tx.upsert(part, replaced(rows, "l_extendedprice", dearer))
