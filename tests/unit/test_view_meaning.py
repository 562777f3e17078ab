"""Lowering and rendering keep the meaning of a query.

oracle(lower(sql)) = DuckDB(sql)          what a query means, against another system
oracle(tree) = DuckDB(render(tree))       the text of a delta says what its tree says
"""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import HealthCheck, assume, given, settings
from tests.unit.duck import Duck, comparable
from tests.unit.oracle import Bag, evaluate
from tests.unit.view_grammar import SCHEMAS, State, reading, states, views

from freshview.sql.lowering import Unsupported, lower

_slow = settings(deadline=None, max_examples=150, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def duck() -> Duck:
    return Duck({"c": "VARCHAR"})


def _means(text: str, state: State) -> Bag:
    lowered = lower(text, SCHEMAS)
    places = [lowered.node.columns.index(c) for c, _ in lowered.outputs]
    result: Bag = Counter()
    for row, n in evaluate(lowered.node, reading(state)).items():
        result[tuple(comparable(row[p]) for p in places)] += n
    return result


def _tables(state: State) -> dict[str, tuple[tuple[str, ...], Bag]]:
    return {t: (SCHEMAS[t], state[t]) for t in SCHEMAS}


@_slow
@given(text=views(portable=True), run=states(1))
def test_lowering_keeps_the_meaning(duck: Duck, text: str, run: list[State]) -> None:
    """The algebra of a query gives the rows that DuckDB gives for its text."""
    try:
        found = _means(text, run[0])
    except Unsupported:
        assume(False)
    assert found == duck.answer(text, _tables(run[0])), text
