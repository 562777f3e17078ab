"""Write conflicts: of two transactions that write the same rows, the first to commit wins.

Segments are the write sets: keyed relations conflict on any key that both wrote, old keys and new ones; bags conflict
on deletes of equal rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from freshview.catalog.records import Relation, Segment
from freshview.errors import WriteConflict
from freshview.relation.delta import is_live, key_table, positions_in, untag
from freshview.relation.schema import Schema
from freshview.storage.reader import StateReader


def check_conflicts(
    reader: StateReader, relations: Sequence[Relation], own: Sequence[Segment], others: Sequence[Segment]
) -> None:
    """Raise WriteConflict if a segment of another transaction writes what own segments write."""
    for relation in relations:
        theirs = [s for s in others if s.relation_id == relation.id]
        if not theirs:
            continue
        mine = _written(reader, [s for s in own if s.relation_id == relation.id], relation.schema)
        for segment in theirs:
            written = _written(reader, [segment], relation.schema)
            common = positions_in(written, mine)
            if len(common):
                at = common[0].as_py()
                values = ", ".join(repr(written.column(i)[at].as_py()) for i in range(written.num_columns))
                named = f"key ({values})" if relation.schema.key else "an equal row"
                raise WriteConflict(
                    f"table {relation.name}",
                    f"{named} was written by a transaction that committed at CSN {segment.csn}",
                    "Run the transaction again.",
                )


def _written(reader: StateReader, segments: Sequence[Segment], schema: Schema) -> pa.Table:
    if schema.key:
        return pa.concat_tables([reader.segment_keys(s, schema) for s in segments])
    deleted = []
    for segment in segments:
        rows = reader.segment_rows(segment, schema)
        deleted.append(key_table(untag(rows.filter(pc.invert(is_live(rows)))), schema))
    return pa.concat_tables(deleted)
