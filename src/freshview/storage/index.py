"""Columns of large mains in memory, with an index: a column by which rows are looked up again and again is read once.

A lookup by many scattered values has to decode whole columns of the files, since values of every page are wanted. The
second such lookup in a version of main keeps the columns that it has read; from the third on it reads no file.

Law: the rows are those that the same lookup finds in the files. A version of main never changes, so what is kept stays
right; the least recently used columns go first when the budget is spent.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from cachetools import LRUCache

from freshview.catalog.records import Main
from freshview.errors import InvalidStatement

MOST = 4 << 30  # bytes of all columns that are kept, at most; on smaller machines an eighth of the memory
WIDEST = 64  # bytes of a row in the columns that one lookup keeps, at most
FEWEST = 20  # values of a lookup; fewer ones are pruned by the statistics of files and pages
MANY = 20_000  # values of a lookup; of more the files are read as a whole in any case
_OFTENEST = 3  # times that a column of one version is read for this, at most
_Integers: Any = np.ndarray[Any, np.dtype[np.int64]]
INDEXED = (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.date32())


@dataclass(frozen=True)
class Index:
    """The values of a column in order, and the row of each of them; None: they are in the order of the rows."""

    ordered: _Integers
    rows: Any

    @property
    def nbytes(self) -> int:
        """The bytes that it takes beside the column; values that are in order already are the column's own."""
        values = self.ordered.nbytes if self.ordered.flags.owndata else 0
        return int(values) + (int(self.rows.nbytes) if self.rows is not None else 0)

    def places(self, values: pa.Array) -> pa.Array:
        """The rows that hold one of these values, in their order."""
        wanted = np.unique(_numbers(values))
        first = np.searchsorted(self.ordered, wanted, side="left")
        counts = np.searchsorted(self.ordered, wanted, side="right") - first
        ends = np.cumsum(counts)
        places = np.arange(ends[-1] if len(ends) else 0) + np.repeat(first - (ends - counts), counts)
        return pa.array(places if self.rows is None else np.sort(self.rows[places]))


def index_of(column: pa.Array) -> Index:
    """The index of a column of integers or dates. NULL has no place in it."""
    rows = None
    if column.null_count:
        rows = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
        column = column.drop_null()
    values = _numbers(column)
    if not np.all(values[1:] >= values[:-1]):
        order = np.argsort(values, kind="stable")
        values, rows = values[order], order if rows is None else rows[order]
    if rows is not None and len(rows) < 1 << 31:
        rows = rows.astype(np.int32)
    return Index(values, rows)


def _numbers(values: pa.Array) -> _Integers:
    plain = values.cast(pa.int32()) if values.type == pa.date32() else values
    return plain.cast(pa.int64()).to_numpy(zero_copy_only=False)


Read = Callable[[int, int, Sequence[str]], pa.Table]  # of a relation and a version: some columns of all rows


class ColumnCache:
    """Caches columns of versions of main in which rows were looked up more than once."""

    def __init__(self, read: Read, budget: int | None = None, widest: int = WIDEST) -> None:
        if budget is not None and budget < 0:
            raise InvalidStatement(f"lookup_memory {budget}", "is less than nothing", "Give a number of bytes, or 0.")
        self._read = read
        self.budget = _budget() if budget is None else budget
        self._widest = widest
        self._kept: LRUCache[tuple[int, int, str, str], Any] = LRUCache(self.budget, lambda kept: int(kept.nbytes))
        self._asked: LRUCache[tuple[int, int, str], bool] = LRUCache(1000)
        self._reads: LRUCache[tuple[int, int, str], int] = LRUCache(1000)  # how often a column was read
        self._lock = threading.Lock()

    def rows(
        self,
        relation_id: int,
        main: Main,
        by: str,
        values: pa.Array,
        fields: Sequence[tuple[str, pa.DataType]],
        *,
        nulls: bool = False,
    ) -> pa.Table | None:
        """These columns of the rows whose column `by` holds one of the values; None if they are to be read from files.

        `fields` are the names and types of the wanted columns, as main stores them. With `nulls`, rows with NULL are
        wanted too: only a column that has none is looked up here.
        """
        types = dict(fields) | {by: values.type}
        if len(values) <= FEWEST or values.type not in INDEXED or not self.may_keep(main, types):
            return None
        version = (relation_id, main.delta_version)
        with self._lock:  # a thread that asks for the same columns meanwhile waits for them
            if (*version, by) not in self._asked and len(values) <= MANY:
                self._asked[(*version, by)] = True
                return None
            held = self._columns(version, list(types))
            if held is None or (nulls and held[by].null_count):
                return None
            index = self._kept.get((*version, by, "index"))
            if index is None:
                index = index_of(held[by])
                self._keep((*version, by, "index"), index)
        places = index.places(values)
        return pa.table([held[name].take(places) for name, _ in fields], names=[name for name, _ in fields])

    def may_keep(self, main: Main, types: Mapping[str, pa.DataType]) -> bool:
        """Are the columns of a fixed width, and few enough to be kept?"""
        if any("." in name for name in types):  # Arrow would read a field of a struct too
            return False
        try:
            width = sum(type_.bit_width for type_ in types.values()) // 8
        except ValueError:  # texts and nested values
            return False
        return bool(width <= self._widest and main.rows * width <= self.budget)

    def _columns(self, version: tuple[int, int], names: Sequence[str]) -> dict[str, pa.Array] | None:
        """Whole columns of a version, those that are missing read in one go; None if no file has one of them, or if one
        was read often already: others take its place again and again."""
        found = {name: self._kept.get((*version, name, "column")) for name in names}
        missing = [name for name, column in found.items() if column is None]
        if any(self._reads.get((*version, name), 0) >= _OFTENEST for name in missing):
            return None
        if missing:
            rows = self._read(*version, missing)
            if rows.column_names != missing:  # a column was added later, and no file has it yet
                return None
            for name in missing:
                self._reads[(*version, name)] = self._reads.get((*version, name), 0) + 1
                found[name] = _whole(rows.column(name))
                self._keep((*version, name, "column"), found[name])
        return found

    def _keep(self, key: tuple[int, int, str, str], kept: Any) -> None:
        for old in [k for k in self._kept if k[0] == key[0] and k[1] < key[1]]:
            del self._kept[old]  # superseded by a checkpoint: its last readers read files
        with suppress(ValueError):  # it is larger than all that may be kept
            self._kept[key] = kept


def _whole(column: pa.ChunkedArray) -> pa.Array:
    whole = column.combine_chunks()
    return pa.concat_arrays(whole.chunks) if isinstance(whole, pa.ChunkedArray) else whole


def _budget() -> int:
    """An eighth of the memory of this machine or container, and no more than `MOST`."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):  # there is no container, or it has no limit
        memory = min(memory, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return min(MOST, memory // 8)
