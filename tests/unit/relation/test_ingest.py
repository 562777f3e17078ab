"""Ingest: what is read back equals what was given, or the statement fails and says why."""

from __future__ import annotations

import datetime as dt
import math
import struct
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshview.errors import FreshviewError, InvalidStatement, NotFound, NotNullViolation, TypeMismatch
from freshview.relation.ingest import check_required, is_number_store, store_number, to_table
from freshview.relation.schema import Column, Schema
from freshview.relation.types import parse_type

UTC = dt.UTC
SUMMER = dt.timezone(dt.timedelta(hours=2))


def _column(type_: str) -> Schema:
    return Schema((Column("c", parse_type(type_)),))


def _stored(type_: str, data: Any) -> list[Any]:
    result: list[Any] = to_table(data, _column(type_), "t").column("c").to_pylist()
    return result


def _rows(values: list[Any]) -> list[dict[str, Any]]:
    return [{"c": v} for v in values]


def _same(a: Any, b: Any) -> bool:
    """Equal to the bit: tells -0.0 from 0.0, and NaN is itself."""
    if isinstance(a, float) and isinstance(b, float):
        return struct.pack("d", a) == struct.pack("d", b) or (math.isnan(a) and math.isnan(b))
    return type(a) is type(b) and a == b


EXACT: list[tuple[str, list[Any]]] = [
    ("BOOLEAN", [True, False, None]),
    ("TINYINT", [-128, 127, 0, None]),
    ("SMALLINT", [-(2**15), 2**15 - 1]),
    ("INT", [-(2**31), 2**31 - 1, None]),
    ("BIGINT", [-(2**63), 2**63 - 1, None]),
    ("DOUBLE", [0.0, -0.0, math.nan, math.inf, -math.inf, 5e-324, 1.7976931348623157e308, 0.1, None]),
    ("FLOAT", [0.0, -0.0, math.nan, math.inf, -math.inf, 0.5, 2.0**-149, None]),
    ("DECIMAL(5,2)", [Decimal("123.45"), Decimal("-999.99"), Decimal("0.00"), None]),
    ("DECIMAL(38,0)", [Decimal("9" * 38), Decimal("-" + "9" * 38)]),
    ("DECIMAL(38,38)", [Decimal("0." + "9" * 38), Decimal("0." + "0" * 37 + "1")]),
    ("STRING", ["", " ", "a ", "äöü", "名前", "😀", "a\0b", "'", '"', "\\", None]),
    ("BINARY", [b"", b"\0\xff", None]),
    ("DATE", [dt.date(1, 1, 1), dt.date(9999, 12, 31), dt.date(1970, 1, 1), None]),
    ("TIMESTAMP_NTZ", [dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59, 999999), None]),
    ("TIMESTAMP", [dt.datetime(1582, 10, 4, 1, tzinfo=UTC), dt.datetime(2024, 6, 1, 12, 0, 0, 1, tzinfo=UTC), None]),
    ("ARRAY<DOUBLE>", [[], [None], [1.5, -0.0], None]),
    ("ARRAY<ARRAY<STRING>>", [[[], ["ü", None]], [None]]),
    ("STRUCT<a: INT, b: STRING>", [{"a": 1, "b": ""}, {"a": None, "b": None}, None]),
]


@pytest.mark.parametrize(("type_", "values"), EXACT)
def test_rows_are_stored_exactly(type_: str, values: list[Any]) -> None:
    stored = _stored(type_, _rows(values))
    assert len(stored) == len(values)
    assert all(_same(a, b) for a, b in zip(stored, values, strict=True)), stored


@pytest.mark.parametrize(("type_", "values"), EXACT)
def test_arrow_is_stored_exactly(type_: str, values: list[Any]) -> None:
    table = pa.table({"C": pa.array(values, parse_type(type_).arrow)})
    for data in (table, table.to_batches()[0], table.slice(1)):
        expected = values[1:] if data.num_rows < len(values) else values
        assert all(_same(a, b) for a, b in zip(_stored(type_, data), expected, strict=True))


