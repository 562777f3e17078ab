"""Which conditions of statements a lookup answers: never more than Spark would decide in the same way."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.effort import examples

from freshview.relation.conditions import Among, Compared, comparable
from freshview.relation.schema import Column, Schema
from freshview.relation.types import parse_type
from freshview.sql.pins import Match, Pins, asked, merge_pins, pins
from freshview.sql.predicates import asked_of


def schema_of(*columns: str, key: tuple[str, ...] = ()) -> Schema:
    parts = (c.split(" ", 1) for c in columns)
    return Schema(tuple(Column(name, parse_type(type_)) for name, type_ in parts), key)


SINGLE = schema_of("k INT", "v INT", "s STRING", "d DATE", key=("k",))


def told(found: Pins | None) -> list[tuple[Any, ...]] | None:
    """Conditions as plain values: (column, operator, values)."""
    if found is None:
        return None
    return [
        (name, "in", c.values.to_pylist()) if isinstance(c, Among) else (name, c.operator, c.value.as_py())
        for name, c in found.conditions
    ]


EXACT: list[tuple[str, list[tuple[Any, ...]]]] = [
    ("k = 1", [("k", "in", [1])]),
    ("1 = k", [("k", "in", [1])]),
    ("(k = 1)", [("k", "in", [1])]),
    ("K IN (1, 2, 1, NULL)", [("k", "in", [1, 2])]),
    ("k in (3,\n -4)", [("k", "in", [3, -4])]),
    ("v IN (5, 6)", [("v", "in", [5, 6])]),
    ("k = NULL", [("k", "in", [])]),
    ("t.k = 1", [("k", "in", [1])]),
    ("x.k = 1", [("k", "in", [1])]),
    ("`k` = 1", [("k", "in", [1])]),
    ("k = 1 AND k = 2", [("k", "in", [1]), ("k", "in", [2])]),
    ("k BETWEEN 1 AND 2", [("k", ">=", 1), ("k", "<=", 2)]),
    ("v > 5 AND k IN (1, 2)", [("v", ">", 5), ("k", "in", [1, 2])]),
    ("5 > v AND 5 <= k", [("v", "<", 5), ("k", ">=", 5)]),
    ("v <= -5 AND v >= -9", [("v", "<=", -5), ("v", ">=", -9)]),
    ("s = 'x' AND s < 'y'", [("s", "in", ["x"]), ("s", "<", "y")]),
    (
        "d BETWEEN DATE'2020-01-01' AND CAST('2020-12-31' AS DATE)",
        [("d", ">=", dt.date(2020, 1, 1)), ("d", "<=", dt.date(2020, 12, 31))],
    ),
]
IN_PART: list[tuple[str, list[tuple[Any, ...]]]] = [
    ("k = 1 AND v + 1 > 5", [("k", "in", [1])]),
    ('k = 1 AND v = "w"', [("k", "in", [1])]),
    ("k = 1 AND NOT v = 2 = true", [("k", "in", [1])]),
    ("v BETWEEN 0 AND 1.5 AND k = 1", [("k", "in", [1])]),
    ("k = 1 AND k IN (SELECT k FROM u)", [("k", "in", [1])]),
    ("k = 1 AND EXISTS (SELECT k FROM u WHERE u.k = t.k)", [("k", "in", [1])]),
    ("k BETWEEN 1 AND NULL AND v = 1", [("v", "in", [1])]),
    ("v NOT BETWEEN 1 AND 2 AND v = 1", [("v", "in", [1])]),
    ("v <=> 1 AND v = 1", [("v", "in", [1])]),
    ("k = 1 AND (v = 1 OR v = 2)", [("k", "in", [1])]),
    ("d >= '2020-01-01' AND k = 1", [("k", "in", [1])]),
]


@pytest.mark.parametrize(("where", "conditions"), EXACT)
def test_comparisons_with_literals_are_answered_exactly(where: str, conditions: list[tuple[Any, ...]]) -> None:
    found = pins(where, SINGLE, ("x", "t"))
    assert told(found) == conditions
    assert found is not None
    assert found.exact


@pytest.mark.parametrize(("where", "conditions"), IN_PART)
def test_further_conditions_are_left_to_spark(where: str, conditions: list[tuple[Any, ...]]) -> None:
    found = pins(where, SINGLE, ("x", "t"))
    assert told(found) == conditions
    assert found is not None
    assert not found.exact


@pytest.mark.parametrize(
    "where",
    [
        "",
        "(k) = 1 OR false",
        "k = 1 OR k = 2",
        "NOT k = 1",
        "k NOT IN (1)",
        "NOT k > 1",
        "k <> 1",
        "k <=> 1",
        "k = v",
        "k > v",
        "k BETWEEN 1 AND v",
        "k BETWEEN v AND 1",
        "1 BETWEEN k AND v",
        "k NOT BETWEEN 1 AND 2",
        "k = 1 + 1",
        "k = '1'",
        "k > '1'",
        "k = 1.0",
        "k < 1.5",
        "k > 1D",
        "k > 1L",
        "k BETWEEN 1 AND 2.0",
        "k < NULL",
        "k BETWEEN NULL AND 2",
        "k IN (SELECT 1)",
        "k IN (1, v)",
        "other.k = 1",
        "k = 3000000000",
        "k < 3000000000",
        "k IN (1, 3000000000)",
        "k IS NULL",
        "k = 1 OR (k = 2 AND v = 3)",
        "abs(k) = 1",
        "k + 0 > 1",
        "k IN (1, 1.5)",
        'k = "v"',
        'k IN (1, "v")',
        "k = 1 = true",
        "k > 1 = true",
        "true = k = 1",
        "true = k > 1",
        "k = 1 < 2",
        "k < 1 = 2",
        "1 < k < 3",
        "k < 1 < 2",
        "k = 1 IS NULL",
        "k > 1 IS NULL",
        "k = 1 IN (1)",
        "1 < k IN (1)",
        "1 < k BETWEEN 0 AND 1",
        "k > 1 BETWEEN 0 AND 1",
        "v BETWEEN 0 AND k = 1",
        "v BETWEEN 0 AND 1 = true",
        "v BETWEEN 0 AND 1 < 2",
        "k IN (1) = false",
        "k IN (1) IS NULL",
        "k = 1 OR true AND k = 2",
        "k = 1 -- and no more",
        "k IN (1, --2\n 3)",
        "k IN (1-2)",
        "k IN (\u0661)",
        "k = " + "(" * 5000 + "1" + ")" * 5000,
        "s = 1",
        "s = 'it''s'",
        "s = 'a' 'b'",
        "s = 'a\\tb'",
        "s = x'61'",
        "s = 'a' COLLATE UTF8_LCASE",
        "s < upper('a')",
        "s LIKE 'a%'",
        "d = '2020-01-01'",
        "d = DATE'2020-1-1'",
        "d = DATE('2020-01-01')",
        "d = DATE'2020-02-30'",
        "d > TIMESTAMP'2020-01-01 00:00:00'",
        "d = current_date",
    ],
)
def test_other_conditions_pin_nothing(where: str) -> None:
    assert pins(where, SINGLE, ("t",)) is None


@pytest.mark.parametrize(
    ("query", "conditions"),
    [
        ("SELECT * FROM t WHERE k = 1 AND v > 2", [("k", "in", [1]), ("v", ">", 2)]),
        ("SELECT x.s FROM t x JOIN u ON x.v = u.k AND x.k IN (1, 2) WHERE u.s = 'a'", [("k", "in", [1, 2])]),
        ("SELECT * FROM u LEFT JOIN t ON u.k = t.k AND t.k = 1", None),
        ("SELECT * FROM t WHERE s = 'a' AND k < 3", [("s", "in", ["a"]), ("k", "<", 3)]),
        ("SELECT * FROM t WHERE s = 'it''s' AND k = 3", None),
        ("SELECT * FROM t WHERE s = 'it' 's' OR k = 3", []),
        ("SELECT * FROM t WHERE k = '1'", []),
        ("SELECT * FROM t WHERE k = NULL", [("k", "in", [])]),
        ("SELECT k FROM t GROUP BY k HAVING k = 1", []),
        ("SELECT * FROM t WHERE k = 1 UNION ALL SELECT * FROM t", None),
    ],
)
def test_what_a_query_asks_of_single_columns(query: str, conditions: list[tuple[Any, ...]] | None) -> None:
    """None: the query may use any row."""
    found = asked_of(query, "t", SINGLE.names)
    assert (None if found is None else told(Pins(asked(found, SINGLE)))) == conditions


@pytest.mark.parametrize("word", ["user", "current_date", "localtimestamp", "session_user", "null", "true"])
def test_words_that_may_be_calls_are_not_taken_for_columns(word: str) -> None:
    """`user IN (1)` asks for the user of the session under some settings, though a column has that name."""
    schema = schema_of(f"{word} INT")
    for where in (f"{word} IN (1, 2)", f"{word} = 1", f"{word} > 1"):
        assert pins(where, schema, ("t",)) is None, where
    assert told(pins(f"`{word}` = 1", schema, ("t",))) == [(word, "in", [1])]


def test_numbers_are_not_taken_for_columns() -> None:
    assert pins("1 IN (1, 2)", schema_of("1 INT"), ("t",)) is None


@pytest.mark.parametrize(
    ("type_", "literal"),
    [
        ("DOUBLE", "1"),
        ("FLOAT", "1.5"),
        ("DECIMAL(10,0)", "1"),
        ("DECIMAL(5,2)", "1.5"),
        ("VARCHAR(3)", "'a'"),
        ("TIMESTAMP", "'x'"),
        ("TIMESTAMP", "TIMESTAMP'2020-01-01 00:00:00'"),
        ("TIMESTAMP_NTZ", "TIMESTAMP_NTZ'2020-01-01 00:00:00'"),
        ("BOOLEAN", "true"),
        ("BINARY", "'x'"),
        ("STRUCT<a: INT>", "1"),
    ],
)
def test_types_whose_comparison_is_spark_s_are_not_pinned(type_: str, literal: str) -> None:
    schema = schema_of(f"k {type_}")
    for where in (f"k = {literal}", f"k IN ({literal})", f"k > {literal}", f"k BETWEEN {literal} AND {literal}"):
        assert pins(where, schema, ("t",)) is None, where


def test_a_struct_column_is_not_taken_for_the_table() -> None:
    """In a case-sensitive session T.k is a field of the column T, not the key of the table t."""
    schema = schema_of("k INT", "T STRUCT<k: INT>", key=("k",))
    assert pins("T.k = 1", schema, ("t",)) is None
    assert pins("t.k = 1", schema, ("t",)) is not None


def test_char_columns_are_pinned_padded() -> None:
    """The padded value is not exact, since a setting decides whether Spark pads before it compares."""
    schema = schema_of("k CHAR(3)", key=("k",))
    found = pins("k = 'ab'", schema, ("t",))
    assert found is not None
    assert told(found) == [("k", "in", ["ab "])]
    assert not found.exact
    assert pins("k > 'ab'", schema, ("t",)) is None
    assert pins("k BETWEEN 'a' AND 'b'", schema, ("t",)) is None


# -- matches with other tables -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "match"),
    [
        ("k IN (SELECT c FROM u)", Match("k", "u", "c")),
        ("K IN ((SELECT DISTINCT u.c FROM u WHERE c > 1 OR p = q < r ORDER BY c LIMIT 2))", Match("k", "u", "c")),
        ("v > 1.5 AND t.v IN (SELECT x.`c` FROM `u` AS x GROUP BY c HAVING count(*) > 1)", Match("v", "u", "c")),
    ],
)
def test_a_column_among_those_of_another_table_matches_it(where: str, match: Match) -> None:
    found = pins(where, SINGLE, ("t",))
    assert found == Pins((), exact=False, matches=(match,))


@pytest.mark.parametrize(
    "query",
    [
        "SELECT c + 1 FROM u",
        "SELECT c, d FROM u",
        "SELECT * FROM u",
        "SELECT max(c) FROM u",
        "SELECT c AS e FROM u",
        "SELECT t.c FROM u",
        "SELECT U.c FROM u",
        "SELECT u.c.f FROM u",
        "SELECT user FROM u",
        "SELECT c FROM u AS x(c)",
        "SELECT c FROM db.u",
        "SELECT c FROM u VERSION AS OF 1",
        "SELECT c FROM u, w",
        "SELECT c FROM u LEFT JOIN w USING (c)",
        "SELECT c FROM u LATERAL VIEW explode(a) AS c",
        "SELECT c FROM u PIVOT (max(x) FOR y IN (1 AS c))",
        "SELECT c FROM (SELECT 1 AS c) AS u",
        "SELECT c FROM VALUES (1) AS u(c)",
        "SELECT c FROM range(3) AS u",
        "WITH u AS (SELECT 1 AS c) SELECT c FROM u",
        "SELECT c FROM u UNION ALL SELECT 1",
        "SELECT c",
    ],
)
def test_other_subqueries_match_nothing(query: str) -> None:
    assert pins(f"k IN ({query})", SINGLE, ("t",)) is None
    assert pins("NOT k IN (SELECT c FROM u)", SINGLE, ("t",)) is None
    assert pins("k NOT IN (SELECT c FROM u)", SINGLE, ("t",)) is None
    assert pins("k IN (SELECT c FROM u) OR true", SINGLE, ("t",)) is None


@pytest.mark.parametrize(
    ("on", "columns"),
    [
        ("t.k = x.c", [("k", "c")]),
        ("x.c = t.K AND t.v > x.v AND (t.s = x.s)", [("k", "c"), ("s", "s")]),
        ("t.k = x.c OR t.v = x.v", []),
        ("k = c", []),
        ("t.k = c", []),
        ("t.k <=> x.c", []),
        ("t.k = x.c + 1", []),
        ("t.k = x.c.f", []),
        ("t.k = t.v", []),
        ("t.other = x.c", []),
        ("T.k = x.c", []),
        ("t.k = X.c", []),
        ("NOT t.k = x.c", []),
        ("t.k = x.c = true", []),
        ("t.k = x.c -- and", []),
        ("nonsense (", []),
        ("true", []),
    ],
)
def test_equal_columns_of_a_merge_match(on: str, columns: list[tuple[str, str]]) -> None:
    found = merge_pins(on, SINGLE, "t", "u", "x")
    assert found == Pins((), matches=tuple(Match(a, "u", b) for a, b in columns))


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("INT", "BIGINT", True),
        ("STRING", "STRING", True),
        ("DATE", "DATE", True),
        ("INT", "STRING", False),
        ("DATE", "TIMESTAMP", False),
        ("STRING", "VARCHAR(3)", False),
        ("CHAR(3)", "CHAR(3)", False),
        ("DECIMAL(5,2)", "DECIMAL(5,2)", False),
        ("DOUBLE", "DOUBLE", False),
        ("TIMESTAMP", "TIMESTAMP", False),
        ("INT", "DECIMAL(10,0)", False),
    ],
)
def test_only_equal_exact_types_are_comparable(one: str, other: str, same: bool) -> None:
    assert comparable(parse_type(one), parse_type(other)) is same
    assert comparable(parse_type(other), parse_type(one)) is same


# -- the law -----------------------------------------------------------------------------------------------

Row = dict[str, Any]
LAW = schema_of("y TINYINT", "i INT", "b BIGINT", "s STRING", "d DATE")
POOLS: dict[str, list[Any]] = {
    "y": [-128, -1, 0, 1, 2, 127],
    "i": [-(2**31), -1, 0, 1, 2, 3, 2**31 - 1],
    "b": [-(2**63), -1, 0, 1, 2, 2**63 - 1],
    "s": ["", " ", "a", "A", "a ", "ab", "b", "é", "é", "\U0001f600", "\uffff", "~"],
    "d": [dt.date(1, 1, 1), dt.date(1582, 10, 4), dt.date(1969, 12, 31), dt.date(1970, 1, 1), dt.date(9999, 12, 31)],
}
TESTS: dict[str, Callable[[Any, Any], bool]] = {
    "=": lambda a, b: bool(a == b),
    "<": lambda a, b: bool(a < b),
    "<=": lambda a, b: bool(a <= b),
    ">": lambda a, b: bool(a > b),
    ">=": lambda a, b: bool(a >= b),
}
FLIPPED = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


@dataclass(frozen=True)
class Part:
    """A conjunct: its text, its meaning over one row, and whether a lookup should answer it."""

    text: str
    holds: Callable[[Row], bool]
    pinned: bool = True


def ordered(value: Any) -> Any:
    """Spark's order: strings by their bytes."""
    return value.encode() if isinstance(value, str) else value


