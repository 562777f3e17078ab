"""Constraints, checked on a statement's own delta when the statement ends (DESIGN §2)."""

from __future__ import annotations

import pyarrow as pa

from freshview.catalog.records import RelationState
from freshview.errors import DuplicateKey
from freshview.relation.delta import describe_key, first_duplicate, key_table, positions_in
from freshview.relation.ingest import check_required
from freshview.storage.reader import StateReader


def check_statement(reader: StateReader, state: RelationState, deletes: pa.Table | None, inserts: pa.Table) -> None:
    """Check NOT NULL and keys: no key is inserted twice, none exists already unless the statement deletes it."""
    check_required(inserts, state.schema, state.relation.name)
    check_keys(reader, state, deletes, inserts)


def check_keys(reader: StateReader, state: RelationState, deletes: pa.Table | None, inserts: pa.Table) -> None:
    """Raise DuplicateKey if a key is inserted twice, or exists and is not deleted; only key columns are read."""
    schema, name = state.schema, state.relation.name
    if not schema.key or inserts.num_rows == 0:
        return
    keys = key_table(inserts, schema)
    check_unique(inserts, keys, state)
    if deletes is not None and deletes.num_rows:
        fresh = positions_in(keys, key_table(deletes, schema), inside=False)
        inserts = inserts.take(fresh)
    if inserts.num_rows == 0:
        return
    existing = reader.lookup(state, inserts.select(list(schema.key_positions)), columns=())
    if existing.num_rows:
        raise DuplicateKey(
            f"table {name}",
            f"key {describe_key(existing, schema, 0)} exists already",
            "Use upsert or MERGE to replace rows, or another key.",
        )


def check_unique(rows: pa.Table, keys: pa.Table, state: RelationState) -> None:
    """Raise DuplicateKey if two rows of one statement have the same key."""
    twice = first_duplicate(keys)
    if twice is not None:
        raise DuplicateKey(
            f"table {state.relation.name}",
            f"key {describe_key(rows, state.schema, twice)} occurs twice in one statement",
            "Give each key once.",
        )
