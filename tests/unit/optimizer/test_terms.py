"""Conditions: canonical forms, and what implies what."""

from __future__ import annotations

from typing import Any

import pytest
import sqlglot
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.effort import examples
from tests.unit.algebra.oracle import scalar

from freshview.optimizer.terms import Term, conditions, implies


def _terms(text: str) -> list[Term]:
    return conditions(sqlglot.parse_one(text, read="spark"))


def _known(type_: str) -> Any:
    return lambda _: type_


@pytest.mark.parametrize(
    ("given_", "wanted", "type_"),
    [
        ("x < 5", "x < 10", "int"),
        ("x < 5", "x <= 5", "int"),
        ("x = 3", "x IN (3, 4)", "bigint"),
        ("x IN (1, 2)", "x > 0", "decimal(10,2)"),
        ("x IN (1, NULL)", "x = 1", "int"),
        ("10 > x", "x < 11", "int"),
        ("x BETWEEN 2 AND 3", "x > 1", "int"),
        ("x > -1", "x > -2", "int"),
        ("x = 'b'", "x >= 'a'", "string"),
        ("x < DATE '1995-01-01'", "x < DATE '1996-01-01'", "date"),
        ("x < 5", "x IS NOT NULL", "int"),
    ],
)
def test_what_is_implied(given_: str, wanted: str, type_: str) -> None:
    assert all(implies(_terms(given_), w, _known(type_)) for w in _terms(wanted))


@pytest.mark.parametrize(
    ("given_", "wanted", "type_"),
    [
        ("x <= 5", "x < 5", "int"),
        ("x > 5", "x < 10", "int"),
        ("x IN (1, 2)", "x = 1", "int"),
        ("x > 1", "x IN (1, 2, 3)", "int"),
        ("x <= 0.1", "x < 0.10000000000000001", "double"),  # both literals are one double
        ("x = '1'", "x = 1", "int"),
        ("y < 5", "x < 10", "int"),
        ("x + 0 < 5", "x < 10", "int"),
        ("x < y", "x < 10", "int"),
        ("x <> 5", "x IS NOT NULL AND TRUE", "int"),
        ("x < DATE '1995-1-1'", "x < DATE '1996-01-01'", "date"),
        ("x < DATE '1995-13-01'", "x < DATE '1996-01-01'", "date"),
        ("x IN (1, y)", "x > 0", "int"),
    ],
)
def test_what_is_not_known_to_be_implied(given_: str, wanted: str, type_: str) -> None:
    assert not all(implies(_terms(given_), w, _known(type_)) for w in _terms(wanted))


_numbers = st.integers(-2, 4)
_condition = st.one_of(
    st.tuples(st.sampled_from(["<", "<=", ">", ">=", "="]), _numbers).map(lambda p: f"x {p[0]} {p[1]}"),
    st.lists(_numbers, min_size=1, max_size=3).map(lambda m: f"x IN ({', '.join(map(str, m))})"),
    st.tuples(_numbers, _numbers).map(lambda p: f"x BETWEEN {p[0]} AND {p[1]}"),
    st.just("x IS NOT NULL"),
)


@settings(max_examples=examples(300))
@given(first=_condition, second=_condition)
def test_an_implied_condition_holds_wherever_the_given_one_does(first: str, second: str) -> None:
    strict, loose = _terms(first), _terms(second)
    if all(implies(strict, t, _known("int")) for t in loose):
        for value in (None, *range(-4, 7)):
            if all(scalar(t.expression, {"x": value}) is True for t in strict):
                assert all(scalar(t.expression, {"x": value}) is True for t in loose)


def test_sides_and_bounds_are_in_one_order() -> None:
    assert _terms("b = a") == _terms("a = b")
    assert _terms("5 < x") == _terms("x > 5")
    assert _terms("x BETWEEN 1 AND 2") == [*_terms("x >= 1"), *_terms("x <= 2")]
    assert _terms("x < 'A'") != _terms("x < 'a'")
