"""Values of Arrow columns in Python, including dates and times that Python's calendar does not reach."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa


def python_values(column: pa.ChunkedArray) -> list[Any]:
    """The values of a column; if one is beyond Python's years, dates and times as days and µs since 1970."""
    try:
        return list(column.to_pylist())
    except (OverflowError, ValueError):
        return numbered_values(column)


def numbered_values(column: pa.ChunkedArray) -> list[Any]:
    """The values of a column, with dates and times as numbers: two columns of a type compare by these."""
    return list(column.cast(with_leaves(column.type, _without_calendar)).to_pylist())


def python_rows(table: pa.Table) -> list[dict[str, Any]]:
    """The rows of a table as dicts by column name."""
    columns = map(python_values, table.columns)
    return [dict(zip(table.column_names, row, strict=True)) for row in zip(*columns, strict=True)]


def with_leaves(type_: pa.DataType, leaf: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """An Arrow type in which each type that is no struct, map or list is replaced by `leaf(type)`."""
    if pa.types.is_struct(type_):
        return pa.struct([f.with_type(with_leaves(f.type, leaf)) for f in type_.fields])
    if pa.types.is_map(type_):
        return pa.map_(with_leaves(type_.key_type, leaf), with_leaves(type_.item_type, leaf))
    if pa.types.is_list(type_):
        return pa.list_(type_.value_field.with_type(with_leaves(type_.value_type, leaf)))
    return leaf(type_)


def _without_calendar(type_: pa.DataType) -> pa.DataType:
    if pa.types.is_date(type_):
        return pa.int32()
    return pa.int64() if pa.types.is_timestamp(type_) else type_
