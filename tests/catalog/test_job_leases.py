"""Jobs: one per view at a time across processes, in commit order, cut where others read, right whatever happens."""

from __future__ import annotations

import os
import random
import signal
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import NoReturn

import pyarrow as pa
import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.catalog.view_world import World, waits
from tests.conftest import PostgresServer
from tests.effort import examples
from tests.forks import forks, unflushed

from freshview.catalog import tables as t
from freshview.catalog import writer
from freshview.catalog.activity import ActivityCatalog
from freshview.catalog.records import DataFile, Frontier, Pin, Relation, Task
from freshview.catalog.views import ViewCatalog
from freshview.catalog.writer import LIFETIME, checkpoint_lease
from freshview.errors import (
    Cancelled,
    CatalogUnavailable,
    Crowded,
    FreshviewError,
    QueryFailed,
    SparkFailed,
    StorageUnavailable,
    TypeMismatch,
    WriteConflict,
)
from freshview.interruption import Interruption
from freshview.refresh.jobs import is_transient
from freshview.schedule.policies import candidates, last_csn
from freshview.storage import segments
from freshview.storage.store import Storage


def test_a_job_takes_all_tasks_and_tells_of_itself(world: World) -> None:
    p = world.process()
    view = p.view("v", p.table("a"))
    c0 = p.views.frontier(view)
    for v in range(5):
        csn = p.put({"a": {1: v, 10 + v: v}})
    (job,) = p.jobs.bring(view, csn)
    assert p.stored(view, csn) == p.defined(view, csn)
    assert (job.from_csn, job.to_csn, job.tasks, job.rows_in, job.delta_rows, job.condensed) == (c0, csn, 5, 10, 6, 4)
    assert (job.view_rows, job.error, set(job.phases)) == (6, None, {"wait", "sources", "compute", "store"})
    assert p.views.history(view) == [job]
    assert p.jobs.bring(view, csn) == []


