"""User data (Arrow, pandas, rows) as an Arrow table of exactly a relation's columns.

Spark's store assignment decides what may go into what; a value that would change on the way
(an overflow, a fraction cut off, a time without a zone) is an error, never a silent repair.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from freshview.errors import InvalidStatement, NotFound, NotNullViolation, TypeMismatch
from freshview.relation.schema import Column, Schema, fold
from freshview.relation.types import DataType, can_store, from_arrow

Data = Any  # pa.Table | pa.RecordBatch | pandas.DataFrame | Iterable[Mapping]; checked in to_table()


def to_table(data: Data, schema: Schema, name: str, only: Sequence[str] | None = None) -> pa.Table:
    """The data in the relation's columns (or those of `only`), typed; missing columns are NULL."""
    columns = schema.columns if only is None else tuple(schema.column(c) for c in only)
    given = _as_arrow(data, columns, name)
    by_name: dict[str, int] = {}
    for i, given_name in enumerate(given.column_names):
        if not any(fold(given_name) == fold(c.name) for c in columns):
            expected = ", ".join(c.name for c in columns)
            raise NotFound(f"column {given_name} of {name}", f"expected {expected}", "Check the spelling.")
        if fold(given_name) in by_name:
            raise InvalidStatement(f"column {given_name} of {name}", "is given twice", "Give each column once.")
        by_name[fold(given_name)] = i
    arrays = []
    for column in columns:
        if fold(column.name) in by_name:
            source = given.column(by_name[fold(column.name)])
            arrays.append(store(source, column, name))
        else:
            arrays.append(pa.nulls(given.num_rows, column.type.arrow))
    return pa.table(arrays, schema=pa.schema([pa.field(c.name, c.type.arrow) for c in columns]))


def _as_arrow(data: Data, columns: tuple[Column, ...], name: str) -> pa.Table:
    if isinstance(data, pa.Table):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    if hasattr(data, "__arrow_c_stream__"):
        return pa.table(data)
    if type(data).__module__.split(".")[0] == "pandas":
        return pa.Table.from_pandas(data, preserve_index=False)
    if isinstance(data, Mapping):
        data = [data]
    if isinstance(data, Iterable) and not isinstance(data, str | bytes):
        return _from_rows(list(data), columns, name)
    raise TypeMismatch(
        f"data for {name}",
        f"{type(data).__name__} is not understood",
        "Give an Arrow table, a pandas or Spark DataFrame, or a list of dicts.",
    )


def _from_rows(rows: list[Any], columns: tuple[Column, ...], name: str) -> pa.Table:
    known = {fold(c.name): c for c in columns}
    values: dict[str, list[Any]] = {}
    for i, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise TypeMismatch(
                f"row {i} for {name}", f"{type(row).__name__} is not a dict", "Give dicts of column name to value."
            )
        for given_name in row:
            if given_name not in values:
                if fold(str(given_name)) not in known:
                    expected = ", ".join(c.name for c in columns)
                    raise NotFound(f"column {given_name} of {name}", f"expected {expected}", "Check the spelling.")
                values[given_name] = []
    arrays = []
    for given_name, cells in values.items():
        column = known[fold(given_name)]
        cells.extend(row.get(given_name) for row in rows)
        arrays.append(_from_values(cells, column, name))
    if not arrays:
        return pa.table({"": pa.nulls(len(rows))}).select([]) if not rows else _empty_rows(len(rows), columns)
    return pa.table(arrays, names=list(values))


def _empty_rows(length: int, columns: tuple[Column, ...]) -> pa.Table:
    return pa.table([pa.nulls(length, columns[0].type.arrow)], names=[columns[0].name])


def _from_values(cells: list[Any], column: Column, name: str) -> pa.Array:
    """Python values in the column's own type where they fit it, else as Arrow infers them."""
    if column.type.kind == "timestamp" and any(isinstance(v, datetime.datetime) and v.tzinfo is None for v in cells):
        raise _no_zone(column, name)
    mismatch = TypeMismatch(
        f"column {column.name} of {name}",
        f"{_culprit(cells, column)} cannot be stored as {column.type}",
        "Convert the value first.",
    )
    try:
        inferred = pa.array(cells)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError):
        inferred = None  # mixed widths, maps and the like: the column's own type decides
    if inferred is not None and not column.type.is_nested and not pa.types.is_null(inferred.type):
        if not can_store(from_arrow(inferred.type), column.type):
            raise mismatch
    try:
        return pa.array(cells, column.type.arrow)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError, TypeError, ValueError):
        if inferred is None or column.type.is_nested:
            raise mismatch from None
        return inferred


def _culprit(cells: list[Any], column: Column) -> str:
    for value in cells:
        try:
            pa.array([value], column.type.arrow)
        except Exception:
            return f"{value!r:.60}"
    return "a value"


def store(source: pa.ChunkedArray, column: Column, name: str) -> pa.ChunkedArray:
    """A column of any Arrow type as the stored type, or TypeMismatch."""
    target = column.type
    if pa.types.is_null(source.type):
        return pa.chunked_array([pa.nulls(len(source), target.arrow)])
    given = from_arrow(source.type)
    if pa.types.is_timestamp(source.type) and source.type.tz is None and target.kind == "timestamp":
        raise _no_zone(column, name)
    if not can_store(given, target):
        raise TypeMismatch(
            f"column {column.name} of {name}", f"{given} cannot be stored as {target}", "Convert the column first."
        )
    if target.is_text and not given.is_text:
        raise TypeMismatch(
            f"column {column.name} of {name}",
            f"{given} would have to be formatted as text",
            "Convert the column to strings first.",
        )
    if source.type != target.arrow:
        source = _cast(source, given, target, column, name)
    return sized(source, column, name) if target.kind in ("char", "varchar") else source


def _cast(source: pa.ChunkedArray, given: DataType, target: DataType, column: Column, name: str) -> pa.ChunkedArray:
    try:
        if pa.types.is_string_view(source.type) or pa.types.is_binary_view(source.type):
            return source.cast(target.arrow)
        if given.kind == "decimal" and target.kind == "decimal" and given.params[1] > target.params[1]:
            source = pc.round(source, ndigits=target.params[1], round_mode="half_towards_infinity")
        return source.cast(target.arrow)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise TypeMismatch(
            f"column {column.name} of {name}",
            f"{given} does not fit {target} ({str(error).splitlines()[0]})",
            "Convert the column first.",
        ) from error


def sized(source: pa.ChunkedArray, column: Column, name: str) -> pa.ChunkedArray:
    """CHAR(n) is padded to n; both CHAR and VARCHAR drop surplus trailing spaces, and refuse more."""
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
    """NOT NULL and key columns hold no NULL."""
    for required in columns if columns is not None else schema.required:
        column = rows.column(schema.position(required) if columns is None else required)
        if column.null_count:
            at = pc.index(pc.is_null(column), True).as_py()
            raise NotNullViolation(
                f"column {required} of {name}", f"row {at} has NULL", "The column is NOT NULL; give a value."
            )


def _no_zone(column: Column, name: str) -> TypeMismatch:
    return TypeMismatch(
        f"column {column.name} of {name}",
        "TIMESTAMP is an instant, and a value has no time zone",
        "Give times with a zone, or declare the column TIMESTAMP_NTZ.",
    )
