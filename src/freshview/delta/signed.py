"""Signed bags on the driver: Arrow tables whose last column is a weight.

Δ = new − old      inserted rows have a weight above 0, deleted rows one below 0; equal rows cancel

A query that finds that its change depends on rows that are not stored returns rows of weight 0 (`top.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from freshview.algebra.nodes import WEIGHT
from freshview.errors import SnapshotExpired, ViewUnusable
from freshview.relation.delta import (
    DELETE,
    INSERT,
    condensed,
    describe_key,
    first_duplicate,
    is_live,
    key_table,
    overlay,
    tag,
    untag,
)
from freshview.relation.schema import Column, Schema
from freshview.relation.types import DataType


class RanOut(Exception):
    """A change depends on rows that are not stored."""

    def __init__(self) -> None:
        super().__init__("so many of the first rows have gone that ORDER BY … LIMIT needs rows that are not stored")


def ran_out(signed: pa.Table) -> bool:
    """Does a change depend on rows that are not stored?"""
    return bool(pc.any(pc.equal(signed.column(WEIGHT), 0)).as_py())


def with_weight(schema: Schema) -> Schema:
    """The schema of a relation's delta: its columns and the weight."""
    return Schema((*schema.columns, Column(WEIGHT, DataType("int"))))


def part(schema: Schema, columns: Sequence[str] | None) -> Schema:
    """The schema of some columns of a relation (None: all), without a key."""
    return Schema(schema.columns if columns is None else tuple(schema.column(c) for c in columns))


def net_images(images: tuple[pa.Table, pa.Table], schema: Schema, wanted: Schema) -> pa.Table:
    """Deleted and inserted images of a schema as one signed bag of the wanted columns, equal rows cancelled."""
    places = [schema.position(n) for n in wanted.names]
    old, new = (table.select(places) for table in images)
    if not (old.num_rows and new.num_rows):  # nothing cancels: the rows need not be compared
        rows, weight = (new, 1) if new.num_rows else (old, -1)
        return weighted(rows.combine_chunks(), weight, wanted)
    rows = overlay([tag(old, wanted, DELETE, 1), tag(new, wanted, INSERT, 2)], wanted).rows
    weights = np.where(is_live(rows).to_numpy(), 1, -1).astype(np.int32)
    return pa.table([*untag(rows).columns, pa.array(weights, pa.int32())], schema=with_weight(wanted).arrow)


def weighted(rows: pa.Table, weight: int, schema: Schema) -> pa.Table:
    """The rows as a signed bag, each with the same weight."""
    weights = pa.array(np.full(rows.num_rows, weight, np.int32))
    return pa.table([*rows.columns, weights], schema=with_weight(schema).arrow)


def net(signed: pa.Table, schema: Schema) -> pa.Table:
    """Signed rows as delta rows, condensed (full condense, LAZY §4): by the key of the view, or equal rows of a bag.

    Of a key, at most one deleted and one inserted image are left, in this order: an update. Laid over the
    view, the last one alone counts; views above need both. ViewUnusable if there are more. RanOut if `ran_out`.
    """
    if ran_out(signed):
        raise RanOut
    weights = signed.column(WEIGHT).cast(pa.int64())
    rows = signed.drop_columns([WEIGHT])
    parts = []
    for action, sign in ((DELETE, -1), (INSERT, 1)):
        copies = pc.multiply(weights, sign)
        chosen = rows.filter(pc.greater(copies, 0))
        times = copies.filter(pc.greater(copies, 0)).to_pylist()
        if any(n > 1 for n in times):
            chosen = chosen.take(pa.array([i for i, n in enumerate(times) for _ in range(n)], pa.int64()))
        parts.append(tag(schema.conform(chosen), schema, action, 1))
    if not schema.key:
        return overlay(parts, schema).rows
    rows = condensed(pa.concat_tables(parts), schema)
    refuse_repeated_images(rows, schema)
    return rows


def undone(after: pa.Table, delta: pa.Table, schema: Schema) -> pa.Table:
    """The rows before a change, from the rows after it: PAST(L, R) = (R ∸ ΔR) ⊎ ∇R (DEFER §2.5).

    `delta` is a signed bag of rows of the schema, which has no key, each with a weight of 1 or -1.
    """
    added = pc.greater(delta.column(WEIGHT), 0)
    rows = delta.drop_columns([WEIGHT])
    inserted, deleted = (schema.conform(rows.filter(mask)) for mask in (added, pc.invert(added)))
    parts = [tag(schema.conform(after), schema, INSERT, 1), tag(inserted, schema, DELETE, 1)]
    net = overlay([*parts, tag(deleted, schema, INSERT, 1)], schema).rows
    live = is_live(net)
    if not pc.all(live, min_count=0).as_py():
        cause = "rows that its change has added are not there any more"
        raise SnapshotExpired("the state before a change", cause, "Recompute the view.")
    return untag(net)


def refuse_repeated_images(rows: pa.Table, schema: Schema) -> None:
    """Raise ViewUnusable if delta rows of a view delete or insert two images of one key; a bag has no key."""
    if not schema.key:
        return
    images = untag(rows)
    at = first_duplicate(key_table(images, schema).append_column("live", is_live(rows)))
    if at is not None:
        raise repeated_key(describe_key(images, schema, at))


def repeated_key(key: str) -> ViewUnusable:
    """The error that two rows of a view have one key."""
    cause = f"two of its rows have the key {key}"
    return ViewUnusable("view", cause, "Report this, and create the view again with another definition.")