def test_what_is_pending_is_asked_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of several jobs asks once: a job does not ask again for tasks that the one before it took."""
    p = world.process()
    view = p.view("v", p.table("a"))
    for value in range(4):
        csn = p.put({"a": {value: value, 9: value}})
    asked: list[str] = []
    pending = ViewCatalog.pending

    def counted(self: ViewCatalog, view: Relation, upto: int) -> tuple[Frontier, list[Task]]:
        asked.append(view.name)
        return pending(self, view, upto)

    monkeypatch.setattr(ViewCatalog, "pending", counted)
    assert [job.tasks for job in p.jobs.bring(view, csn, most_rows=4)] == [2, 2]
    assert asked == ["v"]
    assert p.stored(view, csn) == p.defined(view, csn)


def test_what_a_job_publishes_ends_its_turn_and_its_pin(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """One transaction does all; a job that publishes nothing gives both up by itself."""
    p = world.process()
    view = p.view("v", p.table("a"))

    def held() -> list[str]:
        with p.catalog.database.read() as c:
            return [id_ for table in (t.leases, t.snapshots) for id_ in c.execute(sa.select(table.c.id)).scalars()]

    given_up: list[str] = []
    release, drop_leases = writer.Catalog.release, writer.Catalog.drop_leases

    def noted_pin(catalog: writer.Catalog, pin: Pin) -> None:
        given_up.append("pin")
        release(catalog, pin)

    def noted_lease(catalog: writer.Catalog, ids: Sequence[str]) -> set[str]:
        given_up.append("lease")
        return drop_leases(catalog, ids)

    monkeypatch.setattr(writer.Catalog, "release", noted_pin)
    monkeypatch.setattr(writer.Catalog, "drop_leases", noted_lease)
    csn = p.put({"a": {1: 1}})
    given_up.clear()
    p.before = lambda *_: given_up.extend([] if len(held()) == 2 else ["nothing was held"])
    assert len(p.jobs.bring(view, csn)) == 1
    assert (given_up, held()) == ([], [])
    csn = p.put({"a": {1: 2}})
    given_up.clear()

    def fail(*_: object) -> NoReturn:
        raise QueryFailed("view v", "fails", "Try again.")

    p.before = fail
    with pytest.raises(QueryFailed):
        p.jobs.bring(view, csn)
    assert (given_up, held()) == (["pin", "lease"], [])


def test_who_finds_a_job_in_progress_waits_for_it(world: World) -> None:
    """Law: the second runs no job; it goes on as soon as the first has moved the frontier."""
    ours, theirs = world.process(), world.process()
    view = ours.view("v", ours.table("a"))
    csn = ours.put({"a": {1: 1}})
    begun, go = threading.Event(), threading.Event()

    def hold(*_: object) -> None:
        begun.set()
        assert go.wait(10)

    ours.before = hold
    thread = threading.Thread(target=ours.jobs.bring, args=(view, csn))
    thread.start()
    assert begun.wait(10)
    waits: list[int] = []

    def let_go() -> None:
        waits.append(1)
        if len(waits) == 3:
            go.set()
            thread.join()

    world.while_waiting = let_go
    assert theirs.jobs.bring(view, csn) == []
    assert len(waits) == 3
    assert (len(ours.ran), theirs.ran) == (1, [])
    assert theirs.stored(view, csn) == theirs.defined(view, csn)


@pytest.mark.parametrize("in_background", [False, True])
def test_a_statement_raises_the_job_of_its_own_process_that_it_waits_for(world: World, in_background: bool) -> None:
    """Law: whenever that job began, and though nobody told the manager; work in the background raises no other."""
    p = world.process()
    view = p.view("v", p.table("a"))
    csn = p.put({"a": {1: 1}})
    begun, go, job = threading.Event(), threading.Event(), Interruption(gives_way=True)

    def hold(*_: object) -> None:
        begun.set()
        assert go.wait(10)

    def in_its_thread(work: Interruption) -> None:
        with work.here():
            p.jobs.bring(view, csn)

    p.before = hold
    asked: list[Interruption | None] = []
    hurry = p.jobs.turns._hurry

    def noted(view: Relation) -> None:
        hurry(view)
        asked.append(p.jobs.turns._working.get(view.id))
        go.set()

    p.jobs.turns._hurry = noted  # type: ignore[method-assign]
    runs = threading.Thread(target=in_its_thread, args=(job,))
    runs.start()
    assert begun.wait(10)
    waits = threading.Thread(target=in_its_thread, args=(Interruption(gives_way=in_background),))
    waits.start()
    for thread in (waits, runs):
        thread.join(10)
    assert asked[0] is job
    assert job.gives_way is in_background
    assert p.stored(view, csn) == p.defined(view, csn)
    assert len(p.ran) == 1


def test_who_waits_for_a_turn_in_its_own_process_can_be_stopped(world: World) -> None:
    """Law: a background job that waits for a statement's turn gives way, and closing does not wait for that turn."""
    p = world.process()
    view = p.view("v", p.table("a"))
    csn = p.put({"a": {1: 1}})
    waiting = Interruption(gives_way=True)

    def wait() -> None:
        with waiting.here(), pytest.raises(Cancelled):
            p.jobs.bring(view, csn)

    with p.jobs.turns.turn(view, Frontier(p.views.frontier(view)), wait=False) as ours, ThreadPoolExecutor(1) as pool:
        assert ours
        stopped = pool.submit(wait)
        waiting.request()
        stopped.result(timeout=10)
    assert [task.csn for task in p.views.tasks()] == [csn]


def test_a_dead_owner_is_taken_over_from_when_its_lease_expires(world: World) -> None:
    """Law: on the catalog's clock, and not before."""
    dead, alive = world.process(), world.process()
    view = dead.view("v", dead.table("a"))
    csn = dead.put({"a": {1: 1}})
    assert dead.catalog.lease(view.id, "job", f"job-{view.id}") is not None
    begun = world.now
    (job,) = alive.jobs.bring(view, csn)
    assert LIFETIME <= world.now - begun < LIFETIME + 1_000_000
    assert job.phases["wait"] >= LIFETIME / 1e6
    assert alive.stored(view, csn) == alive.defined(view, csn)


