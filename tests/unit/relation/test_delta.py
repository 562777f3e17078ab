"""⊕ as laws, against an oracle in plain Python that shares no code with the fold.

Keyed: the last row by (csn, stmtsn, delete before insert) wins. Keyless: exact bag arithmetic by bits.
"""

from __future__ import annotations

import struct
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from freshview.catalog.records import Segment
from freshview.errors import CorruptWarehouse
from freshview.relation.delta import (
    DELETE,
    DELETE_KEY,
    INSERT,
    UPSERT,
    Overlay,
    decode,
    encode,
    extended,
    first_duplicate,
    key_table,
    overlay,
    positions_in,
    tag,
    untag,
)
from freshview.relation.schema import Column, Schema
from freshview.relation.types import parse_type

KEYED = Schema(
    (Column("v", parse_type("DOUBLE")), Column("k.1", parse_type("STRING")), Column("K2", parse_type("INT"))),
    ("k.1", "K2"),
)
BAG = Schema(
    (
        Column("d", parse_type("DOUBLE")),
        Column("f", parse_type("FLOAT")),
        Column("s", parse_type("STRING")),
        Column("n", parse_type("ARRAY<STRUCT<a: DOUBLE>>")),
    )
)


@dataclass(frozen=True)
class Row:
    """A delta row of the oracle."""

    action: int
    values: tuple[Any, ...]


def _bits(value: Any) -> Any:
    """A hashable that is equal exactly for equal bits."""
    if isinstance(value, float):
        return ("float", struct.pack("d", value))
    if isinstance(value, dict):
        return ("dict", tuple((k, _bits(v)) for k, v in value.items()))
    if isinstance(value, list):
        return ("list", tuple(_bits(v) for v in value))
    return value


