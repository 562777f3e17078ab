"""ORDER BY … LIMIT with a buffer: the law of `delta/top.py`, over runs of changes and without Spark.

The stored rows are kept by the delta rules from state to state. After each change they are the best m rows of the input
for some m, all of them unless the last one is marked, and those of the view are shown.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st
from tests.effort import examples
from tests.unit.algebra.oracle import Bag, Row, evaluate, ordered, plus, signed
from tests.unit.delta.cases import all_of, laws
from tests.unit.sql.view_grammar import SCHEMAS, Change, State, noises, states

from freshview.algebra.nodes import WEIGHT, Lowered, Node, Stored, Table
from freshview.algebra.traversal import scans
from freshview.definition.determinism import with_tie_breaks
from freshview.delta.derive import at_version
from freshview.delta.forms import Form, choose_form, delta_plan, with_buffer
from freshview.delta.semijoin import reduced
from freshview.delta.signed import RanOut, net
from freshview.relation.schema import Column, Schema
from freshview.relation.types import DataType
from freshview.sql.lowering import lower

INPUTS = {
    "rows": "SELECT a, b FROM t ORDER BY {order}",
    "rows by what is not shown": "SELECT c FROM t ORDER BY x {word}, a",
    "doubles": "SELECT x FROM t ORDER BY x {word}",
    "one column twice": "SELECT a, a AS b, c FROM t ORDER BY {order}",
    "a join": "SELECT t.a, u.d AS b FROM t JOIN u ON t.a = u.a WHERE t.b > 0 ORDER BY {order}",
    "a left join": "SELECT t.a, u.d AS b FROM t LEFT JOIN u ON t.a = u.a ORDER BY {order}",
    "a union": "SELECT a, b FROM t UNION ALL SELECT a, d FROM u ORDER BY {order}",
    "distinct rows": "SELECT DISTINCT a, b FROM t ORDER BY {order}",
    "groups": "SELECT a, SUM(b) AS b FROM t GROUP BY a ORDER BY {order}",
    "groups by hidden keys": "SELECT COUNT(*) AS a, MAX(b) AS b FROM t GROUP BY a, c ORDER BY {order}",
    "groups under conditions": "SELECT a, SUM(b) AS b FROM t GROUP BY a HAVING COUNT(*) > 1 ORDER BY {order}",
    "groups by doubles": "SELECT x, COUNT(*) AS n FROM t GROUP BY x ORDER BY n {word}",
    "groups of a join": "SELECT t.a, SUM(u.d) AS b FROM t JOIN u ON t.a = u.a GROUP BY t.a, t.c ORDER BY {order}",
    "one group": "SELECT COUNT(*) AS a, MAX(b) AS b FROM t ORDER BY {order}",
    "a window": "SELECT a, RANK() OVER (PARTITION BY c ORDER BY b) AS b FROM t ORDER BY {order}",
}
GROUPED = {name for name in INPUTS if name.startswith(("groups", "distinct"))}
LINEAR = {"rows", "rows by what is not shown", "doubles", "one column twice", "a join", "a left join", "a union"}
_words = st.sampled_from(["", "DESC", "NULLS LAST", "DESC NULLS FIRST"])


@dataclass(frozen=True)
class _View:
    lowered: Lowered
    form: Form

    @property
    def names(self) -> tuple[str, ...]:
        return self.form.stored

    @lru_cache(64)  # noqa: B019 - few views, each with few plans
    def plan(self, changed: frozenset[str], small: bool) -> Node | None:
        return delta_plan(self.form, self.lowered, set(changed), dict.fromkeys(self.names, "bigint"), small=small)


@lru_cache(256)
def _view(text: str, size: int | None = None) -> _View:
    lowered = with_tie_breaks(lower(text, SCHEMAS), all_of("double"))
    form = choose_form(lowered, tuple(n for _, n in lowered.outputs), all_of("int"))
    assert form.rule == "top"
    return _View(lowered, form if size is None else with_buffer(form, size))


def _shown(view: _View, stored: Bag) -> Bag:
    """The rows of the view, out of the stored ones."""
    assert view.form.member is not None
    place, width = view.names.index(view.form.member), len(view.form.visible)
    result: Bag = Counter()
    for row, n in stored.items():
        if row[place] is True:
            result[row[:width]] += n
    return result


def _defined(view: _View, state: State) -> Bag:
    """The rows of the view, by its definition."""
    node = view.lowered.node
    places = [node.columns.index(c) for c, _ in view.lowered.outputs]
    result: Bag = Counter()
    for row, n in evaluate(at_version(node, "old"), Change(state, state).read).items():
        result[tuple(row[p] for p in places)] += n
    return result


def _check_law(view: _View, stored: Bag, state: State) -> None:
    top = view.form.top
    assert top is not None
    node = top.node
    rows = evaluate(at_version(node.input, "old"), Change(state, state).read)
    envs: list[Any] = [dict(zip(node.columns, row, strict=True)) for row in rows.elements()]
    best = [tuple(env[c] for c in node.columns) for env in ordered(envs, node.order)]
    count = stored.total()
    places = [view.names.index(s) for _, s in top.columns]
    held: Bag = Counter()
    for row, n in stored.items():
        held[tuple(row[p] for p in places)] += n
    assert held == Counter(best[:count]), "the stored rows are the best ones"
    assert min(top.reach, len(best)) <= count <= top.size
    marked: Counter[Row] = Counter()
    for row, n in stored.items():
        if row[view.names.index(top.more)]:
            marked[tuple(row[p] for p in places)] += n
    assert marked in (Counter(), Counter(best[count - 1 : count])), "only the last row is marked"
    assert marked or count == len(best), "without a mark, all rows are stored"


def _after(view: _View, stored: Bag, change: Change, *, small: bool = True) -> Bag | None:
    """The stored rows after a change, by the delta rules; None if the buffer ran out."""
    plan = view.plan(frozenset(change.changed), small)
    if plan is None:
        return stored
    assert plan.columns == (*view.form.stored, WEIGHT)
    read = Change(change.old, change.new, change.noise, stored=(view.form.stored, stored)).read
    if any(row[-1] == 0 for row in evaluate(plan, read)):
        return None
    return plus(stored, signed(plan, read))


def _scratch(view: _View, state: State) -> Bag:
    return evaluate(at_version(view.form.tree, "old"), Change(state, state).read)


def _tried(view: _View, run: list[State], noise: dict[str, list[Row]], *, small: bool = True) -> list[bool]:
    """Keep a view through a run of states, checking the law in each; return for each change whether rows ran out."""
    stored = _scratch(view, run[0])
    ended = []
    for old, new in itertools.pairwise(run):
        found = _after(view, stored, Change(old, new, noise), small=small)
        ended.append(found is None)
        stored = _scratch(view, new) if found is None else found
        _check_law(view, stored, new)
        assert _shown(view, stored) == _defined(view, new)
    return ended


@pytest.mark.parametrize("name", INPUTS)
@settings(laws, max_examples=examples(15, commit=9))
@given(
    run=states(4),
    noise=noises(),
    order=st.tuples(_words, _words),
    limit=st.integers(1, 3),
    offset=st.integers(0, 2),
    spare=st.integers(0, 2),
    small=st.booleans(),
)
def test_the_buffer_holds_the_best_rows_through_all_changes(
    name: str,
    run: list[State],
    noise: dict[str, list[Row]],
    order: tuple[str, str],
    limit: int,
    offset: int,
    spare: int,
    small: bool,
) -> None:
    ordering = INPUTS[name].format(order=f"a {order[0]}, b {order[1]}", word=order[0])
    text = f"{ordering} LIMIT {limit} OFFSET {offset}"
    note(text)
    _tried(_view(text, limit + offset + spare), run, noise, small=small)


def _ints(*values: int) -> State:
    return {"t": Counter((v, None, None, None) for v in values), "u": Counter(), "v": Counter()}


def _runs(text: str, size: int, *values: Sequence[int]) -> list[bool]:
    return _tried(_view(text, size), [_ints(*v) for v in values], {})


SHORT = "SELECT a FROM t ORDER BY a LIMIT 2"


def test_rows_run_out_only_when_the_buffer_is_used_up() -> None:
    """The best 4 of 6 rows are stored: two may go; the third leaves one where the view has two."""
    assert _runs(SHORT, 4, [1, 2, 3, 4, 5, 6], [2, 3, 4, 5, 6], [3, 4, 5, 6], [4, 5, 6]) == [False, False, True]


def test_rows_that_come_fill_the_buffer_again() -> None:
    assert _runs(SHORT, 3, [1, 2, 3, 4], [2, 3, 4], [1, 2, 3, 4], [2, 3, 4]) == [False] * 3


def test_what_falls_out_of_the_buffer_is_missed_later() -> None:
    """4 falls out when 1 comes; after 1 and 2 have gone it would be shown."""
    assert _runs(SHORT, 3, [2, 3, 4], [1, 2, 3, 4], [2, 3, 4], [3, 4]) == [False, False, True]


def test_rows_beyond_the_buffer_are_no_matter() -> None:
    assert _runs(SHORT, 2, [1, 2, 5], [1, 2, 4], [1, 2], [1, 2, 3], [1]) == [False, False, False, True]


def test_copies_of_the_last_row_may_lie_beyond_the_buffer() -> None:
    """3 of 5 copies are stored; more of them go than are stored, and those that are left are not known."""
    assert _runs(SHORT, 3, [1] * 5, [1] * 4, [1] * 3) == [False, True]
    assert _runs(SHORT, 3, [1] * 5, [1]) == [True]
    assert _runs(SHORT, 3, [1] * 5, [1] * 7, [0] + [1] * 7) == [False, False]


def test_all_rows_in_the_buffer_never_run_out() -> None:
    assert _runs(SHORT, 4, [1, 2, 3, 4], [4], [], [7, 8], [7]) == [False] * 4


def test_the_size_of_the_buffer() -> None:
    """100 rows beyond those of the view, or as many as the view has."""
    sizes = {"LIMIT 10": 110, "LIMIT 100": 200, "LIMIT 300 OFFSET 20": 640}
    for limit, size in sizes.items():
        top = _view(f"SELECT a FROM t ORDER BY a {limit}").form.top
        assert top is not None
        assert top.size == size


@pytest.mark.parametrize("name", INPUTS)
def test_groups_are_compared_with_the_stored_ones(name: str) -> None:
    """Over groups nothing is read in its old state but the buffer, whose sums are retracted as they were stored."""
    view = _view(INPUTS[name].format(order="a, b", word="") + " LIMIT 2 OFFSET 0")
    plan = view.plan(frozenset({"t"}), True)
    assert plan is not None
    assert (view.form.root is not None) == (name in GROUPED)
    read = {s.source for s in scans(plan) if s.version == "old" and s.source != Table("u")}
    assert (read == {Stored()}) == (name in GROUPED or name in LINEAR)


def test_sums_of_doubles_below_a_limit_are_retracted_as_stored() -> None:
    """A stored sum that differs from the recomputed one in its last digit goes away all the same."""
    view = _view("SELECT a, SUM(b) AS s FROM t GROUP BY a ORDER BY s DESC LIMIT 1", 2)
    old = {"t": Counter({(1, 5, None, None): 1, (2, 4, None, None): 1}), "u": Counter(), "v": Counter()}
    new = {**old, "t": Counter({(1, 1, None, None): 1, (2, 4, None, None): 1})}
    stored = _scratch(view, old)
    (row,) = (r for r in stored if r[0] == 1)
    off = Counter({(r[0], 5.5, *r[2:]) if r == row else r: n for r, n in stored.items()})
    found = _after(view, off, Change(old, new))
    assert found is not None
    assert _shown(view, found) == Counter({(2, 4): 1})
    assert {r[0] for r in found} == {1, 2}


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("SELECT a, b FROM t ORDER BY b DESC LIMIT 2", ("a", "b")),
        ("SELECT a FROM t ORDER BY b LIMIT 2", ("a", "__order0")),
        ("SELECT a + b AS x FROM t ORDER BY a + b, c LIMIT 2", ("x", "__order0")),
        ("SELECT a, SUM(b) AS s FROM t GROUP BY a ORDER BY s DESC, a LIMIT 2", ("a", "s")),
        ("SELECT SUM(b) AS s FROM t GROUP BY a ORDER BY s LIMIT 2", ("s", "__order0")),
    ],
)
def test_nothing_is_stored_twice(text: str, columns: tuple[str, ...]) -> None:
    """What the view shows serves as order and as key."""
    lowered = lower(text, SCHEMAS)
    form = choose_form(lowered, tuple(n for _, n in lowered.outputs), all_of("int"))
    assert form.stored == (*columns, "__shown", "__more")
    assert form.top is not None
    assert len({term.this for term in form.top.node.order}) == len(form.top.node.order)


def test_keys_without_an_order_are_kept_by_the_general_rules() -> None:
    lowered = lower("SELECT COUNT(*) AS n FROM t GROUP BY a ORDER BY n LIMIT 2", SCHEMAS)
    assert choose_form(lowered, ("n",), all_of("array<int>")).root is None
    assert choose_form(lowered, ("n",), all_of("double")).root is not None


def test_rows_of_weight_0_tell_that_the_buffer_ran_out() -> None:
    schema = Schema((Column("a", DataType("int")),))
    columns = {"a": pa.array([7, 8], pa.int32()), WEIGHT: pa.array([1, -1], pa.int32())}
    assert net(pa.table(columns), schema).num_rows == 2
    assert net(pa.table(columns).slice(0, 0), schema).num_rows == 0
    with pytest.raises(RanOut, match="rows that are not stored"):
        net(pa.table({**columns, WEIGHT: pa.array([1, 0], pa.int32())}), schema)


def test_rows_that_no_restriction_admits_make_no_difference() -> None:
    """Lookups read the rows of touched groups only."""
    view = _view(INPUTS["groups of a join"].format(order="a, b") + " LIMIT 2")
    plan = view.plan(frozenset({"t", "u"}), True)
    assert plan is not None
    read = [s for s in scans(reduced(plan)) if s.version == "new"]
    assert read
    assert all(s.semijoins for s in read)
