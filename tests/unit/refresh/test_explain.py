"""EXPLAIN of a view: which operators are recomputed and why, where deltas are condensed, the text of the delta."""

from __future__ import annotations

from tests.unit.definition.analysed import analysed, with_sources
from tests.unit.sql.view_grammar import SCHEMAS

from freshview.definition.analysis import analyse
from freshview.refresh.explain import explained, maintainability


def test_the_report_marks_what_makes_a_view_recompute() -> None:
    """A sum of doubles below another operator has a rule, which would not be exact; the report says so."""
    text = "SELECT n, COUNT(*) AS k FROM (SELECT a, SUM(b) AS n FROM t GROUP BY a) GROUP BY n"
    definition = analysed(text, types="double")
    marked = [s for s in maintainability(definition).walk() if s.way == "recompute"]
    assert [s.operator for s in marked] == ["aggregate SUM(t.b) by t.a"]
    assert "inexact" in marked[0].reason
    assert "by recomputation" in explained("v", definition, 7)
    assert not [s for s in maintainability(analysed(text)).walk() if s.way == "recompute"]


def test_a_definition_without_algebra_has_a_report_too() -> None:
    text = "SELECT a FROM t SORT BY a"
    definition = analyse(text, {}, SCHEMAS, ("a",), "auto", lambda n: dict.fromkeys(n.columns, "bigint"))
    (step,) = maintainability(definition).walk()
    assert (step.operator, step.way) == ("query", "recompute")
    assert "SORT" in step.reason


def test_explain_tells_where_deltas_are_condensed_and_what_that_took_away() -> None:
    definition = with_sources("SELECT t.b, u.d FROM t JOIN u ON t.a = u.a")
    text = explained("v", definition, 1, last={"t": (20, 4), "v": (9, 9)})
    assert "partial, Δt by whole rows, below all joins; last job: 16 of 20 rows removed" in text
    assert "partial, Δu by whole rows, below all joins\n" in text
    assert "full, Δv by whole rows, before it is applied; last job: 0 of 9 rows removed" in text


def test_explain_shows_the_one_text_of_the_delta() -> None:
    text = explained("v", with_sources("SELECT a, SUM(b) AS s FROM t GROUP BY a"), 3)
    assert "maintained: incrementally" in text
    assert "frontier: CSN 3" in text
    assert text.count("WITH ") == 1
    assert "t@delta" in text
    assert "v@old" in text


def test_explain_tells_which_rows_of_a_table_matter() -> None:
    """A scan that is joined to a delta is read only where it meets it."""
    text = explained("v", with_sources("SELECT t.b, u.d FROM t JOIN u ON t.a = u.a"), 1)
    assert "u@old /* rows with a in t@delta.a */" in text
