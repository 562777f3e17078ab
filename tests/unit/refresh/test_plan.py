"""A job is data: which ways there are, which one is chosen, and what EXPLAIN prints of the same record."""

from __future__ import annotations

from dataclasses import replace
from typing import NoReturn

import pytest
from tests.unit.definition.analysed import analysed, with_sources
from tests.unit.refresh.planning import facts, taking

from freshview.algebra.nodes import Scan
from freshview.algebra.traversal import scans
from freshview.definition.analysis import Definition
from freshview.delta.condense import Condense
from freshview.local.plans import LocalPlan
from freshview.optimizer.prices import Prices
from freshview.refresh import plan as plan_module
from freshview.refresh.cost import CANCELLED, Estimate, Rates, estimate_full
from freshview.refresh.explain import planned
from freshview.refresh.plan import (
    EMBEDDED,
    FULL,
    INCREMENTAL,
    NOTHING,
    SPARK,
    JobFacts,
    JobPlan,
    ScanPlan,
    SourceChange,
    alternatives,
    choose,
    sketch,
)

JOIN = "SELECT t.b, u.d FROM t JOIN u ON t.a = u.a"
MILLION = 1_000_000


def _change(source: str, rows: int = 5, *, grows: bool = False) -> SourceChange:
    return SourceChange(source, rows + 2, rows, grows)


def _chosen(
    definition: Definition, *changes: SourceChange, reads: dict[str, int], factors: dict[str, float] | None = None
) -> JobPlan:
    def read(scan: Scan) -> int:
        return (
            sum(c.cost for c in changes if c.source == scan.relation)
            if scan.version == "delta"
            else reads[scan.relation]
        )

    full = estimate_full(definition, lambda _: MILLION)
    ways = alternatives(definition, changes)
    return choose(definition, changes, ways, facts(ways, read, full, factors), taking("v", 3, 9))


def test_a_small_change_whose_neighbours_are_found_goes_by_rules_over_rows_at_hand() -> None:
    plan = _chosen(with_sources(JOIN), _change("t"), reads={"t": 0, "u": 0})
    assert (plan.strategy, plan.is_local, plan.delta_rows) == (INCREMENTAL, True, 5)
    assert plan.query is not None
    assert {(s.relation, s.version) for s in scans(plan.query)} == {("t", "delta"), ("u", "old")}
    assert [r.strategy for r in plan.rejected] == [FULL]
    assert plan.rejected[0].seconds is not None
    assert plan.rejected[0].seconds > plan.seconds


@pytest.mark.parametrize(("operator", "parts"), [("EXCEPT", 24), ("INTERSECT", 24), ("UNION", 60), ("EXCEPT ALL", 60)])
def test_the_plan_of_a_deep_text_does_not_end_pythons_stack(operator: str, parts: int) -> None:
    """A delta plan is many times as deep as its text, and a query may be far down the stack when it needs one."""
    definition = analysed(f" {operator} ".join(["SELECT a FROM t"] * parts))
    assert definition.incremental
    inward, outward, _ = alternatives(definition, [_change("t")])
    assert inward.query is not None
    assert outward.query is not None


def test_a_plan_that_cannot_be_made_is_an_obstacle(monkeypatch: pytest.MonkeyPatch) -> None:
    def deep(*_: object, **__: object) -> NoReturn:
        raise RecursionError

    monkeypatch.setattr(plan_module, "delta_plan", deep)
    plan = _chosen(with_sources(JOIN), _change("t"), reads={})
    assert (plan.strategy, plan.query) == (FULL, None)
    assert plan.rejected[0].why == "the plan of its change is nested too deeply"
    assert sketch(with_sources(JOIN)) is None


def test_what_is_not_found_is_read_from_files_and_counts() -> None:
    plan = _chosen(with_sources(JOIN), _change("t"), reads={"t": 0, "u": 200_000})
    assert (plan.strategy, plan.is_local) == (INCREMENTAL, False)
    assert [(s.scan.relation, s.from_files) for s in plan.scans if s.from_files] == [("u", 200_000)]
    assert plan.estimate is not None
    assert plan.estimate.rows == 400_000  # they were not few, so a delta meets many of them
    dear = _chosen(with_sources(JOIN), _change("t"), reads={"t": 0, "u": 100 * MILLION})
    assert (dear.strategy, dear.query) == (FULL, None)
    assert dear.rejected[0].strategy == INCREMENTAL
    assert dear.rejected[0].seconds is not None
    assert dear.rejected[0].seconds > dear.seconds


def test_what_was_learnt_turns_the_choice() -> None:
    changed, reads = _change("t"), {"t": 0, "u": MILLION}
    slow = {SPARK: 20.0, FULL: 0.05}
    assert _chosen(with_sources(JOIN), changed, reads=reads).strategy == INCREMENTAL
    plan = _chosen(with_sources(JOIN), changed, reads=reads, factors=slow)
    assert plan.strategy == FULL
    assert plan.otherwise == plan.rejected[0].seconds  # the history keeps it
    assert plan.way == FULL