def _image(values: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(_bits(v) for v in values)


def _bag(table: pa.Table) -> Counter[tuple[Any, ...]]:
    return Counter(_image(tuple(row.values())) for row in table.to_pylist())


def _table(rows: list[tuple[Any, ...]], schema: Schema) -> pa.Table:
    arrays = [pa.array([r[i] for r in rows], c.type.arrow) for i, c in enumerate(schema.columns)]
    return pa.table(arrays, schema=schema.arrow)


def _delta(statements: list[list[Row]], schema: Schema) -> pa.Table:
    """Statements as a segment: per statement, rows in the order of their action, as transactions write them."""
    parts = [schema.segment_arrow.empty_table()]
    for stmtsn, rows in enumerate(statements, 1):
        for action in sorted({r.action for r in rows}):
            values = [r.values for r in rows if r.action == action]
            parts.append(tag(_table(values, schema), schema, action, stmtsn))
    return pa.concat_tables(parts)


# -- keyed -----------------------------------------------------------------------------------------

KEYS = st.tuples(st.sampled_from(["a", "A", "", "ä"]), st.sampled_from([0, 1]))
FLOATS = st.sampled_from([0.0, -0.0, 1.5, float("nan"), float("inf"), None])


@st.composite
def _keyed_statement(draw: st.DrawFn) -> list[Row]:
    rows = []
    for key in draw(st.lists(KEYS, unique=True, max_size=4)):
        choice = draw(st.sampled_from([(DELETE,), (DELETE_KEY,), (INSERT,), (UPSERT,), (DELETE, INSERT)]))
        rows += [Row(a, (None if a == DELETE_KEY else draw(FLOATS), *key)) for a in choice]
    return rows


KEYED_SEGMENTS = st.lists(st.lists(_keyed_statement(), max_size=3), max_size=4)
KEYED_BASES = st.dictionaries(KEYS, FLOATS, max_size=5)


def _keyed_oracle(base: dict[Any, Any], segments: list[list[list[Row]]]) -> dict[Any, Any]:
    """Walk over all rows in order of (csn, stmtsn, deletes first) and do what each says."""
    result = dict(base)
    for segment in segments:
        for statement in segment:
            for row in sorted(statement, key=lambda r: r.action in (INSERT, UPSERT)):
                value, *key = row.values
                if row.action in (INSERT, UPSERT):
                    result[tuple(key)] = value
                else:
                    result.pop(tuple(key), None)
    return result


@given(KEYED_BASES, KEYED_SEGMENTS)
@example({("a", 0): 1.5}, [[[Row(UPSERT, (0.0, "a", 0))], [Row(DELETE_KEY, (None, "a", 0))]]])
@example({("a", 0): 1.5}, [[[Row(UPSERT, (0.0, "a", 0))]], [[Row(DELETE, (0.0, "a", 0))]]])
def test_per_key_the_last_row_wins(base: dict[Any, Any], segments: list[list[list[Row]]]) -> None:
    """The examples are law 11.1: a blind upsert and then a delete must take the old row away, too."""
    folded = overlay([_delta(s, KEYED) for s in segments], KEYED)
    result = folded.apply(_table([(v, *k) for k, v in base.items()], KEYED))
    assert _bag(result) == Counter(_image((v, *k)) for k, v in _keyed_oracle(base, segments).items())


@given(KEYED_SEGMENTS)
def test_a_keyed_overlay_has_one_row_per_touched_key(segments: list[list[list[Row]]]) -> None:
    rows = overlay([_delta(s, KEYED) for s in segments], KEYED).rows
    touched = {r.values[1:] for segment in segments for statement in segment for r in statement}
    assert rows.num_rows == len(touched)


# -- keyless ---------------------------------------------------------------------------------------

NESTED = st.one_of(st.none(), st.lists(st.one_of(st.none(), FLOATS.map(lambda f: {"a": f})), max_size=2))
IMAGES = st.tuples(FLOATS, FLOATS, st.sampled_from(["", "x", "X", None]), NESTED)
BAG_POOL = st.lists(IMAGES, min_size=1, max_size=4)


@st.composite
def _bag_history(draw: st.DrawFn) -> tuple[list[tuple[Any, ...]], list[list[list[Row]]]]:
    """A base bag and segments of statements; deletes mostly, not always, meet a row."""
    pick = st.sampled_from(draw(BAG_POOL))
    base = draw(st.lists(pick, max_size=5))
    statement = st.lists(st.builds(Row, st.sampled_from([DELETE, INSERT]), pick), max_size=4)
    return base, draw(st.lists(st.lists(statement, max_size=3), max_size=4))


def _bag_oracle(base: list[tuple[Any, ...]], segments: list[list[list[Row]]]) -> Counter[tuple[Any, ...]]:
    """Counts per image: what was there, plus inserts, minus deletes; never below nothing."""
    count = Counter(_image(r) for r in base)
    for row in (r for segment in segments for statement in segment for r in statement):
        count[_image(row.values)] += 1 if row.action == INSERT else -1
    return +count


@given(_bag_history())
@example(([(0.0, None, None, None)], [[[Row(DELETE, (-0.0, None, None, None))]]]))
@example(([(0.0, None, None, [{"a": 0.0}])], [[[Row(DELETE, (0.0, None, None, [{"a": -0.0}]))]]]))
@example(([(float("nan"), None, None, None)] * 2, [[[Row(DELETE, (float("nan"), None, None, None))]]]))
@example(([(None, None, None, None)] * 2, [[[Row(DELETE, (None, None, None, None))]]]))
def test_bags_add_and_subtract_by_bits(history: tuple[list[tuple[Any, ...]], list[list[list[Row]]]]) -> None:
    base, segments = history
    result = overlay([_delta(s, BAG) for s in segments], BAG).apply(_table(base, BAG))
    assert _bag(result) == _bag_oracle(base, segments)


@given(_bag_history())
def test_in_a_bag_overlay_nothing_is_left_to_cancel(
    history: tuple[list[tuple[Any, ...]], list[list[list[Row]]]],
) -> None:
    folded = overlay([_delta(s, BAG) for s in history[1]], BAG)
    assert not _bag(folded.live) & _bag(folded.removals)


# -- both ------------------------------------------------------------------------------------------


def _states_alike(one: Overlay, other: Overlay, bases: list[pa.Table]) -> bool:
    return all(_bag(one.apply(b)) == _bag(other.apply(b)) for b in bases)


@given(KEYED_BASES, KEYED_SEGMENTS, st.data())
def test_fold_of_concatenation_is_fold_of_folds(
    base: dict[Any, Any], segments: list[list[list[Row]]], data: st.DataObject
) -> None:
    deltas = [_delta(s, KEYED) for s in segments]
    cut = data.draw(st.integers(0, len(deltas)))
    whole = overlay(deltas, KEYED)
    parts = extended(overlay(deltas[:cut], KEYED), deltas[cut:])
    assert _bag(parts.rows) == _bag(whole.rows)
    assert _states_alike(whole, parts, [_table([(v, *k) for k, v in base.items()], KEYED)])


@given(_bag_history(), st.data())
def test_fold_of_concatenation_is_fold_of_folds_for_bags(
    history: tuple[list[tuple[Any, ...]], list[list[list[Row]]]], data: st.DataObject
) -> None:
    deltas = [_delta(s, BAG) for s in history[1]]
    cut = data.draw(st.integers(0, len(deltas)))
    whole = overlay(deltas, BAG)
    parts = extended(overlay(deltas[:cut], BAG), deltas[cut:])
    assert _states_alike(whole, parts, [_table(history[0], BAG)])


@given(_bag_history())
def test_a_segment_survives_its_encoding(history: tuple[list[tuple[Any, ...]], list[list[list[Row]]]]) -> None:
    for segment in history[1]:
        delta = _delta(segment, BAG)
        back = decode(encode(delta), "segment")
        assert back.schema.equals(delta.schema)
        assert [_image(tuple(r.values())) for r in back.to_pylist()] == [
            _image(tuple(r.values())) for r in delta.to_pylist()
        ]


@settings(max_examples=50)
@given(st.lists(KEYS, max_size=6))
def test_first_duplicate_is_a_row_whose_key_occurs_again(keys: list[tuple[str, int]]) -> None:
    at = first_duplicate(key_table(_table([(None, *k) for k in keys], KEYED), KEYED))
    if at is None:
        assert len(set(keys)) == len(keys)
    else:
        assert keys.count(keys[at]) > 1


_KEY_VALUES: dict[Any, list[Any]] = {
    pa.int64(): [None, 0, -(2**63), 2**63 - 1],
    pa.string(): [None, "", "a", "a ", "é"],
    pa.binary(): [None, b"", b"\0"],
    pa.bool_(): [None, True, False],
    pa.date32(): [None, date(1, 1, 1), date(9999, 12, 31)],
    pa.timestamp("us", "UTC"): [None, datetime(1500, 1, 1, tzinfo=UTC), datetime(2020, 1, 1, tzinfo=UTC)],
    pa.decimal128(38, 2): [None, Decimal("1.00"), Decimal("9" * 36 + ".99")],
}


@given(st.data())
def test_positions_in_are_those_of_keys_among_the_others(data: st.DataObject) -> None:
    """For keys of one and of several columns, in chunks; NULL is among NULLs."""
    types = data.draw(st.lists(st.sampled_from(list(_KEY_VALUES)), min_size=1, max_size=3))
    rows = st.lists(st.tuples(*(st.sampled_from(_KEY_VALUES[t]) for t in types)), max_size=9)

    def table(found: list[tuple[Any, ...]]) -> pa.Table:
        cut = data.draw(st.integers(0, len(found)))
        columns = [
            pa.chunked_array([pa.array([r[i] for r in part], type_) for part in (found[:cut], found[cut:])], type_)
            for i, type_ in enumerate(types)
        ]
        return pa.table(columns, names=[f"k{i}" for i in range(len(types))])

    keys, others = data.draw(rows), data.draw(rows)
    for inside in (True, False):
        expected = [i for i, key in enumerate(keys) if (key in others) is inside]
        assert positions_in(table(keys), table(others), inside=inside).to_pylist() == expected


def test_identity_holds_on_slices_and_chunks() -> None:
    """Arrow slices share buffers, and chunks split a column: neither may change what a row is."""
    rows = _table([(float(i % 3), None, "x", None) for i in range(9)], BAG)
    sliced = pa.concat_tables([rows.slice(1, 2), rows.slice(4, 3)])
    empty = overlay([tag(sliced, BAG, DELETE, 1), tag(rows.slice(3), BAG, INSERT, 2)], BAG).apply(sliced)
    assert _bag(empty) == _bag(rows.slice(3))


def test_delta_rows_of_an_earlier_schema_fold_with_new_ones() -> None:
    wider = KEYED.with_renamed("v", "w").with_columns([Column("x", parse_type("INT"))])
    old = tag(_table([(1.0, "a", 0), (2.0, "b", 0)], KEYED), KEYED, INSERT, 1)
    new = tag(_table([(3.0, "a", 0, 7)], wider), wider, UPSERT, 1)
    assert sorted(untag(overlay([old, new], wider).rows).to_pylist(), key=lambda r: r["k.1"]) == [
        {"w": 3.0, "k.1": "a", "K2": 0, "x": 7},
        {"w": 2.0, "k.1": "b", "K2": 0, "x": None},
    ]


@given(st.binary(max_size=64))
def test_garbage_is_no_segment(payload: bytes) -> None:
    with pytest.raises(CorruptWarehouse, match="segment 1@2"):
        Segment(1, 2, 0, 1, len(payload), 1, payload=payload).table(BAG)


def test_a_segment_cut_short_anywhere_is_noticed() -> None:
    whole = encode(tag(_table([(1.0, 2.0, "x", None)], BAG), BAG, INSERT, 1))
    good = Segment(1, 2, 0, 1, len(whole), 1, payload=whole).table(BAG)
    for cut in range(len(whole)):
        try:
            found = Segment(1, 2, 0, 1, len(whole), 1, payload=whole[:cut]).table(BAG)
        except CorruptWarehouse:
            continue
        assert found.equals(good)  # only the end mark is missing
