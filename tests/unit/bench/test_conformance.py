"""The texts of `make conformance`: verbatim, but for what a view and its comparison need."""

from __future__ import annotations

import pytest

from freshview.bench.conformance import in_spark, named_apart, with_ties_broken


def test_order_and_limit_stay() -> None:
    text = "SELECT a, sum(b) AS s FROM t GROUP BY a ORDER BY s DESC, a LIMIT 10;"
    expected = "SELECT a, SUM(b) AS s FROM t GROUP BY a ORDER BY s DESC, a NULLS LAST LIMIT 10"
    assert named_apart(in_spark(text)) == expected


@pytest.mark.parametrize("text", ["SELECT a FROM t ORDER BY a", "SELECT count(*) FROM t LIMIT 1"])
def test_without_a_limit_among_several_rows_there_are_no_ties(text: str) -> None:
    assert with_ties_broken(text, 1) == text


def test_ties_at_the_limit_are_broken_as_views_break_them() -> None:
    """By all columns of the result, ascending, NULLs last."""
    found = with_ties_broken("SELECT a, b FROM t UNION ALL SELECT a, c FROM u ORDER BY b DESC LIMIT 3", 2)
    assert found.endswith("ORDER BY b DESC, 1 ASC NULLS LAST, 2 ASC NULLS LAST LIMIT 3")