def test_maps_are_given_as_dicts_or_pairs() -> None:
    values: list[Any] = [{"a": 1, "b": None}, {}, None, [("a", 1)], [["ä", 2]]]
    assert _stored("MAP<STRING, INT>", _rows(values)) == [[("a", 1), ("b", None)], [], None, [("a", 1)], [("ä", 2)]]


def test_a_key_occurs_once_in_a_map() -> None:
    twice, once = [("a", 1), ("a", 2)], [("a", 1), ("b", None)]
    type_ = pa.map_(pa.string(), pa.int32())
    maps = pa.array([twice, once, None, [], once], type_)
    assert _stored("MAP<STRING, INT>", pa.table({"c": maps.slice(1)})) == [once, None, [], once]
    inside = pa.array([[{"m": twice}]], pa.list_(pa.struct([("m", type_)])))
    zeros = pa.array([[(0.0, 1), (-0.0, 2)]], pa.map_(pa.float64(), pa.int32()))
    noon = dt.datetime(2024, 6, 1, 12, tzinfo=UTC)
    refused: list[tuple[str, Any]] = [
        ("MAP<STRING, INT>", pa.table({"c": maps})),
        ("MAP<STRING, BIGINT>", pa.table({"c": maps.slice(0, 1)})),
        ("ARRAY<STRUCT<m: MAP<STRING, INT>>>", pa.table({"c": inside})),
        ("MAP<DOUBLE, INT>", pa.table({"c": zeros})),
        ("MAP<DOUBLE, INT>", _rows([[(0.0, 1), (-0.0, 2)]])),
        ("MAP<TIMESTAMP, INT>", _rows([[(noon, 1), (noon.astimezone(SUMMER), 2)]])),
        ("MAP<ARRAY<INT>, INT>", _rows([[([1], 1), ((1,), 2)]])),
    ]
    for wanted, data in refused:
        with pytest.raises(TypeMismatch, match="occurs twice"):
            _stored(wanted, data)


@pytest.mark.parametrize("wanted", ["ARRAY<INT>", "ARRAY<BIGINT>"])
def test_elements_of_list_views_lie_anywhere(wanted: str) -> None:
    values = pa.array([[1, 2], [3], [4, 5], None, [6]], pa.list_view(pa.int32()))
    apart = pa.ListViewArray.from_arrays([3, 0, 1], [2, 1, 3], pa.array([1, 2, 3, 4, 5], pa.int32()))
    for lists in (values, values.slice(1), values.slice(1, 2), values.take(pa.array([4, 0, 2])), apart):
        assert _stored(wanted, pa.table({"c": lists})) == lists.to_pylist()
        inside = pa.StructArray.from_arrays([lists], names=["a"])
        assert _stored(f"STRUCT<a: {wanted}>", pa.table({"c": inside})) == inside.to_pylist()


def test_offsets_from_utc_count_to_the_microsecond() -> None:
    moment = dt.datetime(2024, 6, 1, 12, tzinfo=dt.timezone(dt.timedelta(hours=2, microseconds=7)))
    assert _stored("TIMESTAMP", _rows([moment])) == [moment]
    with pytest.raises(TypeMismatch, match="out of range"):
        _stored("TIMESTAMP", _rows([moment.replace(year=1, month=1, day=1, hour=1)]))


def test_struct_fields_are_found_by_name() -> None:
    assert _stored("STRUCT<a: INT, b: INT>", _rows([{"B": 2, "a": 1}, {"b": 3}])) == [
        {"a": 1, "b": 2},
        {"a": None, "b": 3},
    ]
    swapped = pa.table({"c": pa.array([{"b": 2, "a": 1}], pa.struct([("b", pa.int64()), ("a", pa.int8())]))})
    assert _stored("STRUCT<a: INT, b: INT>", swapped) == [{"a": 1, "b": 2}]


