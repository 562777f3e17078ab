"""Delta rows: how they are tagged, encoded and folded onto a relation (the ⊕ of the design).

Law (keyed):    R ⊕ S  =  per key, the last row by (csn, stmtsn, delete before insert) replaces R's.
Law (keyless):  R ⊕ S  =  R plus inserted rows minus deleted rows, as bags, by bit identity.

Delta rows are kept in the order in which they apply, so "last" is the highest position.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from freshview.errors import CorruptWarehouse
from freshview.relation.schema import ACTION, STMTSN, Schema
from freshview.relation.types import INEXACT, DataType
from freshview.relation.values import numbered_values

# The order of the values is the order of application: deletes before inserts.
DELETE = 0  # full old image
DELETE_KEY = 1  # blind: the key alone
INSERT = 2  # full new image
UPSERT = 3  # blind: new image, old one unknown
# Of a whole segment, never of one row: it holds all rows of its relation, and what was stored before is gone.
REPLACE = 4

_POSITION = "__position"
# Segments are small: a column per thread takes longer to hand over than to decode.
_COMPRESSED = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
_PLAIN = pa.ipc.IpcWriteOptions(use_threads=False)
_READING = pa.ipc.IpcReadOptions(use_threads=False)
_MOST_CHUNKS = 16  # of an overlay: copying all its rows into one for every few new ones would cost more than it saves


def tag(rows: pa.Table, schema: Schema, action: int, stmtsn: int) -> pa.Table:
    """Delta rows of one action and statement, from rows of a relation."""
    n = rows.num_rows
    arrays = [*rows.columns, _constant(stmtsn, n, pa.int32()), _constant(action, n, pa.int8())]
    return pa.table(arrays, schema=schema.segment_arrow)


def _constant(value: int, length: int, type_: pa.DataType) -> pa.Array:
    return pa.array(np.full(length, value, dtype=type_.to_pandas_dtype()), type=type_)


def untag(delta: pa.Table) -> pa.Table:
    """Delta rows without their tags."""
    return delta.select(list(range(delta.num_columns - 2)))


def actions(delta: pa.Table) -> pa.ChunkedArray:
    """The action of each delta row."""
    return delta.column(ACTION)


def is_live(delta: pa.Table) -> pa.ChunkedArray:
    """A mask of the rows that put an image in place (INSERT, UPSERT)."""
    return pc.greater_equal(actions(delta), pa.scalar(INSERT, pa.int8()))


def encode(delta: pa.Table) -> bytes:
    """Arrow IPC bytes for an inline segment."""
    return bytes(_stream(delta, _COMPRESSED))


def _stream(rows: pa.Table, options: pa.ipc.IpcWriteOptions) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=options) as writer:
        writer.write_table(rows.combine_chunks())
    return sink.getvalue()


def digest(rows: pa.Table) -> bytes:
    """A short name for these rows in this order: two tables with one digest are equal."""
    return hashlib.blake2b(_stream(rows, _PLAIN), digest_size=20).digest()


def decode(payload: bytes, where: str) -> pa.Table:
    """The delta rows of an inline segment."""
    try:
        return pa.ipc.open_stream(payload, options=_READING).read_all()
    except (pa.ArrowInvalid, OSError, EOFError) as error:
        raise CorruptWarehouse(
            where, f"an inline segment cannot be decoded ({error})", "Restore the catalog."
        ) from error


def conform_delta(delta: pa.Table, schema: Schema) -> pa.Table:
    """Delta rows written under an earlier schema version, in the columns of `schema`."""
    if delta.schema.equals(schema.segment_arrow):
        return delta
    rows = schema.conform(untag(delta))
    return pa.table([*rows.columns, delta.column(STMTSN), actions(delta)], schema=schema.segment_arrow)


def key_table(rows: pa.Table, schema: Schema) -> pa.Table:
    """The identity of each row as columns that compare by bits: the key, or the whole row of a bag.

    Columns are named by place, since grouping by name fails on dots and case.
    """
    places = schema.key_positions or tuple(range(len(schema.columns)))
    arrays = [_identity(rows.column(i), schema.columns[i].type) for i in places]
    return pa.table(arrays, names=[f"k{i}" for i in range(len(arrays))])


def describe_key(rows: pa.Table, schema: Schema, at: int) -> str:
    """The key of the row at a position, as text for messages."""
    values = (f"{schema.names[p]}={rows.column(p)[at].as_py()!r}" for p in schema.key_positions)
    return "(" + ", ".join(values) + ")"


def _identity(column: pa.ChunkedArray, type_: DataType) -> pa.ChunkedArray:
    """A column that compares by identity, not by SQL equality: -0.0 and 0.0 differ, NaN equals itself (law 11.4)."""
    if type_.is_nested:
        return pa.chunked_array([pa.array([repr(v) for v in numbered_values(column)], pa.string())])
    if type_.kind in INEXACT:
        bits = pa.int32() if type_.kind == "float" else pa.int64()
        one_nan = pc.if_else(pc.is_nan(column), pa.scalar(math.nan, column.type), column)  # one encoding of NaN
        return pa.chunked_array([c.view(bits) for c in one_nan.chunks], bits)
    return column


def _numbered(keys: pa.Table) -> pa.Table:
    return keys.append_column(_POSITION, pa.array(np.arange(keys.num_rows, dtype=np.int64)))


def _key_names(keys: pa.Table) -> list[str]:
    return [n for n in keys.column_names if n != _POSITION]


def _extreme_positions(keys: pa.Table, which: str) -> pa.Array:
    groups = _numbered(keys).group_by(_key_names(keys), use_threads=False)
    positions = groups.aggregate([(_POSITION, which)]).column(f"{_POSITION}_{which}").combine_chunks()
    return positions.take(pc.sort_indices(positions))


def last_positions(keys: pa.Table) -> pa.Array:
    """The positions of the last row of each key, ascending."""
    return _extreme_positions(keys, "max")


def first_positions(keys: pa.Table) -> pa.Array:
    """The positions of the first row of each key, ascending."""
    return _extreme_positions(keys, "min")


def first_duplicate(keys: pa.Table) -> int | None:
    """The position of a row whose key occurs twice; None if keys are unique."""
    if keys.num_rows < 2:
        return None
    last = last_positions(keys)
    if len(last) == keys.num_rows:
        return None
    positions = np.arange(keys.num_rows)
    repeated = np.setdiff1d(positions, last.to_numpy(), assume_unique=True)
    return int(repeated[0])


def positions_in(keys: pa.Table, others: pa.Table, *, inside: bool = True) -> pa.Array:
    """Positions of the rows whose key is (or is not) among the other keys, ascending; NULLs match."""
    names = _key_names(keys)
    keys, others = keys.select(names), others.select(names)
    if others.num_rows > keys.num_rows:  # a small set is built, and the many are looked up in it
        others = others.filter(pa.array(_among(others.column(0), keys.column(0))))
    met = _among(keys.column(0), others.column(0))
    if len(names) > 1 and met.any():  # the first column decides for most rows: only the others are grouped
        candidates = np.flatnonzero(met)
        some = keys.take(candidates)
        met[candidates] = _met(some, others.filter(pa.array(_among(others.column(0), some.column(0)))))
    return pa.array(np.flatnonzero(met if inside else ~met), pa.int64())


def _among(values: pa.ChunkedArray, others: pa.ChunkedArray) -> np.ndarray:
    """Which values are among the others; NULL is NULL."""
    found: np.ndarray = pc.is_in(values, value_set=others.combine_chunks()).to_numpy()
    return found


def _met(keys: pa.Table, others: pa.Table) -> np.ndarray:
    """Which keys of several columns are among the others, by grouping both."""
    both = pa.concat_tables([others, keys])
    numbered = _numbered(both).append_column("__other", pa.array(np.arange(both.num_rows) < others.num_rows))
    by_key = numbered.group_by(keys.column_names, use_threads=False)
    groups = by_key.aggregate([("__other", "max"), (_POSITION, "list")])
    common = groups.filter(groups.column("__other_max")).column(f"{_POSITION}_list").combine_chunks()
    found = np.zeros(both.num_rows, dtype=bool)
    found[pc.list_flatten(common).to_numpy()] = True
    return found[others.num_rows :]


@dataclass(frozen=True)
class Overlay:
    """The net effect of a run of delta rows on a relation.

    Keyed: `rows` holds one delta row per touched key. Keyless: `rows` holds one delta row per surplus copy, inserts and
    deletes, none of which cancel.
    """

    schema: Schema
    rows: pa.Table

    @cached_property
    def live(self) -> pa.Table:
        """The rows that the overlay puts in place, without tags."""
        return untag(self.rows.filter(is_live(self.rows)))

    @cached_property
    def removals(self) -> pa.Table:
        """The rows that the overlay of a keyless relation takes away, one per copy, without tags."""
        return untag(self.rows.filter(pc.invert(is_live(self.rows))))

    def apply(self, base: pa.Table) -> pa.Table:
        """The rows of base ⊕ this overlay."""
        if self.rows.num_rows == 0:
            return base
        if self.schema.key:
            kept = positions_in(key_table(base, self.schema), key_table(untag(self.rows), self.schema), inside=False)
            return pa.concat_tables([base.take(kept), self.live])
        return pa.concat_tables([subtract(base, self.removals, self.schema), self.live])


def extended(folded: Overlay, deltas: Sequence[pa.Table]) -> Overlay:
    """Fold further delta rows into an overlay: extended(overlay(a), b) = overlay(a ++ b).

    Of a keyed relation only the new rows are grouped by key; rows of the overlay whose keys are not among them stay.
    """
    schema, later = folded.schema, overlay(deltas, folded.schema)
    if not schema.key:
        return overlay([folded.rows, later.rows], schema)
    if not folded.rows.num_rows or not later.rows.num_rows:
        return later if later.rows.num_rows else folded
    kept = positions_in(key_table(untag(folded.rows), schema), key_table(untag(later.rows), schema), inside=False)
    rows = folded.rows if len(kept) == folded.rows.num_rows else folded.rows.take(kept)
    both = pa.concat_tables([rows, later.rows])
    return Overlay(schema, both.combine_chunks() if both.column(0).num_chunks > _MOST_CHUNKS else both)


def overlay(deltas: Sequence[pa.Table], schema: Schema) -> Overlay:
    """Fold delta rows, given in the order in which they apply, into an overlay."""
    rows = pa.concat_tables([schema.segment_arrow.empty_table(), *(conform_delta(d, schema) for d in deltas)])
    if rows.num_rows > 1:
        keys = key_table(untag(rows), schema)
        kept = last_positions(keys) if schema.key else _surplus(keys, is_live(rows))
        if len(kept) < rows.num_rows:
            rows = rows.take(kept)
    return Overlay(schema, rows.combine_chunks())


def condensed(rows: pa.Table, schema: Schema) -> pa.Table:
    """Old and new images of a keyed relation, deleted ones first, condensed by key (LAZY §4.1, Table 1).

        images of a key    inserted      deleted       both
        left               the new one   the old one   the old and the new one; nothing if they are equal

    The rows of a key are in no other order, and need none: a version between the first and the last one was inserted
    as often as it was deleted, so that it cancels. Only keys with such versions are compared by whole rows.
    """
    if rows.num_rows < 2:
        return rows
    keys, live = key_table(untag(rows), schema), is_live(rows).to_numpy()
    groups = _numbered(keys).group_by(_key_names(keys), use_threads=False)
    ends = groups.aggregate([(_POSITION, end) for end in ("min", "max", "count")])
    first, last, count = (ends.column(f"{_POSITION}_{end}").to_numpy() for end in ("min", "max", "count"))
    is_pair = (count == 2) & ~live[first] & live[last]
    single, old, new = first[count == 1], first[is_pair], last[is_pair]
    differs = ~_same(rows.take(old), rows.take(new), schema)
    others = np.setdiff1d(np.arange(rows.num_rows), np.concatenate([single, old, new]), assume_unique=True)
    several = rows.take(others)
    left = _surplus(key_table(untag(several), Schema(schema.columns)), is_live(several)).to_numpy()
    kept = np.concatenate([single, old[differs], new[differs], others[left]])
    return rows.take(np.sort(kept)).combine_chunks()


def _same(rows: pa.Table, others: pa.Table, schema: Schema) -> np.ndarray:
    """Which rows are identical to those at the same place in another table, with their tags left aside."""
    found = np.ones(rows.num_rows, dtype=bool)
    for i, column in enumerate(schema.columns):
        a, b = (_identity(table.column(i), column.type) for table in (rows, others))
        found &= pc.if_else(pc.is_null(a), pc.is_null(b), pc.fill_null(pc.equal(a, b), False)).to_numpy()
    return found


def grouped(keys: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    """The group numbers and positions of all rows, ordered by group, then position."""
    groups = _numbered(keys).group_by(_key_names(keys), use_threads=False).aggregate([(_POSITION, "list")])
    lists = groups.column(f"{_POSITION}_list").combine_chunks()
    positions = pc.list_flatten(lists).to_numpy()
    numbers = np.repeat(np.arange(len(lists)), pc.list_value_length(lists).to_numpy())
    order = np.lexsort((positions, numbers))
    return numbers[order], positions[order]


def _ranks(numbers: np.ndarray, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each row, the number of chosen rows in its group up to the row, and in the whole group."""
    running = np.cumsum(chosen)
    starts = np.flatnonzero(np.r_[True, numbers[1:] != numbers[:-1]]) if len(numbers) else np.array([], dtype=int)
    before = np.r_[0, running][starts]
    totals = np.diff(np.r_[before, running[-1] if len(running) else 0])
    return running - before[numbers], totals[numbers]


def _surplus(keys: pa.Table, live: pa.ChunkedArray) -> pa.Array:
    """The positions that remain after equal inserts and deletes cancel, copy by copy; the last copies stay."""
    numbers, positions = grouped(keys)
    alive = live.to_numpy()[positions]
    insert_rank, inserts = _ranks(numbers, alive)
    delete_rank, deletes = _ranks(numbers, ~alive)
    net = inserts - deletes
    kept = np.where(alive, insert_rank > inserts - net, delete_rank > deletes + net)
    return pa.array(np.sort(positions[kept]), pa.int64())


def subtract(base: pa.Table, removals: pa.Table, schema: Schema) -> pa.Table:
    """The bag difference by bit identity: base without one copy of a row per copy in removals, if there is one."""
    if removals.num_rows == 0 or base.num_rows == 0:
        return base
    numbers, positions = grouped(pa.concat_tables([key_table(removals, schema), key_table(base, schema)]))
    in_base = positions >= removals.num_rows
    _, gone = _ranks(numbers, ~in_base)
    rank, _ = _ranks(numbers, in_base)
    kept = positions[in_base & (rank > gone)] - removals.num_rows
    return base.take(pa.array(np.sort(kept), pa.int64()))
