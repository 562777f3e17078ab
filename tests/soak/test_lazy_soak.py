"""Lazy maintenance under load, for FRESHVIEW_SOAK_SECONDS (default 1800); FRESHVIEW_SOAK_SEED replays its choices."""

from __future__ import annotations

import faulthandler
import os
import random
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from tests.soak.world import ALL, KEYS, TABLES, VIEWS, bag, build, require_same, seed, some_rows

import freshview
from freshview import Warehouse
from freshview.errors import WriteConflict
from freshview.events import Event

_WRITERS, _QUERIERS = 8, 2
_WORK, _REST = 20.0, 4.0  # seconds of load, then of quiet, in which the manager gets its turn
_SAMPLE, _TOLD = 3.0, 60.0  # seconds between two samples, and between two lines
_STALLED = 240.0  # seconds within which every thread finishes something

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
            by_manager = threading.current_thread().name.startswith("freshview-manager-")
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
        table = draw.choices(list(TABLES), (4, 10, 1))[0]
        kind = draw.random()
        if kind < 0.55:
            with self.wh.transaction() as tx:
                tx.upsert(table, some_rows(draw, table, 5))
        elif kind < 0.75:
            with self.wh.transaction() as tx:
                tx.delete(table, draw.sample(range(KEYS), draw.randint(1, 3)))
        elif kind < 0.85:
            self.wh.sql(f"UPDATE orders SET amount = amount + 1 WHERE customer = {draw.randrange(KEYS)}")
        elif kind < 0.95:
            with self.wh.transaction() as tx:
                tx.upsert("customer", some_rows(draw, "customer", 2))
                tx.upsert("orders", some_rows(draw, "orders", 3))
        else:
            self._look_inside(draw)

    def _look_inside(self, draw: random.Random) -> None:
        """A transaction sees its own writes through a view."""
        name = draw.choice(["by_region", "placed", "large"])
        with self.wh.transaction() as tx:
            tx.upsert("orders", some_rows(draw, "orders", 3))
            tx.sql(f"DELETE FROM customer WHERE id = {draw.randrange(KEYS)}")
            answer = bag(tx.sql(f"SELECT * FROM {name}"))
            require_same(f"{name} in a transaction", answer, bag(tx.sql(VIEWS[name].meaning)))
            tx.delete("orders", draw.sample(range(KEYS), 1))
        self.count("answers inside")

    def query(self, draw: random.Random) -> None:
        """An answer of a view, and the recomputation at its snapshot."""
        asked = {name: view for name, view in ALL.items() if view.filters}
        name = draw.choice(list(asked))
        some = f" WHERE {draw.choice(asked[name].filters)}" if draw.random() < 0.5 else ""
        stored, meant = f"SELECT * FROM {name}{some}", f"SELECT * FROM ({asked[name].meaning}){some}"
        # The main loop keeps no versions: an open transaction holds those that the frames below are still to read.
        with self._held():
            if draw.random() < 0.5:
                csn = self.wh.status().csn
                answer = bag(self.wh.sql(stored, as_of=csn))
                require_same(f"{stored} as of {csn}", answer, bag(self.wh.sql(meant, as_of=csn)))
            else:  # one statement: both sides are of one snapshot, the newest
                both = self.wh.sql(f"SELECT 0 side, * FROM ({stored}) UNION ALL SELECT 1, * FROM ({meant})").collect()
                sides = [Counter(tuple(r)[1:] for r in both if r[0] == side) for side in (0, 1)]
                require_same(f"{stored}, fresh", *sides)
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
    draw = random.Random(seed())
    with _opened(tmp_path / "warehouse", small_spark) as load:
        build(load.wh, draw, ALL)
        acts = [(f"writer-{i}", load.write) for i in range(_WRITERS)]
        acts += [(f"querier-{i}", load.query) for i in range(_QUERIERS)]
        for name, act in acts:
            load.start(name, random.Random(draw.random()), act)
        samples = _watch(load, seconds)
        load.end()
        load.wh.maintain()
        for name in ALL:
            report = load.wh.check(name, invariant=True)
            assert report.ok, report
        assert [view.pending_tasks for view in load.wh.status().views] == [0] * len(ALL)
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
