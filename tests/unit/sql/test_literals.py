"""What is decided without Spark must be what Spark would decide; the rest is left to it."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import pytest

from freshview.relation.schema import Column, Schema
from freshview.relation.types import parse_type
from freshview.sql.literals import NotLiteral, key_pins, literal_rows, parse_expression, value

DECIDED: list[tuple[str, str, Any]] = [
    ("INT", "5", 5),
    ("INT", "-5", -5),
    ("INT", "-2147483648", -(2**31)),
    ("TINYINT", "127", 127),
    ("BIGINT", "9223372036854775807", 2**63 - 1),
    ("INT", "NULL", None),
    ("BOOLEAN", "true", True),
    ("DOUBLE", "5", 5.0),
    ("DOUBLE", "0.1", 0.1),
    ("DOUBLE", "-.5", -0.5),
    ("DECIMAL(5,2)", "1.5", Decimal("1.5")),
    ("DECIMAL(5,2)", "-7", Decimal("-7")),
    ("STRING", "'ä'", "ä"),
    ("STRING", "''", ""),
    ("CHAR(3)", "'ab'", "ab "),
    ("VARCHAR(3)", "'abc  '", "abc"),
    ("DATE", "DATE '2024-02-29'", dt.date(2024, 2, 29)),
]


@pytest.mark.parametrize(("type_", "text", "expected"), DECIDED)
def test_plain_literals_have_their_value(type_: str, text: str, expected: Any) -> None:
    found = value(parse_expression(text), Column("c", parse_type(type_)))
    assert (type(found), found) == (type(expected), expected)


def test_a_decimal_zero_has_no_sign() -> None:
    """-0.0 is a decimal literal in Spark, and decimals have one zero."""
    assert math.copysign(1, value(parse_expression("-0.0"), Column("c", parse_type("DOUBLE")))) == 1


LEFT = [
    ("INT", "'5'"),
    ("INT", "5.0"),
    ("INT", "2147483648"),
    ("INT", "1L"),
    ("INT", "1e3"),
    ("INT", "1 + 1"),
    ("INT", "x"),
    ("INT", "true"),
    ("INT", "CAST(5 AS INT)"),
    ("INT", "- -5"),
    ("INT", "0x1F"),
    ("BOOLEAN", "1"),
    ("BOOLEAN", "'true'"),
    ("DOUBLE", "9007199254740993"),
    ("DOUBLE", "1.5D"),
    ("DOUBLE", "'NaN'"),
    ("DOUBLE", "0." + "1" * 39),
    ("DOUBLE", "1" * 30 + "." + "1" * 20),
    ("FLOAT", "1.5"),
    ("FLOAT", "1"),
    ("DECIMAL(5,2)", "1.005"),
    ("DECIMAL(5,2)", "1000"),
    ("DECIMAL(5,2)", "1e1"),
    ("DECIMAL(5,2)", "1.5BD"),
    ("STRING", "5"),
    ("STRING", "'a' 'b'"),
    ("STRING", "'it''s'"),
    ("STRING", "r'x'"),
    ("STRING", "'a\\\\n'"),
    ("STRING", "X'00'"),
    ("STRING", '"a"'),
    ("STRING", "'a' \"b\""),
    ("STRING", "'a'\n'b'"),
    ("STRING", "'${x}'"),
    ("STRING", "'a' -- b"),
    ("STRING", "/* a */ 'b'"),
    ("STRING", "N'a'"),
    ("STRING", "'a"),
    ("STRING", "concat('a')"),
    ("CHAR(3)", "'abcd'"),
    ("VARCHAR(3)", "'abcd'"),
    ("DATE", "'2024-01-01'"),
    ("DATE", "DATE '2024-02-30'"),
    ("DATE", "DATE '2024-1-1'"),
    ("DATE", "DATE('2024-01-01')"),
    ("DATE", "current_date()"),
    ("DATE", "CAST('2024-01-01' AS TIMESTAMP)"),
    ("TIMESTAMP", "TIMESTAMP '2024-01-01 00:00:00'"),
    ("TIMESTAMP_NTZ", "TIMESTAMP_NTZ '2024-01-01 00:00:00'"),
    ("BINARY", "X'00'"),
    ("ARRAY<INT>", "array(1)"),
]


@pytest.mark.parametrize(("type_", "text"), LEFT)
def test_everything_else_is_left_to_spark(type_: str, text: str) -> None:
    with pytest.raises(NotLiteral):
        value(parse_expression(text), Column("c", parse_type(type_)))


TWO = (Column("a", parse_type("INT")), Column("b", parse_type("STRING")))


def test_values_of_literals_become_rows() -> None:
    assert literal_rows("VALUES (1, 'x'), (NULL, '{y}')", TWO).to_pylist() == [
        {"a": 1, "b": "x"},
        {"a": None, "b": "{y}"},
    ]
    assert literal_rows("VALUES 1, 2", TWO[:1]).to_pylist() == [{"a": 1}, {"a": 2}]


@pytest.mark.parametrize(
    "query",
    [
        "SELECT 1, 'x'",
        "VALUES (1)",
        "VALUES (1, 'x', 2)",
        "VALUES (1, 'x'), (2)",
        "VALUES (1, 'x') AS t(a, b)",
        "VALUES (1, 'x'), (2, 'y') LIMIT 1",
        "VALUES (1, 'x') ORDER BY 1",
        "VALUES (1, 'x') WHERE false",
        "VALUES (1, 'x') UNION ALL VALUES (2, 'y')",
        "VALUES (1 + 1, 'x')",
        "VALUES (DEFAULT, 'x')",
        "VALUES (1, 'a\\'b')",
        "nonsense (",
        "WITH q AS (SELECT 1) VALUES (1, 'x')",
    ],
)
def test_other_queries_are_left_to_spark(query: str) -> None:
    """LIMIT, ORDER BY and the like must not be dropped on the way."""
    with pytest.raises(NotLiteral):
        literal_rows(query, TWO)


KEYED = Schema(
    (Column("a", parse_type("INT")), Column("B", parse_type("STRING")), Column("v", parse_type("INT"))), ("a", "B")
)
SINGLE = Schema((Column("k", parse_type("INT")), Column("v", parse_type("INT"))), ("k",))


@pytest.mark.parametrize(
    ("where", "keys", "exact"),
    [
        ("k = 1", [1], True),
        ("1 = k", [1], True),
        ("(k) = 1", None, False),
        ("(k = 1)", [1], True),
        ("K IN (1, 2, 1, NULL)", [1, 2], True),
        ("k = NULL", [], True),
        ("t.k = 1", [1], True),
        ("x.k = 1", [1], True),
        ("k = 1 AND v > 5", [1], False),
        ('k = 1 AND v = "w"', [1], False),
        ("k = 1 AND NOT v = 2 = true", [1], False),
        ("v BETWEEN 0 AND 1 AND k = 1", [1], False),
        ("v > 5 AND k IN (1, 2)", [1, 2], False),
        ("k = 1 AND k = 2", [1], False),
    ],
)
def test_conditions_on_the_key_pin_it(where: str, keys: list[int] | None, exact: bool) -> None:
    pins = key_pins(where, SINGLE, ("x", "t"))
    if pins is None:
        assert keys is None
        return
    assert pins.keys.column("k").to_pylist() == keys
    assert pins.exact is exact


@pytest.mark.parametrize(
    "where",
    [
        "",
        "v = 1",
        "k = 1 OR k = 2",
        "NOT k = 1",
        "k NOT IN (1)",
        "k > 1",
        "k <=> 1",
        "k = v",
        "k = 1 + 1",
        "k = '1'",
        "k = 1.0",
        "k IN (SELECT 1)",
        "k IN (1, v)",
        "other.k = 1",
        "k = 3000000000",
        "k BETWEEN 1 AND 2",
        "k IS NULL",
        "k = 1 OR (k = 2 AND v = 3)",
        "abs(k) = 1",
        "k IN (1, 1.5)",
        'k = "v"',
        'k IN (1, "v")',
        "k = 1 = true",
        "true = k = 1",
        "k = 1 < 2",
        "k = 1 IS NULL",
        "k = 1 IN (1)",
        "v BETWEEN 0 AND k = 1",
        "k IN (1) = false",
        "k = 1 OR true AND k = 2",
        "k = 1 -- and no more",
        "k IN (\u0661)",
        "k = " + "(" * 5000 + "1" + ")" * 5000,
    ],
)
def test_other_conditions_pin_nothing(where: str) -> None:
    assert key_pins(where, SINGLE, ("t",)) is None


def test_parts_of_a_key_pin_but_not_exactly() -> None:
    pins = key_pins("b = 'x'", KEYED, ("t",))
    assert pins is not None
    assert (pins.keys.to_pylist(), pins.exact) == ([{"B": "x"}], False)
    pins = key_pins("B IN ('x', 'y') AND A IN (1, 2)", KEYED, ("t",))
    assert pins is not None
    assert pins.exact
    assert {tuple(r.values()) for r in pins.keys.to_pylist()} == {(1, "x"), (1, "y"), (2, "x"), (2, "y")}


def test_too_many_keys_are_left_to_spark() -> None:
    many = ", ".join(map(str, range(200)))
    strings = ", ".join(f"'{i}'" for i in range(200))
    assert key_pins(f"a IN ({many}) AND b IN ({strings})", KEYED, ("t",)) is None


def test_a_table_without_a_key_has_no_pins() -> None:
    assert key_pins("a = 1", Schema(TWO), ("t",)) is None


@pytest.mark.parametrize("type_", ["DOUBLE", "DECIMAL(5,2)", "VARCHAR(3)", "TIMESTAMP", "BOOLEAN", "BINARY"])
def test_types_whose_comparison_is_spark_s_are_not_pinned(type_: str) -> None:
    if type_ == "DOUBLE":
        schema = Schema((Column("k", parse_type("DECIMAL(10,0)")),), ("k",))
        assert key_pins("k = 1", schema, ("t",)) is None
        return
    schema = Schema((Column("k", parse_type(type_)),), ("k",))
    literal = {"DECIMAL(5,2)": "1.5", "VARCHAR(3)": "'a'", "BOOLEAN": "true"}.get(type_, "'x'")
    assert key_pins(f"k = {literal}", schema, ("t",)) is None


def test_a_struct_column_is_not_taken_for_the_table() -> None:
    """In a case-sensitive session T.k is a field of the column T, not the key of the table t."""
    schema = Schema((*SINGLE.columns, Column("T", parse_type("STRUCT<k: INT>"))), ("k",))
    assert key_pins("T.k = 1", schema, ("t",)) is None
    assert key_pins("t.k = 1", schema, ("t",)) is not None


def test_char_keys_are_pinned_padded() -> None:
    """The padded value is not an exact pin, since a setting decides whether Spark pads before it compares."""
    pins = key_pins("k = 'ab'", Schema((Column("k", parse_type("CHAR(3)")),), ("k",)), ("t",))
    assert pins is not None
    assert pins.keys.column("k").to_pylist() == ["ab "]
    assert not pins.exact
