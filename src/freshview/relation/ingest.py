"""Conversion of user data (Arrow, pandas, rows) to an Arrow table with exactly a relation's columns.

A value that would change (an overflow, a fraction cut off, a time without a zone) is an error and never repaired
silently. The one exception is what Spark itself does to CHAR and VARCHAR.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from freshview.errors import InvalidStatement, NotFound, NotNullViolation, TypeMismatch
from freshview.relation.exact import Unfit, from_arrays, from_cells
from freshview.relation.schema import Column, Schema, fold
from freshview.relation.types import INTEGERS

Data = Any  # pa.Table | pa.RecordBatch | pandas.DataFrame | Iterable[Mapping]; checked in to_table()


@dataclass(frozen=True)
class _Given:
    """Columns as the user gave them, in order: names, and Arrow columns or lists of Python values."""

    rows: int
    columns: list[tuple[str, pa.ChunkedArray | list[Any]]]


def to_table(data: Data, schema: Schema, name: str, only: Sequence[str] | None = None) -> pa.Table:
    """The data as a table of the relation's columns (or those of `only`), typed; missing columns are NULL."""
    columns = schema.columns if only is None else tuple(schema.column(c) for c in only)
    given = _given(data, name)
    by_name: dict[str, pa.ChunkedArray | list[Any]] = {}
    known = {fold(c.name) for c in columns}
    for given_name, values in given.columns:
        if fold(given_name) not in known:
            expected = ", ".join(c.name for c in columns)
            raise NotFound(f"column {given_name} of {name}", f"expected {expected}", "Check the spelling.")
        if fold(given_name) in by_name:
            raise InvalidStatement(f"column {given_name} of {name}", "is given twice", "Give each column once.")
        by_name[fold(given_name)] = values
    arrays = [
        store(by_name[fold(c.name)], c, name) if fold(c.name) in by_name else pa.nulls(given.rows, c.type.arrow)
        for c in columns
    ]
    return pa.table(arrays, schema=pa.schema([pa.field(c.name, c.type.arrow) for c in columns]))


def _given(data: Data, name: str) -> _Given:
    if type(data).__module__.split(".")[0] == "pandas":  # before Arrow's protocol, which would add the index
        if hasattr(data, "columns"):
            return _from_pandas(data, name)
    elif isinstance(data, pa.Table):
        return _from_arrow(data)
    elif hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__"):
        try:
            return _from_arrow(pa.table(data))
        except (pa.ArrowException, TypeError, ValueError):
            pass  # Arrow data that is no table, such as an array
    elif isinstance(data, Mapping):
        return _from_rows([data], name)
    elif isinstance(data, Iterable) and not isinstance(data, str | bytes):
        return _from_rows(list(data), name)
    raise TypeMismatch(
        f"data for {name}",
        f"{type(data).__name__} is not understood",
        "Give an Arrow table, a pandas or Spark DataFrame, or a list of dicts.",
    )


def _from_arrow(table: pa.Table) -> _Given:
    return _Given(table.num_rows, list(zip(table.column_names, table.columns, strict=True)))


def _from_pandas(frame: Any, name: str) -> _Given:
    """The columns of a pandas DataFrame; pandas' missing values (NaN, NaT, None, NA) are all NULL."""
    columns: list[tuple[str, pa.ChunkedArray | list[Any]]] = []
    for i, label in enumerate(frame.columns):
        series = frame.iloc[:, i]
        if series.dtype == object:
            missing = series.isna()
            columns.append((str(label), [None if m else v for v, m in zip(series, missing, strict=True)]))
            continue
        try:
            array = pa.Array.from_pandas(series)
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise TypeMismatch(
                f"column {label} of {name}",
                f"pandas type {series.dtype} is not understood",
                "Convert the column first.",
            ) from error
        columns.append((str(label), array if isinstance(array, pa.ChunkedArray) else pa.chunked_array([array])))
    return _Given(len(frame), columns)


