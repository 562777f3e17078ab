"""Applying partial deltas to stored rows: each set by the cheapest delta rows that it allows (PARTIAL §4).

    ins     new images         un/uo   old and new images         up, ups   blind new images, whose old ones are unknown
    del     old images         delk    blind deletions, which have the key alone

Law: what is there is never read. Old images that a view above needs are found when it is maintained; deletions may find
no row (§5.5: ineffective deletions).
"""

from __future__ import annotations

import pyarrow as pa

from freshview.cdc.flagged import padded
from freshview.cdc.model import PartialDelta
from freshview.relation.delta import DELETE, DELETE_KEY, INSERT, UPSERT, tag


def delta_rows(delta: PartialDelta, stmtsn: int) -> pa.Table:
    """The delta as rows of a segment: upserts and deletions by key are blind rows, whose old images are found later."""
    schema = delta.schema
    parts = [
        (pa.concat_tables([delta.deleted, delta.uo]), DELETE),
        (padded(delta.delk, schema), DELETE_KEY),
        (pa.concat_tables([delta.ins, delta.un]), INSERT),
        (pa.concat_tables([delta.up, delta.ups]), UPSERT),
    ]
    return pa.concat_tables([tag(rows, schema, action, stmtsn) for rows, action in parts])
