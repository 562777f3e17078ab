"""Processes that are killed while they maintain views: nothing is lost, nothing is applied twice."""

from __future__ import annotations

import multiprocessing
import random
import time
from itertools import pairwise
from multiprocessing.synchronize import Event
from pathlib import Path

from tests.catalog.view_world import World
from tests.effort import seed_of

from freshview.catalog.writer import LIFETIME

_KILLS = 20  # fifty, of a serving process, in tests/soak


def maintain(folder: Path, now: int, ready: Event) -> None:
    """What the process does until it is killed: one small job after the other."""
    process = World(folder, now).process()
    ready.set()
    while True:
        for view in (r for r in process.catalog.relations() if r.kind == "view"):
            process.jobs.bring(view, process.catalog.snapshot(), most_rows=3)


def test_kills_at_random_lose_nothing_and_apply_nothing_twice(tmp_path: Path) -> None:
    """Each process finds what the last one left: its lease, its pin, its half-done job. Their time has run out on the
    catalog's clock before it begins, so that it takes over rather than waits."""
    seed = seed_of(1)
    print(f"seed {seed}")
    draw = random.Random(seed)
    world = World(tmp_path)
    p = world.process()
    a, b = p.table("a"), p.table("b")
    low = p.view("low", a, b)
    views = (low, p.view("high", low, b), p.view("other", a))
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["tests.catalog.view_world"])

    def seen() -> int:
        return sum(p.views.frontier(v) for v in views)

    for kill in range(_KILLS):
        world.now += 2 * LIFETIME
        before = seen()
        for _ in range(4):
            p.put({draw.choice("ab"): {draw.randint(1, 20): draw.randint(1, 9) for _ in range(3)}})
        ready = processes.Event()
        child = processes.Process(target=maintain, args=(tmp_path, world.now, ready), daemon=True)
        child.start()
        assert ready.wait(60)
        until = time.monotonic() + 60
        while kill % 2 and seen() == before:  # every other one ends a job first, however slow the machine is
            assert time.monotonic() < until, "no job came to its end"
            time.sleep(0.01)
        time.sleep(draw.uniform(0, 0.6))  # a job takes a good part of that
        p.put({"a": {draw.randint(1, 20): 1}})
        child.kill()
        child.join()
    world.now += 2 * LIFETIME
    newest = p.catalog.snapshot()
    for view in views:
        p.jobs.bring(view, newest)
        assert p.stored(view, newest) == p.defined(view, newest)
        done = [(j.from_csn, j.to_csn) for j in p.views.history(view) if j.error is None]
        assert all(end <= start for (_, end), (start, _) in pairwise(done)), done
    world.close()
