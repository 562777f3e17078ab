"""Which nodes a set of views has: what is one node, what is bounded, and how columns are named."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from sqlglot import exp
from tests.unit.algebra.oracle import evaluate
from tests.unit.optimizer.sets import COLUMNS, built, from_sql, view
from tests.unit.sql.view_grammar import Change, lowered_view

from freshview.algebra.nodes import Project
from freshview.algebra.traversal import bottom_up
from freshview.optimizer.choice import choice_of, described, optimise
from freshview.optimizer.cost import NOT_STORED, PERMANENT, Costs, Store
from freshview.optimizer.dag import MOST_LEAVES, Dag, View
from freshview.optimizer.greedy import Limits, Selection, Taken
from freshview.optimizer.identity import Identities
from freshview.optimizer.operations import Block, CanonicalNames, Grouping, Other
from freshview.optimizer.prices import Prices
from freshview.optimizer.rules import MOST_EAGER
from freshview.optimizer.statistics import Facts
from freshview.optimizer.trees import plan_tree, root_tree
from freshview.sql.lowering import lower


def _roots(*texts: str) -> list[int]:
    return [r.node.number for r in built([view(f"v{i}", lowered_view(t)) for i, t in enumerate(texts)]).roots]


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("SELECT t.b FROM t JOIN u ON t.a = u.a", "SELECT u.d, t.c FROM u, t WHERE u.a = t.a"),
        (
            "SELECT t.b FROM t JOIN u ON t.a = u.a JOIN v ON u.d = v.d",
            "SELECT y FROM v JOIN u USING (d) JOIN t USING (a)",
        ),
        ("SELECT p.b FROM t p JOIN t q ON p.a = q.b", "SELECT q.c FROM t p JOIN t q ON p.b = q.a"),
        (
            "SELECT p.b FROM t p JOIN t q ON p.a = q.b JOIN u ON p.a = u.a",
            "SELECT q.c FROM u JOIN t q ON u.a = q.a JOIN t p ON q.a = p.b",
        ),
        ("SELECT a FROM t WHERE b BETWEEN 1 AND 2", "SELECT c FROM t WHERE 2 >= b AND b >= 1"),
        ("SELECT a, SUM(b) AS s FROM t GROUP BY a", "SELECT COUNT(*) AS n, a FROM (SELECT a FROM t) GROUP BY a"),
        ("SELECT t.a FROM t LEFT JOIN u ON t.a = u.a", "SELECT x.a FROM t x LEFT JOIN u y ON x.a = y.a"),
    ],
)
def test_equal_expressions_are_one_node(one: str, two: str) -> None:
    first, second = _roots(one, two)
    assert first == second


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("SELECT t.b FROM t JOIN u ON t.a = u.a", "SELECT t.b FROM t JOIN u ON t.b = u.a"),
        ("SELECT p.b FROM t p JOIN t q ON p.a = q.b", "SELECT p.b FROM t p JOIN t q ON p.a = q.a"),
        ("SELECT a FROM t WHERE c = 'x'", "SELECT a FROM t WHERE c = 'X'"),
        ("SELECT a, SUM(b) AS s FROM t GROUP BY a", "SELECT b, SUM(b) AS s FROM t GROUP BY b"),
        ("SELECT t.a FROM t LEFT JOIN u ON t.a = u.a", "SELECT t.a FROM t LEFT JOIN u ON t.b = u.a"),
    ],
)
def test_other_expressions_are_other_nodes(one: str, two: str) -> None:
    first, second = _roots(one, two)
    assert first != second


def test_a_block_has_a_node_for_every_connected_subset() -> None:
    dag = built([view("v", lowered_view("SELECT t.b FROM t JOIN u ON t.a = u.a JOIN v ON u.d = v.d"))])
    assert {n.relations for n in dag.nodes} == {frozenset(s) for s in ("t", "u", "v", "tu", "uv", "tuv")}


def _chain(count: int) -> tuple[dict[str, dict[str, str]], str]:
    columns = {f"r{i}": {"k": "bigint", "n": "bigint"} for i in range(count)}
    joins = " ".join(f"JOIN r{i} ON r{i - 1}.n = r{i}.k" for i in range(1, count))
    return columns, f"SELECT r0.k, r{count - 1}.n FROM r0 {joins}"


def _star(count: int) -> tuple[dict[str, dict[str, str]], str]:
    columns = {f"r{i}": {"k": "bigint", "n": "bigint"} for i in range(count)}
    joins = " ".join(f"JOIN r{i} ON r0.n = r{i}.k" for i in range(1, count))
    return columns, f"SELECT r0.k, SUM(r0.n) AS s FROM r0 {joins} GROUP BY r0.k"


@pytest.mark.parametrize("shape", [_chain, _star])
def test_large_blocks_are_bounded_and_still_give_the_bag(shape: object) -> None:
    assert callable(shape)
    columns, text = shape(MOST_LEAVES + 3)
    count = len(columns)
    views = from_sql({"v": text}, columns)
    dag = built(views, columns)
    assert len(dag.nodes) <= 2 * count * count
    state = {r: Counter({(1, 1): 2, (1, 2): 1}) if r == "r0" else Counter({(1, 1): 1}) for r in columns}
    change = Change(state, state, schemas={r: tuple(c) for r, c in columns.items()})
    expected = evaluate(views[0].form.tree, change.read)
    assert expected
    for pick in (0, -1):
        tree = root_tree(dag.roots[0], lambda n, pick=pick: n.operations[pick], {})  # type: ignore[misc]
        assert evaluate(tree, change.read) == expected


def _stars(count: int) -> Dag:
    """The views of MQO §7.2.3: stars of four relations around one centre."""
    columns = {f"R{i}": {"p": "bigint", "sp": "bigint", "n": "bigint"} for i in range(1, 2 * count + 3)}
    texts = {}
    for i in range(1, count + 1):
        others = [f"R{2 * i + k}" for k in range(3)]
        joins = " ".join(f"JOIN {r} ON R1.sp = {r}.p" for r in others)
        texts[f"v{i}"] = f"SELECT R1.p, {', '.join(f'{r}.n AS {r}_n' for r in others)} FROM R1 {joins}"
    return built(from_sql(texts, columns), columns)


def test_the_space_grows_linearly_with_the_number_of_views() -> None:
    sizes = [len(_stars(n).nodes) for n in (5, 10, 15)]
    assert sizes[2] - sizes[1] == sizes[1] - sizes[0]
    assert sizes[1] == 83


def test_selections_by_ranges_grow_linearly_too() -> None:
    """Each is computed from the loosest, not from every looser one."""
    columns, text = _chain(3)

    def operations(count: int) -> int:
        texts = {f"v{i}": f"{text} WHERE r1.n < {i}" for i in range(count)}
        return sum(len(n.operations) for n in built(from_sql(texts, columns), columns).nodes)

    few, more, most = (operations(n) for n in (5, 10, 15))
    assert most - more == more - few


def test_a_grouping_is_pushed_below_a_bounded_number_of_joins() -> None:
    columns, text = _star(7)
    dag = built(from_sql({"v": text}, columns), columns)
    root = dag.roots[0].node
    assert len([o for o in root.operations if o.rule == "eager aggregation"]) == MOST_EAGER


def test_parts_of_a_decimal_sum_are_merged_to_its_own_type() -> None:
    """Spark's sum of sums has ten digits more than the sum."""
    text = "SELECT u.d, SUM(t.b) AS s FROM t JOIN u ON t.a = u.a GROUP BY u.d"
    given = view("v", lowered_view(text))
    types = {c: "decimal(25,2)" if "sum" in c else t for c, t in given.types.items()}
    dag = built([replace(given, types=types)])
    dag.finish()
    root = dag.roots[0].node
    assert isinstance(root, Grouping)
    eager = next(o for o in root.operations if o.rule == "eager aggregation")
    tree = plan_tree(root, root.needs, lambda n: eager if n is root else n.operations[0], {})
    casts = [
        e.sql(dialect="spark")
        for n in bottom_up(tree)
        if isinstance(n, Project)
        for _, e in n.items
        if e.find(exp.Cast)
    ]
    assert [c.split(" AS ")[1] for c in casts] == ["DECIMAL(25, 2))"]


