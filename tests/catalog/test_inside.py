"""Views inside transactions and commits, without Spark: own writes, overlays kept, partial tasks, eager views."""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from tests.catalog.view_world import JOIN, Process, World, meaning
from tests.effort import examples

from freshview.catalog import tables as t
from freshview.catalog.records import Frontier, Relation, RelationState
from freshview.errors import DuplicateKey, TypeMismatch, ViewUnusable, WriteConflict
from freshview.refresh.execute import Change
from freshview.refresh.jobs import JobRunner
from freshview.refresh.span import Span
from freshview.storage.checkpoint import Checkpointer
from freshview.transactions.transaction import Transaction
from freshview.views.commits import Inside

Rows = Counter[tuple[int, int]]


def shown(p: Process, tx: Transaction, view: Relation) -> Rows | None:
    """What a query inside a transaction reads from the store."""
    assert isinstance(tx.company, Inside)
    state = tx.company.state(view)
    return None if state is None else contents(p, state)


def contents(p: Process, state: RelationState) -> Rows:
    return Counter((r["k"], r["v"]) for r in p.storage.reader.contents(state).to_pylist())


def defined(p: Process, tx: Transaction, view: Relation) -> Rows:
    """The definition over what the transaction sees."""
    sources = p.sources(view)
    return meaning(view, [defined(p, tx, s) if s.kind == "view" else contents(p, tx.state(s)) for s in sources])


def put(tx: Transaction, table: str, **values: int) -> None:
    tx.upsert_rows(table, [{"k": int(k[1:]), "v": v} for k, v in values.items()])


# -- own writes ------------------------------------------------------------------------------------


def test_own_writes_show_and_a_rollback_takes_them_back(p: Process) -> None:
    a = p.table("a")
    v = p.view("v", a)
    before = p.put({"a": {1: 1}})
    tx = p.begin()
    put(tx, "a", k1=5, k2=2)
    assert shown(p, tx, v) == Counter({(1, 5): 1, (2, 2): 1})
    tx.delete_keys("a", [2])
    assert shown(p, tx, v) == Counter({(1, 5): 1})
    tx.rollback()
    assert p.views.position(v) == Frontier(before)
    assert p.stored(v, before) == Counter({(1, 1): 1})


def test_a_second_query_computes_only_what_came_after_the_first(p: Process) -> None:
    a = p.table("a")
    v = p.view("v", a)
    tx = p.begin()
    put(tx, "a", k1=1)
    spans: list[int] = []
    change = p.change

    def counted(view: Relation, span: Span, stored: RelationState | None = None) -> Change:
        spans.append(sum(s.rows for s in span.segments(a)))
        return change(view, span, stored)

    p.change = counted  # type: ignore[method-assign]
    for key in (2, 3):
        shown(p, tx, v)
        put(tx, "a", **{f"k{key}": key})
    assert shown(p, tx, v) == Counter({(i, i): 1 for i in (1, 2, 3)})
    shown(p, tx, v)
    assert spans == [1, 1, 1]  # and the last query changed nothing


def test_at_the_commit_an_overlay_is_kept_and_no_task_remains(p: Process) -> None:
    v = p.view("v", p.table("a"))
    tx = p.begin()
    put(tx, "a", k1=1)
    shown(p, tx, v)
    csn = tx.commit()
    assert p.views.position(v) == Frontier(csn)
    assert p.views.tasks() == []
    assert p.stored(v, csn) == Counter({(1, 1): 1})
    assert p.jobs.bring(v, csn) == []
    assert [(j.view, j.to_csn, j.view_rows) for j in p.views.history(v)] == [("v", csn, 1)]


def test_statements_after_the_last_query_remain_as_a_partial_task(p: Process) -> None:
    """The stored rows of a commit seen in part are shown to nobody, folded into nothing, and completed by a job."""
    v = p.view("v", p.table("a"))
    start = p.put({"a": {1: 1}})
    p.jobs.bring(v, start)
    tx = p.begin()
    put(tx, "a", k1=5)
    shown(p, tx, v)
    put(tx, "a", k1=6, k2=2)
    csn = tx.commit()
    assert p.views.position(v) == Frontier(csn, 1)
    (task,) = p.views.tasks()
    assert (task.csn, task.stmtsn) == (csn, 1)
    assert p.views.frontier(v) == csn - 1
    assert p.stored(v, p.views.frontier(v)) == Counter({(1, 1): 1})
    Checkpointer(p.catalog, p.storage, p.events, lambda: pytest.fail("no Spark")).run(v)
    p.catalog.expire(0)
    assert p.shown(v, csn) == Counter({(1, 6): 1, (2, 2): 1})
    assert p.views.position(v) == Frontier(csn)
    assert p.views.tasks() == []
    assert p.stored(v, csn - 1) == Counter({(1, 1): 1})


