"""Plans and texts as queries of one Spark session, over frames of the caller."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from freshview.algebra.nodes import Node, Scan
from freshview.algebra.stages import Staged
from freshview.algebra.traversal import scans
from freshview.relation.schema import fold
from freshview.sql.binding import bind
from freshview.sql.rendering import render

if TYPE_CHECKING:
    from freshview.spark.engine import SparkEngine

Frame = Any  # a Spark DataFrame


@dataclass(frozen=True)
class PlanRunner:
    """Runs plans on one engine."""

    engine: SparkEngine

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

    def in_stages(
        self, plan: Staged, frame: Callable[[Scan], Any], computed: Callable[[Frame], Frame] | None = None
    ) -> Frame:
        """A plan as several Spark queries: its stages are computed first, one after the other.

        `computed` returns a frame of rows that are computed now; by default they are held on the driver.
        """
        frames: dict[object, Any] = {}

        def read(scan: Scan) -> Any:
            if _reading(scan) not in frames:
                frames[_reading(scan)] = frame(scan)
            return frames[_reading(scan)]

        stages, rest = plan
        for stage in stages:
            rows = self.run(stage.part, read)
            frames[_reading(stage.scan)] = computed(rows) if computed else self.engine.computed(rows, "view")
        return self.run(rest, read)

    def types_of(self, frames: Mapping[str, Any]) -> Callable[[Node], dict[str, str]]:
        """A function that returns Spark's types of a plan's columns over these frames."""

        def types(node: Node) -> dict[str, str]:
            result = self.run(node, lambda s: frames[s.relation])
            return {f.name: f.dataType.simpleString() for f in result.schema.fields}

        return types

    def original(self, text: str, frames: Mapping[str, Any]) -> Frame:
        """A user's query over frames for its tables."""
        bound, placed = self.bound(text, frames)
        return self.engine.query(bound, placed, text)

    def bound(self, text: str, frames: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """A user's query with {placeholders}, and the frames that they stand for."""
        by_name = {fold(n): f for n, f in frames.items()}
        bound = bind(text, lambda name: fold(name) in by_name)
        return bound.text, {p: by_name[fold(r.name)] for p, r in bound.tables.items()}


def _reading(scan: Scan) -> object:
    """The key of a scan's frame: scans with equal keys read equal rows."""
    return scan.source, scan.version, scan.semijoins, scan.fields if scan.semijoins else ()
