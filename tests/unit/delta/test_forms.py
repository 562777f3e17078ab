"""Which aggregates are kept as state, by Spark's types; and the shape of their deltas."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pytest
from tests.unit.algebra.oracle import Bag, evaluate
from tests.unit.delta.cases import all_of
from tests.unit.sql.view_grammar import SCHEMAS, Change

from freshview.algebra.facts import only_grows
from freshview.algebra.nodes import Node
from freshview.algebra.traversal import bottom_up, scans
from freshview.delta.aggregates import TypesOf
from freshview.delta.derive import at_version
from freshview.delta.forms import Form, choose_form, delta_plan
from freshview.sql.lowering import lower

T = {"t": ("a", "b", "c")}


def _form(text: str, types_of: TypesOf) -> Form:
    lowered = lower(text, T)
    return choose_form(lowered, tuple(n for _, n in lowered.outputs), types_of)


def _types(**by_ending: str) -> TypesOf:
    """Types by how a column's name begins or ends; the others are bigint."""

    def types(node: Node) -> Mapping[str, str]:
        found = dict.fromkeys(node.columns, "bigint")
        for c in node.columns:
            for key, type_ in by_ending.items():
                if (c.startswith(f"{key}_") and "__" not in c) or c.endswith(f"__{key}"):
                    found[c] = type_
        return found

    return types


_SHORT = {"argument": "decimal(15,2)"}
_LONG_SUM = {"total": "decimal(38,2)", "twice": "decimal(38,2)"}


@pytest.mark.parametrize(
    ("types", "rule"),
    [
        ({"total": "bigint"}, "sums"),
        ({**_SHORT, "total": "decimal(25,2)", "twice": "decimal(26,2)"}, "sums"),
        ({**_SHORT, "total": "decimal(38,4)", "twice": "decimal(38,4)", "mode": "bigint"}, "sums"),
        ({**_SHORT, "total": "decimal(38,4)", "twice": "decimal(38,4)", "mode": "double"}, "groups"),  # overflow: NULL
        ({**_SHORT, "total": "decimal(25,2)", "twice": "decimal(26,2)", "mode": "double"}, "sums"),
        ({"argument": "decimal(34,2)", "total": "decimal(38,2)", "twice": "decimal(38,2)"}, "sums"),
        ({**_LONG_SUM, "argument": "decimal(38,2)", "taken": "decimal(38,2)"}, "sums"),  # by 0 - x
        ({**_LONG_SUM, "argument": "decimal(38,2)", "taken": "decimal(38,1)"}, "groups"),  # neither -x nor 0 - x
        ({"total": "decimal(38,10)", "twice": "decimal(38,9)"}, "groups"),  # a digit would be lost
        ({"total": "double", "twice": "double"}, "groups"),  # law 11.5
        ({"total": "float", "twice": "float"}, "groups"),
        ({"total": "interval day", "twice": "interval day"}, "groups"),
    ],
)
def test_sums_are_kept_where_spark_adds_them_exactly(types: dict[str, str], rule: str) -> None:
    assert _form("SELECT a, SUM(b) AS s FROM t GROUP BY a", _types(**types)).rule == rule


_MONEY = {
    "avg": "decimal(19,6)",
    "argument": "decimal(15,2)",
    "multiple": "decimal(26,2)",
    "exact": "decimal(38,14)",
    "total": "decimal(25,2)",
    "twice": "decimal(26,2)",
}
_LONG = {
    "avg": "decimal(24,4)",
    "argument": "decimal(20,0)",
    "multiple": "decimal(31,0)",
    "exact": "decimal(38,9)",
    "total": "decimal(30,0)",
    "twice": "decimal(31,0)",
    "fraction": "decimal(33,21)",
}


@pytest.mark.parametrize(
    ("types", "rule"),
    [
        ({"avg": "double", "argument": "int"}, "sums"),
        ({"avg": "double", "argument": "tinyint"}, "sums"),
        ({"avg": "double", "argument": "bigint"}, "groups"),  # Spark adds doubles, not exactly
        ({"avg": "double", "argument": "double", "total": "double"}, "groups"),
        ({"avg": "decimal(14,6)", "argument": "decimal(10,2)"}, "sums"),
        ({**_MONEY, "fraction": "decimal(35,23)", "both": "decimal(38,23)"}, "sums"),
        ({**_MONEY, "fraction": "decimal(35,23)", "both": "decimal(38,18)"}, "groups"),
        ({**_MONEY, "fraction": "decimal(35,18)", "both": "decimal(38,23)"}, "groups"),
        ({**_LONG, "both": "decimal(38,17)"}, "sums"),
        ({**_LONG, "both": "decimal(38,21)"}, "groups"),  # 17 digits before the point, where 20 are needed
        ({**_LONG, "both": "decimal(38,17)", "exact": "decimal(38,19)"}, "groups"),
        ({**_LONG, "both": "decimal(38,17)", "multiple": "decimal(31,2)"}, "groups"),
    ],
)
def test_averages_are_kept_where_the_quotient_repeats_sparks(types: dict[str, str], rule: str) -> None:
    assert _form("SELECT a, AVG(b) AS s FROM t GROUP BY a", _types(**types)).rule == rule


