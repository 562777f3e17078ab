"""Random expressions over columns of every exact type, and rows that try them: plain, odd and extreme values."""

from __future__ import annotations

import random
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa

from freshview.relation.schema import Column, Schema
from freshview.relation.types import parse_type

COLUMNS = {
    "id": "int", "ti": "tinyint", "si": "smallint", "i": "int", "j": "int", "l": "bigint", "m": "bigint",
    "d52": "decimal(5,2)", "d152": "decimal(15,2)", "d200": "decimal(20,0)", "d3810": "decimal(38,10)",
    "s": "string", "r": "string", "d": "date", "e": "date", "ts": "timestamp", "tu": "timestamp",
    "n": "timestamp_ntz", "o": "timestamp_ntz", "b": "boolean", "c": "boolean", "x": "double", "y": "binary",
}  # fmt: skip
SCHEMA = Schema(tuple(Column(name, parse_type(type_)) for name, type_ in COLUMNS.items()))

# fmt: off
_PLAIN: dict[str, list[Any]] = {
    "tinyint": [0, 1, 2, -1, 5], "smallint": [0, 1, -3, 100], "int": [0, 1, 2, -7, 42], "bigint": [0, 1, 3, -9, 1000],
    "decimal(5,2)": ["0.00", "1.00", "0.05", "-1.25"], "decimal(15,2)": ["0.00", "1.00", "12.34", "-0.01"],
    "decimal(20,0)": ["0", "1", "-42"], "decimal(38,10)": ["0", "1", "0.5", "-2.0000000001"],
    "string": ["", "a", "ab", "abc", "PROMO x", "1995-03-15"], "date": [0, 1, 9204, 8766], "timestamp": [0, 1, 9204],
    "timestamp_ntz": [0, 1, 9204], "boolean": [True, False], "double": [0.0, 1.5], "binary": [b"", b"a"],
}
_ODD: dict[str, list[Any]] = {
    "tinyint": [100, -100, 3], "smallint": [300, -300], "int": [46341, -46341, 65536],
    "bigint": [2**31, -(2**31), 2**53 + 1], "decimal(5,2)": ["999.99", "-999.99", "0.01"],
    "decimal(15,2)": ["99999999.99", "-0.05", "9007199254740.93"], "boolean": [True, False],
    "decimal(20,0)": ["9007199254740993", "-99999999999"], "decimal(38,10)": ["0.0000000001", "123456789.5"],
    "string": [" a", "a ", "A", "ä", "ß", "İ", "é", "ﬁ", "𝔸b", "%", "_", "a\nb", "a\0b", "'", "\\", "0"],
    "date": [-141428, -200000, -719162, 2932896, 18321, 10**8, -(10**8)], "timestamp": [-141428, -719000, 2932000],
    "timestamp_ntz": [-141428, -719000, 2932000], "double": [-0.0, float("nan")], "binary": [b"\xff", b"\x00"],
}
_LONG = "9" * 28 + ".9999999999"
_EXTREME: dict[str, list[Any]] = {
    "tinyint": [127, -128], "smallint": [2**15 - 1, -(2**15)], "int": [2**31 - 1, -(2**31)],
    "bigint": [2**63 - 1, -(2**63)], "decimal(5,2)": ["999.99", "-999.99"],
    "decimal(15,2)": ["9999999999999.99", "-9999999999999.99"], "decimal(20,0)": ["9" * 20, "-" + "9" * 20],
    "decimal(38,10)": [_LONG, "-" + _LONG], "string": ["z" * 300, "\U0010ffff"],
    "date": [2**31 - 1, -(2**31) + 1, -(2**31)], "timestamp": [2**63 - 1, -(2**63), -(2**63) + 1],
    "timestamp_ntz": [2**63 - 1, -(2**63), -(2**63) + 1], "boolean": [True, False],
    "double": [float("inf"), 5e-324], "binary": [b"\x00" * 40],
}
# fmt: on
WORLDS = (_PLAIN, _ODD, _EXTREME)


def rows(world: dict[str, list[Any]], count: int, rng: random.Random, first: int = 0) -> pa.Table:
    """Rows of a world's values and NULLs; the column `id` numbers them."""
    columns = [pa.array(range(first, first + count), pa.int32())]
    for type_ in list(COLUMNS.values())[1:]:
        drawn = [None if rng.random() < 0.15 else rng.choice(world[type_]) for _ in range(count)]
        columns.append(_array(drawn, type_))
    return pa.table(columns, schema=SCHEMA.arrow)