def test_views_that_differ_in_their_columns_share_one_result_with_all_of_them() -> None:
    columns = {n: {"k": "bigint", "l": "bigint", "n": "bigint"} for n in "ab"}
    where = "FROM a JOIN b ON a.k = b.l"
    texts = {"one": f"SELECT a.n, b.k {where}", "two": f"SELECT a.l, b.n, b.k {where} WHERE a.n < 3"}
    facts = {n: Facts(1e7, {"k": 1e7, "l": 1e7}, inserted=1000) for n in "ab"}
    choice = optimise(built(from_sql(texts, columns), columns), facts, limits=Limits(permanent=False, clustering=False))
    (shared,) = choice.shared
    assert set(shared.tree.columns) == {"a_l", "a_n", "b_k", "b_n"}
    assert shared.differentials == ("a", "b")
    assert all(v.reads == ("shared 1",) for v in choice.views)


def test_a_grouping_by_a_coarser_key_reads_the_view_of_the_finer_one() -> None:
    """γ by nation from the view by customer, joined with customer: the coarser key's table."""
    columns = {"orders": {"cust": "bigint", "price": "bigint"}, "customer": {"id": "bigint", "nation": "bigint"}}
    texts = {
        "per_customer": "SELECT cust, SUM(price) AS s FROM orders GROUP BY cust",
        "per_nation": "SELECT nation, SUM(price) AS s FROM orders JOIN customer ON cust = id GROUP BY nation",
    }
    facts = {
        "orders": Facts(1e7, {"cust": 1e5}, inserted=1e4),
        "customer": Facts(1e5, {"id": 1e5, "nation": 25}, inserted=100),
    }
    choice = optimise(built(from_sql(texts, columns), columns), facts)
    assert {v.name: set(v.reads) for v in choice.views}["per_nation"] == {"per_customer", "customer"}


