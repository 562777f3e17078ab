"""Condense (LAZY §4): Table 1 cell by cell, Figures 3 and 4 as plans, by cost, and where a large change needs none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from tests.unit.definition.analysed import analysed, with_sources
from tests.unit.refresh.planning import facts

from freshview.algebra.nodes import WEIGHT
from freshview.algebra.traversal import scans
from freshview.catalog.records import DIMENSION, DataFile, Relation, Segment
from freshview.definition.analysis import Definition
from freshview.delta.condense import BY_ROWS, Condense, Expected
from freshview.delta.signed import net, with_weight
from freshview.refresh.condense import ChangeUse, condensed, condensed_in_spark, is_linear, use_of
from freshview.refresh.cost import estimate_full
from freshview.refresh.deltas import images, netted
from freshview.refresh.plan import INCREMENTAL, JobPlan, SourceChange, alternatives, choose
from freshview.relation.delta import DELETE, DELETE_KEY, INSERT, REPLACE, UPSERT, actions, overlay, tag, untag
from freshview.relation.schema import Column, Schema
from freshview.relation.types import DataType
from freshview.storage.segments import in_files, in_memory

COLUMNS = (Column("k", DataType("int")), Column("x", DataType("string")))
BAG, KEYED = Schema(COLUMNS), Schema(COLUMNS, ("k",))
TABLE = Relation(1, "t", "table", 1, 1, KEYED, 0)

# Of one key, the rows that statements wrote one after the other, with x. What was there before is x = 'old'.
INSERTED_LAST = [(INSERT, "a"), (DELETE, "a"), (INSERT, "b"), (DELETE, "b"), (INSERT, "new")]
DELETED_LAST = [*INSERTED_LAST, (DELETE, "new")]
BEFORE = (DELETE, "old")
CELLS = {
    "first insert, last insert": (INSERTED_LAST, [("new", 1)]),
    "first insert, last delete": (DELETED_LAST, []),
    "first delete, last insert": ([BEFORE, *INSERTED_LAST], [("old", -1), ("new", 1)]),
    "first delete, last delete": ([BEFORE, *DELETED_LAST], [("old", -1)]),
}


def _segments(rows: Sequence[tuple[int, str | None]]) -> list[Segment]:
    """A segment for each statement, all of key 1."""
    found = []
    for stmtsn, (action, x) in enumerate(rows, 1):
        segment = in_memory(1, tag(pa.table([[1], [x]], schema=KEYED.arrow), KEYED, action, stmtsn))
        assert segment is not None
        found.append(segment)
    return found


def _partial(rows: Sequence[tuple[int, str | None]], before: Sequence[str]) -> list[tuple[str, int]]:
    """Δ of a keyed table by these statements, from a state in which key 1 has the rows `before`."""
    stored = pa.table([[1] * len(before), list(before)], schema=KEYED.arrow)
    reader = SimpleNamespace(segment_rows=lambda s, schema: s.table(schema), lookup=lambda *_, **__: stored)
    span: Any = SimpleNamespace(storage=SimpleNamespace(reader=reader), before=lambda _: SimpleNamespace(schema=KEYED))
    delta = netted(images(span, TABLE, None, _segments(rows)), TABLE)
    return [(row["x"], row[WEIGHT]) for row in delta.to_pylist()]


@pytest.mark.parametrize("cell", CELLS)
def test_table_1_of_the_partial_condense(cell: str) -> None:
    """The first and the last row of a key decide; a delete and an insert both stay, for they may meet other rows."""
    rows, left = CELLS[cell]
    assert _partial(rows, []) == left


@pytest.mark.parametrize("cell", CELLS)
def test_table_1_of_the_partial_condense_of_blind_rows(cell: str) -> None:
    """Blind rows do not carry the old image: whether the first row is an insert or a delete is what was stored."""
    rows, left = CELLS[cell]
    blind = [(UPSERT, x) if action == INSERT else (DELETE_KEY, None) for action, x in rows if (action, x) != BEFORE]
    assert _partial(blind, [x for x, weight in left if weight < 0]) == left


@pytest.mark.parametrize("cell", CELLS)
def test_table_1_of_the_full_condense(cell: str) -> None:
    """The view's signed rows are in no order. Those that cancel go; by the view's key at most one row is applied: a
    delete and an insert are one update. Its old image is stored beside it, for views above."""
    rows, left = CELLS[cell]
    weights = [1 if action == INSERT else -1 for action, _ in rows]
    unordered = [*range(1, len(rows), 2), *range(0, len(rows), 2)]
    values = [[1] * len(rows), [rows[i][1] for i in unordered], [weights[i] for i in unordered]]
    stored = net(pa.table(values, schema=with_weight(KEYED).arrow), KEYED)
    expected = [(INSERT if weight > 0 else DELETE, x) for x, weight in left]
    assert list(zip(actions(stored).to_pylist(), untag(stored).column("x").to_pylist(), strict=True)) == expected
    laid = overlay([stored], KEYED)
    applied = [(INSERT, "new")] if (INSERT, "new") in expected else expected
    assert list(zip(actions(laid.rows).to_pylist(), laid.rows.column("x").to_pylist(), strict=True)) == applied
    base = pa.table([[1, 2], ["old", "other"]], schema=KEYED.arrow)
    before = base if rows[0] == BEFORE else base.slice(1)
    after = [(row["k"], row["x"]) for row in laid.apply(before).to_pylist()]
    assert after == [(2, "other"), *((1, x) for action, x in applied if action == INSERT)]


# -- Figures 3 and 4 -------------------------------------------------------------------------------

JOIN = "SELECT t.b, u.d FROM t JOIN u ON t.a = u.a"
MILLION = 1_000_000
BY_KEY = Condense(("a",))


def _planned(definition: Definition, *changes: SourceChange) -> JobPlan:
    """The plan of a job on Spark: rows that meet the changes are read from files."""
    full = estimate_full(definition, lambda _: MILLION)
    ways = alternatives(definition, changes)
    return choose(definition, changes, ways, facts(ways, lambda _: 1000, full))


def _change(source: str, step: Condense, *, grows: bool = False) -> SourceChange:
    return SourceChange(source, 9, 9, grows, in_spark=True, condense=step)


def _deltas(plan: JobPlan) -> list[str]:
    assert plan.query is not None
    return sorted(s.relation for s in scans(plan.query) if s.version == "delta")


def test_figure_3a_a_condense_on_top() -> None:
    """One statement has updated R, through no join: the partial condense would have no effect that the full has not."""
    linear = with_sources("SELECT b FROM t WHERE a > 1")
    assert linear.form is not None
    segment = _written(action=None)
    step = condensed_in_spark(TABLE, [segment], grows=False, is_linear=is_linear(linear.form.tree))
    plan = _planned(linear, _change("t", step))
    assert ([c.condense.runs for c in plan.changes], plan.condense) == ([False], BY_ROWS)


def test_figure_3b_a_partial_condense_below_the_join() -> None:
    plan = _planned(with_sources(JOIN), _change("t", BY_KEY))
    assert (plan.strategy, _deltas(plan)) == (INCREMENTAL, ["t"])
    assert ([(c.source, c.condense) for c in plan.changes], plan.condense) == ([("t", BY_KEY)], BY_ROWS)


def test_figure_3c_no_condense_above_the_join() -> None:
    """What is below it suffices where no two rows of the result can cancel."""
    added = condensed_in_spark(TABLE, [_written(action=INSERT)], grows=True, is_linear=False)
    plan = _planned(with_sources(JOIN), _change("t", added, grows=True))
    assert plan.condense is not None
    assert (plan.condense.runs, plan.condense.why.split(",")[0]) == (False, "all changes add rows")
    both = _planned(with_sources(JOIN), _change("t", added, grows=True), _change("u", BY_KEY))
    assert both.condense == BY_ROWS


def test_figure_4b_a_partial_condense_of_each_delta_stream() -> None:
    """R and S have changed: each term of the query has one delta stream, each stream is condensed on its own."""
    plan = _planned(with_sources(JOIN), _change("t", BY_KEY), _change("u", BY_ROWS))
    assert (plan.strategy, _deltas(plan)) == (INCREMENTAL, ["t", "u"])
    assert [(c.source, c.condense) for c in plan.changes] == [("t", BY_KEY), ("u", BY_ROWS)]
    assert plan.condense == BY_ROWS


KEYED_JOIN = "SELECT t.a, t.b, u.d FROM t JOIN u ON t.b = u.a"


def test_figure_3c_a_condense_below_the_join_does_for_both() -> None:
    """The view has a key, and one change is read once: of a key of the view one old and one new row are left below the
    join. A bag may have equal rows of different keys of R, and two changes meet in rows that are no version."""
    keyed, below = replace(with_sources(KEYED_JOIN), key=("a",)), Condense(("a",), expected=Expected(9, 5, 1.0, 2.0))
    plan = _planned(keyed, _change("t", below))
    assert plan.condense is not None
    assert (plan.condense.runs, plan.condense.why) == (
        False,
        "one source has changed, is read once, and is condensed below the joins",
    )
    assert _planned(with_sources(KEYED_JOIN), _change("t", below)).condense == BY_ROWS
    assert _planned(keyed, _change("t", below), _change("u", BY_ROWS)).condense == Condense(("a",))
    assert _planned(keyed, _change("t", replace(below, cancels=False))).condense == Condense(("a",))
    assert _planned(keyed, replace(_change("t", below), in_spark=False)).condense == Condense(("a",)), "it is small"


# -- a choice by cost ------------------------------------------------------------------------------


def _use(text: str, source: str, past: Sequence[int] | None = None, **sizes: int) -> ChangeUse:
    form = with_sources(text).form
    assert form is not None
    use = use_of(form, source, lambda name: sizes.get(name, 1000), alone=True, is_keyed=True, past=past)
    assert use is not None
    return use


def test_how_a_view_reads_a_change() -> None:
    assert _use(JOIN, "t", t=1000, u=10) == ChangeUse(1, 1, 1.0, False, 1000, spares_full=True)
    assert _use(JOIN, "t", t=1000, u=4000) == ChangeUse(1, 1, 4.0, False, 1000, spares_full=True)
    assert _use("SELECT b FROM t", "t") == ChangeUse(1, 0, 1.0, False, 1000)
    assert _use("SELECT x.b FROM t x JOIN t y ON x.a = y.a", "t") == ChangeUse(2, 1, 1.0, False, 1000)
    assert _use("SELECT a, SUM(b) AS s FROM t GROUP BY a", "t", past=(100, 75)) == ChangeUse(
        1, 0, 1.0, True, 1000, cancelled=0.25
    )
    inexact = analysed("SELECT a, SUM(b) AS s FROM t GROUP BY a", types="double").form
    assert inexact is not None
    assert use_of(inexact, "t", lambda _: 9, alone=True, is_keyed=True) is None, "groups are computed again"


def test_equal_rows_cancel_below_the_joins_where_that_is_expected_to_pay() -> None:
    """Figures 3(a) and 3(c) are alternatives: what a row meets in the join, and what an earlier job has cancelled,
    decide."""
    update, of_million = [_written(None, rows=MILLION)], {"t": MILLION}
    steps = {
        (fanout, past): condensed_in_spark(
            TABLE, update, grows=False, is_linear=False, use=_use(JOIN, "t", past, u=fanout * MILLION, **of_million)
        )
        for fanout in (1, 4)
        for past in (None, (100, 100), (100, 0))
    }
    assert {case: (step.runs, step.cancels) for case, step in steps.items()} == {
        (1, None): (False, False),
        (1, (100, 100)): (False, False),
        (1, (100, 0)): (True, True),
        (4, None): (True, True),
        (4, (100, 100)): (True, True),  # nothing cancels, and the full condense of four times as many rows is spared
        (4, (100, 0)): (True, True),
    }
    assert steps[1, None].why.endswith("; cancelling equal rows is expected to take 3.3 s and to save 3.1 s")
    found = steps[4, None].expected
    assert found is not None
    assert (found.rows, found.left) == (MILLION, MILLION // 2)
    assert [found.costs, found.saves] == pytest.approx([3.3, 11.65])


def test_versions_of_a_key_are_always_condensed_and_equal_rows_if_that_pays() -> None:
    """Law: an expression may fail on a version in between, so that cost does not decide on these."""
    several = [_written(None, rows=MILLION), _written(None, rows=MILLION)]
    sums = "SELECT a, SUM(b) AS s FROM t GROUP BY a"
    steps = [
        condensed_in_spark(TABLE, several, grows=False, is_linear=False, use=_use(text, "t", t=size, u=4 * size))
        for text in (sums, JOIN)
        for size in (100, MILLION)
    ]
    assert [(step.key, step.runs, step.cancels) for step in steps] == [
        (("k",), True, True),  # of 100 keys few rows are left, whatever was written: cancelling them costs nothing
        (("k",), True, False),
        (("k",), True, True),
        (("k",), True, True),
    ]
    assert [step.expected and step.expected.rows for step in steps] == [200, 1_264_241, 200, 1_264_241]


def test_a_few_rows_are_condensed_whatever_is_expected() -> None:
    for past in (None, (10, 10)):
        use = _use("SELECT a, SUM(b) AS s FROM t GROUP BY a", "t", past)
        step = condensed_in_spark(TABLE, [_written(None)], grows=False, is_linear=False, use=use)
        assert (step.runs, step.cancels) == (True, True)


def test_a_change_that_condensing_empties_is_no_part_of_the_query_and_is_in_the_plan() -> None:
    definition, gone = with_sources(JOIN), SourceChange("u", 4, 0, False, condense=BY_KEY)
    full, kept = estimate_full(definition, lambda _: MILLION), _change("t", BY_KEY)
    ways = alternatives(definition, [kept])
    plan = choose(definition, [kept, gone], ways, facts(ways, lambda _: 1000, full))
    assert (plan.changes, plan.emptied, plan.written) == ((kept,), (gone,), (kept, gone))


# -- large changes ---------------------------------------------------------------------------------


def _written(action: int | None, stmtsn: int | None = 3, rows: int = 10) -> Segment:
    return in_files(1, [DataFile("f", rows, rows)], stmtsn=stmtsn, action=action)


def _in_spark(relation: Relation, *segments: Segment, is_linear: bool = False) -> Condense:
    return condensed_in_spark(relation, segments, grows=False, is_linear=is_linear)


def test_a_large_change_by_one_statement_is_not_condensed_by_key() -> None:
    """Law: a statement has one old and one new image of a key at most."""
    step = _in_spark(TABLE, _written(None))
    assert (step.runs, step.key) == (True, ())
    assert step.why == "one statement wrote it, so that no key has a version in between"
    assert not _in_spark(TABLE, _written(None), is_linear=True).runs
    assert not _in_spark(TABLE, _written(DELETE)).runs
    bag = replace(TABLE, schema=BAG)
    assert (_in_spark(bag, _written(None)), _in_spark(bag, _written(DELETE)).runs) == (BY_ROWS, False)


@pytest.mark.parametrize(
    "segments",
    [
        [_written(None), _written(None)],  # a key may have a version in between
        [_written(None, stmtsn=None)],  # rows of several statements, and maybe blind ones
        [_written(UPSERT)],
        [_written(DELETE_KEY)],
        [_written(INSERT), _written(DELETE)],
    ],
)
def test_other_large_changes_are_condensed_by_key(segments: list[Segment]) -> None:
    for linear in (True, False):
        assert _in_spark(TABLE, *segments, is_linear=linear) == Condense(("k",)) == condensed(TABLE)


def test_large_changes_of_other_relations_are_condensed_as_on_the_driver() -> None:
    """The rows of a dimension view may be blind and not, in one statement."""
    assert _in_spark(replace(TABLE, kind=DIMENSION), _written(None), is_linear=True) == Condense(("k",))
    for kind in ("view", "external"):
        other = replace(TABLE, kind=kind)
        assert _in_spark(other, _written(None), is_linear=True) == BY_ROWS == condensed(other)
    assert _in_spark(replace(TABLE, kind="view"), _written(REPLACE)) == BY_ROWS


@pytest.mark.parametrize(
    ("text", "linear"),
    [
        ("SELECT b + 1 AS c FROM t WHERE a > 1", True),
        (JOIN, False),
        ("SELECT a, SUM(b) AS s FROM t GROUP BY a", False),
        ("SELECT a FROM t UNION ALL SELECT b FROM t", False),
        ("SELECT a FROM t ORDER BY b LIMIT 3", False),
    ],
)
def test_what_reads_a_change_once_through_filters_and_projections(text: str, linear: bool) -> None:
    form = with_sources(text).form
    assert form is not None
    assert is_linear(form.tree) is linear
