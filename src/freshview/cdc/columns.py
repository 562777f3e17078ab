"""Changes as columns: the texts of a column converted at once, and the net effect of many changes without a loop.

Law: `net_of_columns` equals `net.net_effect` of the same changes. What it cannot decide (a value that does not fit, a
change that contradicts the one before it) it leaves to the way row by row, which names the value or the row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from freshview.cdc.model import PartialDelta, key_schema, partial_delta
from freshview.cdc.net import LoggedChange, Row, net_effect
from freshview.errors import FreshviewError
from freshview.relation.delta import grouped, key_table
from freshview.relation.ingest import store
from freshview.relation.schema import Schema
from freshview.relation.types import INEXACT, INTEGERS, DataType

INSERTED, UPDATED, DELETED = 0, 1, 2
_CAST = (*INTEGERS, *INEXACT, "decimal", "date", "timestamp", "timestamp_ntz")


class NotColumns(Exception):
    """Values or changes that are to be read row by row."""


@dataclass(frozen=True)
class ChangeColumns:
    """Changes of one key each, in the order in which they happened.

    `keys` has the key of each change. `new` counts where no row was deleted, and `old` where none was inserted; `old`
    is None if the log has no whole old images. `places` are where the changes stand in the log, after `place`.
    """

    schema: Schema
    kinds: np.ndarray  # of INSERTED, UPDATED and DELETED
    keys: pa.Table
    new: pa.Table
    old: pa.Table | None
    places: pa.ChunkedArray
    place: str

    def rows(self) -> list[LoggedChange]:
        """The changes one by one."""
        old = [None] * len(self.kinds) if self.old is None else _rows(self.old)
        found = zip(_rows(self.keys), self.kinds.tolist(), _rows(self.new), old, self.places.to_pylist(), strict=True)
        return [
            LoggedChange(
                key,
                kind != INSERTED,
                None if kind == DELETED else new,
                None if kind == INSERTED else before,
                f"{self.place} {at}",
            )
            for key, kind, new, before, at in found
        ]


def _rows(table: pa.Table) -> list[Row]:
    return list(zip(*(c.to_pylist() for c in table.columns), strict=True))


def from_texts(texts: pa.ChunkedArray, type_: DataType) -> pa.ChunkedArray:
    """Texts of values, as PostgreSQL writes them, as a column of a type; NotColumns if one may not be such a value."""
    try:
        if type_.is_text:
            return texts
        if type_.kind in _CAST:
            return texts.cast(type_.arrow)
    except pa.ArrowException as error:
        raise NotColumns from error
    if type_.kind == "boolean":
        known = pa.array(["f", "false", "t", "true"])
        at = pc.index_in(texts, known, skip_nulls=True)
        if at.null_count > texts.null_count:
            raise NotColumns
        return pc.greater_equal(at, 2)
    if type_.kind == "binary":
        values = texts.to_pylist()
        if all(v is None or v.startswith("\\x") for v in values):
            return pa.chunked_array([pa.array([v if v is None else bytes.fromhex(v[2:]) for v in values], pa.binary())])
    raise NotColumns


def table_of_texts(texts: Sequence[pa.ChunkedArray], schema: Schema, names: Sequence[str], what: str) -> pa.Table:
    """Columns of texts as columns of a relation; NotColumns if a value may not fit."""
    try:
        stored = [
            store(from_texts(column, schema.column(n).type), schema.column(n), what)
            for n, column in zip(names, texts, strict=True)
        ]
    except FreshviewError as error:
        raise NotColumns from error
    return pa.table(stored, schema=pa.schema([schema.arrow.field(n) for n in names]))


def net_of_columns(name: str, changes: ChangeColumns, *, precise: bool = True) -> PartialDelta:
    """The six sets of changes; NotColumns if two changes of a row contradict each other."""
    schema, kinds, old = changes.schema, changes.kinds, changes.old
    if not len(kinds):
        return partial_delta(name, schema)
    if any(schema.column(k).type.kind in INEXACT for k in schema.key):
        raise NotColumns  # 0.0 and -0.0 are one key there, and two by their bits
    numbers, at = grouped(key_table(changes.keys, key_schema(schema)))
    begins = np.r_[True, numbers[1:] != numbers[:-1]]
    _check_runs(changes, at, begins)
    first, last = at[begins], at[np.r_[begins[1:], True]]
    order = np.argsort(first)  # keys in the order in which they first changed
    first, last = first[order], last[order]
    live = kinds[last] != DELETED
    if not precise:
        return partial_delta(name, schema, ups=changes.new.take(last[live]), delk=changes.keys.take(last[~live]))
    existed = kinds[first] != INSERTED
    kept, gone = live & existed, ~live & existed
    ins = changes.new.take(last[live & ~existed])
    if old is None:
        up, delk = changes.new.take(last[kept]), changes.keys.take(first[gone])
        return partial_delta(name, schema, ins=ins, up=up, delk=delk)
    new, before = changes.new.take(last[kept]), old.take(first[kept])
    differ = pa.array(~equal_rows(new, before, schema))
    pairs = (new.filter(differ), before.filter(differ))
    return partial_delta(name, schema, ins=ins, deleted=old.take(first[gone]), pairs=pairs)


def net_effect_of(name: str, changes: ChangeColumns, *, precise: bool = True) -> PartialDelta:
    """The six sets of changes; CaptureFailed, which names the row, if two changes contradict each other."""
    try:
        return net_of_columns(name, changes, precise=precise)
    except NotColumns:
        return net_effect(name, changes.schema, changes.rows(), precise=precise)


def _check_runs(changes: ChangeColumns, at: np.ndarray, begins: np.ndarray) -> None:
    """Raise if a change does not fit the one before it of the same key: existence, and the old image to the bit."""
    later = np.flatnonzero(~begins)
    if not len(later):
        return
    before, now = at[later - 1], at[later]
    if ((changes.kinds[before] != DELETED) != (changes.kinds[now] != INSERTED)).any():
        raise NotColumns
    if changes.old is not None:
        both = changes.kinds[now] != INSERTED
        if not equal_rows(changes.new.take(before[both]), changes.old.take(now[both]), changes.schema).all():
            raise NotColumns


def equal_rows(some: pa.Table, others: pa.Table, schema: Schema) -> np.ndarray:
    """Which rows (in the columns of a schema) are equal to the bit, place by place; NULL equals NULL."""
    whole = Schema(schema.columns)
    found = np.ones(some.num_rows, dtype=bool)
    for a, b in zip(key_table(some, whole).columns, key_table(others, whole).columns, strict=True):
        same = pc.or_(pc.fill_null(pc.equal(a, b), False), pc.and_(pc.is_null(a), pc.is_null(b)))
        found &= same.to_numpy()
    return found
