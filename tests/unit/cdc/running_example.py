"""The running example of the paper: tables, dimension view, and helpers to write rows as text (Figure 3)."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from freshview.cdc.model import PartialDelta, partial_delta
from freshview.relation.ingest import to_table
from freshview.relation.schema import Column, Schema
from freshview.relation.types import parse_type


def schema_of(text: str, *key: str) -> Schema:
    """A schema from "name type, name type" and its key."""
    columns = (part.strip().split(" ", 1) for part in text.split(","))
    return Schema(tuple(Column(name, parse_type(type_)) for name, type_ in columns), key)


def rows_of(schema: Schema, *rows: tuple[Any, ...]) -> pa.Table:
    return to_table([dict(zip(schema.names, row, strict=True)) for row in rows], schema, "test")


def cells(table: pa.Table) -> list[tuple[Any, ...]]:
    """All cells of a table, rows in a stable order."""
    return sorted(zip(*(c.to_pylist() for c in table.columns), strict=True), key=repr)


CUST = schema_of("CID int, CName string, CDiscount string, CAddr int", "CID")
ADDR = schema_of("AID int, ACity string, ACountry string", "AID")

CUST_OLD = rows_of(CUST, (1, "Adam", "0%", 1), (2, "Bob", "0%", 2), (3, "Carl", "0%", 3))
CUST_NEW = rows_of(CUST, (1, "Adam", "5%", 1), (2, "Bob", "0%", 4), (4, "Dave", "0%", 4))
ADDR_OLD = rows_of(ADDR, (1, "Austin", "US"), (2, "Berlin", "DE"), (3, "Chemnitz", "DE"))
ADDR_NEW = rows_of(ADDR, (1, "Aachen", "DE"), (2, "Berlin", "DE"), (4, "Dresden", "DE"))


def cust_delta() -> PartialDelta:
    """Example 2: a log delivers insertions, update pairs and deletions of Cust."""
    return partial_delta(
        "Cust",
        CUST,
        ins=rows_of(CUST, (4, "Dave", "0%", 4)),
        deleted=rows_of(CUST, (3, "Carl", "0%", 3)),
        pairs=(
            rows_of(CUST, (1, "Adam", "5%", 1), (2, "Bob", "0%", 4)),
            rows_of(CUST, (1, "Adam", "0%", 1), (2, "Bob", "0%", 2)),
        ),
    )


def addr_delta() -> PartialDelta:
    """Example 2: change tracking delivers insertions, partial updates and partial deletions of Addr."""
    return partial_delta(
        "Addr",
        ADDR,
        ins=rows_of(ADDR, (4, "Dresden", "DE")),
        up=rows_of(ADDR, (1, "Aachen", "DE")),
        delk=pa.table({"AID": pa.array([3], pa.int32())}),
    )
