"""Rows are tested for conditions as SQL reads them, or not at all (delta/row_tests.py)."""

from __future__ import annotations

from collections import Counter
from datetime import date

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlglot import parse_one
from tests.unit.algebra.oracle import evaluate
from tests.unit.delta.cases import laws

from freshview.algebra.nodes import Filter, Scan, Table
from freshview.delta.row_tests import can_be_tested, implied, passing, renamed
from freshview.relation.types import DataType, parse_type

_TYPES = {"a": "int", "b": "bigint", "c": "string", "d": "varchar(9)", "day": "date", "e": "char(3)", "x": "double"}
_TEXTS = ("", "x", "xy", "yx", "xyx", "é%", "X")
_PATTERNS = ("x%", "%x", "%y%", "x", "%", "%%", "")


def type_of(name: str) -> DataType:
    return parse_type(_TYPES[name])


_atoms = st.one_of(
    st.tuples(st.sampled_from("ab"), st.sampled_from("= <> < <= > >=".split()), st.sampled_from(["a", "b", "1", "2"])),
    st.tuples(st.sampled_from("cd"), st.sampled_from("= <> < <= > >=".split()), st.sampled_from(["c", "d", "'xy'"])),
    st.tuples(st.sampled_from("cd"), st.just("LIKE"), st.sampled_from([f"'{p}'" for p in _PATTERNS])),
    st.sampled_from([("a", "IN", "(1, b)"), ("c", "IN", "('x', 'yx')"), ("a", "BETWEEN", "1 AND b")]),
).map(" ".join)
_conditions = st.recursive(
    _atoms,
    lambda inner: st.one_of(
        inner.map(lambda c: f"NOT ({c})"),
        st.tuples(inner, st.sampled_from(["AND", "OR"]), inner).map(lambda p: f"(({p[0]}) {p[1]} ({p[2]}))"),
    ),
    max_leaves=6,
)
_rows = st.lists(
    st.tuples(*(st.sampled_from([None, 0, 1, 2, 3]) for _ in "ab"), *(st.sampled_from([None, *_TEXTS]) for _ in "cd")),
    max_size=12,
)


@laws
@given(text=_conditions, rows=_rows)
def test_the_rows_that_pass_are_those_for_which_the_condition_is_true(
    text: str, rows: list[tuple[object, ...]]
) -> None:
    condition = parse_one(text, dialect="spark")
    assert can_be_tested(condition)
    types = (pa.int32(), pa.int64(), pa.string(), pa.string())
    table = pa.table([pa.array([r[i] for r in rows], t) for i, t in enumerate(types)], names=list("abcd"))
    scan = Scan(Table("t"), tuple((c, c) for c in "abcd"))
    expected = evaluate(Filter(scan, condition), lambda _: Counter(rows))
    assert Counter(tuple(r.values()) for r in passing(table, condition, type_of).to_pylist()) == expected


@pytest.mark.parametrize(
    ("condition", "kept"),
    [
        ("day >= CAST('1995-03-15' AS DATE)", ["1995-03-15", "9999-12-31"]),
        ("day BETWEEN CAST('0001-01-01' AS DATE) AND CAST('1995-03-15' AS DATE)", ["0001-01-01", "1995-03-15"]),
        ("NOT day < CAST('1995-03-15' AS DATE)", ["1995-03-15", "9999-12-31"]),
    ],
)
def test_dates_are_compared(condition: str, kept: list[str]) -> None:
    days = [date(1, 1, 1), date(1995, 3, 15), date(9999, 12, 31), None]
    found = passing(pa.table({"day": pa.array(days, pa.date32())}), parse_one(condition, dialect="spark"), type_of)
    assert [d.isoformat() for d in found.column("day").to_pylist()] == kept


@pytest.mark.parametrize(
    "condition",
    [
        "e = 'x'",  # Spark pads
        "x > 1",
        "a = '1'",  # Spark casts
        "a > 1.5",
        "a = 99999999999999999999",
        "c LIKE 'a_c'",
        r"c LIKE 'a\\%'",
        "c LIKE 'a%b%c'",
        "c LIKE d",
        "day = '1995-03-15'",
        "day = CAST('1995-3-15' AS DATE)",
        "day = CAST('1995-02-30' AS DATE)",
        "CAST(c AS DATE) > day",
        "NOT (a = 1 AND x > 1)",
    ],
)
def test_what_may_mean_something_else_is_not_tested(condition: str) -> None:
    columns = {"a": pa.array([0], pa.int32()), "c": ["q"], "d": ["q"], "e": ["q"], "x": [0.0]}
    table = pa.table({**columns, "day": pa.array([date(1, 1, 1)], pa.date32())})
    assert passing(table, parse_one(condition, dialect="spark"), type_of).num_rows == 1


@pytest.mark.parametrize(
    "condition", ["a + 1 > b", "1 / a > 0", "upper(c) = 'X'", "c RLIKE 'x'", "a IS NULL", "a <=> b"]
)
def test_expressions_that_can_fail_or_compute_are_not_offered(condition: str) -> None:
    assert not can_be_tested(parse_one(condition, dialect="spark"))


@pytest.mark.parametrize(
    ("condition", "found"),
    [
        ("(a = 1 AND b = 2) OR (b = 3 AND a = 4)", "a = 1 OR a = 4"),
        ("(a = 1 AND b = 2) OR b = 3", None),
        ("a = 1 AND a + 1 > 0 AND b = 2", "a = 1"),
        ("NOT (a = 1 AND b = 2)", None),
        ("a < b", None),
    ],
)
def test_what_follows_for_some_columns(condition: str, found: str | None) -> None:
    known = implied(parse_one(condition, dialect="spark"), ["a"])
    assert found == (known.sql() if known is not None else None)


def test_a_condition_is_asked_of_stored_columns() -> None:
    condition = parse_one("p > 1 AND q = p", dialect="spark")
    assert renamed(condition, {"p": "a", "q": "b"}).sql() == '"a" > 1 AND "b" = "a"'
