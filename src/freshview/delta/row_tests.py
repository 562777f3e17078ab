"""Conditions on rows that can be tested on the driver: comparisons with literals, and of columns, that no row fails on.

Law: a row for which Spark finds a condition true passes its test. A condition, or a part of it, that is not known to
mean the same here is not tested: more rows pass.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from datetime import date
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from freshview.algebra.nodes import column, names_in
from freshview.relation.types import INTEGERS, DataType

_COMPARED: Mapping[type[exp.Expr], str] = {
    exp.EQ: "equal",
    exp.NEQ: "not_equal",
    exp.LT: "less",
    exp.LTE: "less_equal",
    exp.GT: "greater",
    exp.GTE: "greater_equal",
}
_KNOWN = (
    *_COMPARED,
    *(exp.And, exp.Or, exp.Not, exp.Paren, exp.Between, exp.In, exp.Like, exp.Column, exp.Identifier, exp.Literal),
    *(exp.Cast, exp.TryCast, exp.DataType),
)
# How sqlglot reads Spark's CAST and TRY_CAST: of a day of the calendar both are the day.
_CASTS = (exp.Cast, exp.TryCast)
_TEXTS = ("string", "varchar")  # Spark pads CHAR before it compares
_LISTED = ("this", "expressions")  # of IN, without a query
_DIGITS = 18  # of a number that fits 64 bits
_DAY = re.compile("[0-9]{4}-[0-9]{2}-[0-9]{2}")
_LIKE = re.compile("(%?)([^%_\\\\]*)(%?)")  # texts that begin with, end with or hold another one, or are it

TypeOf = Callable[[str], DataType]


class _Untested(Exception):
    """A condition that is not known to mean the same here."""


def can_be_tested(condition: exp.Expr) -> bool:
    """May rows be tested for a condition? Types decide later whether they are."""
    return all(isinstance(node, _KNOWN) for node in condition.walk())


def implied(condition: exp.Expr, names: Collection[str]) -> exp.Expr | None:
    """What follows from a condition for these columns alone, as far as it can be tested; None: nothing does."""
    condition = condition.unnest()
    if isinstance(condition, exp.And | exp.Or):
        sides = [implied(side, names) for side in (condition.this, condition.expression)]
        known = [side for side in sides if side is not None]
        if isinstance(condition, exp.Or):
            return exp.or_(*known) if len(known) == len(sides) else None
        return exp.and_(*known) if known else None
    found = names_in(condition)
    return condition if found and found <= set(names) and can_be_tested(condition) else None


def renamed(condition: exp.Expr, names: Mapping[str, str]) -> exp.Expr:
    """A condition in other names of its columns."""
    return condition.transform(lambda e: column(names[e.name]) if isinstance(e, exp.Column) else e)


def passing(rows: pa.Table, condition: exp.Expr, type_of: TypeOf) -> pa.Table:
    """The rows that pass the test for a condition; all rows if there is none. `type_of` gives the types of columns."""
    try:
        return rows.filter(pc.fill_null(_truth(condition, rows, type_of), False))
    except (_Untested, pa.ArrowException):
        return rows


def _truth(condition: exp.Expr, rows: pa.Table, type_of: TypeOf) -> Any:
    """Whether a condition is true, false or NULL for each row."""

    def truth(one: exp.Expr) -> Any:
        return _truth(one, rows, type_of)

    match condition:
        case exp.Paren():
            return truth(condition.this)
        case exp.And():
            return pc.and_kleene(truth(condition.this), truth(condition.expression))
        case exp.Or():
            return pc.or_kleene(truth(condition.this), truth(condition.expression))
        case exp.Not():
            return pc.invert(truth(condition.this))
        case exp.Between():
            least, most = condition.args["low"], condition.args["high"]
            if condition.args.get("symmetric"):
                raise _Untested
            ends = exp.GTE(this=condition.this, expression=least), exp.LTE(this=condition.this, expression=most)
            return pc.and_kleene(*map(truth, ends))
        case exp.In():
            if not condition.expressions or any(v for k, v in condition.args.items() if k not in _LISTED):
                raise _Untested
            found = [truth(exp.EQ(this=condition.this, expression=e)) for e in condition.expressions]
            whole = found[0]
            for one in found[1:]:
                whole = pc.or_kleene(whole, one)
            return whole
        case exp.Like():
            return _like(condition, rows, type_of)
    if type(condition) not in _COMPARED:
        raise _Untested
    (a, kind), (b, other) = (_value(side, rows, type_of) for side in (condition.this, condition.expression))
    if kind != other:
        raise _Untested
    return pc.call_function(_COMPARED[type(condition)], [a, b])


def _value(expression: exp.Expr, rows: pa.Table, type_of: TypeOf) -> tuple[Any, str]:
    """The values of a column or literal, and the kind of values that they are compared with."""
    match expression:
        case exp.Column():
            type_ = type_of(expression.name)
            if type_.kind in INTEGERS:
                return rows.column(expression.name).cast(pa.int64()), "integer"
            if type_.kind in _TEXTS or type_.kind == "date":
                return rows.column(expression.name), "text" if type_.kind in _TEXTS else "date"
        case exp.Literal() if expression.is_string and "\\" not in expression.this:
            return pa.scalar(expression.this, pa.string()), "text"
        case exp.Literal() if expression.this.isdecimal() and len(expression.this) <= _DIGITS:
            return pa.scalar(int(expression.this), pa.int64()), "integer"
        case exp.Cast() if expression.to.this == exp.DType.DATE and isinstance(expression.this, exp.Literal):
            if type(expression) in _CASTS and expression.this.is_string and _DAY.fullmatch(expression.this.this):
                try:
                    return pa.scalar(date.fromisoformat(expression.this.this), pa.date32()), "date"
                except ValueError:  # no day of the calendar
                    raise _Untested from None
    raise _Untested


def _like(condition: exp.Like, rows: pa.Table, type_of: TypeOf) -> Any:
    values, kind = _value(condition.this, rows, type_of)
    pattern = condition.expression
    if kind != "text" or not isinstance(pattern, exp.Literal) or not isinstance(condition.this, exp.Column):
        raise _Untested
    parts = _LIKE.fullmatch(pattern.this) if pattern.is_string else None
    if parts is None:
        raise _Untested
    before, text, after = parts.groups()
    if before:
        return (pc.match_substring if after else pc.ends_with)(values, pattern=text)
    return pc.starts_with(values, pattern=text) if after else pc.equal(values, pa.scalar(text, pa.string()))
