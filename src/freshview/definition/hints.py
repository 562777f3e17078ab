"""What a definition reveals about useful values: its literals, and values on which its calls give something.

`date_format(ts, 'yyyy') = '1995'` holds for moments of 1995, `get_json_object(j, '$.a.b')` finds a value in documents
that have this path: columns inside such calls get such values.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import sqlglot
from sqlglot import exp

from freshview.relation.schema import fold
from freshview.relation.types import DataType
from freshview.sql.binding import UNREADABLE

DAY = datetime.date(2024, 3, 1)
# Calls on which Spark 4.2 may end with its process if a number is extreme: out of memory in a task, or an address of an
# array that is not its own (element_at(a, -2147483648)).
_SIZED = re.compile(r"\b(?:try_)?(?:element_at|format_number|lpad|rpad|repeat|space|sequence)\b`?\s*\(", re.IGNORECASE)
_STEP = re.compile(r"\.(\w+)|\['([^']*)'\]|\[(\d+|\*)\]")  # of a JSON path
_FIELD = re.compile(
    r"`?(\w+)`?\s*:?\s+(?:(INT|BIGINT|LONG|SMALLINT|TINYINT)|(DOUBLE|FLOAT|DECIMAL)|(BOOLEAN)|(STRING)|(DATE|TIMESTAMP))",
    re.IGNORECASE,
)
_LEAVES: tuple[Any, ...] = (1, 0.5, True, "x", DAY.isoformat())  # a value for each group of types in _FIELD
_FORMAT = re.compile(r"%[YmdHMSjyB]")
_LETTERS = {"yyyy": "%Y", "MM": "%m", "dd": "%d", "HH": "%H", "mm": "%M", "ss": "%S"}  # of Spark's formats
_PATTERN = re.compile(f"(?:{'|'.join(_LETTERS)}|[ ./,:'T-])+")
_MOST_VALUES = 4  # of literals that a path's value is compared with
_LONGEST = 200  # characters of a text that is made because its length is compared


@dataclass(frozen=True)
class Hints:
    """What a definition reveals about useful values: its literals, and the columns that it orders by."""

    by_column: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)  # literals compared with a column
    others: tuple[Any, ...] = ()  # all literals
    ordered: frozenset[str] = frozenset()  # columns in an ORDER BY: without ties in them, the text determines its rows
    sized: bool = False  # does it call what takes a number for a size or a place?
    within: frozenset[str] = frozenset()  # columns inside a call that is compared: parts of values count, not values


def hints_of(text: str) -> Hints:
    """The hints in a definition's text; if it cannot be parsed here, only whether it calls what takes a size."""
    by_column: dict[str, list[Any]] = {}
    others: list[Any] = []
    within: set[str] = set()
    sized = _SIZED.search(text) is not None
    try:
        tree = sqlglot.parse_one(text, read="spark")
    except UNREADABLE:
        return Hints(sized=sized)
    for literal in tree.find_all(exp.Literal):
        value = _literal(literal)
        others.append(value)
        above = literal.parent
        while isinstance(above, exp.Cast | exp.Paren | exp.Neg | exp.Tuple | exp.Interval | exp.Add | exp.Sub):
            above = above.parent
        if isinstance(above, exp.Predicate | exp.Between | exp.In | exp.Like | exp.Case | exp.If | exp.Binary):
            for column in above.find_all(exp.Column):
                by_column.setdefault(fold(column.name), []).append(value)
                if column.parent is not above:
                    within.add(fold(column.name))
    for name, values in _made_texts(tree, by_column).items():
        by_column[name] = [*values, *by_column.get(name, ())]
    ordered = {fold(c.name) for o in tree.find_all(exp.Ordered) for c in o.find_all(exp.Column)}
    unique = {k: tuple(dict.fromkeys(v)) for k, v in by_column.items()}
    return Hints(unique, tuple(dict.fromkeys(others)), frozenset(ordered), sized, frozenset(within))


def _literal(node: exp.Literal) -> Any:
    """A literal as text or as a number; for a pattern, a text that it matches."""
    if node.is_string:
        like = isinstance(node.parent, exp.Like | exp.ILike)
        return node.this.replace("%", "x").replace("_", "y") if like else node.this
    try:
        return Decimal(node.this)
    except ArithmeticError:
        return node.this


# -- texts in which calls find something -----------------------------------------------------------


def _made_texts(tree: exp.Expr, by_column: Mapping[str, Iterable[Any]]) -> dict[str, list[str]]:
    """Documents with the paths and fields that calls look for, and dates in the formats that calls read, by column."""
    paths: dict[str, list[str]] = {}
    made: dict[str, list[str]] = {}
    for call in tree.find_all(exp.Func):
        names = [fold(c.name) for c in call.find_all(exp.Column)]
        for text in _arguments(call):
            if text.startswith("$"):
                for name in names:
                    paths.setdefault(name, []).append(text)
            elif not isinstance(call, exp.TimeToStr) and (document := _of_fields(text) or _of_format(text)):
                for name in names:
                    made.setdefault(name, []).append(document)
    for name, wanted in paths.items():
        compared = [v for v in by_column.get(name, ()) if isinstance(v, str) and not v.startswith("$")]
        values: list[Any] = [*compared[:_MOST_VALUES], 1, "x"]
        found = [_document(wanted, value) for value in values]
        made[name] = [*(json.dumps(d) for d in found if d is not None), *made.get(name, ())]
    return made


