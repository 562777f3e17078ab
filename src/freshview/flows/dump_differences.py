"""The difference of two large dumps, computed by Spark: their rows are staged as Parquet and cancelled by bit identity.

Only the rows that differ come to the driver, which sorts them into the six sets (`cdc/dumps.difference`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from freshview.algebra.nodes import WEIGHT
from freshview.catalog.records import DataFile
from freshview.catalog.writer import Catalog
from freshview.cdc.dumps import StateDifference
from freshview.relation.fields import cast_table
from freshview.relation.schema import Schema
from freshview.storage.store import Storage

if TYPE_CHECKING:
    from freshview.spark.engine import SparkEngine

_WHAT = "difference of two dumps"


@dataclass(frozen=True)
class DumpDifference:
    """Compares dumps that do not fit into the driver's memory (`cdc/dumps.Comparing`)."""

    catalog: Catalog
    storage: Storage
    engine: Callable[[], SparkEngine]

    def __call__(
        self,
        old: Iterable[pa.Table],
        new: Iterable[pa.Table],
        schema: Schema,
        check: Callable[[int, int], None],
    ) -> StateDifference:
        none = schema.arrow.empty_table()
        with self._staged(old, schema) as before, self._staged(new, schema) as now:
            check(sum(f.rows for f in before), sum(f.rows for f in now))
            engine = self.engine()
            new_rows, old_rows = (engine.read_files(0, files, schema) for files in (now, before))
            twice = engine.repeated_key([new_rows], schema)
            if twice is not None:
                return StateDifference(none, none, twice)
            fields = pa.schema([*schema.arrow, pa.field(WEIGHT, pa.int32())])
            found = cast_table(engine.arrow(engine.difference(new_rows, old_rows, schema), _WHAT), fields, _WHAT)
            weights, rows = found.column(WEIGHT), found.drop_columns([WEIGHT])
            return StateDifference(rows.filter(pc.less(weights, 0)), rows.filter(pc.greater(weights, 0)))

    @contextmanager
    def _staged(self, parts: Iterable[pa.Table], schema: Schema) -> Iterator[tuple[DataFile, ...]]:
        """Rows in files of the warehouse, which all workers read; they are removed afterwards."""
        lease = self.catalog.lease(0, self.storage.layout.new_folder("stage"))
        assert lease is not None
        try:
            yield self.storage.write_parquet_batches(0, lease.path, parts, schema.arrow)
        finally:
            self.storage.discard(0, lease.path)
            self.catalog.drop_leases([lease.id])
