"""Lazy maintenance under load, for long.

FRESHVIEW_SOAK_SECONDS (default 1800) is how long threads write and query; FRESHVIEW_KILLS (default 50) how often the
serving process is killed in the middle of a job; FRESHVIEW_SOAK_SEED replays the choices of a run.
"""

from __future__ import annotations

import faulthandler
import os
import random
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta, tzinfo
from itertools import pairwise
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import sqlalchemy as sa

import freshview
from freshview import Warehouse
from freshview.catalog import tables as t
from freshview.catalog.views import ViewCatalog
from freshview.catalog.writer import LIFETIME
from freshview.errors import WriteConflict
from freshview.events import Event

_KEYS = 300  # of each table
_WRITERS, _QUERIERS = 8, 2
_WORK, _REST = 20.0, 4.0  # seconds of load, then of quiet, in which the manager gets its turn
_SAMPLE, _TOLD = 3.0, 60.0  # seconds between two samples, and between two lines
_STALLED = 240.0  # seconds within which every thread finishes something
_SERVER_STARTS = 180.0  # seconds within which a server begins a job

_TABLES = {
    "customer": "id INT, region STRING, PRIMARY KEY (id)",
    "orders": "id INT, customer INT, day INT, amount INT, PRIMARY KEY (id)",
    "item": "id INT, orders INT, qty INT, PRIMARY KEY (id)",
}
_BY_REGION = (
    "SELECT c.region, count(*) n, sum(o.amount) total, max(o.amount) best "
    "FROM orders o JOIN customer c ON o.customer = c.id GROUP BY c.region"
)
_BY_DAY = "SELECT day, count(*) n, min(amount) least FROM orders GROUP BY day"


@dataclass(frozen=True)
class View:
    """A view, and what it means in terms of the tables alone."""

    definition: str
    meaning: str
    filters: tuple[str, ...]  # what queries may ask of it
    properties: str = ""


def _plain(definition: str, *filters: str, properties: str = "") -> View:
    return View(definition, definition, filters, properties)


_VIEWS = {
    "by_region": _plain(_BY_REGION, "region = 'r3'", "n > 20"),
    "placed": _plain(
        "SELECT c.id, c.region, o.id AS number, o.amount FROM customer c LEFT JOIN orders o ON o.customer = c.id",
        "region = 'r5'",
        "number IS NULL",
        "id < 40",
    ),
    "large": View(
        "SELECT region, total, n FROM by_region WHERE n > 10",
        f"SELECT region, total, n FROM ({_BY_REGION}) WHERE n > 10",
        ("region = 'r1'",),
    ),
    "by_day": _plain(_BY_DAY),  # nobody asks for it: it is the manager's
}
_EAGER = {
    "quantities": _plain(
        "SELECT orders, sum(qty) q, count(*) n FROM item GROUP BY orders",
        "orders < 30",
        properties="TBLPROPERTIES ('maintenance'='eager') ",
    )
}
_ALL = {**_VIEWS, **_EAGER}


def _seed() -> int:
    seed = int(os.environ.get("FRESHVIEW_SOAK_SEED", random.SystemRandom().randrange(10**6)))
    print(f"FRESHVIEW_SOAK_SEED={seed}", flush=True)
    return seed


def _row(draw: random.Random, table: str, key: int) -> dict[str, Any]:
    match table:
        case "customer":
            return {"id": key, "region": f"r{draw.randrange(8)}"}
        case "orders":
            customer = draw.randrange(_KEYS) if draw.random() < 0.9 else None
            return {"id": key, "customer": customer, "day": draw.randrange(30), "amount": draw.randrange(1000)}
        case _:
            return {"id": key, "orders": draw.randrange(_KEYS), "qty": draw.randrange(9)}


def _rows(draw: random.Random, table: str, most: int) -> list[dict[str, Any]]:
    """Up to so many rows with different keys."""
    return [_row(draw, table, key) for key in draw.sample(range(_KEYS), draw.randint(1, most))]


