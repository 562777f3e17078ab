"""Small tables of every type that Freshview accepts, kept by a model in Python, and random changes of them.

The rows are made to meet corner cases: NULLs, duplicates, empty and padded strings, both zeros, NaN, extremes, arrays
and maps of length 0, 1 and more. Doubles are small dyadic numbers, so that their sums do not depend on an order.
"""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa

Value = Any
Row = tuple[Value, ...]
State = dict[str, list[Row]]  # rows of each table

NAN = float("nan")
_PLAIN = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}


@dataclass(frozen=True)
class Column:
    """A column: its name, its type as Spark's DDL text in lower case, and the values drawn for it."""

    name: str
    type: str
    pool: tuple[Value, ...] = ()
    nulls: float = 0.15  # the share of NULLs

    @property
    def length(self) -> int | None:
        """The length of a CHAR; None for all other types."""
        return int(self.type[5:-1]) if self.type.startswith("char(") else None


@dataclass(frozen=True)
class Table:
    """A table. Its first column numbers its rows: the primary key if it is keyed, else equal for equal rows alone."""

    name: str
    columns: tuple[Column, ...]
    keyed: bool = False

    @property
    def ddl(self) -> str:
        """The statement that creates the table in a warehouse."""
        parts = [f"`{c.name}` {c.type}" for c in self.columns]
        if self.keyed:
            parts[0] += " PRIMARY KEY"
        return f"CREATE TABLE `{self.name}` ({', '.join(parts)})"

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([pa.field(c.name, arrow_type(c.type)) for c in self.columns])

    def arrow(self, rows: Sequence[Row]) -> pa.Table:
        """Rows as an Arrow table."""
        columns = list(zip(*rows, strict=True)) if rows else [()] * len(self.columns)
        arrays = [pa.array(list(v), f.type) for v, f in zip(columns, self.schema, strict=True)]
        return pa.Table.from_arrays(arrays, schema=self.schema)

    @property
    def can_be_foreign(self) -> bool:
        """Can others keep the table as a Delta table? A CHAR would be a STRING there, and views mean something else."""
        return not any("char(" in c.type or "ntz" in c.type for c in self.columns)

    def padded(self, row: Row) -> Row:
        """A row as the table stores it: CHAR(n) filled with spaces."""
        return tuple(
            v.ljust(c.length) if c.length and isinstance(v, str) else v for v, c in zip(row, self.columns, strict=True)
        )


@dataclass(frozen=True)
class Change:
    """Rows that leave a table, by their numbers, and rows that come."""

    table: str
    deleted: tuple[int, ...] = ()
    inserted: tuple[Row, ...] = ()
    condition: str = ""  # of the DELETE that removes the rows; by their numbers if there is none


def arrow_type(text: str) -> pa.DataType:
    """The Arrow type of a Spark type."""
    text = text.strip()
    if text in _PLAIN:
        return _PLAIN[text]
    head, _, rest = text.partition("<" if "<" in text.partition("(")[0] else "(")
    inner = rest[:-1]
    match head:
        case "char" | "varchar":
            return pa.string()
        case "decimal":
            return pa.decimal128(*map(int, inner.split(",")))
        case "array":
            return pa.list_(arrow_type(inner))
        case "map":
            key, value = split(inner)
            return pa.map_(arrow_type(key), arrow_type(value))
        case "struct":
            fields = [f.split(":", 1) for f in split(inner)]
            return pa.struct([pa.field(name.strip(), arrow_type(kind)) for name, kind in fields])
    raise ValueError(f"type {text} is not known")


