"""EXPLAIN of a view: which operators are recomputed and why, where deltas are condensed, the text of the delta."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.definition.analysed import analysed, with_sources
from tests.unit.sql.view_grammar import SCHEMAS

from freshview.algebra.together import put_together
from freshview.catalog.frontiers import Job
from freshview.definition.analysis import analyse
from freshview.delta.derive import derive
from freshview.refresh.explain import explained, maintainability, planned_together
from freshview.refresh.plan import JobPlan, RefreshPlan, SharedPart
from freshview.relation.schema import Schema


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
    text = explained("v", definition, 1, past=([_job(condense={"t": (20, 4), "v": (9, 9)})], {}))
    assert "partial, Δt by whole rows, below all joins; last job: 16 of 20 rows removed" in text
    assert "partial, Δu by whole rows, below all joins\n" in text
    assert "full, Δv by whole rows, before it is applied; last job: 0 of 9 rows removed" in text


def _job(**more: object) -> Job:
    return replace(Job(view_id=1, from_csn=1, to_csn=2, strategy="incremental", seconds=3.0), **more)  # type: ignore[arg-type]


def test_explain_shows_what_was_learnt_and_the_regret_of_past_choices() -> None:
    definition = with_sources("SELECT b FROM t")
    assert "costs:" not in explained("v", definition, 1)
    good = _job(expected=0.1, otherwise=2.0, phases={"wait": 2.9, "compute": 0.1})
    bad, forced = _job(expected=0.1, otherwise=0.5, phases={"compute": 2.0}), _job()
    text = explained("v", definition, 1, past=([good, bad, forced], {"embedded": 0.5, "full": 1.25}))
    learnt = "delta rules in the embedded engine 0.5 times, recomputing 1.2 times"
    assert f"  costs:\n    learnt, of what was estimated: {learnt}\n" in text
    assert "past choices: 2 jobs; 1 took longer than the other way was expected to, by 1.5 s in all" in text


@pytest.mark.parametrize(
    ("otherwise", "phases", "regret"), [(0.0, {}, 0.0), (1.0, {}, 2.0), (1.0, {"compute": 0.5}, 0)]
)
def test_regret_is_the_time_beyond_what_was_expected_of_the_other_way(
    otherwise: float, phases: dict[str, float], regret: float
) -> None:
    assert _job(otherwise=otherwise, phases=phases).regret == regret


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


def test_explain_prints_what_views_that_are_refreshed_together_share() -> None:
    joined = "FROM t JOIN u ON t.a = u.a"
    texts = [f"SELECT t.b, u.d {joined}", f"SELECT u.d, count(*) AS n {joined} GROUP BY d"]
    queries = [derive(with_sources(text).lowered.node, {"t"}) for text in texts]  # type: ignore[union-attr]
    both = put_together([query for query in queries if query is not None])
    parts = [SharedPart(part.scan, part.node, ("v", "w"), None) for part in both.parts]
    plan = RefreshPlan((JobPlan("incremental"), JobPlan("incremental"), None), tuple(parts))
    text = "\n".join(planned_together("v", ("v", "w", "x"), plan))
    assert "  refreshed together with w\n" in text
    assert "    shared1, computed once for v, w, on Spark, held in files:\n" in text
    assert "t@delta" in text
    assert planned_together("x", ("v", "w", "x"), plan) == [
        "  refreshed alone: it shares nothing with the other views that have the same changes pending"
    ]


def test_explain_names_the_key_of_a_view_and_by_what_deltas_of_views_are_condensed() -> None:
    """The segments of a view have both images of an update: a view above cancels whole rows, whatever the key below."""
    definition = with_sources("SELECT a, SUM(b) AS s FROM t GROUP BY a")
    keyed = {n: replace(r, schema=Schema(r.schema.columns, ("a",))) for n, r in definition.sources.items() if n == "t"}
    for kind, by in (("table", "(a)"), ("view", "whole rows")):
        text = explained("v", replace(definition, sources={n: replace(r, kind=kind) for n, r in keyed.items()}), 1)
        assert "  stored as: sums by key (a)\n" in text
        assert "full, Δv by (a), before it is applied" in text
        assert f"partial, Δt by {by}, below all joins" in text
    assert "  stored as: rows\n" in explained("v", with_sources("SELECT a FROM t"), 1)
