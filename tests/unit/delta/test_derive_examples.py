"""Views whose right change is written down: DEFER §1's examples, and cases that a rule could get wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.algebra.oracle import Bag, TooManyRows, evaluate, plus, signed
from tests.unit.delta.cases import all_of
from tests.unit.sql.view_grammar import Change

from freshview.algebra.nodes import Scan
from freshview.algebra.traversal import scans
from freshview.delta.derive import at_version, derive
from freshview.delta.forms import choose_form, delta_plan, rows_form
from freshview.sql.lowering import lower

Data = Mapping[str, Sequence[tuple[Any, ...]]]


def _state(data: Data) -> dict[str, Bag]:
    return {t: Counter(rows) for t, rows in data.items()}


def _delta(text: str, schemas: Mapping[str, tuple[str, ...]], old: Data, new: Data) -> Bag:
    """The change of a view, the same in each of its stored forms."""
    lowered = lower(text, schemas)
    change = Change(_state(old), _state(new), schemas=schemas)
    plan = derive(lowered.node, change.changed)
    assert plan is not None
    found = signed(plan, change.read)
    for exact in (True, False):
        names = tuple(n for _, n in lowered.outputs)
        form = choose_form(lowered, names, all_of("int" if exact else "double"))
        before, after = (evaluate(at_version(form.tree, v), change.read) for v in ("old", "new"))
        stored = delta_plan(form, lowered, change.changed, dict.fromkeys(form.stored, "bigint"))
        assert stored is not None
        assert plus(before, signed(stored, replace(change, stored=(form.stored, before)).read)) == after
    return found


# -- DEFER §1 --------------------------------------------------------------------------------------


def test_defer_example_1_1() -> None:
    """Sales to highly valued customers: sales come with duplicates, a customer's score changes."""
    schemas = {
        "sales": ("custId", "itemNo", "quantity", "salesPrice"),
        "customer": ("custId", "name", "address", "score"),
    }
    text = """
        SELECT c.custId, c.name, c.score, s.itemNo, s.quantity FROM customer c, sales s
        WHERE c.custId = s.custId AND s.quantity != 0 AND c.score = 'High'
    """
    ann, bob = (1, "Ann", "x", "High"), (2, "Bob", "y", "Low")
    old: Data = {"customer": [ann, bob], "sales": [(1, 10, 2, 5), (1, 10, 2, 5), (2, 11, 1, 5)]}
    new: Data = {
        "customer": [ann, (2, "Bob", "y", "High")],
        "sales": [(1, 10, 2, 5), (1, 10, 2, 5), (1, 10, 2, 5), (1, 12, 0, 5), (2, 11, 1, 5), (2, 13, 4, 5)],
    }
    assert _delta(text, schemas, old, new) == {
        (1, "Ann", "High", 10, 2): 1,
        (2, "Bob", "High", 11, 1): 1,
        (2, "Bob", "High", 13, 4): 1,
    }


def test_defer_example_1_2_multiplicities() -> None:
    """Inserts into both sides of a join: two more rows, not four, although both tables are already changed."""
    schemas = {"R": ("A", "B"), "S": ("B", "C")}
    old = {"R": [("a1", "b1")], "S": [("b1", "c1"), ("b1", "c2"), ("b2", "c1")]}
    new = {"R": [*old["R"], ("a1", "b2")], "S": [*old["S"], ("b2", "c2")]}
    assert _delta("SELECT R.A FROM R, S WHERE R.B = S.B", schemas, old, new) == {("a1",): 2}


@pytest.mark.parametrize("operator", ["EXCEPT", "EXCEPT ALL"])
def test_defer_example_1_3_a_row_that_moves(operator: str) -> None:
    """U = R − S; b leaves R and enters S at once: it leaves the view."""
    schemas = {"R": ("x",), "S": ("x",)}
    old = {"R": [("a",), ("b",), ("c",)], "S": [("c",), ("d",)]}
    new = {"R": [("a",), ("c",)], "S": [("b",), ("c",), ("d",)]}
    assert _delta(f"SELECT x FROM R {operator} SELECT x FROM S", schemas, old, new) == {("b",): -1}


