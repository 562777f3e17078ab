"""Answers of Spark as bags that can be compared exactly: names, types, and rows with their counts.

Values come from Arrow, not from `collect()`: an instant is a number of microseconds and has no time zone, a year may
lie beyond Python's calendar, and −0.0 differs from 0.0.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Row = tuple[Any, ...]


@dataclass(frozen=True)
class Answer:
    """The result of a query: column names and types, and its rows as a bag."""

    columns: tuple[tuple[str, str], ...]
    rows: Counter[Row]

    def difference(self, other: Answer) -> str:
        """What differs from another answer, in one line; empty if nothing does."""
        if [c for c, _ in self.columns] != [c for c, _ in other.columns]:
            return f"names {[c for c, _ in self.columns]} and {[c for c, _ in other.columns]}"
        if self.columns != other.columns:
            pairs = zip(self.columns, other.columns, strict=True)
            return "types " + "; ".join(f"{a[0]}: {a[1]} and {b[1]}" for a, b in pairs if a != b)
        if self.rows != other.rows:
            missing, extra = self.rows - other.rows, other.rows - self.rows
            return f"rows: missing {shown(missing)}; extra {shown(extra)}"
        return ""


def shown(rows: Counter[Row], most: int = 4) -> str:
    """A bag of rows as a short text."""
    told = [f"{n} × {row}" if n > 1 else str(row) for row, n in sorted(rows.items(), key=repr)[:most]]
    return "[" + ", ".join(told) + (f", … {len(rows) - most} more" if len(rows) > most else "") + "]"


def answer_of(frame: DataFrame) -> Answer:
    """Run a query and return its answer."""
    columns = tuple((f.name, f.dataType.simpleString()) for f in frame.schema.fields)
    return Answer(columns, bag(frame.toArrow()))


def bag(table: pa.Table) -> Counter[Row]:
    """The rows of an Arrow table, with their counts."""
    if not table.num_columns:
        return Counter({(): table.num_rows} if table.num_rows else {})
    columns = [canonical(column.combine_chunks()) for column in table.columns]
    return Counter(zip(*columns, strict=True))


def canonical(array: pa.Array | pa.ChunkedArray) -> list[Any]:
    """The values of an Arrow array as Python values that are equal exactly if Spark's values are the same."""
    if isinstance(array, pa.ChunkedArray):
        return [value for chunk in array.chunks for value in canonical(chunk)]
    kind = array.type
    valid = array.is_valid().to_pylist()
    values = _present(array, kind)
    return [value if there else None for value, there in zip(values, valid, strict=True)]


def _present(array: pa.Array, kind: pa.DataType) -> list[Any]:
    if pa.types.is_timestamp(kind):
        return list(array.cast(pa.int64()).to_pylist())
    if pa.types.is_date(kind):
        return list(array.cast(pa.int32()).to_pylist())
    if pa.types.is_time(kind) or pa.types.is_duration(kind):
        return list(array.cast(pa.int64()).to_pylist())
    if pa.types.is_floating(kind):
        return [_number(v) for v in array.to_pylist()]
    if pa.types.is_decimal(kind):
        return [None if v is None else str(v) for v in array.to_pylist()]
    if pa.types.is_struct(kind):
        fields = [canonical(array.field(i)) for i in range(kind.num_fields)]
        names = [kind.field(i).name for i in range(kind.num_fields)]
        return [tuple(zip(names, row, strict=True)) for row in zip(*fields, strict=True)] or [()] * len(array)
    if pa.types.is_map(kind):
        return _slices(array, lambda: list(zip(canonical(array.keys), canonical(array.items), strict=True)), unordered)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _slices(array, lambda: canonical(array.values), tuple)
    return list(array.to_pylist())


def _slices(array: Any, elements: Callable[[], list[Any]], gather: Callable[[list[Any]], Any]) -> list[Any]:
    """The elements of each list, cut by the array's offsets."""
    offsets, inner = array.offsets.to_pylist(), elements()
    return [gather(inner[a:b]) for a, b in pairwise(offsets)]


def unordered(items: list[Any]) -> Any:
    """The entries of a map, whose order means nothing."""
    return ("map", *sorted(items, key=repr))


def _number(value: float | None) -> Any:
    """A floating number; NaN is one value, and −0.0 is not 0.0."""
    if value is None:
        return None
    if value != value:
        return "NaN"
    return "-0.0" if struct.pack(">d", value) == struct.pack(">d", -0.0) else value