def _array(values: list[Any], type_: str) -> pa.Array:
    arrow = parse_type(type_).arrow
    if type_.startswith("decimal"):
        values = [None if v is None else Decimal(v) for v in values]
    if type_ == "date":
        return pa.array(values, pa.int32()).cast(arrow)
    if type_.startswith("timestamp"):
        micros = [v if v is None or abs(v) > 2**40 else v * 86_400_000_000 + 1 for v in values]
        return pa.array(micros, pa.int64()).cast(arrow)
    return pa.array(values, arrow)


_DECIMALS = [f"DECIMAL({p})" for p in ("10, 2", "20, 0", "38, 0", "38, 10", "20, 4", "5, 1", "12, 6")]


_DATE_CALLS = ["YEAR", "MONTH", "DAY", "QUARTER", "DAYOFMONTH", "DAYOFWEEK", "DAYOFYEAR", "WEEKOFYEAR"]
_DATE_PARTS = ["YEAR", "MONTH", "DAY", "QUARTER", "WEEK", "DOW", "DOY", "DAYOFWEEK"]
_INTERVALS = [
    f"INTERVAL {n}" for n in ("'3' MONTH", "1 YEAR", "90 DAYS", "'-1' MONTH", "2 WEEKS", "'1' DAY", "'20' YEAR")
]
_PARTS = ["'a'", "'b'", "'ab'", "' '", "'ß'"]
_FOUND = ["STARTSWITH", "ENDSWITH", "CONTAINS"]


