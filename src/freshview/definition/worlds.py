"""Small tables made for one definition: rows that meet its conditions and rows that just miss them.

A world is a state of all tables that a definition reads. Values come from the definition's own literals and their
neighbours first, then from a pool for each type: few values, so that rows join and groups have several rows; NULLs,
duplicates, empty strings, trailing spaces, mixed case, −0.0, arrays and maps of length 0, 1 and more; extremes in
worlds of their own, since many expressions fail on them. No world ends Spark: where a call makes something as large as
a number says, or reads where it says, all numbers are small; and where many relations are joined, tables have fewer
rows. A seed determines every value.
"""

from __future__ import annotations

import datetime
import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa

from freshview.definition.hints import DAY, Hints, with_part
from freshview.relation.schema import Schema, fold
from freshview.relation.types import INTEGERS, DataType

World = dict[str, pa.Table]

_BITS = {"tinyint": 7, "smallint": 15, "int": 31, "bigint": 63}
_DIGITS = Context(prec=80)  # more than any DECIMAL has
_MOST_TRIES = 200  # rows that are drawn for one table, including those whose key another row has
_SMALL = 1000  # numbers beyond it are no sizes
_MOST_JOINED = 50_000  # rows of a join, about, if all preferred values meet
_COPIES = 1.15  # rows of a table for each one that is drawn