def _build(wh: Warehouse, draw: random.Random, views: dict[str, View]) -> None:
    """Full tables, and views over them."""
    for table, columns in _TABLES.items():
        wh.sql(f"CREATE TABLE {table} ({columns})")
        with wh.transaction() as tx:
            tx.upsert(table, [_row(draw, table, key) for key in range(_KEYS)])
    for name, view in views.items():
        wh.sql(f"CREATE MATERIALIZED VIEW {name} {view.properties}AS {view.definition}")


def _bag(frame: Any) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row) for row in frame.collect())


def _require_same(told: str, answer: Counter[Any], recomputed: Counter[Any]) -> None:
    assert answer == recomputed, f"{told}: missing {recomputed - answer}, extra {answer - recomputed}"


@pytest.fixture(scope="session")
def small_spark(request: pytest.FixtureRequest) -> Any:
    """A session whose heap is small, so that what it does not give back shows."""
    os.environ.setdefault("SPARK_DRIVER_MEMORY", "1g")
    return request.getfixturevalue("spark")


# -- threads that write and query ------------------------------------------------------------------


class Stalled(AssertionError):
    """A thread has made no progress for long."""


@dataclass
class Load:
    """The threads of a soak: what they share, how far they are, and what went wrong."""

    wh: Warehouse
    go: threading.Event = field(default_factory=threading.Event)  # cleared while all rest
    over: threading.Event = field(default_factory=threading.Event)
    seen: dict[str, float] = field(default_factory=dict)  # when each thread last finished something
    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    threads: list[threading.Thread] = field(default_factory=list)
    _guard: threading.Lock = field(default_factory=threading.Lock)

    def count(self, what: str) -> None:
        with self._guard:
            self.counts[what] += 1

    def listen(self, event: Event) -> None:
        """Jobs by who ran them, and what failed in the background."""
        if event.name == "job.done":
            by_manager = threading.current_thread().name == "freshview-manager"
            self.count("jobs of the manager" if by_manager else "jobs of statements")
        elif event.name in ("background.failed", "checkpoint.failed", "manager.failed", "job.failed"):
            self.wrong.append(f"{event.name}: {event.details}")

    def start(self, name: str, draw: random.Random, act: Callable[[random.Random], None]) -> None:
        def run() -> None:
            try:
                while not self.over.is_set():
                    if self.go.wait(1):
                        act(draw)
                        self.over.wait(draw.uniform(0, 1))
                    self.seen[name] = time.monotonic()
            except BaseException as error:
                self.wrong.append(f"{name}: {type(error).__name__}: {error}")
                raise

        self.seen[name] = time.monotonic()
        self.threads.append(threading.Thread(target=run, name=name, daemon=True))
        self.threads[-1].start()

    def end(self) -> None:
        """Everybody finishes what is at hand."""
        self.over.set()
        until = time.monotonic() + _STALLED
        for thread in self.threads:
            thread.join(max(0.0, until - time.monotonic()))
        self.require_no_trouble([thread.name for thread in self.threads if thread.is_alive()])

    def stalled(self) -> list[str]:
        return [name for name, at in self.seen.items() if time.monotonic() - at > _STALLED]

    def require_no_trouble(self, stalled: list[str]) -> None:
        """If somebody does not come back, it is told where all threads stand."""
        if stalled:
            faulthandler.dump_traceback(2, all_threads=True)
            raise Stalled(f"no progress of {stalled} within {_STALLED} s; so far {self.wrong}")
        assert not self.wrong, self.wrong

    # -- what they do ------------------------------------------------------------------------------

    def write(self, draw: random.Random) -> None:
        """A small transaction; one that lost a race is made again."""
        state = draw.getstate()
        while not self.over.is_set():
            draw.setstate(state)
            try:
                self._transaction(draw)
            except WriteConflict:
                self.count("conflicts")
                time.sleep(random.uniform(0, 0.2))  # so that two losers do not meet again
            else:
                self.count("commits")
                return

    def _transaction(self, draw: random.Random) -> None:
        table = draw.choices(list(_TABLES), (4, 10, 1))[0]
        kind = draw.random()
        if kind < 0.55:
            with self.wh.transaction() as tx:
                tx.upsert(table, _rows(draw, table, 5))
        elif kind < 0.75:
            with self.wh.transaction() as tx:
                tx.delete(table, draw.sample(range(_KEYS), draw.randint(1, 3)))
        elif kind < 0.85:
            self.wh.sql(f"UPDATE orders SET amount = amount + 1 WHERE customer = {draw.randrange(_KEYS)}")
        elif kind < 0.95:
            with self.wh.transaction() as tx:
                tx.upsert("customer", _rows(draw, "customer", 2))
                tx.upsert("orders", _rows(draw, "orders", 3))
        else:
            self._look_inside(draw)

    def _look_inside(self, draw: random.Random) -> None:
        """A transaction sees its own writes through a view."""
        name = draw.choice(["by_region", "placed", "large"])
        with self.wh.transaction() as tx:
            tx.upsert("orders", _rows(draw, "orders", 3))
            tx.sql(f"DELETE FROM customer WHERE id = {draw.randrange(_KEYS)}")
            answer = _bag(tx.sql(f"SELECT * FROM {name}"))
            _require_same(f"{name} in a transaction", answer, _bag(tx.sql(_VIEWS[name].meaning)))
            tx.delete("orders", draw.sample(range(_KEYS), 1))
        self.count("answers inside")

    def query(self, draw: random.Random) -> None:
        """An answer of a view, and the recomputation at its snapshot."""
        asked = {name: view for name, view in _ALL.items() if view.filters}
        name = draw.choice(list(asked))
        some = f" WHERE {draw.choice(asked[name].filters)}" if draw.random() < 0.5 else ""
        stored, meant = f"SELECT * FROM {name}{some}", f"SELECT * FROM ({asked[name].meaning}){some}"
        # The main loop keeps no versions: an open transaction holds those that the frames below are still to read.
        with self._held():
            if draw.random() < 0.5:
                csn = self.wh.status().csn
                answer = _bag(self.wh.sql(stored, as_of=csn))
                _require_same(f"{stored} as of {csn}", answer, _bag(self.wh.sql(meant, as_of=csn)))
            else:  # one statement: both sides are of one snapshot, the newest
                both = self.wh.sql(f"SELECT 0 side, * FROM ({stored}) UNION ALL SELECT 1, * FROM ({meant})").collect()
                sides = [Counter(tuple(r)[1:] for r in both if r[0] == side) for side in (0, 1)]
                _require_same(f"{stored}, fresh", *sides)
        self.count("answers")

    @contextmanager
    def _held(self) -> Iterator[None]:
        holder = self.wh.transaction()
        try:
            yield
        finally:
            holder.rollback()


