"""Spark SQL run by DuckDB on the tables of a state: a second opinion on what a query means."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any

import duckdb
import sqlglot
from sqlglot import exp
from tests.unit.oracle import Bag

Tables = Mapping[str, tuple[tuple[str, ...], Bag]]


class Duck:
    """One database in memory; tables are made anew for each question."""

    def __init__(self, types: Mapping[str, str]) -> None:
        self._connection = duckdb.connect(":memory:")
        self._types = types  # of columns by name; BIGINT if not named
        self._made: dict[str, tuple[str, ...]] = {}

    def answer(self, query: str, tables: Tables) -> Bag:
        for name, (columns, bag) in tables.items():
            self._fill(name, columns, bag)
        rows = self._connection.execute(translated(query)).fetchall()
        return Counter(tuple(map(comparable, row)) for row in rows)

    def _fill(self, name: str, columns: tuple[str, ...], bag: Bag) -> None:
        if self._made.get(name) != columns:
            typed = ", ".join(f'"{c}" {self._types.get(c, "BIGINT")}' for c in columns)
            self._connection.execute(f'CREATE OR REPLACE TABLE "{name}" ({typed})')
            self._made[name] = columns
        else:
            self._connection.execute(f'DELETE FROM "{name}"')
        rows = list(bag.elements())
        if rows:
            self._connection.executemany(f'INSERT INTO "{name}" VALUES ({", ".join("?" for _ in columns)})', rows)


def translated(query: str) -> str:
    """The same query in DuckDB's dialect."""
    tree = sqlglot.parse_one(query, read="spark")
    for join in tree.find_all(exp.Join):
        if join.kind in ("SEMI", "ANTI"):
            join.set("side", None)
    return tree.sql(dialect="duckdb")


def comparable(value: Any) -> Any:
    """Numbers of all kinds as one: averages are doubles in both systems."""
    return float(value) if isinstance(value, Decimal | Fraction | int) and not isinstance(value, bool) else value