WIDENED: list[tuple[str, Any, Any]] = [
    ("INT", 1.0, 1),
    ("INT", Decimal("1.00"), 1),
    ("INT", np.int64(5), 5),
    ("BIGINT", np.uint8(5), 5),
    ("DOUBLE", 1, 1.0),
    ("DOUBLE", Decimal("0.1"), 0.1),
    ("DOUBLE", np.float32(0.5), 0.5),
    ("FLOAT", 2**24, 2.0**24),
    ("DECIMAL(5,2)", 7, Decimal("7.00")),
    ("DECIMAL(5,2)", 0.1, Decimal("0.10")),
    ("DECIMAL(5,2)", Decimal("1.5000"), Decimal("1.50")),
    ("DECIMAL(38,2)", 10**35, Decimal(10**35)),
    ("BOOLEAN", np.bool_(True), True),
    ("BINARY", bytearray(b"x"), b"x"),
    ("DATE", dt.datetime(2024, 1, 1), dt.date(2024, 1, 1)),
    ("DATE", pd.Timestamp("2024-01-01"), dt.date(2024, 1, 1)),
    ("TIMESTAMP_NTZ", dt.date(2024, 1, 1), dt.datetime(2024, 1, 1)),
    ("TIMESTAMP_NTZ", np.datetime64("2024-01-01T00:00:00.000001"), dt.datetime(2024, 1, 1, 0, 0, 0, 1)),
    ("TIMESTAMP", dt.datetime(2024, 6, 1, 12, tzinfo=SUMMER), dt.datetime(2024, 6, 1, 10, tzinfo=UTC)),
    ("ARRAY<BIGINT>", (1, 2), [1, 2]),
    ("ARRAY<INT>", np.array([1, 2]), [1, 2]),
]


@pytest.mark.parametrize(("type_", "value", "expected"), WIDENED)
def test_values_of_another_type_are_taken_if_they_mean_the_same(type_: str, value: Any, expected: Any) -> None:
    assert _stored(type_, _rows([value])) == [expected]


