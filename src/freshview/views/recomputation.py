"""Dimension views computed by Spark from whole states of their tables: at creation, full refreshes and checks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from freshview.catalog.records import Relation
from freshview.definition.analysis import Definition, visible_schema
from freshview.definition.known import settings_of
from freshview.delta.tolerance import Difference
from freshview.errors import NotMaintainable
from freshview.refresh.runner import Runner
from freshview.spark.running import Frame
from freshview.storage.reader import LOCAL_ROWS
from freshview.views.invariants import compared
from freshview.views.shapes import RunnerFor, Shape, Shapes

Whole = Mapping[str, pa.Table]  # the rows of remote tables, by the names of these


@dataclass
class Recomputation:
    """Computes dimension views from the rows of their tables."""

    shapes: Shapes
    runner: RunnerFor

    def of(self, view: Relation, whole: Whole) -> pa.Table:
        """The rows of a stored view."""
        return self.rows(
            view.name, self.shapes.definitions.of(view), settings_of(view), self.shapes.of_view(view), whole
        )

    def rows(
        self, name: str, definition: Definition, settings: Mapping[str, str], shape: Shape, whole: Whole
    ) -> pa.Table:
        """The rows of a definition; NotMaintainable if its rules have other columns."""
        small = sum(whole[r.name].num_rows for r in definition.sources.values()) <= LOCAL_ROWS
        runner = self.runner(settings, small=small)
        defined = _defined(runner, definition, whole)
        found = [(c.name, c.type) for c in runner.engine.schema_of(defined, ()).columns]
        if found != [(c.name, c.type) for c in shape.schema.columns]:
            given = ", ".join(f"{name} {type_}" for name, type_ in found)
            wanted = ", ".join(f"{c.name} {c.type}" for c in shape.schema.columns)
            raise NotMaintainable(f"view {name}", f"Spark gives ({given}), its rules ({wanted})", "Add casts.")
        return shape.schema.conform(runner.fetch(defined, shape.schema, small=small))

    def difference(self, view: Relation, whole: Whole, csn: int) -> Difference:
        """Compare the stored rows of a view at a CSN with its definition."""
        runner = self.runner(settings_of(view), small=False)
        defined = _defined(runner, self.shapes.definitions.of(view), whole)
        return compared(runner.engine, defined, runner.frame(view, csn), visible_schema(view))


def _defined(runner: Runner, definition: Definition, whole: Whole) -> Frame:
    frames = {n: runner.engine.frame(whole[r.name], r.schema) for n, r in definition.sources.items()}
    return runner.original(definition.text, frames)
