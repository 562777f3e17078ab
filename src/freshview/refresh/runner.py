"""Running plans and definitions on one Spark session, over relations at explicit CSNs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from freshview.catalog.records import DataFile, Relation, RelationState
from freshview.catalog.writer import Catalog
from freshview.definition.analysis import Definition
from freshview.definition.known import as_seen, chosen
from freshview.delta.forms import hidden
from freshview.relation.schema import Schema
from freshview.relation.types import quote
from freshview.spark.running import Frame, PlanRunner
from freshview.storage.main import read_parquet
from freshview.storage.store import Storage


@dataclass(frozen=True)
class Runner(PlanRunner):
    """Runs definitions on one engine, over relations at explicit CSNs."""

    catalog: Catalog
    storage: Storage

    def recomputed(self, definition: Definition, frames: Mapping[str, Any]) -> Frame:
        """The stored rows, from scratch: by the view's own words where those give what is stored, which Spark plans
        best; else by the tree of the stored form."""
        form = definition.form
        if form is None or (definition.as_written and form.stored == definition.names and form.shown is None):
            then = {n: f.select(*map(quote, definition.columns[n])) for n, f in frames.items()}
            return self.original(definition.text, then)
        return self.run(form.tree, lambda s: frames[s.relation])

    def stored(self, definition: Definition, frames: Mapping[str, Any], schema: Schema) -> Frame:
        """The stored rows, from scratch, in the columns that the store has.

        A view whose text was lowered once, and is not any more, has columns that nothing fills: all rows belong to it.
        """
        rows = self.recomputed(definition, frames)
        if definition.form is not None or schema.names == definition.names:
            return rows
        shown = hidden("shown", definition.names)
        items = [
            quote(c.name) if c.name in definition.names
            else f"CAST({'true' if c.name == shown else 'NULL'} AS {c.type}) AS {quote(c.name)}"
            for c in schema.columns
        ]  # fmt: skip
        return rows.selectExpr(*items)

    def defined(self, definition: Definition, frames: Mapping[str, Any]) -> Frame:
        """What a query of the definition gives: the stored rows that are shown."""
        shown = definition.form.shown if definition.form is not None else None
        return chosen(self.recomputed(definition, frames), definition.names, shown)

    def frame(self, relation: Relation, csn: int) -> Frame:
        return self.shown(self.catalog.state(relation, csn))

    def shown(self, state: RelationState) -> Frame:
        """A relation's rows in a state, as queries see them."""
        return as_seen(state.relation, self.engine.scan(state))

    def fetch(self, frame: Any, schema: Schema, *, small: bool = False) -> pa.Table:
        """A result on the driver: fetched at once, or through files where it may be large."""
        if small:
            return schema.conform(self.engine.arrow(frame, "view"))
        with self.settled(frame) as files:
            return self.read(0, files, schema)

    @contextmanager
    def settled(self, frame: Any) -> Iterator[tuple[DataFile, ...]]:
        """A result as files, for a while."""
        lease = self.catalog.lease(0, self.storage.layout.new_folder("stage"))
        assert lease is not None
        try:
            yield self.engine.write(frame, 0, lease.path, "view")
        finally:
            self.storage.discard(0, lease.path)
            self.catalog.drop_leases([lease.id])

    def read(self, relation_id: int, files: Sequence[DataFile], schema: Schema) -> pa.Table:
        """Files of rows on the driver."""
        if not files:
            return schema.arrow.empty_table()
        return schema.conform(read_parquet(files, self.storage.layout.relation(relation_id)))
