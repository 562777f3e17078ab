"""Delta queries of several views put together, and translated for the embedded engine: kept for the next refresh.

Law: what is kept depends on the queries alone, and holds no rows.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from cachetools import LRUCache

from freshview.algebra.nodes import Node, Scan, Shared
from freshview.algebra.together import CommonPart, Together
from freshview.catalog.records import Relation
from freshview.local.plans import LocalPlan, Prepare, Types, translated
from freshview.local.typed import Unproven
from freshview.refresh.embedded import require_embeddable, require_stored, types_of
from freshview.refresh.plan import source_of

_KEPT = 64  # combinations of queries


@dataclass(frozen=True)
class Combined:
    """Queries that were put together, and their translations as far as they are known."""

    queries: tuple[Node, ...]  # they are held, so that no other query gets the identity of one of them
    together: Together
    local: dict[object, LocalPlan] = field(default_factory=dict)  # by part, or by place of a query


class Combinations:
    """Keeps queries that were put together."""

    def __init__(self) -> None:
        self._kept: LRUCache[tuple[str, tuple[Node, ...]], Combined] = LRUCache(_KEPT)
        self._lock = threading.Lock()

    def of(self, how: str, queries: tuple[Node, ...], make: Callable[[], Together]) -> Combined:
        """Queries put together in one way: as they were before, or now."""
        with self._lock:
            known = self._kept.get((how, queries))
        if known is None:
            known = Combined(queries, make())
            with self._lock:
                self._kept[how, queries] = known
        return known


class Translation:
    """Parts and queries for the embedded engine."""

    def __init__(self, combined: Combined, relation: Callable[[Scan], Relation], prepare: Prepare) -> None:
        """`relation` is what a scan reads; `prepare` has Spark compute what is not proven."""
        self._combined = combined
        self._relation = relation
        self._prepare = prepare
        self._types: dict[Shared, Types | Unproven] = {}

    def part(self, part: CommonPart) -> LocalPlan | None:
        """A part; None if it is not for the embedded engine. Parts are asked for in order, before queries."""
        source = source_of(part.scan)
        try:
            local = self.translated(source, part.node)
        except Unproven as obstacle:
            self._types[source] = obstacle
            return None
        self._types[source] = dict(local.columns)
        return local

    def query(self, place: int, view: Relation) -> LocalPlan:
        """The query at a place, for a view, over the parts; raise Unproven if it is not for the embedded engine."""
        require_embeddable(view)
        plan = self.translated(place, self._combined.together.plans[place])
        require_stored(plan, view)
        return plan

    def translated(self, key: object, node: Node) -> LocalPlan:
        """A part, or the query at a place, over the parts before it; what is not proven is computed by Spark now."""
        known = self._combined.local.get(key)
        if known is None:
            known = self._combined.local[key] = translated(node, self._types_of, self._prepare)
        for prepared in known.prepared:
            self._prepare(prepared)
        return known

    def _types_of(self, scan: Scan) -> Types:
        if not isinstance(scan.source, Shared):
            return types_of(self._relation(scan))
        types = self._types[scan.source]
        if isinstance(types, Unproven):
            raise types
        return types