REFUSED: list[tuple[str, Any]] = [
    ("TINYINT", 128),
    ("INT", 2**31),
    ("BIGINT", 2**63),
    ("BIGINT", 2**70),
    ("INT", 1.5),
    ("INT", Decimal("1.5")),
    ("INT", math.nan),
    ("INT", math.inf),
    ("INT", "1"),
    ("INT", True),
    ("INT", 1 + 2j),
    ("INT", object()),
    ("INT", b"1"),
    ("INT", [1]),
    ("INT", {"a": 1}),
    ("INT", np.float64(5.5)),
    ("BOOLEAN", 1),
    ("BOOLEAN", "true"),
    ("DOUBLE", 2**53 + 1),
    ("DOUBLE", "1"),
    ("DOUBLE", Decimal("0.12345678901234567890")),
    ("DOUBLE", Decimal("1e400")),
    ("DOUBLE", 10**400),
    ("DOUBLE", True),
    ("FLOAT", 1e300),
    ("FLOAT", -1e39),
    ("FLOAT", 2**24 + 1),
    ("DECIMAL(5,2)", Decimal("1.005")),
    ("DECIMAL(5,2)", 1.005),
    ("DECIMAL(5,2)", Decimal("1000")),
    ("DECIMAL(5,2)", 1000),
    ("DECIMAL(5,2)", Decimal("NaN")),
    ("DECIMAL(5,2)", Decimal("Infinity")),
    ("DECIMAL(5,2)", math.nan),
    ("DECIMAL(5,2)", "1.00"),
    ("DECIMAL(5,2)", True),
    ("STRING", 5),
    ("STRING", b"x"),
    ("STRING", dt.date(2024, 1, 1)),
    ("STRING", "\ud800"),
    ("STRING", True),
    ("BINARY", "x"),
    ("DATE", "2024-01-01"),
    ("DATE", dt.datetime(2024, 1, 1, 12)),
    ("DATE", dt.datetime(2024, 1, 1, tzinfo=UTC)),
    ("DATE", 5),
    ("TIMESTAMP", dt.datetime(2024, 1, 1)),
    ("TIMESTAMP", dt.date(2024, 1, 1)),
    ("TIMESTAMP", "2024-01-01"),
    ("TIMESTAMP", 5),
    ("TIMESTAMP", pd.Timestamp("2024-01-01 00:00:00.000000001", tz="UTC")),
    ("TIMESTAMP_NTZ", dt.datetime(2024, 1, 1, tzinfo=UTC)),
    ("TIMESTAMP_NTZ", pd.Timestamp("2024-01-01 00:00:00.000000001")),
    ("TIMESTAMP_NTZ", np.datetime64("2024-01-01T00:00:00.000000001")),
    ("TIMESTAMP_NTZ", "2024-01-01"),
    ("ARRAY<INT>", [1, 2.5]),
    ("ARRAY<INT>", [1, True]),
    ("ARRAY<STRING>", "abc"),
    ("ARRAY<TINYINT>", [300]),
    ("ARRAY<INT>", 1),
    ("ARRAY<INT>", {"a": 1}),
    ("ARRAY<TIMESTAMP>", [dt.datetime(2024, 1, 1)]),
    ("STRUCT<a: INT>", {"a": 1, "b": 2}),
    ("STRUCT<a: INT>", {"a": 1.5}),
    ("STRUCT<a: INT>", [1]),
    ("STRUCT<a: INT>", {"a": 1, "A": 2}),
    ("STRUCT<a: TIMESTAMP_NTZ>", {"a": dt.datetime(2024, 1, 1, tzinfo=UTC)}),
    ("MAP<STRING, INT>", {"a": 1.5}),
    ("MAP<STRING, INT>", {1: 1}),
    ("MAP<STRING, INT>", [("a", 1), ("a", 2)]),
    ("MAP<STRING, INT>", [(None, 1)]),
    ("MAP<STRING, INT>", ["ab"]),
    ("MAP<STRING, INT>", [("a", 1, 2)]),
]


@pytest.mark.parametrize(("type_", "value"), REFUSED)
def test_a_value_that_would_change_is_refused(type_: str, value: Any) -> None:
    """A value that does not fit is refused as the first and as the second row, and in a pandas object column."""
    good = {"INT": 1, "STRING": "x"}.get(type_)
    series = pd.Series([None, value], dtype=object)
    for data in (_rows([value]), _rows([good, value]), pd.DataFrame({"c": series})):
        if isinstance(data, pd.DataFrame) and value != value:
            continue  # pandas' way to say NULL
        with pytest.raises(TypeMismatch) as caught:
            to_table(data, _column(type_), "t")
        assert str(caught.value).startswith("column c of t: ")


ARROW_REFUSED: list[tuple[str, pa.Array]] = [
    ("INT", pa.array([2**40])),
    ("INT", pa.array([1.5])),
    ("INT", pa.array([math.nan])),
    ("INT", pa.array(["1"])),
    ("INT", pa.array([True])),
    ("INT", pa.array([Decimal("2.5")])),
    ("BIGINT", pa.array([2**63], pa.uint64())),
    ("DOUBLE", pa.array([2**53 + 1])),
    ("FLOAT", pa.array([1e300])),
    ("FLOAT", pa.array([2**24 + 1])),
    ("DECIMAL(5,2)", pa.array([Decimal("1.005")])),
    ("DECIMAL(5,2)", pa.array([1.005])),
    ("DECIMAL(5,2)", pa.array([12345])),
    ("STRING", pa.array([5])),
    ("STRING", pa.array([b"x"])),
    ("BINARY", pa.array(["x"])),
    ("BOOLEAN", pa.array([1])),
    ("TIMESTAMP", pa.array([dt.datetime(2024, 1, 1)])),
    ("TIMESTAMP", pa.array([dt.date(2024, 1, 1)])),
    ("TIMESTAMP_NTZ", pa.array([dt.datetime(2024, 1, 1, tzinfo=UTC)])),
    ("TIMESTAMP_NTZ", pa.array([1], pa.timestamp("ns"))),
    ("DATE", pa.array([dt.datetime(2024, 1, 1, 12)])),
    ("DATE", pa.array([dt.datetime(2024, 1, 1, tzinfo=UTC)])),
    ("DATE", pa.array([5], pa.date64())),
    ("INT", pa.array([5], pa.duration("s"))),
    ("INT", pa.array([5], pa.time32("s"))),
    ("ARRAY<TIMESTAMP>", pa.array([[dt.datetime(2024, 1, 1)]])),
    ("ARRAY<INT>", pa.array([[2**40]])),
    ("STRUCT<a: INT, b: INT>", pa.array([{"x": 1, "y": 2}])),
    ("STRUCT<a: INT>", pa.array([{"a": 1, "b": 2}])),
    ("ARRAY<INT>", pa.array([{"a": 1}])),
]