def literal(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, str):
        return f"'{value}'"
    return f"DATE'{value:%Y-%m-%d}'".replace("DATE'1-", "DATE'0001-") if isinstance(value, dt.date) else str(value)


@st.composite
def parts(draw: st.DrawFn) -> Part:
    name = draw(st.sampled_from(LAW.names))
    shown = draw(st.sampled_from([name, name.upper(), f"t.{name}", f"`{name}`"]))
    some = st.sampled_from(POOLS[name])
    kind = draw(st.sampled_from(["compare", "compare", "in", "between", "not", "null", "or", "sum"]))
    a, b = draw(some), draw(some)
    if kind == "compare":
        op = draw(st.sampled_from(list(TESTS)))
        text = f"{shown} {op} {literal(a)}" if draw(st.booleans()) else f"{literal(a)} {FLIPPED[op]} {shown}"
        text = f"({text})" if draw(st.booleans()) else text
        return Part(text, lambda r: r[name] is not None and TESTS[op](ordered(r[name]), ordered(a)))
    if kind == "in":
        chosen = draw(st.lists(st.one_of(some, st.none()), min_size=1, max_size=4))
        return Part(
            f"{shown} IN ({', '.join(map(literal, chosen))})", lambda r: r[name] is not None and r[name] in chosen
        )
    if kind == "between":
        return Part(
            f"{shown} BETWEEN {literal(a)} AND {literal(b)}",
            lambda r: r[name] is not None and ordered(a) <= ordered(r[name]) <= ordered(b),
        )
    if kind == "not":
        return Part(f"NOT {shown} = {literal(a)}", lambda r: r[name] is not None and r[name] != a, pinned=False)
    if kind == "null":
        return Part(f"{shown} IS NULL", lambda r: r[name] is None, pinned=False)
    if kind == "or":
        text = f"({shown} = {literal(a)} OR {shown} = {literal(b)})"
        return Part(text, lambda r: r[name] is not None and r[name] in (a, b), pinned=False)
    return Part("i + 1 > 0", lambda r: r["i"] is not None and r["i"] + 1 > 0, pinned=False)


