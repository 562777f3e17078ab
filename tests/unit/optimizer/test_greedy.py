"""The greedy choice (MQO §6): what it finds, and that its shortcuts change nothing that matters."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.optimizer.sets import WITHOUT_INDEX, built, from_sql

from freshview.bench.data import V1
from freshview.optimizer.choice import Choice, optimise
from freshview.optimizer.cost import PERMANENT, Costs, Share, Store
from freshview.optimizer.dag import Dag
from freshview.optimizer.greedy import LEAST, Limits, select, sharing
from freshview.optimizer.operations import StoredRelation
from freshview.optimizer.prices import Engine, Prices
from freshview.optimizer.rules import expand
from freshview.optimizer.statistics import Facts, Statistics

TPCH = {
    "customer": {"c_custkey": "bigint", "c_nationkey": "bigint", "c_mktsegment": "string"},
    "orders": {"o_orderkey": "bigint", "o_custkey": "bigint"},
    "lineitem": {"l_orderkey": "bigint", "l_quantity": "decimal(15,2)", "l_extendedprice": "decimal(15,2)"},
    "nation": {"n_nationkey": "bigint", "n_name": "string"},
}
FACTS = {
    "customer": Facts(150e3, {"c_custkey": 150e3, "c_nationkey": 25, "c_mktsegment": 5}, inserted=100, deleted=100),
    "orders": Facts(1.5e6, {"o_orderkey": 1.5e6, "o_custkey": 1e5}),
    "lineitem": Facts(6e6, {"l_orderkey": 1.5e6}),
    "nation": Facts(25, {"n_nationkey": 25, "n_name": 25}),
}


def test_v1_of_lazy_gets_the_grouping_by_customer() -> None:
    """After 100 customers moved, γ by o_custkey over orders ⋈ lineitem is what makes V1 cheap where lookups read
    files."""
    choice = optimise(built(from_sql({"v1": V1}, TPCH), TPCH), FACTS, WITHOUT_INDEX)
    assert [a.what for a in choice.auxiliaries] == [
        "γ[orders.o_custkey] (lineitem ⋈ orders [lineitem.l_orderkey = orders.o_orderkey])"
    ]
    (plan,) = choice.views
    assert plan.way == "incremental"
    assert set(plan.reads) == {"customer", "nation", choice.auxiliaries[0].name}
    assert choice.after < choice.before / 2
    assert choice.executed == choice.after


@pytest.mark.parametrize("rounds", [1000.0, 10_000.0])
def test_nothing_is_stored_to_save_lookups_that_read_no_files(rounds: float) -> None:
    """An index in memory answers V1's two lookups in milliseconds: a join of 6 million rows is not stored for them,
    however often the view is refreshed."""
    choice = optimise(built(from_sql({"v1": V1}, TPCH), TPCH), FACTS, Prices(), rounds=rounds)
    assert not choice.auxiliaries
    assert choice.before < 0.1
    few = Prices(index_memory=100e6)  # the columns do not fit
    assert optimise(built(from_sql({"v1": V1}, TPCH), TPCH), FACTS, few, rounds=rounds).auxiliaries


# -- Example 1.1 of the paper ----------------------------------------------------------------------

LETTERS = {n: {"k": "bigint", "l": "bigint", "m": "bigint"} for n in "ABCDE"}
EXAMPLE = {
    "V1": "SELECT A.k, B.m, C.m AS n FROM A JOIN B ON A.k = B.k JOIN C ON B.l = C.k",
    "V2": "SELECT C.k, D.m, E.m AS n FROM C JOIN D ON C.l = D.k JOIN E ON D.l = E.k",
    "V3": "SELECT A.l, B.l AS j, D.k, E.m FROM A JOIN B ON A.k = B.k JOIN D ON B.m = D.k JOIN E ON D.l = E.k",
}


def _figure_1(dag: Dag, statistics: Statistics) -> Choice:
    """No index, dear queries and merges: what the costs have to say for Figure 1."""
    everywhere = Engine(query=1.0, operator=0.0, scan=2e-7, row=1e-7, keep=0.0, write=2e-7)
    prices = Prices(everywhere, everywhere, lookup=0.0, passed=2e-7, index_memory=0.0, commit=0.0, merge=1e-5)
    return optimise(dag, statistics, prices, Limits(clustering=False))


def test_example_1_1_yields_the_plan_of_figure_1() -> None:
    """A ⋈ B is shared by the differential of V1 and by V3, D ⋈ E is stored; V1 is incremented, V2, V3 recomputed."""
    dag = built(from_sql(EXAMPLE, LETTERS), LETTERS)
    statistics = {
        "A": Facts(2e5, {"k": 2e5}, inserted=10),
        "B": Facts(1e6, {"k": 1e6, "l": 2e3, "m": 1e5}, inserted=10),
        "C": Facts(1e5, {"k": 2e3, "l": 1e5}, inserted=1e3),
        "D": Facts(3e7, {"k": 1e5, "l": 3e7}),
        "E": Facts(1e5, {"k": 1e5}, inserted=3e4),
    }
    choice = _figure_1(dag, statistics)
    assert [a.what for a in choice.auxiliaries] == ["D ⋈ E [D.l = E.k]"]
    assert [(s.what, s.full) for s in choice.shared] == [("A ⋈ B [A.k = B.k]", True)]
    assert {v.name: v.way for v in choice.views} == {"V1": "incremental", "V2": "full", "V3": "full"}
    reads = {v.name: set(v.reads) for v in choice.views}
    stored = choice.auxiliaries[0].name
    assert reads["V2"] == {"C", stored}
    assert reads["V3"] == {"shared 1", stored}
    assert reads["V1"] == {"shared 1", "C"}
    assert choice.executed == pytest.approx(choice.before)  # one is a full result, the other for recomputed views


def test_what_is_proposed_and_not_executed_is_not_expected_to_save_anything() -> None:
    """The order of tables is a hint; the search counts it."""
    few = {n: Facts(f.rows, f.distinct, inserted=10) for n, f in CHAIN_FACTS.items()}
    choice = optimise(_dag(), few, limits=Limits(transient=False, permanent=False))
    assert choice.sortings
    assert choice.after < choice.before
    assert choice.executed == pytest.approx(choice.before)
    assert choice.selection.costs.total == choice.after  # it was tried, and taken back


# -- the algorithm ---------------------------------------------------------------------------------

CHAIN = {
    "one": "SELECT a.n, c.n AS m FROM a JOIN b ON a.k = b.l JOIN c ON b.k = c.l",
    "two": "SELECT b.n, c.k FROM b JOIN c ON b.k = c.l WHERE b.n < 5",
    "three": "SELECT b.l, SUM(c.n) AS s FROM b JOIN c ON b.k = c.l GROUP BY b.l",
    "four": "SELECT c.n, COUNT(*) AS k FROM a JOIN b ON a.k = b.l JOIN c ON b.k = c.l GROUP BY c.n",
}
CHAIN_COLUMNS = {n: {"k": "bigint", "l": "bigint", "n": "bigint"} for n in "abc"}
CHAIN_FACTS = {
    n: Facts(rows, {"k": rows, "l": rows / 4, "n": 20}, inserted=rows / 1000)
    for n, rows in {"a": 1e6, "b": 2e6, "c": 4e6}.items()
}


def _dag() -> Dag:
    return built(from_sql(CHAIN, CHAIN_COLUMNS), CHAIN_COLUMNS)


def test_more_freedom_never_costs_more() -> None:
    """No materialisation, only transient, transient and permanent: the variants of §7.2.1."""
    none = select(_dag(), CHAIN_FACTS, WITHOUT_INDEX, Limits(transient=False, permanent=False, clustering=False))
    transient = select(_dag(), CHAIN_FACTS, WITHOUT_INDEX, Limits(permanent=False, clustering=False))
    both = select(_dag(), CHAIN_FACTS, WITHOUT_INDEX, Limits(clustering=False))
    assert not none.taken
    assert none.after == none.before == transient.before == both.before
    assert both.after < transient.after < none.after


def test_differentials_may_be_chosen_one_by_one() -> None:
    """As single candidates they are searched for longer, and the plan hardly changes (§7.2.1)."""
    one = select(_dag(), CHAIN_FACTS, WITHOUT_INDEX, Limits(permanent=False, clustering=False))
    each = select(_dag(), CHAIN_FACTS, WITHOUT_INDEX, Limits(permanent=False, clustering=False, one_by_one=True))
    shares = [t.change for t in each.taken if isinstance(t.change, Share)]
    assert shares
    assert all(share.place is not None for share in shares)
    assert all(t.change.place is None for t in one.taken if isinstance(t.change, Share))
    assert each.after <= 1.1 * one.after
    again = Costs(each.costs.dag, CHAIN_FACTS, each.costs.prices)
    for taken in each.taken:
        again.apply(taken.change)
    assert again.total == pytest.approx(each.after)


def test_every_decision_saves_what_it_says() -> None:
    """The benefits add up to the difference of the costs, if nothing had to be dropped in the end."""
    selection = select(_dag(), CHAIN_FACTS, WITHOUT_INDEX)
    assert all(t.benefit > LEAST for t in selection.taken)
    assert selection.before - selection.after == pytest.approx(sum(t.benefit for t in selection.taken))


def test_no_single_candidate_is_left_that_would_save_something() -> None:
    """Lazy re-evaluation of benefits (monotonicity) overlooks nothing here."""
    selection = select(_dag(), CHAIN_FACTS, WITHOUT_INDEX)
    costs = selection.costs
    for node in costs.nodes:
        if not costs.mode[node.number]:
            for mode in (1, 2):
                assert costs.total - costs.tried(Store(node.number, mode)) <= LEAST


def test_a_full_result_is_stored_or_kept_whichever_saves_more() -> None:
    selection = select(_dag(), CHAIN_FACTS, WITHOUT_INDEX)
    stores = [t for t in selection.taken if isinstance(t.change, Store)]
    assert stores
    for taken in stores:
        change = taken.change
        assert isinstance(change, Store)
        other = next(r for r in selection.refused if r.change == replace(change, mode=3 - change.mode))
        assert other.alone <= taken.benefit or other.benefit <= taken.benefit


def test_differentials_are_candidates_where_a_plan_can_use_them_twice() -> None:
    costs = Costs(_dag(), CHAIN_FACTS, Prices())
    degrees = sharing(costs)
    by_name = {n.name: degrees[n.number] for n in costs.nodes if isinstance(n, StoredRelation)}
    assert by_name["c"] == 4
    assert by_name["a"] == 2
    alone = Costs(built(from_sql({"one": CHAIN["one"]}, CHAIN_COLUMNS), CHAIN_COLUMNS), CHAIN_FACTS, Prices())
    assert set(sharing(alone).values()) == {1}


def test_a_budget_is_kept_and_spent_by_benefit_per_byte() -> None:
    free = select(_dag(), CHAIN_FACTS, WITHOUT_INDEX)
    spent = sum(t.bytes for t in free.taken if isinstance(t.change, Store) and t.change.mode == PERMANENT)
    assert spent > 0
    tight = select(_dag(), CHAIN_FACTS, WITHOUT_INDEX, Limits(permanent_bytes=spent / 4))
    used = sum(t.bytes for t in tight.taken if isinstance(t.change, Store) and t.change.mode == PERMANENT)
    assert used <= spent / 4
    assert free.after <= tight.after <= tight.before
    assert any("does not fit" in r.why for r in tight.refused)
    none = select(_dag(), CHAIN_FACTS, WITHOUT_INDEX, Limits(permanent_bytes=0, transient_bytes=0))
    assert not [t for t in none.taken if t.bytes]


def test_a_pinned_view_keeps_its_way() -> None:
    views = [replace(v, pinned="full") for v in from_sql(CHAIN, CHAIN_COLUMNS)]
    choice = optimise(built(views, CHAIN_COLUMNS), CHAIN_FACTS)
    assert {v.way for v in choice.views} == {"full"}
    assert all("'refresh' = 'full'" in v.why for v in choice.views)


def test_the_advisor_stores_what_frequent_queries_read() -> None:
    """The workload form: a query that runs often and tables that hardly change."""
    still = {n: Facts(f.rows, f.distinct, inserted=100) for n, f in CHAIN_FACTS.items()}
    text = "SELECT b.l, SUM(c.n) AS s FROM b JOIN c ON b.k = c.l GROUP BY b.l"
    for rate, stored in ((0.00001, 0), (50.0, 1)):
        dag = Dag(CHAIN_COLUMNS)
        dag.add_query(from_sql({"often": text}, CHAIN_COLUMNS)[0], rate)
        expand(dag)
        choice = optimise(dag, still)
        assert len(choice.auxiliaries) == stored
        assert any(name.startswith("aux_") for name in choice.queries[0].reads) is bool(stored)


def test_what_later_decisions_replace_is_dropped() -> None:
    """Nothing is kept whose removal would not cost anything."""
    selection = select(_dag(), CHAIN_FACTS)
    for taken in selection.taken:
        change = taken.change
        back = replace(change, mode=0) if isinstance(change, Store) else None
        if back is not None:
            assert selection.costs.tried(back) > selection.costs.total


@pytest.mark.parametrize(
    "prices",
    [Prices(), Prices(lookup=0.004, value=1e-6), Prices(lookup=0.0, commit=0.0)],
    ids=["as they are", "a lookup costs little", "storing costs next to nothing"],
)
@pytest.mark.parametrize("limits", [Limits(), Limits(transient=False)], ids=["all", "permanent"])
def test_a_result_without_columns_is_not_stored(prices: Prices, limits: Limits) -> None:
    """Of what stands below SELECT 1 WHERE EXISTS (…) only the number of rows matters: no relation can hold that. The
    cheapest of these prices had it stored as a view."""
    tables = {"t": {"a": "bigint"}, "u": {"d": "bigint"}}
    texts = {
        "one": "SELECT 1 AS one WHERE EXISTS (SELECT 1 FROM t WHERE a = 1) OR 0 IN (SELECT d FROM u)",
        "two": "SELECT 2 AS two WHERE EXISTS (SELECT 1 FROM t WHERE a = 1)",
    }
    for rows in (1e3, 1e6):
        facts = dict.fromkeys(tables, Facts(rows, {}, inserted=10, deleted=10))
        choice = optimise(built(from_sql(texts, tables), tables), facts, prices, limits)
        trees = [a.tree for a in choice.auxiliaries] + [s.tree for s in choice.shared]
        assert all(tree.columns for tree in trees)
