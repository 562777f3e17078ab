"""Dates and times beyond Python's calendar: Spark's DATE reaches the year 5881580, Python's ends with 9999."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from freshview.algebra.nodes import WEIGHT
from freshview.delta.tolerance import beyond_tolerance
from freshview.relation.delta import key_table
from freshview.relation.schema import Column, Schema
from freshview.relation.types import parse_type
from freshview.relation.values import python_rows

FAR, NEAR = 10**7, 5


def _column(kind: str, days: list[int | None]) -> tuple[str, pa.Array]:
    dates = pa.array(days, pa.int32()).cast(pa.date32())
    ones = pa.array(range(len(days) + 1), pa.int32())
    match kind:
        case "array":
            return "array<date>", pa.ListArray.from_arrays(ones, dates)
        case "map":
            return "map<int,date>", pa.MapArray.from_arrays(ones, pa.array([0] * len(days), pa.int32()), dates)
        case "struct":
            return "struct<d:date>", pa.StructArray.from_arrays([dates], ["d"])
    return "date", dates


KINDS = ["date", "array", "map", "struct"]


@pytest.mark.parametrize("kind", KINDS)
def test_rows_beyond_the_calendar_are_compared(kind: str) -> None:
    def left(days: list[int | None], weights: list[int]) -> tuple[int, int]:
        table = pa.table({"x": _column(kind, days)[1], WEIGHT: pa.array(weights, pa.int32())})
        found = beyond_tolerance(table)
        return found.missing_rows, found.extra_rows

    assert left([FAR, FAR], [1, -1]) == (0, 0)
    assert left([FAR, NEAR, NEAR], [1, 1, -1]) == (1, 0)
    assert left([FAR, FAR + 1], [1, -1]) == (1, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_is_the_same_whatever_stands_beside_it(kind: str) -> None:
    """Law: identity depends on the row alone, not on a far date in another row of its column."""

    def identities(days: list[int | None]) -> list[Any]:
        ddl, values = _column(kind, days)
        schema = Schema((Column("x", parse_type(ddl)),))
        return list(key_table(pa.table({"x": values}), schema).column(0).to_pylist()[:1])

    assert identities([NEAR, NEAR]) == identities([NEAR, NEAR + 1])
    if kind != "date":  # a plain column is compared in Arrow
        assert identities([NEAR, FAR]) == identities([NEAR, NEAR])


def test_what_python_can_show_it_shows() -> None:
    rows = python_rows(pa.table({"near": _column("date", [NEAR])[1], "far": _column("date", [FAR])[1]}))
    assert [(str(r["near"]), r["far"]) for r in rows] == [("1970-01-06", FAR)]