def _arguments(call: exp.Func) -> Iterable[str]:
    """The texts among a call's arguments; of json_tuple(j, 'a', …) the paths that they stand for."""
    parts = [p for p in call.iter_expressions() if isinstance(p, exp.Literal | exp.JSONPath)]
    texts = [p.sql(dialect="spark").strip("'") if isinstance(p, exp.JSONPath) else p.this for p in parts]
    if isinstance(call, exp.Anonymous) and call.name.upper() == "JSON_TUPLE":
        return [f"$.{text}" for text in texts]
    return texts


def _document(paths: Iterable[str], value: Any) -> Any:
    """A JSON document that has the value at all of these paths, as far as they do not contradict each other."""
    root: Any = None
    for path in paths:
        steps = [key or other or place for key, other, place in _STEP.findall(path)]
        is_place = [bool(place) for _, _, place in _STEP.findall(path)]
        root = _placed(root, list(zip(steps, is_place, strict=True)), value)
    return root


def _placed(node: Any, steps: list[tuple[str, bool]], value: Any) -> Any:
    if not steps:
        return value if node is None else node
    (step, is_place), rest = steps[0], steps[1:]
    if is_place:
        place = int(step) if step != "*" else 0
        if place > _LONGEST or not isinstance(node, list | None):
            return node
        items = [*(node or ()), *[None] * (place + 1 - len(node or ()))]
        items[place] = _placed(items[place], rest, value)
        return items
    if not isinstance(node, dict | None):
        return node
    return {**(node or {}), step: _placed((node or {}).get(step), rest, value)}


def _of_fields(text: str) -> str:
    """A JSON document with the fields of a schema that is written as `a INT, b STRING`; else empty."""
    found = {
        m[1]: next(v for v, kind in zip(_LEAVES, m.groups()[1:], strict=True) if kind) for m in _FIELD.finditer(text)
    }
    return json.dumps(found) if found else ""


def _of_format(text: str) -> str:
    """A moment in a format, of Spark or, as the parser has written it, of strftime; else empty."""
    text = text.replace("strict", "")
    if _PATTERN.fullmatch(text):
        for letters, directive in _LETTERS.items():
            text = text.replace(letters, directive)
    return datetime.datetime(2024, 3, 1, 12, 30).strftime(text) if _FORMAT.search(text) else ""


# -- values whose parts are compared ---------------------------------------------------------------


def with_part(literal: Any, type_: DataType) -> list[Any]:
    """Values of a type of which a call may give a literal: moments in the year 1995, in month 7, texts of length 7."""
    number = _whole(literal)
    kind = type_.kind
    if kind in ("string", "varchar"):
        limit = _LONGEST if kind == "string" else min(type_.params[0], _LONGEST)
        return (
            ["x" * n for n in (number, number + 1) if 0 < n <= limit] if isinstance(literal, Decimal) and number else []
        )
    if kind not in ("date", "timestamp", "timestamp_ntz"):
        return []
    found = [*_in_year(str(literal)), *(_with_number(number) if number is not None else ())]
    if kind == "date":
        return [moment.date() for moment in found]
    zone = datetime.UTC if kind == "timestamp" else None
    return [moment.replace(tzinfo=zone) for moment in found]


def _whole(literal: Any) -> int | None:
    try:
        number = Decimal(str(literal))
        return int(number) if number == number.to_integral_value() and abs(number) < 10**9 else None
    except ArithmeticError:
        return None


def _in_year(text: str) -> list[datetime.datetime]:
    """Moments in a year, or in a month of it, and in the next year."""
    parts = re.fullmatch(r"([12]\d{3})(?:[-/.]?(0[1-9]|1[0-2]))?", text)
    if parts is None:
        return []
    year, month = int(parts[1]), int(parts[2] or 6)
    return [datetime.datetime(year, month, 15, 12), datetime.datetime(year + 1, month, 15, 12)]


def _with_number(number: int) -> list[datetime.datetime]:
    """A moment of which month, day, hour and minute are a number, as far as they can be; and others beside it."""
    if not 0 <= number <= 59:
        return []
    month, day = (number if 1 <= number <= 12 else 3), (number if 1 <= number <= 28 else 15)
    first = datetime.datetime(2024, month, day, number if number < 24 else 12, number, number)
    quarter = [datetime.datetime(2024, 3 * number, 15, 12)] if 1 <= number <= 4 else []
    weekday = [datetime.datetime(2024, 6, 1 + number, 12)] if 1 <= number <= 7 else []
    return [first, *quarter, *weekday]
