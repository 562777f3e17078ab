"""Dimension views without Spark: definitions are read anew from texts, and the server computes what Spark would."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
from tests.catalog.helpers import contents
from tests.cdc.remote_world import World
from tests.internals import internals

from freshview import Warehouse
from freshview.algebra.nodes import Project
from freshview.catalog.records import Relation
from freshview.definition.analysis import Definition, sources_to_json
from freshview.local.plans import translated
from freshview.refresh.evaluation import Evaluation
from freshview.relation.ingest import to_table
from freshview.relation.schema import Column, Schema
from freshview.sql.lowering import lower
from freshview.views.cycles import NewView
from freshview.views.dimensions import DimensionViews
from freshview.views.shapes import Shape


def types_of(_: Evaluation, plan: Project, schema: Schema) -> tuple[Column, ...]:
    known = {c.name: c.type for c in schema.columns}
    return tuple(Column(name, type_) for name, type_ in translated(plan, lambda _: known).columns)


def _definition(query: str, names: tuple[str, ...], sources: dict[str, Relation]) -> Definition:
    lowered = lower(query, {n: r.schema.names for n, r in sources.items()}, names)
    return Definition(query, sources, names, "auto", lowered, None, {}, "")


@dataclass
class _Definitions:
    """The definitions of stored views, read anew from their texts."""

    wh: Warehouse
    views: dict[str, tuple[str, tuple[str, ...]]] = field(default_factory=dict)

    def of(self, view: Relation) -> Definition:
        catalog = internals(self.wh).catalog
        given = json.loads(view.facts["sources"])
        sources = {name: catalog.relation_by_id(entry["id"]) for name, entry in given.items()}
        names = tuple(json.loads(view.facts["columns"]))
        return _definition(view.facts["definition"], names, {n: r for n, r in sources.items() if r is not None})


def without_spark(wh: Warehouse) -> DimensionViews:
    dimensions = internals(wh).dimensions
    dimensions.shapes.definitions = _Definitions(wh)  # type: ignore[assignment]
    return dimensions


def create(wh: Warehouse, world: World, name: str, query: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """CREATE MATERIALIZED VIEW, with Spark's parts taken by the server."""
    dimensions, catalog = without_spark(wh), internals(wh).catalog
    tables = [f"r{i}" for i in range(len(world.tables)) if f"r{i} " in query]
    sources = {n: catalog.relation(n) for n in tables}
    names = tuple(part.split(" AS ")[1] for part in query.split(" FROM ")[0].removeprefix("SELECT ").split(", "))
    definition = _definition(query, names, sources)
    shape = dimensions.shapes.of(name, definition, {}, {})
    facts = {"definition": query, "sources": sources_to_json(sources), "settings": "{}", "columns": json.dumps(names)}

    computed_by_the_server(wh, world, monkeypatch)
    for table in shape.tables:
        if catalog.position(table.relation.id) is None:
            dimensions.tables.install(table)
    servers = frozenset(table.server for table in shape.tables)
    dimensions.cycles.run(servers, new=NewView(name, definition, shape, {}, facts))


def computed_by_the_server(wh: Warehouse, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def computed(name: str, definition: Definition, _: Any, shape: Shape, __: Any) -> pa.Table:
        rows = [dict(zip(definition.names, row, strict=True)) for row in world.answer(definition.text)]
        return to_table(rows, shape.schema, name)

    monkeypatch.setattr(internals(wh).dimensions.recomputation, "rows", computed)


def rows_of(wh: Warehouse, name: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in contents(wh, name))
