"""Scans that are read in part: whatever a restriction does not admit makes no difference (delta/semijoin.py)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st
from sqlglot import parse_one
from tests.effort import examples
from tests.unit.algebra.oracle import Bag, evaluate, signed
from tests.unit.delta.cases import VIEWS, decided, forms, laws
from tests.unit.sql.view_grammar import Change, State, kind_of, lowered_view, noises, states, views

from freshview.algebra.nodes import (
    WEIGHT,
    Filter,
    Join,
    Node,
    Project,
    RowCriterion,
    Scan,
    SemiJoin,
    Table,
    column,
)
from freshview.algebra.traversal import scans
from freshview.delta.derive import at_version, derive
from freshview.delta.forms import Form, delta_plan
from freshview.delta.semijoin import reduced

# Places where a restriction must end.
ENDS = {
    "window by another column": (
        "SELECT t.a, w.s FROM t JOIN (SELECT a, d, SUM(d) OVER (PARTITION BY a) AS s FROM u) w ON t.b = w.d"
    ),
    "outer join, its right side": (
        "SELECT t.a, w.b FROM t JOIN (SELECT v.b, u.d FROM v LEFT JOIN u ON v.b = u.a) w ON t.a <=> w.d"
    ),
    "anti join over a change": (
        "SELECT w.a FROM u w LEFT ANTI JOIN (SELECT u.d FROM t JOIN u ON t.a = u.a) x ON w.d = x.d"
    ),
    "first rows": "SELECT t.b FROM t JOIN (SELECT a, d FROM u ORDER BY d, a LIMIT 2) w ON t.a = w.a",
    "all rows or none": "SELECT t.b FROM t JOIN (SELECT COUNT(*) AS n, MAX(d) AS m FROM u) w ON t.a = w.n",
}

# Joins in which rows of a change are tested for what they meet, or for what is asked above.
TESTED = {
    "a part that meets itself": (
        "WITH w AS (SELECT t.a, t.b, t.c FROM t JOIN u ON t.a = u.a) "
        "SELECT v.d FROM w x JOIN w y ON x.b = y.b JOIN v ON v.b = y.a WHERE x.c = 'x'"
    ),
    "a filter above joins": "SELECT v.d FROM t JOIN u ON t.a = u.a JOIN v ON u.d = v.d WHERE u.d = 1 AND t.b < t.a",
    "a filter above an anti join": "SELECT a FROM t WHERE b = 1 AND NOT EXISTS (SELECT 1 FROM u WHERE u.a = t.a)",
    "a filter above an outer join": "SELECT v.d FROM t LEFT JOIN u ON t.a = u.a JOIN v ON v.b <=> u.d WHERE t.c = 'x'",
    "a filter above groups": (
        "SELECT v.d FROM (SELECT a, b, COUNT(*) AS n FROM t GROUP BY a, b) g JOIN v ON v.b = g.a WHERE g.b = 1"
    ),
    "a chain": "SELECT v.y FROM t, u, v WHERE t.a = u.a AND t.b = v.b AND u.d = 1 AND v.d IN (0, 2)",
    "a condition with OR on two tables": (
        "SELECT v.y FROM t, u, v WHERE t.a = u.a AND t.b = v.b AND ((u.d = 1 AND v.d = 0) OR (u.d = 0 AND v.d = 1))"
    ),
    "rows that meet none of an outer join's other side": (
        "SELECT w.d, v.y FROM (SELECT t.b, x.d FROM t LEFT JOIN (SELECT a, d FROM u WHERE d = 1) x ON t.a = x.a) w "
        "JOIN v ON w.b = v.b"
    ),
    "rows that meet none of an anti join's other side": (
        "SELECT w.a, v.y FROM (SELECT a, b FROM t WHERE NOT EXISTS (SELECT 1 FROM u WHERE u.a = t.a AND u.d = 1)) w "
        "JOIN v ON w.b = v.b"
    ),
    "a condition of an outer join on its left side": (
        "SELECT w.d, v.y FROM (SELECT t.b, u.d FROM t LEFT JOIN u ON t.a = u.a AND t.b = 1) w JOIN v ON w.b = v.b"
    ),
    "both sides of a union": (
        "SELECT v.d FROM (SELECT a, b FROM t WHERE c = 'x' UNION ALL SELECT a, d FROM u WHERE d = 1) w "
        "JOIN v ON v.b = w.a WHERE w.b > 0"
    ),
}


def _in_part(change: Change) -> Any:
    """Reads a scan as sparingly as its restrictions allow, all of them together, with all tests of their sources."""

    def read(scan: Scan) -> Bag:
        rows = change.read(scan)
        for by in scan.semijoins:
            rows = admitted(rows, scan, by)
        return rows

    def admitted(rows: Bag, scan: Scan, by: SemiJoin) -> Bag:
        if isinstance(scan.source, Table) and kind_of(by.column) == "double":
            return rows  # equality of values is not equality of bits: nobody reads these in part
        if any(isinstance(s.source, Table) and kind_of(c) == "double" for s, c in by.sources):
            return rows
        values = {v for s, c, tests in by.tested for v in _place(passing(read(s), s, tests), s, c)}
        values = values | {None} if by.nulls else values - {None}
        place = [c for c, _ in scan.fields].index(by.column)
        return Counter({r: n for r, n in rows.items() if r[place] in values})

    def passing(rows: Bag, scan: Scan, tests: Sequence[RowCriterion]) -> Bag:
        for one in tests:
            if isinstance(one.test, SemiJoin):
                rows = admitted(rows, scan, one.test)
            else:
                as_stored = replace(scan, fields=tuple((c, c) for c, _ in scan.fields))
                rows = evaluate(Filter(as_stored, one.test), lambda _, rows=rows: rows)  # type: ignore[misc]
        return rows

    return read


def _place(rows: Bag, scan: Scan, column: str) -> frozenset[Any]:
    place = [c for c, _ in scan.fields].index(column)
    return frozenset(r[place] for r in rows)


@lru_cache(2000)
def _plans(text: str, changed: frozenset[str], small: bool) -> list[tuple[Node, Node, Form | None, Node | None]]:
    """Every plan of a change and what it is reduced to, with the stored form and its old rows. Whatever the rows of a
    change are, these stay the same: they are made once."""
    lowered = decided(lowered_view(text))
    made: list[tuple[Node | None, Form | None]] = [(derive(lowered.node, set(changed), small=small), None)]
    for form in forms(lowered).values():
        types = dict.fromkeys(form.stored, "bigint")
        made.append((delta_plan(form, lowered, set(changed), types, small=small), form))
    return [(p, reduced(p), f, at_version(f.tree, "old") if f else None) for p, f in made if p is not None]


def _check_view(text: str, change: Change, small: bool) -> None:
    for plan, in_part, form, tree in _plans(text, frozenset(change.changed), small):
        stored = change
        if form is not None and tree is not None:
            stored = replace(change, stored=(form.stored, evaluate(tree, change.read)))
        assert signed(in_part, _in_part(stored)) == signed(plan, stored.read)


@settings(laws, max_examples=examples(15, commit=9))
@given(run=states(2), noise=noises(), small=st.booleans())
def test_rows_left_out_make_no_difference_for_each_rule(run: list[State], noise: dict[str, Any], small: bool) -> None:
    """Each change is tried on all of them. The note printed last names the one that failed."""
    change = Change(run[0], run[1], noise)
    for name, text in VIEWS.items():
        note(name)
        _check_view(text, change, small)


@pytest.mark.parametrize("name", ENDS)
@settings(laws, max_examples=examples(60, commit=30))
@given(run=states(2), small=st.booleans())
def test_a_restriction_ends_where_it_must(name: str, run: list[State], small: bool) -> None:
    _check_view(ENDS[name], Change(run[0], run[1]), small)


@pytest.mark.parametrize("name", TESTED)
@settings(laws, max_examples=examples(60))
@given(run=states(2), small=st.booleans())
def test_rows_that_fail_a_test_make_no_difference(name: str, run: list[State], small: bool) -> None:
    _check_view(TESTED[name], Change(run[0], run[1]), small)


@laws
@given(text=views(), run=states(2), noise=noises(), small=st.booleans())
def test_rows_left_out_make_no_difference(text: str, run: list[State], noise: dict[str, Any], small: bool) -> None:
    _check_view(text, Change(run[0], run[1], noise), small)


def _restricted(text: str, changed: set[str]) -> dict[str, list[tuple[str, str]]]:
    """Per table that is not a delta: (column, table its values come from) of every restriction."""
    plan = derive(lowered_view(text).node, changed, small=False)
    assert plan is not None
    found: dict[str, list[tuple[str, str]]] = {}
    for scan in scans(reduced(plan)):
        if scan.version != "delta":
            offers = [(by.column, s.relation) for by in scan.semijoins for s, _ in by.sources]
            found.setdefault(scan.relation, []).extend(offers)
    return found


def test_a_chain_of_joins_is_restricted_link_by_link() -> None:
    found = _restricted("SELECT v.b FROM t JOIN u ON t.a = u.a JOIN v ON u.d = v.d", {"t"})
    assert found == {"u": [("a", "t")], "v": [("d", "u")]}


def test_conditions_of_a_where_clause_restrict_too() -> None:
    found = _restricted("SELECT v.b FROM t, u, v WHERE t.a = u.a AND u.d = v.d", {"v"})
    assert found == {"u": [("d", "v")], "t": [("a", "u")]}


def test_groups_are_restricted_by_their_keys_only() -> None:
    by_key = "SELECT t.b FROM t JOIN (SELECT a, MAX(d) AS m FROM u GROUP BY a) g ON t.a = g.a"
    assert _restricted(by_key, {"t"})["u"] == [("a", "t")]
    by_result = "SELECT t.b FROM t JOIN (SELECT a, MAX(d) AS m FROM u GROUP BY a) g ON t.a = g.m"
    assert _restricted(by_result, {"t"})["u"] == []


def test_rows_that_meet_a_change_of_an_anti_joins_right_side_are_enough() -> None:
    """A, the rows of the left that meet Δ, and of the right what meets A."""
    found = _restricted("SELECT a FROM t WHERE NOT EXISTS (SELECT 1 FROM u WHERE u.a = t.a)", {"u"})
    assert set(found["t"]) == {("a", "u")}
    assert set(found["u"]) == {("a", "t")}


def test_expressions_do_not_restrict() -> None:
    assert _restricted("SELECT v.b FROM t JOIN v ON t.a + 1 = v.d", {"t"}) == {"v": []}


def _tests(text: str, changed: set[str], table: str) -> list[str]:
    """The tests of the rows of a change whose values restrict a table, as text."""
    plan = derive(lowered_view(text).node, changed, small=False)
    assert plan is not None

    def shown(test: RowCriterion) -> str:
        if not isinstance(test.test, SemiJoin):
            return test.test.sql(dialect="spark").replace("`", "")
        sources = " or ".join(f"{s.relation}.{c} {[shown(t) for t in own]}" for s, c, own in test.test.tested)
        return f"{test.test.column} in {sources}"

    read = [s for s in scans(reduced(plan)) if s.version != "delta" and s.relation == table]
    return [shown(t) for scan in read for by in scan.semijoins for _, _, own in by.tested for t in own]


def test_values_of_rows_that_a_filter_drops_are_not_handed_on() -> None:
    assert _tests("SELECT u.d FROM t, u WHERE t.a = u.a AND t.b > 0 AND t.b + 1 > t.a", {"t"}, "u") == ["b > 0"]


def test_values_of_rows_that_meet_no_needed_row_are_not_handed_on() -> None:
    """The rows of t that meet no row of u with d = 1 need no row of v."""
    found = _tests("SELECT v.d FROM t, u, v WHERE t.a = u.a AND t.b = v.b AND u.d = 1", {"t"}, "v")
    assert found == ["a in u.a ['d = 1']"]


def test_what_follows_for_one_table_from_a_condition_on_two_is_tested() -> None:
    text = "SELECT v.y FROM t, u, v WHERE t.a = u.a AND u.d = v.d AND ((t.b = 1 AND v.b = 0) OR (v.b = 1 AND t.b = 0))"
    assert _tests(text, {"t"}, "u") == ["b = 1 OR b = 0"]


def test_a_row_that_a_filter_above_drops_needs_no_partner() -> None:
    text = "SELECT a FROM t WHERE b = 1 AND NOT EXISTS (SELECT 1 FROM u WHERE u.a = t.a)"
    assert set(_tests(text, {"t"}, "u")) == {"b = 1"}


def test_the_two_sides_of_a_join_of_one_scan_are_tested_apart() -> None:
    """What a row of one side is tested for says nothing of the row of the other side that it meets."""
    change = Scan(Table("t"), (("a", "a"), ("b", "b"), ("c", "c")), "delta")
    x = Project(change, (("xa", column("a")), ("xb", column("b")), ("xc", column("c"))))
    y = Project(change, (("ya", column("a")), ("yb", column("b")), (WEIGHT, column(WEIGHT))))
    met = Filter(Join(x, y, "inner", parse_one("xb = yb")), parse_one("xc = 'x'"))
    u = Scan(Table("u"), (("a", "ua"), ("d", "ud")), "old")
    plan = Project(Join(met, u, "inner", parse_one("ya = ua")), (("ud", column("ud")), (WEIGHT, column(WEIGHT))))
    none: Bag = Counter()
    old = {"t": none, "u": Counter([(0, 5), (1, 6)]), "v": none}
    new = {**old, "t": Counter([(0, 1, "x", None), (1, 1, "y", None)])}
    for plans in (plan, reduced(plan)):
        assert signed(plans, _in_part(Change(old, new))) == Counter({(5,): 1, (6,): 1})
