"""Rewritings in the catalog, without Spark: attached with what they read, followed by jobs, never read half."""

from __future__ import annotations

import json
import random
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from tests.catalog.view_world import JOIN, Process, World
from tests.effort import examples

from freshview.catalog.lineage import AUXILIARY, lower_first, rewriting_ids
from freshview.catalog.records import Relation, RelationState
from freshview.catalog.rewritings import RewritingCatalog
from freshview.errors import InvalidStatement, WriteConflict
from freshview.refresh.execute import Change
from freshview.refresh.span import Span
from freshview.storage.checkpoint import Checkpointer


def _auxiliary(p: Process, name: str, *sources: Relation) -> Relation:
    made = p.view(name, *sources)
    p.views.note(made, AUXILIARY, json.dumps({"what": "a copy"}))
    return _now(p, made)


def _now(p: Process, relation: Relation) -> Relation:
    found = p.catalog.relation_by_id(relation.id)
    assert found is not None
    return found


def _attach(p: Process, view: Relation, *sources: Relation) -> Relation:
    named = {s.name: {"id": s.id, "columns": ["k", "v"]} for s in sources}
    RewritingCatalog(p.views).attach(view, json.dumps({"text": "", "sources": named}), sources)
    return _now(p, view)


def test_a_rewritten_view_reads_its_own_sources_and_those_of_the_rewriting(p: Process) -> None:
    a, b = p.table("a"), p.table("b")
    v = p.view("v", a, b)
    above = p.view("above", v)
    x = _auxiliary(p, "x", a)
    v = _attach(p, v, x, b)
    assert set(p.views.inputs(v)) == {a.id, b.id, x.id}
    assert set(p.views.inputs(above)) == {a.id, b.id, x.id, v.id}
    assert p.views.above(x) == [v, _now(p, above)]
    order = [r.name for r in lower_first(p.catalog.relations())]
    assert order.index("x") < order.index("v") < order.index("above")
    assert RewritingCatalog(p.views).detach(v)
    assert set(p.views.inputs(v)) == {a.id, b.id}
    assert set(p.views.inputs(above)) == {a.id, b.id, v.id}
    assert not RewritingCatalog(p.views).detach(v)


def test_no_rewriting_reads_its_own_view_nor_what_is_gone_nor_serves_an_eager_one(p: Process) -> None:
    a = p.table("a")
    v, w = p.view("v", a), p.view("w", a)
    _attach(p, v, w)
    with pytest.raises(WriteConflict, match="would read it"):
        _attach(p, w, v)
    x = _auxiliary(p, "x", a)
    p.views.drop(x)
    with pytest.raises(WriteConflict, match="dropped"):
        _attach(p, w, x)
    eager = p.view("eager", a, maintenance="eager")
    with pytest.raises(WriteConflict, match="lazy"):
        _attach(p, eager, w)
    assert not rewriting_ids(_now(p, w))
    assert not rewriting_ids(_now(p, eager))


def test_auxiliary_views_go_when_nothing_reads_them_those_above_first(p: Process) -> None:
    a = p.table("a")
    v = p.view("v", a)
    x = _auxiliary(p, "x", a)
    y = _auxiliary(p, "y", x)
    rewritings = RewritingCatalog(p.views)
    v = _attach(p, v, y)
    assert rewritings.drop_unread() == []
    rewritings.detach(v)
    assert rewritings.drop_unread() == [y, x]
    assert [r.name for r in p.catalog.relations()] == ["a", "v"]


def test_a_full_refresh_of_an_auxiliary_view_is_a_task_of_the_views_that_it_helps(p: Process) -> None:
    """If it was wrong, so may be what was computed from it."""
    a = p.table("a")
    v = p.view("v", a)
    x = _auxiliary(p, "x", a)
    v = _attach(p, v, x)
    p.jobs.bring(v, p.put({"a": {1: 1}}))
    change = p.change

    def found_wrong(view: Relation, span: Span, stored: RelationState | None = None) -> Change:
        return change(view, Span.between(p.catalog, p.storage, a.created_csn, span.end.csn), stored)

    p.change = found_wrong  # type: ignore[method-assign]
    p.jobs.refresh(x)
    assert [task.reset for task in p.views.tasks() if task.view_id == v.id] == [True]
    before = replace(v, facts={})  # a record from before the view was rewritten
    with pytest.raises(WriteConflict, match="v: what it is rewritten over was recomputed"):
        RewritingCatalog(p.views).detach(before)  # the task would be lost, and wrong rows stay
    y = _auxiliary(p, "y", a)
    for record in (before, v):
        with pytest.raises(WriteConflict, match="v: what it is rewritten over was recomputed"):
            _attach(p, record, y)
    p.jobs.bring(v, p.catalog.snapshot())
    v = _attach(p, v, y)
    assert RewritingCatalog(p.views).detach(v)


def test_a_job_brings_what_the_rewriting_reads_along_and_ends_where_that_has_a_version(p: Process) -> None:
    a = p.table("a")
    v = p.view("v", a)
    x = _auxiliary(p, "x", a)
    v = _attach(p, v, x)
    first, second, third = (p.put({"a": {1: i}}) for i in range(3))
    p.jobs.bring(v, first)
    assert p.views.frontier(x) == first
    p.jobs.bring(x, third)
    assert p.jobs.step(v, third, most_rows=1) is not None
    assert p.views.frontier(v) == third  # x has no version at the second commit
    fourth, fifth = (p.put({"a": {1: i}}) for i in range(2))
    p.jobs.bring(x, fifth)
    p.jobs.bring(v, fourth)
    assert p.views.frontier(v) == fourth  # a query asked for that commit: the job goes without x
    assert second < third