# -- what has to stay flat -------------------------------------------------------------------------


@dataclass(frozen=True)
class Sample:
    """What a process uses. Memory in MiB; 0 where there is no /proc."""

    python: float
    java: float
    files: int
    tasks: int


def _resident(pid: int | str) -> float:
    with suppress(OSError):
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
    return 0.0


def _java_children() -> list[int]:
    """Processes of Java that this one has started."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            head, _, rest = stat.read_text().rpartition(")")
            if head.endswith("(java") and int(rest.split()[1]) == os.getpid():
                found.append(int(stat.parent.name))
    return found


def _sample(wh: Warehouse) -> Sample:
    files = sum(len(names) for _, _, names in os.walk(wh.path))
    tasks = sum(view.pending_tasks for view in wh.status().views)
    return Sample(_resident("self"), sum(map(_resident, _java_children())), files, tasks)


def _require_flat(samples: list[Sample]) -> None:
    """Law: the last third of a run needs no more than the middle third."""
    third = len(samples) // 3
    for what, slack in {"python": 64, "java": 256, "files": 100, "tasks": 200}.items():
        values = [getattr(sample, what) for sample in samples]
        middle, last = statistics.median(values[third : 2 * third]), statistics.median(values[2 * third :])
        print(f"{what}: median {middle:.0f} in the middle third, {last:.0f} in the last", flush=True)
        assert last <= 1.3 * middle + slack, f"{what} grows: {values[:: max(1, len(values) // 60)]}"


# -- the soak --------------------------------------------------------------------------------------


def test_every_answer_is_right_under_load(tmp_path: Path, small_spark: Any) -> None:
    """Law: 8 threads write, 2 query, the manager and checkpoints run, versions are removed: every answer equals the
    recomputation at its snapshot, nobody waits for ever, and memory, files and tasks do not grow."""
    seconds = float(os.environ.get("FRESHVIEW_SOAK_SECONDS", "1800"))
    draw = random.Random(_seed())
    with _opened(tmp_path / "warehouse", small_spark) as load:
        _build(load.wh, draw, _ALL)
        acts = [(f"writer-{i}", load.write) for i in range(_WRITERS)]
        acts += [(f"querier-{i}", load.query) for i in range(_QUERIERS)]
        for name, act in acts:
            load.start(name, random.Random(draw.random()), act)
        samples = _watch(load, seconds)
        load.end()
        load.wh.maintain()
        for name in _ALL:
            report = load.wh.check(name)
            assert report.ok, report
        assert [view.pending_tasks for view in load.wh.status().views] == [0] * len(_ALL)
    print(dict(load.counts), flush=True)
    for what in ("commits", "answers", "answers inside"):
        assert load.counts[what], f"no {what}"
    if seconds >= 900:  # a task that has waited for five minutes is maintained however busy the machine is
        assert load.counts["jobs of the manager"]
    _require_flat(samples)


@contextmanager
def _opened(folder: Path, spark: Any) -> Iterator[Load]:
    """A warehouse with its manager; left open if somebody hangs, because closing it would hang too."""
    wh = freshview.connect(folder, spark=spark, background=True)
    load = Load(wh)
    wh.events.listen(load.listen)
    try:
        yield load
    except Stalled:
        raise
    except BaseException:
        with suppress(AssertionError):
            load.end()
        wh.close()
        raise
    wh.close()


def _watch(load: Load, seconds: float) -> list[Sample]:
    """Load and rest in turns, old versions removed, samples taken, until the time is over or something is wrong."""
    samples: list[Sample] = []
    begun = time.monotonic()
    told, vacuumed = begun, begun
    while (now := time.monotonic()) - begun < seconds:
        if (now - begun) % (_WORK + _REST) < _WORK:
            load.go.set()
        else:
            load.go.clear()
        if now - vacuumed > 15:
            vacuumed = now
            load.wh.vacuum(timedelta(0))
        samples.append(_sample(load.wh))
        if now - told > _TOLD:
            told = now
            print(f"{now - begun:.0f} s: {samples[-1]}, {dict(load.counts)}", flush=True)
        load.require_no_trouble(load.stalled())
        time.sleep(_SAMPLE)
    return samples


# -- a server that is killed -----------------------------------------------------------------------


Rows = dict[str, dict[int, dict[str, Any]]]  # by table and key


class Site:
    """A warehouse that the test writes to, without Spark, while a server maintains its views and is killed."""

    def __init__(self, wh: Warehouse, rows: Rows, scratch: Path, draw: random.Random) -> None:
        """`rows` are those that have to be there; they are kept up to date."""
        self.wh = wh
        self._rows = rows
        self._scratch = scratch
        self._draw = draw

    def commit(self) -> None:
        """A small transaction; nobody else writes, so it does not lose a race."""
        put = {table: _rows(self._draw, table, 4) for table in self._draw.sample(list(_TABLES), 2)}
        gone = self._draw.sample(range(_KEYS), 2)
        with self.wh.transaction() as tx:
            for table, rows in put.items():
                tx.upsert(table, rows)
            tx.delete("orders", gone)
        for table, rows in put.items():
            self._rows[table].update({row["id"]: row for row in rows})
        for key in gone:
            self._rows["orders"].pop(key, None)

    def hurry(self, zone: tzinfo) -> None:
        """A near deadline, by the views' clocks: a server does not wait until a busy machine is quiet."""
        deadline = datetime.now(zone) + timedelta(minutes=15)
        for name in _VIEWS:
            self.wh.sql(f"ALTER MATERIALIZED VIEW {name} SET TBLPROPERTIES ('deadline'='{deadline:%H:%M}')")

    def serve_and_kill(self) -> bool:
        """Start a server on pending tasks, kill it some time after it has begun a job; True if a job was under way."""
        command = [sys.executable, "-m", "freshview.cli.main", "serve", str(self.wh.path)]
        environment = {**os.environ, "SPARK_DRIVER_MEMORY": "1g", "TMPDIR": str(self._scratch)}
        with (self._scratch / "serve.log").open("w") as log:
            server = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        try:
            self._wait_for_job(server)
            time.sleep(self._draw.uniform(0, 4))
            if self._draw.random() < 0.5:
                self.commit()
        finally:
            server.send_signal(signal.SIGKILL)  # its Java ends by itself when the pipe to it breaks
            server.wait()
        under_way = bool(ViewCatalog(self.wh._catalog).in_progress())
        self._let_time_pass(server.pid)
        return under_way

    def _wait_for_job(self, server: subprocess.Popen[bytes]) -> None:
        until = time.monotonic() + _SERVER_STARTS
        while not ViewCatalog(self.wh._catalog).in_progress():
            assert server.poll() is None, f"it ended: {(self._scratch / 'serve.log').read_text()}"
            assert time.monotonic() < until, f"no job began: {(self._scratch / 'serve.log').read_text()}"
            time.sleep(0.02)

    def _let_time_pass(self, dead: int) -> None:
        """Move back when the pins and leases of the dead process end: what two minutes on the catalog's clock do."""
        with self.wh._catalog.database.write() as c:
            for table in (t.snapshots, t.leases):
                theirs = table.c.owner.like(f"%:{dead}:%")
                c.execute(table.update().where(theirs).values(expires_at=table.c.expires_at - 2 * LIFETIME))


