"""Normal forms: nodes of one number give the same bag, whatever their columns are called."""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest
from hypothesis import HealthCheck, given, settings
from tests.effort import examples
from tests.unit.algebra.oracle import Bag, evaluate, signed
from tests.unit.delta.cases import VIEWS
from tests.unit.sql.view_grammar import Change, State, lowered_view, states, views

from freshview.algebra.nodes import Aggregate, Node
from freshview.algebra.normal import NormalForms, merged
from freshview.algebra.traversal import bottom_up
from freshview.delta.derive import derive
from freshview.sql.lowering import lower

laws = settings(max_examples=examples(40, commit=25), suppress_health_check=list(HealthCheck))
SCHEMAS = {"t": ("a", "b", "c"), "u": ("a", "b", "c")}


def _number(text: str, forms: NormalForms) -> int:
    return forms.of(lower(text, SCHEMAS).node).number


def test_names_do_not_matter() -> None:
    forms = NormalForms()
    one = "SELECT x.a, sum(x.b) AS s FROM t x JOIN u y ON x.a = y.a AND x.b > 1 WHERE x.c = 'k' GROUP BY x.a"
    two = (
        "SELECT p.a AS other, sum(p.b) AS total FROM t p JOIN u q ON p.b > 1 AND p.a = q.a WHERE p.c = 'k' GROUP BY p.a"
    )
    assert _number(one, forms) == _number(two, forms)


@pytest.mark.parametrize(
    "other",
    [
        "SELECT a, sum(b) AS s FROM t WHERE c = 'K' GROUP BY a",
        "SELECT a, sum(b) AS s FROM u WHERE c = 'k' GROUP BY a",
        "SELECT a, max(b) AS s FROM t WHERE c = 'k' GROUP BY a",
        "SELECT a, sum(a) AS s FROM t WHERE c = 'k' GROUP BY a",
        "SELECT b, sum(b) AS s FROM t WHERE c = 'k' GROUP BY b",
        "SELECT a, sum(b) AS s FROM t WHERE c = 'k' GROUP BY a, b",
        "SELECT a, sum(b) AS s FROM t WHERE get_json_object(c, '$.K') = 'k' GROUP BY a",
    ],
)
def test_what_means_something_else_has_another_number(other: str) -> None:
    forms = NormalForms()
    same = "SELECT a AS x, sum(b) AS y FROM t WHERE c = 'k' GROUP BY a"
    assert _number("SELECT a, sum(b) AS s FROM t WHERE c = 'k' GROUP BY a", forms) == _number(same, forms)
    assert _number(other, forms) != _number(same, forms)
    assert _number(other.replace("$.K", "$.k"), forms) != _number(other, forms) or "$.K" not in other


def _plans(text: str, change: Change) -> list[Node]:
    return [plan for plan in (derive(lowered_view(text).node, change.changed),) if plan is not None]


def _columns_in_order(node: Node, forms: NormalForms, bag: Bag) -> Bag:
    """The rows of a node with its columns in the order of their canonical names, those of one name once."""
    names = forms.of(node).names
    places = {names[c]: i for i, c in enumerate(node.columns)}
    found: Bag = Counter()
    for row, count in bag.items():
        found[tuple(row[places[n]] for n in sorted(places))] += count
    return found


@laws
@given(text=views(), run=states(2))
def test_equal_numbers_are_equal_bags(text: str, run: list[State]) -> None:
    change = Change(run[0], run[1])
    for plan in _plans(text, change):
        forms, classes = NormalForms(), defaultdict(list)
        for node in bottom_up(plan):
            classes[forms.of(node).number].append(node)
        for nodes in classes.values():
            bags = [_columns_in_order(n, forms, evaluate(n, change.read)) for n in nodes]
            assert all(bag == bags[0] for bag in bags)


@pytest.mark.parametrize("name", VIEWS)
@settings(max_examples=examples(5), suppress_health_check=list(HealthCheck))
@given(run=states(2))
def test_merged_plans_give_the_same_rows(name: str, run: list[State]) -> None:
    change = Change(run[0], run[1])
    for plan in _plans(VIEWS[name], change):
        one = merged(plan)
        assert one.columns == plan.columns
        assert signed(one, change.read) == signed(plan, change.read)


def test_equal_parts_become_one() -> None:
    """A subquery that is written twice, under other names, is computed once."""
    one, two = "SELECT a, max(b) AS m FROM t GROUP BY a", "SELECT a AS k, max(b) AS n FROM t GROUP BY a"
    plan = derive(lower(f"SELECT x.a, y.n FROM ({one}) x JOIN ({two}) y ON x.m = y.k", SCHEMAS).node, {"t"})
    assert plan is not None
    groups = [[n for n in bottom_up(p) if isinstance(n, Aggregate)] for p in (plan, merged(plan))]
    assert [len(g) for g in groups] == [8, 5]
