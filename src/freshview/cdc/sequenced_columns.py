"""Changes with a sequence as columns: the last change of each key (SCD type 1) without a loop.

Without truncations among the changes, of the changes of one key

    floor  =  the highest of the sequence that is stored of the key and that of the last truncation
    top    =  the last arrival of those with the highest sequence, if that is not below the floor
    last   =  the later one of top and the last arrival without a sequence

Law: `latest_of_columns` equals `sequenced.latest` of the same changes, row by row. What it cannot decide (truncations,
sequences or keys that Arrow does not compare as `rank` does) it leaves to that: NotColumns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from freshview.cdc.columns import NotColumns
from freshview.cdc.model import key_schema, keys_of
from freshview.cdc.sequenced import SequencedChange
from freshview.relation.delta import grouped, key_table, positions_in
from freshview.relation.schema import Schema
from freshview.relation.types import INEXACT, DataType


def compares(type_: DataType) -> bool:
    """Whether Arrow tells values of a type apart, and orders them, as Python does."""
    return not type_.is_nested and type_.kind not in INEXACT


@dataclass(frozen=True)
class SequencedColumns:
    """Changes in their order of arrival; `schema` has the columns and the key of the images.

    The image of a change that deletes counts by its key alone. `sequences` has NULL where a change has none. `reported`
    are deletions that the source reports, at the time `at`. `places` is empty if the source has no places.
    """

    schema: Schema
    images: pa.Table
    sequences: pa.ChunkedArray
    deletes: np.ndarray
    truncates: np.ndarray
    reported: np.ndarray
    at: datetime | None = None
    places: Sequence[str] = ()

    def __len__(self) -> int:
        return int(self.images.num_rows)

    @cached_property
    def keys(self) -> pa.Table:
        """The key of each change."""
        return keys_of(self.images, self.schema)

    @cached_property
    def identities(self) -> pa.Table:
        """The key of each change, as columns that compare by bits."""
        return key_table(self.keys, key_schema(self.schema))

    def rows(self) -> list[SequencedChange]:
        """The changes one by one."""
        keys, images = (zip(*(c.to_pylist() for c in t.columns), strict=True) for t in (self.keys, self.images))
        masks = (mask.tolist() for mask in (self.deletes, self.truncates, self.reported))
        places = self.places or [""] * len(self)
        return [
            SequencedChange(
                key,
                sequence,
                None if deletes else image,
                self.at if is_reported else None,
                place,
                truncates,
                is_reported,
            )
            for key, sequence, image, place, deletes, truncates, is_reported in zip(
                keys, self.sequences.to_pylist(), images, places, *masks, strict=True
            )
        ]

    def without(self, here: pa.Table) -> SequencedColumns:
        """These changes, and then a reported deletion of each row whose key (in the order of the schema's) is in none
        of them."""
        here = here.rename_columns(list(self.schema.key))
        gone = here.take(positions_in(key_table(here, key_schema(self.schema)), self.identities, inside=False))
        true, false = np.ones(gone.num_rows, dtype=bool), np.zeros(gone.num_rows, dtype=bool)
        return replace(
            self,
            images=pa.concat_tables([self.images, self.schema.widened(gone)]),
            sequences=joined(self.sequences, pa.nulls(gone.num_rows, self.sequences.type)),
            deletes=np.r_[self.deletes, true],
            truncates=np.r_[self.truncates, false],
            reported=np.r_[self.reported, true],
            places=[*self.places, *[""] * gone.num_rows] if self.places else (),
        )


@dataclass(frozen=True)
class LatestColumns:
    """The places of the last changes of keys, ascending, and the sequence of each."""

    places: np.ndarray
    sequences: pa.ChunkedArray


def latest_of_columns(
    changes: SequencedColumns,
    keys: pa.Table,
    sequences: pa.ChunkedArray,
    truncated: Any = None,
    *,
    whole: bool = False,
) -> LatestColumns:
    """The last change of each key that wins against what is stored: the last sequences of some `keys`, each once.

    `truncated` is the sequence of the last truncation. `whole`: the changes are all rows that there are, which count
    whatever sequence is stored of their keys.
    """
    own = changes.sequences
    if changes.truncates.any() or sequences.type != own.type:
        raise NotColumns
    identities = key_table(keys.rename_columns(list(changes.schema.key)), key_schema(changes.schema))
    if not identities.schema.equals(changes.identities.schema):
        raise NotColumns
    if whole:
        there = positions_in(identities, changes.identities.filter(pa.array(~changes.reported)))
        is_there = np.zeros(keys.num_rows, dtype=bool)
        is_there[there] = True
        sequences = pc.if_else(pa.array(is_there), pa.scalar(None, own.type), sequences)
    known = joined(sequences, own, pa.array([truncated], own.type))  # the last one is that of the truncation
    ranks, number = _ranks(known), keys.num_rows
    groups, at = grouped(pa.concat_tables([identities, changes.identities]))
    if not len(at):
        return LatestColumns(at, own)
    starts = np.flatnonzero(np.r_[True, groups[1:] != groups[:-1]])

    def highest(values: np.ndarray) -> np.ndarray:
        found: np.ndarray = np.maximum.reduceat(values, starts)
        return found

    is_stored = at < number
    is_open = ~is_stored & pc.is_null(known).to_numpy()[at]
    given = np.where(is_stored | is_open, -1, ranks[at])
    floor = np.maximum(highest(np.where(is_stored, ranks[at], 0)), ranks[-1])
    top = highest(given)
    wins = top >= floor
    is_top = wins[groups] & (given == top[groups])
    last = highest(np.where(is_top | is_open, at, -1))
    before = highest(np.where(is_stored, at, -1))
    before[before < 0] = len(known) - 1
    by = np.where(wins, highest(np.where(is_top, at, -1)), before)
    order = np.argsort(last)[(last < 0).sum() :]
    return LatestColumns(last[order] - number, known.take(pa.array(by[order])))


def joined(*parts: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray:
    """Columns of one type below each other."""
    chunks = [c for part in parts for c in (part.chunks if isinstance(part, pa.ChunkedArray) else [part])]
    return pa.chunked_array(chunks, parts[0].type)


def _ranks(sequences: pa.ChunkedArray) -> np.ndarray:
    """Numbers that compare as sequences do; that of NULL is 0, the lowest one."""
    if sequences.null_count == len(sequences):
        return np.zeros(len(sequences), dtype=np.int64)
    try:
        given = pc.rank(sequences, sort_keys="ascending", tiebreaker="dense")
    except pa.ArrowNotImplementedError as error:
        raise NotColumns from error
    ranks: np.ndarray = given.to_numpy().astype(np.int64)
    ranks[pc.is_null(sequences).to_numpy()] = 0
    return ranks
