"""Small mains in memory: a main in which keys are looked up repeatedly is read from its files once.

A version of main never changes, so its cached rows stay right. The least recently used version goes first when the
budget is spent. Columns by which rows are looked up have an index beside them, as those of large mains do (`index.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

import pyarrow as pa
from cachetools import LRUCache

from freshview.catalog.records import Main
from freshview.storage.index import INDEXED, Index, in_order, index_of

LARGEST = 16 << 20  # bytes in the files of a main that is kept, at most
BUDGET = 256 << 20  # bytes in memory of all mains that are kept, at most
INDEXES = 64 << 20  # bytes of all indexes beside them, at most
_SHARE = 20  # of so many rows one value is looked up by an index; for more all rows are compared with them


class MainCache:
    """Caches versions of main that were asked for more than once."""

    def __init__(self, read: Callable[[int, int], pa.Table], largest: int = LARGEST, budget: int = BUDGET) -> None:
        self._read = read
        self._largest = largest
        self._budget = budget
        self._kept: LRUCache[tuple[int, int], pa.Table | None] = LRUCache(budget, _size)  # None: asked for once
        self._indexes: LRUCache[tuple[int, int, str], Index] = LRUCache(INDEXES, lambda index: int(index.nbytes))
        self._lock = threading.Lock()

    def may_keep(self, main: Main) -> bool:
        """Is a version small enough to be kept?"""
        return main.size <= self._largest

    def rows(self, relation_id: int, main: Main) -> pa.Table | None:
        """All rows of a version if it is small and was asked for before, else None."""
        if not self.may_keep(main):
            return None
        key = (relation_id, main.delta_version)
        with self._lock:
            if key not in self._kept:
                self._kept[key] = None
                return None
            known = self._kept[key]
        if known is not None:
            return known
        rows = self._read(relation_id, main.delta_version).combine_chunks()
        if rows.nbytes <= self._budget:
            self._keep(key, rows)
        return rows

    def among(self, relation_id: int, main: Main, rows: pa.Table, by: str, values: pa.Array) -> pa.Table | None:
        """The kept rows of a version whose column `by` holds one of these values, in order; None if it is not worth an
        index."""
        column = rows.column(by)
        if column.type not in INDEXED or values.type not in INDEXED or len(values) * _SHARE > rows.num_rows:
            return None
        key = (relation_id, main.delta_version, by)
        with self._lock:
            index = self._indexes.get(key)
        if index is None:
            index = index_of(column.combine_chunks())
            with self._lock, suppress(ValueError):  # it is larger than all that may be kept
                self._indexes[key] = index
        return rows.take(index.places(in_order(values)))

    def _keep(self, key: tuple[int, int], rows: pa.Table) -> None:
        with self._lock:
            for old in [k for k in self._kept if k[0] == key[0] and k[1] < key[1]]:
                del self._kept[old]  # superseded by a checkpoint: its last readers read files
            for of in [k for k in self._indexes if k[0] == key[0] and k[1] < key[1]]:
                del self._indexes[of]
            self._kept[key] = rows


def _size(rows: pa.Table | None) -> int:
    return 0 if rows is None else int(rows.nbytes)