def _lease(folder: Path, now: int, view_id: int) -> None:
    """Take the leases on a view's next job and on its checkpoint, and be killed."""
    unflushed()
    catalog = World(folder, now).process().catalog
    assert catalog.lease(view_id, "job", f"job-{view_id}") is not None
    assert catalog.lease(view_id, "files", checkpoint_lease(view_id)) is not None
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_owner_on_this_machine_is_taken_over_from_at_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: of its leases on jobs, which only save work; not where its process id may mean another process."""
    p = world.process()
    view = p.view("v", p.table("a"))
    csn = p.put({"a": {1: 1}})
    killed = forks().Process(target=_lease, args=(world.folder, world.now, view.id), daemon=True)
    killed.start()
    killed.join(60)
    assert killed.exitcode == -signal.SIGKILL
    begun = world.now
    for space in ("", "another one"):
        with monkeypatch.context() as elsewhere:
            elsewhere.setattr(writer, "process_space", lambda space=space: space)
            assert p.catalog.lease(view.id, "job", f"job-{view.id}", inherits=True) is None
    assert p.catalog.lease(view.id, "files", checkpoint_lease(view.id)) is None
    assert len(p.jobs.bring(view, csn)) == 1
    assert world.now == begun
    assert p.stored(view, csn) == p.defined(view, csn)


def test_a_lease_that_could_not_be_given_up_is_not_held_for_ever(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Law: the heartbeat ends pins and leases whose end the catalog did not take, and prolongs the others."""
    p, other = world.process(), world.process()
    view = p.view("v", p.table("a"))
    pin, kept = p.catalog.begin("query"), p.catalog.begin("query")
    assert p.catalog.lease(view.id, "job", f"job-{view.id}") is not None
    with monkeypatch.context() as patch:
        patch.setattr(p.catalog.database, "write", _unavailable)
        with pytest.raises(CatalogUnavailable):
            p.catalog.drop_leases([f"job-{view.id}"])
        with pytest.raises(CatalogUnavailable):
            p.catalog.release(pin)
    assert other.catalog.lease(view.id, "job", f"job-{view.id}") is None
    p.catalog.heartbeat()
    assert other.catalog.lease(view.id, "job", f"job-{view.id}") is not None
    assert p.views.snapshots(-1, kept.csn + 1) == [kept.csn]
    p.catalog.release(kept)
    assert p.views.snapshots(-1, kept.csn + 1) == []


def test_a_lease_that_could_not_be_given_up_can_be_taken_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Law: what is taken again is no longer given up, and the heartbeat leaves it."""
    p, other = world.process(), world.process()
    view = p.view("v", p.table("a"))
    for _ in range(2):
        assert p.catalog.lease(view.id, "job", f"job-{view.id}") is not None
        with monkeypatch.context() as patch:
            patch.setattr(p.catalog.database, "write", _unavailable)
            with pytest.raises(CatalogUnavailable):
                p.catalog.drop_leases([f"job-{view.id}"])
    assert p.catalog.lease(view.id, "job", f"job-{view.id}") is not None
    p.catalog.heartbeat()
    assert other.catalog.lease(view.id, "job", f"job-{view.id}") is None


def _unavailable(**_: object) -> NoReturn:
    raise CatalogUnavailable("catalog", "the server restarts", "Try again.")


def test_who_cannot_take_back_that_it_waits_does_its_job(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Law: the lease that it has waited for is not lost."""
    ours, theirs = world.process(), world.process()
    view = ours.view("v", ours.table("a"))
    csn = ours.put({"a": {1: 1}})
    lease = theirs.catalog.lease(view.id, "job", f"job-{view.id}")
    assert lease is not None

    def let_go() -> None:
        theirs.catalog.drop_leases([lease.id])

    world.while_waiting = let_go
    monkeypatch.setattr(ActivityCatalog, "waited", lambda *_: _unavailable())
    assert len(ours.jobs.bring(view, csn)) == 1
    assert theirs.catalog.lease(view.id, "job", f"job-{view.id}") is not None


@pytest.mark.postgres
def test_what_changes_rows_of_many_views_takes_its_turn_with_commits(tmp_path: Path, postgres: PostgresServer) -> None:
    """Law: who changes several frontiers or uses holds the clock first, so that two of them cannot deadlock; and who
    notes a fact of a view, so that no other note is lost."""
    world = World(tmp_path, url=postgres.new_database())
    p = world.process()
    view = p.view("v", p.table("a"))
    changes: list[Callable[[], object]] = [
        lambda: p.views.advance(p.catalog.snapshot()),
        lambda: p.views.note_uses({view.id: (1, 1)}),
        lambda: p.views.note(view, "a fact", "1"),
    ]
    for change in changes:
        with ThreadPoolExecutor(1) as pool, p.catalog.database.write() as commit:
            p.catalog.database.lock_clock(commit)
            changed = pool.submit(change)
            while not waits(p.catalog.database):
                assert not changed.done()
        changed.result()
    assert p.views.uses()[view.id].uses == 1
    world.close()


