"""A view whose refresh is 'incremental' is refused where an operator would be recomputed."""

from __future__ import annotations

from typing import Any

import pytest
from sqlglot import exp
from tests.unit.definition.analysed import analysed
from tests.unit.sql.view_grammar import SCHEMAS

from freshview.algebra.nodes import Join, Node, conjuncts
from freshview.algebra.traversal import bottom_up
from freshview.definition import analysis
from freshview.definition.analysis import analyse
from freshview.definition.determinism import refuse_indeterminate
from freshview.errors import NotMaintainable


@pytest.mark.parametrize(
    ("text", "operator"),
    [
        ("SELECT a FROM t ORDER BY b DESC OFFSET 3", r"top all offset 3 by .*: ORDER BY … OFFSET without LIMIT"),
        ("SELECT a FROM t ORDER BY b LIMIT 0", r"top 0 by .*: ORDER BY … LIMIT 0 has no rows"),
        ("SELECT a FROM t ORDER BY b LIMIT 10 OFFSET 9991", r"top 10 offset 9991 .* LIMIT beyond 10,000 rows"),
        (
            "SELECT a FROM (SELECT a FROM t ORDER BY a LIMIT 3) WHERE a > 1",
            r"top 3 by .*: ORDER BY … LIMIT has a buffer",
        ),
        ("SELECT a + 1 AS b FROM (SELECT a FROM t ORDER BY a LIMIT 3)", r"top 3 by .*: ORDER BY … LIMIT has a buffer"),
        ("SELECT a, RANK() OVER (ORDER BY b) AS r FROM t", r"window RANK\(\) OVER .*: a window without PARTITION BY"),
    ],
)
def test_strict_mode_names_the_operator(text: str, operator: str) -> None:
    with pytest.raises(NotMaintainable, match=operator):
        analysed(text, "incremental")
    assert analysed(text).reason


def test_a_row_in_brackets_is_a_row() -> None:
    for row in ("(a, b)", "((a, b))", "(((a, b)))"):
        found = analysed(f"SELECT a FROM t WHERE {row} IN (SELECT a, d FROM u)").lowered
        assert found is not None
        (join,) = (node for node in bottom_up(found.node) if isinstance(node, Join))
        assert join.condition is not None
        assert [type(c) for c in conjuncts(join.condition)] == [exp.EQ, exp.EQ]


def test_rows_of_another_length_keep_their_text() -> None:
    text = "SELECT a FROM t WHERE named_struct('a', a, 'b', b) IN (SELECT a, d FROM u)"
    found = analyse(text, {}, SCHEMAS, ("a",), "auto", lambda node: dict.fromkeys(node.columns, "bigint"))
    assert found.lowered is None
    assert "another number of columns" in found.reason


@pytest.mark.parametrize("raised", [AssertionError, ValueError, KeyError, ZeroDivisionError, StopIteration])
@pytest.mark.parametrize("step", ["lower", "coerced", "with_tie_breaks", "choose_form"])
def test_errors_of_the_reading_are_never_the_users(
    monkeypatch: pytest.MonkeyPatch, step: str, raised: type[Exception]
) -> None:
    """Law: a text that Spark accepts is kept, and recomputed, if the program fails on it."""

    def failing(*_: Any) -> Any:
        raise raised("a_1")

    def types_of(node: Node) -> dict[str, str]:
        return dict.fromkeys(node.columns, "bigint")

    monkeypatch.setattr(analysis, step, failing)
    found = analyse("SELECT a FROM t", {}, SCHEMAS, ("a",), "auto", types_of)
    assert found.lowered is None
    assert found.reason == f"it could not be read here ({raised.__name__})"


@pytest.mark.parametrize(("operator", "parts"), [("UNION", 250), ("EXCEPT", 140), ("INTERSECT", 140)])
def test_a_text_of_very_many_parts_is_read(operator: str, parts: int) -> None:
    """What is asked of each operator is not asked by a function that calls itself for those below."""
    assert analysed(f" {operator} ".join(["SELECT a FROM t"] * parts)).incremental


def test_very_many_parts_are_searched_for_times_that_pass() -> None:
    refuse_indeterminate(" UNION ALL ".join(["SELECT a FROM t"] * 1200))
    for place in (0, 1, 599, 1199):
        parts = ["SELECT date_column FROM t"] * 1200
        parts[place] = "SELECT 'today'"
        with pytest.raises(NotMaintainable):
            refuse_indeterminate(" UNION ALL ".join(parts))
