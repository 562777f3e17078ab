"""Running plans and definitions on one Spark session, over relations at explicit CSNs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from freshview.algebra.nodes import Node, Scan
from freshview.algebra.stages import staged
from freshview.algebra.traversal import scans
from freshview.catalog.records import DataFile, Relation, RelationState
from freshview.catalog.writer import Catalog
from freshview.delta.forms import hidden
from freshview.maintenance.definition import Definition, shown_column, visible_columns
from freshview.relation.schema import Schema, fold
from freshview.relation.types import quote
from freshview.sql.binding import bind
from freshview.sql.rendering import render
from freshview.storage.main import read_parquet
from freshview.storage.store import Storage

if TYPE_CHECKING:
    from freshview.spark.engine import SparkEngine

Frame = Any  # a Spark DataFrame


@dataclass(frozen=True)
class Runner:
    """One engine and the stores it reads."""

    engine: SparkEngine
    catalog: Catalog
    storage: Storage

    def run(self, plan: Node, frame: Callable[[Scan], Any]) -> Frame:
        """A plan as one Spark query."""
        text, frames = self.text(plan, frame)
        return self.engine.query(text, frames, text)

    def text(self, plan: Node, frame: Callable[[Scan], Any]) -> tuple[str, dict[str, Any]]:
        """The text of a plan with {placeholders}, and the frames that they stand for."""
        names: dict[object, str] = {}
        frames: dict[str, Any] = {}
        for scan in scans(plan):
            if _reading(scan) not in names:
                names[_reading(scan)] = f"fv{len(names)}"
                frames[names[_reading(scan)]] = frame(scan)
        marks = {k: f"\1{n}\2" for k, n in names.items()}
        text = render(plan, lambda s: marks[_reading(s)])
        return text.replace("{", "{{").replace("}", "}}").replace("\1", "{").replace("\2", "}"), frames

    def in_stages(self, plan: Node, frame: Callable[[Scan], Any]) -> Frame:
        """A plan as several Spark queries: small parts that it uses more than once are computed first."""
        frames: dict[object, Any] = {}

        def read(scan: Scan) -> Any:
            if _reading(scan) not in frames:
                frames[_reading(scan)] = frame(scan)
            return frames[_reading(scan)]

        stages, rest = staged(plan)
        for stage in stages:
            rows = self.engine.settled(self.run(stage.part, read), "view")
            frames[_reading(stage.scan)] = rows
        return self.run(rest, read)

    def types_of(self, frames: Mapping[str, Any]) -> Callable[[Node], dict[str, str]]:
        def types(node: Node) -> dict[str, str]:
            result = self.run(node, lambda s: frames[s.relation])
            return {f.name: f.dataType.simpleString() for f in result.schema.fields}

        return types

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
        return _chosen(self.recomputed(definition, frames), definition.names, shown)

    def original(self, text: str, frames: Mapping[str, Any]) -> Frame:
        """A user's query over frames for its tables."""
        bound, placed = self.bound(text, frames)
        return self.engine.query(bound, placed, text)

    def bound(self, text: str, frames: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """A user's query with {placeholders}, and the frames that they stand for."""
        by_name = {fold(n): f for n, f in frames.items()}
        bound = bind(text, lambda name: fold(name) in by_name)
        return bound.text, {p: by_name[fold(r.name)] for p, r in bound.tables.items()}

    def frame(self, relation: Relation, csn: int) -> Frame:
        return self.shown(self.catalog.state(relation, csn))

    def shown(self, state: RelationState) -> Frame:
        """A relation's rows in a state, as queries see them."""
        return self.visible(state.relation, self.engine.scan(state))

    def empty(self, relation: Relation) -> Frame:
        frame = self.engine.frame(relation.schema.arrow.empty_table(), relation.schema)
        return self.visible(relation, frame)

    def visible(self, relation: Relation, frame: Any) -> Frame:
        if relation.kind != "view":
            return frame
        return _chosen(frame, visible_columns(relation), shown_column(relation))

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


def _chosen(frame: Any, columns: Sequence[str], shown: str | None) -> Frame:
    rows = frame.where(quote(shown)) if shown else frame
    return rows.select(*map(quote, columns))


def _reading(scan: Scan) -> object:
    """What tells one scan's frame from another's."""
    return scan.relation, scan.version, scan.near, scan.fields if scan.near else ()