def test_killing_the_server_loses_nothing_and_applies_nothing_twice(tmp_path: Path, small_spark: Any) -> None:
    """Law: whenever the server dies in a job, the next one goes on, and in the end every view is its definition."""
    kills = int(os.environ.get("FRESHVIEW_KILLS", "50"))
    draw = random.Random(_seed())
    folder, scratch = tmp_path / "warehouse", tmp_path / "scratch"
    scratch.mkdir()
    with freshview.connect(folder, spark=small_spark) as wh:
        _build(wh, draw, _VIEWS)
        rows = {name: {r["id"]: r.asDict() for r in wh.sql(f"SELECT * FROM {name}").collect()} for name in _TABLES}
    with freshview.connect(folder) as writer:
        site = Site(writer, rows, scratch, draw)
        _kill_servers(site, kills, draw, ZoneInfo(small_spark.conf.get("spark.sql.session.timeZone")))
    with freshview.connect(folder, spark=small_spark) as wh:
        wh.maintain()
        for name in _VIEWS:
            report = wh.check(name)
            assert report.ok, report
            _require_no_overlap(wh, name)
        for table, expected in rows.items():
            found = _bag(wh.sql(f"SELECT * FROM {table}"))
            _require_same(table, found, Counter(tuple(row.values()) for row in expected.values()))
        wh.vacuum()
        assert _left_behind(wh) == [0, 0]


def _kill_servers(site: Site, kills: int, draw: random.Random, zone: tzinfo) -> None:
    in_a_job = started = 0
    while in_a_job < kills:
        assert started < 4 * kills + 10, f"only {in_a_job} of {started} servers were killed in a job"
        for _ in range(draw.randint(1, 4)):
            site.commit()
        site.hurry(zone)
        in_a_job += site.serve_and_kill()
        started += 1
        if draw.random() < 0.3:
            site.wh.vacuum(timedelta(0))  # takes nothing away that the next server needs
        print(f"killed {started} servers, {in_a_job} of them in a job", flush=True)


def _left_behind(wh: Warehouse) -> list[int]:
    """Pins and leases, of anybody."""
    with wh._catalog.database.read() as c:
        return [c.execute(sa.select(sa.func.count()).select_from(x)).scalar_one() for x in (t.snapshots, t.leases)]


def _require_no_overlap(wh: Warehouse, view: str) -> None:
    """Law: no commit is in two jobs of a view."""
    done = [(job.from_csn, job.to_csn) for job in wh.history(view) if job.error is None]
    assert done, f"no job of {view}"
    assert all(end <= start for (_, end), (start, _) in pairwise(done)), (view, done)