@pytest.mark.postgres
def test_a_heartbeat_waits_for_no_commit(tmp_path: Path, postgres: PostgresServer) -> None:
    """Law: a commit that deletes leases and pins, in any order, and a heartbeat do not wait for each other."""
    world = World(tmp_path, url=postgres.new_database())
    p = world.process()
    pins = [p.catalog.begin("query") for _ in range(2)]
    with ThreadPoolExecutor(1) as pool, p.catalog.database.write() as c:
        c.execute(t.snapshots.delete().where(t.snapshots.c.id == pins[0].id))
        pool.submit(p.catalog.heartbeat).result(timeout=20)
        c.execute(t.snapshots.delete().where(t.snapshots.c.id == pins[1].id))
    world.close()


def test_a_live_owner_is_waited_for_but_not_for_ever(world: World) -> None:
    slow, waiting = world.process(), world.process()
    view = slow.view("v", slow.table("a"))
    csn = slow.put({"a": {1: 1}})
    assert slow.catalog.lease(view.id, "job", f"job-{view.id}") is not None
    world.while_waiting = slow.catalog.heartbeat
    with pytest.raises(Crowded, match="others kept maintaining it"):
        waiting.jobs.bring(view, csn)
    assert waiting.ran == []
    assert waiting.jobs.step(view, csn) is None


def test_a_job_that_lost_its_lease_and_the_race_is_discarded(world: World) -> None:
    """Law: the compare-and-set decides; nothing is applied twice."""
    ours, theirs = world.process(), world.process()
    view = ours.view("v", ours.table("a"))
    csn = ours.put({"a": {1: 1, 2: 2}})

    def overtake(*_: object) -> None:
        ours.before = lambda *_: None
        world.now += LIFETIME + 1
        assert len(theirs.jobs.bring(view, csn)) == 1

    ours.before = overtake
    assert ours.jobs.bring(view, csn) == []
    assert [j.to_csn for j in ours.views.history(view)] == [csn]
    assert ours.stored(view, csn) == ours.defined(view, csn)


def test_the_lease_is_given_back_after_success_and_failure(world: World) -> None:
    ours, theirs = world.process(), world.process()
    view = ours.view("v", ours.table("a"))
    csn = ours.put({"a": {1: 1}})

    def fail(*_: object) -> None:
        raise TypeMismatch("a cast", "it fails")

    ours.before = fail
    with pytest.raises(TypeMismatch):
        ours.jobs.bring(view, csn)
    assert "a cast: it fails" in str(ours.views.history(view)[-1].error)
    before = world.now
    assert len(theirs.jobs.bring(view, csn)) == 1
    assert world.now == before


def test_a_run_is_cut_at_a_snapshot_that_is_still_read(world: World) -> None:
    """Law: an open transaction reads a view from its store at its own snapshot, however far others bring it."""
    p = world.process()
    view = p.view("v", p.table("a"))
    p.put({"a": {1: 1}})
    tx = p.begin()
    p.put({"a": {1: 2}})
    other = world.process().begin()  # another process's counts as well
    p.put({"a": {1: 3}})
    csn = p.put({"a": {2: 4}})
    jobs = p.jobs.bring(view, csn)
    assert [j.to_csn for j in jobs] == [tx.snapshot, other.snapshot, csn]
    for at in (tx.snapshot, other.snapshot, csn):
        assert p.shown(view, at) == p.defined(view, at)
    between = csn - 1
    assert p.shown(view, between) is None, "nobody asked for this version: its definition answers"
    tx.rollback()
    other.rollback()
    p.put({"a": {1: 5}})
    assert len(p.jobs.bring(view, p.put({"a": {1: 6}}))) == 1


def test_snapshots_that_see_no_difference_cut_nothing(world: World) -> None:
    p = world.process()
    view = p.view("v", p.table("a"))
    p.table("b")
    before = p.begin()
    p.put({"a": {1: 1}})
    p.put({"a": {1: 2}})
    p.put({"b": {1: 2}})
    after = p.begin()
    assert len(p.jobs.bring(view, p.put({"b": {2: 2}}))) == 1
    for tx in (before, after):
        assert p.shown(view, tx.snapshot) == p.defined(view, tx.snapshot)
    expired = p.begin()
    p.put({"a": {1: 3}})
    world.now += LIFETIME + 1
    assert len(p.jobs.bring(view, p.put({"a": {1: 4}}))) == 1, "a dead reader's snapshot binds nobody"
    assert p.shown(view, expired.snapshot) == p.defined(view, expired.snapshot)


