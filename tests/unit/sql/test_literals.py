"""What is decided without Spark must be what Spark would decide; the rest is left to it."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import pytest

from freshview.relation.schema import Column
from freshview.relation.types import parse_type
from freshview.sql.literals import NotLiteral, literal_rows, parse_expression, value

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
