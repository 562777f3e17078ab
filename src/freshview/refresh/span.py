"""The span of a job: from one point to another, each of them a state of all relations.

Delta rules know only "before" and "after": one description of both serves every kind of maintenance.

Law: after = before ⊕ segments between, for every relation and every span.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

import pyarrow.compute as pc

from freshview.catalog.records import Relation, RelationState, Segment
from freshview.catalog.writer import Catalog
from freshview.refresh.points import Own, Point
from freshview.relation.schema import STMTSN
from freshview.storage.segments import in_memory
from freshview.storage.store import Storage


@dataclass(frozen=True)
class Span:
    """The way from one point to another. What lies at its points never changes, so the catalog is asked for it once."""

    catalog: Catalog
    storage: Storage
    start: Point
    end: Point
    _states: dict[tuple[int, bool], RelationState] = field(default_factory=dict, compare=False, repr=False)
    _segments: dict[int, list[Segment]] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def between(cls, catalog: Catalog, storage: Storage, c0: int, c1: int) -> Span:
        return cls(catalog, storage, Point(c0), Point(c1))

    def before(self, relation: Relation) -> RelationState:
        return self._once(relation, at_end=False)

    def after(self, relation: Relation) -> RelationState:
        return self._once(relation, at_end=True)

    def _once(self, relation: Relation, *, at_end: bool) -> RelationState:
        key = (relation.id, at_end)
        if key not in self._states:
            self._states[key] = self._state(relation, self.end if at_end else self.start)
        return self._states[key]

    def segments(self, relation: Relation) -> list[Segment]:
        """The segments that lead from before to after, in order."""
        return self.segments_of([relation])[0]

    def segments_of(self, relations: Collection[Relation]) -> list[list[Segment]]:
        """The segments of each of these relations that lead from before to after, in order."""
        asked = {relation.id: relation for relation in relations}
        unknown = asked.keys() - self._segments.keys()
        committed: dict[int, list[Segment]] = {id_: [] for id_ in unknown}
        for segment in self.catalog.segments(sorted(unknown), self.start.csn, self.end.csn) if unknown else ():
            committed[segment.relation_id].append(segment)
        self._segments.update({id_: self._between(asked[id_], found) for id_, found in committed.items()})
        return [self._segments[relation.id] for relation in relations]

    def _between(self, relation: Relation, committed: list[Segment]) -> list[Segment]:
        if self.start.stmtsn:
            committed = self._parts(relation, self.start, later=True) + committed
        seen = len(self.start.own.get(relation.id, ()))
        return [*committed, *self.end.own.get(relation.id, ())[seen:]]

    def _state(self, relation: Relation, point: Point) -> RelationState:
        state = self.catalog.state(relation, point.csn - 1 if point.stmtsn else point.csn)
        early = self._parts(relation, point, later=False) if point.stmtsn else []
        return replace(state, segments=(*state.segments, *early, *point.own.get(relation.id, ())))

    def _parts(self, relation: Relation, point: Point, *, later: bool) -> list[Segment]:
        """The rows of the point's commit that the statements after the point wrote, or those up to it."""
        commit = self.catalog.segments([relation.id], point.csn - 1, point.csn)
        return [p for s in commit if (p := self._part(s, relation, point.stmtsn, later)) is not None]

    def _part(self, segment: Segment, relation: Relation, stmtsn: int, later: bool) -> Segment | None:
        rows = self.storage.reader.segment_rows(segment, relation.schema)
        chosen = pc.greater(rows.column(STMTSN), stmtsn) if later else pc.less_equal(rows.column(STMTSN), stmtsn)
        return in_memory(relation.id, rows.filter(chosen), segment.schema_version)


def later_than(seen: Own, now: Own, relations: Sequence[int]) -> bool:
    """Does one of these relations have own segments now that were not seen?"""
    return any(len(now.get(i, ())) > len(seen.get(i, ())) for i in relations)
