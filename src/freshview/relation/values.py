"""Values of Arrow columns in Python, also those that Python's calendar does not reach."""

from __future__ import annotations

from typing import Any

import pyarrow as pa


def python_values(column: pa.ChunkedArray) -> list[Any]:
    """The values of a column; where a date or a time is beyond Python's years, all of its dates and times are numbers
    of days and microseconds since 1970."""
    try:
        return list(column.to_pylist())
    except (OverflowError, ValueError):
        return numbered_values(column)


def numbered_values(column: pa.ChunkedArray) -> list[Any]:
    """The values of a column, all of its dates and times as numbers: two columns of a type compare by these."""
    return list(column.cast(_without_calendar(column.type)).to_pylist())


def python_rows(table: pa.Table) -> list[dict[str, Any]]:
    """The rows of a table, by column name."""
    columns = map(python_values, table.columns)
    return [dict(zip(table.column_names, row, strict=True)) for row in zip(*columns, strict=True)]


def _without_calendar(type_: pa.DataType) -> pa.DataType:
    if pa.types.is_date(type_):
        return pa.int32()
    if pa.types.is_timestamp(type_):
        return pa.int64()
    if pa.types.is_struct(type_):
        return pa.struct([f.with_type(_without_calendar(f.type)) for f in type_])
    if pa.types.is_map(type_):
        return pa.map_(_without_calendar(type_.key_type), _without_calendar(type_.item_type))
    if pa.types.is_list(type_):
        return pa.list_(type_.value_field.with_type(_without_calendar(type_.value_type)))
    return type_