def test_a_version_between_the_last_commit_and_the_frontier_is_told_right(world: World) -> None:
    """Law: a view read at a CSN shows all commits up to it, also where the job went on to a later commit of others."""
    p = world.process()
    view = p.view("v", p.table("a"))
    p.table("b")
    changed = p.put({"a": {1: 1}})
    csn = p.put({"b": {1: 1}})
    p.jobs.bring(view, csn)
    p.views.advance(csn)
    assert p.shown(view, changed) == p.defined(view, changed) != {}


def test_jobs_are_bounded_and_follow_commit_order(world: World) -> None:
    p = world.process()
    view = p.view("v", p.table("a"))
    ends = [p.put({"a": {10 * i + j: i for j in range(n)}}) for i, n in enumerate((3, 3, 9, 1, 1))]
    jobs = p.jobs.bring(view, ends[-1], most_rows=6)
    assert [(j.to_csn, j.tasks, j.rows_in) for j in jobs] == [(ends[1], 2, 6), (ends[2], 1, 9), (ends[4], 2, 2)]
    assert p.stored(view, ends[-1]) == p.defined(view, ends[-1])


def test_corrected_data_heals_a_view_past_the_bad_commit(world: World) -> None:
    """Law: where a bounded job fails on its data, the whole run is tried: a later commit may have corrected it."""
    p = world.process()
    view = p.view("v", p.table("a"))
    bad = p.put({"a": {1: -1}})
    tx = p.begin()

    def refuse_bad(_: Relation, __: int, c1: int) -> None:
        if c1 == bad:
            raise TypeMismatch("v", "is negative")

    p.before = refuse_bad
    with pytest.raises(TypeMismatch):
        p.jobs.bring(view, bad)
    csn = p.put({"a": {1: 1}})
    assert [j.to_csn for j in p.jobs.bring(view, csn)] == [csn]
    assert p.stored(view, csn) == p.defined(view, csn)
    assert p.shown(view, tx.snapshot) is None
    tx.rollback()


def test_a_refresh_misses_no_commit_made_meanwhile(world: World) -> None:
    """Law: a refresh stands at a commit of its own, made before it computes; later commits stay pending."""
    p = world.process()
    view = p.view("v", p.table("a"))
    p.jobs.bring(view, p.put({"a": {1: 1}}))
    made: list[int] = []
    p.before = lambda *_: made.append(p.put({"a": {2: 2}})) if not made else None
    job = p.jobs.refresh(view)
    assert p.ran[-1][3]
    assert job.to_csn < made[0]
    assert [k.csn for k in p.views.tasks()] == made
    p.jobs.bring(view, made[0])
    assert p.stored(view, made[0]) == p.defined(view, made[0])


def test_an_upper_view_waits_for_no_version_that_its_lower_view_has_passed(world: World) -> None:
    """Law: an upper view is never computed over a lower view at a CSN where that one has no version."""
    p = world.process()
    a, b = p.table("a"), p.table("b")
    low = p.view("low", a)
    high = p.view("high", low, b)
    first = p.put({"a": {1: 1}, "b": {1: 1}})
    last = p.put({"a": {2: 2}})
    p.jobs.bring(low, last)  # in one step past `first`
    assert p.shown(high, first) is None
    assert p.shown(high, last) == p.defined(high, last)
    assert {j.to_csn for j in p.views.history(high)} == {last}


def test_a_step_to_where_the_views_below_have_versions_runs_no_job_of_theirs(world: World) -> None:
    """The manager takes an upper view so far if commits never end (`policies.last_csn`)."""
    p = world.process()
    a, b = p.table("a"), p.table("b")
    low = p.view("low", a)
    high = p.view("high", low, b)
    p.put({"a": {1: 1}, "b": {1: 1}})
    upto = p.put({"a": {2: 2}, "b": {2: 2}})
    p.jobs.bring(low, upto)
    p.put({"a": {3: 3}})
    waiting = candidates(p.views)
    upper = next(c for c in waiting if c.view_id == high.id)
    bound = last_csn(upper, waiting)
    assert bound == upto
    job = p.jobs.step(high, bound)
    assert job is not None
    assert (job.to_csn, [name for name, *_ in p.ran]) == (upto, ["low", "high"])
    assert p.shown(high, upto) == p.defined(high, upto)


