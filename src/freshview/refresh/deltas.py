"""Δ of a stored relation over a span: its segments folded, blind rows completed, equal rows cancelled.

    Δ(R) = last image per key − old image per key   keyed; the old image is that of the key's first delta row if it
                                                    carries one, else it is looked up in R before (law 11.1)
    Δ(R) = the net of inserted and deleted rows     bags, views
    Δ(R) = R after − R before                       views whose rows were replaced
    Δ(R) = the difference of two versions           external tables

Rows have a weight of +1 or −1, and only the columns that are asked for: changes of other columns cancel.

`changes` computes this on the driver. A change that is larger than `takes_on_driver` allows, and one by replacement,
stays in Spark (`spark/signed.py`, by the same law).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from freshview.catalog.records import Relation, Segment
from freshview.definition.analysis import member_column
from freshview.delta.signed import net_images, part
from freshview.refresh.condense import condensed
from freshview.refresh.cost import takes_on_driver
from freshview.refresh.span import Span
from freshview.relation.delta import (
    DELETE,
    DELETE_KEY,
    UPSERT,
    actions,
    conform_delta,
    first_positions,
    is_live,
    key_table,
    last_positions,
    untag,
)
from freshview.relation.schema import Schema
from freshview.storage.external_rows import changes as external_changes


def fits_driver(relation: Relation, segments: Sequence[Segment]) -> bool:
    """Is the delta over these segments computed on the driver?"""
    if any(s.replaces for s in segments):
        return False
    return takes_on_driver(sum(s.rows for s in segments), len(relation.schema.columns), sum(s.size for s in segments))


OldAndNew = tuple[pa.Table, pa.Table]  # the rows that a change deletes and inserts, in all columns of a relation


def changes(
    span: Span, relation: Relation, columns: Sequence[str] | None = None, segments: Sequence[Segment] | None = None
) -> pa.Table:
    """The relation's signed delta over a span; `segments` are those of the span, if the caller has them already."""
    return netted(images(span, relation, columns, segments), relation, columns)


def netted(found: OldAndNew, relation: Relation, columns: Sequence[str] | None = None) -> pa.Table:
    """The signed delta in some columns: rows that differ in other columns only cancel."""
    return net_images(found, relation.schema, part(relation.schema, columns))


def images(
    span: Span, relation: Relation, columns: Sequence[str] | None = None, segments: Sequence[Segment] | None = None
) -> OldAndNew:
    """The images that the segments of a span delete and insert; values of other columns than `columns` may be NULL."""
    storage = span.storage
    segments = span.segments(relation) if segments is None else segments
    if relation.is_external:
        seen = {m.delta_version: m for m in span.catalog.mains(relation.id)}
        parts = [external_changes(relation, *s.versions, seen.get(s.versions[1])) for s in segments if s.versions]
        return _images(parts, relation.schema)
    if any(s.replaces for s in segments):
        old, new = (
            relation.schema.conform(storage.reader.contents(state(relation))) for state in (span.before, span.after)
        )
        return member_rows(relation, old), member_rows(relation, new)
    parts = [storage.reader.segment_rows(s, relation.schema) for s in segments]
    if not condensed(relation).key:
        old, new = _images(parts, relation.schema)
        return member_rows(relation, old), member_rows(relation, new)
    wanted = part(relation.schema, columns)

    def look_up(keys: pa.Table) -> pa.Table:
        state = span.before(relation)  # its columns may have had other names then, or not been there yet
        places = [p for p in map(relation.schema.position, wanted.names) if p < len(state.schema.columns)]
        own = [state.schema.names[p] for p in relation.schema.key_positions]
        return storage.reader.lookup(state, keys.rename_columns(own), columns=[state.schema.names[p] for p in places])

    return _keyed_images(parts, relation.schema, look_up)


def member_rows(relation: Relation, rows: pa.Table) -> pa.Table:
    """The stored rows that belong to the relation: a view may store groups that its HAVING hides."""
    member = member_column(relation)
    return rows.filter(rows.column(member)) if member else rows


def _images(parts: Sequence[pa.Table], schema: Schema) -> OldAndNew:
    """The deleted and inserted images of a bag's delta rows."""
    rows = _joined(parts, schema)
    live = is_live(rows)
    return untag(rows.filter(pc.invert(live))), untag(rows.filter(live))


def _keyed_images(parts: Sequence[pa.Table], schema: Schema, look_up: Callable[[pa.Table], pa.Table]) -> OldAndNew:
    """The images of all touched keys before and after."""
    rows = _joined(parts, schema)
    keys = key_table(untag(rows), schema)
    first, last = rows.take(first_positions(keys)), rows.take(last_positions(keys))
    action = actions(first)
    old = untag(first.filter(pc.equal(action, DELETE)))
    blind = untag(first.filter(pc.or_(pc.equal(action, DELETE_KEY), pc.equal(action, UPSERT))))
    if blind.num_rows:
        old = pa.concat_tables([old, schema.conform(look_up(blind.select(list(schema.key_positions))))])
    return old, untag(last.filter(is_live(last)))


def _joined(parts: Sequence[pa.Table], schema: Schema) -> pa.Table:
    return pa.concat_tables([schema.segment_arrow.empty_table(), *(conform_delta(p, schema) for p in parts)])