@pytest.mark.parametrize(
    ("type_", "rule"),
    [
        ("int", "sums"),
        ("decimal(10,2)", "sums"),
        ("string", "sums"),
        ("timestamp", "sums"),
        ("boolean", "sums"),
        ("struct<y:int,x:string>", "sums"),
        ("double", "groups"),
        ("float", "groups"),
        ("array<int>", "groups"),
        ("struct<y:double,x:string>", "groups"),
        ("string collate UTF8_LCASE", "groups"),
    ],
)
def test_best_values_are_kept_where_equal_values_are_the_same(type_: str, rule: str) -> None:
    assert _form("SELECT a, MAX(b) AS m FROM t GROUP BY a", _types(max=type_)).rule == rule


def test_equal_arguments_share_their_state() -> None:
    form = _form(
        "SELECT a, SUM(b) AS s, COUNT(b) AS n, AVG(b) AS m, COUNT(1) AS k, SUM(b) FILTER (WHERE c = 'x') AS f"
        " FROM t GROUP BY a",
        all_of("int"),
    )
    assert form.state is not None
    assert form.state.names == ("__rows", "__known0", "__sum0", "__known1", "__sum1")


def test_one_aggregate_without_state_makes_the_view_recompute_groups() -> None:
    assert _form("SELECT a, SUM(b) AS s, COUNT(DISTINCT b) AS n FROM t GROUP BY a", all_of("int")).rule == "groups"


@pytest.mark.parametrize(
    ("text", "inserts", "grows"),
    [
        ("SELECT MAX(a) AS m FROM t", {"t"}, True),
        ("SELECT MAX(a) AS m FROM t", set(), False),
        ("SELECT MAX(t.a) AS m FROM t JOIN u ON t.a = u.a WHERE t.b > 1", {"t", "u"}, True),
        ("SELECT MAX(t.a) AS m FROM t JOIN u ON t.a = u.a", {"t"}, False),
        ("SELECT MAX(a) AS m FROM (SELECT a FROM t UNION ALL SELECT d FROM u)", {"t", "u"}, True),
        ("SELECT MAX(e.x) AS m FROM t LATERAL VIEW explode(array(a, b)) e AS x", {"t"}, True),
        ("SELECT MAX(d) AS m FROM t LEFT JOIN u ON t.a = u.a", {"t", "u"}, False),
        ("SELECT MAX(a) AS m FROM (SELECT DISTINCT a FROM t)", {"t"}, False),
        ("SELECT MAX(a) AS m FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.a = t.a)", {"t", "u"}, False),
        ("SELECT MAX(n) AS m FROM (SELECT COUNT(*) AS n FROM t GROUP BY a)", {"t"}, False),
    ],
)
def test_a_change_that_only_grows_reads_no_new_rows(text: str, inserts: set[str], grows: bool) -> None:
    """Law: inserts merge into a stored maximum; what computes groups again is in the plan only if rows may vanish."""
    lowered = lower(text, SCHEMAS)
    form = choose_form(lowered, ("m",), all_of("int"))
    assert form.root is not None
    changed = {s.relation for s in scans(lowered.node)}
    assert only_grows(form.root.input, changed, frozenset(inserts)) == grows
    types = dict.fromkeys(form.stored, "bigint")
    plan = delta_plan(form, lowered, changed, types, inserts_only=frozenset(inserts))
    assert plan is not None
    doubts = [c for n in bottom_up(plan) for c in n.columns if c.endswith("__doubt")]
    assert bool(doubts) != grows


def test_unchanged_sides_do_not_hinder_growth() -> None:
    lowered = lower("SELECT MAX(d) AS m FROM t LEFT JOIN u ON t.a = u.a", SCHEMAS)
    form = choose_form(lowered, ("m",), all_of("int"))
    assert form.root is not None
    assert only_grows(form.root.input, {"t"}, frozenset({"t"}))
    assert not only_grows(form.root.input, {"u"}, frozenset({"u"}))


@pytest.mark.parametrize("inserted", [4, 6])
def test_an_aggregate_without_keys_is_computed_again_only_if_a_row_of_it_changed(inserted: int) -> None:
    """COUNT(DISTINCT …) does not add up: its one group is all rows, which the row 4 is none of."""
    lowered = lower("SELECT COUNT(DISTINCT a) AS n FROM t WHERE b > 5", T)
    form = choose_form(lowered, ("n",), all_of("int"))
    assert form.rule == "groups"
    old: dict[str, Bag] = {"t": Counter([(1, 7, None)])}
    new = {"t": old["t"] + Counter([(2, inserted, None)])}
    plan = delta_plan(form, lowered, {"t"}, {"n": "bigint"})
    assert plan is not None
    found = evaluate(plan, Change(old, new, schemas=T, stored=(("n",), Counter([(1,)]))).read)
    assert found == (Counter() if inserted == 4 else Counter({(2, 1): 1, (1, -1): 1}))


def test_what_stands_above_having_is_computed_for_shown_groups_only() -> None:
    """12 / SUM(b) HAVING SUM(b) <> 0 must not divide by the sum of a hidden group."""
    lowered = lower("SELECT a, 12 / SUM(b) AS q FROM t GROUP BY a HAVING SUM(b) <> 0", T)
    form = choose_form(lowered, ("a", "q"), all_of("int"))
    assert form.member == "__shown"
    state = {"t": Counter([(1, 5, None), (1, -5, None), (2, 4, None)])}
    found = evaluate(at_version(form.tree, "old"), Change(state, state, schemas=T).read)
    places = [form.stored.index(c) for c in ("a", "q", "__shown")]
    assert {tuple(r[p] for p in places) for r in found} == {(1, None, False), (2, 3, True)}
