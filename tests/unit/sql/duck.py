"""Spark SQL run by DuckDB on the tables of a state: a second opinion on what a query means."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Any

import duckdb
import sqlglot
from sqlglot import exp
from tests.unit.algebra.oracle import Bag, Double, evaluate
from tests.unit.sql.view_grammar import State, lowered_view, reading

Tables = Mapping[str, tuple[tuple[str, ...], Bag]]


class Duck:
    """One database in memory; its tables are filled anew for each question that has other rows."""

    def __init__(self) -> None:
        self._connection = duckdb.connect(":memory:")
        self._made: dict[str, str] = {}
        self._held: dict[str, str] = {}

    def answer(self, query: str, tables: Tables, texts: Collection[str] = ("c",)) -> Bag:
        """The rows of a query; `texts` names the columns that hold text."""
        for name, (columns, bag) in tables.items():
            self._fill(name, columns, bag, texts)
        rows = self._connection.execute(translated(query)).fetchall()
        return Counter(tuple(map(comparable, row)) for row in rows)

    def _fill(self, name: str, columns: tuple[str, ...], bag: Bag, texts: Collection[str]) -> None:
        rows = [tuple(map(_value, r)) for r in bag.elements()]
        typed = ", ".join(
            f'"{c}" {"VARCHAR" if c in texts else _type([r[i] for r in rows])}' for i, c in enumerate(columns)
        )
        held = repr((typed, rows))  # not the rows: -0.0 = 0.0, but not here
        if self._held.get(name) == held:
            return
        if self._made.get(name) != typed:
            self._connection.execute(f'CREATE OR REPLACE TABLE "{name}" ({typed})')
            self._made[name] = typed
        else:
            self._connection.execute(f'DELETE FROM "{name}"')
        if rows:
            self._connection.executemany(f'INSERT INTO "{name}" VALUES ({", ".join("?" for _ in columns)})', rows)
        self._held[name] = held


def _value(value: Any) -> Any:
    if isinstance(value, Double):
        return value.value
    return float(value) if isinstance(value, Fraction) else value


def _type(values: list[Any]) -> str:
    if any(isinstance(v, bool) for v in values):
        return "BOOLEAN"
    return "DOUBLE" if any(isinstance(v, float) for v in values) else "BIGINT"


@lru_cache(512)
def translated(query: str) -> str:
    """Translate a Spark query into DuckDB's dialect."""
    tree = sqlglot.parse_one(query, read="spark")
    for join in tree.find_all(exp.Join):
        if join.kind in ("SEMI", "ANTI"):
            join.set("side", None)
    return tree.sql(dialect="duckdb")


def comparable(value: Any) -> Any:
    """Numbers of all kinds as one, NaN equal to itself. DuckDB averages in doubles: the last places do not count."""
    value = value.value if isinstance(value, Double) else value
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    is_number = isinstance(value, Decimal | Fraction | int | float) and not isinstance(value, bool)
    return round(float(value), 9) if is_number else value


def means(text: str, state: State) -> Bag:
    """What the oracle makes of a query, as DuckDB would show it."""
    lowered = lowered_view(text)
    places = [lowered.node.columns.index(c) for c, _ in lowered.outputs]
    result: Bag = Counter()
    for row, n in evaluate(lowered.node, reading(state)).items():
        result[tuple(comparable(row[p]) for p in places)] += n
    return result