def test_when_others_touched_the_tables_the_overlay_goes_and_a_full_task_remains(p: Process) -> None:
    v = p.view("v", p.table("a"))
    start = p.views.position(v)
    tx = p.begin()
    put(tx, "a", k1=1)
    shown(p, tx, v)
    other = p.put({"a": {2: 2}})
    csn = tx.commit()
    assert p.views.position(v).csn < other
    assert [(t.csn, t.stmtsn) for t in p.views.tasks()] == [(other, 0), (csn, 0)]
    assert p.views.position(v).csn >= start.csn
    assert p.shown(v, csn) == Counter({(1, 1): 1, (2, 2): 1})


def test_commits_to_other_tables_do_not_cost_the_overlay(p: Process) -> None:
    v = p.view("v", p.table("a"))
    p.table("b")
    tx = p.begin()
    put(tx, "a", k1=1)
    shown(p, tx, v)
    p.put({"b": {1: 1}})
    csn = tx.commit()
    assert p.views.position(v) == Frontier(csn)


# -- eager views -----------------------------------------------------------------------------------


def test_an_eager_view_is_as_of_every_commit(p: Process) -> None:
    a, b = p.table("a"), p.table("b")
    low = p.view("low", a, maintenance="eager")
    high = p.view("high", low, b, maintenance="eager")
    for values in ({"a": {1: 1}}, {"b": {1: 2}}, {"a": {1: 3}, "b": {2: 2}}):
        csn = p.put(values)
        for view in (low, high):
            assert p.views.tasks() == []
            assert p.stored(view, csn) == p.defined(view, csn)
    assert p.views.position(high) == Frontier(csn)
    assert [j.strategy for j in p.views.history(low)] == ["incremental", "incremental"]


def test_an_eager_view_that_cannot_be_maintained_stops_the_commit(p: Process) -> None:
    v = p.view("v", p.table("a"), maintenance="eager")
    first = p.put({"a": {1: 1}})

    def failing(*_: object, **__: object) -> Change:
        raise TypeMismatch("a cast", "fails")

    change, p.change = p.change, failing  # type: ignore[method-assign]
    with pytest.raises(ViewUnusable, match="eager view v: it cannot be maintained with this commit: a cast: fails"):
        p.put({"a": {1: 2}})
    assert p.catalog.snapshot() == first
    p.change = change  # type: ignore[method-assign]
    csn = p.put({"a": {1: 3}})
    assert p.stored(v, csn) == Counter({(1, 3): 1})


def test_an_eager_view_that_was_queried_is_whole_at_the_commit(p: Process) -> None:
    """What was computed for a query shows only the statements before it: with the commit all of them count."""
    v = p.view("v", p.table("a"), maintenance="eager")
    tx = p.begin()
    put(tx, "a", k1=1)
    shown(p, tx, v)
    put(tx, "a", k2=2)
    csn = tx.commit()
    assert p.views.position(v) == Frontier(csn)
    assert p.stored(v, csn) == Counter({(1, 1): 1, (2, 2): 1})


def test_a_commit_in_between_has_the_eager_view_computed_again(p: Process) -> None:
    """Law 11.3: what two transactions add at once is in the view with the second of them."""
    v = p.view("v", p.table("a"), maintenance="eager")
    between = iter([lambda: p.put({"a": {2: 2}})])
    change = p.change

    def interrupted(view: Relation, span: Span, stored: RelationState | None = None) -> Change:
        work = change(view, span, stored)
        if (other := next(between, None)) is not None:
            other()
        return work

    p.change = interrupted  # type: ignore[method-assign]
    csn = p.put({"a": {1: 1}})
    assert p.stored(v, csn) == p.defined(v, csn) == Counter({(1, 1): 1, (2, 2): 1})
    assert p.stored(v, csn - 1) == Counter({(2, 2): 1})