def test_lower_views_are_brought_first(world: World) -> None:
    p = world.process()
    low = p.view("low", p.table("a"))
    mid = p.view("mid", low)
    high = p.view("high", mid, low)
    csn = p.put({"a": {1: 1}})
    p.jobs.bring(high, csn)
    assert [name for name, *_ in p.ran] == ["low", "mid", "high"]
    assert all(p.stored(v, csn) == p.defined(v, csn) for v in (low, mid, high))


def test_a_lower_view_refreshed_alone_leaves_upper_views_consistent(world: World) -> None:
    p = world.process()
    a, b = p.table("a"), p.table("b")
    low = p.view("low", a)
    high = p.view("high", low, b)
    p.jobs.bring(high, p.put({"a": {1: 1}}))
    p.jobs.bring(high, p.put({"b": {1: 1}}))
    p.jobs.refresh(low)
    csn = p.put({"a": {1: 3}, "b": {2: 2}})
    p.jobs.bring(high, csn)
    assert all(p.stored(v, csn) == p.defined(v, csn) for v in (low, high))


def test_the_views_above_one_are_all_that_read_it_lower_ones_first(world: World) -> None:
    p = world.process()
    a, b = p.table("a"), p.table("b")
    low, other = p.view("z", a), p.view("other", b)
    mid = p.view("y", low)
    high = p.view("x", b, mid, other)
    assert [v.name for v in p.views.above(low)] == [mid.name, high.name]
    assert [v.name for v in p.views.above(other)] == [high.name]
    assert p.views.above(high) == []


def test_views_above_one_that_was_computed_anew_have_a_task_without_a_delta(world: World) -> None:
    """Law: it comes with the corrected rows, wherever they have got to meanwhile; none if nothing was wrong."""
    p, other = world.process(), world.process()
    a, b = p.table("a"), p.table("b")
    low, beside = p.view("low", a), p.view("beside", a)
    high = p.view("high", p.view("mid", low), b)
    csn = p.put({"a": {1: 1}})

    def overtake(view: Relation, _from: int, _to: int) -> None:
        if view.name == "low":  # others go on with what was wrong
            other.put({"b": {1: 1}})
            other.views.advance(other.catalog.snapshot())

    p.before = overtake
    job = p.jobs.refresh(low)
    assert job.view_rows == 1
    p.jobs.bring(beside, csn)
    resets = {t.view_id: t.reset for t in p.views.tasks() if t.tables == (low.id,)}
    assert set(resets) == {v.id for v in p.views.above(low)}
    assert all(resets.values())
    p.views.advance(p.catalog.snapshot())  # it is not overlooked
    p.ran.clear()
    p.jobs.bring(high, p.catalog.snapshot())
    assert [(name, full) for name, _, _, full in p.ran] == [("mid", True), ("high", True)]
    p.before = lambda *_: None
    assert p.jobs.refresh(low).view_rows == 0
    assert p.views.tasks() == []


def test_views_that_have_nothing_to_do_wait_for_a_job_under_way(world: World) -> None:
    """Law: the upkeep never makes a full refresh start over; afterwards the view moves on."""
    p, other = world.process(), world.process()
    view = p.view("v", p.table("a"))
    moved: list[int] = []
    p.before = lambda *_: moved.append(other.views.advance(other.catalog.snapshot()))
    p.jobs.refresh(view)
    assert moved == [0]
    assert len(p.ran) == 1
    p.put({"a": {1: 1}})
    p.jobs.bring(view, p.catalog.snapshot())
    p.table("elsewhere")
    assert other.views.advance(other.catalog.snapshot()) == 1


def test_a_result_that_cannot_be_stored_leaves_nothing_but_its_error(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "INLINE_BYTES", 0)
    p = world.process()
    view = p.view("v", p.table("a"))
    csn = p.put({"a": {1: 1}})
    written = Storage.write_parquet

    def full(storage: Storage, relation_id: int, folder: str, rows: pa.Table) -> tuple[DataFile, ...]:
        written(storage, relation_id, folder, rows)
        raise StorageUnavailable("the disk", "is full", "Make room.")

    with monkeypatch.context() as patch:
        patch.setattr(Storage, "write_parquet", full)
        with pytest.raises(StorageUnavailable, match="is full"):
            p.jobs.bring(view, csn)
    assert [job.error for job in p.views.history(view)] == ["the disk: is full. Make room."]
    assert p.catalog.leased_paths(view.id) == []
    assert not list(p.storage.layout.relation(view.id).rglob("*.parquet"))
    p.jobs.bring(view, csn)
    assert p.stored(view, csn) == p.defined(view, csn)


