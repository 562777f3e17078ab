"""Literals that mean the same with and without Spark.

Everything else is left to Spark: better slow than different. The meaning of a text may depend on the session: `"v"` is
a string or a column, `'\\t'` a tab or two characters, `'it''s'` one string or two, `${x}` a variable. None of these is
a literal here.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import sqlglot
from sqlglot import exp

from freshview.errors import FreshviewError
from freshview.relation.ingest import sized
from freshview.relation.schema import Column
from freshview.relation.types import INTEGERS
from freshview.sql.tokens import word_set

_BITS = {"tinyint": 7, "smallint": 15, "int": 31, "bigint": 63}
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_WHOLE = re.compile(r"-?\d+", re.ASCII)
_FRACTION = re.compile(r"-?\d*\.\d+", re.ASCII)
# The pieces of a text without backslashes: quoted ones, and those between them.
_PIECES = re.compile(r"""'[^']*'|`[^`]*`|"[^"]*"|[^'"`]+|['"`]""")
_COMMENT = re.compile(r"--|/\*")
_PREFIXED = re.compile(r"\b\w$|&$")  # r'…', x'…', U&'…'
_CALLED_DATE = re.compile(r"\bDATE\s*\(", re.IGNORECASE)  # a call, which a session may redefine
_STRING_OR_NAME = "`__fv_string_or_name`"  # not the name of any column


class NotLiteral(Exception):
    """The expression needs Spark."""


def value(node: exp.Expr, column: Column) -> Any:
    """The Python value of a literal in a column; raises NotLiteral if only Spark knows it."""
    type_ = column.type
    negative = isinstance(node, exp.Neg)
    if negative:
        node = node.this
    match node:
        case exp.Null() if not negative:
            return None
        case exp.Boolean() if type_.kind == "boolean" and not negative:
            return bool(node.this)
        case exp.Literal(is_string=True) if type_.is_text and not negative:
            if type_.kind == "string":
                return node.this
            try:
                return sized(pa.chunked_array([[node.this]], pa.string()), column, "")[0].as_py()
            except FreshviewError:
                raise NotLiteral from None
        case exp.Literal(is_string=False):
            return _number(("-" if negative else "") + node.this, type_.kind, type_.params)
        case exp.Cast() if type_.kind == "date" and not negative and node.is_type(exp.DType.DATE):
            inner = node.this
            if isinstance(inner, exp.Literal) and inner.is_string and _DATE.fullmatch(inner.this):
                try:
                    return datetime.date.fromisoformat(inner.this)
                except ValueError:
                    pass
    raise NotLiteral


def _number(text: str, kind: str, params: tuple[int, ...]) -> Any:
    if _WHOLE.fullmatch(text):
        number = int(text)
        if kind in INTEGERS and -(2 ** _BITS[kind]) <= number < 2 ** _BITS[kind]:
            return number
        if kind == "double" and abs(number) <= 2**53:
            return float(number)
        if kind == "decimal" and abs(number) < 10 ** (params[0] - params[1]):
            return Decimal(number)
    elif _FRACTION.fullmatch(text):
        decimal = Decimal(text)
        exponent = -int(decimal.as_tuple().exponent)
        if exponent > 38 or abs(decimal) >= Decimal(10) ** (38 - exponent):
            raise NotLiteral  # more digits than Spark's decimals have
        if kind == "double":
            return float(decimal) + 0.0  # a decimal zero has no sign
        if kind == "decimal" and exponent <= params[1] and abs(decimal) < 10 ** (params[0] - params[1]):
            return decimal
    raise NotLiteral


def parse_expression(text: str) -> exp.Expr:
    """The tree of an expression whose literals mean the same to sqlglot and to Spark, under all settings."""
    try:
        return sqlglot.parse_one(_certain(text), read="spark")
    except (sqlglot.errors.SqlglotError, RecursionError):
        raise NotLiteral from None


def _certain(text: str) -> str:
    """The text, with a name for each "…" (a string or a name); raises NotLiteral if more of it is uncertain."""
    if "\\" in text or "${" in text:
        raise NotLiteral
    pieces = _PIECES.findall(text)
    for i, piece in enumerate(pieces):
        if len(piece) == 1 and piece in "'\"`":
            raise NotLiteral  # not closed
        if piece[0] in "'\"`":
            if i and (pieces[i - 1][0] in "'\"`" or _PREFIXED.search(pieces[i - 1])):
                raise NotLiteral  # a doubled quote, or a prefix
            if i > 1 and pieces[i - 1].isspace() and {piece[0], pieces[i - 2][0]} <= {"'", '"'}:
                raise NotLiteral  # strings side by side are one string
        elif _COMMENT.search(piece) or _CALLED_DATE.search(piece):
            raise NotLiteral
    return "".join(_STRING_OR_NAME if piece[0] == '"' else piece for piece in pieces)