@pytest.mark.parametrize(("type_", "array"), ARROW_REFUSED)
def test_an_arrow_column_that_would_change_is_refused(type_: str, array: pa.Array) -> None:
    with pytest.raises(TypeMismatch, match="column c of t"):
        to_table(pa.table({"c": array}), _column(type_), "t")


ARROW_TAKEN: list[tuple[str, pa.Array, Any]] = [
    ("STRING", pa.array(["x"], pa.large_string()), "x"),
    ("STRING", pa.array(["x"], pa.string_view()), "x"),
    ("STRING", pa.array(["x"]).dictionary_encode(), "x"),
    ("BINARY", pa.array([b"x"], pa.binary(1)), b"x"),
    ("BINARY", pa.array([b"x"], pa.large_binary()), b"x"),
    ("INT", pa.array([5], pa.uint8()), 5),
    ("INT", pa.array([5.0]), 5),
    ("DOUBLE", pa.array([5], pa.uint64()), 5.0),
    ("DECIMAL(5,2)", pa.array([7]), Decimal("7.00")),
    ("DECIMAL(5,2)", pa.array([Decimal("1.500")]), Decimal("1.50")),
    ("DECIMAL(5,2)", pa.array([0.1]), Decimal("0.10")),
    ("DATE", pa.array([86_400_000], pa.date64()), dt.date(1970, 1, 2)),
    ("DATE", pa.array([dt.datetime(2024, 1, 1)]), dt.date(2024, 1, 1)),
    ("TIMESTAMP_NTZ", pa.array([1000], pa.timestamp("ns")), dt.datetime(1970, 1, 1, 0, 0, 0, 1)),
    ("TIMESTAMP", pa.array([0], pa.timestamp("s", "Europe/Berlin")), dt.datetime(1970, 1, 1, tzinfo=UTC)),
    ("ARRAY<INT>", pa.array([[1, None]]), [1, None]),
    ("ARRAY<STRING>", pa.array([["x"]], pa.list_(pa.string_view())), ["x"]),
    ("ARRAY<INT>", pa.array([[1, 2]], pa.list_(pa.int32(), 2)), [1, 2]),
    ("INT", pa.nulls(1), None),
]


@pytest.mark.parametrize(("type_", "array", "expected"), ARROW_TAKEN)
def test_arrow_columns_of_another_type_are_taken_if_they_mean_the_same(
    type_: str, array: pa.Array, expected: Any
) -> None:
    assert _stored(type_, pa.table({"c": array})) == [expected]


@given(st.lists(st.floats(width=32, allow_nan=False) | st.none(), max_size=5))
def test_single_floats_come_back_to_the_bit(values: list[float | None]) -> None:
    assert all(_same(a, b) for a, b in zip(_stored("FLOAT", _rows(values)), values, strict=True))


