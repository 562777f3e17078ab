"""EXPLAIN of a view: which operators are recomputed and why, where deltas are condensed, the text of the delta."""

from __future__ import annotations

from dataclasses import replace
from itertools import takewhile

import pytest
from tests.unit.definition.analysed import analysed, with_sources
from tests.unit.refresh.planning import taking
from tests.unit.sql.view_grammar import SCHEMAS

from freshview.algebra.together import put_together
from freshview.catalog.frontiers import Job
from freshview.definition.analysis import analyse
from freshview.delta.condense import Condense, Expected
from freshview.delta.derive import derive
from freshview.refresh.explain import explained, maintainability, planned_together
from freshview.refresh.plan import JobPlan, RefreshPlan, SharedPart, SourceChange
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
    how = "by whole rows of the columns used, below all joins"
    assert f"partial, Δt {how}; last job: 16 of 20 rows removed" in text
    assert f"partial, Δu {how}\n" in text
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
    takes = tuple(taking(view, 1, 2) for view in ("v", "w", "x"))
    jobs = [JobPlan("incremental", query=query) for query in both.plans]
    plan = RefreshPlan(takes, (*jobs, None), tuple(parts))
    text = "\n".join(planned_together("v", plan))
    assert "  refreshed together with w\n" in text
    assert "    shared1, computed once for v, w, on Spark, held in files:\n" in text
    shared, own = text.split("    in this refresh it runs:\n")
    assert "t@delta" in shared
    assert "t@delta" not in own
    assert "FROM shared1" in own
    assert planned_together("x", plan) == [
        "  refreshed alone: it shares nothing with the other views that have the same changes pending"
    ]


def test_explain_names_the_key_of_a_view_and_by_what_deltas_of_views_are_condensed() -> None:
    """The segments of a view, and the versions of an external table, have both images of an update: a view above
    cancels whole rows, whatever the key below. A view's own change is condensed by its key."""
    definition = with_sources("SELECT a, SUM(b) AS s FROM t GROUP BY a")
    keyed = {n: replace(r, schema=Schema(r.schema.columns, ("a",))) for n, r in definition.sources.items() if n == "t"}
    columns = "by whole rows of the columns used"
    for kind, by in (("table", f"by (a), then {columns}"), ("view", columns), ("external", columns)):
        text = explained("v", replace(definition, sources={n: replace(r, kind=kind) for n, r in keyed.items()}), 1)
        assert "  stored as: sums by key (a)\n" in text
        assert "full, Δv by key (a), before it is applied\n" in text
        assert f"partial, Δt {by}, below all joins\n" in text
    assert "  stored as: rows\n" in explained("v", with_sources("SELECT a FROM t"), 1)


# -- condense --------------------------------------------------------------------------------------


def _ahead(plan: JobPlan) -> JobPlan:
    return replace(plan, takes=taking("v", 1, 2))


def _condense_lines(text: str) -> list[str]:
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("  condense:"))
    return [lines[start], *takewhile(lambda line: line.startswith("    "), lines[start + 1 :])]


def test_explain_prints_the_condense_steps_of_the_next_job() -> None:
    """What is left out is said to be, with the reason, also of a source whose change condensing has emptied."""
    definition = with_sources("SELECT t.b, u.d FROM t JOIN u ON t.a = u.a")
    added = SourceChange("t", 9, 9, True, in_spark=True, condense=Condense(runs=False, why="it only adds rows"))
    one = SourceChange("u", 9, 9, False, in_spark=True, condense=Condense(why="one statement wrote it"))
    gone = SourceChange("w", 4, 0, False, condense=Condense(("a",)))
    last = [_job(condense={"t": (3, 1), "w": (4, 0)})]
    plan = JobPlan("incremental", (added, one), condense=Condense(), emptied=(gone,))
    columns = "by whole rows of the columns used"
    assert _condense_lines(explained("v", definition, 1, past=(last, {}), ahead=_ahead(plan))) == [
        "  condense:",
        "    no partial condense of Δt: it only adds rows",
        f"    partial, Δu {columns}, below all joins (one statement wrote it)",
        f"    partial, Δw by (a), then {columns}, below all joins; last job: 4 of 4 rows removed",
        "    full, Δv by whole rows, before it is applied",
    ]
    by_cost = Condense(("a",), expected=Expected(2_000_000, 1_000_000, 3.84, 11.9))
    dear = replace(by_cost, cancels=False, why="cancelling equal rows is expected to take 3.8 s and to save 1 s")
    changes = tuple(replace(one, condense=step) for step in (by_cost, dear))
    priced = _ahead(replace(plan, changes=changes, emptied=()))
    assert _condense_lines(explained("v", definition, 1, ahead=priced))[1:3] == [
        f"    partial, Δu by (a), then {columns}, below all joins"
        "; expected to leave 1,000,000 of 2,000,000 rows in 3.8 s, which saves 12 s",
        "    partial, Δu by (a), below all joins (cancelling equal rows is expected to take 3.8 s and to save 1 s)",
    ]
    superfluous = replace(plan, emptied=(), condense=Condense(runs=False, why="no two rows cancel"))
    assert _condense_lines(explained("v", definition, 1, ahead=_ahead(superfluous)))[-1] == (
        "    no full condense of Δv: no two rows cancel"
    )


def test_a_job_that_applies_nothing_has_no_full_condense_and_one_that_recomputes_has_none() -> None:
    definition = with_sources("SELECT b FROM t")
    nothing = JobPlan("nothing", (SourceChange("t", 4, 0, False),))
    assert _condense_lines(explained("v", definition, 1, ahead=_ahead(nothing))) == [
        "  condense:",
        "    partial, Δt by whole rows of the columns used, below all joins",
    ]
    anew = explained("v", definition, 1, ahead=_ahead(JobPlan("full")))
    assert _condense_lines(anew) == ["  condense: none, the next job recomputes the view"]
    assert "condense" not in explained("v", analysed("SELECT a FROM t ORDER BY b OFFSET 3"), 1)