def test_names_of_stored_results_do_not_depend_on_other_views() -> None:
    columns, text = _chain(3)
    texts = {
        "v": text,
        "g": "SELECT r1.n, COUNT(*) AS c FROM r1 JOIN r0 ON r0.n = r1.k GROUP BY r1.n",
        "o": "SELECT r0.n, r2.k FROM r0 LEFT JOIN r2 ON r0.n = r2.k AND r2.n > 1",
    }
    others = {"w": "SELECT r2.k FROM r2 JOIN r1 ON r1.n = r2.k WHERE r1.n = 1", "x": "SELECT DISTINCT n FROM r2"}
    one, two = (built(from_sql(t, columns), columns) for t in (texts, {**others, **dict(reversed(texts.items()))}))
    names = [Identities(one), Identities(two)]
    tables = [{i.table(n): described(d, n) for n in d.finish()} for i, d in zip(names, (one, two), strict=True)]
    assert tables[0].items() <= tables[1].items()
    stored = [{i.stored(c) for n in d.nodes for c in n.needs} for i, d in zip(names, (one, two), strict=True)]
    assert stored[0] <= stored[1]


def test_what_no_plan_reads_is_not_proposed() -> None:
    """A plan for a ⋈ b ⋈ c reads a ⋈ b or b ⋈ c: if both are stored, one of them is in vain."""
    columns, text = _chain(3)
    dag = built(from_sql({"v": text}, columns), columns)
    costs = Costs(dag, {r: Facts(1e6, {"k": 1e6, "n": 1e6}, inserted=1) for r in columns}, Prices())
    sides = [n for n in dag.nodes if isinstance(n, Block) and len(n.leaves) == 2]
    assert len(sides) == 2
    decisions = [Taken(Store(n.number, PERMANENT), 1.0, 1.0) for n in sides]
    for decision in decisions:
        costs.apply(decision.change)
    choice = choice_of(dag, Selection(costs, costs.total, tuple(decisions), ()))
    (kept,) = choice.auxiliaries
    assert kept.name in choice.views[0].reads
    assert sorted(costs.mode[n.number] for n in sides) == [NOT_STORED, PERMANENT]
    (refused,) = choice.alternatives
    assert refused.why == "no view's plan as a whole reads it"
    assert refused.bytes > 0
    assert choice.after == costs.total


def test_names_differ_in_more_than_case() -> None:
    names = CanonicalNames()
    found = [names.new(0, "x_Y_z"), names.new(1, "x_y_z"), names.new(2, "x y.z")]
    found += [names.at(found[0], 1), names.at(found[1], 1), names.new(3, "x_y_z__1")]
    assert len({n.casefold() for n in found}) == len(found)
    assert not any(" " in n or "." in n for n in found)
    assert names.at(found[0], 1) == found[3]
    assert names.leaf(found[3]) == (0, 1)