@pytest.mark.parametrize(
    "kind", ["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"], ids=lambda k: k.lower().replace(" ", "-")
)
def test_the_state_bug_does_not_occur_with_a_table_three_times(kind: str) -> None:
    """One table on all three places of a join chain, changed by a delete and an insert."""
    schemas = {"e": ("f", "g")}
    text = f"SELECT x.f, y.f AS m, z.g FROM e x {kind} e y ON x.g = y.f {kind} e z ON y.g = z.f"
    old = {"e": [(1, 2), (2, 3), (2, 3), (3, 1)]}
    new = {"e": [(1, 2), (2, 3), (3, 1), (3, 2)]}
    change = Change(_state(old), _state(new), schemas=schemas)
    node = lower(text, schemas).node
    before, after = (evaluate(at_version(node, v), change.read) for v in ("old", "new"))
    assert plus(before, _delta(text, schemas, old, new)) == after
    assert before != after


@pytest.mark.parametrize(
    ("text", "right", "wrong"),
    [
        ("SELECT R.A FROM R, S WHERE R.B = S.B", {("a1",): 2}, {("a1",): 3}),
        ("SELECT x FROM P EXCEPT ALL SELECT x FROM Q", {("b",): -1}, {}),
        ("SELECT x.A FROM R x, R y, R z WHERE x.A = y.A AND y.A = z.A", {("a1",): 7}, {("a1",): 12}),
    ],
    ids=["example 1.2", "example 1.3", "three times"],
)
def test_the_state_bug_takes_a_lie_about_versions(text: str, right: Bag, wrong: Bag) -> None:
    """Delta rules name the version of each table that they read, so the bug of DEFER §1.2 cannot be written: one would
    have to hand out the changed tables as the old ones. Then it is there, with other wrong numbers than the paper's,
    whose rule reads both tables in one state."""
    schemas = {"R": ("A", "B"), "S": ("B", "C"), "P": ("x",), "Q": ("x",)}
    old: Data
    old = {"R": [("a1", "b1")], "S": [("b1", "c1"), ("b1", "c2"), ("b2", "c1")], "P": [("a",), ("b",)], "Q": [("c",)]}
    new: Data
    new = {"R": [*old["R"], ("a1", "b2")], "S": [*old["S"], ("b2", "c2")], "P": [("a",)], "Q": [("b",), ("c",)]}
    change = Change(_state(old), _state(new), schemas=schemas)
    plan = derive(lower(text, schemas).node, change.changed)
    assert plan is not None
    assert {s.version for s in scans(plan)} <= {"old", "new", "delta"}

    def lying(scan: Scan) -> Bag:
        return change.read(replace(scan, version="new") if scan.version == "old" else scan)

    assert signed(plan, change.read) == right
    assert signed(plan, lying) == wrong


# -- laws of aggregates and NULLs ------------------------------------------------------------------

T = {"t": ("a", "b")}


def test_a_sum_of_only_nulls_is_null() -> None:
    """SUM over {5, NULL} after deleting 5 is NULL, not 0 (law 11.8)."""
    text = "SELECT a, SUM(b) AS s FROM t GROUP BY a"
    assert _delta(text, T, {"t": [(1, 5), (1, None)]}, {"t": [(1, None)]}) == {(1, 5): -1, (1, None): 1}


def test_a_group_dies_with_its_last_row() -> None:
    text = "SELECT a, COUNT(*) AS n FROM t GROUP BY a"
    assert _delta(text, T, {"t": [(None, 5), (1, 1)]}, {"t": [(1, 1)]}) == {(None, 1): -1}


def test_a_global_aggregate_never_dies() -> None:
    """An aggregate without keys has one row, over no rows too (law 11.9)."""
    text = "SELECT COUNT(*) AS n, SUM(b) AS s FROM t"
    assert _delta(text, T, {"t": [(1, 5)]}, {"t": []}) == {(1, 5): -1, (0, None): 1}
    assert _delta(text, T, {"t": []}, {"t": [(1, 5)]}) == {(1, 5): 1, (0, None): -1}


def test_rollup_of_no_rows_is_no_row() -> None:
    text = "SELECT a, COUNT(*) AS n FROM t GROUP BY ROLLUP (a)"
    assert _delta(text, T, {"t": [(1, 5)]}, {"t": []}) == {(1, 1): -1, (None, 1): -1}


def test_equal_grouping_sets_give_equal_rows() -> None:
    text = "SELECT a, COUNT(*) AS n FROM t GROUP BY GROUPING SETS ((a), (a))"
    assert _delta(text, T, {"t": [(1, 5)]}, {"t": []}) == {(1, 1): -2}


