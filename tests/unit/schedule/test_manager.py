"""The maintenance manager: its policies, and its turns in a simulated world (no clock, no catalog, no Spark)."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freshview.catalog.queries import MOST
from freshview.catalog.records import Backlog, Relation, Task
from freshview.catalog.uses import UseHistory
from freshview.definition.properties import parse_deadline
from freshview.errors import Cancelled, InvalidStatement, StorageUnavailable, TypeMismatch
from freshview.events import Events
from freshview.interruption import Interruption, gives_way, stop_if_asked
from freshview.refresh.tasks import combined
from freshview.relation.schema import Column, Schema
from freshview.relation.types import DataType
from freshview.schedule.activity import Activity
from freshview.schedule.loops import Loop
from freshview.schedule.manager import CurrentJob, Manager
from freshview.schedule.policies import (
    POLICIES,
    Candidate,
    candidate,
    choose,
    inherited,
    is_urgent,
    maintainable,
    next_deadline,
    next_use,
    oldest_first,
    with_lower,
)
from freshview.schedule.yielding import GAVE_WAY, PROTECTED

MINUTE = 60 * 1_000_000
HOUR = 60 * MINUTE


# -- policies --------------------------------------------------------------------------------------


def test_each_policy_takes_what_it_says() -> None:
    views = [
        Candidate(1, oldest_at=30, newest_csn=9, rows=5, next_use=500),
        Candidate(2, oldest_at=10, newest_csn=9, rows=1),
        Candidate(3, oldest_at=20, newest_csn=9, rows=2, next_use=100),
    ]
    chosen = {name: choose(views, policy, now=40) for name, policy in POLICIES.items()}
    assert {n: c.view_id for n, c in chosen.items() if c} == {"oldest": 2, "use": 3, "size": 1}
    assert choose([], oldest_first, 0) is None


def test_a_near_deadline_goes_first_and_a_far_one_last() -> None:
    now = 10 * HOUR
    plain = Candidate(1, oldest_at=now - 5, newest_csn=9, rows=5)
    far = Candidate(2, oldest_at=now - 50, newest_csn=9, rows=5, deadline=now + 5 * HOUR)
    near = Candidate(3, oldest_at=now - 1, newest_csn=9, rows=5, deadline=now + 10 * MINUTE)
    order = []
    left = [plain, far, near]
    while (chosen := choose(left, oldest_first, now)) is not None:
        order.append(chosen.view_id)
        left.remove(chosen)
    assert order == [3, 1, 2]


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_what_has_waited_for_long_goes_first_whatever_the_policy(policy: Callable[..., tuple[float, ...]]) -> None:
    starving = Candidate(1, oldest_at=0, newest_csn=9, rows=1)
    others = [Candidate(i, 9 * MINUTE, 9, 1000, next_use=9 * MINUTE) for i in (2, 3)]
    assert choose([*others, starving], policy, now=9 * MINUTE) == starving


def test_lower_views_go_before_upper_ones() -> None:
    high = Candidate(3, oldest_at=1, newest_csn=9, rows=1, sources=(2, 77))
    mid = Candidate(2, oldest_at=5, newest_csn=9, rows=1, sources=(1,))
    low = Candidate(1, oldest_at=9, newest_csn=9, rows=1)
    assert choose([high, mid, low], oldest_first, now=10) == low
    assert choose([high, mid], oldest_first, now=10) == mid


def test_the_next_use_is_expected_from_the_gaps_between_uses() -> None:
    assert next_use(UseHistory(4, last_at=100, mean_gap=50), now=120) == 150
    assert next_use(UseHistory(4, last_at=100, mean_gap=50), now=400) == 400
    assert next_use(UseHistory(1, last_at=100, mean_gap=0), now=400) is None


def test_deadlines_are_times_of_day_in_the_views_zone() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    four_in_utc = 1_767_240_000 * 1_000_000  # 2026-01-01 04:00 UTC is 05:00 in Berlin
    assert next_deadline("06:00", berlin, four_in_utc) == four_in_utc + HOUR
    assert next_deadline("before 05:00", berlin, four_in_utc) == four_in_utc
    assert next_deadline("4:30", berlin, four_in_utc) == four_in_utc + 23 * HOUR + 30 * MINUTE
    settings_ = json.dumps({"spark.sql.session.timeZone": "Europe/Berlin"})
    view = Relation(1, "v", "view", 1, 1, SCHEMA, 1, None, {"deadline": "06:00"}, {"settings": settings_})
    waiting = Backlog(1, 1, 1, four_in_utc, 9, 9)
    for now in (four_in_utc, four_in_utc + 5 * HOUR):  # one that was missed is as urgent as before
        found = candidate(waiting, view, None, now)
        assert found.deadline == four_in_utc + HOUR
        assert is_urgent(found, now) == (now > four_in_utc)
    for text in ("soon", "24:00", "6", "06:60", "after 06:00"):
        with pytest.raises(InvalidStatement, match="time of day"):
            parse_deadline(text)


# -- foreground work -------------------------------------------------------------------------------


def test_statements_and_young_transactions_are_foreground_work() -> None:
    now = [100.0]
    activity = Activity(lambda: now[0])
    assert not activity.is_busy()
    with activity.working():
        assert activity.is_busy()
    assert activity.is_busy(), "what the statement returned is being computed"
    now[0] += 1
    assert not activity.is_busy()
    is_open = True
    activity.began(lambda: is_open)
    assert activity.is_busy()
    now[0] += 60
    assert not activity.is_busy(), "left open"
    activity.began(lambda: is_open)
    is_open = False
    assert not activity.is_busy()
    activity.used(7, 1)
    activity.used(7, 2)
    assert (activity.take_uses(), activity.take_uses()) == ({7: (2, 2)}, {})


def test_runs_of_queries_are_counted_and_very_many_texts_are_not_held() -> None:
    activity = Activity()
    for now in (1, 2):
        activity.ran("SELECT 1", now)
    assert (activity.take_runs(), activity.take_runs()) == ({"SELECT 1": (2, 2)}, {})
    for now in range(MOST + 1):
        activity.ran(f"SELECT {now}", now)
        activity.ran("SELECT", now)
    runs = activity.take_runs()
    assert len(runs) == MOST
    assert runs["SELECT"] == (MOST + 1, MOST), "a text that runs again is among the newest"
    assert "SELECT 1" not in runs


# -- the manager in a simulated world --------------------------------------------------------------


@dataclass
class Simulation:
    """Tables, views as sets of base tables, and what each has seen."""

    views: Mapping[int, tuple[frozenset[str], tuple[int, ...]]]  # id → base tables, views that it reads
    policy: str = "oldest"
    most_rows: int = 3
    now: int = HOUR
    csn: int = 0
    busy: bool = False
    commits: list[tuple[int, int, frozenset[str]]] = field(default_factory=list)
    frontiers: dict[int, int] = field(default_factory=dict)
    jobs: list[tuple[int, int, int]] = field(default_factory=list)
    faults: list[Exception] = field(default_factory=list)
    bad: dict[int, int] = field(default_factory=dict)  # view → CSN of a commit that it cannot take alone
    halved: list[int] = field(default_factory=list)
    start: int = 0  # microseconds until a job has its engine
    during: Callable[[CurrentJob], None] = lambda _: None  # called while a job runs
    arrivals: list[set[int]] = field(default_factory=list)  # statements that arrive while a job runs; what they need

    def __post_init__(self) -> None:
        self.frontiers = dict.fromkeys(self.views, 0)
        self.manager = Manager(
            self._look,
            self._run,
            lambda: self.busy,
            Events(),
            policy=POLICIES[self.policy],
            now=lambda: self.now,
            clock=lambda: self.now / 1e6,
        )

    def commit(self, *tables: str) -> None:
        self.now += 1
        self.csn += 1
        self.commits.append((self.csn, self.now, frozenset(tables)))

    def tasks(self, view: int) -> list[Task]:
        return [
            Task(view, c, c, 0, at, (), 1)
            for c, at, tables in self.commits
            if c > self.frontiers[view] and tables & self.views[view][0]
        ]

    def _look(self) -> list[Candidate]:
        found = {v: self.tasks(v) for v in self.views}
        return [
            Candidate(v, k[0].committed_at, k[-1].csn, len(k), self.views[v][1], self.now + v, oldest_csn=k[0].csn)
            for v, k in found.items()
            if k
        ]

    def _run(self, job: CurrentJob) -> bool:
        if self.faults:
            raise self.faults.pop()
        self.now, self.start = self.now + self.start, 0
        self.manager.has_engine(job)
        if self.arrivals:
            self.manager.give_way(self.arrivals.pop())
        if job.halvings:
            self.halved.append(job.halvings)
        self.during(job)
        stop_if_asked("job")
        return self.job(job.view.view_id, self.most_rows, job.upto)

    def job(self, view: int, most_rows: int, upto: int | None = None) -> bool:
        tasks = [task for task in self.tasks(view) if upto is None or task.csn <= upto]
        if not tasks:
            return False
        end = combined(tasks, [], most_rows)
        below = [task for lower in self.views[view][1] for task in self.tasks(lower)]
        assert all(task.csn > end for task in below), "a lower view was left behind"
        if self.bad.get(view, 0) == tasks[-1].csn:
            raise TypeMismatch("a cast", "fails")
        self.jobs.append((view, self.frontiers[view], end))
        self.frontiers[view] = end
        return True

    def query(self, view: int) -> None:
        for source in self.views[view][1]:
            self.query(source)
        while self.tasks(view):
            self.job(view, 100)

    def settle(self, turns: int = 500) -> int:
        """Turns until all views are fresh; each that did nothing is followed by a sleep."""
        for n in range(turns):
            if not any(self.tasks(v) for v in self.views):
                return n
            if not self.manager.turn():
                self.now += 2_000_000
        raise AssertionError("a view starves")


VIEWS = {1: (frozenset("a"), ()), 2: (frozenset("b"), ()), 3: (frozenset("ab"), (1, 2)), 4: (frozenset("abc"), (3,))}
_STEP = st.one_of(
    st.tuples(st.just("commit"), st.sets(st.sampled_from("abc"), min_size=1)),
    st.tuples(st.just("query"), st.sampled_from([*VIEWS])),
    st.tuples(st.just("turn"), st.integers(1, 3)),
    st.tuples(st.just("busy"), st.booleans()),
    st.tuples(st.just("sleep"), st.integers(0, 600)),
    st.tuples(st.just("fault"), st.booleans()),
    st.tuples(st.just("arrival"), st.frozensets(st.sampled_from([*VIEWS]))),
)


@given(st.lists(_STEP, max_size=40), st.sampled_from([*POLICIES]), st.integers(1, 5))
@settings(max_examples=300, deadline=None)
def test_whatever_the_interleaving_every_view_arrives_in_commit_order(
    steps: list[tuple[str, object]], policy: str, most_rows: int
) -> None:
    """Law: commits, queries, failures, cancelled jobs and the manager's turns in any order: all views end at the last
    commit, the jobs of each join end to end, and an upper view is never ahead of a lower one."""
    world = Simulation(VIEWS, policy, most_rows)
    for what, value in steps:
        match what, value:
            case "commit", set() as tables:
                world.commit(*tables)
            case "query", int() as view:
                world.query(view)
            case "turn", int() as times:
                for _ in range(times):
                    world.manager.turn()
            case "busy", bool() as busy:
                world.busy = busy
            case "sleep", int() as seconds:
                world.now += seconds * 1_000_000
            case "fault", bool() as passing:
                error = StorageUnavailable("disk", "full") if passing else RuntimeError("lost connection")
                world.faults.append(error)
            case "arrival", frozenset() as needed:
                world.arrivals.append(set(needed))
    world.busy = False
    world.settle(2000)
    for view in VIEWS:
        mine = [(c0, c1) for v, c0, c1 in world.jobs if v == view]
        assert [c0 for c0, _ in mine] == [0, *(c1 for _, c1 in mine)][: len(mine)]
        assert all(c0 < c1 for c0, c1 in mine)


@pytest.mark.parametrize("policy", POLICIES)
def test_no_view_starves_under_a_stream_of_commits(policy: str) -> None:
    """Law: while other views get tasks all the time, a single task of another view is done within minutes."""
    world = Simulation({1: (frozenset("a"), ()), 2: (frozenset("b"), ())}, policy, most_rows=1)
    world.commit("b")
    begun = world.now
    while world.tasks(2):
        world.commit("a")
        world.commit("a")
        world.manager.turn()
        world.now += 5_000_000
        assert world.now - begun < 10 * MINUTE


def test_it_sleeps_when_busy_or_when_nothing_is_pending() -> None:
    world = Simulation(VIEWS)
    assert not world.manager.turn()
    world.commit("a")
    world.busy = True
    assert not world.manager.turn()
    assert world.jobs == []
    world.busy = False
    assert world.manager.turn()
    assert [v for v, *_ in world.jobs] == [1]


def test_it_gives_way_between_two_jobs() -> None:
    """Law: a burst of foreground work stops it after the job at hand, and it takes up where it was."""
    world = Simulation({1: (frozenset("a"), ())}, most_rows=2)
    for _ in range(6):
        world.commit("a")
    assert world.manager.turn()
    world.busy = True
    assert not world.manager.turn()
    assert world.frontiers[1] == 2
    world.busy = False
    world.settle()
    assert world.jobs == [(1, 0, 2), (1, 2, 4), (1, 4, 6)]


def test_even_a_busy_system_does_not_put_it_off_for_ever() -> None:
    world = Simulation({1: (frozenset("a"), ())})
    world.busy = True
    world.commit("a")
    turns = world.settle()
    assert 4 < turns < 8


def test_passing_failures_are_tried_again_later_each_time() -> None:
    world = Simulation({1: (frozenset("a"), ())})
    world.commit("a")
    tried: list[float] = []

    def fail(*_: object) -> bool:
        tried.append(world.now / 1e6)
        raise StorageUnavailable("disk", "full")

    world.manager._run = fail
    for _ in range(1000):
        world.manager.turn()
        world.now += 1_000_000
    gaps = [round(b - a) for a, b in pairwise(tried)]
    assert gaps[:8] == [2, 4, 8, 16, 32, 64, 128, 256]
    assert set(gaps[8:]) == {300}


def test_wrong_data_is_left_alone_until_a_commit_touches_the_view() -> None:
    """Law: and so are the views above it; others go on."""
    world = Simulation(VIEWS)
    world.commit("a")
    world.commit("b")
    world.bad[1] = 1
    for _ in range(20):
        world.manager.turn()
        world.now += MINUTE
    assert {v for v, *_ in world.jobs} == {2}
    failing = len(world.jobs)
    world.commit("b")
    for _ in range(20):
        world.manager.turn()
    assert {v for v, *_ in world.jobs[failing:]} == {2}
    world.commit("a")
    world.settle()
    assert world.frontiers == {1: 4, 2: 3, 3: 4, 4: 4}


def test_a_view_that_somebody_else_maintains_is_passed_over_for_a_moment() -> None:
    world = Simulation({1: (frozenset("a"), ()), 2: (frozenset("a"), ())})
    world.commit("a")
    real, asked = world.manager._run, []

    def taken(job: CurrentJob) -> bool:
        asked.append(job.view.view_id)
        return job.view.view_id == 2 and real(job)

    world.manager._run = taken
    assert [world.manager.turn() for _ in range(3)] == [True, True, False]
    assert asked == [1, 2]
    world.now += 3_000_000
    world.manager.turn()
    assert asked == [1, 2, 1]


# -- giving way to statements ----------------------------------------------------------------------


ONE = {1: (frozenset("a"), ())}
SCHEMA = Schema((Column("n", DataType("int")),))


def test_a_job_gives_way_to_a_statement_and_is_taken_up_again() -> None:
    """Law: a job that gave way is no failure: it is done as soon as all is quiet, without waiting longer each time."""
    world = Simulation(ONE)
    world.commit("a")
    world.arrivals = [set(), set()]
    now = world.now
    for _ in range(2):
        assert world.manager.turn()
        assert world.jobs == []
    world.busy = True
    assert not world.manager.turn()
    world.busy = False
    assert world.manager.turn()
    assert (world.jobs, world.now) == ([(1, 0, 1)], now)


def test_giving_way_is_not_told_as_a_failure() -> None:
    world = Simulation(ONE)
    told: list[str] = []
    world.manager._events.listen(lambda e: told.append(e.name))
    world.commit("a")
    world.arrivals = [set()]
    world.manager.turn()
    assert told == []
    world.faults = [Cancelled("job", "somebody cancelled it by hand")]
    world.manager.turn()
    assert told == ["manager.failed"]
    assert not world.manager.turn(), "what others cancelled is not begun again at once"
    world.settle()


def test_what_a_statement_waits_for_is_not_cancelled() -> None:
    """Law: neither by that statement nor by one that comes later and does not need it; and it has the statement's
    priority."""
    world = Simulation(ONE)
    world.commit("a")
    seen: list[bool] = []

    def run(job: CurrentJob) -> bool:
        seen.append(job.interruption.gives_way)
        world.manager.give_way({7, 1})
        world.manager.give_way({7})
        assert not job.interruption.requested
        seen.append(job.interruption.gives_way)
        return world.job(job.view.view_id, 1)

    world.manager._run = run
    world.manager.turn()
    assert (world.jobs, seen) == ([(1, 0, 1)], [True, False])


def test_a_job_near_its_deadline_does_not_give_way() -> None:
    world = Simulation(ONE)
    world.commit("a")
    look = world.manager._look
    world.manager._look = lambda: [replace(c, deadline=world.now + MINUTE) for c in look()]
    world.busy = True
    world.arrivals = [set()]
    assert world.manager.turn()
    assert world.jobs == [(1, 0, 1)]


@pytest.mark.parametrize("seconds", [1, 9, 11, 39, 45, 3000])
def test_steady_foreground_work_holds_no_view_up_for_ever(seconds: int) -> None:
    """Law: whatever a job of one task takes, it is done after log₂(T / 10 s) + 1 protected jobs that gave way at most,
    although a statement arrives all the time."""
    world = Simulation(ONE)
    world.busy = True
    world.commit("a")
    begun, gave_way = world.now, []

    def during(job: CurrentJob) -> None:
        start = world.now
        while world.now - start < seconds * 1_000_000:
            world.now += 200_000
            world.manager.give_way()
            if job.interruption.requested:
                gave_way.append((world.now - start) / 1e6)
                return

    world.during = during
    while world.tasks(1):
        if not world.manager.turn():
            world.now += 2_000_000
        assert world.now - begun < (15 + 4 * seconds) * 1_000_000
    assert gave_way == [PROTECTED * 2**n for n in range(len(gave_way))]
    assert len(gave_way) <= max(math.ceil(math.log2(seconds / PROTECTED)), 0) + 1
    assert world.halved == [*range(1, len(gave_way) + 1)], "each job takes half of the rows of the one before"


def _query_every_200_ms(world: Simulation, seconds: Mapping[int, float]) -> Callable[[CurrentJob], None]:
    """While a job runs, which takes so many seconds by view, a statement every 200 ms wants it to give way."""

    def during(job: CurrentJob) -> None:
        end = world.now + int(seconds[job.view.view_id] * 1e6)
        while world.now < end and not job.interruption.requested:
            world.now += 200_000
            world.manager.give_way()

    return during


def _first_jobs(world: Simulation, within: int, *, writes: bool = True) -> dict[int, float]:
    """When the first job of each view was done, while statements arrive all the time, and commits with `writes`."""
    begun, found = world.now, dict[int, float]()
    world.commit("a", "b")
    while world.now - begun < within * 1_000_000:
        if writes:
            world.commit("a", "b")
        if not world.manager.turn():
            world.now += 2_000_000
        for view, *_ in world.jobs:
            found.setdefault(view, (world.now - begun) / 1e6)
    return found


@pytest.mark.parametrize("policy", POLICIES)
def test_every_view_gets_a_job_within_a_minute_under_a_query_every_200_ms(policy: str) -> None:
    """Law: whatever the policy, one job at a time, of jobs that take some seconds, beside writes."""
    views = {i: (frozenset("ab"), ()) for i in range(1, 7)}
    world = Simulation(views, policy, most_rows=10_000, busy=True)
    world.during = _query_every_200_ms(world, dict.fromkeys(views, 5.0))
    done = _first_jobs(world, 60)
    assert done.keys() == views.keys()
    assert min(done.values()) > 10, "no job begins beside foreground work before a task has waited"
    assert all(sum(v == view for v, *_ in world.jobs) <= 2 for view in views)


def test_upper_views_get_a_job_within_a_minute_after_those_below() -> None:
    world = Simulation(VIEWS, most_rows=10_000, busy=True)
    world.during = _query_every_200_ms(world, dict.fromkeys(VIEWS, 9.0))
    assert _first_jobs(world, 60, writes=False).keys() == VIEWS.keys()


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("busy", [False, True])
def test_a_stream_of_commits_holds_no_upper_view_up(policy: str, busy: bool) -> None:
    """Law: a view below always has tasks then; one above goes to the last version that those below it have."""
    world = Simulation(VIEWS, policy, most_rows=10_000, busy=busy)
    world.during = _query_every_200_ms(world, dict.fromkeys(VIEWS, 2.0)) if busy else lambda _: None
    begun, behind = world.now, 0
    while world.now - begun < 12 * MINUTE:
        world.commit("a", "b", "c")
        if not world.manager.turn():
            world.now += 2_000_000
        world.now += 1_000_000
        oldest = min(world.tasks(v)[0].committed_at for v in VIEWS if world.tasks(v))
        behind = max(behind, world.now - oldest)
    assert {v for v, *_ in world.jobs} == VIEWS.keys()
    longest = 2 if policy == "oldest" or busy else 8  # other policies are overruled when a task has waited for long
    assert behind < longest * MINUTE


def test_a_job_of_an_upper_view_ends_where_those_below_have_versions() -> None:
    world = Simulation(VIEWS, most_rows=10_000)
    for tables in ("a", "b", "b", "a", "c"):
        world.commit(tables)
        if tables == "b":
            assert world.manager.turn()
    assert world.jobs == [(1, 0, 1), (2, 0, 3)], "view 3 has not waited for long, and gets one job for all"
    world.commit("b")
    world.now += 11_000_000
    assert world.manager.turn()
    assert world.jobs[-1] == (3, 0, 3), "view 1 has a task at 4, and a version at 3"
    assert world.manager.turn()
    assert world.jobs[-1] == (4, 0, 3)


def test_a_view_whose_jobs_take_long_does_not_hold_up_the_others_beside_foreground_work() -> None:
    """Law: it gives way after its time, and is protected for longer when the others had their turn."""
    views = {i: (frozenset("ab"), ()) for i in range(1, 5)}
    world = Simulation(views, most_rows=10_000, busy=True)
    world.during = _query_every_200_ms(world, {1: 45.0, 2: 5.0, 3: 5.0, 4: 5.0})
    done = _first_jobs(world, 60)
    assert done.keys() == {2, 3, 4}
    assert _first_jobs(world, 600).keys() == views.keys()


def test_the_start_of_spark_does_not_use_up_the_time_of_a_protected_job() -> None:
    """Law: it is protected from when it has an engine."""
    world = Simulation(ONE, busy=True, start=40_000_000)
    world.during = _query_every_200_ms(world, {1: PROTECTED - 1})
    world.commit("a")
    world.now += 11_000_000
    asked: list[bool] = []
    run = world.manager._run

    def starting(job: CurrentJob) -> bool:
        world.now += 1_000_000
        world.manager.give_way()
        world.now += 100_000_000
        world.manager.look_again(is_foreground=True)
        asked.append(job.interruption.requested)
        return run(job)

    world.manager._run = starting
    assert world.manager.turn()
    assert (asked, world.jobs) == ([False], [(1, 0, 1)])


def test_a_job_that_begins_beside_foreground_work_is_kept_small_unless_its_deadline_is_near() -> None:
    world = Simulation(ONE)
    beside: list[bool] = []
    world.during = lambda job: beside.append(job.is_beside)
    for busy in (False, True):
        world.commit("a")
        world.now += MINUTE
        world.busy = busy
        assert world.manager.turn()
    look = world.manager._look
    world.manager._look = lambda: [replace(c, deadline=world.now + MINUTE) for c in look()]
    world.commit("a")
    assert world.manager.turn()
    assert beside == [False, True, False]


def test_a_job_that_gave_way_three_times_is_protected() -> None:
    """Law: and no sooner; when it is done, the next one gives way again."""
    world = Simulation(ONE)
    world.commit("a")
    for attempt in range(GAVE_WAY + 1):
        world.arrivals = [set()]
        world.manager.turn()
        assert (world.jobs == []) == (attempt < GAVE_WAY)
    world.commit("a")
    world.arrivals = [set()]
    world.manager.turn()
    assert len(world.jobs) == 1


def test_protected_jobs_run_one_at_a_time_beside_foreground_work() -> None:
    world = Simulation({1: (frozenset("a"), ()), 2: (frozenset("a"), ())})
    world.commit("a")
    world.busy = True
    world.now += MINUTE
    inner: list[bool] = []
    world.during = lambda _: inner.append(world.manager.turn())
    assert world.manager.turn()
    assert inner == [False]
    world.busy = False
    world.during = lambda _: None
    world.settle()


def test_one_job_at_a_time_is_protected_also_while_nothing_else_runs() -> None:
    """Law: a statement that arrives finds one job at most that does not give way."""
    world = Simulation({1: (frozenset("a"), ()), 2: (frozenset("a"), ())})
    world.commit("a")
    world.now += MINUTE
    protected: list[list[bool]] = []

    def beside(_: CurrentJob) -> None:
        protected.append([job.is_protected for job in world.manager.running])

    def during(_: CurrentJob) -> None:
        world.during = beside
        world.manager.turn()

    world.during = during
    world.manager.turn()
    assert protected == [[True, False]]


def test_a_protected_job_goes_on_when_the_statement_is_gone() -> None:
    """Law: at the end of its time it gives way only to what is still there."""
    world = Simulation(ONE)
    world.commit("a")
    world.now += MINUTE

    def during(job: CurrentJob) -> None:
        world.manager.give_way()
        world.manager.look_again(is_foreground=False)
        world.now += 100_000_000
        world.manager.look_again(is_foreground=True)
        assert not job.interruption.requested

    world.during = during
    world.manager.turn()
    assert len(world.jobs) == 1

    def overtaken(job: CurrentJob) -> None:
        world.manager.give_way()
        world.now += 100_000_000
        assert not job.interruption.requested
        world.manager.look_again(is_foreground=True)
        assert job.interruption.requested

    world.commit("a")
    world.now += MINUTE
    world.during = overtaken
    world.manager.turn()
    assert len(world.jobs) == 1


# -- several workers -------------------------------------------------------------------------------


def test_workers_take_different_views_and_keep_the_order() -> None:
    """Law: while a view is maintained, another worker takes neither that view nor one above it."""
    world = Simulation(VIEWS)
    world.commit("a")
    world.commit("b")
    taken: list[int] = []

    def during(job: CurrentJob) -> None:
        taken.append(job.view.view_id)
        if len(world.manager.running) < 3:
            world.manager.turn()  # another worker

    world.during = during
    world.manager.turn()
    assert taken == [1, 2], "views 3 and 4 read them"
    assert {v for v, *_ in world.jobs} == {1, 2}
    world.during = lambda _: None
    world.settle()


def test_a_statement_has_all_jobs_give_way_but_the_one_it_waits_for() -> None:
    world = Simulation({1: (frozenset("a"), ()), 2: (frozenset("a"), ())})
    world.commit("a")

    def during(_: CurrentJob) -> None:
        if len(world.manager.running) < 2:
            world.manager.turn()
        else:
            world.manager.give_way({1})

    world.during = during
    world.manager.turn()
    assert [v for v, *_ in world.jobs] == [1]


def test_views_that_a_rewriting_reads_go_first_if_they_can_and_hold_up_nothing() -> None:
    view = Candidate(3, oldest_at=1, newest_csn=9, rows=1, sources=(2,), helpers=(1,))
    low, helper = Candidate(2, 5, 9, 1), Candidate(1, 9, 9, 1)
    assert choose([view, helper], oldest_first, 10) is helper
    assert choose([view, low, helper], oldest_first, 10) is low
    assert choose([view], oldest_first, 10) is view
    assert maintainable([view, helper], [view], 10) == [view]


def test_a_lower_view_inherits_the_haste_of_those_above() -> None:
    """Law: so an old task of an upper view does not wait for a young one of a lower view."""
    high = Candidate(3, oldest_at=0, newest_csn=9, rows=1, sources=(2,))
    mid = Candidate(2, oldest_at=8 * MINUTE, newest_csn=9, rows=1, sources=(1,))
    low = Candidate(1, oldest_at=9 * MINUTE, newest_csn=9, rows=1)
    other = Candidate(7, oldest_at=MINUTE, newest_csn=9, rows=1)
    hasty = inherited([high, mid, low, other], 9 * MINUTE)
    assert [c.oldest_at for c in hasty] == [0, 0, 0, MINUTE]
    assert choose([c for c in hasty if c.view_id != 3], oldest_first, 9 * MINUTE) == replace(low, oldest_at=0)
    late = replace(high, deadline=10 * MINUTE)
    assert [c.deadline for c in inherited([late, mid, low], 9 * MINUTE)] == [10 * MINUTE] * 3
    assert [c.deadline for c in inherited([late, mid, low], -9 * HOUR)] == [10 * MINUTE, None, None]


def test_threads_take_no_view_twice() -> None:
    """Law: any number of workers at once: jobs of one view follow each other, and all views arrive."""
    world = Simulation(VIEWS, most_rows=1)
    for _ in range(5):
        world.commit("a", "b", "c")
    begun: list[int] = []
    twice: list[int] = []
    together: list[int] = []

    def during(job: CurrentJob) -> None:
        if job.view.view_id in begun:
            twice.append(job.view.view_id)
        begun.append(job.view.view_id)
        together.append(len(begun))
        time.sleep(0.001)
        begun.remove(job.view.view_id)

    world.during = during

    def work() -> None:
        for _ in range(10_000):
            if not any(world.tasks(v) for v in VIEWS):
                return
            if not world.manager.turn():
                time.sleep(0.001)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert twice == []
    assert world.frontiers == dict.fromkeys(VIEWS, 5)
    assert len(world.jobs) == 20
    assert max(together) > 1


def test_no_job_begins_once_a_statement_has_begun() -> None:
    """Law: a statement counts as work before it makes way, and a job is known before the last look for work: whichever
    comes first, the other sees it."""
    world = Simulation(ONE)
    world.commit("a")
    answers = [False, True]
    known: list[bool] = []

    def is_busy() -> bool:
        known.append(bool(world.manager.running))
        return answers.pop(0)

    world.manager._is_busy = is_busy
    assert not world.manager.turn()
    assert known == [False, True]
    assert world.jobs == []
    assert not world.manager.running


def test_a_job_that_was_cancelled_before_it_began_does_not_begin() -> None:
    world = Simulation(ONE)
    world.commit("a")
    begun: list[int] = []

    def run(job: CurrentJob) -> bool:
        world.manager.give_way()
        with job.interruption.broken_off_by(lambda: None):
            begun.append(job.view.view_id)
        return True

    world.manager._run = run
    assert world.manager.turn()
    assert begun == []


def test_when_told_to_stop_it_cancels_even_what_is_urgent_and_begins_nothing() -> None:
    world = Simulation(ONE)
    world.commit("a")
    world.now += HOUR

    def run(job: CurrentJob) -> bool:
        world.manager.give_way()
        assert not job.interruption.requested
        world.manager.stop()
        stop_if_asked("job")
        raise AssertionError("it went on")

    world.manager._run = run
    assert world.manager.turn()
    assert not world.manager.turn()


def test_a_query_needs_the_views_that_it_reads_and_all_below() -> None:
    def view(id_: int, *sources: int) -> Relation:
        entries = {f"s{i}": {"id": i, "columns": []} for i in sources}
        return Relation(id_, f"v{id_}", "view", 1, 1, SCHEMA, 1, facts={"sources": json.dumps(entries)})

    views = {4: view(4, 1), 5: view(5, 4, 2), 6: view(6, 5), 7: view(7, 4)}
    assert with_lower([6], views) == {6, 5, 4}
    assert with_lower([7, 1], views) == {7, 4}
    assert with_lower([], views) == set()


def test_what_a_thread_waits_for_is_broken_off_again_and_again() -> None:
    """Law: a thread that begins to wait just after it was asked to stop is stopped all the same, and nobody after."""
    interruption, waiting, calls = Interruption(), threading.Event(), []

    def stop() -> None:
        calls.append(threading.current_thread())
        if len(calls) >= 3:
            waiting.set()

    with interruption.here(), interruption.broken_off_by(stop):
        stop_if_asked("job")
        interruption.request()
        interruption.request()
        assert waiting.wait(30)
        with pytest.raises(Cancelled, match="make way"):
            stop_if_asked("job")
    assert len({*calls}) == 2
    stop_if_asked("another job of this thread")
    with pytest.raises(Cancelled), interruption.broken_off_by(stop):
        raise AssertionError("it began")


def test_work_hurries_once_at_its_first_step_after_its_priority_was_raised() -> None:
    """Law: in its own thread, to which the priority belongs; and not if it ended before."""
    interruption, calls = Interruption(gives_way=True), []
    with interruption.here():
        assert gives_way()
        with interruption.hurried_by(lambda: calls.append("too late")):
            stop_if_asked("job")
        with interruption.hurried_by(lambda: calls.append("hurry")):
            stop_if_asked("job")
            raising = threading.Thread(target=interruption.raise_priority)
            raising.start()
            raising.join()
            assert calls == []
            for _ in range(2):
                stop_if_asked("job")
        assert not gives_way()
    assert calls == ["hurry"]
    assert not gives_way(), "a thread without such work is in the foreground"


def test_the_loop_goes_on_at_once_while_there_is_work_and_stops_when_told() -> None:
    turns, done = [], threading.Event()

    def turn() -> bool:
        turns.append(1)
        if len(turns) == 5:
            done.set()
        return len(turns) < 5

    loop = Loop("test", 0.01, turn, Events())
    assert done.wait(10)
    loop.stop()
    before = len(turns)
    done.wait(0.05)
    assert len(turns) == before


def test_a_listener_that_fails_does_not_end_a_loop() -> None:
    events, again, turns = Events(), threading.Event(), []

    def turn() -> None:
        turns.append(1)
        if len(turns) == 2:
            again.set()
        raise StorageUnavailable("folder", "is gone")

    def fails(_: object) -> None:
        raise ValueError("a listener that fails")

    events.listen(fails)
    loop = Loop("test", 0.01, turn, events)
    try:
        assert again.wait(20)
    finally:
        loop.stop()
