"""Δ of a stored relation between two CSNs: its segments folded, blind rows completed, equal rows cancelled.

    Δ(R) = last image per key − R@c0 ⋉ keys        keyed (blind rows need nothing more: law 11.1)
    Δ(R) = the net of inserted and deleted rows     bags, views
    Δ(R) = the difference of two versions           external tables

Rows come with a weight of +1 or −1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from freshview.algebra.nodes import WEIGHT
from freshview.catalog.records import Relation
from freshview.catalog.writer import Catalog
from freshview.relation.delta import DELETE, INSERT, is_live, overlay, tag, untag
from freshview.relation.schema import Column, Schema
from freshview.relation.types import DataType
from freshview.storage.external import changes as external_changes
from freshview.storage.reader import OVERLAY_ROWS
from freshview.storage.store import Storage


@dataclass(frozen=True)
class TooLarge(Exception):
    """The delta does not fit on the driver."""

    rows: int


def with_weight(schema: Schema) -> Schema:
    """The schema of a relation's delta."""
    return Schema((*schema.columns, Column(WEIGHT, DataType("int"))))


def changes(catalog: Catalog, storage: Storage, relation: Relation, c0: int, c1: int) -> pa.Table:
    """The relation's signed delta from c0 to c1."""
    bag = Schema(relation.schema.columns)
    segments = catalog.segments([relation.id], c0, c1)
    if relation.is_external:
        seen = {m.delta_version: m for m in catalog.mains(relation.id)}
        parts = [external_changes(relation, *s.versions, seen.get(s.versions[1])) for s in segments if s.versions]
        return _signed(overlay(parts, bag).rows, bag)
    if sum(s.rows for s in segments) > OVERLAY_ROWS:
        raise TooLarge(sum(s.rows for s in segments))
    folded = overlay([storage.reader.segment_rows(s, relation.schema) for s in segments], relation.schema)
    if not relation.schema.key:
        return _signed(folded.rows, bag)
    keys = untag(folded.rows).select(list(relation.schema.key_positions))
    old = relation.schema.conform(storage.reader.lookup(catalog.state(relation, c0), keys))
    net = overlay([tag(old, bag, DELETE, 1), tag(folded.live, bag, INSERT, 2)], bag)
    return _signed(net.rows, bag)


def _signed(rows: pa.Table, bag: Schema) -> pa.Table:
    weights = np.where(is_live(rows).to_numpy(), 1, -1).astype(np.int32)
    return pa.table([*untag(rows).columns, pa.array(weights, pa.int32())], schema=with_weight(bag).arrow)
