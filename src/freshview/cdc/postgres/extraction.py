"""Reading a large table in parallel: its pages in ranges, each by a connection of its own, all in one snapshot.

Law: a row that a snapshot sees has one place in the table (ctid), which nothing changes while the table is locked for
readers; so ranges of pages have all rows, each once. No key has to be of a type that can be divided.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa

from freshview.cdc.postgres.server import Snapshot, fetch, literal, qualified
from freshview.cdc.postgres.tables import PostgresTable
from freshview.cdc.source import Poll

LARGE = 512 * 2**20  # bytes of a table that is read in parallel
_PART = 64 * 2**20  # bytes that one connection reads at once
_SIZES = """SELECT pg_table_size(c.oid), pg_relation_size(c.oid), current_setting('block_size')::bigint
    FROM pg_class c WHERE c.oid = to_regclass(%s)"""


@dataclass(frozen=True)
class Extraction:
    """The rows of a table in a snapshot that other connections can join, in parts; it goes to other processes."""

    table: PostgresTable
    snapshot: str
    starts: tuple[int, ...]  # the first page of each part

    def read(self, part: int) -> pa.Table:
        """The rows of a part, by a connection of its own."""
        table = self.table
        where = f"{table.live} AND t.ctid >= '({self.starts[part]},0)'::tid"
        if part + 1 < len(self.starts):
            where += f" AND t.ctid < '({self.starts[part + 1]},0)'::tid"
        with table.server.connect(kept=False) as connection, connection.transaction():
            fetch(connection, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            fetch(connection, f"SET TRANSACTION SNAPSHOT {literal(self.snapshot)}")
            return table.rows(Snapshot(table.server, connection, "", None, False), where)


@contextmanager
def extraction(table: PostgresTable) -> Iterator[tuple[Extraction, Poll] | None]:
    """A table to be read in parts, and the poll of its beginning, without rows; None if it is small, or if its position
    depends on its rows. The snapshot is there while the block runs."""
    with table.server.snapshot(table.name) as snapshot:
        size, pages_size, block = snapshot.fetch(_SIZES, (qualified(table.name).replace("%%", "%"),))[0]
        poll = table.start_in(snapshot) if size >= LARGE else None
        if poll is None:
            yield None
            return
        name = str(snapshot.fetch("SELECT pg_export_snapshot()")[0][0])
        pages, step = pages_size // block, max(1, _PART // block)
        yield Extraction(table, name, tuple(range(0, max(pages, 1), step))), poll