class Expressions:
    """Writes random expressions in Spark SQL, mostly of kinds that the embedded engine takes."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._kinds: dict[str, Callable[[int], str]] = {
            "integer": self._integer, "decimal": self._decimal, "condition": self._condition, "text": self._text,
            "date": self._date, "time": self._time, "other": self._other,
        }  # fmt: skip

    def any(self, depth: int = 3) -> str:
        return self._kinds[self._rng.choice(list(self._kinds))](depth)

    def condition(self, depth: int) -> str:
        return self._condition(depth)

    def aggregate(self) -> str:
        """An aggregate call."""
        kind = self._rng.choice(["integer", "decimal", "condition", "text", "date", "time"])
        value = self._kinds[kind](1)
        calls = [f"COUNT({value})", f"COUNT(DISTINCT {value})", "COUNT(*)", f"MIN({value})", f"MAX({value})"]
        calls += [f"SUM({value})", f"AVG({value})"] * 2 if kind in ("integer", "decimal") else []
        calls += [f"BOOL_AND({value})", f"BOOL_OR({value})", f"COUNT_IF({value})"] if kind == "condition" else []
        call = self._rng.choice(calls)
        return f"{call} FILTER (WHERE {self._condition(1)})" if self._rng.random() < 0.3 else call

    def _pick(self, *choices: Callable[[], str]) -> str:
        return self._rng.choice(choices)()

    def _column(self, *names: str) -> str:
        return self._rng.choice(names)

    def _choice(self, kind: Callable[[int], str], depth: int) -> str:
        if self._rng.random() < 0.4:
            return f"{self._rng.choice(['COALESCE', 'NVL', 'IFNULL', 'NULLIF'])}({kind(depth)}, {kind(depth)})"
        if self._rng.random() < 0.3:
            return f"{self._rng.choice(['GREATEST', 'LEAST'])}({kind(depth)}, {kind(depth)}, {kind(0)})"
        if self._rng.random() < 0.1:
            return f"NVL2({self.any(0)}, {kind(depth)}, {kind(depth)})"
        if self._rng.random() < 0.3:
            return f"IF({self._condition(depth)}, {kind(depth)}, NULL)"
        return f"CASE WHEN {self._condition(depth)} THEN {kind(depth)} ELSE {kind(depth)} END"

    def _integer(self, depth: int) -> str:
        if depth <= 0:
            return self._rng.choice(["ti", "si", "i", "j", "l", "m", "0", "1", "2", "7", "100", "3000000000"])
        below = depth - 1
        return self._pick(
            lambda: f"({self._integer(below)} {self._rng.choice('+-*%')} {self._integer(below)})",
            lambda: f"(- {self._integer(below)})",
            lambda: self._choice(self._integer, below),
            lambda: f"CAST({self._integer(below)} AS {self._rng.choice(['TINYINT', 'SMALLINT', 'INT', 'BIGINT'])})",
            lambda: f"CAST({self._decimal(below)} AS {self._rng.choice(['SMALLINT', 'INT', 'BIGINT'])})",
            lambda: f"CAST({self._condition(below)} AS {self._rng.choice(['TINYINT', 'INT', 'BIGINT'])})",
            lambda: f"CAST({self._written(self._integer)} AS {self._rng.choice(['TINYINT', 'INT', 'BIGINT'])})",
            lambda: f"ABS({self._integer(below)})",
            lambda: f"({self._integer(below)} DIV {self._integer(0)})",
            lambda: f"LENGTH({self._text(below)})",
            lambda: self._pick(lambda: f"INSTR({self._text(below)}, 'a')", lambda: f"LOCATE('b', {self._text(below)})"),
            lambda: f"{self._rng.choice(_DATE_CALLS)}({self._date(below)})",
            lambda: f"EXTRACT({self._rng.choice(_DATE_PARTS)} FROM {self._date(below)})",
            lambda: f"DATEDIFF({self._date(below)}, {self._date(below)})",
            lambda: self._integer(0),
        )

    def _decimal(self, depth: int) -> str:
        if depth <= 0:
            return self._rng.choice(["d52", "d152", "d200", "d3810", "0.00", "1.5", "0.05", "100.00", ".5"])
        below = depth - 1
        return self._pick(
            lambda: f"({self._decimal(below)} {self._rng.choice('+-*/%')} {self._decimal(below)})",
            lambda: f"({self._decimal(below)} {self._rng.choice('+-*/%')} {self._integer(below)})",
            lambda: f"({self._integer(0)} {self._rng.choice('+-*/%')} {self._decimal(below)})",
            lambda: f"(- {self._decimal(below)})",
            lambda: self._choice(self._decimal, below),
            lambda: f"CASE WHEN {self._condition(below)} THEN {self._decimal(below)} ELSE {self._integer(0)} END",
            lambda: f"ROUND({self._decimal(below)}{self._rng.choice(['', ', 0', ', 1', ', 2', ', 12'])})",
            lambda: f"{self._rng.choice(['ABS', 'CEIL', 'FLOOR'])}({self._decimal(below)})",
            lambda: f"CAST({self._decimal(below)} AS {self._rng.choice(_DECIMALS)})",
            lambda: f"CAST({self._integer(below)} AS {self._rng.choice(_DECIMALS)})",
            lambda: self._decimal(0),
        )

    def _text(self, depth: int) -> str:
        if depth <= 0:
            return self._rng.choice(["s", "s", "r", "r", "''", "'a'", "'ä '", "'it\\'s'"])
        below = depth - 1
        return self._pick(
            lambda: f"SUBSTRING({self._text(below)}, {self._rng.choice(['0', '1', '2', '5', '1, 0', '2, 1', '0, 3'])})",
            lambda: f"{self._rng.choice(['LEFT', 'RIGHT'])}({self._text(below)}, {self._rng.choice('0129')})",
            lambda: f"{self._rng.choice(['TRIM', 'LTRIM', 'RTRIM'])}({self._text(below)})",
            lambda: f"TRIM({self._rng.choice(['BOTH', 'LEADING', 'TRAILING'])} 'ab ' FROM {self._text(below)})",
            lambda: f"REPLACE({self._text(below)}, {self._rng.choice(_PARTS)}, {self._text(0)})",
            lambda: f"{self._rng.choice(['UPPER', 'LOWER'])}({self._text(below)})",
            lambda: f"({self._text(below)} || {self._text(below)})",
            lambda: f"CONCAT({self._text(below)}, {self._text(below)})",
            lambda: self._choice(self._text, below),
            lambda: (
                f"CAST({self._kinds[self._rng.choice(['integer', 'decimal', 'date', 'condition'])](below)} AS STRING)"
            ),
            lambda: self._text(0),
        )

    def _date(self, depth: int) -> str:
        if depth <= 0:
            return self._rng.choice(["d", "d", "e", "e", "DATE '1995-03-15'", "DATE '1500-02-28'"])
        below = depth - 1
        return self._pick(
            lambda: f"({self._date(below)} {self._rng.choice('+-')} {self._rng.choice(['i', '1', '30', 'si'])})",
            lambda: f"({self._date(below)} {self._rng.choice('+-')} {self._rng.choice(_INTERVALS)})",
            lambda: f"({self._rng.choice(_INTERVALS)} + {self._date(below)})",
            lambda: f"ADD_MONTHS({self._date(below)}, {self._rng.choice(['i', 'ti', '1', '-13', '6'])})",
            lambda: f"DATE_ADD({self._date(below)}, {self._rng.choice(['si', 'ti', '1', '365'])})",
            lambda: f"LAST_DAY({self._date(below)})",
            lambda: f"TRUNC({self._date(below)}, '{self._rng.choice(['YEAR', 'QUARTER', 'MM', 'WEEK'])}')",
            lambda: f"CAST({self._written(self._date)} AS DATE)",
            lambda: self._choice(self._date, below),
            lambda: self._date(0),
        )

    def _time(self, depth: int) -> str:
        name = self._rng.choice([("ts", "tu"), ("n", "o")])
        return self._choice(lambda _: self._column(*name), depth - 1) if depth > 0 else self._column(*name)

    def _other(self, depth: int) -> str:
        return self._pick(
            lambda: self._choice(lambda _: "x", depth - 1),
            lambda: self._choice(lambda _: "y", depth - 1),
            lambda: f"CAST({self._integer(0)} AS DOUBLE)",
            lambda: f"({self._integer(1)} / {self._integer(0)})",
            lambda: f"(CAST({self._integer(0)} AS DOUBLE) / CAST({self._integer(0)} AS DOUBLE))",
            lambda: f"CAST({self._column('d52', 'd152', 'd200')} AS DOUBLE)",
        )

    def _written(self, kind: Callable[[int], str]) -> str:
        """A text that says a value, mostly in the way that a cast to text writes it."""
        return self._text(0) if self._rng.random() < 0.3 else f"CAST({kind(0)} AS STRING)"

    def _pair(self, depth: int) -> tuple[str, str]:
        """Two operands that can be compared."""
        kinds: list[tuple[Callable[[int], str], Callable[[int], str]]] = [
            (self._integer, self._integer), (self._decimal, self._decimal), (self._integer, self._decimal),
            (self._text, self._text), (self._date, self._date), (self._condition, self._condition),
            (lambda _: self._column("ts", "tu"), lambda _: self._column("ts", "tu")),
            (lambda _: self._column("n", "o"), lambda _: self._column("n", "o")),
            (self._date, lambda _: "'1995-03-15'"), (lambda _: "y", lambda _: "y"),
        ]  # fmt: skip
        left, right = self._rng.choice(kinds)
        return left(depth), right(depth)

    def _condition(self, depth: int) -> str:
        if depth <= 0:
            return self._pick(lambda: self._rng.choice(["b", "c", "TRUE", "FALSE"]), self._compared)
        below = depth - 1
        return self._pick(
            lambda: f"({self._condition(below)} AND {self._condition(below)})",
            lambda: f"({self._condition(below)} OR {self._condition(below)})",
            lambda: f"(NOT {self._condition(below)})",
            lambda: f"({self.any(below)} IS {self._rng.choice(['', 'NOT '])}NULL)",
            lambda: f"({self._condition(below)} IS {self._rng.choice(['TRUE', 'FALSE', 'NOT TRUE'])})",
            lambda: self._compared(below),
            lambda: self._compared(below),
            lambda: self._like(below),
            lambda: self._listed(below),
            lambda: self._between(below),
            lambda: f"{self._rng.choice(_FOUND)}({self._text(below)}, {self._text(0)})",
            lambda: f"CAST({self._integer(below)} AS BOOLEAN)",
        )

    def _compared(self, depth: int = 0) -> str:
        left, right = self._pair(depth - 1)
        return f"({left} {self._rng.choice(['=', '<>', '<', '<=', '>', '>=', '<=>', 'IS DISTINCT FROM'])} {right})"

    def _like(self, depth: int) -> str:
        pattern = self._rng.choice(["%", "a%", "%b", "_", "a_%", "PROMO%", ""])
        return f"({self._text(depth)} {self._rng.choice(['', 'NOT '])}LIKE '{pattern}')"

    def _listed(self, depth: int) -> str:
        kind = self._rng.choice([self._integer, self._text, self._decimal])
        values = ", ".join([kind(0), kind(0), self._rng.choice([kind(0), "NULL"])])
        return f"({kind(depth)} {self._rng.choice(['', 'NOT '])}IN ({values}))"

    def _between(self, depth: int) -> str:
        kind = self._rng.choice([self._integer, self._text, self._decimal, self._date])
        return f"({kind(depth)} BETWEEN {kind(0)} AND {kind(0)})"
