"""Reading on the driver what a delta plan needs of large scans: the few rows that meet the delta.

`delta/semijoin.py` says which rows matter; here they are fetched by key, before Spark sees the plan, as long as the
values are few and so are the rows. Whatever cannot be had that way is left to Spark, in full.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from freshview.algebra.nodes import Scan, SemiJoin, Stored
from freshview.catalog.records import RelationState
from freshview.definition.analysis import shown_column
from freshview.refresh.deltas import shown_rows
from freshview.relation.delta import encode
from freshview.relation.schema import Column
from freshview.storage.reader import StateReader

_ROWS = 300_000  # rows of one scan that are fetched at most
_WHOLE = frozenset({"tinyint", "smallint", "int", "bigint"})
_BINARY = frozenset({"string", "varchar", "char", "date"})  # equal exactly if their bits are


class Lookups:
    """The scans of one plan that are read in part."""

    def __init__(
        self, reader: StateReader, state: Callable[[Scan], RelationState], deltas: Mapping[str, pa.Table]
    ) -> None:
        self._reader = reader
        self._state = state
        self._deltas = deltas
        self._tables: dict[object, pa.Table | None] = {}  # by scan
        self._rows: dict[object, pa.Table | None] = {}  # by what is read: several scans may want the same

    def table(self, scan: Scan) -> pa.Table | None:
        """The rows of a scan that matter; None if they are not known."""
        if scan.version == "delta":
            return self._deltas[scan.relation]
        if not scan.semijoins:
            return None
        columns = tuple(dict.fromkeys(c for c, _ in scan.fields))
        key = (scan.source, scan.version, scan.semijoins, columns)
        if key not in self._tables:
            self._tables[key] = self._fetched(scan, columns)
        return self._tables[key]

    def _fetched(self, scan: Scan, columns: tuple[str, ...]) -> pa.Table | None:
        state = self._state(scan)
        known = [(by, self._values(by, state.schema.column(by.column))) for by in scan.semijoins]
        offers = [(by, values) for by, values in known if values is not None]
        if not offers:
            return None
        by, values = min(offers, key=lambda o: len(o[1]))
        # The bytes of the values tell them apart to the letter; a shown text of them would be shortened.
        key = (id(state), by.column, by.nulls, columns, encode(pa.table([values], names=[by.column])))
        if key not in self._rows:
            self._rows[key] = self._read(scan, state, by, values, columns)
        return self._rows[key]

    def _read(
        self, scan: Scan, state: RelationState, by: SemiJoin, values: pa.Array, columns: tuple[str, ...]
    ) -> pa.Table | None:
        shown = shown_column(state.relation) if not isinstance(scan.source, Stored) else None
        wanted = (*columns, shown) if shown else columns
        rows = self._reader.matching(state, by.column, values, nulls=by.nulls, columns=wanted, limit=_ROWS)
        return rows if rows is None or not shown else shown_rows(state.relation, rows).select(list(columns))

    def _values(self, by: SemiJoin, target: Column) -> pa.Array | None:
        """The values that a restriction admits, typed as the column they are compared with."""
        parts = []
        for source, name in by.sources:
            rows = self.table(source)
            if rows is None or not _comparable(self._state(source).schema.column(name), target):
                return None
            # An integer that does not fit is cut to one that does: a value too many does no harm.
            parts.append(pc.unique(rows.column(name)).cast(target.type.arrow, safe=False))
        return pc.unique(pa.chunked_array(parts, target.type.arrow)).drop_null()


def _comparable(a: Column, b: Column) -> bool:
    """May equality in Spark be replaced by equality of values here?"""
    if a.type.kind in _WHOLE and b.type.kind in _WHOLE:
        return True
    return a.type == b.type and a.type.kind in _BINARY