@given(st.decimals(allow_nan=False, allow_infinity=False, places=2, min_value=-999, max_value=999))
def test_decimals_that_fit_come_back_equal(value: Decimal) -> None:
    assert _stored("DECIMAL(5,2)", _rows([value])) == [value]


@given(st.decimals(allow_nan=False, allow_infinity=False) | st.floats() | st.integers())
def test_a_decimal_column_holds_the_number_or_refuses_it(value: Decimal | float | int) -> None:
    try:
        (stored,) = _stored("DECIMAL(10,3)", _rows([value]))
    except TypeMismatch:
        return
    assert Decimal(repr(value)) == stored if isinstance(value, float) else value == stored


# -- CHAR and VARCHAR, with Spark's rules ----------------------------------------------------------


@pytest.mark.parametrize(
    ("type_", "value", "expected"),
    [
        ("CHAR(3)", "ab", "ab "),
        ("CHAR(3)", "", "   "),
        ("CHAR(3)", "abc", "abc"),
        ("CHAR(3)", "ab    ", "ab "),
        ("CHAR(3)", "äöü", "äöü"),
        ("CHAR(2)", "😀", "😀 "),
        ("CHAR(3)", None, None),
        ("VARCHAR(3)", "", ""),
        ("VARCHAR(3)", "ab ", "ab "),
        ("VARCHAR(3)", "ab    ", "ab "),
        ("VARCHAR(3)", "abc   ", "abc"),
        ("VARCHAR(3)", "名前だ", "名前だ"),
    ],
)
def test_char_is_padded_and_surplus_spaces_go(type_: str, value: str | None, expected: str | None) -> None:
    assert _stored(type_, _rows([value])) == [expected]
    assert _stored(type_, pa.table({"c": pa.array([value], pa.string())})) == [expected]


@pytest.mark.parametrize(
    ("type_", "value"),
    [("CHAR(3)", "abcd"), ("VARCHAR(3)", "abcd"), ("VARCHAR(3)", "  abc"), ("CHAR(2)", "äöü"), ("VARCHAR(2)", "a\t\t")],
)
def test_text_that_is_too_long_is_refused(type_: str, value: str) -> None:
    with pytest.raises(TypeMismatch, match="longer than"):
        to_table(_rows(["x", value]), _column(type_), "t")


# -- the shape of the data -------------------------------------------------------------------------

PAIR = Schema((Column("a", parse_type("INT")), Column("B", parse_type("DOUBLE"), nullable=False)))


@pytest.mark.parametrize(
    "data",
    [
        [{"a": 1, "b": 2.0}],
        [{"b": 2.0, "A": 1}],
        {"a": 1, "B": 2},
        iter([{"a": 1, "b": 2.0}]),
        ({"a": 1, "b": 2},),
        pa.table({"b": [2.0], "a": [1]}),
        pd.DataFrame({"A": [1], "B": [2.0]}),
        pd.DataFrame({"a": [0, 1], "b": [0.0, 2.0]}, index=["x", "y"]).loc[["y"]],
        pd.DataFrame({"a": pd.array([1], "Int64"), "b": [2]}),
        pd.DataFrame({"a": [1], "b": pd.Series([2.0], dtype=object)}),
    ],
)
def test_columns_are_found_by_name_whatever_the_container(data: Any) -> None:
    assert to_table(data, PAIR, "t").to_pylist() == [{"a": 1, "B": 2.0}]


def test_missing_columns_and_pandas_missing_values_are_null() -> None:
    assert to_table([{"a": 1}, {}, {"b": 1}], PAIR, "t").to_pylist() == [
        {"a": 1, "B": None},
        {"a": None, "B": None},
        {"a": None, "B": 1.0},
    ]
    frame = pd.DataFrame({"a": [1, None, pd.NA], "b": [1.0, math.nan, -0.0]})
    assert [str(r) for r in to_table(frame, PAIR, "t").to_pylist()] == [
        "{'a': 1, 'B': 1.0}",
        "{'a': None, 'B': None}",
        "{'a': None, 'B': -0.0}",
    ]


