"""The rows of a statement that Spark has evaluated into files: reading them, their keys, and the images in them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from freshview.catalog.records import DataFile
from freshview.relation.delta import first_duplicate
from freshview.relation.fields import cast_column
from freshview.relation.schema import Column, Schema
from freshview.relation.types import INTEGERS
from freshview.sql import dml

_KEYS_AT_ONCE = 1_000_000  # integer keys that are checked together


@dataclass(frozen=True)
class StatementResult:
    """A statement's evaluated result in files."""

    files: tuple[DataFile, ...]
    paths: list[Any]
    schema: Schema

    @property
    def rows(self) -> int:
        return sum(f.rows for f in self.files)

    @property
    def size(self) -> int:
        return sum(f.size for f in self.files)

    def load(self) -> pa.Table | None:
        return pa.concat_tables([pq.ParquetFile(p).read() for p in self.paths]) if self.paths else None

    def take(self) -> pa.Table:
        """All rows, in the table's columns."""
        rows = self.load()
        return self.schema.conform(rows) if rows is not None else self.schema.arrow.empty_table()

    def batches(self) -> Iterable[pa.Table]:
        for path in self.paths:
            for batch in pq.ParquetFile(path).iter_batches(batch_size=65_536):
                yield pa.Table.from_batches([batch])


def stored_keys(paths: Sequence[Any], schema: Schema) -> pa.Table:
    """The keys of the rows in files."""
    return pa.concat_tables([pq.read_table(p, columns=list(schema.key)).select(list(schema.key)) for p in paths])


def repeated_key(paths: Sequence[Any], schema: Schema) -> dict[str, Any] | None:
    """A key that occurs twice in files, or None; many integer keys are checked in shares."""
    keys = stored_keys(paths, schema).rename_columns([f"k{i}" for i in range(len(schema.key))])
    shares = 1 + keys.num_rows // _KEYS_AT_ONCE if schema.column(schema.key[0]).type.kind in INTEGERS else 1
    for share in range(shares):
        part = keys
        if shares > 1:
            lead = keys.column(0).to_numpy()
            part = keys.filter(pa.array(lead % shares == share))
        at = first_duplicate(part)
        if at is not None:
            return {k: part.column(i)[at].as_py() for i, k in enumerate(schema.key)}
    return None


def has_null(path: Any, column: str) -> bool:
    """Has a column of a file a NULL? The footer answers where it can."""
    footer = pq.read_metadata(path)
    places = [i for i in range(footer.num_columns) if footer.schema.column(i).path.split(".")[0] == column]
    if any(footer.schema.column(i).path != column for i in places):
        places = []  # the elements of a nested column may be NULL where it is not
    if len(places) == 1:
        statistics = [footer.row_group(g).column(places[0]).statistics for g in range(footer.num_row_groups)]
        if all(s is not None and s.has_null_count for s in statistics):
            return any(s.null_count for s in statistics)
    return bool(pq.read_table(path, columns=[column]).column(0).null_count)


def old_images(rows: pa.Table, schema: Schema) -> pa.Table:
    """The rows of the table that a result holds."""
    arrays = [cast_to(rows.column(dml.old_name(i)), c) for i, c in enumerate(schema.columns)]
    return pa.table(arrays, schema=schema.arrow)


def new_images(rows: pa.Table, old: pa.Table | None, clause: int, values: dict[int, str], schema: Schema) -> pa.Table:
    """The rows that a clause makes: its values, by place, and those of the old images, or NULL, in other columns."""
    arrays = []
    for i, column in enumerate(schema.columns):
        if i in values:
            arrays.append(cast_to(rows.column(dml.new_name(i, clause)), column))
        elif old is not None:
            arrays.append(old.column(i))
        else:
            arrays.append(pa.nulls(rows.num_rows, column.type.arrow))
    return pa.table(arrays, schema=schema.arrow)


def cast_to(array: pa.ChunkedArray, column: Column) -> pa.ChunkedArray:
    """Values in the type of a column."""
    return cast_column(array, column.type.arrow, f"column {column.name}")


def keys_only(rows: pa.Table, schema: Schema) -> pa.Table:
    """The keys of rows, NULL in the other columns."""
    return schema.widened(rows.select(list(schema.key_positions)))