ROWS = st.lists(
    st.fixed_dictionaries({n: st.one_of(st.none(), st.sampled_from(POOLS[n])) for n in LAW.names}), max_size=12
)


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(parts(), min_size=1, max_size=4), ROWS)
def test_conditions_are_met_by_all_rows_that_satisfy_the_text(conjuncts: list[Part], rows: list[Row]) -> None:
    """Law: satisfied ⊆ met, and satisfied = met if they are exact; every comparison with literals is found."""
    found = pins(" AND ".join(p.text for p in conjuncts), LAW, ("t",))
    assert (found is not None) == any(p.pinned for p in conjuncts)
    if found is None:
        return
    assert found.exact == all(p.pinned for p in conjuncts)
    table = pa.Table.from_pylist(rows, schema=LAW.arrow)
    masks = [c.met_by(table.column(n)) for n, c in found.conditions]
    assert all(m.null_count == 0 for m in masks)
    met = reduce(pc.and_, masks).to_pylist()
    satisfied = [all(p.holds(r) for p in conjuncts) for r in rows]
    assert all(m for m, s in zip(met, satisfied, strict=True) if s)
    if found.exact:
        assert met == satisfied


def test_conditions_compare_in_the_type_of_the_column_they_meet() -> None:
    """Files may hold a column in another Arrow type than segments do."""
    column = pa.chunked_array([[1, 2, None]], pa.int32())
    assert Among(pa.array([2], pa.int64())).met_by(column).to_pylist() == [False, True, False]
    assert Among(pa.array([2], pa.int64()), nulls=True).met_by(column).to_pylist() == [False, True, True]
    assert Compared(">", pa.scalar(1, pa.int64())).met_by(column).to_pylist() == [False, True, False]
