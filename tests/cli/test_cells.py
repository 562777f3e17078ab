"""Values as text: nothing is lost on the way."""

from __future__ import annotations

import csv
import io
import json
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshview.cli.cells import aligned_right, cell_text, csv_line, json_text


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00")), min_size=1))
def test_csv_gives_back_every_text(cells: list[str]) -> None:
    """Law: a CSV reader finds the texts that were written."""
    line = csv_line(cells) + "\r\n"
    assert next(csv.reader(io.StringIO(line, newline=""), strict=True)) == cells


def test_csv_tells_null_from_an_empty_text() -> None:
    assert csv_line([None, "", "a"]) == ',"",a'
    assert csv_line([None]) == ""
    assert csv_line([[1, None]]) == '"[1, null]"'


@given(st.decimals(allow_nan=False, allow_infinity=False), st.floats(allow_nan=False, allow_infinity=False), st.text())
def test_json_keeps_every_digit(number: Decimal, inexact: float, text: str) -> None:
    found = json.loads(json_text({"d": number, "f": [inexact], "t": text}), parse_float=Decimal, parse_int=Decimal)
    assert found["d"] == number
    assert float(found["f"][0]) == inexact
    assert found["t"] == text


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (float("nan"), '"nan"'),
        (float("-inf"), '"-inf"'),
        (b"\x00\xff", '"AP8="'),
        (date(2026, 1, 31), '"2026-01-31"'),
        (datetime(2026, 1, 31, 12, 0, 0, 5), '"2026-01-31T12:00:00.000005"'),
        ({1: True}, '{"1": true}'),
        (None, "null"),
    ],
)
def test_json_of_each_kind(value: Any, expected: str) -> None:
    assert json_text(value) == expected
    json.loads(json_text(value))


def test_what_people_read() -> None:
    told = [None, True, Decimal("1E+2"), b"\x0a", datetime(2026, 1, 31, 12), {"a": [1, None]}]
    assert [cell_text(v) for v in told] == ["NULL", "true", "100", "0A", "2026-01-31 12:00:00", "{a -> [1, NULL]}"]


def test_numbers_stand_at_the_right() -> None:
    assert aligned_right([(1, "a", None, True), (None, "2", None, False)]) == [0]
    assert aligned_right([]) == []
