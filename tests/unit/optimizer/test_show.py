"""A choice as text and as a picture."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from tests.unit.optimizer.sets import WITHOUT_INDEX, built, from_sql
from tests.unit.optimizer.test_greedy import CHAIN, CHAIN_COLUMNS, CHAIN_FACTS, FACTS, TPCH

from freshview.bench.data import V1
from freshview.optimizer.choice import Choice, optimise
from freshview.optimizer.dag import Dag
from freshview.optimizer.greedy import Limits
from freshview.optimizer.picture import svg_of
from freshview.optimizer.rules import expand
from freshview.optimizer.show import dag_of, text_of
from freshview.optimizer.statistics import Facts

_SVG = "{http://www.w3.org/2000/svg}"


def _v1() -> Choice:
    return optimise(built(from_sql({"v1": V1}, TPCH), TPCH), FACTS, WITHOUT_INDEX)


def test_the_text_tells_what_is_chosen_for_how_much_and_what_lost() -> None:
    choice = _v1()
    lines = text_of(choice).splitlines()
    aux = choice.auxiliaries[0]
    assert lines[0].startswith(
        f"views: 1, queries: 0; {choice.before:.3f} s per refresh as it is, {choice.after:.3f} s"
    )
    assert "default prices, not calibrated" in lines[0]
    assert lines[1] == "store permanently"
    assert lines[2].startswith(f"  {aux.name}: γ[orders.o_custkey] (lineitem ⋈ orders")
    assert "; 100,000 rows, 6 MB; costs 0.000 s, saves 0.2" in lines[2]
    (view,) = [line for line in lines if line.startswith("  v1: ")]
    plan = choice.views[0]
    assert f"incremental, {plan.seconds:.3f} s (full {plan.other_seconds:.3f} s: it is expected to take longer)" in view
    assert aux.name in view
    near = lines[lines.index("near alternatives") + 1 :]
    assert any("store γ[lineitem.l_orderkey] (lineitem)" in line for line in near)
    assert any("what is chosen saves most of the same" in line for line in near)


def test_the_dag_lists_every_node_with_its_operations_and_costs() -> None:
    choice = _v1()
    lines = dag_of(choice).splitlines()
    costs = choice.selection.costs
    assert [line.split()[0] for line in lines if line.startswith("e")] == [
        f"e{n.number}" for n in reversed(costs.nodes)
    ]
    operations = sum(len(n.operations) for n in costs.nodes if n.relations and not hasattr(n, "fields"))
    assert len(lines) == len(costs.nodes) + operations
    stored = next(line for line in lines if line.startswith(f"e{choice.auxiliaries[0].node} "))
    assert "to be stored" in stored
    assert any("stored as v1" in line for line in lines)
    assert any("eager aggregation(" in line for line in lines)
    assert any("δcustomer 200 rows" in line for line in lines)


def _texts(svg: str) -> list[str]:
    return [t.text or "" for t in ET.fromstring(svg).iter(f"{_SVG}text")]


def test_the_picture_shows_the_plans_that_were_chosen() -> None:
    choice = _v1()
    texts = _texts(svg_of(choice))
    assert {"v1", "customer", "nation", "γ o_custkey"} <= set(texts)
    assert "lineitem" in texts  # the stored result is computed from it
    assert any(t.startswith("incremental") for t in texts)


def test_the_picture_of_ten_views_has_no_boxes_on_top_of_each_other() -> None:
    columns = {f"R{i}": {"p": "bigint", "s": "bigint", "n": "bigint"} for i in range(1, 23)}
    texts = {}
    for i in range(1, 11):
        others = [f"R{2 * i + k}" for k in range(3)]
        joins = " ".join(f"JOIN {r} ON R1.s = {r}.p" for r in others)
        texts[f"v{i}"] = f"SELECT R1.p, {', '.join(f'{r}.n AS {r}_n' for r in others)} FROM R1 {joins}"
    facts = {r: Facts(1e6, {"p": 1e6, "s": 1e5}, inserted=1e4) for r in columns}
    svg = svg_of(optimise(built(from_sql(texts, columns), columns), facts))
    root = ET.fromstring(svg)
    width = float(root.attrib["viewBox"].split()[2])
    boxes = [r.attrib for r in root.iter(f"{_SVG}rect") if r.attrib["rx"] == "6"]
    assert len(boxes) >= 32
    places = [(float(b["x"]), float(b["y"]), float(b["width"]), float(b["height"])) for b in boxes]
    assert all(x >= 0 and x + w <= width for x, _, w, _ in places)
    for i, (x, y, w, h) in enumerate(places):
        for other in places[:i]:
            assert abs(x - other[0]) >= w or abs(y - other[1]) >= h
    assert {f"v{i}" for i in range(1, 11)} <= set(_texts(svg))


def test_the_text_tells_what_is_expected_without_what_is_not_executed() -> None:
    few = {n: Facts(f.rows, f.distinct, inserted=10) for n, f in CHAIN_FACTS.items()}
    dag = built(from_sql(CHAIN, CHAIN_COLUMNS), CHAIN_COLUMNS)
    choice = optimise(dag, few, limits=Limits(transient=False, permanent=False))
    assert choice.executed > choice.after
    assert f", {choice.executed:.3f} s with what is executed of it; default prices" in text_of(choice).splitlines()[0]


def test_queries_and_shared_results_are_shown() -> None:
    dag = Dag(CHAIN_COLUMNS)
    views = from_sql(CHAIN, CHAIN_COLUMNS)
    for view in views[:-1]:
        dag.add_view(view)
    dag.add_query(views[-1], 5.0)
    expand(dag)
    choice = optimise(dag, CHAIN_FACTS)
    text, texts = text_of(choice), _texts(svg_of(choice))
    assert f"{views[-1].name}: {choice.queries[0].seconds:.3f} s, 5 times per refresh" in text
    assert "query, 5 per refresh" in texts
    for shared in choice.shared:
        assert f"shared {shared.number}: {shared.what}" in text
    assert choice.shared or choice.auxiliaries
