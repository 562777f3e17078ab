"""The formulas of MQO §5, and that following them incrementally is computing them anew."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.effort import examples
from tests.unit.optimizer.sets import WITHOUT_INDEX, built, changes, from_sql

from freshview.optimizer.cost import PERMANENT, TRANSIENT, Cluster, Costs, Store
from freshview.optimizer.dag import Dag
from freshview.optimizer.operations import Block, Grouping, StoredRelation
from freshview.optimizer.prices import Prices
from freshview.optimizer.statistics import Facts

COLUMNS = {n: {"k": "bigint", "l": "bigint", "n": "bigint"} for n in "abc"}
TEXTS = {
    "one": "SELECT a.n, b.n AS m, c.n AS o FROM a JOIN b ON a.k = b.l JOIN c ON b.k = c.l",
    "two": "SELECT b.n, SUM(c.n) AS s, MAX(b.k) AS hi FROM b JOIN c ON b.k = c.l GROUP BY b.n",
    "three": "SELECT a.n, b.n AS m FROM a LEFT JOIN b ON a.k = b.l",
}
FACTS = {
    "a": Facts(1e6, {"k": 1e6, "l": 1e4, "n": 10}, inserted=100),
    "b": Facts(5e5, {"k": 5e5, "l": 1e5, "n": 50}, inserted=1000, deleted=10),
    "c": Facts(2e6, {"k": 2e6, "l": 5e5, "n": 100}),
}


def _costs(facts: dict[str, Facts] = FACTS, prices: Prices = Prices()) -> Costs:  # noqa: B008
    return Costs(built(from_sql(TEXTS, COLUMNS), COLUMNS), facts, prices)


def _snapshot(costs: Costs) -> tuple[object, ...]:
    nodes = [n.number for n in costs.nodes]
    deltas = [(n, i, costs.computed_delta(n, i)) for n in nodes for i in costs.changes[n]]
    return [costs.compcost(n) for n in nodes], deltas, costs.mode.copy(), costs.shared.copy(), costs.clustered.copy()


@settings(deadline=None, max_examples=examples(30), suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_costs_that_are_followed_are_costs_computed_anew(data: st.DataObject) -> None:
    costs = _costs()
    for change in data.draw(st.lists(st.sampled_from(changes(costs)), max_size=6)):
        costs.apply(change)
    again = _costs()
    again.mode, again.shared, again.clustered = costs.mode.copy(), costs.shared.copy(), costs.clustered.copy()
    again.compute()
    assert _snapshot(again) == _snapshot(costs)
    assert again.total == pytest.approx(costs.total)


@settings(deadline=None, max_examples=examples(30), suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_what_is_tried_is_taken_back(data: st.DataObject) -> None:
    costs = _costs()
    possible = changes(costs)
    for change in data.draw(st.lists(st.sampled_from(possible), max_size=3)):
        costs.apply(change)
    before, total = _snapshot(costs), costs.total
    change = data.draw(st.sampled_from(possible))
    after = costs.tried(change)
    assert (_snapshot(costs), costs.total) == (before, total)
    costs.apply(change)
    assert costs.total == pytest.approx(after)


@settings(deadline=None, max_examples=examples(30), suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_correction_of_all_jobs_changes_no_choice(data: st.DataObject) -> None:
    """Law: what past jobs took multiplies what is stored, shared and sorted as it does the jobs themselves."""
    costs = _costs()
    slower = Costs(costs.dag, FACTS, Prices(incremental=7.0, full=7.0))
    for change in data.draw(st.lists(st.sampled_from(changes(costs)), max_size=6)):
        costs.apply(change)
        slower.apply(change)
    assert slower.total == pytest.approx(7 * costs.total)


def _block(dag: Dag, *names: str) -> int:
    return next(
        n.number
        for n in dag.nodes
        if isinstance(n, Block) and n.relations == set(names) and len(n.leaves) == len(names)
    )


def test_the_formulas_of_section_5() -> None:
    costs = _costs()
    prices, size = costs.prices, costs.sizes.of
    bc = _block(costs.dag, "b", "c")
    b, c = (next(n.number for n in costs.nodes if isinstance(n, StoredRelation) and n.name == name) for name in "bc")
    local = prices.processed(size[b].new + size[c].rows, size[bc].new)
    assert costs.compcost(bc) == pytest.approx(local + costs.reusecost(b) + costs.reusecost(c))
    assert costs.cost(bc) == costs.compcost(bc)
    assert costs.trmatcost(bc) == pytest.approx(costs.compcost(bc) + prices.kept(size[bc].new))
    changed = size[bc].deltas["b"]
    place = costs.updated.index("b")
    delta = prices.processed(size[b].deltas["b"], changed) + costs.computed_delta(b, place)
    width = size[c].width
    found = prices.looked_up(size[c].rows, size[b].deltas["b"], width=width)
    assert costs.computed_delta(bc, place) == pytest.approx(delta + found)
    merged = prices.merged(changed) + prices.result + prices.engine(changed).query
    assert costs.imntcost(bc) == pytest.approx(costs.computed_delta(bc, place) + merged)
    costs.apply(Store(bc, PERMANENT))
    assert costs.cost(bc) == costs.reusecost(bc)


def test_nothing_is_paid_for_what_does_not_change() -> None:
    still = {name: Facts(f.rows, f.distinct) for name, f in FACTS.items()}
    assert _costs(still).total == 0.0


@pytest.mark.parametrize("pruned", [True, False])
def test_a_lookup_costs_at_most_what_reading_all_rows_costs(pruned: bool) -> None:
    """So lookups in a small relation, which stays in memory, are no reason to store anything."""
    prices = Prices()
    for rows in (1, 25, 1e4, 1e6, 1e8):
        for values in (1, 1e3, prices.lookup_values, 1e7):
            assert prices.looked_up(rows, values, pruned=pruned) <= prices.scanned(rows)
    assert prices.looked_up(1e8, 1, pruned=pruned) < prices.scanned(1e8)


def test_an_index_in_memory_answers_lookups_of_more_than_a_few_values_in_columns_that_fit() -> None:
    prices = Prices(index_memory=1e9, index_values=20)
    files = prices.looked_up(1e7, 100)
    assert prices.looked_up(1e7, 100, width=50) < files / 10
    assert prices.looked_up(1e7, 20, width=50) == prices.looked_up(1e7, 20)
    assert prices.looked_up(1e7, 100, width=101) == files
    assert Prices(index_memory=0).looked_up(1e7, 100, width=50) == files


@pytest.mark.parametrize(("type_", "is_kept"), [("bigint", True), ("date", True), ("string", False), ("double", False)])
def test_only_integers_and_dates_have_an_index_in_memory(type_: str, is_kept: bool) -> None:
    columns = {n: {"k": type_, "n": "bigint"} for n in "ab"}
    dag = built(from_sql({"v": "SELECT a.n, b.n AS m FROM a JOIN b ON a.k = b.k"}, columns), columns)
    facts = {"a": Facts(1e6, {"k": 1e6}, inserted=1000), "b": Facts(1e6, {"k": 1e6})}
    costs = [Costs(dag, facts, prices).total for prices in (Prices(), WITHOUT_INDEX)]
    assert (costs[0] < costs[1]) is is_kept


def test_one_commit_shows_the_changes_of_all_views() -> None:
    free = Costs(built(from_sql(TEXTS, COLUMNS), COLUMNS), FACTS, Prices(commit=0.0))
    assert _costs().total - free.total == pytest.approx(Prices().commit)


def test_what_the_embedded_engine_keeps_for_a_refresh_is_not_written() -> None:
    prices = Prices()
    assert prices.kept(1000) == prices.embedded.row * 1000
    assert prices.kept(1e6) == prices.spark.keep + prices.spark.write * 1e6


def test_a_clustered_result_is_looked_up_for_less() -> None:
    costs = _costs(prices=WITHOUT_INDEX)
    c = next(n.number for n in costs.nodes if isinstance(n, StoredRelation) and n.name == "c")
    by = next(by for by in costs.lookups_by[c] if by.endswith("_l"))
    assert costs.tried(Cluster(c, by)) < costs.total
    dense = _costs({n: Facts(f.rows, f.distinct, inserted=10_000) for n, f in FACTS.items()}, WITHOUT_INDEX)
    assert dense.tried(Cluster(c, by)) > dense.total  # so many values meet all files: sorting is in vain


def test_a_stored_result_has_no_mixture_of_states() -> None:
    """δb sees a in its new state and c in its old one: a stored a ⋈ c has neither. A kept result is a new one."""
    columns = {n: {"k": "bigint", "n": "bigint"} for n in "abc"}
    text = "SELECT a.n, b.n AS m, c.n AS o FROM a JOIN c ON a.k = c.k JOIN b ON a.k = b.k AND b.k = c.k"
    every = {n: Facts(1e5, {"k": 1e5}, inserted=10) for n in "abc"}
    costs = Costs(built(from_sql({"v": text}, columns), columns), every, Prices())
    ac = _block(costs.dag, "a", "c")
    costs.apply(Store(ac, PERMANENT))
    places = {n: costs.updated.index(n) for n in "abc"}
    assert not costs.is_readable(ac, places["b"])
    ab, bc = _block(costs.dag, "a", "b"), _block(costs.dag, "b", "c")
    for node in (ab, bc):
        costs.apply(Store(node, PERMANENT))
    assert costs.is_readable(ab, places["c"])
    assert costs.is_readable(bc, places["a"])
    costs.apply(Store(bc, TRANSIENT))
    assert not costs.is_readable(bc, places["a"])


def test_a_differential_reads_a_stored_result_in_the_states_that_it_has() -> None:
    """The groups of a maximum are computed again before and after a deletion in b: a stored b ⋈ c has both states if b
    alone changes it, and neither if c does as well."""
    changed = {n: Facts(f.rows, f.distinct, inserted=1000, deleted=10) for n, f in FACTS.items()}
    still = changed | {"c": Facts(2e6, FACTS["c"].distinct)}
    for facts, is_whole in ((still, True), (changed, False)):
        costs = Costs(built(from_sql({"two": TEXTS["two"]}, COLUMNS), COLUMNS), facts, Prices())
        bc, place = _block(costs.dag, "b", "c"), costs.updated.index("b")
        costs.apply(Store(bc, PERMANENT))
        assert costs.is_readable(bc, place) is is_whole


def test_what_is_computed_anew_for_a_differential_reads_no_mixture_of_states() -> None:
    """Ranks of all rows are computed before and after: δb needs b ⋈ c between the two changes, which is not stored."""
    text = "SELECT b.n, RANK() OVER (ORDER BY c.n) AS m FROM b JOIN c ON b.k = c.l"
    facts = {n: Facts(f.rows, f.distinct, inserted=1000) for n, f in FACTS.items()}
    costs = Costs(built(from_sql({"ranks": text}, COLUMNS), COLUMNS), facts, Prices())
    (root,) = costs.dag.roots
    bc, before = _block(costs.dag, "b", "c"), costs.computed_delta(root.node.number, 0)
    costs.apply(Store(bc, PERMANENT))
    assert costs.compcost(root.node.number) < costs.compcost(bc)
    assert costs.computed_delta(root.node.number, 0) == before


def test_sizes_before_and_after() -> None:
    costs = _costs()
    bc = costs.sizes.of[_block(costs.dag, "b", "c")]
    assert bc.rows == pytest.approx(2e6)
    assert bc.deltas == {"b": pytest.approx(2e6 * 1010 / 5e5)}
    assert bc.new == pytest.approx(2e6 * (5e5 + 990) / 5e5)
    assert [bc.before(r) for r in "abc"] == [bc.rows, bc.rows, bc.new]
    grouping = next(n for n in costs.nodes if isinstance(n, Grouping) and n.relations == {"b", "c"})
    assert costs.size(grouping).rows == pytest.approx(50)


def test_costs_follow_the_sizes_after_the_updates_before() -> None:
    """a and c grow by four fifths. What is recomputed reads and writes the rows after all changes; δb, which follows
    δa, meets the new a and the old c."""
    grown = {n: replace(FACTS[n], inserted=0.8 * FACTS[n].rows, deleted=0) for n in "ac"}
    costs = _costs(FACTS | grown)
    prices, size = costs.prices, costs.sizes.of
    a, b, c = (next(n.number for n in costs.nodes if isinstance(n, StoredRelation) and n.name == x) for x in "abc")
    ab, bc = _block(costs.dag, "a", "b"), _block(costs.dag, "b", "c")
    place = costs.updated.index("b")
    assert costs.reusecost(a) == pytest.approx(prices.scanned(1.8 * size[a].rows))
    written = prices.written(1.8 * size[bc].rows * (5e5 + 990) / 5e5)
    assert costs.rmntcost(bc) == pytest.approx(costs.compcost(bc) + written + prices.spark.query)
    met = {ab: 1.8 * size[a].rows, bc: size[c].rows}
    for node, rows in met.items():
        local = prices.processed(size[b].deltas["b"], size[node].deltas["b"]) + costs.computed_delta(b, place)
        found = prices.looked_up(rows, size[b].deltas["b"], width=size[a if node == ab else c].width)
        assert costs.computed_delta(node, place) == pytest.approx(local + found)
    assert size[ab].deltas["b"] == pytest.approx(1.8 * size[ab].rows * 1010 / 5e5)
    assert size[ab].deltas["a"] == pytest.approx(0.8 * size[ab].rows)