def test_an_error_is_not_told_of_a_view_that_another_has_maintained_meanwhile(world: World) -> None:
    p, other = world.process(), world.process()
    view = p.view("v", p.table("a"))
    csn = p.put({"a": {1: 1}})

    def overtaken(*_: object) -> None:
        world.now += 2 * LIFETIME  # it was asleep, and its lease is over
        other.jobs.bring(view, csn)
        raise QueryFailed("view v", "its files are gone")

    p.before = overtaken
    with pytest.raises(QueryFailed):
        p.jobs.bring(view, csn)
    assert [job.error for job in p.views.history(view)] == [None]


def test_two_that_alter_a_view_at_once_do_not_undo_each_other(world: World) -> None:
    p, other = world.process(), world.process()
    view = p.view("v", p.table("a"))
    other.views.set_properties(view, {"deadline": "06:00"})
    with pytest.raises(WriteConflict, match="altered meanwhile"):
        p.views.set_properties(view, {"comment": "x"})
    now = p.catalog.relation("v")
    p.views.set_properties(now, {"comment": "x"})
    known = p.catalog.relation("v").properties
    assert (known["deadline"], known["comment"]) == ("06:00", "x")
    p.views.drop(p.catalog.relation("v"))
    with pytest.raises(WriteConflict, match="dropped meanwhile"):
        p.views.set_properties(now, {"comment": "y"})


@pytest.mark.parametrize(
    ("error", "transient"),
    [
        (TypeMismatch("a cast", "fails"), False),
        (QueryFailed("view v", "[CAST_INVALID_INPUT] The value 'x' …"), False),
        (SparkFailed("view v", "Java heap space"), True),
        (Cancelled("view v", "Job 3 cancelled part of cancelled job group x"), True),
        (StorageUnavailable("disk", "full"), True),
        (MemoryError(), True),
        (FreshviewError("anything"), False),
    ],
)
def test_passing_failures_are_told_from_wrong_data(error: Exception, transient: bool) -> None:
    assert is_transient(error) is transient


@given(st.randoms(use_true_random=False))
@settings(max_examples=examples(5), deadline=None)
def test_whatever_the_interleaving_every_view_shows_its_definition(draw: random.Random) -> None:
    """Law: commits, open snapshots, jobs of two processes, expiring leases, refreshes, views over views, in any order:
    what a store gives for a CSN is the definition there, jobs of a view join end to end, all views arrive."""
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder))
        p, q = world.process(), world.process()
        tables = [p.table(n) for n in "ab"]
        low = p.view("low", tables[0])
        views = [low, p.view("mid", low, tables[1]), p.view("high", low, tables[0])]
        views.append(p.view("top", views[1], views[2]))
        first = p.catalog.snapshot()

        def interfere(*_: object) -> None:
            if draw.random() < 0.2:
                act(depth=1)

        def act(depth: int = 0) -> None:
            who, view = draw.choice((p, q)), draw.choice(views)
            csn = draw.randint(max(view.created_csn, first), who.catalog.snapshot())
            match draw.randint(0, 6):
                case 0 | 1:
                    names = draw.choice(("a", "b", "ab"))
                    who.put({n: {draw.randint(1, 4): draw.randint(1, 3)} for n in names})
                case 2:
                    who.catalog.begin("transaction", at=csn)
                case 3 if depth == 0:
                    assert who.shown(view, csn) in (None, who.defined(view, csn))
                case 4 if depth == 0:
                    who.jobs.bring(view, csn, most_rows=draw.randint(1, 5))
                case 5 if depth == 0:
                    who.jobs.refresh(view)
                case 6:
                    who.views.advance(who.catalog.snapshot())
                    world.now += draw.choice((1, LIFETIME + 1))

        p.before = q.before = interfere
        for _ in range(30):
            act()
        p.before = q.before = lambda *_: None
        csn = p.catalog.snapshot()
        for view in views:
            assert p.shown(view, csn) == p.defined(view, csn)
            jobs = [j for j in p.views.history(view) if j.error is None]
            assert all(x.to_csn <= y.from_csn and y.from_csn < y.to_csn for x, y in pairwise(jobs))
            for at in range(view.created_csn, csn + 1):
                assert p.shown(view, at) in (None, p.defined(view, at)), (view.name, at)
        world.close()
