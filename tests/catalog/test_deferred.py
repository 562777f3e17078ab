"""Deferred views without Spark (DEFER): what they show, how they move, composition, policies, invariants."""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from tests.catalog.view_world import Process, World
from tests.conftest import PostgresServer
from tests.effort import examples

from freshview.catalog import tables as t
from freshview.catalog.frontiers import Job
from freshview.catalog.records import Pin, Relation
from freshview.catalog.reports import Reports
from freshview.catalog.view_reader import READERS
from freshview.catalog.writer import checkpoint_lease
from freshview.definition.properties import BASE_LOG, COMBINED, DIFFERENTIAL, policy_of
from freshview.errors import InvalidStatement, SnapshotExpired
from freshview.storage import segments
from freshview.storage.checkpoint import Checkpointer
from freshview.storage.vacuum import vacuum
from freshview.views.invariants import Differentials, strong_minimality
from freshview.views.modes import Modes

Rows = Counter[tuple[int, int]]
HOUR = 3600 * 1_000_000


def deferred(p: Process, name: str, *sources: Relation, scenario: str = COMBINED, **properties: str) -> Relation:
    named = {k.replace("__", "."): v for k, v in properties.items()}
    return p.view(name, *sources, maintenance="deferred", scenario=scenario, **named)


def mv(p: Process, view: Relation) -> Rows:
    """What a query of the view reads."""
    return _bag(p.storage.reader.contents(p.deferred.catalog.shown(view)).to_pylist())


def differentials(p: Process, view: Relation) -> tuple[Rows, Rows]:
    """∇MV and ΔMV, net of what is stored."""
    _, segments = p.deferred.catalog.differential(view)
    found = Differentials.of([p.storage.reader.segment_rows(s, view.schema) for s in segments], view.schema)
    return _bag(found.deleted.to_pylist()), _bag(found.inserted.to_pylist())


def _bag(rows: list[dict[str, int]]) -> Rows:
    return Counter((r["k"], r["v"]) for r in rows)


def changed(p: Process, view: Relation, **properties: str) -> Relation:
    """A view with other properties, as ALTER gives it them."""
    Modes(p.views, p.deferred, p.jobs, definitions=None).set_properties(view, properties)  # type: ignore[arg-type]
    return p.catalog.relation(view.name)


# -- the transactions of Figure 3 --------------------------------------------------------------------


def test_a_deferred_view_shows_its_last_refresh(p: Process) -> None:
    v = deferred(p, "v", p.table("a"))
    p.put({"a": {1: 1}})
    assert mv(p, v) == Counter()
    p.deferred.propagate(v)
    assert mv(p, v) == Counter()
    assert differentials(p, v) == (Counter(), Counter({(1, 1): 1}))
    p.put({"a": {1: 2, 2: 2}})
    p.deferred.partial_refresh(v)
    assert mv(p, v) == Counter({(1, 1): 1})  # what was propagated, not what came after
    rows, csn = p.deferred.refresh(v)
    assert (rows, csn) == (3, p.catalog.snapshot())
    assert mv(p, v) == Counter({(1, 2): 1, (2, 2): 1})
    assert differentials(p, v) == (Counter(), Counter())


def test_writers_and_propagation_write_nothing_that_readers_wait_for(p: Process) -> None:
    """Downtime: what is shown moves with one row of the catalog, whatever the size of the change."""
    v = deferred(p, "v", p.table("a"))
    p.put({"a": {k: k for k in range(1000)}})
    p.deferred.propagate(v)
    before = p.deferred.catalog.deferral(v)
    p.deferred.partial_refresh(v)
    after = p.deferred.catalog.deferral(v)
    assert before.shown < after.shown
    assert before.propagated == after.propagated
    _, shown = p.views.history(v)
    assert (shown.strategy, shown.from_csn, shown.to_csn) == ("shown", before.shown, after.shown)
    assert (shown.view_rows, shown.seconds > 0) == (1000, True)


