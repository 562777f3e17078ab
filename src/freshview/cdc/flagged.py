"""Partial deltas as two sets with a flag, the form in which changes pass through a view (PARTIAL §5.3).

Figure 4, from six sets:

    Δ = ins ∪ un ∪ up ∪ ups
    ∇ = del [comp] ∪ uo [comp] ∪ π_pk(up) [up] ∪ π_pk(ups) [ups] ∪ delk [up]        padded with NULL

Figure 6, to six sets (▷ is the anti-join, ⋉ the semi-join, both by key):

    ins = Δ ▷ ∇        un/uo = Δ ⋈ σ_comp(∇)     up = Δ ⋉ σ_up(∇)     ups = Δ ⋉ σ_ups(∇)
    del = σ_comp(∇) ▷ Δ                          delk = π_pk(σ_not comp(∇) ▷ Δ)

The flag says what the row of ∇ is: an old image (comp), a key that was there (up), a key that may have been (ups).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from freshview.cdc.model import PartialDelta, key_schema, keys_of
from freshview.relation.delta import key_table, positions_in
from freshview.relation.schema import Schema

FLAG = "__fv_flag"
COMP, UP, UPS = "comp", "up", "ups"


@dataclass(frozen=True)
class Flagged:
    """The changes of a relation: Δ (`inserted`), and ∇ (`removed`) with a flag as its last column."""

    schema: Schema
    inserted: pa.Table
    removed: pa.Table


def with_flag(rows: pa.Table, flag: str) -> pa.Table:
    """Rows with the same flag each."""
    return rows.append_column(pa.field(FLAG, pa.string()), pa.array([flag] * rows.num_rows, pa.string()))


def without_flag(rows: pa.Table) -> pa.Table:
    return rows.drop_columns([FLAG])


def flagged_as(rows: pa.Table, *flags: str) -> pa.Table:
    """The rows of ∇ that have one of the flags."""
    return rows.filter(pc.is_in(rows.column(FLAG), pa.array(flags, pa.string())))


def padded(keys: pa.Table, schema: Schema) -> pa.Table:
    """Rows of a relation of which only the key is known: the other columns are NULL."""
    places = {place: i for i, place in enumerate(schema.key_positions)}
    columns = [
        keys.column(places[i]) if i in places else pa.nulls(keys.num_rows, field.type)
        for i, field in enumerate(schema.arrow)
    ]
    return pa.table(columns, schema=schema.arrow)


def to_flagged(delta: PartialDelta) -> Flagged:
    """Figure 4."""
    schema = delta.schema
    inserted = pa.concat_tables([delta.ins, delta.un, delta.up, delta.ups])
    removed = pa.concat_tables(
        [
            with_flag(delta.deleted, COMP),
            with_flag(delta.uo, COMP),
            with_flag(padded(keys_of(delta.up, schema), schema), UP),
            with_flag(padded(keys_of(delta.ups, schema), schema), UPS),
            with_flag(padded(delta.delk, schema), UP),
        ]
    )
    return Flagged(schema, inserted, removed)


def to_partial(change: Flagged, name: str) -> PartialDelta:
    """Figure 6."""
    schema, new = change.schema, change.inserted
    old, up, ups = (without_flag(flagged_as(change.removed, flag)) for flag in (COMP, UP, UPS))
    pairs = positions_by_key(new, old, schema)
    gone = by_key(pa.concat_tables([up, ups]), new, schema, inside=False)
    return PartialDelta(
        name,
        schema,
        ins=by_key(new, without_flag(change.removed), schema, inside=False),
        deleted=by_key(old, new, schema, inside=False),
        un=new.take(pairs[0]),
        uo=old.take(pairs[1]),
        up=by_key(new, up, schema),
        ups=by_key(new, ups, schema),
        delk=keys_of(gone, schema),
    )


def by_key(rows: pa.Table, others: pa.Table, schema: Schema, *, inside: bool = True) -> pa.Table:
    """The rows whose key is (or is not) a key of the others: semi-join and anti-join."""
    return rows.take(positions_in(key_table(rows, schema), key_table(others, schema), inside=inside))


def positions_by_key(left: pa.Table, right: pa.Table, schema: Schema) -> tuple[pa.Array, pa.Array]:
    """The positions of rows with equal keys in two tables, pair by pair, in the order of the left one."""
    keys = list(key_schema(schema).names)
    return matches(keys_of(left, schema), keys_of(right, schema), keys, keys)


def matches(
    left: pa.Table, right: pa.Table, left_on: Sequence[str], right_on: Sequence[str]
) -> tuple[pa.Array, pa.Array]:
    """The positions of rows that join on equal columns, pair by pair, in the order of the left one; NULL joins none.

    Integers of different types are compared as the widest type.
    """
    names = [f"k{i}" for i in range(len(left_on))]
    widened = [left.column(a).type != right.column(b).type for a, b in zip(left_on, right_on, strict=True)]
    sides = [
        pa.table(
            [t.column(c).cast(pa.int64()) if wide else t.column(c) for c, wide in zip(on, widened, strict=True)],
            names=names,
        ).append_column(at, pa.array(range(t.num_rows), pa.int64()))
        for t, on, at in ((left, left_on, "left"), (right, right_on, "right"))
    ]
    found = sides[0].join(sides[1], keys=names, join_type="inner", use_threads=False)
    found = found.select(["left", "right"]).sort_by([("left", "ascending"), ("right", "ascending")]).combine_chunks()
    return found.column("left"), found.column("right")