def split(text: str) -> list[str]:
    """The parts of a text between commas that stand in no brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "<([") - (character in ">)]")
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return [p.strip() for p in parts]


# -- the model ------------------------------------------------------------------------------------------


def draw_value(draw: random.Random, column: Column) -> Value:
    return None if draw.random() < column.nulls else draw.choice(column.pool)


def draw_rows(draw: random.Random, table: Table, numbers: Iterable[int]) -> list[Row]:
    """A row for each number; in a table without a key some rows come twice or three times."""
    rows: list[Row] = []
    for number in numbers:
        row = (number, *(draw_value(draw, c) for c in table.columns[1:]))
        copies = 1 if table.keyed else draw.choice((1, 1, 1, 2, 3))
        rows += [row] * copies
    return rows


def initial(draw: random.Random, tables: Iterable[Table], most: int = 8) -> State:
    """The first rows of all tables. Now and then a table is empty."""
    sizes = {t.name: 0 if draw.random() < 0.05 else draw.randint(4, most) for t in tables}
    return {t.name: draw_rows(draw, t, range(sizes[t.name])) for t in tables}


def draw_changes(draw: random.Random, tables: Sequence[Table], state: Mapping[str, Sequence[Row]]) -> list[Change]:
    """Random changes of one transaction: inserts, deletes, updates, copies; a table may be emptied or refilled."""
    touched = [t for t in tables if draw.random() < 0.8] or [draw.choice(tables)]
    return [_change(draw, t, state[t.name]) for t in touched]


def _change(draw: random.Random, table: Table, rows: Sequence[Row]) -> Change:
    numbers = sorted({r[0] for r in rows})
    unused = max(numbers, default=-1) + 1
    if not rows:
        return Change(table.name, (), tuple(draw_rows(draw, table, range(draw.randint(1, 6)))))
    if draw.random() < 0.08:
        refilled = draw_rows(draw, table, range(unused, unused + 3)) if draw.random() < 0.5 else []
        return Change(table.name, tuple(numbers), tuple(refilled))
    hit = draw.sample(numbers, min(len(numbers), draw.randint(0, 3)))
    inserted = draw_rows(draw, table, range(unused, unused + draw.randint(0 if hit else 1, 3)))
    for number in hit:
        old = next(r for r in rows if r[0] == number)
        match draw.random():
            case chance if chance < 0.6:  # an update of one or two columns
                new = list(old)
                for place in draw.sample(range(1, len(new)), min(len(new) - 1, draw.randint(1, 3))):
                    new[place] = draw_value(draw, table.columns[place])
                inserted.append(tuple(new))
            case chance if chance < 0.7 and not table.keyed:  # one copy more or less of an old row
                inserted += [old] * draw.choice((1, 2))
    return Change(table.name, tuple(hit), tuple(inserted))


def changed(state: Mapping[str, Sequence[Row]], changes: Iterable[Change]) -> State:
    """The rows after a transaction."""
    result = {name: list(rows) for name, rows in state.items()}
    for change in changes:
        gone = set(change.deleted)
        result[change.table] = [r for r in result[change.table] if r[0] not in gone] + list(change.inserted)
    return result


# -- tables of the generator of definitions -------------------------------------------------------------


def _utc(text: str) -> dt.datetime:
    return dt.datetime.fromisoformat(text).replace(tzinfo=dt.UTC)


INTEGERS = (0, 1, 2, 3, 3, 2)
TEXTS = ("a", "b", "A", "ab", "", "a ", "b  ", "Ab")
LONG = "long " * 30  # more characters than a shortened display of a value keeps
LONGER = "long " * 15 + "LONG " + "long " * 14  # differs in its middle only
DATES = tuple(dt.date.fromisoformat(d) for d in ("2024-01-31", "2024-02-29", "2023-12-31", "2024-03-10", "1969-12-31"))
INSTANTS = tuple(
    _utc(t)
    for t in (
        "2024-03-10T06:59:59.999999",
        "2024-03-10T07:00:00",
        "2024-11-03T05:30:00",
        "2024-11-03T06:30:00",
        "2024-02-29T23:59:59",
        "1969-12-31T23:59:59.5",
    )
)
CLOCKS = tuple(t.replace(tzinfo=None) for t in INSTANTS)
DOUBLES = (0.0, -0.0, 0.5, 1.25, -2.75, 2.0, 1.0, NAN)
AMOUNTS = tuple(map(Decimal, ("0.00", "1.50", "-2.25", "10.00", "99.99")))
ARRAYS: tuple[list[int | None], ...] = ([], [1], [2, 1], [1, None, 3], [3, 3, 1])
MAPS: tuple[list[tuple[str, int | None]], ...] = ([], [("a", 1)], [("K", 2), ("k", 3)], [("a", None), ("B", 0)])
STRUCTS = ({"A": 1, "b": "x"}, {"A": 2, "b": None}, {"A": None, "b": "X "}, {"A": 1, "b": ""})

T = Table(
    "t",
    (
        Column("Id", "int"),
        Column("k", "int", INTEGERS),
        Column("g", "string", (*TEXTS, LONG, LONGER)),
        Column("V", "bigint", (-5, 0, 7, 100, 1_000_000, 1)),
        Column("x", "double", DOUBLES),
        Column("d", "date", DATES),
        Column("ts", "timestamp", INSTANTS),
        Column("flag", "boolean", (True, False)),
        Column("amt", "decimal(10,2)", AMOUNTS),
        Column("arr", "array<int>", ARRAYS),
        Column("m", "map<string,int>", MAPS),
        Column("s", "struct<A:int,b:string>", STRUCTS),
    ),
    keyed=True,
)
U = Table(
    "u",
    (
        Column("No", "int"),
        Column("k", "int", INTEGERS),
        Column("Name", "string", (*TEXTS, LONG, LONGER)),
        Column("w", "smallint", (-3, 0, 1, 2, 300)),
        Column("y", "float", (0.0, -0.0, 0.5, -1.5, 4.0)),
        Column("c", "char(3)", ("a", "b", "ab", "", "abc")),
        Column("vc", "varchar(6)", ("a", "a  ", "B", "", "abcdef")),
        Column("ntz", "timestamp_ntz", CLOCKS),
        Column("n", "tinyint", (0, 1, 2, 7)),
        Column("big", "decimal(20,0)", tuple(map(Decimal, ("0", "1", "12345678901234567890", "-7")))),
    ),
)
# fmt: off
W = Table(
    "w",
    (
        Column("No", "int"), Column("k", "bigint", INTEGERS), Column("g", "string", (*TEXTS, LONG, LONGER)),
        Column("q", "decimal(12,4)", tuple(map(Decimal, ("0.0000", "1.2500", "-7.5000", "3.0001")))),
        Column("c", "char(5)", ("a", "b", "ab", "abc", "")), Column("bin", "binary", (b"", b"a", b"\x00\xff", b"ab")),
        Column("items", "array<struct<P:int,q:string>>",
               ([], [{"P": 1, "q": "x"}], [{"P": 2, "q": None}, {"P": 1, "q": "y"}], [None])),
        Column("num", "string", ("0", "1", "2", "3", "x", " 1", "1.0")),
        Column("nested", "struct<Inner:struct<Z:bigint,y:array<string>>,m:map<int,string>>",
               ({"Inner": {"Z": 1, "y": ["a", None]}, "m": [(1, "a"), (2, None)]},
                {"Inner": {"Z": None, "y": []}, "m": []}, {"Inner": None, "m": None})),
    ),
)
# fmt: on
GRAMMAR = (T, U, W)

# -- tables of every type -------------------------------------------------------------------------------

EVERY_TYPE: dict[str, tuple[Value, ...]] = {
    "boolean": (True, False),
    "tinyint": (0, 1, -128, 127),
    "smallint": (0, 1, -32768, 32767),
    "int": (0, 1, -(2**31), 2**31 - 1),
    "bigint": (0, 1, -(2**63), 2**63 - 1, 2**53 + 1),
    "float": (0.0, -0.0, 0.5, NAN, float("inf"), float("-inf")),
    "double": (0.0, -0.0, 0.5, NAN, float("inf"), -1e300),
    "decimal(5,2)": tuple(map(Decimal, ("0.00", "1.25", "-999.99", "999.99"))),
    "decimal(20,0)": tuple(map(Decimal, ("0", "1", "99999999999999999999"))),
    "decimal(38,18)": tuple(map(Decimal, ("0.000000000000000000", "1.000000000000000001", "-5.500000000000000000"))),
    "string": (*TEXTS, "ß", "É", LONG),
    "char(4)": ("a", "A", "ab", "", "abcd"),
    "varchar(5)": ("a", "a ", "ab", "", "abcde"),
    "binary": (b"", b"a", b"a\x00", b"\xff"),
    "date": (*DATES, dt.date(1, 1, 1), dt.date(9999, 12, 31)),
    "timestamp": (*INSTANTS, _utc("0001-01-02T00:00:00"), _utc("9999-12-30T23:59:59.999999")),
    "timestamp_ntz": (*CLOCKS, dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59, 999999)),
    "array<int>": ARRAYS,
    "array<string>": ([], ["a"], ["A", "a "], [None, ""]),
    "array<double>": ([], [0.0], [-0.0], [NAN, 1.5]),
    "map<string,int>": MAPS,
    "map<int,array<string>>": ([], [(1, ["a", None])], [(1, []), (2, None)]),
    "struct<A:int,b:string>": STRUCTS,
    "struct<Inner:struct<Z:bigint,y:array<string>>,M:map<string,date>>": (
        {"Inner": {"Z": 1, "y": ["a", None]}, "M": [("K", dt.date(2024, 1, 1))]},
        {"Inner": {"Z": None, "y": []}, "M": []},
        {"Inner": None, "M": None},
    ),
    "array<struct<P:double,q:timestamp>>": ([], [{"P": -0.0, "q": INSTANTS[0]}], [None, {"P": NAN, "q": None}]),
    "array<array<boolean>>": ([], [[]], [[True, None], None]),
}


def typed_tables(types: Sequence[str]) -> tuple[Table, Table]:
    """A keyed and a keyless table with a column `C0`, `C1`, … of each type."""
    columns = tuple(Column(f"C{i}", t, EVERY_TYPE[t]) for i, t in enumerate(types))
    group = Column("grp", "int", (1, 2), 0.1)
    return (
        Table("keyed", (Column("Id", "int"), group, *columns), keyed=True),
        Table("bag", (Column("No", "int"), group, *columns)),
    )
