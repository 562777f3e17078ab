"""Small mains in memory: what is looked up by key again and again is read from its files once.

A version of main never changes, so that what is kept is right for as long as it is kept. The least recently used goes
first when the budget is spent.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

import pyarrow as pa

from freshview.catalog.records import Main

LARGEST = 16 << 20  # bytes of files of a main that is kept
BUDGET = 256 << 20  # bytes in memory of all that are kept


class MainCache:
    """Versions of main that were asked for more than once."""

    def __init__(self, read: Callable[[int, int], pa.Table], largest: int = LARGEST, budget: int = BUDGET) -> None:
        self._read = read
        self._largest = largest
        self._budget = budget
        self._kept: OrderedDict[tuple[int, int], pa.Table | None] = OrderedDict()  # None: asked for once
        self._lock = threading.Lock()

    def rows(self, relation_id: int, main: Main) -> pa.Table | None:
        """All rows of a version, if it is small and not asked for the first time."""
        if main.size > self._largest:
            return None
        key = (relation_id, main.delta_version)
        with self._lock:
            if key not in self._kept:
                self._kept[key] = None
                return None
            self._kept.move_to_end(key)
            known = self._kept[key]
        if known is not None:
            return known
        rows = self._read(relation_id, main.delta_version)
        if rows.nbytes <= self._budget:
            self._keep(key, rows)
        return rows

    def _keep(self, key: tuple[int, int], rows: pa.Table) -> None:
        with self._lock:
            self._kept[key] = rows
            for old in [k for k in self._kept if k[0] == key[0] and k[1] < key[1]]:
                del self._kept[old]  # a checkpoint came: who still reads the version before it reads files
            while sum(r.nbytes for r in self._kept.values() if r is not None) > self._budget:
                self._kept.popitem(last=False)
