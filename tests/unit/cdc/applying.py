"""Applying partial deltas by statements (PARTIAL §4), with the checks that a source's changes are those of the rows.

    del, delk → DELETE by key     un/uo, up → UPDATE     ins → INSERT, which reads nothing     ups → MERGE

Law: INSERT finds no row of its key and UPDATE finds one; DELETE and MERGE may find none (§5.5: ineffective deletions).
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from freshview.cdc.flagged import by_key
from freshview.cdc.model import PartialDelta, key_schema, keys_of
from freshview.errors import CaptureFailed
from freshview.relation.delta import describe_key, key_table, positions_in, subtract
from freshview.relation.schema import Schema


@dataclass(frozen=True)
class Statement:
    """One statement over rows (of a DELETE: keys) of a target."""

    kind: str
    rows: pa.Table


def statements(delta: PartialDelta) -> tuple[Statement, ...]:
    """The statements that apply a delta, in an order in which no key is in two of them; none for empty sets."""
    gone = pa.concat_tables([keys_of(delta.deleted, delta.schema), delta.delk])
    plan = (
        Statement("DELETE", gone),
        Statement("UPDATE", pa.concat_tables([delta.un, delta.up])),
        Statement("INSERT", delta.ins),
        Statement("MERGE", delta.ups),
    )
    return tuple(s for s in plan if s.rows.num_rows)


def applied(rows: pa.Table, delta: PartialDelta) -> pa.Table:
    """The rows of a keyed target after a delta; CaptureFailed if they are not those that the delta was made for."""
    schema = delta.schema
    for statement in statements(delta):
        if statement.kind == "INSERT":
            _require(by_key(statement.rows, rows, schema), delta, "is to be inserted and exists already")
        elif statement.kind == "UPDATE":
            _require(by_key(statement.rows, rows, schema, inside=False), delta, "is to be updated and does not exist")
        if statement.kind != "INSERT":
            keys = statement.rows if statement.kind == "DELETE" else keys_of(statement.rows, schema)
            replaced = key_table(keys, key_schema(schema))
            rows = rows.take(positions_in(key_table(rows, schema), replaced, inside=False))
        if statement.kind != "DELETE":
            rows = pa.concat_tables([rows, statement.rows])
    return rows


def applied_to_bag(rows: pa.Table, delta: PartialDelta, columns: Schema) -> pa.Table:
    """The rows of a target that has only the first columns of the delta, which are no key.

    The delta is complete (`dimension.check_maintainable`), so old images say which rows go.
    """
    assert delta.filled <= {"ins", "del", "un/uo"}
    names = list(columns.names)
    gone = pa.concat_tables([delta.deleted, delta.uo]).select(names)
    new = pa.concat_tables([delta.ins, delta.un]).select(names)
    return pa.concat_tables([subtract(rows, gone, Schema(columns.columns)), new])


def _require(wrong: pa.Table, delta: PartialDelta, cause: str) -> None:
    if wrong.num_rows:
        raise CaptureFailed(
            f"changes of {delta.name}",
            f"key {describe_key(wrong, delta.schema, 0)} {cause}",
            "The stored rows and the source's changes disagree: load the table anew.",
        )
