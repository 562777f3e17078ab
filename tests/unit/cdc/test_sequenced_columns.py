"""Changes with a sequence as columns give what the same changes give one by one (SCD type 1)."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshview.cdc.columns import NotColumns
from freshview.cdc.model import key_schema
from freshview.cdc.net import as_table
from freshview.cdc.sequenced import Last, SequencedChange, latest
from freshview.cdc.sequenced_columns import SequencedColumns, compares, latest_of_columns
from freshview.relation.schema import Column, Schema
from freshview.relation.types import parse_type

T = Schema(
    (
        Column("v", parse_type("STRING")),
        Column("id", parse_type("INT"), nullable=False),
        Column("at", parse_type("STRING"), nullable=False),
    ),
    ("at", "id"),
)
AT = datetime(2026, 3, 1, tzinfo=UTC)
_SEQUENCES: dict[str, list[Any]] = {
    "BIGINT": [-1, 0, 7, 2**40],
    "STRING": ["", "a", "ab", "é", "\U0001f600"],
    "BINARY": [b"", b"\x00", b"a", b"\xff"],
    "BOOLEAN": [False, True],
    "DATE": [datetime(y, 1, 1).date() for y in (1, 1969, 2026)],
    "TIMESTAMP": [datetime(y, 1, 1, 0, 0, 0, 1, UTC) for y in (1, 1969, 2026)],
    "DECIMAL(38,2)": [Decimal("-1.50"), Decimal("0.00"), Decimal(10) ** 30],
}

_NO_KEYS = as_table([], key_schema(T))
_keys = st.tuples(st.sampled_from("xy"), st.integers(0, 2))


@st.composite
def _worlds(draw: st.DrawFn) -> tuple[str, list[SequencedChange], dict[Any, Last], Any, bool]:
    """The type of a sequence, changes without truncations, what is stored, the last truncation, and whether the changes
    are all rows that there are."""
    type_ = draw(st.sampled_from(sorted(_SEQUENCES)))
    sequence = st.sampled_from(_SEQUENCES[type_])
    perhaps = st.one_of(st.none(), sequence)
    changes = []
    for number in range(draw(st.integers(0, 12))):
        key, kind = draw(_keys), draw(st.sampled_from(["row", "row", "delete", "reported"]))
        image = (f"v{number}", key[1], key[0]) if kind == "row" else None
        own = draw(perhaps if kind == "reported" else sequence)
        reported = kind == "reported"
        changes.append(SequencedChange(key, own, image, AT if reported else None, str(number), False, reported))
    stored = {
        key: Last(draw(perhaps), draw(st.sampled_from([None, ("old", key[1], key[0])]))) for key in draw(st.sets(_keys))
    }
    return type_, changes, stored, draw(perhaps), draw(st.booleans())


def _columns(changes: list[SequencedChange], type_: pa.DataType) -> SequencedColumns:
    images = [c.image or (None, c.key[1], c.key[0]) for c in changes]
    return SequencedColumns(
        T,
        as_table(images, T),
        pa.chunked_array([pa.array([c.sequence for c in changes], type_)]),
        np.array([c.image is None for c in changes], dtype=bool),
        np.array([c.truncates for c in changes], dtype=bool),
        np.array([c.is_reported for c in changes], dtype=bool),
        AT,
        [c.place for c in changes],
    )


@given(_worlds())
def test_the_last_changes_of_columns_are_those_of_rows(
    world: tuple[str, list[SequencedChange], dict[Any, Last], Any, bool],
) -> None:
    """Late changes, equal sequences, deletions with and without one, what is remembered, a truncation before."""
    kind, changes, stored, truncated, whole = world
    type_ = parse_type(kind).arrow
    columns = _columns(changes, type_)
    assert columns.rows() == changes
    keys = as_table(list(stored), key_schema(T))
    sequences = pa.chunked_array([pa.array([last.sequence for last in stored.values()], type_)])
    found = latest_of_columns(columns, keys, sequences, truncated, whole=whole)
    if whole:
        there = {c.key for c in changes if not c.is_reported}
        stored = {key: Last(None, last.image) if key in there else last for key, last in stored.items()}
    wanted = latest(changes, stored, truncated)
    assert (wanted.truncated, wanted.is_emptied) == (truncated, False)
    last = [changes[place] for place in found.places.tolist()]
    assert {
        change.key: Last(sequence, change.image)
        for change, sequence in zip(last, found.sequences.to_pylist(), strict=True)
    } == wanted.changed
    assert len(last) == len(wanted.changed)


@given(_worlds(), st.sets(_keys))
def test_rows_that_are_in_no_change_are_deleted_behind_them(
    world: tuple[str, list[SequencedChange], dict[Any, Last], Any, bool], here: set[Any]
) -> None:
    kind, changes, *_ = world
    found = _columns(changes, parse_type(kind).arrow).without(as_table(sorted(here), key_schema(T)))
    gone = here - {c.key for c in changes}
    assert found.rows() == [*changes, *(SequencedChange(k, None, None, AT, is_reported=True) for k in sorted(gone))]


def test_without_a_sequence_the_last_arrival_counts() -> None:
    changes = [SequencedChange(("x", 1), None, (v, 1, "x")) for v in "ab"] + [SequencedChange(("x", 2), None, None)]
    found = latest_of_columns(_columns(changes, pa.null()), _NO_KEYS, pa.chunked_array([], pa.null()))
    assert found.places.tolist() == [1, 2]
    assert found.sequences.to_pylist() == [None, None]


def test_truncations_and_sequences_that_arrow_orders_in_another_way_are_left_to_rows() -> None:
    changes = [SequencedChange(("x", 1), 1, None, truncates=True)]
    with pytest.raises(NotColumns):
        latest_of_columns(_columns(changes, pa.int64()), _NO_KEYS, pa.chunked_array([], pa.int64()))
    assert not any(compares(parse_type(t)) for t in ("DOUBLE", "FLOAT", "STRUCT<a: INT>"))
