"""The rows of an external Delta table: all of a version, and those that changed between two versions.

Law: the delta rows between two versions are exact as bags; rows that were only rewritten cancel.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from freshview.catalog.records import Main, Relation
from freshview.errors import SnapshotExpired
from freshview.relation.delta import DELETE, INSERT, overlay, tag
from freshview.relation.fields import cast_column
from freshview.relation.schema import Schema
from freshview.relation.types import DataType
from freshview.storage.external import PartitionValues, listing, open_external, open_seen, root_of, unreadable
from freshview.storage.external_files import (
    CHANGE_TYPE,
    OLD_IMAGES,
    ChangedFile,
    between_file_sets,
    changed_files,
)

_FOLD_ROWS = 200_000  # rows that are read before equal ones cancel
# What Spark notes in files with days and times of the hybrid calendar. It converts those before these ends, where the
# calendars differ or the offsets of time zones do, when it reads them. Old versions write all files so.
_VERSION = b"org.apache.spark.version"
_HYBRID = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")
_PLAIN_SINCE = (3, 1)
_DAYS_END, _MICROS_END = -141_427, -2_208_988_800_000_000  # 1582-10-15 and 1900-01-01


def contents(relation: Relation, seen: Main) -> pa.Table:
    """All rows of a version that was seen, in the relation's columns. They are held in memory: it is to be small."""
    table, bag = open_seen(relation, seen), Schema(relation.schema.columns)
    root = root_of(table.table_uri)
    rows = [_conformed(_stored(root, file.path), file.values, bag) for file in listing(table)]
    return pa.concat_tables([bag.arrow.empty_table(), *rows])


def column_parts(table: DeltaTable, columns: Schema) -> Iterator[pa.Table]:
    """The rows of a version in these of its columns alone, a file at a time."""
    root = root_of(table.table_uri)
    for file in listing(table):
        try:
            with pq.ParquetFile(root / unquote(file.path), coerce_int96_timestamp_unit="us") as data:
                stored = data.read(columns=[n for n in data.schema_arrow.names if columns.has(n)])
                marks = data.metadata.metadata
        except (OSError, pa.ArrowInvalid) as error:
            raise unreadable(root, file.path, error) from error
        _leave_to_spark(root, file.path, stored, marks)
        yield _conformed(stored, file.values, columns)


# -- rows that changed ---------------------------------------------------------------------------------


def changes(relation: Relation, after: int, upto: int, seen: Main | None = None) -> pa.Table:
    """The delta rows between two versions, exact as bags, in the relation's columns.

    With `seen`, version `upto` must still be the one that was seen. SnapshotExpired if neither the commits nor the two
    versions can be read any more. The changed rows of one partition and the net rows are held in memory, not all files.
    """
    assert relation.location is not None
    table = open_external(relation.location, upto) if seen is None else open_seen(relation, seen)
    bag = Schema(relation.schema.columns)
    try:
        return _net(_signed(table, changed_files(table, after, upto), bag), bag)
    except SnapshotExpired:  # a file or commit in between is gone; the two versions may still be there
        return _net(_signed(table, between_file_sets(table, after, upto), bag), bag)


def _net(parts: Iterable[pa.Table], bag: Schema) -> pa.Table:
    """The sum of delta rows; equal rows cancel part by part, so that rewritten files do not fill the memory."""
    net = bag.segment_arrow.empty_table()
    waiting: list[pa.Table] = []
    for part in parts:
        waiting.append(part)
        if sum(w.num_rows for w in waiting) > max(_FOLD_ROWS, net.num_rows):
            net, waiting = overlay([net, *waiting], bag).rows, []
    return overlay([net, *waiting], bag).rows