def test_long_expressions_are_not_inlined() -> None:
    """Doubling an expression level by level would take exponential space."""
    text = "SELECT a AS x FROM t"
    for _ in range(30):
        text = f"SELECT x + x AS x FROM ({text})"
    dag = Dag(COLUMNS)
    dag.add_view(_as_view(text))
    assert any(isinstance(n, Other) for n in dag.nodes)
    state = {"t": Counter({(1, 0, "x", None): 1}), "u": Counter(), "v": Counter()}
    tree = root_tree(dag.roots[0], lambda n: n.operations[0], {})
    assert evaluate(tree, Change(state, state).read) == {(2**30,): 1}


def _as_view(text: str) -> View:
    return view("v", lower(text, {t: tuple(c) for t, c in COLUMNS.items()}))


def _rules_of(*texts: str) -> set[str]:
    dag = built([view(f"v{i}", lowered_view(t)) for i, t in enumerate(texts)])
    return {o.rule for n in dag.nodes for o in n.operations}


def test_no_expression_is_computed_from_keys_whose_equal_values_differ_in_bits() -> None:
    """Grouping makes −0.0 to 0.0, and a condition above it might tell them apart: t.x and v.y are doubles."""
    grouped = "SELECT t.c, SUM(t.b) AS s FROM t JOIN v ON {} GROUP BY t.c"
    assert "eager aggregation" in _rules_of(grouped.format("t.b = v.b"))
    assert "eager aggregation" not in _rules_of(grouped.format("t.x = v.y"))
    selected = "SELECT a, SUM(b) AS s FROM t WHERE {} GROUP BY a"
    assert "grouped selection" in _rules_of(selected.format("b < 1"), "SELECT a FROM t")
    assert "grouped selection" not in _rules_of(selected.format("x < 1.5D"), "SELECT a FROM t")
    coarse = "SELECT {} AS k, SUM(b) AS s FROM t GROUP BY {}"
    assert "coarser grouping" in _rules_of(coarse.format("a + 1", "a + 1"), "SELECT a, SUM(b) AS s FROM t GROUP BY a")
    negated = _rules_of(coarse.format("-x", "-x"), "SELECT x, SUM(b) AS s FROM t GROUP BY x")
    assert "coarser grouping" in negated  # from the union of both keys, which has −x itself
    dag = built(
        [view(f"v{i}", lowered_view(f"SELECT {k}, SUM(b) AS s FROM t GROUP BY {k}")) for i, k in enumerate(("-x", "x"))]
    )
    minus, plain = (r.node for r in dag.roots)
    assert plain not in [u.node for o in minus.operations for u in o.inputs]


def test_a_later_call_takes_ways_out_that_cannot_compute_it() -> None:
    """γ of t below the join has no sum over u: a coarser grouping that needs one ends that way of the finer one."""
    fine = "SELECT t.c, u.d, SUM(t.b) AS s FROM t JOIN u ON t.a = u.a GROUP BY t.c, u.d"
    coarse = "SELECT t.c, SUM(u.d) AS s FROM t JOIN u ON t.a = u.a GROUP BY t.c"
    alone, beside = (built([view(f"v{i}", lowered_view(t)) for i, t in enumerate(s)]) for s in ([fine], [fine, coarse]))
    assert "eager aggregation" in {o.rule for o in alone.roots[0].node.operations}
    assert "eager aggregation" not in {o.rule for o in beside.roots[0].node.operations}
    assert "coarser grouping" in {o.rule for o in beside.roots[1].node.operations}


@pytest.mark.parametrize("join", ["CROSS JOIN u", "JOIN u ON u.d > 0"])
def test_no_grouping_without_keys_is_pushed_below_a_product(join: str) -> None:
    """Law: γ without keys has a row even of an empty part: the product with it would have rows that the text lacks."""
    dag = built([view("v", lowered_view(f"SELECT u.d, COUNT(*) AS n, MAX(t.b) AS m FROM t {join} GROUP BY u.d"))])
    groupings = [n for n in dag.nodes if isinstance(n, Grouping)]
    assert groupings
    assert all(n.keys for n in groupings)
