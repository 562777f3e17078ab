"""Schemas: names are case-insensitive as in Spark, and what no Delta reader would take is refused."""

from __future__ import annotations

import pyarrow as pa
import pytest

from freshview.errors import InvalidStatement, NotFound
from freshview.relation.schema import Column, Schema, check_relation_name, fold
from freshview.relation.types import parse_type

INT = parse_type("INT")


def _schema(*names: str, key: tuple[str, ...] = ()) -> Schema:
    return Schema(tuple(Column(n, INT) for n in names), key)


@pytest.mark.parametrize(("one", "other"), [("a", "A"), ("É", "é"), ("Σ", "σ"), ("ς", "σ"), ("ſ", "s"), ("İ", "i")])
def test_names_equal_up_to_case_are_one_name(one: str, other: str) -> None:
    """Names fold as java.lang.String.equalsIgnoreCase compares, by which Spark resolves names."""
    assert fold(one) == fold(other)
    with pytest.raises(InvalidStatement, match="named twice"):
        _schema(one, other)
    assert _schema(one).position(other) == 0


def test_names_that_spark_tells_apart_are_two_names() -> None:
    schema = _schema("straße", "strasse", "e\u0301", "é")
    assert [schema.position(n) for n in ("STRAßE", "STRASSE", "E\u0301", "É")] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "name", ["a.b", 'q"uote', "back`tick", "it's", "ü", "名前", "a/b", "a\\b", "a-b", "ª", "😀", "%", "*"]
)
def test_odd_names_are_fine(name: str) -> None:
    schema = _schema(name, "other", key=(name,))
    assert Schema.from_json(schema.to_json()) == schema
    assert schema.column(name).name == name
    check_relation_name(name)


@pytest.mark.parametrize(
    "name", ["", "a b", "a,b", "a;b", "a{b", "a}b", "a(b", "a)b", "a\nb", "a\tb", "a=b", "a\0b", "\ud800"]
)
def test_names_that_delta_cannot_hold_are_refused(name: str) -> None:
    with pytest.raises(InvalidStatement) as caught:
        _schema(name)
    assert repr(name) in str(caught.value)


@pytest.mark.parametrize("name", ["_action", "_STMTSN", "__fv_row", "__FV_x", "__live"])
def test_our_own_columns_are_reserved(name: str) -> None:
    with pytest.raises(InvalidStatement, match="reserved"):
        _schema(name)


def test_a_schema_needs_columns_and_a_key_of_them() -> None:
    with pytest.raises(InvalidStatement, match="no columns"):
        Schema(())
    with pytest.raises(NotFound, match="column b"):
        _schema("a", key=("b",))
    with pytest.raises(InvalidStatement, match="twice"):
        _schema("a", key=("a", "A"))


@pytest.mark.parametrize("name", ["", "x" * 256, "a\nb", "\0", "\ud800"])
def test_relation_names_are_printable_and_short(name: str) -> None:
    with pytest.raises(InvalidStatement):
        check_relation_name(name)


def test_key_columns_are_required_like_not_null_ones() -> None:
    schema = Schema((Column("a", INT), Column("b", INT, nullable=False), Column("c", INT)), ("c",))
    assert schema.required == ("b", "c")


def test_rows_of_an_earlier_version_keep_their_places() -> None:
    """ADD COLUMN and RENAME COLUMN, even a swap of names, never move a value."""
    old = _schema("a", "b")
    new = old.with_renamed("a", "tmp").with_renamed("b", "a").with_renamed("tmp", "b").with_columns([Column("c", INT)])
    assert new.names == ("b", "a", "c")
    rows = new.conform(pa.table({"a": [1], "b": [2]}, schema=old.arrow))
    assert rows.to_pylist() == [{"b": 1, "a": 2, "c": None}]


def test_a_renamed_key_column_stays_the_key() -> None:
    assert _schema("k", "v", key=("k",)).with_renamed("K", "id").key == ("id",)


def test_columns_cannot_be_renamed_or_added_onto_others() -> None:
    with pytest.raises(InvalidStatement, match="twice"):
        _schema("a", "b").with_renamed("a", "B")
    with pytest.raises(NotFound, match="column x"):
        _schema("a").with_renamed("x", "y")
    with pytest.raises(InvalidStatement, match="twice"):
        _schema("a").with_columns([Column("A", INT)])