def test_who_names_a_view_has_it_brought_once_and_shown(p: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    v = deferred(p, "v", p.table("a"))
    newest = p.put({"a": {1: 1}})
    asked, honest = [], p.jobs.bring

    def bring(view: Relation, csn: int) -> list[Job]:
        asked.append(csn)
        return honest(view, csn)

    monkeypatch.setattr(p.jobs, "bring", bring)
    jobs = p.deferred.maintain(v, named=True)
    assert ([job.to_csn for job in jobs], asked) == ([newest], [newest])
    assert mv(p, v) == Counter({(1, 1): 1})


def test_the_log_is_released_when_it_was_propagated_and_what_is_shown_stays(p: Process) -> None:
    """Vacuum removes base versions behind the frontier (L := ∅); the view stays readable where it is read."""
    a = p.table("a")
    v = deferred(p, "v", a)
    p.put({"a": {1: 1}})
    p.deferred.refresh(v)
    then = mv(p, v)
    for value in (2, 3):
        p.put({"a": {1: value}})
        p.deferred.propagate(v)
        for relation in (a, v):
            Checkpointer(p.catalog, p.storage, p.events, lambda: pytest.fail("no Spark")).run(relation)
        vacuum(p.catalog, p.storage, p.events, timedelta(0))
    assert p.catalog.horizon() == p.catalog.snapshot()
    assert mv(p, v) == then
    p.deferred.partial_refresh(v)
    assert mv(p, v) == Counter({(1, 3): 1})


@pytest.mark.parametrize("folded", [False, True])
def test_what_was_shown_before_a_refresh_stays_for_the_retention(world: World, p: Process, folded: bool) -> None:
    """Law: a reader of MV keeps it for as long after a refresh as the retention, however old the next main is."""
    a, day = p.table("a"), timedelta(hours=24)
    v = deferred(p, "v", a)
    fold = Checkpointer(p.catalog, p.storage, p.events, lambda: pytest.fail("no Spark")).run
    p.put({"a": {1: 1}})
    p.deferred.refresh(v)
    if folded:
        fold(v)
    held = p.deferred.catalog.shown(v)
    p.put({"a": {1: 2}})
    p.deferred.propagate(v)
    fold(v)
    world.now += 25 * HOUR
    p.deferred.refresh(v)
    p.put({"a": {1: 3}})
    p.deferred.propagate(v)
    world.now += 23 * HOUR
    vacuum(p.catalog, p.storage, p.events, day)
    assert p.catalog.horizon() > held.csn
    assert p.deferred.catalog.shown(v, held.csn) == held
    assert p.storage.reader.contents(held).to_pylist() == [{"k": 1, "v": 1}]
    with pytest.raises(SnapshotExpired):
        p.views.stored(v, held.csn - 1)
    stock = next(h for h in Reports(p.catalog).holders(day) if h.kind == "retention")
    assert stock.keeps.segments
    world.now += 2 * HOUR
    vacuum(p.catalog, p.storage, p.events, day)
    with pytest.raises(SnapshotExpired):
        p.deferred.catalog.shown(v, held.csn)
    assert mv(p, v) == Counter({(1, 2): 1})


@pytest.mark.postgres
def test_what_was_shown_before_a_refresh_stays_on_postgres(tmp_path: Path, postgres: PostgresServer) -> None:
    world = World(tmp_path, url=postgres.new_database())
    p = world.process()
    v = deferred(p, "v", p.table("a"))
    for value in (1, 2):
        p.put({"a": {1: value}})
        p.deferred.refresh(v)
        if value == 1:
            held = p.deferred.catalog.shown(v)
    Checkpointer(p.catalog, p.storage, p.events, lambda: pytest.fail("no Spark")).run(v)
    with p.catalog.database.write() as c:
        c.execute(t.clock.update().values(horizon=p.catalog.snapshot()))
    assert p.deferred.catalog.shown(v, held.csn) == held
    vacuum(p.catalog, p.storage, p.events, timedelta(0))
    with pytest.raises(SnapshotExpired):
        p.deferred.catalog.shown(v, held.csn)
    assert mv(p, v) == Counter({(1, 2): 1})
    world.close()


def test_a_composed_job_is_a_job_of_the_past(p: Process) -> None:
    """Law: what was learnt of jobs, and that an error is over, is not forgotten when their versions are composed."""
    v = deferred(p, "v", p.table("a"))
    failed = Job(view_id=v.id, from_csn=0, to_csn=0, strategy="failed", seconds=0.0, error="no")
    p.views.record(failed)
    for value in (1, 2):
        p.put({"a": {1: value}})
        p.deferred.propagate(v)
    assert p.views.stored_at(v, p.catalog.snapshot() - 1) is None, "composed"
    assert len(p.views.finished(v, 9)) == 2
    assert Reports(p.catalog).views()[0].error is None


@pytest.mark.parametrize("scenario", [BASE_LOG, DIFFERENTIAL, COMBINED])
def test_every_scenario_ends_where_its_definition_is(p: Process, scenario: str) -> None:
    v = deferred(p, "v", p.table("a"), p.table("b"), scenario=scenario)
    for value in range(3):
        csn = p.put({"a": {1: value, 2: value}, "b": {value: 1}})
        assert mv(p, v) == Counter()
        assert bool(p.views.tasks()) == (scenario != DIFFERENTIAL)
    assert (p.views.frontier(v) == csn) == (scenario == DIFFERENTIAL)
    p.deferred.refresh(v)
    assert mv(p, v) == p.defined(v, csn)


def test_a_transaction_that_its_scenario_has_no_tables_for_is_refused(p: Process) -> None:
    a = p.table("a")
    log, lazy = deferred(p, "log", a, scenario=BASE_LOG), p.view("lazy", a)
    for view, why in ((log, "its scenario is 'base-log'"), (lazy, "it is not deferred")):
        with pytest.raises(InvalidStatement, match=why):
            p.deferred.propagate(view)
        with pytest.raises(InvalidStatement, match=why):
            p.deferred.partial_refresh(view)


def test_a_refresh_that_dies_half_way_leaves_the_old_state(p: Process) -> None:
    v = deferred(p, "v", p.table("a"))
    p.put({"a": {1: 1}})
    p.deferred.refresh(v)
    p.put({"a": {1: 2}})

    class Died(BaseException):
        pass

    def die(*_: object) -> None:
        raise Died

    p.before = die
    with pytest.raises(Died):
        p.deferred.refresh(v)  # in the middle of the job
    assert mv(p, v) == Counter({(1, 1): 1})
    p.before = lambda *_: None
    p.jobs.bring(v, p.catalog.snapshot())  # as after the job and before it is shown
    assert mv(p, v) == Counter({(1, 1): 1})
    p.deferred.refresh(v)
    assert mv(p, v) == Counter({(1, 2): 1})


def test_a_change_of_scenario_or_mode_keeps_the_rows(p: Process) -> None:
    v = deferred(p, "v", p.table("a"))
    p.put({"a": {1: 1}})
    p.deferred.refresh(v)
    p.put({"a": {2: 2}})
    p.deferred.propagate(v)
    p.put({"a": {3: 3}})
    jobs = len(p.ran)
    v = changed(p, v, scenario=BASE_LOG)  # differentials have no place there: they are applied
    assert (mv(p, v), len(p.ran)) == (Counter({(1, 1): 1, (2, 2): 1}), jobs)
    v = changed(p, v, scenario=DIFFERENTIAL)  # commits go on from the newest
    assert p.views.tasks() == []
    csn = p.put({"a": {4: 4}})
    assert p.views.tasks() == []
    assert mv(p, v) == Counter({(1, 1): 1, (2, 2): 1})
    v = changed(p, v, scenario=COMBINED)
    p.put({"a": {5: 5}})
    assert [t.csn for t in p.views.tasks()] == [csn + 2]
    v = changed(p, v, maintenance="lazy")
    assert p.shown(v, p.catalog.snapshot()) == Counter({(i, i): 1 for i in range(1, 6)})
    with pytest.raises(InvalidStatement, match="it is not deferred"):
        p.deferred.catalog.deferral(v)
    assert not any(full for *_, full in p.ran)


# -- composition -------------------------------------------------------------------------------------


def test_differentials_are_composed_and_strongly_minimal(p: Process) -> None:
    v = deferred(p, "v", p.table("a"))
    p.put({"a": {1: 1}})
    p.deferred.refresh(v)
    for value in (2, 3, 1):  # there and back again
        p.put({"a": {1: value, 2: value}})
        p.deferred.propagate(v)
    _, segments = p.deferred.catalog.differential(v)
    assert [s.rows for s in segments] == [1]
    assert differentials(p, v) == (Counter(), Counter({(2, 1): 1}))
    assert p.stored(v, p.views.frontier(v)) == Counter({(1, 1): 1, (2, 1): 1})


def test_what_cancels_wholly_leaves_nothing(p: Process) -> None:
    v = deferred(p, "v", p.table("a"))
    for rows in ({"a": {1: 1}}, {"a": {2: 2}}):
        p.put(rows)
    p.deferred.refresh(v)
    tx = p.begin()
    tx.delete_keys("a", [1])
    tx.commit()
    p.deferred.propagate(v)
    p.put({"a": {1: 1}})
    p.deferred.propagate(v)
    assert p.deferred.catalog.differential(v)[1] == []
    assert p.stored(v, p.catalog.snapshot()) == Counter({(1, 1): 1, (2, 2): 1})


def test_in_the_background_many_differentials_are_composed(p: Process) -> None:
    """A view that commits maintain is never propagated: the background composes its many differentials."""
    v = deferred(p, "v", p.table("a"), scenario=DIFFERENTIAL)
    for value in range(9):
        p.put({"a": {1: value}})
        p.deferred.keep_schedule()
    _, segments = p.deferred.catalog.differential(v)
    assert len(segments) < 3
    assert differentials(p, v) == (Counter(), Counter({(1, 8): 1}))


def test_the_background_reads_no_rows_of_few_differentials(p: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    """The background looks every few seconds: it must not read the rows that segments carry."""
    deferred(p, "v", p.table("a"), scenario=DIFFERENTIAL)
    for value in range(3):
        p.put({"a": {1: value}})
    monkeypatch.setattr("freshview.catalog.deferred.segments_of", lambda *_: pytest.fail("segments were read"))
    p.deferred.keep_schedule()


def test_versions_in_between_are_no_longer_claimed(p: Process) -> None:
    v = deferred(p, "v", p.table("a"))
    middle = p.put({"a": {1: 1}})
    p.deferred.propagate(v)
    end = p.put({"a": {1: 2}})
    p.deferred.propagate(v)
    assert p.views.stored_at(v, middle) is None
    assert p.views.stored_at(v, end) == end
    p.put({"a": {1: 3}})
    p.deferred.propagate(v)


@pytest.mark.parametrize("purpose", READERS)
def test_composition_does_not_wait_for_readers_and_they_keep_their_version(p: Process, purpose: str) -> None:
    """Law: a reader that has a version reads the same rows after a composition; one that asks later for a version in
    between is told that it is not stored."""
    v = deferred(p, "v", p.table("a"))
    p.put({"a": {1: 1}})
    p.deferred.propagate(v)
    pin = p.catalog.begin(purpose)
    middle = p.views.frontier(v)
    held = p.views.version(v, middle)
    assert held is not None
    end = p.put({"a": {1: 2}})
    p.deferred.propagate(v)
    assert len(p.deferred.catalog.differential(v)[1]) == 1, "composed although somebody reads"
    assert p.storage.reader.contents(held).to_pylist() == [{"k": 1, "v": 1}]
    assert p.views.version(v, middle) is None
    found = p.views.version(v, end)
    assert found is not None
    assert p.storage.reader.contents(found).to_pylist() == [{"k": 1, "v": 2}]
    p.catalog.release(pin)


def test_files_that_are_composed_while_a_vacuum_looks_stay(p: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    """Law: composition moves files from segments to leases; a vacuum that reads leases before and segments after it
    leaves them for the queries that have begun."""
    monkeypatch.setattr(segments, "INLINE_BYTES", 0)
    v = deferred(p, "v", p.table("a"), scenario=DIFFERENTIAL)
    for value in (1, 2):
        p.put({"a": {1: value}})
    held = p.views.stored(v, p.catalog.snapshot())
    honest, composed = p.catalog.referenced_files, []

    def composes_first(relation_id: int) -> set[str]:
        if relation_id == v.id:
            composed.append(p.deferred.compose(v))
        return honest(relation_id)

    monkeypatch.setattr(p.catalog, "referenced_files", composes_first)
    vacuum(p.catalog, p.storage, p.events, timedelta(0))
    assert composed == [True]
    assert p.storage.reader.contents(held).to_pylist() == [{"k": 1, "v": 2}]


def test_nothing_is_composed_while_a_view_is_created(p: Process) -> None:
    """Law: it may be over this view, and then its first delta begins at a version in between."""
    v = deferred(p, "v", p.table("a"))
    p.put({"a": {1: 1}})
    p.deferred.propagate(v)
    pin = p.catalog.begin("view")
    middle = p.views.frontier(v)
    p.put({"a": {1: 2}})
    p.deferred.propagate(v)
    assert p.stored(v, middle) == Counter({(1, 1): 1})
    p.catalog.release(pin)
    assert p.deferred.compose(v)


def test_strong_minimality_is_reported_as_it_is(p: Process) -> None:
    """Law: rows that would cancel break it, also while several differentials wait to be composed."""
    v = deferred(p, "v", p.table("a"))
    above = p.view("above", v)
    p.put({"a": {1: 1}})
    p.deferred.refresh(v)
    for value, cancels in ((2, 0), (1, 4)):  # there and back again
        p.put({"a": {1: value}})
        p.deferred.propagate(v)
        parts = [p.storage.reader.segment_rows(s, v.schema) for s in p.deferred.catalog.differential(v)[1]]
        found = strong_minimality(parts, v.schema)
        assert found.ok == (cancels == 0)
        assert found.found == ("4 rows cancel when 2 parts are composed" if cancels else "")
    p.views.drop(above)
    assert p.deferred.compose(v)
    assert p.deferred.catalog.differential(v)[1] == []


def test_nothing_is_composed_that_another_view_reads_or_a_checkpoint_folds(p: Process) -> None:
    v = deferred(p, "v", p.table("a"))
    above = p.view("above", v)
    for value in (1, 2):
        p.put({"a": {1: value}})
        p.deferred.propagate(v)
        p.jobs.bring(above, p.catalog.snapshot())
    assert len(p.deferred.catalog.differential(v)[1]) == 2
    p.views.drop(above)
    lease = p.catalog.lease(v.id, "", checkpoint_lease(v.id))
    assert lease is not None
    assert not p.deferred.compose(v)
    p.catalog.drop_leases([lease.id])
    assert p.deferred.compose(v)


def test_an_upper_view_is_over_the_definition_not_over_what_is_shown(p: Process) -> None:
    v = deferred(p, "v", p.table("a"))
    above = p.view("above", v)
    csn = p.put({"a": {1: 1}})
    assert p.shown(above, csn) == Counter({(1, 1): 1})
    assert mv(p, v) == Counter()


# -- policies ------------------------------------------------------------------------------------------


def test_policies_run_when_they_are_due(world: World, p: Process) -> None:
    """Policy 1: propagate every hour, refresh every day. What came after the due moment is left to the next one."""
    v = deferred(p, "v", p.table("a"), propagate="every 1 hour", refresh__policy="every 24 hours")
    begun = p.deferred.catalog.deferral(v)
    p.put({"a": {1: 1}})
    assert not _wanted(p, v)
    world.now += HOUR + 1_000_000
    first = p.catalog.snapshot()
    p.put({"a": {2: 2}})
    assert _wanted(p, v)
    p.deferred.keep_schedule()  # not done yet: nothing is noted
    assert p.deferred.catalog.deferral(v).propagated_at == begun.propagated_at
    p.jobs.step(v, first)
    p.deferred.keep_schedule()
    assert p.deferred.catalog.deferral(v).propagated_at == begun.propagated_at + HOUR
    assert not _wanted(p, v)
    world.now += 23 * HOUR
    assert _wanted(p, v)
    p.jobs.bring(v, p.catalog.snapshot())
    assert mv(p, v) == Counter()
    p.deferred.keep_schedule()
    assert mv(p, v) == Counter({(1, 1): 1, (2, 2): 1})
    stand = p.deferred.catalog.deferral(v)
    assert (stand.refreshed_at, stand.propagated_at) == (
        begun.refreshed_at + 24 * HOUR,
        begun.propagated_at + 24 * HOUR,
    )


@pytest.mark.parametrize("policy", ["on query", "partial on query"])
def test_a_query_of_what_is_shown_already_writes_nothing(
    p: Process, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    """Law: a view that is refreshed on query is refreshed by the first query after a change, and by no other."""
    v = deferred(p, "v", p.table("a"), refresh__policy=policy)
    p.put({"a": {1: 1}})
    p.jobs.bring(v, p.catalog.snapshot())
    p.deferred.refresh_for_query(v)
    assert mv(p, v) == Counter({(1, 1): 1})
    if policy == "on query":
        p.put({"a": {1: 2}})
        p.deferred.refresh_for_query(v)
        assert mv(p, v) == Counter({(1, 2): 1})
    jobs = p.views.history(v)
    monkeypatch.setattr(p.catalog.database, "write", lambda **_: pytest.fail("the catalog was written"))
    p.deferred.refresh_for_query(v)
    assert p.views.history(v) == jobs


def _wanted(p: Process, view: Relation) -> bool:
    oldest = {b.view_id: b.oldest_at for b in p.views.backlogs()}
    stand = p.deferred.catalog.deferral(view)
    return view.id in oldest and policy_of(view).wants_job(stand, oldest[view.id], p.catalog.now())[0]


def test_policy_two_shows_what_was_propagated(world: World, p: Process) -> None:
    v = deferred(p, "v", p.table("a"), propagate="every 1 hour", refresh__policy="partial every 24 hours")
    p.put({"a": {1: 1}})
    p.deferred.propagate(v)
    p.put({"a": {2: 2}})
    world.now += 24 * HOUR
    p.deferred.keep_schedule()
    assert mv(p, v) == Counter({(1, 1): 1})
    assert _wanted(p, v)  # propagation is due as well: it waits for a job


def test_moments_that_were_missed_are_made_up_once(world: World, p: Process) -> None:
    v = deferred(p, "v", p.table("a"), refresh__policy="every 10 minutes")
    begun = p.deferred.catalog.deferral(v).refreshed_at
    world.now += 5 * HOUR + 1
    p.deferred.keep_schedule()
    assert p.deferred.catalog.deferral(v).refreshed_at == begun + 5 * HOUR


# -- any interleaving ------------------------------------------------------------------------------------


@given(st.randoms(use_true_random=False))
@settings(max_examples=examples(12), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_whatever_happens_the_invariants_hold(draw: random.Random) -> None:
    """Law: after any step INV_C and its cases hold, differentials are minimal, and readers see the last refresh.

    After every step the views that it concerns are looked at, after every third and the last all of them."""
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder))
        p = world.process()
        try:
            _Machine(p, world, draw).run()
        finally:
            world.close()


_ALL_EVERY = 3
_BELOW = 3  # the place of the view that another is over


class _Machine:
    """Random steps over deferred views of every scenario, with a lazy view above one of them.

    Each step gives the places of the views that it concerns."""

    def __init__(self, p: Process, world: World, draw: random.Random) -> None:
        self.p, self.world, self.draw = p, world, draw
        self.tables = [p.table(n) for n in "ab"]
        self.views = [deferred(p, s, *self.tables, scenario=s) for s in (BASE_LOG, DIFFERENTIAL, COMBINED)]
        self.views.append(deferred(p, "below", self.tables[0]))
        self.above = p.view("above", self.views[_BELOW], self.tables[1])
        self.seen: dict[int, Rows] = {v.id: Counter() for v in self.views}
        self.pins: list[Pin] = []

    def run(self) -> None:
        steps = (
            self.write,
            self.write,
            self.write,
            self.propagate,
            self.propagate,
            self.partial,
            self.refresh,
            self.query,
            self.fold,
            self.clean,
            self.alter,
            self.pin,
            self.unpin,
            self.upper,
        )
        for number in range(self.draw.randint(5, 25)):
            step = self.draw.choice(steps)
            note(step.__name__)
            touched = step()
            for i in self.every() if number % _ALL_EVERY == 0 else touched:
                self.holds(i)
        self.world.forget()
        for i in self.every():
            self.holds(i)

    def any_view(self) -> int:
        return self.draw.randrange(len(self.views))

    def every(self) -> list[int]:
        return list(range(len(self.views)))

    def write(self) -> list[int]:
        tx = self.p.begin()
        for _ in range(self.draw.randint(1, 3)):
            name, key = self.draw.choice("ab"), self.draw.randint(1, 3)
            if self.draw.random() < 0.3:
                tx.delete_keys(name, [key])
            else:
                tx.upsert_rows(name, [{"k": key, "v": self.draw.randint(1, 3)}])
        tx.commit()
        return self.every()

    def propagate(self) -> list[int]:
        at = self.any_view()
        with suppress(InvalidStatement):
            self.p.deferred.propagate(self.views[at])
        return [at]

    def partial(self) -> list[int]:
        at = self.any_view()
        view = self.views[at]
        with suppress(InvalidStatement):
            self.p.deferred.partial_refresh(view)
            self.seen[view.id] = self.p.defined(view, self.p.views.frontier(view))
        return [at]

    def refresh(self) -> list[int]:
        at = self.any_view()
        view = self.views[at]
        self.p.deferred.refresh(view)
        self.seen[view.id] = self.p.defined(view, self.p.catalog.snapshot())
        return [at]

    def query(self) -> list[int]:
        """A query that asks for fresh rows propagates, and shows others nothing."""
        at = self.any_view()
        view, csn = self.views[at], self.p.catalog.snapshot()
        if view.properties["scenario"] != BASE_LOG:
            found = self.p.shown(view, csn)
            assert found is None or found == self.p.defined(view, csn)
        return [at]

    def upper(self) -> list[int]:
        csn = self.p.catalog.snapshot()
        found = self.p.shown(self.above, csn)
        assert found is None or found == self.p.defined(self.above, csn)
        return [_BELOW]

    def fold(self) -> list[int]:
        relation = self.draw.choice([*self.tables, *self.views])
        Checkpointer(self.p.catalog, self.p.storage, self.p.events, lambda: pytest.fail("no Spark")).run(relation)
        return self.every() if relation in self.tables else [self.views.index(relation)]

    def clean(self) -> list[int]:
        vacuum(self.p.catalog, self.p.storage, self.p.events, timedelta(0))
        return self.every()

    def alter(self) -> list[int]:
        at = self.any_view()
        if at == _BELOW:
            return []  # what an upper view reads stays what it is
        view = changed(self.p, self.views[at], scenario=self.draw.choice((BASE_LOG, DIFFERENTIAL, COMBINED)))
        self.views[at] = view
        if view.properties["scenario"] == BASE_LOG:
            self.seen[view.id] = self.p.defined(view, self.p.views.frontier(view))
        return [at]

    def pin(self) -> list[int]:
        self.pins.append(self.p.catalog.begin("query"))
        return []

    def unpin(self) -> list[int]:
        if self.pins:
            self.p.catalog.release(self.pins.pop(0))
        return []

    def holds(self, at: int) -> None:
        p, view = self.p, self.views[at]
        stand, (deleted, inserted), shown = p.deferred.catalog.deferral(view), differentials(p, view), mv(p, view)
        assert shown == self.seen[view.id], "readers see the last refresh"
        assert not deleted - shown, "weak minimality: only what is there is deleted"
        assert not deleted & inserted, "strong minimality"
        assert (shown - deleted) + inserted == p.defined(view, stand.propagated), "INV_C"
        assert p.stored(view, stand.propagated) == p.defined(view, stand.propagated)
        scenario = view.properties["scenario"]
        if scenario == BASE_LOG:
            assert not deleted
            assert not inserted
        if scenario == DIFFERENTIAL and at != _BELOW:
            assert all(t.view_id != view.id for t in p.views.tasks())
