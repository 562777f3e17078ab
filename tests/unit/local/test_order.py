"""Conditions that can fail are computed for the rows for which Spark computes them, and for no others."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from freshview.algebra.nodes import Filter, Node, Scan
from freshview.algebra.traversal import bottom_up
from freshview.local.engine import SMALL, LocalEngine, LocalError
from freshview.local.order import in_order
from freshview.local.plans import translated
from freshview.local.typed import INT
from freshview.sql.lowering import lower

COLUMNS = {"t": ("a", "g", "h"), "u": ("k", "w")}
ROWS = {"t": {"a": [1, 2], "g": [0, 1], "h": [5, 6]}, "u": {"k": [1, 2], "w": [0, 3]}}
# Spark fails on these: a later condition, or one above, leaves out the row that it fails for.
FAILING = [
    "SELECT a FROM t WHERE 7 DIV g > 0 AND g > 0",
    "SELECT a FROM t WHERE 7 DIV g > 0 AND h > 5",
    "SELECT a FROM t WHERE h > 1 AND 7 DIV g > 0 AND g > 0",
    "SELECT a FROM t WHERE h BETWEEN 7 DIV g AND 4",
    "SELECT a FROM t JOIN u ON a = k AND h BETWEEN 7 DIV (g + w) AND w",
    "SELECT a FROM (SELECT a, g FROM t WHERE 7 DIV g > 0) AS x WHERE g > 0",
    "SELECT a FROM (SELECT a, g, 7 DIV g AS q FROM t) AS x WHERE q > 0 AND g > 0",
    "SELECT a FROM (SELECT a, g, max(h) AS m FROM t WHERE 7 DIV g > 0 GROUP BY a, g) AS x WHERE g > 0",
    "SELECT a FROM t JOIN u ON a = k WHERE 7 DIV g > 0 AND w > 0",
    "SELECT a FROM t JOIN u ON a = k WHERE 7 DIV w > 0 AND g > 0",
    "SELECT a FROM t JOIN u ON a = k AND 7 DIV g > 0 AND g > 0",
    "SELECT a FROM t JOIN u ON a = k AND 7 DIV (g + w) > 0 AND w > g",
    "SELECT a FROM (SELECT t.* FROM t JOIN u ON a = k WHERE w + a > 0) AS x WHERE 7 DIV g > 0 AND g > 0",
    "SELECT a FROM t LEFT JOIN u ON a = k AND 7 DIV w > 0 AND w > 0",
    "SELECT a FROM t WHERE EXISTS (SELECT 1 FROM u WHERE 7 DIV w > 0 AND w > 0 AND k = a)",
    "SELECT a FROM t JOIN u ON a = k AND 7 DIV (g + w) = 1 AND w > g",
    "SELECT a FROM t LEFT JOIN u ON a = k AND 7 DIV (g + w) > 0 AND w > g",
    "SELECT a FROM t LEFT JOIN u ON a = k AND w > g AND 7 DIV g > 0 AND h < w",
    "SELECT a FROM t WHERE EXISTS (SELECT 1 FROM u WHERE k = a AND 7 DIV (g + w) > 0 AND w > g)",
    "SELECT a FROM t WHERE NOT EXISTS (SELECT 1 FROM u WHERE k = a AND 7 DIV g > 0 AND w > g)",
    "SELECT a, g FROM t WHERE h > 10 EXCEPT ALL SELECT a, g FROM t WHERE 7 DIV g > 0 AND g > 0",
]
# Spark answers these: what can fail stands behind a condition that leaves out the row, or Spark moves it there.
ANSWERED = [
    "SELECT a FROM t WHERE g > 0 AND 7 DIV g > 0",
    "SELECT a FROM t WHERE g BETWEEN 1 AND 7 DIV g",
    "SELECT a FROM t WHERE CASE WHEN g > 0 THEN 7 DIV g > 0 END AND h > 5",
    "SELECT q FROM (SELECT g, 7 DIV g AS q FROM t) AS x WHERE g > 0",
    "SELECT a FROM (SELECT a, g, max(7 DIV g) AS m FROM t GROUP BY a, g) AS x WHERE g > 0",
    "SELECT a FROM t JOIN u ON a = k AND 7 DIV w > g AND w > 0",
    "SELECT a FROM t JOIN u ON a = k AND w > g AND 7 DIV (g + w) > 0",
    "SELECT w FROM t LEFT JOIN u ON a = k AND w > g AND 7 DIV (g + w) > 0 AND h > w WHERE a > 1",
    "SELECT a FROM t LEFT JOIN u ON a = k AND g > 0 AND 7 DIV g > 0 AND h > w WHERE w > 0",
    "SELECT a FROM t WHERE EXISTS (SELECT 1 FROM u WHERE k = a AND w > g AND 7 DIV (g + w) > 0 AND h > w)",
    "SELECT a FROM t WHERE NOT EXISTS (SELECT 1 FROM u WHERE k = a AND w > g AND 7 DIV (g + w) > 0 AND h > w)",
    "SELECT a FROM t WHERE a + h > 1 AND g > 0",
]


def _lowered(text: str) -> Node:
    return lower(text, COLUMNS).node


def table(name: str) -> pa.Table:
    return pa.table({c: pa.array(values, pa.int32()) for c, values in ROWS[name].items()})


def _rows(read: Node) -> pa.Table:
    assert isinstance(read, Scan)
    return table(read.relation)


@pytest.fixture(params=[SMALL, 0])
def engine(request: pytest.FixtureRequest) -> Iterator[LocalEngine]:
    made = LocalEngine(request.param)
    yield made
    made.close()


def answer(engine: LocalEngine, text: str) -> int:
    """The number of rows."""
    return int(engine.run(translated(_lowered(text), lambda _: dict.fromkeys("aghkw", INT)), _rows).num_rows)


@pytest.mark.parametrize("text", FAILING)
def test_a_condition_that_can_fail_is_computed_before_later_ones(engine: LocalEngine, text: str) -> None:
    with pytest.raises(LocalError, match="IntDiv"):
        answer(engine, text)


@pytest.mark.parametrize("text", ANSWERED)
def test_a_condition_that_can_fail_is_not_computed_for_rows_that_earlier_ones_leave_out(
    engine: LocalEngine, text: str
) -> None:
    assert answer(engine, text) == 1


@pytest.mark.parametrize(
    "text",
    [
        "SELECT a FROM t JOIN u ON a = k WHERE h > 1 AND w > 0 AND g < 5 - 3",
        "SELECT a + h AS x FROM t WHERE g > 0",
        "SELECT g FROM (SELECT g, sum(a) AS s FROM t GROUP BY g) AS x WHERE s > 1",
    ],
)
def test_a_plan_whose_conditions_cannot_fail_stays_as_it_is(text: str) -> None:
    root = _lowered(text)
    assert in_order(root) == (root, frozenset())


def test_a_table_is_made_only_below_other_conditions() -> None:
    """The last filter of a delta plan, over sums, is none."""
    alone = _lowered("SELECT a FROM t WHERE g > 0 AND 7 DIV g > 0")
    assert in_order(alone)[1] == frozenset()
    followed, tables = in_order(_lowered("SELECT a FROM t WHERE 7 DIV g > 0 AND g > 0"))
    assert [n in tables for n in bottom_up(followed) if isinstance(n, Filter)] == [True, False]
