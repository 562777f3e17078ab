"""Who holds back what, how far views are, what was measured: reports tell it, and vacuum keeps to it."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NoReturn

import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.catalog.view_world import BAG, Process, World
from tests.effort import examples
from tests.internals import internals

from freshview import Warehouse
from freshview.catalog import tables as t
from freshview.catalog.frontiers import Job
from freshview.catalog.records import Pin, Relation
from freshview.catalog.reports import Amount, Measures, Reports, overdue
from freshview.catalog.views import ViewCatalog
from freshview.catalog.writer import LIFETIME, Catalog
from freshview.events import Event
from freshview.sql.statements import Show
from freshview.storage.checkpoint import Checkpointer
from freshview.storage.vacuum import RETENTION, VacuumReport, vacuum
from freshview.warehouse.overview import overview
from freshview.warehouse.show import show

NOW = timedelta(0)
SECOND = 1_000_000
HOUR = 3600 * SECOND
DAY = 24 * HOUR


def clean(process: Process, retention: timedelta = NOW) -> VacuumReport:
    return vacuum(process.catalog, process.storage, process.events, retention)


def fold(process: Process, relation: Relation) -> None:
    def engine() -> NoReturn:
        raise AssertionError("no Spark here")

    Checkpointer(process.catalog, process.storage, process.events, engine).run(relation)


def stock(catalog: Catalog) -> Amount:
    """All that is stored now."""
    s, m = t.segments.c, t.mains
    with catalog.database.read() as c:
        segments = c.execute(sa.select(sa.func.count(), sa.func.sum(s.rows), sa.func.sum(s.bytes))).one()
        mains = c.execute(sa.select(sa.func.count()).select_from(m)).scalar_one()
    return Amount(segments[0], segments[1] or 0, segments[2] or 0, mains)


def moment(micros: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)


# -- what holds space ------------------------------------------------------------------------------


def test_a_view_with_tasks_holds_all_from_its_frontier_on(world: World, process: Process) -> None:
    a = process.table("a")
    view = process.view("v", a)
    first = process.put({"a": {1: 1}})
    since = process.catalog.commits()[-1].committed_at
    process.put({"a": {2: 2, 3: 3}})
    fold(process, a)
    world.now += 10 * SECOND
    (holder,) = Reports(process.catalog).holders(NOW)
    assert (holder.kind, holder.name, holder.csn, holder.since) == ("view", "v", first - 2, moment(since))
    assert holder.age == timedelta(microseconds=world.now - since)
    assert (holder.keeps.segments, holder.keeps.rows, holder.keeps.checkpoints) == (2, 3, 0)
    assert holder.keeps.bytes == sum(s.size for s in process.catalog.segments([a.id], -1)) > 0
    assert "view v" in str(holder)
    assert "REFRESH MATERIALIZED VIEW v, or drop it" in str(holder)
    process.jobs.bring(view, process.catalog.snapshot())
    assert Reports(process.catalog).holders(NOW) == ()


def test_a_view_with_nothing_to_do_holds_nothing(process: Process) -> None:
    """Law: what no task needs goes, though no background loop has moved the view along."""
    a, b = process.table("a"), process.table("b")
    idle = process.view("idle", a)
    for v in range(3):
        newest = process.put({"b": {1: v}})
    fold(process, b)
    assert Reports(process.catalog).holders(NOW) == ()
    assert clean(process).horizon == newest
    assert process.catalog.segments([b.id], -1) == []
    assert process.views.frontier(idle) == newest
    assert process.shown(idle, newest) == Counter()


def test_an_open_snapshot_is_named_with_its_owner(world: World, process: Process) -> None:
    theirs = world.process()
    a = process.table("a")
    pin = theirs.catalog.begin()
    begun = process.begin()
    assert Reports(process.catalog).holders(NOW) == ()  # nothing is newer, so nothing is held
    world.now += SECOND
    process.put({"a": {1: 1}})
    since = process.catalog.commits()[-1].committed_at
    world.now += SECOND
    first, second = Reports(process.catalog).holders(NOW)
    assert (first.kind, first.csn, first.since) == ("snapshot", pin.csn, moment(since))
    assert first.name.startswith("transaction of ")
    assert theirs.catalog._owner.startswith(first.name.removeprefix("transaction of "))
    assert "End it" in str(first)
    theirs.catalog.release(pin)
    begun.rollback()
    assert second.csn == first.csn
    assert Reports(process.catalog).holders(NOW) == ()
    assert a.id


def test_a_snapshot_of_the_past_is_as_old_as_its_query(world: World, process: Process) -> None:
    """Law: who asks today for what was yesterday has not held it since."""
    process.table("a")
    old = process.put({"a": {1: 1}})
    process.put({"a": {1: 2}})
    world.now += 2 * DAY
    process.catalog.begin("query", at=old)
    (holder,) = [h for h in Reports(process.catalog).holders(RETENTION) if h.kind == "snapshot"]
    assert (holder.csn, holder.since) == (old, moment(world.now))
    assert overdue([holder], RETENTION) == []


def test_a_snapshot_whose_owner_is_gone_holds_nothing(world: World, process: Process) -> None:
    process.table("a")
    process.catalog.begin()
    process.put({"a": {1: 1}})
    world.now += LIFETIME + 1
    assert Reports(process.catalog).holders(NOW) == ()


def test_retention_is_a_holder_that_is_never_overdue(world: World, process: Process) -> None:
    a = process.table("a")
    process.put({"a": {1: 1}})
    world.now += 2 * DAY
    process.put({"a": {1: 2}})
    fold(process, a)
    (holder,) = Reports(process.catalog).holders(RETENTION)
    assert (holder.kind, holder.csn, holder.since) == ("retention", 2, moment(world.now - DAY))
    assert holder.keeps.segments == 2
    assert overdue([holder], NOW) == []
    world.now += 2 * DAY
    assert Reports(process.catalog).holders(RETENTION) == ()


def test_retention_keeps_what_a_young_checkpoint_replaced(world: World, process: Process) -> None:
    """Law: the files that a DataFrame may still read are kept for the retention; the report says by whom."""
    a = process.table("a")
    process.put({"a": {1: 1}})
    world.now += 2 * DAY
    fold(process, a)
    (holder,) = Reports(process.catalog).holders(RETENTION)
    assert (holder.kind, holder.csn, holder.keeps.segments) == ("retention", process.catalog.snapshot(), 1)


def test_vacuum_tells_who_holds_back_for_longer_than_the_retention(world: World, process: Process) -> None:
    heard: list[Event] = []
    process.events.listen(heard.append)
    a = process.table("a")
    low = process.view("low", a)
    process.view("high", low)
    process.put({"a": {1: 1}})
    fold(process, a)
    world.now += DAY - SECOND
    assert clean(process, RETENTION).held_by == ""
    world.now += 2 * SECOND
    told = clean(process, RETENTION)
    size = process.catalog.segments([a.id], -1)[0].size
    assert told.held_by == (
        "view low has tasks that wait since 1970-01-12 13:46:40 UTC; this and 1 more, as status() lists, keep "
        f"1 segment (1 row, {size} bytes) and 0 superseded checkpoints from going. "
        "REFRESH MATERIALIZED VIEW low, or drop it."
    )
    assert [e.details["holder"] for e in heard if e.name == "vacuum.held"] == ["low", "high"]
    process.jobs.bring(process.catalog.relation("high"), process.catalog.snapshot())
    assert clean(process, RETENTION).held_by == ""


def test_a_warehouse_tells_who_holds_back(open_warehouse: Callable[[], Warehouse]) -> None:
    """status() reports the holder on both kinds of catalog, and does not change while only time passes."""
    wh = open_warehouse()
    wh.sql("CREATE TABLE a (k INT, v INT, PRIMARY KEY (k))")
    catalog = internals(wh).catalog
    a, start = catalog.relation("a"), catalog.snapshot()
    facts = {"sources": json.dumps({"a": {"id": a.id, "columns": ["k", "v"]}}), "columns": "[]"}
    ViewCatalog(catalog).create(catalog.reserve_id(), "v", BAG, {}, facts, [a], [], [], start)
    with wh.transaction() as tx:
        tx.upsert("a", [{"k": 1, "v": 1}])
    wh.sql("CHECKPOINT a")
    wh.vacuum(NOW)
    status = wh.status()
    assert {h.kind for h in status.holders} == {"view", "retention"}
    view = next(h for h in status.holders if h.kind == "view")
    assert (view.name, view.csn, status.horizon, status.held_by) == ("v", start, start, "")
    assert view.keeps == Amount(1, 1, stock(catalog).bytes, 0)  # with retention, which goes back as far
    held = [line.split() for line in str(status).partition("held back from vacuum:")[2].splitlines()[2:]]
    assert [(line[0], line[-4], line[-3]) for line in held] == [("retention", "1", "1"), ("view", "1", "1")]
    (shown,) = status.views
    assert (shown.name, shown.mode, shown.eager, shown.frontier) == ("v", "lazy", False, start)
    assert (shown.pending_tasks, shown.pending_rows) == (1, 1)
    assert shown.age > NOW
    assert wh.status() == status
    with catalog.database.write() as c:  # all of that was two days ago
        c.execute(t.commits.update().values(committed_at=t.commits.c.committed_at - 2 * DAY))
        c.execute(t.clock.update().values(committed_at=t.clock.c.committed_at - 2 * DAY))
    assert wh.status() == status
    assert wh.status().held_by.startswith("view v has tasks that wait since ")


# -- things go exactly when nothing needs them -----------------------------------------------------


class Game:
    """Tables, views, snapshots, checkpoints and vacuums at random, and what every version should hold."""

    def __init__(self, folder: Path, draw: random.Random) -> None:
        self.draw = draw
        self.world = World(folder)
        self.process = self.world.process()
        p = self.process
        self.tables = [p.table(n) for n in "ab"]
        low = p.view("low", self.tables[0])
        self.views = [low, p.view("high", low, self.tables[1]), p.view("other", self.tables[1])]
        self.pins: list[Pin] = []
        self.rows: dict[str, dict[int, int]] = {"a": {}, "b": {}}
        self.at: dict[int, dict[str, Counter[tuple[int, int]]]] = {}
        self.note()

    def note(self) -> None:
        self.at[self.process.catalog.snapshot()] = {n: Counter(rows.items()) for n, rows in self.rows.items()}

    def step(self) -> None:
        p, draw = self.process, self.draw
        self.world.now += draw.choice([0, SECOND, HOUR])
        p.catalog.heartbeat()
        match draw.choice(["put", "put", "put", "bring", "pin", "release", "fold", "fold", "drop", "vacuum"]):
            case "put":
                name = draw.choice("ab")
                new = {draw.randrange(4): draw.randrange(100) for _ in range(draw.randint(1, 3))}
                p.put({name: new})
                self.rows[name] |= new
            case "bring":
                p.jobs.bring(draw.choice(self.views), p.catalog.snapshot())
            case "pin":
                self.pins.append(p.catalog.begin(draw.choice(["transaction", "query"])))
            case "release" if self.pins:
                p.catalog.release(self.pins.pop(draw.randrange(len(self.pins))))
            case "fold":
                fold(p, draw.choice([*self.tables, *self.views]))
            case "drop":
                spare = p.table(f"spare{p.catalog.snapshot()}")
                p.put({spare.name: {1: 1}})
                p.catalog.drop(spare.name)
            case "vacuum":
                self.vacuum()
        for csn in range(max(self.at) + 1, p.catalog.snapshot()):
            self.at[csn] = self.at[max(self.at)]  # commits to neither table, before this step's
        self.note()

    def vacuum(self) -> None:
        """Law: without retention all goes that neither a task nor a snapshot needs, and nothing else."""
        catalog, views = self.process.catalog, self.process.views
        busy = {task.view_id for task in views.tasks()}
        needed = [views.frontier(v) for v in self.views if v.id in busy] + [pin.csn for pin in self.pins]
        before = {r.id: catalog.segments([r.id], -1) for r in [*self.tables, *self.views]}
        report = clean(self.process)
        assert report.horizon == min([*needed, catalog.snapshot()])
        assert [gone for _, gone in catalog.dropped() if gone <= report.horizon] == []
        for relation_id, segments in before.items():
            folded = max([m.csn for m in catalog.mains(relation_id) if m.csn <= report.horizon], default=-1)
            assert catalog.segments([relation_id], -1) == [s for s in segments if s.csn > folded]
            assert all(m.csn >= folded for m in catalog.mains(relation_id))
        for csn in (csn for csn in self.at if csn >= report.horizon):
            for table in self.tables:
                if csn >= table.created_csn:
                    found = self.process.storage.reader.contents(catalog.state(table, csn)).to_pylist()
                    assert Counter((r["k"], r["v"]) for r in found) == self.at[csn][table.name]

    def let_go(self, csn: int) -> None:
        """End all that holds this CSN."""
        for pin in [x for x in self.pins if x.csn == csn]:
            self.process.catalog.release(pin)
            self.pins.remove(pin)
        with self.process.catalog.database.write() as c:
            c.execute(t.frontiers.delete().where(t.frontiers.c.csn == csn))


@given(st.randoms(use_true_random=False))
@settings(max_examples=examples(8), deadline=None)
def test_what_nobody_needs_goes_and_nothing_else(draw: random.Random) -> None:
    with TemporaryDirectory() as folder:
        game = Game(Path(folder), draw)
        for _ in range(draw.randint(5, 40)):
            game.step()
        game.vacuum()
        newest = game.process.catalog.snapshot()
        for view in game.views:
            game.process.jobs.bring(view, newest)  # what tasks needed was there
            assert game.process.stored(view, newest) == game.process.defined(view, newest)
        game.world.close()


@given(st.randoms(use_true_random=False))
@settings(max_examples=examples(8), deadline=None)
def test_what_a_holder_is_said_to_keep_is_what_goes_without_it(draw: random.Random) -> None:
    """Law: when the oldest holder lets go, vacuum removes exactly what the report says it kept."""
    with TemporaryDirectory() as folder:
        game = Game(Path(folder), draw)
        for _ in range(draw.randint(5, 30)):
            game.step()
        catalog = game.process.catalog
        retention = draw.choice([NOW, timedelta(hours=1), timedelta(hours=5)])
        clean(game.process, retention)
        while holders := Reports(catalog).holders(retention):
            oldest = [h for h in holders if h.csn == holders[0].csn]
            game.let_go(oldest[0].csn)
            if any(h.kind == "retention" for h in oldest):
                retention = NOW
            before = stock(catalog)
            clean(game.process, retention)
            assert before - stock(catalog) == oldest[0].keeps
        assert catalog.horizon() == catalog.snapshot()
        game.world.close()


# -- views -----------------------------------------------------------------------------------------


def ended(view: Relation, what: str | None, strategy: str = "failed") -> Job:
    """A job that took two seconds and failed with an error, or went well."""
    how = strategy if what else "incremental"
    return Job(view_id=view.id, view=view.name, from_csn=1, to_csn=1, strategy=how, seconds=2.0, error=what)


def test_the_last_error_is_that_of_the_newest_job(process: Process) -> None:
    view, other = process.view("v", process.table("a")), process.view("w", process.catalog.relation("a"))
    process.views.record(ended(view, "first"))
    process.views.record(ended(view, "a cast failed"))
    process.views.record(ended(view, "gave way to a query", "cancelled"))
    process.views.record(ended(other, "gone since"))
    process.views.record(ended(other, None))
    assert [(v.name, v.last_error) for v in overview(process.catalog)] == [("v", "a cast failed"), ("w", None)]
    rows = list(show(process.catalog, Show("views")).rows)
    assert [r[6] for r in rows] == ["failed: a cast failed", "fresh"]


def test_what_was_measured_of_a_view(world: World, process: Process) -> None:
    """Commits to its tables, also through other views; jobs that ended well; of a day at most, and of its own life."""
    a, b = process.table("a"), process.table("b")
    process.put({"a": {1: 1}})  # before there were views
    low = process.view("low", a)
    high = process.view("high", low, b)
    created = process.catalog.commits()[-1].committed_at
    world.now += 2 * HOUR
    process.put({"a": {1: 2, 2: 2}, "b": {1: 1}})
    process.put({"b": {2: 2}})
    process.views.record(ended(high, None))
    process.views.record(ended(high, "not counted"))
    process.views.note_uses({high.id: (1, world.now - HOUR)})
    process.views.note_uses({high.id: (4, world.now)})
    measured = {r.view.name: r.measures for r in Reports(process.catalog).views()}
    assert (measured["low"].updates, measured["low"].rows, measured["low"].uses) == (1, 2.0, 0)
    assert measured["low"].queries_per_hour is None
    hours = (world.now - created) / HOUR
    assert measured["high"] == Measures(hours, 2, 2.0, 5, 4.0, 1, 2.0)
    assert measured["high"].updates_per_hour == pytest.approx(1)
    world.now += 4 * HOUR
    assert Reports(process.catalog).views()[0].measures.queries_per_hour == pytest.approx(0.25)
    world.now += DAY
    later = Reports(process.catalog).views()[0].measures
    assert (later.hours, later.updates, later.jobs, later.uses) == (24.0, 0, 0, 5)


def test_how_many_questions_a_report_takes_does_not_depend_on_views(process: Process) -> None:
    asked: list[str] = []
    a = process.table("a")
    views = [process.view(f"v{i}", a) for i in range(2)]
    engine = process.catalog.database._engine
    sa.event.listen(engine, "before_cursor_execute", lambda *args: asked.append(args[2]))
    counts = []
    for name in "xy":
        overview(process.catalog)  # schemas are read once
        asked.clear()
        overview(process.catalog)
        Reports(process.catalog).holders(RETENTION)
        counts.append(len(asked))
        views += [process.view(f"{name}{i}", a) for i in range(5)]
        process.put({"a": {1: 1}})
    assert counts[0] == counts[1]


def test_show_materialized_views(world: World, process: Process) -> None:
    a = process.table("a")
    view = process.view("v", a)
    process.view("w", process.table("b"), maintenance="auto")
    process.put({"a": {1: 1, 2: 2}})
    world.now += 2 * SECOND
    shown = show(process.catalog, Show("views"))
    assert shown.columns == ("name", "mode", "frontier", "tasks", "rows", "age", "status", "next", "about")
    frontier = str(process.views.frontier(view))
    assert shown.rows[0] == ("v", "lazy", frontier, "1", "2", "2.0 s", "pending", "", "")
    assert (shown.rows[1][:2], shown.rows[1][3:]) == (("w", "auto (lazy now)"), ("0", "0", "", "fresh", "", ""))
    assert [r[0] for r in show(process.catalog, Show("views", "w*")).rows] == ["w"]
    seen = []
    process.before = lambda *_: seen.append(show(process.catalog, Show("views")).rows[0][6])
    process.jobs.bring(view, process.catalog.snapshot())
    assert seen == ["in progress"]
