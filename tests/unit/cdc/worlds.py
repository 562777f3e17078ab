"""Remote tables held in memory, and views over them recomputed in plain Python: an oracle that shares no rule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from freshview.cdc.dimension import Extend, KeyJoin, Projection, Remote, RemoteNode, RowFilter

Row = dict[str, Any]


class InMemory:
    """The new states of remote tables; counts the rows that were fetched."""

    def __init__(self, tables: Mapping[str, pa.Table]) -> None:
        self._tables = tables
        self.fetched = 0

    def rows(self, name: str, columns: tuple[str, ...], values: pa.Table) -> pa.Table:
        wanted = set(zip(*(values.column(c).to_pylist() for c in columns), strict=True))
        table = self._tables[name]
        given = zip(*(table.column(c).to_pylist() for c in columns), strict=True)
        found = table.take(pa.array([i for i, v in enumerate(given) if v in wanted], pa.int64()))
        self.fetched += found.num_rows
        return found


def recomputed(view: RemoteNode, tables: Mapping[str, pa.Table]) -> list[tuple[Any, ...]]:
    """The rows of a view over whole tables, sorted."""
    rows = _rows(view, tables)
    return sorted((tuple(r[n] for n in view.schema.names) for r in rows), key=repr)


def _rows(view: RemoteNode, tables: Mapping[str, pa.Table]) -> list[Row]:
    match view:
        case Remote():
            return list(tables[view.name].to_pylist())
        case RowFilter():
            condition = view.condition
            rows = _rows(view.input, tables)
            as_table = pa.Table.from_pylist(rows, view.input.schema.arrow).select(list(condition.columns))
            return [r for r, keep in zip(rows, condition.test(as_table).to_pylist(), strict=True) if keep]
        case Projection():
            return [{n: r[s] for n, s in view.sources.items()} for r in _rows(view.input, tables)]
        case Extend():
            rows = _rows(view.input, tables)
            added = view.compute(pa.Table.from_pylist(rows, view.input.schema.arrow)).to_pylist()
            return [{**r, **a} for r, a in zip(rows, added, strict=True)]
        case KeyJoin():
            left, right = _rows(view.left, tables), _rows(view.right, tables)
            pairs = list(zip(view.on_columns, view.right.schema.key, strict=True))
            return [{**s, **t} for s in left for t in right if all(s[a] is not None and s[a] == t[k] for a, k in pairs)]
    raise TypeError(view)