def test_a_null_key_and_a_key_outside_the_set_are_two_groups() -> None:
    text = "SELECT a, GROUPING(a) AS g, SUM(b) AS s FROM t GROUP BY CUBE (a)"
    assert _delta(text, T, {"t": []}, {"t": [(None, 5)]}) == {(None, 0, 5): 1, (None, 1, 5): 1}


def test_not_in_follows_a_null_that_comes_and_goes() -> None:
    """A NULL in the subquery makes NOT IN unknown for every row; an empty subquery makes it true (law 11.7)."""
    schemas = {"t": ("a",), "u": ("d",)}
    text = "SELECT a FROM t WHERE a NOT IN (SELECT d FROM u)"
    rows = [(1,), (2,), (None,)]
    assert _delta(text, schemas, {"t": rows, "u": [(2,)]}, {"t": rows, "u": [(2,), (None,)]}) == {(1,): -1}
    assert _delta(text, schemas, {"t": rows, "u": [(None,)]}, {"t": rows, "u": []}) == {(1,): 1, (2,): 1, (None,): 1}


def test_anti_join_keeps_null_keys_and_affected_keys_find_them() -> None:
    """The join's own = never matches NULL; the affected keys of a window do (law 11.6)."""
    schemas = {"t": ("a", "b"), "u": ("a",)}
    anti = "SELECT t.a, t.b FROM t LEFT ANTI JOIN u ON t.a = u.a"
    old = {"t": [(None, 1)], "u": []}
    assert _delta(anti, schemas, old, {"t": [(None, 1), (None, 2)], "u": [(None,)]}) == {(None, 2): 1}
    window = "SELECT a, COUNT(*) OVER (PARTITION BY a) AS n FROM t"
    assert _delta(window, schemas, old, {"t": [(None, 1), (None, 2)], "u": []}) == {(None, 1): -1, (None, 2): 2}


def test_a_scalar_subquery_of_two_rows_is_an_error() -> None:
    """Empty gives NULL, one row its value, more than one Spark's error (law 11.10)."""
    schemas = {"t": ("a",), "u": ("d",)}
    text = "SELECT a, (SELECT d FROM u) AS x FROM t"
    assert _delta(text, schemas, {"t": [(1,)], "u": []}, {"t": [(1,)], "u": [(7,)]}) == {(1, None): -1, (1, 7): 1}
    with pytest.raises(TooManyRows):
        _delta(text, schemas, {"t": [(1,)], "u": []}, {"t": [(1,)], "u": [(7,), (7,)]})


def test_hidden_columns_give_way_to_visible_ones() -> None:
    """A view may use the names that hidden columns have; the stored names stay distinct."""
    lowered = lower("SELECT a, COUNT(*) AS n, SUM(b) AS s FROM t GROUP BY a", T)
    names = ("__key0", "__ROWS", "__sum1")
    change = Change(_state({"t": [(1, 5), (2, None)]}), _state({"t": [(1, 6), (2, None), (2, 3)]}), schemas=T)
    for form in (rows_form(lowered, names), *(choose_form(lowered, names, all_of(t)) for t in ("int", "double"))):
        assert len({c.casefold() for c in form.stored}) == len(form.stored)
        assert form.stored[:3] == names
        before, after = (evaluate(at_version(form.tree, v), change.read) for v in ("old", "new"))
        plan = delta_plan(form, lowered, change.changed, dict.fromkeys(form.stored, "bigint"))
        assert plan is not None
        assert plus(before, signed(plan, replace(change, stored=(form.stored, before)).read)) == after


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("SELECT a, SUM(b) AS s, COUNT(*) AS n FROM t GROUP BY a", "sums"),
        ("SELECT SUM(b) + 1 AS s FROM t GROUP BY a", "sums"),
        ("SELECT a, MAX(b) AS m FROM t GROUP BY a", "sums"),
        ("SELECT a, COUNT(DISTINCT b) AS m FROM t GROUP BY a", "groups"),
        ("SELECT a, SUM(b) AS m FROM t GROUP BY a HAVING COUNT(*) > 1", "sums"),
        ("SELECT DISTINCT a FROM t", "sums"),
        ("SELECT a FROM t UNION SELECT b FROM t", "sums"),
        ("SELECT a, b FROM t", "rows"),
        ("SELECT a, SUM(b) OVER (PARTITION BY a) AS s FROM t", "rows"),
    ],
)
def test_the_best_form_is_chosen(text: str, rule: str) -> None:
    lowered = lower(text, T)
    assert choose_form(lowered, tuple(n for _, n in lowered.outputs), all_of("int")).rule == rule