def test_a_view_that_never_comes_to_rest_is_a_conflict(p: Process) -> None:
    p.view("v", p.table("a"), maintenance="eager")
    keys = iter(range(100, 200))
    change = p.change
    inner: list[int] = []

    def restless(view: Relation, span: Span, stored: RelationState | None = None) -> Change:
        work = change(view, span, stored)
        if not inner:
            inner.append(1)
            p.put({"a": {next(keys): 1}})
            inner.clear()
        return work

    p.change = restless  # type: ignore[method-assign]
    with pytest.raises(WriteConflict, match="others kept changing what the eager view v reads"):
        p.put({"a": {1: 1}})


def test_an_eager_view_made_while_a_transaction_was_open_misses_nothing(p: Process) -> None:
    a = p.table("a")
    tx = p.begin()
    put(tx, "a", k1=1)
    v = p.view("v", a, maintenance="eager")
    csn = tx.commit()
    assert p.stored(v, csn) == Counter({(1, 1): 1})
    assert p.views.tasks() == []


# -- what others do meanwhile ------------------------------------------------------------------------


def test_a_view_below_that_is_not_stored_at_the_snapshot_is_not_taken_for_it(p: Process) -> None:
    """Law: no overlay is computed from rows of another moment. Then only the definition can tell."""
    a, b = p.table("a"), p.table("b")
    low = p.view("low", a)
    high = p.view("high", low, b, kind=JOIN)
    p.put({"a": {1: 1}})
    tx = p.begin()
    p.jobs.refresh(low)  # past the snapshot
    put(tx, "b", k1=7)
    assert shown(p, tx, high) is None
    csn = tx.commit()
    p.jobs.bring(high, csn)
    assert p.stored(high, csn) == p.defined(high, csn) == Counter({(1, 107): 1})


@pytest.mark.parametrize("mode", ["lazy", "eager"])
def test_an_idle_view_that_moves_on_does_not_cost_the_overlay(p: Process, mode: str) -> None:
    """Law: the upkeep moves frontiers of idle views; a commit that has their change is no conflict, and keeps it."""
    p.table("a")
    p.table("b")
    v = p.view("v", p.catalog.relation("a"), maintenance=mode)
    p.put({"b": {1: 1}})
    tx = p.begin()
    put(tx, "a", k1=1)
    assert shown(p, tx, v) == Counter({(1, 1): 1})
    p.put({"b": {2: 2}})
    assert p.views.advance(p.catalog.snapshot()) == 1
    csn = tx.commit()
    assert p.views.tasks() == []
    assert p.stored(v, csn) == Counter({(1, 1): 1})


@dataclass
class _Giving:
    """An executor whose every job shows the same."""

    work: Change

    def change(self, *_: object, **__: object) -> Change:
        return self.work

    def applied(self, *_: object) -> None:
        """There is nothing to do."""


def test_an_overlay_on_rows_that_were_corrected_meanwhile_is_not_kept(p: Process) -> None:
    a = p.table("a")
    v = p.view("v", a)
    csn = p.put({"a": {1: 1, 2: 2}})
    p.jobs.bring(v, csn)
    lost = p.views.stored(v, csn).segments
    with p.catalog.database.write() as c:
        c.execute(t.segments.delete().where(t.segments.c.relation_id == v.id))
    tx = p.begin()
    put(tx, "a", k1=5)
    shown(p, tx, v)
    right = Change("full", lost[0].table(v.schema), 0)
    jobs = JobRunner(p.catalog, p.storage, p.events, _Giving(right))
    assert jobs.refresh(v).view_rows == 2
    csn = tx.commit()
    assert [task.view_id for task in p.views.tasks()] == [v.id]
    p.jobs.bring(v, csn)
    assert p.stored(v, csn) == Counter({(1, 5): 1, (2, 2): 1})


