"""Foreground work across processes: announced in the catalog, heard by others, and gone when nobody renews it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa
from tests.catalog.view_world import BAG, Process, World
from tests.internals import internals

import freshview
from freshview import Warehouse
from freshview.catalog import activity
from freshview.catalog import tables as t
from freshview.catalog.activity import LIFETIME, ActivityCatalog, ForegroundWork
from freshview.catalog.frontiers import Job
from freshview.catalog.records import Relation
from freshview.catalog.views import ViewCatalog
from freshview.errors import CatalogUnavailable
from freshview.events import Events
from freshview.interruption import Interruption, stop_if_asked
from freshview.refresh.jobs import JobRunner
from freshview.refresh.times import PAST_JOBS
from freshview.schedule import upkeep
from freshview.schedule.activity import Activity
from freshview.schedule.manager import CurrentJob, Manager
from freshview.schedule.policies import Candidate, candidates
from freshview.schedule.presence import LOOK_SECONDS, RENEW_SECONDS, Presence
from freshview.schedule.sizing import BACKGROUND_ROWS
from freshview.views.maintenance import Maintenance


def activity_of(process: Process) -> ActivityCatalog:
    return ActivityCatalog(process.catalog)


def rows(process: Process) -> int:
    with process.catalog.database.read() as c:
        return int(c.execute(sa.select(sa.func.count()).select_from(t.activity)).scalar_one())


# -- in the catalog --------------------------------------------------------------------------------


def test_what_a_process_announces_the_others_hear_until_it_expires(world: World) -> None:
    ours, theirs = world.process(), world.process()
    begun = world.now
    activity_of(ours).busy()
    heard = ForegroundWork(((ours.catalog.owner, begun),))
    assert (activity_of(theirs).of_others(), activity_of(ours).of_others()) == (heard, ForegroundWork())
    world.now += LIFETIME
    activity_of(ours).busy()
    world.now += LIFETIME
    assert activity_of(theirs).of_others() == heard, "it has been renewed, and is busy since it began"
    world.now += 1
    assert activity_of(theirs).of_others() == ForegroundWork()
    activity_of(theirs).busy()
    assert rows(ours) == 1, "who announces something removes what has expired"


def test_waiting_for_a_view_is_announced_and_taken_back(world: World) -> None:
    ours, theirs = world.process(), world.process()
    activity_of(ours).waits(7)
    activity_of(ours).waits(8)
    assert activity_of(theirs).of_others() == ForegroundWork((), frozenset({7, 8}))
    activity_of(ours).waited(7)
    assert activity_of(theirs).of_others() == ForegroundWork((), frozenset({8}))
    ours.catalog.leave()
    assert activity_of(theirs).of_others() == ForegroundWork()


def test_announcements_are_the_same_on_every_kind_of_catalog(open_warehouse: Callable[[], Warehouse]) -> None:
    one, other = (internals(open_warehouse()).catalog for _ in range(2))
    for _ in range(2):
        ActivityCatalog(one).busy()
        ActivityCatalog(one).waits(3)
    heard = ActivityCatalog(other).of_others()
    assert ([owner for owner, _ in heard.busy], heard.awaited) == ([one.owner], frozenset({3}))


# -- a process announces itself --------------------------------------------------------------------


class Beats:
    """A presence on the world's clock, beside the foreground work of its process."""

    def __init__(self, process: Process) -> None:
        clock = lambda: process.world.now / 1e6  # noqa: E731
        self.work = Activity(clock)
        self.presence = Presence(activity_of(process), self.work.is_on_spark, process.events, clock)


def test_a_busy_process_renews_its_announcement_and_an_idle_one_writes_nothing(world: World) -> None:
    ours, theirs = world.process(), world.process()
    beats = Beats(ours)
    assert not beats.presence.beat()
    assert rows(theirs) == 0
    with beats.work.working():
        assert not beats.presence.beat(), "it only writes rows"
        beats.work.needs_spark()
        with beats.work.working():
            beats.work.needs_spark()
        for _ in range(5):
            assert beats.presence.beat()
            world.now += int(RENEW_SECONDS * 1e6)
            assert activity_of(theirs).of_others().busy
    world.now += 600_000
    with beats.work.working():
        assert not beats.presence.beat(), "the statement that needed Spark is over"
    world.now += LIFETIME
    assert not activity_of(theirs).of_others().busy


