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
from tests.unit.optimizer.sets import built, view
from tests.unit.sql.view_grammar import State, lowered_view, reading, states, views

from freshview.algebra.nodes import Node, chosen
from freshview.optimizer.dag import Dag, Picked
from freshview.optimizer.operations import Equivalence, Operation

laws = settings(deadline=None, max_examples=examples(30), suppress_health_check=list(HealthCheck))


def _picking(node: Equivalence, operation: Operation) -> Picked:
    """One operation at its node, the first ones elsewhere."""
    return lambda n: operation if n is node else n.operations[0]


def _check_all_operations(dag: Dag, state: State) -> None:
    """Each node by each of its operations, over the first way of its inputs, gives one bag."""
    read = reading(state)
    for node in dag.finish():
        names = tuple(sorted(node.needs))
        bags = []
        for operation in node.operations:
            tree = dag.tree(node, names, _picking(node, operation), {})
            assert tree.columns == names or not names
            bags.append(_count(evaluate(tree, read)) if not names else evaluate(tree, read))
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
        tree = dag.root_tree(root, picks.__getitem__, {})
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


# Sets of views to which a rule applies, so that no rule is left to chance.
RULE_SETS = {
    "select subsumption": ["SELECT a, b FROM t WHERE a < 1", "SELECT b, c FROM t WHERE a < 2"],
    "select subsumption of a list": ["SELECT a, b FROM t WHERE a = 1", "SELECT b FROM t WHERE a IN (1, 2)"],
    "select subsumption of a join": [
        "SELECT t.b, u.d FROM t JOIN u ON t.a = u.a WHERE t.b >= 1 AND u.d = 1",
        "SELECT t.c, u.d FROM t JOIN u ON t.a = u.a WHERE t.b > 0",
    ],
    "select subsumption of what both imply": [
        "SELECT t.b, u.d FROM t JOIN u ON t.a = u.a WHERE t.b = 1",
        "SELECT t.c, u.d FROM t JOIN u ON t.a = u.a WHERE u.d = 2",
    ],
    "grouped selection": [
        "SELECT a, SUM(b) AS s, COUNT(*) AS n FROM t WHERE c = 'x' GROUP BY a",
        "SELECT a, MAX(b) AS s FROM t WHERE c = 'y' GROUP BY a",
        "SELECT a, b FROM t",
    ],
    "coarser grouping": [
        "SELECT a, SUM(b) AS s, MIN(b) AS lo, COUNT(b) AS k, AVG(b) AS m FROM t GROUP BY a",
        "SELECT a, c, COUNT(*) AS n FROM t GROUP BY a, c",
        "SELECT SUM(b) AS s, COUNT(*) AS n FROM t",
    ],
    "coarser grouping by an expression": [
        "SELECT a + 1 AS x, SUM(b) AS s FROM t GROUP BY a + 1",
        "SELECT a, COUNT(*) AS n FROM t GROUP BY a",
    ],
    "coarser grouping from the union of keys": [
        "SELECT a, SUM(b) AS s FROM t GROUP BY a",
        "SELECT c, SUM(b) AS s FROM t GROUP BY c",
    ],
    "eager aggregation": [
        "SELECT u.d, SUM(t.b) AS s, COUNT(*) AS n, COUNT(u.d) AS k, MAX(u.d) AS m FROM t JOIN u ON t.a = u.a GROUP BY u.d"
    ],
    "eager aggregation of all rows": [
        "SELECT COUNT(*) AS n, COUNT(u.d) AS k, SUM(t.b) AS s FROM t JOIN u ON t.a = u.a"
    ],
    "eager aggregation along a chain": [
        "SELECT v.y, SUM(t.b) AS s, MIN(u.d) AS lo FROM t JOIN u ON t.a = u.a JOIN v ON u.d = v.d GROUP BY v.y"
    ],
    "eager aggregation of a self-join": [
        "SELECT p.c, SUM(q.b) AS s, COUNT(p.b) AS k FROM t p JOIN t q ON p.a = q.a JOIN u ON q.b = u.d GROUP BY p.c"
    ],
    "eager aggregation below a key over both": [
        "SELECT t.b + u.d AS x, SUM(t.b) AS s FROM t JOIN u ON t.a = u.a GROUP BY t.b + u.d"
    ],
    "join": [
        "SELECT p.a, q.d FROM t p JOIN u q ON p.a = q.a JOIN t r ON r.b = q.d",
        "SELECT u.d FROM u JOIN t ON t.b = u.d",
    ],
}


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
