"""Plans and definitions run on one Spark session, over relations at explicit CSNs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from freshview.catalog.records import DataFile, Relation, RelationState
from freshview.catalog.writer import Catalog
from freshview.definition.analysis import Definition, member_column, visible_columns
from freshview.definition.known import members, visible_rows
from freshview.delta.forms import hidden
from freshview.refresh.stages import Stages
from freshview.relation.schema import Column, Schema
from freshview.relation.types import quote
from freshview.spark.running import Frame, PlanRunner
from freshview.storage.main import read_parquet
from freshview.storage.segments import Written, in_files
from freshview.storage.store import Storage


@dataclass(frozen=True)
class Runner(PlanRunner):
    """Runs definitions on one engine, over relations at explicit CSNs."""

    catalog: Catalog
    storage: Storage

    def recomputed(self, definition: Definition, frames: Mapping[str, Any]) -> Frame:
        """The stored rows, from scratch: by the view's own text, which Spark plans best, where that gives the stored
        columns; else by the tree of the stored form."""
        form = definition.form
        if form is None or (definition.as_written and form.stored == definition.names and form.member is None):
            then = {n: _with_columns(f, definition.columns[n]) for n, f in frames.items()}
            return self.original(definition.text, then)
        return self.run(form.tree, lambda s: frames[s.relation])

    def stored(self, definition: Definition, frames: Mapping[str, Any], schema: Schema) -> Frame:
        """The stored rows, from scratch, in the columns of the store.

        A view whose text was lowered once and no longer is has hidden columns that nothing fills: all rows are members.
        """
        rows = self.recomputed(definition, frames)
        if definition.form is not None or schema.names == definition.names:
            return rows
        member = hidden("shown", definition.names)

        def item(column: Column) -> str:
            name, value = quote(column.name), "true" if column.name == member else "NULL"
            return name if column.name in definition.names else f"CAST({value} AS {column.type}) AS {name}"

        return rows.selectExpr(*map(item, schema.columns))

    def has_columns(self, rows: Frame, schema: Schema) -> bool:
        """Are the columns of a frame those of a schema, by name and type?"""
        given = self.engine.schema_of(rows, ())
        return [(c.name, c.type) for c in given.columns] == [(c.name, c.type) for c in schema.columns]

    def defined(self, definition: Definition, frames: Mapping[str, Any]) -> Frame:
        """The rows that a query of the definition gives: the recomputed rows that belong to the view."""
        member = definition.form.member if definition.form is not None else None
        return members(self.recomputed(definition, frames), definition.names, member)

    def frame(self, relation: Relation, csn: int) -> Frame:
        return self.visible(self.catalog.state(relation, csn))

    def visible(self, state: RelationState) -> Frame:
        """The rows of a state that queries see, in the columns that they see."""
        relation = state.relation
        is_view = relation.kind == "view"
        few = self.engine.shown(state, visible_columns(relation), member_column(relation)) if is_view else None
        return few if few is not None else visible_rows(relation, self.engine.scan(state))

    def fetch(self, frame: Any, schema: Schema, *, small: bool = False) -> pa.Table:
        """The rows of a frame on the driver: fetched directly if they are few, else through files."""
        if small:
            return schema.conform(self.engine.arrow(frame, "view"))
        with Stages(self.catalog, self.storage) as stages:
            return self.read(0, stages.files("rows", frame, self.engine), schema)

    def written(self, frame: Any, view_id: int, action: int | None) -> Written:
        """The rows of a frame, written to the view's folder under a lease, as a segment: plain rows of one action, or
        delta rows (None). The caller gives the lease up if it does not publish the segment."""
        lease = self.catalog.lease(view_id, self.storage.layout.new_folder("delta" if action is None else "bulk"))
        assert lease is not None
        try:
            files = self.engine.write(frame, view_id, lease.path, "view")
        except BaseException:
            self._give_up(view_id, lease.path, lease.id)
            raise
        stmtsn = None if action is None else 1
        return Written(in_files(view_id, files, stmtsn=stmtsn, action=action), lease.path, lease.id)

    def unwanted(self, written: Written) -> None:
        """Remove files that are not going to be published."""
        self._give_up(written.segment.relation_id, written.folder, written.lease)

    def _give_up(self, relation_id: int, folder: str, lease: str) -> None:
        """Remove files that are not needed, and the lease on them."""
        self.storage.discard(relation_id, folder)
        self.catalog.drop_leases([lease])

    def read(self, relation_id: int, files: Sequence[DataFile], schema: Schema) -> pa.Table:
        """The rows of files on the driver."""
        if not files:
            return schema.arrow.empty_table()
        return schema.conform(read_parquet(files, self.storage.layout.relation(relation_id)))


def _with_columns(frame: Frame, names: Sequence[str]) -> Frame:
    """Some columns of a frame; a frame that has these and no others stays as it is, which Spark need not analyse."""
    return frame if list(frame.columns) == list(names) else frame.select(*map(quote, names))
