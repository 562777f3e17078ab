"""Definitions of views over the tables of the view grammar, analysed without Spark."""

from __future__ import annotations

from dataclasses import replace

from tests.unit.sql.view_grammar import SCHEMAS

from freshview.algebra.nodes import Node
from freshview.catalog.records import Relation
from freshview.definition.analysis import Definition, analyse
from freshview.relation.schema import Column, Schema
from freshview.relation.types import DataType
from freshview.sql.lowering import lower


def analysed(text: str, refresh: str = "auto", types: str = "bigint") -> Definition:
    def types_of(node: Node) -> dict[str, str]:
        return dict.fromkeys(node.columns, types)

    names = tuple(n for _, n in lower(text, SCHEMAS).outputs)
    return analyse(text, {}, SCHEMAS, names, refresh, types_of)


def with_sources(text: str) -> Definition:
    tables = {
        name: Relation(i, name, "table", 1, 1, Schema(tuple(Column(c, DataType("bigint")) for c in columns)), 0)
        for i, (name, columns) in enumerate(SCHEMAS.items())
    }
    return replace(analysed(text), sources=tables)
