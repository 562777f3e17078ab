"""The key of a view's stored rows: which keys of its sources count, and which columns may be in it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

import pytest

from freshview.algebra.nodes import Node
from freshview.catalog.records import Relation
from freshview.definition.analysis import Definition, analyse, identified
from freshview.definition.known import as_at_create
from freshview.relation.schema import Column, Schema
from freshview.relation.types import parse_type


def _relation(kind: str, columns: Mapping[str, str], key: str, visible: str = "") -> Relation:
    schema = Schema(tuple(Column(n, parse_type(t)) for n, t in columns.items()), tuple(key.split()))
    shown = visible.split() or list(columns)
    return Relation(1, "t", kind, 1, 1, schema, 0, None, {}, {"columns": json.dumps(shown)})


_ORDERS = {"id": "INT", "customer": "INT", "code": "CHAR(3)", "price": "DOUBLE"}
TABLE = _relation("table", _ORDERS, "id")


def _defined(text: str, types: Mapping[str, str] | None = None, **sources: Relation) -> Definition:
    relations = sources or {"t": TABLE}
    columns = {n: tuple(json.loads(r.facts["columns"])) for n, r in relations.items()}

    def types_of(node: Node) -> dict[str, str]:
        return {c: (types or {}).get(c.strip("_"), "int") for c in node.columns}

    names = tuple(part.split()[-1] for part in text.split(" FROM ")[0].removeprefix("SELECT ").split(", "))
    return analyse(text, relations, columns, names, "auto", types_of)


def test_visible_columns_and_integers_are_preferred() -> None:
    assert _defined("SELECT price, id FROM t").key == ("id",)
    assert _defined("SELECT customer, count(*) AS n FROM t GROUP BY customer").key == ("customer",)
    assert _defined("SELECT count(*) AS n FROM t GROUP BY customer").key == ("__key0",)
    both = _relation("table", {"a": "STRING", "b": "INT"}, "a"), _relation("table", {"c": "INT", "d": "INT"}, "c d")
    text = "SELECT s.a AS a, s.b AS b FROM s JOIN u ON s.b = u.c AND s.b = u.d GROUP BY s.a, s.b"
    assert _defined(text, {"a": "string"}, s=both[0], u=both[1]).key == ("a",)


def test_a_column_without_exact_equality_is_in_no_key() -> None:
    assert (
        _defined("SELECT price, count(*) AS n FROM t GROUP BY price", {"price": "double", "key0": "double"}).key == ()
    )
    for type_ in ("array<int>", "map<int,int>", "struct<a:int>", "interval day to second", "void", "float"):
        assert (
            _defined(
                "SELECT customer, count(*) AS n FROM t GROUP BY customer", dict.fromkeys(("customer", "key0"), type_)
            ).key
            == ()
        )


def test_the_key_of_an_external_table_is_not_enforced() -> None:
    external = _relation("external", _ORDERS, "id")
    assert _defined("SELECT id, price FROM t", t=external).key == ()
    assert _defined("SELECT id, count(*) AS n FROM t GROUP BY id", t=external).key == ("id",)


def test_the_key_of_a_view_counts_where_its_columns_are_visible() -> None:
    seen = _relation("view", {"n": "BIGINT", "g": "INT", "__key0": "INT"}, "g", "n g")
    unseen = _relation("view", {"n": "BIGINT", "__key0": "INT"}, "__key0", "n")
    assert _defined("SELECT g, n FROM v WHERE n > 1", v=seen).key == ("g",)
    assert _defined("SELECT n FROM v WHERE n > 1", v=unseen).key == ()


def test_char_is_padded_before_it_is_compared() -> None:
    """So equality of two CHARs is no identity: the other table's key does not follow from this one's column."""
    for type_, key in (("CHAR(3)", ()), ("STRING", ("id",))):
        other = _relation("table", {"code": type_, "name": "STRING"}, "code")
        orders = _relation("table", {**_ORDERS, "code": type_}, "id")
        assert (
            _defined("SELECT t.id AS id, c.name AS name FROM t JOIN c ON t.code = c.code", t=orders, c=other).key == key
        )


def test_a_stored_key_is_checked_against_the_definition() -> None:
    definition = _defined("SELECT id, customer FROM t")
    assert identified(definition, ("id",))
    assert identified(definition, ("id", "customer"))
    assert not identified(definition, ("customer",))
    assert not identified(replace(definition, form=None), ("id",))


@pytest.mark.parametrize(("kind", "nullable"), [("table", False), ("external", False), ("view", True)])
def test_what_tests_of_a_definition_know_of_a_source(kind: str, nullable: bool) -> None:
    """Keys of tables are NOT NULL, those of views are not; a key that the definition cannot read is none."""
    relation = _relation(kind, _ORDERS, "id")
    known = as_at_create(relation, ("price", "id"))
    assert (known.names, known.key, known.column("id").nullable) == (("price", "id"), ("id",), nullable)
    assert known.column("price").nullable
    assert as_at_create(relation, ("price",)).key == ()
