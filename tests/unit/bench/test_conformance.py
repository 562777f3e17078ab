"""The texts of `make conformance`: verbatim, but for what a view and its comparison need."""

from __future__ import annotations

from pathlib import Path

import pytest

from freshview.bench.conformance import Judgement, in_spark, incremental_in, named_apart, with_ties_broken, write


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


def test_a_page_has_the_incremental_views_of_the_page_before_it(tmp_path: Path) -> None:
    """Law: what a run makes recomputed is seen in its own page."""
    page = tmp_path / "conformance.md"
    views = [Judgement(n, True, incremental=True, exact=True, create_seconds=5, reading_seconds=2.5) for n in (1, 2)]
    write(page, {"tpch": views}, 1)
    assert "| tpch | 2 | 2 | — | 2 | 2 | 0 | 0 |" in page.read_text()
    assert "| 1 | yes | yes | yes | 0 | 0 | 5.0 | 2.5 | 0.0 |  |" in page.read_text()
    write(page, {"tpch": [views[0], Judgement(2, True, exact=True)]}, 1)
    assert "| tpch | 2 | 2 | 2 | 1 | 2 | 0 | 0 |" in page.read_text()


def test_a_page_of_an_earlier_version_can_be_read() -> None:
    page = """
| benchmark | queries | accepted as views | maintained incrementally | exact after the changes | with rows | changed |
| --- | --- | --- | --- | --- | --- | --- |
| tpch | 22 | 22 | 22 | 22 | 22 | 20 |
| tpcds | 99 | 99 | 95 | 99 | 86 | 80 |
"""
    assert incremental_in(page) == {"tpch": 22, "tpcds": 95}
    assert incremental_in("") == {}
