"""Types: Spark's DDL text, its record and its Arrow form say the same; what cannot be kept exactly is refused."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshview.errors import InvalidStatement, TypeMismatch
from freshview.relation.schema import Column, Schema
from freshview.relation.types import DataType, StructField, fold, from_arrow, parse_type

ATOMIC = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "BYTE": pa.int8(),
    "SMALLINT": pa.int16(),
    "SHORT": pa.int16(),
    "INT": pa.int32(),
    "INTEGER": pa.int32(),
    "BIGINT": pa.int64(),
    "LONG": pa.int64(),
    "FLOAT": pa.float32(),
    "REAL": pa.float32(),
    "DOUBLE": pa.float64(),
    "DECIMAL": pa.decimal128(10, 0),
    "DEC(7)": pa.decimal128(7, 0),
    "NUMERIC(38, 38)": pa.decimal128(38, 38),
    "STRING": pa.string(),
    "CHAR(3)": pa.string(),
    "VARCHAR(3)": pa.string(),
    "BINARY": pa.binary(),
    "DATE": pa.date32(),
    "TIMESTAMP": pa.timestamp("us", tz="UTC"),
    "TIMESTAMP_LTZ": pa.timestamp("us", tz="UTC"),
    "TIMESTAMP_NTZ": pa.timestamp("us"),
}


@pytest.mark.parametrize(("text", "arrow"), ATOMIC.items())
def test_every_atomic_type_has_its_arrow_form(text: str, arrow: pa.DataType) -> None:
    type_ = parse_type(text)
    assert type_.arrow == arrow
    assert parse_type(str(type_)) == type_
    assert parse_type(text.lower()) == type_


FIELD_NAMES = st.one_of(
    st.sampled_from(["a", "B", "select", "timestamp", "array", "end", "a.b", "x>y", "b`t", "ü", "名", "from", "1a"]),
    st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=5),
)


def _structs(inner: st.SearchStrategy[DataType]) -> st.SearchStrategy[DataType]:
    fields = st.lists(
        st.builds(StructField, FIELD_NAMES, inner), min_size=1, max_size=3, unique_by=lambda f: fold(f.name)
    )
    return fields.map(lambda f: DataType("struct", fields=tuple(f)))


DECIMALS = st.integers(1, 38).flatmap(lambda p: st.integers(0, p).map(lambda s: DataType("decimal", (p, s))))
VALUES = st.sampled_from(
    [
        "boolean",
        "tinyint",
        "smallint",
        "int",
        "bigint",
        "float",
        "double",
        "string",
        "binary",
        "date",
        "timestamp",
        "timestamp_ntz",
    ]
).map(DataType)
TYPES = st.recursive(
    st.one_of(VALUES, DECIMALS),
    lambda inner: st.one_of(
        inner.map(lambda t: DataType("array", children=(t,))),
        st.tuples(inner, inner).map(lambda kv: DataType("map", children=kv)),
        _structs(inner),
    ),
    max_leaves=6,
)


@given(TYPES)
def test_ddl_text_and_arrow_lead_back_to_the_type(type_: DataType) -> None:
    assert parse_type(str(type_)) == type_
    assert from_arrow(type_.arrow) == type_


@given(TYPES, FIELD_NAMES.filter(lambda n: not set(n) & set(" ,;{}()\n\t=") and not fold(n).startswith("_")))
def test_a_schema_survives_its_json(type_: DataType, name: str) -> None:
    schema = Schema((Column(name, type_, False, "a 'comment'"), Column("_k", DataType("int"))), ("_k",))
    assert Schema.from_json(schema.to_json()) == schema


@pytest.mark.parametrize(
    "text",
    [
        "VARIANT",
        "TIME",
        "TIME(6)",
        "INTERVAL",
        "INTERVAL DAY TO SECOND",
        "INTERVAL YEAR",
        "VOID",
        "GEOMETRY",
        "JSON",
        "STRING COLLATE UTF8_LCASE",
        "ARRAY<STRING COLLATE UNICODE_CI>",
        "STRUCT<a: STRING COLLATE UNICODE_CI>",
        "STRUCT<a: INT NOT NULL>",
        "ARRAY<INT NOT NULL>",
        "ARRAY<VARIANT>",
        "MAP<STRING, TIME>",
        "STRUCT<a: ARRAY<INTERVAL YEAR>>",
        "ARRAY<CHAR(3)>",
        "STRUCT<a: VARCHAR(3)>",
        "STRUCT<a: INT, A: INT>",
        "CHAR",
        "VARCHAR",
        "CHAR(0)",
        "DECIMAL(39, 0)",
        "DECIMAL(5, 6)",
        "DECIMAL(0)",
        "DECIMAL(1,2,3)",
        "TIMESTAMP(3)",
        "INT(5)",
        "BINARY(4)",
        "STRING(5)",
        "ARRAY",
        "MAP<INT>",
        "STRUCT<>",
        "INT UNSIGNED",
        "FOO",
        "",
    ],
)
def test_what_cannot_be_kept_exactly_is_refused(text: str) -> None:
    with pytest.raises(TypeMismatch) as caught:
        parse_type(text)
    assert caught.value.cause
    assert caught.value.remedy


def test_a_refused_type_is_called_by_its_own_name() -> None:
    for text in ("VARIANT", "TIME", "INTERVAL YEAR"):
        with pytest.raises(TypeMismatch, match=f"type {text}:"):
            parse_type(text)


@pytest.mark.parametrize(
    "arrow",
    [
        pa.time64("us"),
        pa.duration("s"),
        pa.month_day_nano_interval(),
        pa.decimal256(50, 2),
        pa.decimal128(5, -2),
        pa.list_(pa.duration("s")),
        pa.struct([("a", pa.int32()), ("A", pa.int32())]),
    ],
)
def test_arrow_types_without_a_spark_type_are_refused(arrow: pa.DataType) -> None:
    with pytest.raises(TypeMismatch):
        from_arrow(arrow)


@pytest.mark.parametrize("text", ["FLOAT", "DOUBLE", "ARRAY<INT>", "MAP<INT, INT>", "STRUCT<a: INT>"])
def test_types_without_exact_equality_cannot_be_keys(text: str) -> None:
    with pytest.raises(InvalidStatement, match="exact equality"):
        Schema((Column("k", parse_type(text)),), ("k",))
