"""The search space: every operation of every node gives the node's bag."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from tests.effort import examples
from tests.unit.algebra.oracle import Bag, evaluate
from tests.unit.delta.cases import VIEWS
from tests.unit.optimizer.sets import RULE_SETS, built, view
from tests.unit.sql.view_grammar import State, lowered_view, reading, states, views

from freshview.algebra.nodes import Node, chosen
from freshview.optimizer.dag import Dag
from freshview.optimizer.identity import Identities
from freshview.optimizer.operations import Equivalence, Operation
from freshview.optimizer.trees import Picked, plan_tree, root_tree

laws = settings(deadline=None, max_examples=examples(30, commit=20), suppress_health_check=list(HealthCheck))


def _picking(node: Equivalence, operation: Operation) -> Picked:
    """One operation at its node, the first ones elsewhere."""
    return lambda n: operation if n is node else n.operations[0]


def _check_all_operations(dag: Dag, state: State) -> None:
    """Each node by each of its operations, over the first way of its inputs, gives one bag."""
    read = reading(state)
    nodes = dag.finish()
    names = Identities(dag)
    assert len({names.table(n) for n in nodes}) == len(nodes)
    for node in nodes:
        assert len({names.stored(c) for c in node.needs}) == len(node.needs)
        needs = tuple(sorted(node.needs))
        bags = []
        for operation in node.operations:
            tree = plan_tree(node, needs, _picking(node, operation), {})
            assert tree.columns == needs or not needs
            bags.append(_count(evaluate(tree, read)) if not needs else evaluate(tree, read))
        for operation, bag in zip(node.operations, bags, strict=True):
            assert bag == bags[0], f"node {node.number}: {operation.rule} differs from {node.operations[0].rule}"


def _count(bag: Bag) -> Bag:
    return Counter({(): sum(bag.values())})


def _check_roots(dag: Dag, texts: list[str], state: State, seed: int) -> None:
    """A view by operations picked at random gives the rows of its definition."""
    draw = random.Random(seed)
    picks: dict[Equivalence, Operation] = {}
    for node in dag.nodes:
        picks[node] = draw.choice(node.operations)
    read = reading(state)
    for root, text in zip(dag.roots, texts, strict=True):
        lowered = lowered_view(text)
        form = _form(text)
        tree = root_tree(root, picks.__getitem__, {})
        assert tree.columns == form.columns
        assert evaluate(tree, read) == evaluate(form, read)
        visible = chosen(tree, form.columns[: len(lowered.outputs)])
        assert visible.columns == tuple(f"n{i}" for i, _ in enumerate(lowered.outputs))


def _form(text: str) -> Node:
    return view("v", lowered_view(text)).form.tree


@pytest.mark.parametrize("name", VIEWS)
@settings(laws, max_examples=examples(5))
@given(run=states(1), seed=st.integers(0, 999))
def test_every_operation_gives_the_bag_of_its_node(name: str, run: list[State], seed: int) -> None:
    dag = built([view("v", lowered_view(VIEWS[name]))])
    _check_all_operations(dag, run[0])
    _check_roots(dag, [VIEWS[name]], run[0], seed)


@laws
@given(
    drawn=st.lists(views(), min_size=1, max_size=2),
    given_=st.lists(st.sampled_from(sorted(VIEWS)), min_size=1, max_size=3),
    run=states(1),
    seed=st.integers(0, 999),
)
def test_every_plan_of_a_set_of_views_gives_the_same_bag(
    drawn: list[str], given_: list[str], run: list[State], seed: int
) -> None:
    texts = [*drawn, *(VIEWS[n] for n in given_)]
    note(str(texts))
    dag = built([view(f"v{i}", lowered_view(t)) for i, t in enumerate(texts)])
    _check_all_operations(dag, run[0])
    _check_roots(dag, texts, run[0], seed)


@pytest.mark.parametrize("name", RULE_SETS)
@settings(laws, max_examples=examples(6))
@given(run=states(1), seed=st.integers(0, 999))
def test_every_rule_keeps_the_bag(name: str, run: list[State], seed: int) -> None:
    texts = RULE_SETS[name]
    dag = built([view(f"v{i}", lowered_view(t)) for i, t in enumerate(texts)])
    used = {o.rule for n in dag.finish() for o in n.operations}
    assert any(name.startswith(rule) for rule in used), used
    _check_all_operations(dag, run[0])
    _check_roots(dag, texts, run[0], seed)
