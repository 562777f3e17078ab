"""Processes that are killed while they maintain views: nothing is lost, nothing is applied twice."""

from __future__ import annotations

import json
import os
import random
import signal
from itertools import pairwise
from multiprocessing.synchronize import Event
from pathlib import Path

import sqlalchemy as sa
from tests.catalog.view_world import World
from tests.effort import examples, seed_of
from tests.forks import forks, unflushed

from freshview.catalog.rewritings import RewritingCatalog
from freshview.catalog.writer import LIFETIME

_KILLS = 10  # fifty, of a serving process, in tests/soak
_MOMENTS = 1000  # a round of jobs has about so many: before and after a statement, at the end of a transaction


def maintain(folder: Path, now: int, moments: int, ready: Event, *, is_after_a_job: bool) -> None:
    """What the process does until it is killed, by itself at a moment of its catalog: one small job after another, of
    one view or of several in one refresh."""
    unflushed()
    process = World(folder, now).process()
    views = [r for r in process.catalog.relations() if r.kind == "view"]
    left = moments

    def count(*_: object) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    while is_after_a_job:
        is_after_a_job = not any(process.jobs.bring(v, process.catalog.snapshot(), most_rows=3) for v in views)
    for moment in ("before_cursor_execute", "after_cursor_execute", "commit"):
        sa.event.listen(process.catalog.database._engine, moment, count)
    ready.set()
    while True:
        process.groups.bring(views, process.catalog.snapshot(), most_rows=3)  # level by level
        for view in views:
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
    other, auxiliary = p.view("other", a), p.view("auxiliary", a)
    rewriting = {"text": "", "sources": {"auxiliary": {"id": auxiliary.id, "columns": ["k", "v"]}}}
    RewritingCatalog(p.views).attach(other, json.dumps(rewriting), [auxiliary])
    views = (low, p.view("high", low, b), other, auxiliary)
    processes = forks()
    for kill in range(examples(_KILLS)):
        world.now += 2 * LIFETIME
        for _ in range(4):
            p.put({draw.choice("ab"): {draw.randint(1, 20): draw.randint(1, 9) for _ in range(3)}})
        ready = processes.Event()
        child = processes.Process(
            target=maintain,
            args=(tmp_path, world.now, draw.randint(1, _MOMENTS // (1 + kill % 2)), ready),
            kwargs={"is_after_a_job": bool(kill % 2)},
            daemon=True,
        )
        child.start()
        assert ready.wait(60)
        p.put({"a": {draw.randint(1, 20): 1}})
        child.join(60)
        assert child.exitcode == -signal.SIGKILL
    world.now += 2 * LIFETIME
    newest = p.catalog.snapshot()
    for view in views:
        p.jobs.bring(view, newest)
        assert p.stored(view, newest) == p.defined(view, newest)
        done = [(j.from_csn, j.to_csn) for j in p.views.history(view) if j.error is None]
        assert all(end <= start for (_, end), (start, _) in pairwise(done)), done
    world.close()