def test_a_statement_is_announced_without_waiting_for_the_catalog(
    open_warehouse: Callable[[], Warehouse], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: another process hears of it; a statement that begins when the last one ends is heard of too."""
    monkeypatch.setattr(activity, "LIFETIME", 3600 * 1_000_000)
    ours, theirs = open_warehouse(), open_warehouse()
    heard = threading.Event()
    wrote: list[str] = []
    busy = ActivityCatalog.busy

    def counted(activity: ActivityCatalog) -> None:
        busy(activity)
        wrote.append(threading.current_thread().name)
        heard.set()

    monkeypatch.setattr(ActivityCatalog, "busy", counted)
    for _ in range(2):
        heard.clear()
        with internals(ours).statement():
            internals(ours).make_way()
            assert heard.wait(60)
            owners = [owner for owner, _ in ActivityCatalog(internals(theirs).catalog).of_others().busy]
            assert owners == [internals(ours).catalog.owner]
    assert set(wrote) == {"freshview-presence"}


def test_a_statement_is_announced_when_the_catalog_is_back(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    """Law: neither a catalog that fails once nor a listener that fails ends the announcements."""
    monkeypatch.setattr("freshview.schedule.presence.RENEW_SECONDS", 0.01)
    announced, tries = threading.Event(), []

    def fails_once(_: ActivityCatalog) -> None:
        tries.append(1)
        if len(tries) == 1:
            raise CatalogUnavailable("catalog", "is locked")
        announced.set()

    def no_listener(_: object) -> None:
        raise ValueError("a listener that fails")

    monkeypatch.setattr(ActivityCatalog, "busy", fails_once)
    process.events.listen(no_listener)
    presence = Presence(activity_of(process), lambda: True, process.events)
    presence.announce()
    try:
        assert announced.wait(20)
    finally:
        presence.stop()


def test_a_catalog_that_cannot_be_reached_is_told_and_nobody_counts_as_busy(process: Process) -> None:
    told: list[str] = []
    process.events.listen(lambda e: told.append(e.name))
    presence = Beats(process).presence

    def fails(_: ActivityCatalog) -> ForegroundWork:
        raise CatalogUnavailable("catalog", "is locked")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ActivityCatalog, "of_others", fails)
        assert presence.others() == ForegroundWork()
    assert told == ["background.failed"]


# -- jobs give way, or hurry -----------------------------------------------------------------------


def held_up(holder: Process, jobs: JobRunner, view_id: int, while_waiting: Callable[[], None]) -> None:
    """Bring a view up to date in one process while another runs a job of it; the job ends after three looks."""
    view = holder.catalog.relation_by_id(view_id)
    assert view is not None
    lease = holder.catalog.lease(view_id, "job", f"job-{view_id}")
    assert lease is not None
    looks: list[int] = []

    def wait() -> None:
        looks.append(1)
        while_waiting()
        if len(looks) == 3:
            holder.catalog.drop_leases([lease.id])

    holder.world.while_waiting = wait
    jobs.bring(view, holder.catalog.snapshot())
    assert len(looks) == 3


def test_a_statement_announces_the_job_that_it_waits_for(world: World) -> None:
    ours, theirs = world.process(), world.process()
    view = ours.view("v", ours.table("a"))
    ours.put({"a": {1: 1}})
    heard: list[frozenset[int]] = []
    held_up(theirs, ours.jobs, view.id, lambda: heard.append(activity_of(theirs).of_others().awaited))
    assert heard == [{view.id}] * 3
    assert rows(ours) == 0, "it waits no longer"


def test_background_work_that_waits_announces_nothing_unless_a_statement_waits_for_it(world: World) -> None:
    """Law: else a job in the background would keep another from giving way to a statement."""
    ours, theirs = world.process(), world.process()
    view = ours.view("v", ours.table("a"))
    heard: list[frozenset[int]] = []
    for raised in (False, True):
        ours.put({"a": {1: int(raised)}})
        interruption = Interruption(gives_way=True)
        if raised:
            interruption.raise_priority()
        with interruption.here():
            held_up(theirs, ours.jobs, view.id, lambda: heard.append(activity_of(theirs).of_others().awaited))
    assert heard == [frozenset()] * 3 + [{view.id}] * 3


@pytest.mark.parametrize("waits", [False, True])
def test_a_job_gives_way_to_a_statement_of_another_process_or_hurries_for_it(
    open_warehouse: Callable[[], Warehouse], monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    """Law: at its next look for others, a job in the background stops for a statement elsewhere; the job that the
    statement waits for goes on, at the statement's priority. No job begins while others are busy."""
    monkeypatch.setattr(upkeep, "machine_load", lambda: 0.0)
    monkeypatch.setattr(activity, "LIFETIME", 3600 * 1_000_000)
    ours, theirs = open_warehouse(), open_warehouse()
    announced = ActivityCatalog(internals(theirs).catalog)
    seen: list[tuple[bool, bool]] = []

    def run(job: CurrentJob) -> bool:
        announced.busy()
        if waits:
            announced.waits(job.view.view_id)
        internals(ours).listen()
        seen.append((job.interruption.requested, job.interruption.gives_way))
        stop_if_asked("job")
        return True

    manager = internals(ours).manage([5], run)
    assert manager.turn()
    assert seen == [(False, False) if waits else (True, True)]
    assert not manager.turn(), "the other process is busy"
    internals(theirs).catalog.leave()
    assert manager.turn()


def test_the_loops_carry_a_statement_of_one_process_to_the_jobs_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The way as a whole: a statement sets a flag, a thread announces it, and the listener of a process whose job runs
    has the job stop, at its first look after the announcement. So the request takes one interval of the listener."""
    monkeypatch.setattr(upkeep, "machine_load", lambda: 0.0)
    waits: list[float] = []  # of the announcing thread, before it writes
    looks: list[bool] = []  # of the listener: did it begin after the announcement?
    announced = threading.Event()
    busy, others = ActivityCatalog.busy, Presence.others

    def announce(activity: ActivityCatalog) -> None:
        busy(activity)
        announced.set()

    def look(presence: Presence) -> ForegroundWork:
        if threading.current_thread().name == "freshview-listener" and not stopped.is_set():
            looks.append(announced.is_set())
        return others(presence)

    class Waits(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            if not announced.is_set():
                waits.append(timeout or 0.0)
            return super().wait(timeout)

    begun, stopped = threading.Event(), threading.Event()
    with freshview.connect(tmp_path) as ours, freshview.connect(tmp_path, background=True) as theirs:
        internals(ours).presence._ended = Waits()
        monkeypatch.setattr(ActivityCatalog, "busy", announce)
        monkeypatch.setattr(Presence, "others", look)

        def run(job: CurrentJob) -> bool:
            begun.set()
            with job.interruption.broken_off_by(stopped.set):
                assert stopped.wait(60)
                stop_if_asked("job")
            return True

        manager = internals(theirs).manage([5], run)
        worker = threading.Thread(target=manager.turn)
        worker.start()
        assert begun.wait(60)
        with internals(ours).statement():
            internals(ours).make_way()
            worker.join(60)
        assert (worker.is_alive(), stopped.is_set()) == (False, True)
    assert waits == [0.0], "the announcement is written at once"
    assert looks.count(True) <= 1, "the first look that begins after the announcement has the job stop"
    assert LOOK_SECONDS * 2 < 1.0, "a look that began before the announcement, and the next one"


class Paced(threading.Event):
    """Waits on the world's clock, with a look at the others' work at each interval of the listener."""

    def __init__(self, world: World, look: Callable[[], None], first: int) -> None:
        super().__init__()
        self._world, self._look, self._next = world, look, first

    def wait(self, timeout: float | None = None) -> bool:
        end = self._world.now + int((timeout or 0.0) * 1e6)
        while self._next <= end:
            self._world.now = max(self._next, self._world.now)
            self._look()
            self._next += int(LOOK_SECONDS * 1e6)
        self._world.now = end
        return False


@pytest.mark.parametrize("gap", [0.0, 0.3, 0.6, 0.9, 1.0, 1.4, 2.4, 2.5, 2.6, 9.0])
@pytest.mark.parametrize("phase", [0.0, 0.1, 0.2])
def test_a_statement_is_heard_of_within_a_second_however_long_after_the_last_one(
    world: World, gap: float, phase: float
) -> None:
    """Law: by the configured intervals. A process writes one announcement a second at most: one that was written for
    an earlier statement is heard until the next one can be written."""
    ours, theirs = world.process(), world.process()
    beats, heard = Beats(ours), list[int]()

    def look() -> None:
        if activity_of(theirs).of_others().busy:
            heard.append(world.now)

    paced = beats.presence._ended = Paced(world, look, world.now + int(phase * 1e6))
    with beats.work.working():
        beats.work.needs_spark()
        assert beats.presence.beat()
    paced.wait(gap)
    heard.clear()
    begun = world.now
    with beats.work.working():
        beats.work.needs_spark()
        assert beats.presence.beat()
        paced.wait(1.0)
    assert heard[0] - begun <= LOOK_SECONDS * 1e6 < 1e6


@pytest.mark.parametrize("waits_for", ["companion", "low", "other"])
def test_a_job_hurries_for_who_waits_for_any_view_that_it_works_on(world: World, waits_for: str) -> None:
    """Law: a job that refreshes views together, or brings a view below along, is not cancelled by a statement that
    waits for one of them; it is cancelled by one that waits for another view."""
    ours, theirs = world.process(), world.process()
    a, b = ours.table("a"), ours.table("b")
    views = {name: ours.view(name, a) for name in ("v", "companion", "low")}
    views |= {"high": ours.view("high", views["low"], b), "other": ours.view("other", b)}
    csn = ours.put({"a": {1: 1}, "b": {2: 2}})

    def run(job: CurrentJob) -> bool:
        if job.view.view_id == views["v"].id:
            return bool(ours.groups.step(views["v"], [views["companion"]], csn))
        return ours.jobs.step(views["high"], csn) is not None

    begins = "high" if waits_for == "low" else "v"
    look = lambda: [Candidate(views[begins].id, world.now, csn, 1)]  # noqa: E731
    held_by = ours.jobs.turns.held_by
    manager = Manager(look, run, lambda: False, Events(), held_by=held_by, now=lambda: world.now)
    seen: list[tuple[bool, bool]] = []

    def heard(*_: object) -> None:
        if not seen:
            activity_of(theirs).busy()
            activity_of(theirs).waits(views[waits_for].id)
            manager.give_way(activity_of(ours).of_others().awaited)
            (job,) = manager.running
            seen.append((job.interruption.requested, job.interruption.gives_way))
        stop_if_asked("job")

    ours.before = heard
    assert manager.turn()
    assert seen == [(True, True) if waits_for == "other" else (False, False)]
    assert (ours.views.frontier(views[begins]) == csn) is (waits_for != "other")


def test_two_processes_share_the_work_and_every_view_arrives(world: World) -> None:
    """Law: managers of two processes, a job of one cancelled for a statement of the other: no task is lost, and the
    statement takes over what it needs."""
    one, two = world.process(), world.process()
    low = one.view("low", one.table("a"))
    high = one.view("high", low, one.table("b"))
    managers = []
    for process in (one, two):

        def run(job: CurrentJob, process: Process = process) -> bool:
            view = process.catalog.relation_by_id(job.view.view_id)
            assert view is not None
            return process.jobs.step(view, process.catalog.snapshot(), most_rows=1) is not None

        look = lambda process=process: candidates(process.views)  # noqa: E731
        clock = lambda: world.now / 1e6  # noqa: E731
        managers.append(Manager(look, run, lambda: False, Events(), now=lambda: world.now, clock=clock))
    first = managers[0]

    def interrupted(*_: object) -> None:
        one.before = lambda *_: None
        activity_of(two).busy()
        others = activity_of(one).of_others()
        assert others.busy
        first.give_way(others.awaited)
        stop_if_asked("job")

    one.before = interrupted
    csn = one.put({"a": {1: 1}, "b": {2: 2}})
    assert first.turn()
    assert [j.strategy for j in one.views.history(low)] == ["cancelled"]
    assert two.shown(high, csn) == two.defined(high, csn)
    last = one.put({"a": {1: 5}, "b": {3: 3}})
    for _ in range(20):
        for manager in managers:
            manager.turn()
        world.now += 2_000_000
    for view in (low, high):
        assert one.views.frontier(view) == last
        assert one.stored(view, last) == one.defined(view, last)


# -- uses ------------------------------------------------------------------------------------------


def test_uses_by_a_process_without_background_arrive_with_its_heartbeat(
    open_warehouse: Callable[[], Warehouse],
) -> None:
    ours, theirs = open_warehouse(), open_warehouse()
    ours.sql("CREATE TABLE a (k INT, v INT, PRIMARY KEY (k))")
    catalog = internals(ours).catalog
    facts = {"sources": "{}", "columns": "[]"}
    view, _ = ViewCatalog(catalog).create(
        catalog.reserve_id(), "v", BAG, {}, facts, [catalog.relation("a")], [], [], catalog.snapshot()
    )
    internals(ours).used(view.id)
    known = ViewCatalog(internals(theirs).catalog)
    assert known.uses() == {}
    internals(ours).heartbeat()
    assert {view_id: use.uses for view_id, use in known.uses().items()} == {view.id: 1}


# -- the size of jobs ------------------------------------------------------------------------------


def test_a_background_job_is_sized_by_the_past_jobs_of_its_view(
    open_warehouse: Callable[[], Warehouse], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: by the newest jobs that were done; the load of the machine, foreground work beside it and jobs that gave way
    make it smaller."""
    wh = open_warehouse()
    wh.sql("CREATE TABLE a (k INT, v INT, PRIMARY KEY (k))")
    catalog = internals(wh).catalog
    views, facts = ViewCatalog(catalog), {"sources": "{}", "columns": "[]"}
    view, _ = views.create(
        catalog.reserve_id(), "v", BAG, {}, facts, [catalog.relation("a")], [], [], catalog.snapshot()
    )
    load = [0.0]
    monkeypatch.setattr(upkeep, "machine_load", lambda: load[0])
    assert internals(wh).background_rows("v") == BACKGROUND_ROWS
    for rows, seconds, error in ((1, 1.0, None), (1001, 2.0, None), (5000, 0.1, "cancelled")):
        views.record(
            Job(
                view_id=view.id,
                from_csn=0,
                to_csn=1,
                strategy="incremental",
                seconds=seconds,
                rows_in=rows,
                error=error,
            )
        )
    assert [internals(wh).background_rows("v", n) for n in (0, 1, 2, 99)] == [9000, 4500, 2250, 1]
    assert internals(wh).background_rows("v", is_beside=True) == 1000, "beside foreground work"
    load[0] = 2.0
    assert internals(wh).background_rows("v") == 1000
    for _ in range(PAST_JOBS):
        views.record(Job(view_id=view.id, from_csn=0, to_csn=1, strategy="incremental", seconds=1.0, rows_in=3))
    assert internals(wh).background_rows("v") == BACKGROUND_ROWS


def test_a_refresh_of_several_views_takes_the_time_of_one_job(
    open_warehouse: Callable[[], Warehouse], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: views that take the same rows share the time allowed; one that reads other tables has no part in it."""
    wh = open_warehouse()
    catalog = internals(wh).catalog
    views, facts = ViewCatalog(catalog), {"sources": "{}", "columns": "[]"}
    for table in ("a", "b"):
        wh.sql(f"CREATE TABLE {table} (k INT, v INT, PRIMARY KEY (k))")
    for name, table in (("v", "a"), ("w", "a"), ("x", "a"), ("other", "b")):
        read = [catalog.relation(table)]
        views.create(catalog.reserve_id(), name, BAG, {}, facts, read, [], [], catalog.snapshot())
    for table in ("a", "b"):
        wh.sql(f"INSERT INTO {table} VALUES (1, 1)")
    for rows, seconds in ((1, 1.0), (1001, 2.0)):
        ended: dict[str, Any] = {
            "from_csn": 0,
            "to_csn": 1,
            "strategy": "incremental",
            "seconds": seconds,
            "rows_in": rows,
        }
        views.record(Job(view_id=catalog.relation("v").id, **ended))
    monkeypatch.setattr(upkeep, "machine_load", lambda: 0.0)
    asked: list[tuple[list[str], int]] = []

    def step_together(_: Maintenance, view: Relation, others: list[Relation], __: int, *, most_rows: int) -> list[Job]:
        asked.append(([view.name, *(other.name for other in others)], most_rows))
        return []

    def step(_: Maintenance, view: Relation, __: int, *, most_rows: int) -> None:
        asked.append(([view.name], most_rows))

    monkeypatch.setattr(Maintenance, "step_together", step_together)
    monkeypatch.setattr(Maintenance, "step", step)
    internals(wh).replace_engine(SimpleNamespace(background=lambda _: nullcontext()))
    internals(wh).background_job("v")
    (together, rows), alone = asked
    assert sorted(together) == ["v", "w", "x"]
    assert (rows, alone) == (2333, (["v"], 9000))  # (10 / 3 - 1) and (10 - 1) seconds
