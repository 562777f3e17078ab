"""Tasks: the commits beyond each view's frontier, of the tables it reads directly or through other views."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st
from tests.catalog.view_world import BAG, Process, World
from tests.internals import internals

from freshview import Warehouse
from freshview.catalog import expiring
from freshview.catalog import tables as t
from freshview.catalog.engine import Database, sqlite_url
from freshview.catalog.expiring import HISTORY
from freshview.catalog.frontiers import Job, ViewStep
from freshview.catalog.lineage import lower_first, source_ids
from freshview.catalog.migrations import STEPS, migrate
from freshview.catalog.records import Backlog, Commit, Frontier, Relation, Task
from freshview.catalog.uses import UseHistory, used_again
from freshview.catalog.views import ViewCatalog
from freshview.catalog.writer import Catalog
from freshview.refresh.tasks import combined, pending
from freshview.sql.statements import Show
from freshview.warehouse.show import show


def took(view: Relation, start: int, end: int) -> Job:
    """A job that took a view from one CSN to another."""
    ended = Job(view_id=view.id, from_csn=start, to_csn=end, strategy="incremental", seconds=0.5)
    return replace(ended, tasks=1, delta_rows=1, view_rows=1)


def test_a_task_is_a_transaction_that_touched_what_a_view_reads(process: Process) -> None:
    """Law: one task per view and transaction, with all its updated tables; none for other tables or DDL."""
    a, b, c = (process.table(n) for n in "abc")
    low = process.view("low", a)
    high = process.view("high", low, b)
    one = process.put({"a": {1: 1}})
    process.put({"c": {1: 1}})
    process.catalog.rename("a", "renamed")
    both = process.put({"renamed": {2: 2, 3: 3}, "b": {1: 1}})
    tasks = process.views.tasks()
    assert [(k.view_id, k.csn, k.tables, k.rows) for k in tasks] == [
        (low.id, one, (a.id,), 1),
        (high.id, one, (a.id,), 1),
        (low.id, both, (a.id,), 2),
        (high.id, both, (a.id, b.id), 3),
    ]
    commits = {c.csn: c for c in process.catalog.commits()}
    assert all((k.txsn, k.committed_at) == (commits[k.csn].txsn, commits[k.csn].committed_at) for k in tasks)
    assert {k.stmtsn for k in tasks} == {0}
    assert c.id not in {i for k in tasks for i in k.tables}


def test_tasks_go_with_the_maintenance_commit_and_with_the_view(process: Process) -> None:
    a = process.table("a")
    low = process.view("low", a)
    other = process.view("other", a)
    csn = process.put({"a": {1: 1}})
    process.jobs.bring(low, csn)
    assert [k.view_id for k in process.views.tasks()] == [other.id]
    process.views.drop(other)
    assert process.views.tasks() == []


def test_a_commit_writes_nothing_per_view(process: Process) -> None:
    """Law: with ten views a commit leaves the same rows in the catalog as with none."""

    tables = t.metadata.sorted_tables

    def rows() -> dict[str, int]:
        with process.catalog.database.read() as c:
            return {x.name: c.execute(sa.select(sa.func.count(1)).select_from(x)).scalar_one() for x in tables}

    a = process.table("a")
    growth = []
    for _ in range(2):
        before = rows()
        process.put({"a": {1: 1}})
        growth.append({n: k - before[n] for n, k in rows().items()})
        for i in range(10):
            process.catalog.find(f"v{i}") or process.view(f"v{i}", a)
    assert growth[0] == growth[1]
    assert {n for n, k in growth[0].items() if k} == {"fv_commits", "fv_segments"}


def test_what_is_pending_and_its_age(world: World, process: Process) -> None:
    a = process.table("a")
    view = process.view("v", a)
    assert pending(process.views, view, process.catalog.snapshot()).tasks == ()
    first = process.put({"a": {1: 1}})
    world.now += 7_000_000
    last = process.put({"a": {2: 2, 3: 3}})
    world.now += 1_000_000
    left = pending(process.views, view, last)
    assert (len(left.tasks), left.rows, round(left.age(world.now).total_seconds())) == (2, 3, 8)
    assert len(pending(process.views, view, first).tasks) == 1
    oldest = left.tasks[0].committed_at
    assert process.views.backlogs() == [Backlog(view.id, 2, 3, oldest, last, first)]


def test_show_tasks(world: World, process: Process) -> None:
    a, b = process.table("a"), process.table("b")
    process.view("v", a, b)
    process.view("w", b)
    csn = process.put({"a": {1: 1, 2: 2}, "b": {1: 1}})
    world.now += 2_000_000
    shown = show(process.catalog, Show("tasks"))
    assert shown.columns == ("view", "txsn", "csn", "stmtsn", "tables", "rows", "age", "status")
    txsn = str(process.views.tasks()[0].txsn)
    assert list(shown.rows) == [
        ("v", txsn, str(csn), "0", "a, b", "3", "2.0 s", "pending"),
        ("w", txsn, str(csn), "0", "b", "1", "2.0 s", "pending"),
    ]
    assert [r[0] for r in show(process.catalog, Show("tasks", "w*")).rows] == ["w"]
    seen = []
    process.before = lambda *_: seen.append([r[-1] for r in show(process.catalog, Show("tasks")).rows])
    process.jobs.bring(process.catalog.relation("v"), csn)
    assert seen == [["in progress", "pending"]]


def test_views_with_nothing_to_do_move_with_the_newest_commit(process: Process) -> None:
    """Law: a view whose tables rest holds back no version of others; one that has tasks stays where it is."""
    a, b = process.table("a"), process.table("b")
    idle, stale = process.view("idle", a), process.view("stale", b)
    start = process.views.frontier(stale)
    old = process.put({"a": {1: 1}})
    process.jobs.bring(idle, old)
    newest = process.put({"b": {1: 1}})
    assert process.views.advance(newest) == 1
    assert (process.views.frontier(idle), process.views.frontier(stale)) == (newest, start)
    assert process.shown(idle, old) == process.shown(idle, newest) == process.defined(idle, old)
    assert process.views.advance(newest) == 0


_TASKS = st.lists(st.integers(1, 30), min_size=1, max_size=8, unique=True).map(sorted)


@given(_TASKS, st.data())
def test_a_combined_run_stops_at_snapshots_and_at_its_size(csns: list[int], data: st.DataObject) -> None:
    """Law: no snapshot lies between two tasks of one run; one of several is within the size; the longest is taken."""
    sizes = data.draw(st.lists(st.integers(0, 10), min_size=len(csns), max_size=len(csns)))
    snapshots = data.draw(st.lists(st.integers(0, 31), max_size=4))
    most = data.draw(st.integers(1, 30))
    tasks = [Task(1, 0, c, 0, 0, (1,), n) for c, n in zip(csns, sizes, strict=True)]

    def is_allowed(end: int) -> bool:
        run = [k for k in tasks if k.csn <= end]
        cut = any(run[0].csn <= s < end for s in snapshots)
        return len(run) == 1 or (not cut and sum(k.rows for k in run) <= most)

    assert combined(tasks, snapshots, most) == max(c for c in csns if is_allowed(c))


def test_an_older_catalog_learns_of_uses(tmp_path: Path) -> None:
    database = Database(sqlite_url(tmp_path / "catalog.db"))
    migrate(database, STEPS[:1])
    with database.write() as c:  # as the first version made it
        c.execute(sa.text("DROP TABLE fv_uses"))
        c.execute(sa.text("DROP INDEX fv_jobs_version"))
    migrate(database)
    views = ViewCatalog(Catalog(database))
    assert views.uses() == {}
    with database.read() as c:
        assert [i["name"] for i in sa.inspect(c).get_indexes("fv_jobs")] == ["fv_jobs_version"]
    database.close()


def test_uses_of_views_are_kept_until_the_view_goes(process: Process) -> None:
    view = process.view("v", process.table("a"))
    process.views.note_uses({view.id: (1, 100), 999: (5, 100)})
    process.views.note_uses({view.id: (2, 300)})
    assert process.views.uses() == {view.id: UseHistory(3, 300, 100)}
    assert used_again(UseHistory(3, 300, 100), 1, 600) == UseHistory(4, 600, 160)
    process.views.drop(view)
    assert process.views.uses() == {}


def test_both_kinds_of_catalog_answer_alike(open_warehouse: Callable[[], Warehouse]) -> None:
    wh = open_warehouse()
    wh.sql("CREATE TABLE a (k INT, v INT, PRIMARY KEY (k))")
    catalog, views = internals(wh).catalog, internals(wh).views.catalog
    a, start = catalog.relation("a"), catalog.snapshot()
    facts = {"sources": "{}", "columns": "[]"}
    view, created = views.create(catalog.reserve_id(), "v", BAG, {}, facts, [a], [], [], start)
    assert views.advance(created) == 1
    with wh.transaction() as tx:
        tx.upsert("a", [{"k": 1, "v": 1}])
    csn = catalog.snapshot()
    (task,) = views.tasks()
    assert (task.csn, task.tables, task.rows) == (csn, (a.id,), 1)
    assert views.pending(view, csn) == (Frontier(created), [task])
    assert views.backlogs() == [Backlog(view.id, 1, 1, task.committed_at, csn, csn)]
    assert views.advance(csn) == 0
    pin = catalog.begin(at=created)
    catalog.begin("job", at=created)
    assert views.snapshots(start, csn) == [created]
    catalog.release(pin)
    assert views.snapshots(start, csn) == []
    assert (views.stored_at(view, created), views.stored_at(view, csn), views.next_version(view, csn)) == (
        created,
        None,
        None,
    )
    lease = catalog.lease(view.id, "job", f"job-{view.id}")
    assert lease is not None
    assert views.in_progress() == {view.id}
    job = replace(took(view, created, csn), view="v", rows_in=1, phases={"compute": 0.5})
    step = ViewStep(view, Frontier(created), csn, (), (), job)
    assert views.apply([step])
    assert not views.apply([step])
    assert views.history(view) == [job]
    assert (views.stored_at(view, created), views.stored_at(view, csn), views.stored_at(view, start)) == (
        created,
        csn,
        created,
    )
    views.note_uses({view.id: (1, 5)})
    assert views.uses() == {view.id: UseHistory(1, 5, 0)}


def test_several_views_move_together_or_not_at_all(open_warehouse: Callable[..., Warehouse]) -> None:
    wh = open_warehouse()
    wh.sql("CREATE TABLE a (k INT, v INT, PRIMARY KEY (k))")
    catalog, views = internals(wh).catalog, internals(wh).views.catalog
    a, start = catalog.relation("a"), catalog.snapshot()
    facts = {"sources": "{}", "columns": "[]"}
    made = [views.create(catalog.reserve_id(), name, BAG, {}, facts, [a], [], [], start)[0] for name in ("v", "w")]
    end = catalog.snapshot()

    def step(view: Relation, start: int, end: int) -> ViewStep:
        return ViewStep(view, Frontier(start), end, (), (), took(view, start, end))

    assert not views.apply([step(made[0], start, end), step(made[1], end, end)])  # the second is elsewhere
    assert [views.frontier(view) for view in made] == [start, start]
    assert views.history() == []
    assert views.apply([step(view, start, end) for view in made])
    assert [views.frontier(view) for view in made] == [end, end]
    assert [job.view_id for job in views.history()] == [view.id for view in made]


def test_what_was_learnt_of_costs_is_kept_with_the_frontier(open_warehouse: Callable[..., Warehouse]) -> None:
    """It comes with the job that taught it, or not at all; it outlives the process, and goes with the view."""
    wh = open_warehouse()
    wh.sql("CREATE TABLE a (k INT, v INT, PRIMARY KEY (k))")
    catalog, views = internals(wh).catalog, internals(wh).views.catalog
    a, start = catalog.relation("a"), catalog.snapshot()
    facts = {"sources": "{}", "columns": "[]"}
    view, end = views.create(catalog.reserve_id(), "v", BAG, {}, facts, [a], [], [], start, factors={"full": 2.0})
    assert views.factors(view) == {"full": 2.0}
    job = replace(took(view, start, end), expected=0.5, otherwise=3.0)
    step = ViewStep(view, Frontier(start), end, (), (), job, factors={"full": 1.9, "spark": 4.0})
    assert views.apply([step])
    assert not views.apply([replace(step, factors={"full": 9.0})])  # it has moved on
    views.apply([replace(step, start=Frontier(end), factors={})])  # a job that teaches nothing
    wh.close()
    again = internals(open_warehouse()).views.catalog
    assert again.factors(view) == {"full": 1.9, "spark": 4.0}
    assert [(j.expected, j.otherwise) for j in again.history(view)] == [(0.5, 3.0)] * 2
    again.drop(view)
    assert again.factors(view) == {}


def test_views_are_ordered_by_what_they_read_not_by_age() -> None:
    def relation(id_: int, *reads: int) -> Relation:
        sources = json.dumps({f"r{i}": {"id": i} for i in reads})
        return Relation(id_, f"r{id_}", "view" if reads else "table", 1, 1, BAG, 1, facts={"sources": sources})

    every = [relation(1), relation(2, 1, 5), relation(3, 2), relation(4, 1), relation(5, 4)]  # 2 reads a younger one
    place = {r.id: n for n, r in enumerate(lower_first(every))}
    assert len(place) == len(every)
    assert all(place[below] < place[r.id] for r in every for below in source_ids(r).values())


def test_history_goes_when_it_is_old_and_behind_all_that_can_be_read(world: World, process: Process) -> None:
    a = process.table("a")
    behind, fresh = process.view("behind", a), process.view("fresh", a)
    for value in range(3):
        process.put({"a": {1: value}})
        process.jobs.bring(fresh, process.catalog.snapshot())
    told = len(process.catalog.commits()), len(process.views.history())
    process.catalog.expire(0)
    assert (len(process.catalog.commits()), len(process.views.history())) == told  # young
    world.now += HISTORY + 1_000_000
    process.catalog.expire(0)
    assert len(process.views.history()) == 3  # the other view has not seen these commits yet
    assert len(process.views.tasks()) == 3
    process.jobs.bring(behind, process.catalog.snapshot())
    process.put({"a": {1: 9}})
    for view in (behind, fresh):
        process.jobs.bring(view, process.catalog.snapshot())
    process.catalog.expire(0)
    newest = process.catalog.snapshot()
    assert [c.csn for c in process.catalog.commits()] == [newest]
    assert {j.to_csn for j in process.views.history(fresh)} == {newest}
    assert process.stored(fresh, newest) == process.defined(fresh, newest)


def test_a_commit_within_a_job_stays_as_long_as_the_jobs_end_can_be_read(world: World, process: Process) -> None:
    """Law: a view as of a CSN inside a job is not read from where the job began, if a commit lies between, however old.
    Of commits that are gone it is not assumed that there were none."""
    hour = 3_600_000_000
    a, b = process.table("a"), process.table("b")
    view = process.view("v", a)
    process.put({"a": {1: 1}})
    process.jobs.bring(view, process.catalog.snapshot())
    within = process.put({"a": {1: 2}})
    world.now += HISTORY + 120 * hour
    for value in range(3):
        process.put({"b": {1: value}})
    process.jobs.bring(process.view("w", b), inside := process.catalog.snapshot())
    world.now += 24 * hour
    process.jobs.bring(view, process.put({"a": {1: 3}}))
    world.now += hour
    assert process.catalog.expire(24 * hour)[0] > within
    assert within in {commit.csn for commit in process.catalog.commits()}
    assert process.shown(view, inside) in (None, process.defined(view, inside))
    with process.catalog.database.write() as c:  # as earlier releases deleted it
        c.execute(t.commits.delete().where(t.commits.c.csn <= within))
    assert process.stored(view, inside) != process.defined(view, inside)
    assert process.shown(view, inside) is None


def test_a_past_state_is_not_taken_for_one_before_commits_that_were_forgotten(world: World, process: Process) -> None:
    """Law: history that is forgotten changes no answer. A job led from before all readable states to one after them:
    whether its first version still holds in between is told by commits that are as old."""
    view = process.view("v", process.table("a"))
    process.table("b")
    process.put({"a": {1: 1}})
    process.put({"b": {1: 1}})
    world.now += HISTORY + 1_000_000
    between = process.put({"b": {1: 2}})
    end = process.put({"a": {1: 2}})
    process.jobs.bring(view, end)
    process.catalog.expire(1_000_000)
    assert process.catalog.horizon() <= between
    assert process.shown(view, between) in (None, process.defined(view, between))
    assert process.stored(view, end) == process.defined(view, end)
    world.now += HISTORY + 1_000_000
    process.put({"a": {1: 3}})
    process.jobs.bring(view, process.catalog.snapshot())
    process.catalog.expire(0)
    assert [c.csn for c in process.catalog.commits()] == [process.catalog.snapshot()]


@pytest.mark.parametrize("most", [1, 2, 3, 5, 100])
@pytest.mark.parametrize("rounds", [True, False])
def test_old_history_goes_in_transactions_of_bounded_size(
    open_warehouse: Callable[[], Warehouse], monkeypatch: pytest.MonkeyPatch, most: int, rounds: bool
) -> None:
    """Law: the oldest commits go first, and all rows of a CSN at once, else `changed` would take a commit that is gone
    for one that never was. A round of the background deletes as much as one transaction does; VACUUM deletes all."""
    monkeypatch.setattr(expiring, "HISTORY_ROWS", most)
    wh = open_warehouse()
    catalog = internals(wh).catalog
    for name in "ab":
        wh.sql(f"CREATE TABLE {name} (k INT, v INT, PRIMARY KEY (k))")
    for value in range(8):
        with wh.transaction() as tx:
            for name in "ab":
                tx.upsert(name, [{"k": 1, "v": value}])
        ViewCatalog(catalog).record(took(internals(wh).relation("a"), 0, 0))
    with internals(wh).writing_database() as c:
        c.execute(t.commits.update().values(committed_at=t.commits.c.committed_at - HISTORY - 1))
        c.execute(t.jobs.update().values(finished_at=t.jobs.c.finished_at - HISTORY - 1))
    whole, newest, jobs = internals(wh).commits(), catalog.snapshot(), 8

    def left() -> tuple[list[Commit], int]:
        with internals(wh).reading_database() as c:
            return internals(wh).commits(), c.execute(sa.select(sa.func.count()).select_from(t.jobs)).scalar_one()

    sizes = [(len(whole), jobs)]
    for _ in range(30 if rounds else 1):
        catalog.expire(0, () if rounds else None)
        commits, jobs = left()
        kept = {commit.csn for commit in commits}
        assert commits == [commit for commit in whole if commit.csn >= min(kept)]
        sizes.append((len(commits), jobs))
    assert ({commit.csn for commit in left()[0]}, jobs) == ({newest}, 0)
    if rounds:
        assert all(a - b <= max(most, 2) for (a, _), (b, _) in pairwise(sizes))
        assert all(a - b <= most for (_, a), (_, b) in pairwise(sizes))
