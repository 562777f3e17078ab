"""The storage of one warehouse: its folders, main tables, driver-side reading and segment files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from freshview.catalog.records import DataFile
from freshview.events import Events
from freshview.storage.files import Layout, check_location, fsync_tree, parquet_files, remove_tree, storage_errors
from freshview.storage.main import MainStore
from freshview.storage.reader import StateReader

# Readers skip pages, not only row groups: a lookup of neighbouring keys reads a few pages of a large file.
_WRITING: dict[str, Any] = {"compression": "snappy", "write_page_index": True}


class Storage:
    """The files of a warehouse, read and written."""

    def __init__(self, root: Path, events: Events | None = None, *, lookup_memory: int | None = None) -> None:
        """`lookup_memory`: bytes of columns that are kept in memory for lookups; None: by the size of the machine."""
        check_location(root, f"warehouse {root}")
        self.events = events or Events()
        self.layout = Layout(root)
        self.mains = MainStore(self.layout, self.events)
        self.reader = StateReader(self.layout, self.mains, lookup_memory)

    def write_parquet(self, relation_id: int, folder: str, rows: pa.Table) -> tuple[DataFile, ...]:
        """Write rows from the driver into a leased folder, durably."""
        target = self.layout.relation(relation_id) / folder
        with storage_errors(f"folder {target}"):
            target.mkdir(parents=True, exist_ok=True)
            pq.write_table(rows, target / "part-0.parquet", **_WRITING)
        return self.collect(relation_id, folder)

    def write_parquet_batches(
        self, relation_id: int, folder: str, parts: Iterable[pa.Table], schema: pa.Schema
    ) -> tuple[DataFile, ...]:
        """Write rows that come in parts, and need not fit into memory together, into a leased folder, durably."""
        target = self.layout.relation(relation_id) / folder
        with storage_errors(f"folder {target}"):
            target.mkdir(parents=True, exist_ok=True)
            with pq.ParquetWriter(target / "part-0.parquet", schema, **_WRITING) as writer:
                for part in parts:
                    writer.write_table(part)
        return self.collect(relation_id, folder)

    def collect(self, relation_id: int, folder: str) -> tuple[DataFile, ...]:
        """Make the files that a writer (the driver or Spark) left in a leased folder durable, and return them."""
        home = self.layout.relation(relation_id)
        target = home / folder
        with storage_errors(f"folder {target}"):
            files = parquet_files(target, home) if target.is_dir() else ()
            if target.is_dir():
                fsync_tree(target, self.layout.tables)
        self.events.emit("files.written", relation_id=relation_id, folder=folder, files=len(files))
        return files

    def discard(self, relation_id: int, folder: str) -> None:
        """Remove a folder of a relation with its files."""
        remove_tree(self.layout.relation(relation_id) / folder)