def _signed(table: DeltaTable, files: Iterable[ChangedFile], bag: Schema) -> Iterator[pa.Table]:
    """The rows of each file as delta rows."""
    root = root_of(table.table_uri)
    by_partition = sorted(files, key=lambda f: json.dumps(f.values, sort_keys=True))  # so that equal rows cancel soon
    for file in by_partition:
        stored = _stored(root, file.path)
        rows = _conformed(stored, file.values, bag)
        if file.weight:
            yield tag(rows, bag, INSERT if file.weight > 0 else DELETE, 1)
            continue
        old = pc.is_in(stored.column(CHANGE_TYPE), value_set=pa.array(OLD_IMAGES))
        yield tag(rows.filter(old), bag, DELETE, 1)
        yield tag(rows.filter(pc.invert(old)), bag, INSERT, 1)


def _stored(root: Path, path: str) -> pa.Table:
    try:
        with pq.ParquetFile(root / unquote(path), coerce_int96_timestamp_unit="us") as file:
            stored, marks = file.read(), file.metadata.metadata
    except (OSError, pa.ArrowInvalid) as error:
        raise unreadable(root, path, error) from error
    _leave_to_spark(root, path, stored, marks)
    return stored


def _leave_to_spark(root: Path, path: str, stored: pa.Table, marks: Mapping[bytes, bytes] | None) -> None:
    """Raise SnapshotExpired if a file has days or times that only Spark reads as they were meant."""
    version = (marks or {}).get(_VERSION)
    if marks is None or version is None:
        return
    number = tuple(int(part) for part in re.findall(rb"\d+", version)[:2])
    is_hybrid = number < _PLAIN_SINCE or any(mark in marks for mark in _HYBRID)
    if is_hybrid and any(map(_may_be_converted, stored.columns)):
        raise SnapshotExpired(
            f"Delta table {root}",
            f"data file {unquote(path)} has early days or times in the calendar of Spark 2, which only Spark converts",
            "Rewrite the table with spark.sql.parquet.datetimeRebaseModeInWrite=CORRECTED.",
        )


def _may_be_converted(column: pa.ChunkedArray) -> bool:
    """Has a column days or times for which the hybrid calendar may count differently? Nested ones are not looked at."""
    if pa.types.is_date(column.type):
        least = pc.min(column.cast(pa.int32())).as_py()
        return least is not None and least < _DAYS_END
    if pa.types.is_timestamp(column.type):
        least = pc.min(column.cast(pa.timestamp("us", column.type.tz), safe=False).cast(pa.int64())).as_py()
        return least is not None and least < _MICROS_END
    return bool(pa.types.is_nested(column.type)) and _has_times(column.type)


def _has_times(type_: pa.DataType) -> bool:
    if pa.types.is_nested(type_):
        return any(_has_times(type_.field(i).type) for i in range(type_.num_fields))
    return bool(pa.types.is_temporal(type_))


def _conformed(stored: pa.Table, values: PartitionValues, bag: Schema) -> pa.Table:
    """A file's rows in the relation's columns: partition values from the log, later columns NULL."""
    arrays = []
    for column in bag.columns:
        if column.name in values:
            arrays.append(_constant(values[column.name], column.type, stored.num_rows))
        elif column.name in stored.column_names:
            # Delta tables can gain fields inside structs: older files lack them.
            held, what = stored.column(column.name), f"column {column.name} of a data file"
            arrays.append(cast_column(held, column.type.arrow, what, may_lack=True))
        else:
            arrays.append(pa.nulls(stored.num_rows, column.type.arrow))
    return pa.table(arrays, schema=bag.arrow)


def _constant(text: str | None, type_: DataType, length: int) -> pa.Array:
    """A column of one partition value. Delta also writes NULL as ''; times without a zone are UTC."""
    if text is None or text == "":
        return pa.nulls(length, type_.arrow)
    value = pa.scalar(text, pa.string())
    if type_.kind == "timestamp":
        naive = pc.cast(pc.replace_substring_regex(value, "(Z|[+]00:?00)$", ""), pa.timestamp("us"))
        value = pc.cast(naive, type_.arrow)
    return pa.repeat(pc.cast(value, type_.arrow), length)
