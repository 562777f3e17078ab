"""Rows that several jobs read are read once, while the jobs run together.

Law: a key names rows that never change (a state of committed segments over a version of main, and what was asked of
it), so rows that are kept are right for every reader. They are kept only while somebody has said that several jobs
run together, and up to a budget of bytes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import pyarrow as pa
from cachetools import LRUCache

from freshview.relation.schema import Schema

BUDGET = 128 << 20  # bytes of rows that are kept, at most
RelationColumns = Mapping[int, Collection[str]]  # by relation id
_Fetch = Callable[[Sequence[str]], pa.Table | None]


class SharedRows:
    """Keeps rows between the readers of one warehouse."""

    def __init__(self, budget: int = BUDGET) -> None:
        self._kept: LRUCache[Hashable, pa.Table] = LRUCache(budget, lambda rows: int(rows.nbytes))
        self._turns: dict[Hashable, threading.Lock] = {}
        self._open: list[RelationColumns] = []
        self._lock = threading.Lock()

    @contextmanager
    def together(self, columns: RelationColumns) -> Iterator[None]:
        """Keep rows until the block ends. `columns` are those that its jobs need of each relation: rows that are asked
        for a second time are read in all of them."""
        with self._lock:
            self._open.append(columns)
        try:
            yield
        finally:
            with self._lock:
                self._open.remove(columns)
                if not self._open:
                    self._kept.clear()
                    self._turns.clear()

    def read(
        self,
        key: Callable[[], Hashable | None],
        relation_id: int,
        schema: Schema,
        columns: Sequence[str],
        fetch: _Fetch,
    ) -> pa.Table | None:
        """Some columns of the rows that a key names, kept or fetched; rows without a key are only fetched."""
        name = key() if self._open else None
        if name is None:
            return fetch(columns)
        with self._lock:
            turn = self._turns.setdefault(name, threading.Lock())
        with turn:  # a thread that asks for the same rows meanwhile waits for them
            return self._read(name, relation_id, schema, columns, fetch)

    def _read(
        self, name: Hashable, relation_id: int, schema: Schema, columns: Sequence[str], fetch: _Fetch
    ) -> pa.Table | None:
        with self._lock:
            kept = self._kept.get(name)
            needed = {n for c in self._open for n in c.get(relation_id, ())}
        if kept is None or not set(columns) <= set(kept.column_names):
            more = needed | set(kept.column_names) if kept is not None else set()
            kept = fetch([*columns, *(n for n in schema.names if n in more and n not in columns)])
            if kept is None:
                return None
            with self._lock:
                if self._open and kept.nbytes <= self._kept.maxsize:
                    self._kept[name] = kept
        return kept.select(list(columns))
