"""Random queries over the table of the grammar: one operator, or one over the rows of another."""

from __future__ import annotations

import random
import re

from tests.unit.local.grammar import COLUMNS, Expressions

# Columns of like types: what a join may compare.
_ALIKE = [
    ["id", "ti", "si", "i", "j", "l", "m"], ["d52", "d152", "d200", "d3810"], ["s", "r"], ["d", "e"], ["ts", "tu"],
    ["n", "o"], ["b", "c"],
]  # fmt: skip
_PAIRS = [("i", "j"), ("l", "m"), ("s", "r"), ("d", "e"), ("ts", "tu"), ("n", "o"), ("b", "c")]  # of one type
_KEYS = [name for names in _ALIKE for name in names if name != "id"]
_NAMED = re.compile(rf"'(?:[^'\\]|\\.)*'|\b(?:{'|'.join(COLUMNS)})\b")  # or a text, which has none


class Queries:
    """Writes random queries in Spark SQL. Rows of a source with one `id` are equal, so that orders by it say all."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._writer = Expressions(rng)

    def any(self) -> str:
        above = self._rng.choice(
            [self._joined, self._joined, self._met, self._grouped, self._total, self._set, self._distinct,
             self._numbered, self._projected, self._regrouped]
        )  # fmt: skip
        return above()

    def _source(self) -> str:
        """The table, or a query with all of its columns."""
        kept = [self._kept_met, self._kept_joined, self._kept_twice, self._kept_first, self._computed]
        return "t" if self._rng.random() < 0.65 else f"({self._rng.choice(kept)()})"

    # -- queries of one operator over a source ------------------------------------------------------

    def _joined(self) -> str:
        kind = self._rng.choice(["JOIN", "LEFT JOIN"])
        value = self._sided(self._value())
        text = f"SELECT p.id AS a0, {value} AS a1 FROM {self._source()} AS p {kind} t AS q ON {self._on()}"
        return f"{text} WHERE {self._sided(self._writer.condition(1))}" if self._rng.random() < 0.4 else text

    def _met(self) -> str:
        return f"SELECT id AS a0, {self._value()} AS a1 FROM {self._source()} AS p WHERE {self._exists()}"

    def _grouped(self) -> str:
        keys = self._keys()
        named = ", ".join(f"{key} AS a{i}" for i, key in enumerate(keys))
        calls = f"{self._writer.aggregate()} AS a{len(keys)}, {self._writer.aggregate()} AS a{len(keys) + 1}"
        return f"SELECT {named}, {calls} FROM {self._source()} AS p{self._where()} GROUP BY {', '.join(keys)}"

    def _total(self) -> str:
        return f"SELECT {self._writer.aggregate()} AS a0, COUNT(*) AS a1 FROM {self._source()} AS p{self._where()}"

    def _set(self) -> str:
        operation = self._rng.choice(["UNION ALL", "EXCEPT ALL", "INTERSECT", "UNION", "EXCEPT"])
        pairs = self._rng.sample(_PAIRS, 2)
        left, right = (", ".join(f"{pair[side]} AS a{i}" for i, pair in enumerate(pairs)) for side in (0, 1))
        return (
            f"SELECT {left} FROM {self._source()} AS p{self._where()} {operation} SELECT {right} FROM t{self._where()}"
        )

    def _distinct(self) -> str:
        named = ", ".join(f"{key} AS a{i}" for i, key in enumerate(self._keys()))
        return f"SELECT DISTINCT {named} FROM {self._source()} AS p{self._where()}"

    def _numbered(self) -> str:
        total = f"{self._rng.choice(['SUM(i)', 'MAX(s)', 'COUNT(d)', 'MIN(l)'])} OVER ({self._window()})"
        return (
            f"SELECT id AS a0, ROW_NUMBER() OVER ({self._window(order=True)}) AS a1, {total} AS a2"
            f" FROM {self._source()} AS p{self._where()}"
        )

    def _projected(self) -> str:
        return (
            f"SELECT id AS a0, {self._value()} AS a1, {self._value()} AS a2 FROM {self._source()} AS p{self._where()}"
        )

    def _regrouped(self) -> str:
        below = self._rng.choice([self._joined, self._met, self._grouped, self._numbered, self._set])
        call = self._rng.choice(["COUNT(a0)", "MIN(a0)", "MAX(a0)"])
        return f"SELECT a1 AS a0, COUNT(*) AS a1, {call} AS a2 FROM ({below()}) AS g GROUP BY a1"

    # -- queries that keep the columns of the table -------------------------------------------------

    def _kept_met(self) -> str:
        return f"SELECT * FROM t AS p WHERE {self._exists()}"

    def _kept_joined(self) -> str:
        key, call = self._rng.choice(_KEYS), self._writer.aggregate()
        grouped = f"SELECT {key} AS k, {call} AS a FROM t{self._where()} GROUP BY {key}"
        return f"SELECT p.* FROM t AS p JOIN ({grouped}) AS g ON p.{key} = g.k WHERE g.a IS NOT NULL"

    def _kept_twice(self) -> str:
        return f"SELECT * FROM t{self._where()} UNION ALL SELECT * FROM t WHERE {self._condition()}"

    def _kept_first(self) -> str:
        numbered = f"SELECT *, ROW_NUMBER() OVER ({self._window(order=True)}) AS place FROM t{self._where()}"
        return f"SELECT {', '.join(COLUMNS)} FROM ({numbered}) WHERE place <= {self._rng.choice('123')}"

    def _computed(self) -> str:
        """Some columns are computed: what is above computes over that."""
        made = {
            "s": f"({self._rng.choice('sr')} || {self._rng.choice('sr')})", "d": f"({self._rng.choice('de')} + ti)",
            "b": self._writer.condition(1), "i": f"(i % {self._rng.choice(['ti', 'si', 'j', '3'])})", "l": "(l + si)",
        }  # fmt: skip
        chosen = self._rng.sample(list(made), 2)
        return f"SELECT {', '.join(f'{made[c]} AS {c}' if c in chosen else c for c in COLUMNS)} FROM t{self._where()}"

    # -- parts --------------------------------------------------------------------------------------

    def _exists(self) -> str:
        negated = self._rng.choice(["", "NOT "])
        return f"{negated}EXISTS (SELECT 1 FROM t AS q WHERE {self._on()})"

    def _keys(self) -> list[str]:
        """One or two columns, or an expression over some: a number alone would be the place of a column."""
        if self._rng.random() < 0.6:
            return self._rng.sample(_KEYS, self._rng.choice([1, 2]))
        while not set(_NAMED.findall(key := self._writer.any(1))) & set(COLUMNS):
            pass
        return [key]

    def _window(self, *, order: bool = False) -> str:
        partition = f"PARTITION BY {', '.join(self._rng.sample(_KEYS, self._rng.choice([1, 2])))}"
        if not order and self._rng.random() < 0.5:
            return partition
        first = self._rng.choice([f"{self._rng.choice(_KEYS)}{self._rng.choice(['', ' DESC', ' NULLS LAST'])}, ", ""])
        return f"{partition} ORDER BY {first}id"

    def _where(self) -> str:
        return f" WHERE {self._condition()}" if self._rng.random() < 0.6 else ""

    def _condition(self) -> str:
        """A condition on rows of the table; some fail for rows that a condition after them leaves out."""
        if self._rng.random() < 0.6:
            return self._writer.condition(2)
        by = self._divisor()
        fallible, guard = self._divided("", by), f"{by} {self._rng.choice(['<>', '>'])} 0"
        return f"{fallible} AND {guard}" if self._rng.random() < 0.3 else self._guarded(fallible, guard)

    def _on(self) -> str:
        """A condition on two rows: an equality mostly, and others before or after it, which may fail for some pairs."""
        left, right = (self._rng.choice(names) for names in [self._rng.choice(_ALIKE)] * 2)
        equal = f"p.{left} {self._rng.choice(['=', '=', '=', '<=>'])} q.{right}"
        if self._rng.random() < 0.6:
            other = self._sided(self._writer.condition(1))
        else:
            one, two = self._rng.sample("pq", 2)
            by = f"{two}.{self._divisor()}"
            fallible = self._rng.choice([self._divided, self._too_large])(f"{one}.", by)
            guard = f"{by} {self._rng.choice(['<>', '>'])} 0"
            other = self._rng.choice([fallible, self._guarded(fallible, guard), f"{fallible} AND {guard}"])
        both = f"{equal} AND {other}"
        return self._rng.choice([equal, both, both, f"{other} AND {equal}", f"({equal} OR {other})", other])

    def _divisor(self) -> str:
        return self._rng.choice(["ti", "si", "i", "j"])

    def _divided(self, side: str, by: str) -> str:
        """A condition that fails where a divisor is 0."""
        value = f"{side}{self._rng.choice('ilm')}"
        return self._rng.choice([f"({value} % {by} = 1)", f"({value} DIV {by} > 0)", f"({side}d152 / {by} > 1.5)"])

    def _too_large(self, side: str, by: str) -> str:
        """A condition that fails where a value is too large for its type."""
        value = f"{side}{self._rng.choice('ilm')}"
        return self._rng.choice(
            [f"({value} * {by} > 5)", f"(CAST({value} + {by} AS TINYINT) > 1)",
             f"(CAST(CAST({value} AS STRING) AS SMALLINT) < {by})"]
        )  # fmt: skip

    def _guarded(self, fallible: str, guard: str) -> str:
        """A condition that is computed only where another one says so."""
        return self._rng.choice(
            [f"({guard} AND {fallible})", f"(NOT ({guard}) OR {fallible})",
             f"CASE WHEN {guard} THEN {fallible} ELSE {self._rng.choice(['TRUE', 'FALSE'])} END"]
        )  # fmt: skip

    def _value(self) -> str:
        return self._writer.any(1)

    def _sided(self, text: str) -> str:
        """The text with each column taken from one of two sides."""
        return _NAMED.sub(
            lambda found: found[0] if found[0][0] == "'" else f"{self._rng.choice('pq')}.{found[0]}", text
        )