def test_an_auxiliary_view_that_fails_holds_up_no_view(p: Process) -> None:
    a = p.table("a")
    v = p.view("v", a)
    x = _auxiliary(p, "x", a)
    v = _attach(p, v, x)

    def fail(view: Relation, *_: int) -> None:
        if view.id == x.id:
            raise InvalidStatement("x", "a row that only it reads", "")

    p.before = fail
    csn = p.put({"a": {1: 1}})
    p.jobs.bring(v, csn)
    assert p.stored(v, csn) == p.defined(v, csn)
    assert p.views.frontier(x) < csn


def test_rewritten_views_are_refreshed_together_after_what_they_are_rewritten_over(p: Process) -> None:
    """Also if only the rewritten views are asked for, and if an auxiliary view has no company."""
    a, b = p.table("a"), p.table("b")
    v, w, plain = p.view("v", a, b, kind=JOIN), p.view("w", a, b), p.view("plain", a)
    x, y = _auxiliary(p, "x", a), _auxiliary(p, "y", b)
    z = _auxiliary(p, "z", x, y)
    v, w = _attach(p, v, x, b), _attach(p, w, z)
    p.groups.bring([v, w, plain], p.put({"a": {1: 1}, "b": {1: 2}}))
    assert [sorted(names) for names in p.together] == [["plain", "x"], ["v", "z"]]
    p.together.clear()
    p.jobs.bring(w, p.catalog.snapshot())  # it had no company
    v = _attach(p, v, z)
    csn = p.put({"a": {2: 1}})
    done = p.groups.bring([v, w], csn)
    assert p.together == [["v", "w"]]
    assert [job.view for job in done] == ["x", "z", "v", "w"]
    for view in (v, w, x, z):
        assert p.views.frontier(view) == csn
        assert p.stored(view, csn) == p.defined(view, csn)


def test_a_failing_auxiliary_view_leaves_the_views_that_it_helps_to_their_own_jobs(p: Process) -> None:
    a = p.table("a")
    v, w, plain = p.view("v", a), p.view("w", a), p.view("plain", a)
    x = _auxiliary(p, "x", a)
    v, w = _attach(p, v, x), _attach(p, w, x)

    def fail(view: Relation, *_: int) -> None:
        if view.id == x.id:
            raise InvalidStatement("x", "a row that only it reads", "")

    p.before = fail
    csn = p.put({"a": {1: 1}})
    assert p.groups.bring([v, w, plain], csn) == []
    for view in (v, w, plain):
        p.jobs.bring(view, csn)
        assert p.stored(view, csn) == p.defined(view, csn)


@pytest.mark.parametrize("seed", range(examples(12)))
def test_where_a_rewriting_may_be_used_all_that_it_reads_is_as_its_definition_says(seed: int) -> None:
    """Law: at both ends of a job that uses a rewriting, each view that it reads holds what its definition gives.

    Whatever order views are maintained in, whoever else maintains them, reads them in transactions, folds them.
    """
    draw, used = random.Random(seed), 0
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder))
        p = world.process()
        a, b = p.table("a"), p.table("b")
        v, w = p.view("v", a, b, kind=JOIN), p.view("w", a, b)
        x = _auxiliary(p, "x", a)
        y = _auxiliary(p, "y", x, b)
        v, w = _attach(p, v, x, b), _attach(p, w, y)
        reads = {v.id: [x], w.id: [y]}

        def before(view: Relation, c0: int, c1: int) -> None:
            nonlocal used
            ends = [(s, c) for s in reads.get(view.id, ()) for c in (c0, c1)]
            if ends and all(p.views.stored_at(s, c) == c for s, c in ends):
                used += 1
                for s, c in ends:
                    assert p.stored(s, c) == p.defined(s, c), (view.name, s.name, c)

        p.before = before
        for _ in range(25):
            match draw.randrange(8):
                case 0 | 1 | 2:
                    p.put({draw.choice("ab"): {draw.randrange(4): draw.randrange(9)}})
                case 3:
                    tx = p.begin()
                    tx.upsert_rows("a", [{"k": draw.randrange(4), "v": 1}])
                    tx.company.state(draw.choice([v, w, x]))  # type: ignore[union-attr]
                    tx.upsert_rows("b", [{"k": draw.randrange(4), "v": 2}])
                    tx.commit()
                case 4:
                    p.jobs.step(draw.choice([v, w, x, y]), p.catalog.snapshot(), most_rows=draw.choice([1, None]))
                case 5:
                    one = draw.choice([v, w, x, y])
                    p.jobs.bring(one, draw.randint(p.views.frontier(one), p.catalog.snapshot()))
                case 6:
                    p.views.advance(p.catalog.snapshot())
                    Checkpointer(p.catalog, p.storage, p.events, lambda: pytest.fail("no Spark")).run(x)
                case 7:
                    some = draw.sample([v, w, x, y], draw.randint(2, 4))
                    p.groups.bring(some, p.catalog.snapshot(), most_rows=draw.choice([1, None]))
        for view in (v, w, x, y):
            p.jobs.bring(view, p.catalog.snapshot())
            assert p.stored(view, p.catalog.snapshot()) == p.defined(view, p.catalog.snapshot())
        world.close()
    assert used
