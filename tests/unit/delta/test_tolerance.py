"""check() compares floating-point numbers within a tolerance, and everything else exactly."""

from __future__ import annotations

import math
import time
from typing import Any

import pyarrow as pa
import pytest

from freshview.algebra.nodes import WEIGHT
from freshview.delta.tolerance import LISTED, beyond_tolerance


def _compared(missing: list[Any], extra: list[Any], type_: pa.DataType) -> tuple[int, int]:
    values = pa.array(missing + extra, type_)
    weights = pa.array([1] * len(missing) + [-1] * len(extra), pa.int32())
    found = beyond_tolerance(pa.table({"k": pa.array([1] * len(values)), "x": values, WEIGHT: weights}))
    return found.missing_rows, found.extra_rows


_POINT = pa.struct([("x", pa.float64()), ("y", pa.float64())])


@pytest.mark.parametrize(
    ("missing", "extra", "type_", "left"),
    [
        ([1.0], [1.0 + 1e-12], pa.float64(), (0, 0)),
        ([1.0], [1.0 + 1e-8], pa.float64(), (1, 1)),
        ([1e20], [1e20 + 65536], pa.float64(), (0, 0)),
        ([0.0], [5e-17], pa.float64(), (0, 0)),
        ([1e-8], [2e-8], pa.float64(), (1, 1)),
        ([0.0], [-0.0], pa.float64(), (0, 0)),
        ([math.nan], [math.nan], pa.float64(), (0, 0)),
        ([math.nan], [1.0], pa.float64(), (1, 1)),
        ([math.nan], [None], pa.float64(), (1, 1)),
        ([math.inf], [math.inf], pa.float64(), (0, 0)),
        ([math.inf], [-math.inf], pa.float64(), (1, 1)),
        ([math.inf], [1.7e308], pa.float64(), (1, 1)),
        ([None], [0.0], pa.float64(), (1, 1)),
        ([0.1], [0.1 + 1e-8], pa.float32(), (0, 0)),
        ([0.1], [0.1 + 1e-5], pa.float32(), (1, 1)),
        ([1], [2], pa.int64(), (1, 1)),
        ([[1.0, 2.0]], [[1.0 + 1e-12, 2.0]], pa.list_(pa.float64()), (0, 0)),
        ([[1.0, 2.0]], [[2.0, 1.0]], pa.list_(pa.float64()), (1, 1)),
        ([[1.0]], [[1.0, 1.0]], pa.list_(pa.float64()), (1, 1)),
        ([[]], [None], pa.list_(pa.float64()), (1, 1)),
        ([{"x": 1.0, "y": math.nan}], [{"x": 1 + 1e-13, "y": math.nan}], _POINT, (0, 0)),
        ([{"x": 1.0, "y": 2.0}], [{"x": 1.0, "y": 3.0}], _POINT, (1, 1)),
        ([[("a", 1.0), ("b", 2.0)]], [[("b", 2.0 + 1e-13), ("a", 1.0)]], pa.map_(pa.string(), pa.float64()), (0, 0)),
        ([[("a", 1.0)]], [[("b", 1.0)]], pa.map_(pa.string(), pa.float64()), (1, 1)),
        ([[{"x": 1.0, "y": 0.5}]], [[{"x": 1.0, "y": 0.5 + 1e-14}]], pa.list_(_POINT), (0, 0)),
        ([1.0, 1.0, 1.0], [1.0 + 1e-13], pa.float64(), (2, 0)),
        ([1.0, 5.0], [5.0 + 1e-12, 1.0 - 1e-12, 7.0], pa.float64(), (0, 1)),
    ],
)
def test_floating_point_numbers_are_compared_within_a_tolerance(
    missing: list[Any], extra: list[Any], type_: pa.DataType, left: tuple[int, int]
) -> None:
    """Numbers are compared so at the top and inside nested values; other values exactly; rows are counted."""
    assert _compared(missing, extra, type_) == left


def test_rows_that_differ_in_several_numbers_find_their_partners() -> None:
    """The order by one number is not the order by the next: partners are searched among those in reach."""
    missing = [{"x": 1.0, "y": 1.0}, {"x": 1.0 + 1e-12, "y": 2.0}]
    extra = [{"x": 1.0, "y": 2.0}, {"x": 1.0 + 1e-12, "y": 1.0}]
    assert _compared(missing, extra, _POINT) == (0, 0)


def test_a_row_counts_as_often_as_its_weight_and_few_are_shown() -> None:
    table = pa.table({"x": pa.array([1, 2]), WEIGHT: pa.array([3 * LISTED, -2], pa.int32())})
    found = beyond_tolerance(table)
    assert (found.missing_rows, found.extra_rows) == (3 * LISTED, 2)
    assert found.missing == ({"x": 1},) * LISTED
    assert found.extra == ({"x": 2},) * 2


def test_many_rows_are_compared_in_better_than_quadratic_time() -> None:
    """Twice 40,000 rows that differ in the last place: each with each would be 1.6 billion pairs."""
    rows = [{"x": float(i), "y": float(i % 7)} for i in range(40_000)]
    near = [{"x": r["x"] * (1 + 1e-14), "y": r["y"]} for r in reversed(rows)]
    begun = time.perf_counter()
    assert _compared(rows, near, _POINT) == (0, 0)
    assert time.perf_counter() - begun < 20
