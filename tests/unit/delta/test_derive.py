"""The laws of the delta rules, on random views, data and changes, without Spark.

new(E) = old(E) + Δ(E)                        for the general rules, and for every stored form
Δ(s0 → s2) = Δ(s0 → s1) + Δ(s1 → s2)          one batch equals many
Δ(E) is None when nothing that E reads changed, at planning time
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import Any

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st
from tests.effort import examples
from tests.unit.algebra.oracle import Bag, evaluate, plus, signed
from tests.unit.delta.cases import VIEWS, decided, forms, laws
from tests.unit.sql.view_grammar import SCHEMAS, Change, State, lowered_view, noises, states, views

from freshview.algebra.nodes import WEIGHT, Node
from freshview.algebra.traversal import relations, scans
from freshview.delta.derive import at_version, derive
from freshview.delta.forms import Form, delta_plan
from freshview.sql.lowering import lower


def _signed_sum(*changes: Bag) -> Bag:
    total: Bag = Counter()
    for change in changes:
        total = plus(total, change)
    return total


class _Plans:
    """What a text gives whatever the rows are: made once, however many rows it is tried on."""

    def __init__(self, text: str) -> None:
        self.lowered = decided(lowered_view(text))
        self.view = _versions(self.lowered.node)
        self._deltas: dict[tuple[Any, ...], Node | None] = {}

    @cached_property
    def forms(self) -> list[tuple[Form, Node, Node]]:
        """Each stored form, with its tree over the old and over the new state."""
        return [(form, *_versions(form.tree)) for form in forms(self.lowered).values()]

    def delta(self, changed: frozenset[str], small: bool) -> Node | None:
        key = (changed, small)
        if key not in self._deltas:
            self._deltas[key] = derive(self.lowered.node, set(changed), small=small)
        return self._deltas[key]

    def stored(self, form: Form, changed: frozenset[str], small: bool, grown: frozenset[str]) -> Node | None:
        key = (form.rule, changed, small, grown)
        if key not in self._deltas:
            types = dict.fromkeys(form.stored, "bigint")
            self._deltas[key] = delta_plan(form, self.lowered, set(changed), types, small=small, inserts_only=grown)
        return self._deltas[key]


def _versions(tree: Node) -> tuple[Node, Node]:
    return at_version(tree, "old"), at_version(tree, "new")


_plans = lru_cache(maxsize=100)(_Plans)


def _delta(plans: _Plans, change: Change, small: bool = True) -> Bag:
    plan = plans.delta(frozenset(change.changed), small)
    if plan is None:
        return Counter()
    assert plan.columns == (*plans.lowered.node.columns, WEIGHT)
    return signed(plan, change.read)


def _check_general_rules(text: str, change: Change, small: bool) -> None:
    plans = _plans(text)
    old, new = (evaluate(tree, change.read) for tree in plans.view)
    assert plus(old, _delta(plans, change, small)) == new


def _inserts_only(change: Change) -> frozenset[str]:
    """Changed tables whose change only adds rows."""
    grown = {t for t in change.changed if not change.old[t] - change.new[t] and not change.noise.get(t)}
    return frozenset(grown)


def _check_stored_forms(text: str, change: Change, small: bool) -> None:
    plans = _plans(text)
    lowered = plans.lowered
    shown = [lowered.node.columns.index(c) for c, _ in lowered.outputs]
    expected: Bag = Counter()
    for row, n in evaluate(plans.view[1], change.read).items():
        expected[tuple(row[p] for p in shown)] += n
    for form, before, after in plans.forms:
        old, new = evaluate(before, change.read), evaluate(after, change.read)
        visible: Bag = Counter()
        for row, n in new.items():
            if form.member is None or row[form.stored.index(form.member)] is True:
                visible[row[: len(form.visible)]] += n
        assert form.stored[: len(form.visible)] == form.visible
        assert visible == expected, f"{form.rule}: the visible columns are not the view"
        plan = plans.stored(form, frozenset(change.changed), small, _inserts_only(change))
        delta = Counter() if plan is None else signed(plan, replace(change, stored=(form.stored, old)).read)
        assert plan is None or plan.columns == (*form.stored, WEIGHT)
        assert plus(old, delta) == new, f"{form.rule}: the stored rows are not the new ones"


@settings(laws, max_examples=examples(25, commit=15))
@given(run=states(2), noise=noises(), small=st.booleans())
def test_refresh_equals_recompute_for_each_rule(run: list[State], noise: dict[str, Any], small: bool) -> None:
    """new = old + Δ, by the general rules and in each stored form, for a view of each kind: each change is tried on all
    of them, since to draw one takes longer than to try it. The note printed last names the one that failed."""
    change = Change(run[0], run[1], noise)
    for name, text in VIEWS.items():
        note(name)
        _check_general_rules(text, change, small)
        _check_stored_forms(text, change, small)


@laws
@given(text=views(), run=states(2), noise=noises(), small=st.booleans())
def test_refresh_equals_recompute(text: str, run: list[State], noise: dict[str, Any], small: bool) -> None:
    """new = old + Δ for random views; a count below zero would show as a difference."""
    _check_general_rules(text, Change(run[0], run[1], noise), small)


@laws
@given(text=views(), run=states(2), noise=noises(), small=st.booleans())
def test_stored_rows_follow_the_view(text: str, run: list[State], noise: dict[str, Any], small: bool) -> None:
    """stored(new) = stored(old) + Δ in every stored form, hidden columns included; the visible ones are the view."""
    _check_stored_forms(text, Change(run[0], run[1], noise), small)


@settings(laws, max_examples=100)
@given(text=st.one_of(st.sampled_from(sorted(VIEWS.values())), views()), run=states(3))
def test_one_batch_equals_many(text: str, run: list[State]) -> None:
    """The change from s0 to s2 is that from s0 to s1 and that from s1 to s2; it is nothing only if the view is the
    same."""
    plans, whole = _plans(text), Change(run[0], run[2])
    steps = [_delta(plans, Change(a, b)) for a, b in itertools.pairwise(run)]
    found = _delta(plans, whole)
    assert found == _signed_sum(*steps)
    if not found:
        _check_general_rules(text, whole, small=True)


@pytest.mark.parametrize("name", VIEWS)
def test_unchanged_inputs_are_pruned_at_planning(name: str) -> None:
    """Nothing that the view reads changed: no plan, in any form. One thing changed: no other delta is scanned."""
    lowered = lower(VIEWS[name], SCHEMAS)
    read = relations(lowered.node)
    assert derive(lowered.node, set(SCHEMAS) - read) is None
    for form in forms(lowered).values():
        assert delta_plan(form, lowered, set(SCHEMAS) - read, dict.fromkeys(form.stored, "bigint")) is None
    for one in read:
        plan = derive(lowered.node, {one})
        assert plan is not None
        assert {s.relation for s in scans(plan) if s.version == "delta"} <= {one}


@settings(laws, max_examples=60)
@given(run=states(2), order=st.permutations(["t x", "u y", "v z", "t w"]), small=st.booleans())
def test_the_order_of_tables_does_not_matter(run: list[State], order: list[str], small: bool) -> None:
    """The order of a join's tables decides which are old and which are new in a term, and does not change the delta."""
    condition = "x.a = y.a AND y.d <=> z.d AND z.b = w.b AND x.c = w.c"
    change = Change(run[0], run[1])
    found = []
    for tables in (["t x", "u y", "v z", "t w"], order):
        text = f"SELECT x.a, y.d, w.b FROM {', '.join(tables)} WHERE {condition}"
        found.append(_delta(_plans(text), change, small))
    assert found[0] == found[1]
    if not found[0]:
        _check_general_rules(text, change, small)