@dataclass(frozen=True)
class Profile:
    """The kind of values that a world has."""

    name: str
    seed: int
    rows: int = 9
    first: float = 0.45  # the share of a column's preferred value: it lets rows join and meet conditions
    nulls: float = 0.12  # the share of NULLs
    strings: tuple[str, ...] = ("a", "A", "b", "", "a ", "ab")
    extremes: bool = False
    small: bool = False  # only numbers above 0, on which few expressions fail
    once: bool = False  # no value of a column twice, as far as there are others: `= literal` finds one row
    named: bool = False  # only values that the definition names, where it names any

    def for_join(self, relations: int) -> Profile:
        """The kind of values in so few rows that a join of so many relations stays small where values are alike."""
        matching = _MOST_JOINED ** (1 / max(relations, 1))
        rows = int(matching / (self.first * _COPIES))
        return self if rows >= self.rows else replace(self, rows=max(rows, 2))

    @property
    def coming(self) -> int:
        """The rows that come to a table in one change."""
        return min(3, max(1, self.rows // 3))


_NUMBERS_AS_TEXT = ("1", " 1", "01", "2", "10", "-3", "0", "1.0")
_DATES_AS_TEXT = ("2024-03-01", "2024-02-29", "2023-12-31", "1999-01-01", "2024-03-02", "2024-01-01")
_JSON = ('{"a":1,"b":"x"}', '{"a":2}', "[1,2]", "{}", '{"A":3}', '{"a":null}')

# Rows that meet many conditions at once, and join through many tables.
ALIKE = Profile("mostly alike", 10, rows=12, first=0.9, nulls=0.02)
# Tried in this order until the definition does not fail on one and its answers have values.
PROFILES = (
    Profile("plain", 1),
    Profile("numbers as text", 2, strings=_NUMBERS_AS_TEXT),
    Profile("dates as text", 3, strings=_DATES_AS_TEXT),
    Profile("positive numbers", 4, nulls=0.05, strings=_NUMBERS_AS_TEXT, small=True),
    Profile("positive numbers, dates as text", 5, nulls=0.05, strings=_DATES_AS_TEXT, small=True),
    Profile("JSON as text", 6, nulls=0.05, strings=_JSON, small=True),
    Profile("no NULLs", 7, nulls=0.0, small=True),
    Profile("named by the definition", 9, first=0.6, nulls=0.0, small=True, named=True),
    ALIKE,
    Profile("each value once", 8, rows=7, nulls=0.0, small=True, once=True),
)
EXTREME = Profile("extremes", 11, extremes=True, strings=("a", "A", "", "a ", " a", "ß", "é", "𝒳", "0", "NaN"))


def profiles_for(types: Iterable[DataType]) -> Iterator[Profile]:
    """The profiles, without those that give columns of these types the same values as an earlier one."""
    parts = [part for type_ in types for part in type_.walk() if not part.is_nested]
    has_text, has_others = any(p.is_text for p in parts), not all(p.is_text for p in parts)
    met = set()
    for profile in PROFILES:
        drawn = (profile.first, profile.nulls, profile.once, profile.named)
        values = (*drawn, profile.strings if has_text else (), profile.small and has_others)
        if values not in met:
            met.add(values)
            yield profile


def world(schemas: Mapping[str, Schema], hints: Hints, profile: Profile, *, untied: bool = False) -> World:
    """The first state of all tables. `untied`: columns that the definition orders by have no value twice."""
    draw = random.Random(f"{profile.seed}")
    return {n: _table(s, hints, profile, draw, profile.rows, untied=untied) for n, s in sorted(schemas.items())}


def empty(schemas: Mapping[str, Schema]) -> World:
    return {name: schema.arrow.empty_table() for name, schema in schemas.items()}


def changed(
    before: World, schemas: Mapping[str, Schema], hints: Hints, profile: Profile, number: int, *, untied: bool = False
) -> World:
    """The next state: rows go, rows come; in odd states one table does not change, in even ones one loses all rows."""
    draw = random.Random(f"{profile.seed}/{number}")
    names = sorted(before)
    emptied = draw.choice(names) if number % 2 == 0 else None
    still = draw.choice(names) if number % 2 and len(names) > 1 else None
    result: World = {}
    for name in names:
        rows, schema = before[name], schemas[name]
        if name == still:
            result[name] = rows
            continue
        kept = [i for i in range(rows.num_rows) if name != emptied and draw.random() < 0.65]
        come = profile.coming if name != emptied else 0
        if profile.once:  # rows come when no others are left, which might have the same values
            come = 0 if kept else profile.rows
        more = _table(schema, hints, profile, draw, come, start=100 * number, untied=untied)
        result[name] = _unique(pa.concat_tables([rows.take(pa.array(kept, pa.int64())), more]), schema)
    return result


def _unique(rows: pa.Table, schema: Schema) -> pa.Table:
    """The rows with the last one of each key."""
    if not schema.key:
        return rows
    last: dict[Any, int] = {}
    for i, row in enumerate(zip(*(rows.column(k).to_pylist() for k in schema.key_positions), strict=True)):
        last[repr(row)] = i
    return rows.take(pa.array(sorted(last.values()), pa.int64()))


def _table(
    schema: Schema, hints: Hints, profile: Profile, draw: random.Random, count: int, *, start: int = 0, untied: bool
) -> pa.Table:
    makers = []
    for column in schema.columns:
        own = hints.by_column.get(fold(column.name), ())
        alone = untied and fold(column.name) in hints.ordered
        within = fold(column.name) in hints.within
        makers.append(
            _Maker(column.type, own, hints.others, profile, draw, column.nullable, alone, hints.sized, within)
        )
    rows: list[tuple[Any, ...]] = []
    keys: set[str] = set()
    tries = 0
    while len(rows) < count and tries < _MOST_TRIES:
        tries += 1
        row = tuple(m.value(start + len(rows)) for m in makers)
        key = repr([row[i] for i in schema.key_positions])
        if schema.key and key in keys:
            continue
        keys.add(key)
        rows.append(row)
        if not schema.key and draw.random() < 0.15 and not untied and not profile.once:
            rows.append(row)
    columns = zip(*rows, strict=True) if rows else [()] * len(schema.columns)
    arrays = [pa.array(list(c), f.type) for c, f in zip(columns, schema.arrow, strict=True)]
    return pa.table(arrays, schema=schema.arrow)


@dataclass(frozen=True)
class _Maker:
    """Draws the values of one column."""

    type: DataType
    own: Sequence[Any]  # literals that the column is compared with
    others: Sequence[Any]
    profile: Profile
    draw: random.Random
    nullable: bool
    alone: bool  # no value twice
    sized: bool  # no value that would be a vast size
    within: bool  # the column stands inside a call that is compared
    _left: list[Any] = field(default_factory=list)  # values of the pool that were not drawn yet

    def _next(self, pool: Sequence[Any]) -> Any:
        """A value of the pool that was not drawn before; all of them again when none is left."""
        if not self._left:
            self._left.extend(v for i, v in enumerate(pool) if v not in pool[:i])
            self.draw.shuffle(self._left)
        return self._left.pop()

    def value(self, number: int) -> Any:
        if self.alone:
            return _at(self.type, number)
        if self.nullable and self.draw.random() < self.profile.nulls:
            return None
        if self.profile.once and not self.type.is_nested:
            return self._next(self._pool(self.type))
        return self._some(self.type)

    def _some(self, type_: DataType) -> Any:
        match type_.kind:
            case "array":
                return [self._inner(type_.children[0]) for _ in range(self._length())]
            case "map":
                keys = [self._key(type_.children[0], i) for i in range(self._length())]
                return [(k, self._inner(type_.children[1])) for k in dict.fromkeys(keys)]
            case "struct":
                return {f.name: self._inner(f.type) for f in type_.fields}
        pool = self._pool(type_)
        return pool[0] if self.draw.random() < self.profile.first else self.draw.choice(pool)

    def _length(self) -> int:
        return self.draw.choice((0, 1, 1, 2, 3))

    def _inner(self, type_: DataType) -> Any:
        return None if self.draw.random() < self.profile.nulls else self._some(type_)

    def _key(self, type_: DataType, number: int) -> Any:
        """A key of a map: not NULL, and hashable."""
        value = self._some(type_) if not type_.is_nested else None
        return value if value is not None else _at(type_, number)

    def _pool(self, type_: DataType) -> list[Any]:
        """The values that a column of the type may have, the preferred one first."""
        if self.profile.named and self.own:
            named = [v for literal in self.own for v in (*self._parts(literal, type_), *_near(literal, type_)[:1])]
            named = [v for v in named if not (self.sized and _is_vast(v))]
            if named:
                return named
        own = [v for literal in self.own for v in (*_near(literal, type_), *self._parts(literal, type_))]
        rest = [v for literal in self.others for v in _near(literal, type_)[:1]][:6]
        usual = _usual(type_, self.profile)
        if self.profile.extremes and not self.sized:
            usual = [*usual, *_extreme(type_)]
        if self.sized:
            own, rest = ([v for v in values if not _is_vast(v)] for values in (own, rest))
        if self.profile.small:
            usual = [v for v in usual if not _is_low(v)] or usual
        return [*own, *usual, *rest] if own else [*usual, *rest]

    def _parts(self, literal: Any, type_: DataType) -> list[Any]:
        return with_part(literal, type_) if self.within else []


def _is_vast(value: Any) -> bool:
    return isinstance(value, int | float | Decimal) and not -_SMALL <= value <= _SMALL


def _is_low(value: Any) -> bool:
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool) and not value > 0


def _usual(type_: DataType, profile: Profile) -> list[Any]:
    kind = type_.kind
    if kind in INTEGERS:
        return [1, 2, 3, 0, -1, 5]
    match kind:
        case "boolean":
            return [True, False]
        case "float" | "double":
            return [1.0, 0.5, 2.0, 0.0, -0.0, -1.5]
        case "decimal":
            places = type_.params[1]
            unit = _unit(type_)
            whole = [Decimal(n) for n in (1, 2, 3, 0, -1)] if type_.params[0] > places else []
            return [v.quantize(unit, context=_DIGITS) for v in whole] + [unit, -unit, unit * 5]
        case "string" | "varchar":
            fitting = [s for s in profile.strings if kind == "string" or len(s) <= type_.params[0]]
            return fitting or [""]
        case "char":
            return [s.ljust(type_.params[0]) for s in profile.strings if len(s) <= type_.params[0]] or [" "]
        case "binary":
            return [b"a", b"", b"\x00\xff", b"ab"]
        case "date":
            return [DAY, DAY - datetime.timedelta(1), DAY + datetime.timedelta(40), datetime.date(1999, 12, 31)]
    return [_moment(type_, n) for n in (0, 1, 3600, 86_400, -86_400 * 200)]


def _unit(type_: DataType) -> Decimal:
    """The smallest step of a DECIMAL."""
    return Decimal(1).scaleb(-type_.params[1])


def _moment(type_: DataType, seconds: int) -> datetime.datetime:
    zone = datetime.UTC if type_.kind == "timestamp" else None
    return datetime.datetime(2024, 3, 1, 12, tzinfo=zone) + datetime.timedelta(seconds=seconds)


def _extreme(type_: DataType) -> list[Any]:
    kind = type_.kind
    if kind in INTEGERS:
        return [2 ** _BITS[kind] - 1, -(2 ** _BITS[kind])]
    match kind:
        case "float" | "double":
            return [math.nan, math.inf, -math.inf, 16777216.0]
        case "decimal":
            most = _DIGITS.multiply(Decimal(10 ** type_.params[0] - 1), _unit(type_))
            return [most, most.copy_negate()]
        case "date":
            return [datetime.date(1, 1, 1), datetime.date(9999, 12, 31), datetime.date(1582, 10, 4)]
    if kind in ("timestamp", "timestamp_ntz"):
        return [_moment(type_, -86_400 * 365 * 300), _moment(type_, 86_400 * 365 * 500)]
    return []


def _at(type_: DataType, number: int) -> Any:
    """The value of a type for a number: ascending, and different for each, as far as the type has so many values."""
    kind = type_.kind
    if kind in INTEGERS:
        return number if kind != "tinyint" else number % 120
    match kind:
        case "boolean":
            return number % 2 == 0
        case "float" | "double":
            return float(number)
        case "decimal":
            return _unit(type_) * (number % 10 ** min(type_.params[0], 6))
        case "string" | "varchar" | "char":
            text = f"{number:04d}"
            return text if kind == "string" else text[-type_.params[0] :].ljust(type_.params[0])
        case "binary":
            return f"{number:04d}".encode()
        case "date":
            return DAY + datetime.timedelta(number)
        case "timestamp" | "timestamp_ntz":
            return _moment(type_, number)
        case "array":
            return [_at(type_.children[0], number)]
        case "map":
            return [(_at(type_.children[0], number), _at(type_.children[1], number))]
    return {f.name: _at(f.type, number) for f in type_.fields}


def _near(literal: Any, type_: DataType) -> list[Any]:
    """A literal as a value of a type, and its neighbours; empty if it is no value of the type."""
    kind = type_.kind
    try:
        if kind in INTEGERS:
            number = int(Decimal(literal))
            return [n for n in (number, number + 1, number - 1) if -(2 ** _BITS[kind]) <= n < 2 ** _BITS[kind]]
        match kind:
            case "float" | "double":
                return [float(literal), float(literal) + 0.5, float(literal) - 0.5]
            case "decimal":
                unit, most = _unit(type_), 10 ** (type_.params[0] - type_.params[1])
                exact = Decimal(literal).quantize(unit, context=_DIGITS)
                around = (exact, _DIGITS.add(exact, unit), _DIGITS.subtract(exact, unit))
                return [n for n in around if n.copy_abs() < most]
            case "string" | "varchar" | "char":
                text = str(literal)
                several = [text, text + " ", text.swapcase(), text[:-1]]
                if kind == "string":
                    return several
                limit = type_.params[0]
                return [t.ljust(limit) if kind == "char" else t for t in several if len(t) <= limit]
            case "date":
                day = datetime.date.fromisoformat(str(literal)[:10])
                return [day, day + datetime.timedelta(1), day - datetime.timedelta(1), day + datetime.timedelta(35)]
            case "timestamp" | "timestamp_ntz":
                zone = datetime.UTC if kind == "timestamp" else None
                moment = datetime.datetime.fromisoformat(str(literal)).replace(tzinfo=zone)
                return [moment, moment + datetime.timedelta(seconds=1), moment - datetime.timedelta(days=1)]
            case "binary":
                return [str(literal).encode()]
    except (ValueError, ArithmeticError, OverflowError, TypeError):
        pass
    return []
