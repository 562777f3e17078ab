"""Nested columns keep their fields: a cast that would rename, drop or make up one is refused."""

from __future__ import annotations

import pyarrow as pa
import pytest

from freshview.errors import FieldMismatch
from freshview.relation.delta import conform_delta, tag
from freshview.relation.fields import cast_column, cast_table
from freshview.relation.schema import Column, Schema
from freshview.relation.types import parse_type

_STRUCTS = {
    "case": ("struct<a:int,B:int>", "struct<a:int,b:int>"),
    "order": ("struct<a:int,b:int>", "struct<b:int,a:int>"),
    "missing": ("struct<a:int>", "struct<a:int,b:int>"),
    "too many": ("struct<a:int,b:int>", "struct<a:int>"),
    "in a list": ("array<struct<A:int>>", "array<struct<a:int>>"),
    "in a map's values": ("map<string,struct<A:int>>", "map<string,struct<a:int>>"),
    "in a map's keys": ("map<struct<A:int>,string>", "map<struct<a:int>,string>"),
    "deep": ("struct<x:array<map<string,struct<A:int>>>>", "struct<x:array<map<string,struct<a:int>>>>"),
}


def _table(type_: str, name: str = "c") -> pa.Table:
    return pa.table([pa.chunked_array([pa.nulls(2, parse_type(type_).arrow)])], names=[name])


@pytest.mark.parametrize("case", _STRUCTS)
def test_other_fields_are_refused(case: str) -> None:
    given, wanted = _STRUCTS[case]
    schema = Schema((Column("c", parse_type(wanted)),))
    with pytest.raises(FieldMismatch, match="it has the fields"):
        schema.conform(_table(given))
    old = Schema((Column("c", parse_type(given)),))
    with pytest.raises(FieldMismatch):
        conform_delta(tag(_table(given), old, 2, 1), schema)
    with pytest.raises(FieldMismatch, match="a statement, column c"):
        cast_table(_table(given), schema.arrow, "a statement")


@pytest.mark.parametrize("case", _STRUCTS)
def test_a_renamed_column_keeps_its_fields(case: str) -> None:
    type_ = _STRUCTS[case][0]
    schema = Schema((Column("renamed", parse_type(type_)), Column("later", parse_type("int"))))
    found = schema.conform(_table(type_))
    assert found.schema.equals(schema.arrow)


def test_values_inside_are_cast() -> None:
    """Readers of files give other widths, and other names for the elements of lists; fields are the same."""
    held = pa.list_(pa.field("item", pa.struct([("a", pa.large_string()), ("t", pa.timestamp("us", "Asia/Kolkata"))])))
    given = pa.chunked_array([pa.array([[{"a": "x", "t": 1}], None], held)])
    found = cast_column(given, parse_type("array<struct<a:string,t:timestamp>>").arrow, "column c")
    assert found.type == parse_type("array<struct<a:string,t:timestamp>>").arrow
    assert found.to_pylist()[0][0]["a"] == "x"


def test_files_from_before_a_field_was_added() -> None:
    """NULL for what a file lacks, where that is asked for; what a file has is never lost."""
    narrow, wide = (parse_type(t).arrow for t in ("struct<a:int>", "struct<a:int,b:string>"))
    column = pa.chunked_array([pa.array([{"a": 1}], narrow)])
    assert cast_column(column, wide, "file", may_lack=True).to_pylist() == [{"a": 1, "b": None}]
    other = pa.chunked_array([pa.array([{"A": 1}], parse_type("struct<A:int>").arrow)])
    with pytest.raises(FieldMismatch):
        cast_column(other, wide, "file", may_lack=True)
