"""Partial deltas: the changes of one relation as six sets of rows (PARTIAL §3, Definition 1).

    ins     rows that were inserted
    del     rows that were deleted, in their old state
    un/uo   rows that were updated, in their new and in their old state
    up      rows that were updated, in their new state alone
    ups     rows that were inserted or updated, in their new state
    delk    keys of rows that were deleted

Law: each changed key is in exactly one set, once. The relation has a primary key, and no part of a key is NULL. As in
the paper, a view may receive changes that do not change it: an update to equal values, or the deletion of an absent
key.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc

from freshview.errors import CaptureFailed
from freshview.relation.delta import describe_key, first_duplicate, key_table, positions_in
from freshview.relation.schema import Schema

SETS = ("ins", "del", "un/uo", "up", "ups", "delk")


def key_schema(schema: Schema) -> Schema:
    """The schema of a relation's keys alone."""
    return Schema(tuple(schema.column(k) for k in schema.key), schema.key)


def keys_of(rows: pa.Table, schema: Schema) -> pa.Table:
    """The key columns of rows, in the order of the key."""
    return rows.select(list(schema.key_positions))


@dataclass(frozen=True)
class PartialDelta:
    """The changes of the relation `name`: `un` and `uo` pair by place, `delk` has the key columns alone."""

    name: str
    schema: Schema
    ins: pa.Table
    deleted: pa.Table
    un: pa.Table
    uo: pa.Table
    up: pa.Table
    ups: pa.Table
    delk: pa.Table

    def __post_init__(self) -> None:
        if not self.schema.key:
            raise CaptureFailed(
                f"changes of {self.name}", "it has no primary key", "Name the columns that identify a row."
            )
        for name, rows in (*self.sets.items(), ("un/uo", self.uo)):
            wanted = key_schema(self.schema).arrow if name == "delk" else self.schema.arrow
            if not rows.schema.equals(wanted):
                raise CaptureFailed(
                    f"changes of {self.name}",
                    f"the set {name} has the columns ({_described(rows.schema)}) instead of ({_described(wanted)})",
                    "Read the source's columns again.",
                )
        self._check_keys()

    def _check_keys(self) -> None:
        keys, schema = self._keys, key_schema(self.schema)
        for column in keys.columns:
            if column.null_count:
                at = pc.index(pc.is_null(column), True).as_py()
                raise CaptureFailed(
                    f"changes of {self.name}",
                    f"a row of the set {self._set_at(at)} has NULL in its key {describe_key(keys, schema, at)}",
                    "Choose key columns that are never NULL.",
                )
        identities = key_table(keys, schema)
        twice = first_duplicate(identities)
        if twice is not None:
            places = positions_in(identities, identities.slice(twice, 1)).to_pylist()
            raise CaptureFailed(
                f"changes of {self.name}",
                f"key {describe_key(keys, schema, twice)} is in the sets {' and '.join(map(self._set_at, places))}",
                "Each key may change once: compute the net effect, and check that the key columns are unique.",
            )
        if not keys_of(self.un, self.schema).equals(keys_of(self.uo, self.schema)):
            raise CaptureFailed(
                f"changes of {self.name}",
                "the rows of un and uo have different keys",
                "Deliver a changed key as a deletion and an insertion.",
            )

    @cached_property
    def sets(self) -> dict[str, pa.Table]:
        """The sets by their names in the paper; update pairs in their new state."""
        return dict(zip(SETS, (self.ins, self.deleted, self.un, self.up, self.ups, self.delk), strict=True))

    @cached_property
    def filled(self) -> frozenset[str]:
        """The names of the sets that have rows."""
        return frozenset(name for name, rows in self.sets.items() if rows.num_rows)

    @property
    def num_changes(self) -> int:
        return sum(rows.num_rows for rows in self.sets.values())

    @cached_property
    def _keys(self) -> pa.Table:
        keys = [rows if name == "delk" else keys_of(rows, self.schema) for name, rows in self.sets.items()]
        return pa.concat_tables(keys).combine_chunks()

    def _set_at(self, position: int) -> str:
        for name, rows in self.sets.items():
            if position < rows.num_rows:
                return name
            position -= rows.num_rows
        raise IndexError(position)


def partial_delta(
    name: str,
    schema: Schema,
    *,
    ins: pa.Table | None = None,
    deleted: pa.Table | None = None,
    pairs: tuple[pa.Table, pa.Table] | None = None,
    up: pa.Table | None = None,
    ups: pa.Table | None = None,
    delk: pa.Table | None = None,
) -> PartialDelta:
    """Partial deltas from the sets that have rows; `pairs` is (new state, old state)."""
    none = schema.arrow.empty_table()
    un, uo = pairs if pairs is not None else (none, none)
    ins, deleted, up, ups = (none if rows is None else rows for rows in (ins, deleted, up, ups))
    return PartialDelta(name, schema, ins, deleted, un, uo, up, ups, keys_of(none, schema) if delk is None else delk)


def upserted(delta: PartialDelta) -> PartialDelta:
    """The delta with its insertions as upserts: one of them may be of a key that was there."""
    rows = {"deleted": delta.deleted, "pairs": (delta.un, delta.uo), "up": delta.up, "delk": delta.delk}
    return partial_delta(delta.name, delta.schema, ups=pa.concat_tables([delta.ups, delta.ins]), **rows)


def _described(schema: pa.Schema) -> str:
    return ", ".join(f"{f.name} {f.type}" for f in schema)
