"""Views kept by delta rules over auxiliary views: the same stored rows, whatever was chosen to be stored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from tests.effort import examples
from tests.unit.algebra.oracle import Bag, evaluate, plus, signed
from tests.unit.delta.cases import VIEWS
from tests.unit.optimizer.sets import RULE_SETS, built, changes, view
from tests.unit.sql.view_grammar import SCHEMAS, Change, State, kind_of, lowered_view, states

from freshview.algebra.nodes import Lowered, Node
from freshview.algebra.traversal import bottom_up
from freshview.delta.derive import at_version
from freshview.delta.forms import Form, delta_plan, rows_form
from freshview.delta.rewriting import rewritten
from freshview.optimizer.choice import Choice, choice_of
from freshview.optimizer.cost import NOT_STORED, PERMANENT, Costs, Store
from freshview.optimizer.dag import View
from freshview.optimizer.greedy import Selection, Taken
from freshview.optimizer.prices import Prices
from freshview.optimizer.statistics import Facts
from freshview.relation.names import backticked
from freshview.sql.lowering import lower
from freshview.sql.rendering import render

laws = settings(deadline=None, max_examples=examples(60, commit=30), suppress_health_check=list(HealthCheck))
_SETS = [*RULE_SETS.values(), *([t] for t in VIEWS.values())]
_sets = st.lists(st.sampled_from(_SETS), min_size=1, max_size=2).map(lambda sets: [t for s in sets for t in s])


def _stored_as_text(tree: Node, schemas: dict[str, tuple[str, ...]], used: Iterable[str] = ()) -> Node:
    """The tree as it comes back from the text that is kept of it."""
    text = render(tree, lambda s: backticked(s.relation))
    return rows_form(lower(text, schemas, tree.columns, used), tree.columns).tree


def _names(form: Form, lowered: Lowered) -> set[str]:
    return {c for tree in (form.tree, lowered.node) for node in bottom_up(tree) for c in node.columns}


def _forced(views: list[View], data: st.DataObject) -> Choice:
    """A choice with some results stored, whatever they cost."""
    dag = built(views)
    costs = Costs(dag, {t: Facts(1e3, {}, inserted=10.0, deleted=10.0) for t in SCHEMAS}, Prices())
    possible = [c for c in changes(costs) if isinstance(c, Store) and c.mode == PERMANENT]
    taken = []
    if possible:
        for change in data.draw(st.lists(st.sampled_from(possible), max_size=4, unique_by=lambda c: c.node)):
            costs.apply(change)
            taken.append(Taken(change, 1.0, 1.0))
    return choice_of(dag, Selection(costs, 0.0, tuple(taken), ()))


def _check(choice: Choice, views: list[View], trees: list[Lowered], run: list[State]) -> set[str]:
    """Keep each view over what is stored, by its rewritten form, from the old state to the new; return the rules."""
    old, new = (dict(state) for state in run)
    schemas = dict(SCHEMAS)
    rules = set()
    for each in views:
        _evaluated(each.name, each.form.tree, old, new, schemas)
    position = choice.selection.costs.position
    for auxiliary in sorted(choice.auxiliaries, key=lambda a: position[a.node]):
        _evaluated(auxiliary.name, _stored_as_text(auxiliary.tree, schemas), old, new, schemas)
    for plan, each, lowered in zip(choice.views, views, trees, strict=True):
        types = dict.fromkeys(each.form.stored, "bigint")
        tree = _stored_as_text(plan.tree, schemas, _names(each.form, lowered))
        form = rewritten(each.form, lowered, types, tree)
        if form is None:
            assert each.form.rule in ("groups", "top")
            continue
        rules.add(form.rule)
        assert form.stored == each.form.stored
        change = Change(old, new, schemas=schemas, stored=(form.stored, old[each.name]))
        for version, state in (("old", old), ("new", new)):
            assert evaluate(at_version(form.tree, version), change.read) == state[each.name], f"{each.name} {version}"
        delta = delta_plan(form, lowered, change.changed, types)
        moved: Bag = Counter() if delta is None else signed(delta, change.read)
        assert plus(old[each.name], moved) == new[each.name], f"{each.name} by delta rules, as {form.rule}"
    return rules


def _bag(table: str, *values: int) -> Bag:
    """Rows of one value each, one of them twice, and one of NULLs."""
    rows = [tuple(v if kind_of(c) == "int" else None for c in SCHEMAS[table]) for v in (*values, values[0])]
    return Counter([*rows, tuple(None for _ in SCHEMAS[table])])


def _evaluated(
    name: str, tree: Node, old: dict[str, Bag], new: dict[str, Bag], schemas: dict[str, tuple[str, ...]]
) -> None:
    change = Change(old, new, schemas=schemas)
    old[name], new[name] = (evaluate(at_version(tree, v), change.read) for v in ("old", "new"))
    schemas[name] = tree.columns


@laws
@given(texts=_sets, data=st.data(), run=states(2))
def test_a_view_kept_over_auxiliary_views_has_its_own_rows(
    texts: list[str], data: st.DataObject, run: list[State]
) -> None:
    trees = [lowered_view(t) for t in texts]
    views = [view(f"view{i}", t) for i, t in enumerate(trees)]
    note(str(texts))
    _check(_forced(views, data), views, trees, run)


@pytest.mark.parametrize("name", [n for n in RULE_SETS if n.startswith("eager")])
def test_partial_results_are_added_to_the_stored_state(name: str) -> None:
    """A grouping over a finer one adds Δ-groups to what is stored: no group is computed again from all its rows."""
    trees = [lowered_view(t) for t in RULE_SETS[name]]
    views = [view(f"view{i}", t) for i, t in enumerate(trees)]
    dag = built(views)
    costs = Costs(dag, {t: Facts(1e3, {}, inserted=10.0, deleted=10.0) for t in SCHEMAS}, Prices())
    found: set[str] = set()
    for change in changes(costs):
        if isinstance(change, Store) and change.mode == PERMANENT:
            costs.apply(change)
            choice = choice_of(dag, Selection(costs, 0.0, (Taken(change, 1.0, 1.0),), ()))
            run: list[State] = [
                {t: _bag(t, 1, 2) for t in SCHEMAS},
                {t: _bag(t, 2, 3) for t in SCHEMAS},
            ]
            found |= _check(choice, views, trees, run)
            costs.apply(Store(change.node, NOT_STORED))
    assert "sums" in found