def test_other_prices_turn_the_choice() -> None:
    definition, changes = with_sources(JOIN), [_change("t")]
    ways, reads = alternatives(definition, changes), {"t": 0, "u": MILLION}

    def strategy(prices: Prices) -> str:
        full = estimate_full(definition, lambda _: MILLION, Rates.of(prices))
        return choose(definition, changes, ways, facts(ways, lambda scan: reads[scan.relation], full)).strategy

    assert strategy(Prices()) == INCREMENTAL
    assert strategy(Prices.of({"spark": {"operator": 10.0}})) == FULL  # the delta query has more operators


def test_each_engine_has_its_own_experience() -> None:
    """What jobs took on Spark says nothing of the embedded engine."""
    definition, changed = with_sources(JOIN), [_change("t")]
    ways, full = alternatives(definition, changed), estimate_full(definition, lambda _: MILLION)

    def chosen(factors: dict[str, float]) -> JobPlan:
        known = facts(ways, lambda _: 0, full, factors)
        return choose(definition, changed, ways, replace(known, local=LocalPlan("", (), ())))

    plan = chosen({SPARK: 1e6, FULL: 1.0})
    assert (plan.strategy, plan.way) == (INCREMENTAL, EMBEDDED)
    assert chosen({EMBEDDED: 1e6, FULL: 1.0}).strategy == FULL
    assert plan.on_spark("it raised").way == SPARK


