"""Casts of nested Arrow columns that lose nothing: names of fields are equal to the letter, or it is an error.

Arrow casts structs by name: it silently fills missing fields with NULL and drops surplus ones.
Names of columns may differ (a column's place identifies it); names inside a column are data and may not.
"""

from __future__ import annotations

import pyarrow as pa

from freshview.errors import FieldMismatch

__all__ = ["cast_column", "cast_table"]


def cast_column(column: pa.ChunkedArray, type_: pa.DataType, what: str, *, may_lack: bool = False) -> pa.ChunkedArray:
    """The column cast to a type with the same fields; FieldMismatch if the fields differ.

    With `may_lack`, fields that the column does not have are NULL (a file that was written before they were added).
    """
    if column.type == type_:
        return column
    _require_same(column.type, type_, what, may_lack=may_lack)
    return column.cast(type_)


def cast_table(table: pa.Table, schema: pa.Schema, what: str) -> pa.Table:
    """The table cast to a schema, columns by place; FieldMismatch if the fields of a column differ."""
    arrays = [cast_column(c, f.type, f"{what}, column {f.name}") for c, f in zip(table.columns, schema, strict=True)]
    return pa.table(arrays, schema=schema)


def _require_same(given: pa.DataType, wanted: pa.DataType, what: str, *, may_lack: bool) -> None:
    if pa.types.is_struct(given) and pa.types.is_struct(wanted):
        ours, theirs = _names(wanted), _names(given)
        lost = [n for n in theirs if n not in ours]
        if lost or (ours != theirs and not may_lack):
            cause = f"it has the fields {', '.join(theirs)}, where {', '.join(ours)} were expected"
            raise FieldMismatch(what, cause, "Create the view again, and report this with its definition.")
        given_fields = {f.name: f.type for f in given.fields}
        for field in wanted.fields:
            if field.name in given_fields:
                _require_same(given_fields[field.name], field.type, what, may_lack=may_lack)
    elif pa.types.is_map(given) and pa.types.is_map(wanted):
        _require_same(given.key_type, wanted.key_type, what, may_lack=may_lack)
        _require_same(given.item_type, wanted.item_type, what, may_lack=may_lack)
    elif _is_list(given) and _is_list(wanted):
        _require_same(given.value_type, wanted.value_type, what, may_lack=may_lack)


def _names(struct: pa.StructType) -> list[str]:
    return [f.name for f in struct.fields]


def _is_list(type_: pa.DataType) -> bool:
    return bool(pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_list_view(type_))
