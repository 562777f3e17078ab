"""One refresh of several views: published in one transaction, view by view; what falls out is left to its own job."""

from __future__ import annotations

import random
import threading
from typing import Any, NoReturn

import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.catalog.view_world import JOIN, Process, World
from tests.effort import examples

from freshview.catalog.frontiers import ViewStep
from freshview.catalog.records import Relation
from freshview.catalog.views import ViewCatalog
from freshview.errors import Cancelled, CatalogUnavailable, TypeMismatch
from freshview.refresh import group, jobs
from freshview.refresh.group import levels


def _three(p: Process) -> tuple[list[Relation], int]:
    """Three views over one table, and a commit that all of them have to see."""
    a, b = p.table("a"), p.table("b")
    views = [p.view("copy", a), p.view("both", a, b), p.view("joined", a, b, kind=JOIN)]
    p.groups.bring(views, p.put({"a": {1: 1, 2: 2}, "b": {1: 5}}))
    p.together.clear()
    p.ran.clear()
    return views, p.put({"a": {2: 3, 3: 4}})


def _are_right(p: Process, views: list[Relation], csn: int) -> bool:
    return all(p.views.frontier(v) == csn and p.stored(v, csn) == p.defined(v, csn) for v in views)


def test_views_of_one_change_are_one_refresh_and_one_transaction(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    p = world.process()
    views, csn = _three(p)
    published: list[int] = []
    apply_each = ViewCatalog.apply_each

    def counted(self: ViewCatalog, steps: list[ViewStep]) -> list[bool]:
        published.append(len(steps))
        return apply_each(self, steps)

    monkeypatch.setattr(ViewCatalog, "apply_each", counted)
    done = p.groups.bring(views, csn)
    assert (p.together, published) == ([["copy", "both", "joined"]], [3])
    assert [job.view for job in done] == ["copy", "both", "joined"]
    assert _are_right(p, views, csn)
    assert p.groups.bring(views, csn) == []


def test_each_view_has_a_row_in_the_history_with_its_share_of_the_time(world: World) -> None:
    p = world.process()
    views, csn = _three(p)
    p.before = lambda *_: setattr(world, "now", world.now + 2_000_000)  # seconds pass for each view
    begun = world.now
    done = p.groups.bring(views, csn)
    for view, job in zip(views, done, strict=True):
        assert p.views.history(view)[-1] == job
        assert set(job.phases) == {"wait", "sources", "compute", "shared", "store"}
        assert job.tasks == 1
    assert sum(job.seconds for job in done) == pytest.approx((world.now - begun) / 1e6)


def test_views_that_share_no_change_or_no_settings_are_not_refreshed_together(world: World) -> None:
    p = world.process()
    a, b = p.table("a"), p.table("b")
    one, other, of_b, apart = p.view("one", a), p.view("other", a), p.view("of_b", b), p.view("apart", a, sharing="x")
    alone = p.view("recomputed", a, sharing="")
    csn = p.put({"a": {1: 1}, "b": {1: 1}})
    done = p.groups.bring([one, other, of_b, apart, alone], csn)
    assert p.together == [["one", "other"]]
    assert {job.view for job in done} == {"one", "other"}


def test_views_of_other_spans_are_not_refreshed_together(world: World) -> None:
    p = world.process()
    views, csn = _three(p)
    p.jobs.bring(views[0], csn)
    later = p.put({"a": {9: 9}})
    done = p.groups.bring(views, later)
    assert [sorted(names) for names in p.together] == [["both", "joined"]]
    assert {job.view for job in done} == {"both", "joined"}
    assert _are_right(p, views[1:], later)
    assert p.views.frontier(views[0]) == csn


def test_views_of_other_frontiers_have_one_span_if_no_task_lies_in_between(world: World) -> None:
    """Views that were created one after the other, say, or of which one had a job that the others did not need."""
    p = world.process()
    a, b = p.table("a"), p.table("b")
    old, other = p.view("old", a), p.view("other", a, b)
    p.groups.bring([other], p.put({"b": {1: 1}}))
    p.jobs.bring(other, p.catalog.snapshot())
    assert p.views.frontier(old) < p.views.frontier(other)
    csn = p.put({"a": {1: 1}})
    assert len(p.groups.bring([old, other], csn)) == 2
    assert _are_right(p, [old, other], csn)


def test_switched_off_every_view_has_its_own_job(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    p = world.process()
    views, csn = _three(p)
    monkeypatch.setattr(group, "TOGETHER", False)
    assert p.groups.bring(views, csn) == []


def test_lower_views_go_first_and_each_level_is_one_refresh(world: World) -> None:
    p = world.process()
    a = p.table("a")
    low, lower = p.view("low", a), p.view("lower", a)
    high, higher = p.view("high", low, a), p.view("higher", low, lower)
    csn = p.put({"a": {1: 1}})
    assert [[v.name for v in level] for level in levels([higher, low, high, lower])] == [
        ["low", "lower"],
        ["higher", "high"],
    ]
    p.groups.bring([higher, low, high, lower], csn)
    assert [sorted(names) for names in p.together] == [["low", "lower"], ["high", "higher"]]
    assert _are_right(p, [low, lower, high, higher], csn)


def test_a_view_that_cannot_be_computed_with_others_is_left_to_its_own_job(world: World) -> None:
    p = world.process()
    views, csn = _three(p)
    p.alone = {"both"}
    told: list[str] = []
    p.events.listen(lambda event: told.append(event.name))
    assert {job.view for job in p.groups.bring(views, csn)} == {"copy", "joined"}
    assert "job.alone" in told
    assert p.views.history(views[1])[-1].error is None
    p.jobs.bring(views[1], csn)
    assert _are_right(p, views, csn)


def test_a_defect_that_a_refresh_of_several_views_meets_leaves_each_to_its_own_job(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that is no FreshviewError, as of a plan that is too deep for Python's stack."""
    p = world.process()
    views, csn = _three(p)
    executor = p.groups._executor

    def deep(*_: object) -> NoReturn:
        raise RecursionError("maximum recursion depth exceeded")

    events: list[tuple[str, object]] = []
    p.events.listen(lambda event: events.append((event.name, event.details.get("why"))))
    with monkeypatch.context() as patch:
        patch.setattr(executor, "changes", deep)
        assert p.groups.bring(views, csn) == []
    assert events.count(("job.alone", "maximum recursion depth exceeded")) == 3
    sharing = executor.sharing
    monkeypatch.setattr(executor, "sharing", lambda view: deep() if view.name == "both" else sharing(view))
    assert {job.view for job in p.groups.bring(views, csn)} == {"copy", "joined"}
    p.jobs.bring(views[1], csn)
    assert _are_right(p, views, csn)


def test_a_view_whose_turn_is_taken_elsewhere_is_left_to_its_own_job(world: World) -> None:
    ours, theirs = world.process(), world.process()
    views, csn = _three(ours)
    with theirs.jobs.turns.turn(views[1], theirs.views.position(views[1]), wait=False) as taken:
        assert taken
        assert {job.view for job in ours.groups.bring(views, csn)} == {"copy", "joined"}
    ours.jobs.bring(views[1], csn)
    assert _are_right(ours, views, csn)


def test_a_view_that_moves_meanwhile_falls_out_and_the_others_are_published(world: World) -> None:
    """Law: the compare-and-set of each view alone decides; nothing of the one that fell out stays stored."""
    p = world.process()
    views, csn = _three(p)
    job = p.views.history(views[1])[-1]

    def moves(view: Relation, *_: int) -> None:
        if view.name == "joined":  # the lease of another's job has expired, say, and it publishes first
            step = ViewStep(views[1], p.views.position(views[1]), csn, (), (), job)
            assert p.views.apply([step])

    p.before = moves
    done = p.groups.bring(views, csn)
    assert {job.view for job in done} == {"copy", "joined"}
    assert _are_right(p, [views[0], views[2]], csn)
    assert p.views.stored(views[1], csn).segments == p.views.stored(views[1], csn - 1).segments


def test_files_of_a_step_that_is_not_published_are_removed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    p = world.process()
    views, csn = _three(p)
    monkeypatch.setattr(jobs, "fits_inline", lambda _: False)
    lost: list[str] = []
    apply_each = ViewCatalog.apply_each

    def expires(self: ViewCatalog, steps: list[ViewStep]) -> list[bool]:
        lost.append(steps[0].view.name)
        self.catalog.drop_leases(steps[0].leases)
        return apply_each(self, steps)

    monkeypatch.setattr(ViewCatalog, "apply_each", expires)
    done = p.groups.bring(views, csn)
    assert {job.view for job in done} == {"both", "joined"}
    assert lost == ["copy"]
    p.jobs.bring(views[0], csn)
    assert _are_right(p, views, csn)


@pytest.mark.parametrize("error", [CatalogUnavailable("catalog", "gone", ""), RuntimeError("killed")])
def test_a_crash_before_publishing_leaves_every_view_where_it_was(
    world: World, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    p = world.process()
    views, csn = _three(p)
    before = {view.id: p.views.position(view) for view in views}

    def fails(*_: Any, **__: Any) -> NoReturn:
        raise error

    def crash(self: ViewCatalog, steps: list[ViewStep]) -> list[bool]:
        with monkeypatch.context() as patch:
            patch.setattr(type(self.catalog.database), "write", fails)
            return original(self, steps)

    original = ViewCatalog.apply_each
    monkeypatch.setattr(ViewCatalog, "apply_each", crash)
    if isinstance(error, CatalogUnavailable):
        assert p.groups.bring(views, csn) == []  # their own jobs raise it
    else:
        with pytest.raises(RuntimeError):
            p.groups.bring(views, csn)
    assert {view.id: p.views.position(view) for view in views} == before
    monkeypatch.undo()
    assert len(p.groups.bring(views, csn)) == 3
    assert _are_right(p, views, csn)


def test_a_crash_between_the_steps_of_one_transaction_publishes_none(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    p = world.process()
    views, csn = _three(p)
    before = {view.id: p.views.position(view) for view in views}
    applied = ViewCatalog._apply

    def crash(self: ViewCatalog, c: sa.Connection, step: ViewStep) -> None:
        applied(self, c, step)
        if step.view.name == "both":
            raise RuntimeError("killed")

    monkeypatch.setattr(ViewCatalog, "_apply", crash)
    with pytest.raises(RuntimeError):
        p.groups.bring(views, csn)
    monkeypatch.undo()
    assert {view.id: p.views.position(view) for view in views} == before
    p.groups.bring(views, csn)
    assert _are_right(p, views, csn)


def test_bad_data_of_one_view_does_not_hold_up_the_others(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A view that cannot be stored falls out; its own job raises its error."""
    p = world.process()
    views, csn = _three(p)
    stored = jobs.store

    def bad(catalog: Any, storage: Any, view_id: int, rows: Any) -> Any:
        if view_id == views[2].id:
            raise TypeMismatch("column v", "12x is no number", "")
        return stored(catalog, storage, view_id, rows)

    monkeypatch.setattr(jobs, "store", bad)
    assert {job.view for job in p.groups.bring(views, csn)} == {"copy", "both"}
    with pytest.raises(TypeMismatch):
        p.jobs.bring(views[2], csn)
    assert p.views.history(views[2])[-1].error is not None
    monkeypatch.undo()
    p.jobs.bring(views[2], csn)
    assert _are_right(p, views, csn)


def test_a_refresh_that_gives_way_publishes_nothing_and_frees_all_turns(world: World) -> None:
    p = world.process()
    views, csn = _three(p)

    def cancelled(view: Relation, *_: int) -> None:
        if view.name == "both":
            raise Cancelled("view both", "it gave way", "")

    p.before = cancelled
    with pytest.raises(Cancelled):
        p.groups.bring(views, csn)
    p.before = lambda *_: None
    assert len(p.groups.bring(views, csn)) == 3
    assert _are_right(p, views, csn)


def test_two_refreshes_of_the_same_views_never_wait_for_each_other(world: World) -> None:
    """In opposite order, at the same time: each view is published once, by one of them or by its own job."""
    ours, theirs = world.process(), world.process()
    views, csn = _three(ours)
    threads = [
        threading.Thread(target=lambda: ours.groups.bring(views, csn)),
        threading.Thread(target=lambda: theirs.groups.bring(list(reversed(views)), csn)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert not any(thread.is_alive() for thread in threads)
    for view in views:
        ours.jobs.bring(view, csn)
    assert _are_right(ours, views, csn)
    for view in views:
        ends = [job.to_csn for job in ours.views.history(view)]
        assert ends == sorted(set(ends))


@settings(deadline=None, max_examples=examples(25))
@given(seed=st.integers(0, 10_000))
def test_whatever_is_refreshed_together_or_alone_the_views_are_right(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    draw = random.Random(seed)
    world = World(tmp_path_factory.mktemp("world"))
    try:
        p = world.process()
        tables = [p.table(name) for name in "ab"]
        views = [p.view("v0", tables[0]), p.view("v1", *tables), p.view("v2", *tables, kind=JOIN)]
        views += [p.view("v3", views[0], tables[1], kind=JOIN), p.view("v4", views[1], views[0])]
        for _ in range(8):
            csn = p.put(
                {name: {draw.randrange(5): draw.randrange(9)} for name in draw.sample("ab", draw.randint(1, 2))}
            )
            p.alone = {v.name for v in views if draw.random() < 0.2}
            some = draw.sample(views, draw.randint(1, 5))
            p.groups.bring(some, csn)
            for view in draw.sample(some, draw.randint(0, len(some))):
                p.jobs.bring(view, csn)
        p.groups.bring(views, csn)
        for view in views:
            p.jobs.bring(view, csn)
            assert p.stored(view, csn) == p.defined(view, csn), view.name
    finally:
        world.close()
