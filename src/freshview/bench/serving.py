"""Maintenance beside statements, across processes and side by side (LAZY §2.2.2, §3)."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

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
    window = (5.0 if is_trial(scale) else _WITHIN) * min(repeat, 2)
    with opened(folder, scale, TWO) as wh, freshview.connect(wh.path) as other:

        def write() -> None:
            upsert(other, customers.moved(customers.some(20)))

        _asked(wh, 3.0)  # warm-up
        with meanwhile(write, 1.0):
            quiet = _asked(wh, window)
        wh.maintain()
        with serving(wh.path):
            since = wh.status().csn
            with meanwhile(write, 1.0):
                beside = _asked_beside(wh, since, window)
        jobs, times = [job for job in wh.history() if job.to_csn > since], wh._views.catalog.job_times(since)
        wh.maintain()
        name = "seconds within which a background job of every view was done, with a query every 200 ms elsewhere"
        details = {view: beside.story(view, [j for j in jobs if j.view == view]) for view in VIEWS[TWO]}
        longest = max(beside.first.get(view, beside.seconds) for view in VIEWS[TWO])
        return [
            *(_slowed(query, quiet[query], beside.busy[query], times, beside.starting[query]) for query in _SMALL),
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


@dataclass
class Beside:
    """Queries while another process maintains: until it has finished a job of every view, and afterwards."""

    starting: Answers  # that process starts Spark and has its first jobs, at the expense of all others
    busy: Answers
    first: dict[str, float]  # by view: seconds until its first job was done
    seconds: float = 0.0  # that all of it took

    def story(self, view: str, jobs: list[Job]) -> str:
        """Return what became of the jobs of a view."""
        done = [job for job in jobs if job.error is None]
        yielded = [job.seconds for job in jobs if job.strategy == "cancelled"]
        found = [f"{len(done)} jobs done in {self.seconds:.0f} s"]
        found += [f"the first after {self.first[view]:.0f} s"] * (view in self.first)
        found += [f"the longest took {duration(max(job.seconds for job in done))}"] * bool(done)
        gave_way = f"; {len(yielded)} gave way, after {duration(max(yielded))} at most" if yielded else ""
        return ", ".join(found) + gave_way


def _asked_beside(wh: Warehouse, since: int, window: float) -> Beside:
    """Ask the small queries until another process has finished a job of every view, but not for ever, and then for the
    window."""
    found = Beside({name: [] for name in _SMALL}, {name: [] for name in _SMALL}, {})
    begun, until = time.monotonic(), time.monotonic() + 2 * _WITHIN
    is_started = False
    while time.monotonic() < until:
        answers = found.busy if is_started else found.starting
        for name, asked in _asked(wh, 1.0).items():
            answers[name] += asked
        for job in wh.history():
            if job.to_csn > since and job.error is None:
                found.first.setdefault(job.view, time.monotonic() - begun)
        if not is_started and len(found.first) >= len(VIEWS[TWO]):
            is_started, until = True, time.monotonic() + window
    found.seconds = time.monotonic() - begun
    return found


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


def _slowed(
    name: str, quiet: list[Asked], busy: list[Asked], jobs: list[tuple[int, int]], starting: list[Asked]
) -> Figure:
    """Compare the 95th percentiles, and tell how long the queries took that a job overlapped, and the others. Queries
    `starting` before every view had a job are not compared, unless there are no others."""
    alone, beside = _timing(quiet), _timing(busy or starting)
    met = [asked for asked in busy if any(asked.overlaps(*job) for job in jobs)]
    missed = [asked for asked in busy if asked not in met]
    details = {"quiet": _told(quiet)}
    parts = {
        "until every view had a job": starting,
        "while another process maintains": busy,
        "of these, beside a job": met,
        "of these, between jobs": missed,
    }
    details |= {what: _told(some) for what, some in parts.items() if some}
    return Figure(f"{name}, p95 while another process maintains / quiet", beside.p95 / alone.p95, 1.5, "×", details)


def _told(answers: list[Asked]) -> str:
    timing = _timing(answers)
    return f"{timing}, p95 {duration(timing.p95)}, {len(answers)} queries"


def _timing(answers: list[Asked]) -> Timing:
    return Timing(tuple(asked.seconds for asked in answers))


@dataclass(frozen=True)
class _UpkeepWay:
    """A way to maintain the eight views, after so many changed rows of each table."""

    name: str
    refresh: str
    changed: Callable[[int], int]  # rows of a table → rows that change
    rounds: Callable[[int], range]  # repetitions → rounds; round 0 is a warm-up
    limit: float | None = None

    @property
    def views(self) -> list[str]:
        return [f"{part}_{self.refresh}" for part in _PARTS]


_KINDS = (
    _UpkeepWay("maintained by rules", "incremental", lambda _: 100, lambda repeat: range(repeat + 1), 0.65),
    _UpkeepWay(
        "1 % changed, maintained by rules",
        "incremental",
        lambda rows: max(rows // 100, 1),
        lambda repeat: range(repeat + 1),
    ),
    _UpkeepWay("recomputed", "full", lambda _: 100, lambda _: range(1, 2)),  # Spark is warm, and a round takes long
)


def side_by_side(folder: Path, scale: float, repeat: int) -> list[Figure]:
    """Time maintain() of eight views over eight tables, by two workers and by one: with 100 changed rows in each table,
    with one in a hundred, and recomputed."""
    source = prepared(folder, "eight", _create, on=tables(folder, scale))
    with (
        copied(source, folder / "lazy" / "one_worker", workers=1) as one,
        copied(source, folder / "lazy" / "two_workers", workers=2) as two,
    ):
        parts = [_ChangedTable.of(one, name) for name in _PARTS]
        figures = [_compared(one, two, parts, kind, kind.rounds(repeat)) for kind in _KINDS]
        return [*figures, exact(two, _KINDS[0].views)]


def _compared(one: Warehouse, two: Warehouse, parts: list[_ChangedTable], kind: _UpkeepWay, rounds: range) -> Figure:
    """Time the maintenance of the views by one worker and by two, in turn, each after the same changes."""
    seconds: dict[str, list[float]] = {"one": [], "two": []}
    cores: dict[str, str] = {}
    for i in rounds:
        for way, wh in (("one", one), ("two", two)) if i % 2 else (("two", two), ("one", one)):
            draw = random.Random(f"{kind.name} {i}")
            for part in parts:
                part.change(wh, kind.changed(part.rows), draw)
            before = cpu_seconds()
            taken = seconds_of(lambda wh=wh: wh.maintain(kind.views))  # type: ignore[misc]
            here, java = ((b - a) / taken for a, b in zip(before, cpu_seconds(), strict=True))
            cores[way] = f"cores in use, last round: Python {here:.2f}, Java {java:.2f}"
            print(f"{kind.name}, {way}: {duration(taken)}", file=sys.stderr, flush=True)
            if i:
                seconds[way].append(taken)
    alone, both = (Timing(tuple(s)) for s in seconds.values())
    details = {"one worker": f"{alone}; {cores['one']}", "two workers": f"{both}; {cores['two']}"}
    name = f"8 views over 8 tables, {kind.name}: two workers / one"
    return Figure(name, both.p50 / alone.p50, kind.limit, "×", details, spread=spread(both, alone))


@dataclass(frozen=True)
class _ChangedTable:
    """A table, the number of its rows, and one in fifty of them: those that are changed, without asking Spark again."""

    name: str
    rows: int
    some: pa.Table

    @classmethod
    def of(cls, wh: Warehouse, name: str) -> _ChangedTable:
        ((rows,),) = wh.sql(f"SELECT count(*) FROM {name}").collect()
        some = wh.sql(f"SELECT * FROM {name} WHERE pmod(hash(l_orderkey, l_linenumber), 50) = 0").toArrow()
        return cls(name, rows, some.sort_by([("l_orderkey", "ascending"), ("l_linenumber", "ascending")]))

    def change(self, wh: Warehouse, count: int, draw: random.Random) -> None:
        """Give so many rows another price, by their keys."""
        rows = self.some.take(draw.sample(range(self.some.num_rows), min(count, self.some.num_rows)))
        step = draw.randint(1, 1000)
        dearer = [price + step for price in rows.column("l_extendedprice").to_pylist()]
        with wh.transaction() as tx:
            tx.upsert(self.name, replaced(rows, "l_extendedprice", dearer))


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
