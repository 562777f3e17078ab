"""Scans that are read in part: whatever a restriction does not admit makes no difference (delta/semijoin.py)."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import lru_cache
from typing import Any

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st
from tests.effort import examples
from tests.unit.algebra.oracle import Bag, evaluate, signed
from tests.unit.delta.cases import VIEWS, decided, forms, laws
from tests.unit.sql.view_grammar import Change, State, kind_of, lowered_view, noises, states, views

from freshview.algebra.nodes import Node, Scan, Table
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


def _in_part(change: Change) -> Any:
    """Reads a scan as sparingly as its restrictions allow, all of them together."""

    def read(scan: Scan) -> Bag:
        rows = change.read(scan)
        for by in scan.semijoins:
            if isinstance(scan.source, Table) and kind_of(by.column) == "double":
                continue  # equality of values is not equality of bits: nobody reads these in part
            if any(isinstance(s.source, Table) and kind_of(c) == "double" for s, c in by.sources):
                continue
            admitted = {_place(read(s), s, c) for s, c in by.sources}
            values = {v for vs in admitted for v in vs} | ({None} if by.nulls else set())
            if not by.nulls:
                values.discard(None)
            place = [c for c, _ in scan.fields].index(by.column)
            rows = Counter({r: n for r, n in rows.items() if r[place] in values})
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