def _from_rows(rows: list[Any], name: str) -> _Given:
    names: dict[Any, None] = {}
    for i, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise TypeMismatch(
                f"row {i} for {name}", f"{type(row).__name__} is not a dict", "Give dicts of column name to value."
            )
        names.update(dict.fromkeys(row))
    return _Given(len(rows), [(str(n), [row.get(n) for row in rows]) for n in names])


def store(source: pa.ChunkedArray | list[Any], column: Column, name: str) -> pa.ChunkedArray:
    """An Arrow column or Python values, converted to the column's type; TypeMismatch if a value would change."""
    try:
        stored = (
            pa.chunked_array([from_cells(source, column.type)])
            if isinstance(source, list)
            else from_arrays(source, column.type)
        )
    except Unfit as reason:
        raise TypeMismatch(
            f"column {column.name} of {name}", f"it cannot be stored as {column.type}: {reason}", "Convert it first."
        ) from reason
    return sized(stored, column, name) if column.type.kind in ("char", "varchar") else stored


def sized(source: pa.ChunkedArray, column: Column, name: str) -> pa.ChunkedArray:
    """Text as CHAR(n) or VARCHAR(n): without surplus trailing spaces, CHAR padded to n; TypeMismatch if longer."""
    limit = column.type.params[0]
    length = pc.utf8_length(source)
    if pc.any(pc.greater(length, limit)).as_py():
        trimmed = pc.utf8_rtrim(source, characters=" ")
        bare = pc.utf8_length(trimmed)
        if pc.any(pc.greater(bare, limit)).as_py():
            at = pc.index(pc.greater(bare, limit), True).as_py()
            raise TypeMismatch(
                f"column {column.name} of {name}",
                f"{source[at].as_py()!r:.60} is longer than {column.type}",
                "Shorten the value or widen the column.",
            )
        cut = pc.utf8_slice_codeunits(source, 0, limit)
        source = pc.if_else(pc.greater(length, limit), cut, source)
    if column.type.kind == "char":
        source = pc.utf8_rpad(source, limit, " ")
    return source


def check_required(rows: pa.Table, schema: Schema, name: str, columns: Sequence[str] | None = None) -> None:
    """Raise NotNullViolation if a NOT NULL or key column (or one of `columns`) holds NULL."""
    for required in columns if columns is not None else schema.required:
        column = rows.column(schema.position(required) if columns is None else required)
        if column.null_count:
            at = pc.index(pc.is_null(column), True).as_py()
            raise NotNullViolation(
                f"column {required} of {name}", f"row {at} has NULL", "The column is NOT NULL; give a value."
            )


def is_number_store(given: pa.DataType, column: Column) -> bool:
    """Whether `store_number` does what Spark's store assignment does: for the same type, or for exact numbers."""
    if given == column.type.arrow:
        return column.type.kind not in ("char", "varchar")
    to_exact = column.type.kind == "decimal" or column.type.kind in INTEGERS
    return to_exact and (pa.types.is_integer(given) or (pa.types.is_decimal(given) and column.type.kind == "decimal"))


def store_number(source: pa.ChunkedArray, column: Column, name: str) -> pa.ChunkedArray:
    """Exact numbers converted as Spark stores them: decimals rounded half up; TypeMismatch on overflow."""
    target = column.type
    if source.type == target.arrow:
        return source
    try:
        if target.kind == "decimal":  # with room for a digit that rounding adds: Arrow also checks the type in between
            scale = source.type.scale if pa.types.is_decimal(source.type) else 0
            source = source.cast(pa.decimal256(76, scale))
            if scale > target.params[1]:
                source = pc.round(source, ndigits=target.params[1], round_mode="half_towards_infinity")
        return source.cast(target.arrow)
    except pa.ArrowInvalid as error:
        raise TypeMismatch(
            f"column {column.name} of {name}", f"a value does not fit {target}", "Convert the value first."
        ) from error
