"""Delta rows on their way into a commit.

Law: up to INLINE_BYTES they go into the catalog with the commit itself; larger ones lie in files under a lease first.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from freshview.catalog.records import PENDING, DataFile, Segment
from freshview.relation.delta import encode

INLINE_BYTES = 1 << 20


def fits_inline(size: int) -> bool:
    """Do rows of this size go into the catalog?"""
    return size <= INLINE_BYTES


def inline(relation_id: int, rows: pa.Table, schema_version: int = 1) -> Segment:
    """Rows that go into the catalog."""
    payload = encode(rows)
    return Segment(relation_id, PENDING, 0, rows.num_rows, len(payload), schema_version, payload=payload)


def in_files(
    relation_id: int, files: Sequence[DataFile], schema_version: int = 1, *, stmtsn: int | None = None,
    action: int | None = None,
) -> Segment:  # fmt: skip
    """Rows in leased files; with an `action`, of that alone, and plain."""
    rows, size = sum(f.rows for f in files), sum(f.size for f in files)
    return Segment(
        relation_id, PENDING, 0, rows, size, schema_version, stmtsn=stmtsn, action=action, files=tuple(files)
    )


def in_memory(relation_id: int, rows: pa.Table, schema_version: int = 1) -> Segment | None:
    """Rows that only this process knows; None if there are none."""
    if not rows.num_rows:
        return None
    return Segment(relation_id, PENDING, 0, rows.num_rows, rows.nbytes, schema_version, rows_in_memory=rows)
