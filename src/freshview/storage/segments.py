"""Segments of delta rows that wait to be committed.

Law: delta rows of up to INLINE_BYTES are stored in the catalog with the commit; larger ones in files, under a lease
until the commit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from freshview.catalog.records import PENDING, DataFile, Segment
from freshview.relation.delta import encode

INLINE_BYTES = 1 << 20


def fits_inline(size: int) -> bool:
    """Whether rows of this size are stored in the catalog."""
    return size <= INLINE_BYTES


def inline(relation_id: int, rows: pa.Table, schema_version: int = 1) -> Segment:
    """A segment of rows that are stored in the catalog."""
    payload = encode(rows)
    return Segment(relation_id, PENDING, 0, rows.num_rows, len(payload), schema_version, payload=payload)


def in_files(
    relation_id: int,
    files: Sequence[DataFile],
    schema_version: int = 1,
    *,
    stmtsn: int | None = None,
    action: int | None = None,
) -> Segment:
    """A segment of rows in leased files; with an `action`, the files hold plain rows, all of that action."""
    counts = (sum(f.rows for f in files), sum(f.size for f in files), schema_version)
    return Segment(relation_id, PENDING, 0, *counts, stmtsn=stmtsn, action=action, files=tuple(files))


@dataclass(frozen=True)
class Written:
    """Delta rows that Spark wrote to files of their relation's folder, as a segment, and the lease on the files."""

    segment: Segment
    folder: str
    lease: str

    @property
    def num_rows(self) -> int:
        return self.segment.rows


def in_memory(relation_id: int, rows: pa.Table, schema_version: int = 1) -> Segment | None:
    """A segment of rows in the memory of this process; None if there are no rows."""
    if not rows.num_rows:
        return None
    return Segment(relation_id, PENDING, 0, rows.num_rows, rows.nbytes, schema_version, rows_in_memory=rows)