def test_cost_alone_decides_on_a_large_change_unless_the_view_says_otherwise() -> None:
    """Rows of a change that stays in Spark count as read; those that have to be cancelled count several times."""
    reads, joined = {"t": MILLION, "u": MILLION}, with_sources(JOIN)
    added, mixed, most = (
        SourceChange("t", rows, rows, grows, in_spark=True, condense=Condense(runs=not grows))
        for rows, grows in ((MILLION // 4, True), (MILLION // 4, False), (MILLION, False))
    )
    plan = _chosen(joined, added, reads={"t": 0, "u": 10})
    assert (plan.strategy, plan.is_local, plan.delta_rows) == (INCREMENTAL, False, MILLION // 4)
    assert plan.estimate is not None
    assert plan.estimate.rows == MILLION // 4 + 2 * 10
    assert [(s.scan.version, s.from_files) for s in plan.scans if s.scan.relation == "t"] == [("delta", MILLION // 4)]
    assert "    Δt: 250,000 rows, which stay in Spark" in planned(plan)
    dearer = _chosen(joined, mixed, reads={"t": 0, "u": 10})
    assert dearer.estimate is not None
    assert dearer.estimate.rows == CANCELLED * MILLION // 4 + 2 * 10
    assert _chosen(joined, most, reads=reads).strategy == FULL
    forced = replace(joined, refresh=INCREMENTAL)
    assert _chosen(forced, most, reads=reads).strategy == INCREMENTAL


def test_a_change_in_spark_is_neither_looked_up_by_nor_broadcast() -> None:
    few = SourceChange("t", 5, 5, grows=True, in_spark=True)
    assert [way.is_small for way in alternatives(with_sources(JOIN), [few]) if way.query is not None] == [False, False]


def test_how_a_recomputed_view_is_stored_is_part_of_the_plan() -> None:
    compared = JobPlan(FULL, takes=taking("v", 1, 2))
    assert "    stores the rows that differ from the stored ones" in planned(compared)
    line = planned(replace(compared, replaces="no view reads it"))[1]
    assert line == "    stores the rows that differ; from 200,000 rows on it replaces all of them: no view reads it"


def test_a_view_without_rules_says_why_it_is_recomputed() -> None:
    plan = _chosen(with_sources("SELECT a FROM t ORDER BY b OFFSET 3"), _change("t"), reads={"t": 0})
    assert plan.strategy == FULL
    assert "OFFSET without LIMIT" in plan.rejected[0].why


def test_the_plan_of_a_buffer_tells_when_the_view_is_recomputed_after_all() -> None:
    definition, changes = with_sources("SELECT a FROM t ORDER BY b LIMIT 3 OFFSET 2"), [_change("t")]
    ways = alternatives(definition, changes)
    plan = choose(definition, changes, ways, facts(ways, lambda _: 0, Estimate(0, 1)), taking("v", 1, 2))
    assert plan.strategy == INCREMENTAL
    assert "    the best 105 are stored, recomputed when fewer than 5 of them are left" in planned(plan)
    assert not _chosen(with_sources(JOIN), _change("t"), reads={"t": 0, "u": 0}).proviso


def test_planning_is_pure() -> None:
    """Law: planning takes data alone, and equal data give equal records."""
    definition, changes = with_sources(JOIN), [_change("t"), _change("u", grows=True)]
    ways = alternatives(definition, changes)
    known = JobFacts({s: ScanPlan(s, 0, 3) for w in ways if w.query for s in scans(w.query)}, Estimate(0, 1))
    plans = [choose(definition, changes, ways, known, taking("v", 1, 2)) for _ in range(2)]
    assert plans[0] == plans[1]
    assert planned(plans[0]) == planned(plans[1])
    assert {s.scan.relation for s in plans[0].scans} == {"t", "u"}


def test_rows_that_a_join_makes_many_of_have_their_price() -> None:
    """30,000 rows that each meet 10,000 others are not at hand for the price of 30,000."""
    definition, changes = with_sources(JOIN), [_change("t")]
    ways = alternatives(definition, changes)
    found = {s: ScanPlan(s, 0, 30_000) for w in ways if w.query for s in scans(w.query) if s.relation == "u"}
    deltas = {s: ScanPlan(s, 0) for w in ways if w.query for s in scans(w.query) if s.relation == "t"}
    known = JobFacts({**found, **deltas}, estimate_full(definition, lambda _: MILLION), local=LocalPlan("", (), ()))
    assert choose(definition, changes, ways, known).strategy == INCREMENTAL
    joined = {s: replace(plan, joined=300_000_000) for s, plan in found.items()}
    more = replace(known, scans={**joined, **deltas})
    assert choose(definition, changes, ways, more).strategy == FULL


def test_a_scan_that_was_not_measured_is_not_at_hand() -> None:
    """The facts may end at the first scan of the inward way that reads from files."""
    definition, changes = with_sources(JOIN), [_change("t")]
    inward, outward, _ = ways = alternatives(definition, changes)
    assert inward.query is not None
    assert outward.query is not None
    known = JobFacts({s: ScanPlan(s, 7) for s in scans(outward.query)}, estimate_full(definition, lambda _: MILLION))
    assert choose(definition, changes, ways, known).query is outward.query
    more = replace(known, scans={**known.scans, **{s: ScanPlan(s, 0) for s in scans(inward.query)}})
    assert choose(definition, changes, ways, more).query is inward.query


def test_how_a_large_result_is_stored_depends_on_who_reads_it() -> None:
    plan = JobPlan(FULL)
    assert plan.stored_for({}, MILLION).replaces == "no view reads it"
    assert plan.stored_for({"w": 0.1}, MILLION).replaces.startswith("recomputing w takes less time")
    assert not plan.stored_for({"w": 100.0}, 10).replaces


def test_explain_prints_what_was_looked_up_and_what_is_computed_first() -> None:
    plan = _chosen(with_sources(JOIN), _change("t"), reads={"t": 0, "u": 0})
    found = tuple(replace(s, looked_up=12 if s.scan.relation == "u" else None) for s in plan.scans)
    lines = planned(replace(plan, scans=found))
    assert "    u@old /* rows with a in t@delta.a */: 12 rows looked up" in lines
    assert not [line for line in lines if "computed first" in line]
    deep = "SELECT b, COUNT(*) AS n FROM t GROUP BY b"
    for _ in range(3):
        deep = f"SELECT x.b, x.n AS n FROM ({deep}) x JOIN ({deep}) y ON x.b = y.b"
    staged = _chosen(replace(with_sources(deep), refresh=INCREMENTAL), _change("t"), reads={"t": MILLION})
    assert staged.stages[0]
    line = f"    parts that are computed first, and held on the driver: {len(staged.stages[0])}"
    assert line in planned(staged)


def test_a_plan_that_cannot_be_carried_out_is_recomputed_and_says_so() -> None:
    plan = _chosen(with_sources(JOIN), _change("t"), reads={"t": 0, "u": 0}).instead("it does not fit")
    assert (plan.strategy, plan.query, plan.delta_rows) == (FULL, None, 0)
    assert (plan.rejected[-1].strategy, plan.rejected[-1].why) == (INCREMENTAL, "it does not fit")


@pytest.mark.parametrize("text", [JOIN, "SELECT a, SUM(b) AS s FROM t GROUP BY a"])
def test_a_sketch_needs_no_facts(text: str) -> None:
    plan = sketch(with_sources(text))
    assert plan is not None
    assert plan.query is not None
    assert {s.version for s in scans(plan.query)} >= {"delta"}


def test_explain_prints_the_record() -> None:
    plan = _chosen(with_sources(JOIN), _change("t"), reads={"t": 0, "u": 200_000})
    text = "\n".join(planned(plan))
    assert text.startswith("  next job, CSN 3 to 9: by delta rules, on Spark; expected 0.")
    assert "\n    Δt: 5 rows, of 7 that were written\n" in text
    assert "/* rows with a in t@delta.a */: 200,000 rows from files\n" in text
    assert "\n    not recomputed: it is expected to take longer (" in text
    assert "\n    it runs:\n" in text
    assert text.count("WITH ") == 1
    nothing = planned(JobPlan(NOTHING, (SourceChange("t", 4, 0, False),), takes=taking("v", 3, 9)))
    assert nothing == ["  next job, CSN 3 to 9: changes nothing", "    Δt: 0 rows, of 4 that were written"]
    local = planned(replace(plan, is_local=True))
    assert local[0].startswith("  next job, CSN 3 to 9: by delta rules, on Spark over rows at hand; expected 0.")
