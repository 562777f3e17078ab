"""Where no two rows of a delta query can cancel: its weights are all positive, whatever the rows are."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.algebra.oracle import evaluate
from tests.unit.delta.cases import VIEWS, decided, forms, laws
from tests.unit.sql.view_grammar import SCHEMAS, Change, State, lowered_view, states, views

from freshview.algebra.nodes import Node
from freshview.delta.cancelling import can_cancel, is_read_once
from freshview.delta.derive import at_version, derive
from freshview.delta.forms import delta_plan

_KEEP_SIGNS = (
    "filter and project",
    "values",
    "inner join",
    "comma join with a residual",
    "using",
    "cross join",
    "self-join",
)


def _growing(run: list[State]) -> Change:
    """A change that only adds rows."""
    old, more = run
    return Change(old, {table: old[table] + more[table] for table in SCHEMAS})


def _delta(text: str, changed: set[str], small: bool) -> Node | None:
    return derive(decided(lowered_view(text)).node, changed, small=small)


@laws
@given(text=st.one_of(st.sampled_from(sorted(VIEWS.values())), views()), run=states(2), small=st.booleans())
def test_all_weights_are_positive(text: str, run: list[State], small: bool) -> None:
    change = _growing(run)
    grown = frozenset(change.changed)
    lowered = decided(lowered_view(text))
    for form in forms(lowered).values():
        types = dict.fromkeys(form.stored, "bigint")
        query = delta_plan(form, lowered, set(grown), types, small=small, inserts_only=grown)
        if query is not None and not can_cancel(query, grown):
            stored = (form.stored, evaluate(at_version(form.tree, "old"), change.read))
            assert all(row[-1] > 0 for row in evaluate(query, replace(change, stored=stored).read))


@laws
@given(
    text=st.one_of(st.sampled_from(sorted(VIEWS.values())), views()),
    run=states(2),
    table=st.sampled_from(sorted(SCHEMAS)),
    small=st.booleans(),
)
def test_a_change_that_is_read_once_deletes_what_is_there_and_inserts_what_will_be(
    text: str, run: list[State], table: str, small: bool
) -> None:
    """Law: also where its rows have not cancelled, no row is deleted that the view does not have."""
    lowered = decided(lowered_view(text))
    query = derive(lowered.node, {table}, small=small)
    if query is None or not is_read_once(query):
        return
    old, new = run[0], {**run[0], table: run[1][table]}
    found = evaluate(query, Change(old, new).read)
    for sign, version in ((-1, "old"), (1, "new")):
        rows = evaluate(at_version(lowered.node, version), Change(old, new).read)
        images: Counter[tuple[object, ...]] = Counter()
        for row, n in found.items():
            if row[-1] * sign > 0:
                images[row[:-1]] += n
        assert images <= Counter(rows)


@pytest.mark.parametrize(
    ("name", "changed", "once"),
    [
        ("filter and project", {"t"}, True),
        ("inner join", {"t"}, True),
        ("inner join", {"u"}, True),
        ("inner join", {"t", "u"}, False),
        ("self-join", {"t"}, False),
        ("left join", {"t"}, True),
        ("left join", {"u"}, False),
        ("explode", {"t"}, True),
        ("group", {"t"}, False),
    ],
)
def test_which_queries_read_a_change_once(name: str, changed: set[str], once: bool) -> None:
    query = _delta(VIEWS[name], changed, small=False)
    assert query is not None
    assert is_read_once(query) is once


@pytest.mark.parametrize("name", _KEEP_SIGNS)
def test_joins_filters_and_projections_of_growing_tables_need_no_condense(name: str) -> None:
    for changed in ({"t"}, {"t", "u", "v"}):
        query = _delta(VIEWS[name], changed, small=False)
        assert query is not None
        assert not can_cancel(query, changed)


@pytest.mark.parametrize("name", ["inner join", "self-join"])
def test_they_do_if_a_table_also_loses_rows(name: str) -> None:
    query = _delta(VIEWS[name], {"t", "u"}, small=False)
    assert query is not None
    assert can_cancel(query, {"u"})


@pytest.mark.parametrize("name", ["left join", "anti join", "not in", "group"])
def test_other_operators_take_rows_away_though_tables_grow(name: str) -> None:
    changed = {"t", "u"}
    query = _delta(VIEWS[name], changed, small=False)
    assert query is not None
    assert can_cancel(query, changed)
