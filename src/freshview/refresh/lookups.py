"""The few rows of large scans that meet the delta, read on the driver; and all rows of mains that are in memory.

`delta/semijoin.py` decides which rows matter; here they are fetched, before Spark sees the plan, as long as the values
are few and so are the rows that all restrictions admit. Any other scan is left to Spark, in full, unless it has no
restriction and main is in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from freshview.algebra.nodes import RowCriterion, Scan, SemiJoin, Stored
from freshview.catalog.records import RelationState
from freshview.definition.analysis import member_column
from freshview.delta.row_tests import passing
from freshview.interruption import stop_if_asked
from freshview.refresh.deltas import member_rows
from freshview.relation.conditions import EXACT, Among, Conditions, comparable, distinct
from freshview.storage.reader import LOCAL_ROWS, StateReader, is_answered

_ROWS = 300_000  # rows of one scan that are fetched at most
_FEW_PAIRS = 1_000_000  # rows and rows that they are joined to, of which nobody asks how many pairs they make
_EXACT = (*EXACT, "varchar", "char")  # under the settings of one view two texts of one such type are padded alike


def pairs(one: pa.ChunkedArray, other: pa.ChunkedArray) -> int:
    """The pairs of equal values of two columns, but for NULL."""
    counted = [pc.value_counts(values.drop_null()) for values in (one, other)]
    values, counts = ([c.field(place) for c in counted] for place in (0, 1))
    try:
        met = pc.index_in(values[0], value_set=values[1].cast(values[0].type, safe=False))
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):  # types that Arrow does not compare: none is looked up
        return 0
    products = pc.multiply(counts[0].cast(pa.float64()), counts[1].take(met).cast(pa.float64()))
    return int(pc.sum(products).as_py() or 0)


class Lookups:
    """Reads the scans of one plan in part."""

    def __init__(
        self, reader: StateReader, state: Callable[[Scan], RelationState], deltas: Mapping[str, pa.Table | None]
    ) -> None:
        self._reader = reader
        self._state = state
        self._deltas = deltas
        self._tables: dict[object, pa.Table | None] = {}  # by scan
        self._tested: dict[object, pa.Table] = {}  # by scan and tests
        self._rows: dict[object, pa.Table | None] = {}  # by state, values and columns: several scans may share them

    def table(self, scan: Scan) -> pa.Table | None:
        """The rows of a scan that matter; None if Spark has to read them."""
        if scan.version == "delta":
            return self._deltas[scan.relation]
        columns = tuple(dict.fromkeys(c for c, _ in scan.fields))
        key = (scan.source, scan.version, scan.semijoins, columns)
        if key not in self._tables:
            self._tables[key] = (self._fetched if scan.semijoins else self._whole)(scan, columns)
        return self._tables[key]

    def _whole(self, scan: Scan, columns: tuple[str, ...]) -> pa.Table | None:
        """All rows of a scan that nothing restricts, if main is in memory; a small relation is folded later."""
        state = self._state(scan)
        if isinstance(scan.source, Stored) or not LOCAL_ROWS < state.rows_at_most <= _ROWS:
            return None
        if not self._reader.is_in_memory(state):
            return None
        stop_if_asked(f"rows of {state.relation.name}")
        return member_rows(state.relation, self._reader.contents(state)).select(list(columns))

    def joined(self, scan: Scan, rows: pa.Table) -> int:
        """The pairs of rows of a scan and rows that they were looked up for; 0 if there can be few only."""
        counts = [self._pairs(by, rows) for by in scan.semijoins if by.column in rows.column_names]
        return min(counts, default=0)

    def _pairs(self, by: SemiJoin, rows: pa.Table) -> int:
        found = [(table, name) for scan, name in by.sources if (table := self.table(scan)) is not None]
        if sum(table.num_rows for table, _ in found) * rows.num_rows <= _FEW_PAIRS:
            return 0
        return sum(pairs(table.column(name), rows.column(by.column)) for table, name in found)

    def _fetched(self, scan: Scan, columns: tuple[str, ...]) -> pa.Table | None:
        state = self._state(scan)
        offers = [(by.column, found) for by in scan.semijoins if (found := self._admitted(by, state)) is not None]
        known = {(name, c.identity): (name, c) for name, c in offers if is_answered(c)}
        unique = {asked: found for asked, found in known.items() if (found[0],) == state.schema.key}
        asked = dict([*unique.items()][:1]) or known
        key = (id(state), columns, tuple(asked))
        if asked and key not in self._rows:
            self._rows[key] = self._read(scan, state, tuple(asked.values()), columns)
        return self._rows[key] if asked else None

    def _read(
        self, scan: Scan, state: RelationState, conditions: Conditions, columns: tuple[str, ...]
    ) -> pa.Table | None:
        stop_if_asked(f"lookup in {state.relation.name}")
        member = member_column(state.relation) if not isinstance(scan.source, Stored) else None
        wanted = (*columns, member) if member else columns
        rows = self._reader.matching(state, conditions, columns=wanted, limit=_ROWS)
        return rows if rows is None or not member else member_rows(state.relation, rows).select(list(columns))

    def _admitted(self, by: SemiJoin, state: RelationState) -> Among | None:
        """The values that a restriction admits, typed as the column that they are compared with; None if they are not
        known. NULL is not asked for where the column of a table has none."""
        target = state.schema.column(by.column)
        parts = []
        for source, name, tests in by.tested:
            rows = self.table(source)
            if rows is None or not comparable(self._state(source).schema.column(name).type, target.type, _EXACT):
                return None
            parts.append(distinct(self._passing(source, rows, tests).column(name), target.type))
        has_nulls = state.relation.kind != "table" or target.name not in state.schema.required
        return Among(pc.unique(pa.chunked_array(parts, target.type.arrow)), by.nulls and has_nulls)

    def _passing(self, scan: Scan, rows: pa.Table, tests: tuple[RowCriterion, ...]) -> pa.Table:
        """The rows of a scan that pass tests, as far as they can be asked."""
        state = self._state(scan)
        for count, one in enumerate(tests, 1):
            key = (scan, tests[:count])
            if key not in self._tested:
                self._tested[key] = self._passing_one(state, rows, one.test)
            rows = self._tested[key]
        return rows

    def _passing_one(self, state: RelationState, rows: pa.Table, test: exp.Expr | SemiJoin) -> pa.Table:
        if not isinstance(test, SemiJoin):
            return passing(rows, test, lambda name: state.schema.column(name).type)
        admitted = self._admitted(test, state)
        return rows if admitted is None else rows.filter(admitted.met_by(rows.column(test.column)))