@pytest.mark.parametrize(
    "data", [[], [{}], pa.table({"a": pa.array([], pa.int32())}), pd.DataFrame({"a": []}), [{}, {}]]
)
def test_nothing_given_is_nothing_or_nulls(data: Any) -> None:
    assert to_table(data, PAIR, "t").to_pylist() == [{"a": None, "B": None}] * len(data)


@pytest.mark.parametrize(
    ("data", "error"),
    [
        ([{"c": 1}], NotFound),
        ([{"a": 1}, {"c": 1}], NotFound),
        ([{1: 1}], NotFound),
        (pa.table({"c": [1]}), NotFound),
        (pd.DataFrame({0: [1]}), NotFound),
        ([{"a": 1, "A": 2}], InvalidStatement),
        ([{"a": 1}, {"A": 2}], InvalidStatement),
        (pa.table([[1], [2]], names=["a", "A"]), InvalidStatement),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), InvalidStatement),
        ("abc", TypeMismatch),
        (5, TypeMismatch),
        (None, TypeMismatch),
        ([[1, 2]], TypeMismatch),
        ([None], TypeMismatch),
        (pa.array([1]), TypeMismatch),
        (pd.Series([1]), TypeMismatch),
        ({"a": [1, 2]}, TypeMismatch),
        (pd.DataFrame({"a": [1, "x"]}), TypeMismatch),
        (pd.DataFrame({"a": [1 + 2j]}), TypeMismatch),
        (pd.DataFrame({"a": pd.to_timedelta([1])}), TypeMismatch),
    ],
)
def test_data_of_the_wrong_shape_is_refused(data: Any, error: type[FreshviewError]) -> None:
    with pytest.raises(error) as caught:
        to_table(data, PAIR, "t")
    assert type(caught.value) is error
    assert "t" in caught.value.what
    assert caught.value.remedy


def test_null_in_a_required_column_is_named() -> None:
    with pytest.raises(NotNullViolation, match="column B of t: row 1 has NULL"):
        check_required(to_table([{"b": 1}, {}], PAIR, "t"), PAIR, "t")


@given(
    st.one_of(
        st.sampled_from([(pa.int8(), 7), (pa.int16(), 15), (pa.int32(), 31), (pa.int64(), 63)]).flatmap(
            lambda t: st.tuples(st.just(t[0]), st.integers(-(2 ** t[1]), 2 ** t[1] - 1).map(Decimal))
        ),
        st.tuples(st.integers(1, 38), st.integers(0, 38), st.integers(1, 38))
        .map(lambda t: (t[0], min(t[0], t[1]), min(t[0], t[2])))
        .flatmap(
            lambda t: st.tuples(
                st.just(pa.decimal128(t[0], t[1])),
                st.integers(-(10 ** t[2]) + 1, 10 ** t[2] - 1).map(
                    lambda n: Decimal(n).scaleb(-t[1], Context(prec=80))
                ),
            )
        ),
    ),
    st.tuples(st.integers(1, 38), st.integers(0, 38)).map(lambda t: (t[0], min(t))),
)
def test_exact_numbers_are_stored_as_decimals_rounded_half_up(
    given_: tuple[pa.DataType, Decimal], target: tuple[int, int]
) -> None:
    """Law: a number of any type is rounded to the scale of the target, and refused only if that is too small."""
    type_, number = given_
    column = Column("c", parse_type(f"DECIMAL({target[0]},{target[1]})"))
    assert is_number_store(type_, column)
    source = pa.chunked_array([pa.array([number if pa.types.is_decimal(type_) else int(number), None], type_)])
    rounded = number.quantize(Decimal(1).scaleb(-target[1]), ROUND_HALF_UP, Context(prec=80))
    if abs(rounded) < Decimal(10) ** (target[0] - target[1]):
        assert store_number(source, column, "t").to_pylist() == [rounded, None]
    else:
        with pytest.raises(TypeMismatch):
            store_number(source, column, "t")
