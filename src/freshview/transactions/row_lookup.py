"""The rows that a statement may change, found by a lookup instead of a scan (by the conditions of `sql/pins.py`)."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from freshview.catalog.records import Relation
from freshview.relation.conditions import Among, comparable, distinct
from freshview.sql.pins import Match, Pins, merge_pins, pins
from freshview.sql.statements import Merge
from freshview.sql.tokens import Cursor
from freshview.storage.reader import LOCAL_ROWS, StateReader
from freshview.transactions.reading import ReadContext
from freshview.transactions.transaction import Transaction

_EXACT_ROWS = 100_000  # rows that are looked up where Spark need not see them, at most


@dataclass(frozen=True)
class LookedUp:
    """All rows that a statement may change."""

    rows: pa.Table
    exact: bool = False  # the statement changes just these rows
    rest: str = ""  # the condition that is still to be asked of them
    blind: bool = False  # only their keys were read; all other columns are NULL


@dataclass(frozen=True)
class RowLookup:
    """Looks up rows for the statements of one transaction, as the transaction sees them."""

    transaction: Transaction
    reading: ReadContext
    reader: StateReader

    def where(self, relation: Relation, condition: str, qualifier: str, *, keys: bool = False) -> LookedUp | None:
        """The rows for an UPDATE or DELETE with this condition; None if no lookup answers it, or the rows are many.

        With `keys`, the keys are enough: where the condition is on the key alone, and reading whole rows would read
        files, the rows found are blind.
        """
        asked = pins(condition, relation.schema, (qualifier,))
        if asked is None:
            return None
        if keys and (blind := self._keys(relation, asked)) is not None:
            return LookedUp(blind, exact=True, blind=True)
        rows = self._rows(relation, asked)
        return None if rows is None else LookedUp(rows, asked.exact, "" if asked.exact else condition)

    def source(self, relation: Relation, statement: Merge) -> LookedUp | None:
        """The target rows that match a row of a small table; None if others matter too, or the source is another."""
        if any(clause.by_source for clause in statement.clauses) or statement.source.startswith("("):
            return None
        source, target = Cursor(statement.source).name("source name"), statement.alias or statement.table
        rows = self._rows(
            relation, merge_pins(statement.condition, relation.schema, target, source, statement.source_alias)
        )
        return None if rows is None else LookedUp(rows)

    def _rows(self, relation: Relation, asked: Pins) -> pa.Table | None:
        matches = [(m.column, self._values(relation, m)) for m in asked.matches]
        conditions = (*asked.conditions, *((n, Among(v)) for n, v in matches if v is not None))
        if not conditions:
            return None
        state, limit = self.transaction.state(relation), _EXACT_ROWS if asked.exact else LOCAL_ROWS
        return self.reader.matching(state, conditions, columns=state.schema.names, limit=limit)

    def _keys(self, relation: Relation, asked: Pins) -> pa.Table | None:
        """The keys of the rows that meet conditions on the key; None for other conditions, for rows that are as cheap
        to read whole, and for many rows."""
        state, schema = self.transaction.state(relation), relation.schema
        on_key = {schema.position(n) for n, _ in asked.conditions} <= set(schema.key_positions)
        if asked.matches or not asked.exact or not on_key or not self.reader.is_wide(state):
            return None
        found = self.reader.matching(state, asked.conditions, columns=schema.key, limit=LOCAL_ROWS)
        return None if found is None else schema.widened(found)

    def _values(self, relation: Relation, match: Match) -> pa.Array | None:
        """The values that a match allows in the target's column; None if the other table is no small table of ours."""
        if not self.reading.knows(match.table):
            return None
        other = self.transaction.relation(match.table)
        if other.kind != "table" or match.other not in other.schema.names:
            return None
        column, target = other.schema.column(match.other), relation.schema.column(match.column)
        state = self.transaction.state(other)
        if not comparable(column.type, target.type) or not state.is_small(LOCAL_ROWS):
            return None
        return distinct(self.reader.contents(state).column(column.name), target.type)