def test_a_commit_keeps_what_was_learnt_with_the_overlays_that_it_publishes(
    p: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The changes of an overlay are one job in the history, with the seconds expected of both ways in all."""
    v = p.view("v", p.table("a"))
    compute = Process.change

    def change(*given: Any) -> Change:
        return replace(compute(*given), expected=0.5, otherwise=2.0, factors={"embedded": 0.25})

    monkeypatch.setattr(Process, "change", change)
    tx = p.begin()
    for n in (1, 2):
        put(tx, "a", **{f"k{n}": n})
        shown(p, tx, v)
    assert p.views.factors(v) == {}
    tx.commit()
    assert p.views.factors(v) == {"embedded": 0.25}
    assert [(job.expected, job.otherwise) for job in p.views.history(v)] == [(1.0, 4.0)]


# -- any interleaving --------------------------------------------------------------------------------

_TABLES = ("a", "b", "c")
_INSIDE = ("begin", "write", "write", "write", "query", "query", "commit", "rollback")
_OUTSIDE = ("job", "fold", "refresh", "advance")
EAGER = {"maintenance": "eager"}


@given(st.randoms(use_true_random=False))
@settings(max_examples=examples(15), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_whatever_transactions_do_every_view_shows_its_definition(draw: random.Random) -> None:
    """Law: own reads equal the definition over own states; after any commit every view's readable rows equal its
    definition at its frontier, eager views have no task, and jobs complete what was kept in part."""
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder))
        p = world.process()
        try:
            _any_interleaving(p, draw)
        finally:
            world.close()


def _any_interleaving(p: Process, draw: random.Random) -> None:
    a, b, c = map(p.table, _TABLES)
    low = p.view("low", a, b)
    high = p.view("high", low, c)
    quick = p.view("quick", a, maintenance="eager")
    over = p.view("over", quick, b, maintenance="eager")
    views = (low, high, quick, over, p.view("met", low, c, kind=JOIN), p.view("eager", quick, b, kind=JOIN, **EAGER))
    is_open: list[Transaction] = []
    for _ in range(draw.randint(5, 30)):
        step = draw.choice((*_INSIDE, *_OUTSIDE))
        note(step)
        if step == "begin" or (not is_open and step in _INSIDE):
            is_open.append(p.begin())
            continue
        if step == "job":
            p.jobs.bring(draw.choice(views), p.catalog.snapshot())
        elif step == "refresh":
            p.jobs.refresh(draw.choice(views))
        elif step == "advance":
            p.views.advance(p.catalog.snapshot())
        elif step == "fold":
            Checkpointer(p.catalog, p.storage, p.events, lambda: pytest.fail("no Spark")).run(draw.choice((a, *views)))
            p.catalog.expire(0)
        else:
            _step_inside(p, draw, step, is_open, views)
        if step not in ("write", "rollback"):  # these concern no reader
            _all_right(p, views)
    for tx in is_open:
        tx.rollback()
    p.world.forget()
    _all_right(p, views)
    newest = p.catalog.snapshot()
    for view in views:
        p.jobs.bring(view, newest)
        assert p.stored(view, newest) == p.defined(view, newest)
    assert p.views.tasks() == []


def _step_inside(
    p: Process, draw: random.Random, step: str, is_open: list[Transaction], views: tuple[Relation, ...]
) -> None:
    tx = draw.choice(is_open)
    if step == "write":
        table, key = draw.choice(_TABLES), draw.randint(1, 4)
        note(f"{tx.txsn} {table} {key}")
        kind = draw.choice(("upsert", "delete", "insert"))
        if kind == "upsert":
            put(tx, table, **{f"k{key}": draw.randint(1, 3)})
        elif kind == "delete":
            tx.delete_keys(table, [key])
        else:
            with suppress(DuplicateKey):
                tx.insert_rows(table, [{"k": key, "v": draw.randint(1, 3)}])
    elif step == "query":
        view = draw.choice(views)
        found = shown(p, tx, view)
        assert found is None or found == defined(p, tx, view)
    else:
        is_open.remove(tx)
        if step == "rollback":
            tx.rollback()
            return
        try:
            csn = tx.commit()
        except WriteConflict:
            return
        eager = [view for view in views if p.views.is_eager(view)]
        written = tx.written
        for view in eager:
            if written.intersection(p.views.inputs(view)):
                assert all(t.view_id != view.id for t in p.views.tasks())
                assert p.stored(view, csn) == p.defined(view, csn)


def _all_right(p: Process, views: tuple[Relation, ...]) -> None:
    for view in views:
        at = p.views.frontier(view)
        assert p.stored(view, at) == p.defined(view, at), view.name