def literal_rows(query: str, columns: Sequence[Column]) -> pa.Table:
    """The typed rows of VALUES (…), (…) with literals only; raises NotLiteral for other queries."""
    tree = parse_expression(query)
    if not isinstance(tree, exp.Values) or {name for name, arg in tree.args.items() if arg} != {"expressions"}:
        raise NotLiteral
    cells: list[list[Any]] = [[] for _ in columns]
    for row in tree.expressions:
        parts = row.expressions if isinstance(row, exp.Tuple) else [row]
        if len(parts) != len(columns):
            raise NotLiteral
        for i, (part, column) in enumerate(zip(parts, columns, strict=True)):
            cells[i].append(value(part, column))
    arrays = [pa.array(v, c.type.arrow) for v, c in zip(cells, columns, strict=True)]
    return pa.table(arrays, names=[c.name for c in columns])


# A day or a moment in words, with or without a zone, perhaps without a space; more than Spark accepts, never less.
_MOMENT = re.compile(r"(?is)\s*((now|today|tomorrow|yesterday)\b.*|(today|tomorrow|yesterday)\S*\s*)")
_WORDS = tuple(map(frozenset, ("now", "today", "tomorrow", "yesterday")))
_TEXTS = (exp.Literal, exp.RawString)
_SPELLED = (exp.Chr, exp.Unhex, exp.FromBase64, exp.ToBase64, exp.HexString, exp.Format)  # letters made from codes
_SPELLED_NAMES = word_set("URL_DECODE TRY_URL_DECODE PRINTF CONV AES_DECRYPT TRY_AES_DECRYPT")
_HOLDERS = (exp.Array, exp.VarMap, exp.Map, exp.Struct, exp.Tuple)  # of several constants, each judged by itself


def may_be_moment(text: str) -> bool:
    """May Spark convert this string to a date or time that depends on the clock, if compared with one?"""
    return _MOMENT.fullmatch(text) is not None


# What Spark's stringToTimestamp reads as a time without a date; more than Spark accepts, never less.
_TIME_OF_DAY = re.compile(r"[\s\x00-\x20\x7f]*(\d{1,2}\s*:|T\d).*", re.ASCII | re.DOTALL)


def may_be_time_of_day(text: str) -> bool:
    """May Spark convert this string to a timestamp of today, because it has a time but no date?"""
    return _TIME_OF_DAY.fullmatch(text) is not None


def is_moment(node: exp.Expr) -> bool:
    """Is an expression a string for which `may_be_moment` is true?"""
    return isinstance(node, _TEXTS) and may_be_moment(node.name)


def may_become_moment(node: exp.Expr) -> bool:
    """May the value of an expression be a moment in words? Spark converts any constant string, computed ones too.

    A computed string is judged by the letters in its texts: more are found than there are, never fewer.
    """
    if isinstance(node, _TEXTS):
        return is_moment(node)
    if isinstance(node, (*_HOLDERS, exp.HexString)) or node.find(exp.Column, exp.Star, exp.Query) is not None:
        return False
    letters = {letter for text in node.find_all(*_TEXTS) for letter in text.name.lower()}
    spelled = any(isinstance(n, _SPELLED) or _is_spelled(n) for n in node.walk())
    return spelled or any(word <= letters for word in _WORDS)


def _is_spelled(node: exp.Expr) -> bool:
    return isinstance(node, exp.Anonymous) and node.name.upper() in _SPELLED_NAMES
