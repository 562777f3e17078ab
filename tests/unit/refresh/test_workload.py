"""The views of a warehouse as one search space: names, views over views, settings, and what is left out."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from tests.effort import examples
from tests.unit.algebra.oracle import Bag, evaluate
from tests.unit.definition.analysed import analysed, with_sources
from tests.unit.sql.view_grammar import SCHEMAS, Change, State, states

from freshview.algebra.traversal import relations
from freshview.catalog.records import Relation
from freshview.definition.analysis import Definition, analyse
from freshview.delta.derive import at_version
from freshview.optimizer.choice import optimise
from freshview.optimizer.statistics import Facts
from freshview.refresh.workload import CountedQuery, Workload, over_stored, workload
from freshview.relation.schema import Column, Schema
from freshview.relation.types import DataType
from freshview.sql.lowering import lower

laws = settings(deadline=None, max_examples=examples(30), suppress_health_check=list(HealthCheck))

TABLES = dict(with_sources("SELECT a FROM t").sources)
HAVING = "SELECT a, SUM(b) AS s FROM t GROUP BY a HAVING SUM(b) > 1"


def _view(id_: int, name: str, definition: Definition, **session: str) -> Relation:
    assert definition.form is not None
    schema = Schema(
        tuple(Column(c, DataType("boolean" if c == "__shown" else "bigint")) for c in definition.form.stored)
    )
    facts = {"settings": json.dumps(session), "columns": json.dumps(list(definition.names))}
    return Relation(id_, name, "view", 1, 1, schema, 1, facts=facts)


def _definition(text: str, sources: dict[str, Relation] = TABLES, refresh: str = "auto") -> Definition:
    columns = {**SCHEMAS, **{n: ("a", "s") for n in sources if n not in SCHEMAS}}
    names = tuple(n for _, n in lower(text, columns).outputs)
    return analyse(text, sources, columns, names, refresh, lambda node: dict.fromkeys(node.columns, "bigint"))


def _space(**texts: str) -> Workload:
    known = [(_view(100 + i, name, d), d) for i, (name, d) in enumerate((n, _definition(t)) for n, t in texts.items())]
    return workload(known, TABLES.values())


def test_two_spellings_of_a_table_are_one_leaf_under_its_present_name() -> None:
    one, two = _definition("SELECT a, b FROM t WHERE a = 1"), _definition("SELECT b FROM t WHERE a = 1")
    renamed = replace(TABLES["t"], name="Sales")
    now = [renamed, *(r for r in TABLES.values() if r.name != "t")]
    space = workload([(_view(100, "one", one), one), (_view(101, "two", two), two)], now)
    assert set(space.relations) == {"Sales"}
    assert {frozenset(relations(v.tree)) for v in optimise(space.dag, {}).views} <= {
        frozenset({"Sales"}),
        frozenset({"one"}),
    }
    assert len({root.node.number for root in space.dag.roots}) == 1  # both are the same selection


def test_a_view_that_sums_keeps_its_state_under_renamed_relations() -> None:
    space = _space(v=HAVING)
    (root,) = space.dag.roots
    assert {c for c, _ in root.items} >= {"a", "s", "__rows", "__shown"}
    assert space.compared() == {"t": {"a"}}


def test_the_columns_of_conditions_and_groupings_are_those_whose_values_are_counted() -> None:
    space = _space(v="SELECT t.c, SUM(u.d) AS s FROM t JOIN u ON t.a = u.a WHERE t.b > 1 GROUP BY t.c")
    assert space.compared() == {"t": {"a", "b", "c"}, "u": {"a"}}
    assert space.reads == {"v": frozenset({"t", "u"})}


@laws
@given(run=states(1))
def test_a_view_over_a_view_reads_its_stored_rows_and_means_those_that_belong_to_it(run: list[State]) -> None:
    low = _definition(HAVING)
    assert low.form is not None
    stored = _view(100, "low", low)
    high = _definition("SELECT t.b, l.s FROM low AS l JOIN t ON l.a = t.a", {**TABLES, "low": stored})
    assert high.form is not None
    state: dict[str, Bag] = dict(run[0])
    tables = Change(state, state, schemas=dict(SCHEMAS))
    rows = evaluate(at_version(low.form.tree, "old"), tables.read)
    shown = low.form.tree.columns.index("__shown")
    visible: Bag = Counter()
    for row, n in rows.items():
        if row[shown]:
            visible[row[:2]] += n
    seen = Change({**state, "low": visible}, {**state, "low": visible}, schemas={**SCHEMAS, "low": ("a", "s")})
    held = Change({**state, "low": rows}, {**state, "low": rows}, schemas={**SCHEMAS, "low": low.form.tree.columns})
    wanted = evaluate(at_version(high.form.tree, "old"), seen.read)
    form = over_stored(high.form, {**TABLES, "low": stored})
    assert evaluate(at_version(form.tree, "old"), held.read) == wanted
    space = workload([(stored, low), (_view(101, "high", high), high)], [*TABLES.values(), stored])
    choice = optimise(space.dag, {"t": Facts(1000.0, inserted=10.0), "low": Facts(100.0, inserted=1.0)})
    (plan,) = [v for v in choice.views if v.name == "high"]
    if not choice.auxiliaries and not choice.shared:
        assert evaluate(at_version(plan.tree, "old"), held.read) == wanted


def test_views_of_other_settings_are_left_out_and_said_to_be() -> None:
    one = _definition("SELECT a FROM t")
    views = [_view(100, "a", one, zone="UTC"), _view(101, "b", one, zone="CET"), _view(102, "c", one, zone="UTC")]
    space = workload([(v, one) for v in views], TABLES.values())
    assert [v.name for v in space.views] == ["a", "c"]
    assert space.settings == {"zone": "UTC"}
    assert [(name, "other settings" in why) for name, why in space.left_out] == [("b", True)]


def test_queries_of_the_workload_share_the_results_of_views_and_unread_ones_are_left_out() -> None:
    one = _definition("SELECT a, SUM(b) AS s FROM t GROUP BY a")
    unread = replace(one, form=None, lowered=None, reason="x has no delta rule")
    asked = [CountedQuery("q", one, 5.0), CountedQuery("odd", unread, 1.0)]
    space = workload([(_view(100, "v", one, zone="UTC"), one)], TABLES.values(), lambda s: asked if s else [])
    assert [(r.name, r.rate) for r in space.dag.roots] == [("v", 0.0), ("q", 5.0)]
    assert len({r.node.number for r in space.dag.roots}) == 1
    assert space.left_out == (("odd", "the query is not understood here: x has no delta rule"),)
    assert set(space.reads) == {"v"}
    (plan,) = optimise(space.dag, {"t": Facts(1e6, {"a": 10.0}, inserted=1.0)}).queries
    assert plan.reads == ("v",)  # it is answered from the view that stores it


def test_views_without_a_tree_are_left_out_with_the_reason() -> None:
    unread = replace(analysed("SELECT a FROM t"), form=None, lowered=None, reason="x has no delta rule")
    view = Relation(100, "v", "view", 1, 1, Schema((Column("a", DataType("bigint")),)), 1)
    space = workload([(view, unread)], TABLES.values())
    assert space.views == ()
    assert space.left_out == (("v", "it is recomputed from its text: x has no delta rule"),)
    assert optimise(space.dag, {}).views == ()


def test_the_only_way_of_a_view_is_said_with_what_pins_it() -> None:
    texts = {"full": "SELECT a, RANK() OVER (ORDER BY b) AS r FROM t"}
    (plan,) = optimise(_space(**texts).dag, {"t": Facts(1000.0, inserted=1.0)}).views
    assert plan.way == "full"
    assert "a window without PARTITION BY has no key" in plan.why
    pinned = _definition("SELECT a FROM t", refresh="incremental")
    (plan,) = optimise(
        workload([(_view(1, "v", pinned), pinned)], TABLES.values()).dag, {"t": Facts(10.0, inserted=9.0)}
    ).views
    assert (plan.way, plan.why) == ("incremental", "'refresh' = 'incremental'")
