"""Rules for dates. The embedded engine has fewer of them than Spark: outside its range an expression raises."""

from __future__ import annotations

import re

from sqlglot import exp

from freshview.local.typed import DATE, INT, Expressions, Typed, Unproven, guarded

_WHOLE = ("tinyint", "smallint", "int")
_DAYS = {"DAY": 1, "WEEK": 7}
_MONTHS = {"MONTH": 1, "YEAR": 12}
_NUMBER = re.compile(r"-?\d{1,6}")

# Parts of a date as Spark names and numbers them.
_PARTS = {
    "year": "year({0})",
    "quarter": "quarter({0})",
    "month": "month({0})",
    "week": "week({0})",
    "day": "day({0})",
    "dayofweek": "dayofweek({0}) + 1",
    "dow": "dayofweek({0}) + 1",
    "dayofyear": "dayofyear({0})",
    "doy": "dayofyear({0})",
}
_CALLS: dict[type[exp.Expr], str] = {
    exp.Year: "year",
    exp.Quarter: "quarter",
    exp.Month: "month",
    exp.WeekOfYear: "week",
    exp.Day: "day",
    exp.DayOfMonth: "day",
    exp.DayOfWeek: "dayofweek",
    exp.DayOfYear: "dayofyear",
}
_UNITS = {"YEAR": "year", "YYYY": "year", "YY": "year", "QUARTER": "quarter", "WEEK": "week"} | dict.fromkeys(
    ("MONTH", "MM", "MON"), "month"
)


def date_in(over: Expressions, node: exp.Expr) -> str:
    """The text of an operand of type DATE; sqlglot wraps some operands in a conversion."""
    plain = isinstance(node, exp.TsOrDsToDate) and not any(v for k, v in node.args.items() if k != "this")
    (value,) = over.values([node.this if plain else node])
    if value.type != DATE:
        raise Unproven(node, "not a date")
    return value.sql


def moved(over: Expressions, node: exp.Expr, date: exp.Expr, sign: str, interval: exp.Expr) -> Typed:
    """A date and an interval of days or months. A month that is too short gives its last day, in both engines."""
    number, unit = interval.this, interval.args.get("unit")
    name = unit.name.upper().removesuffix("S") if isinstance(unit, exp.Var) else ""
    if not isinstance(number, exp.Literal) or not _NUMBER.fullmatch(number.name) or name not in _DAYS | _MONTHS:
        raise Unproven(node, "an interval that is not a number of days or months")
    count = (-1 if sign == "-" else 1) * int(number.name)
    value = date_in(over, date)
    if name in _DAYS:
        return _finite(f"({value} + CAST({count * _DAYS[name]} AS INTEGER))", node, value)
    return _finite(f"CAST({value} + to_months({count * _MONTHS[name]}) AS DATE)", node, value)


def _finite(sql: str, node: exp.Expr, date: str, *others: str) -> Typed:
    return guarded(f"isfinite({date})", sql, DATE, node, date, *others)


def add_months(over: Expressions, node: exp.Expr) -> Typed:
    date, months = date_in(over, node.this), _number(over, node.expression)
    return _finite(f"CAST({date} + to_months(CAST({months} AS INTEGER)) AS DATE)", node, date, months)


def add_days(over: Expressions, node: exp.Expr) -> Typed:
    """DATE_ADD and DATE_SUB."""
    if node.args["unit"].name.upper() != "DAY":
        raise Unproven(node)
    date, days = date_in(over, node.this), _number(over, node.expression)
    return _finite(f"({date} + {days})", node, date, days)


def _number(over: Expressions, node: exp.Expr) -> str:
    (value,) = over.values([node])
    if value.type is None or value.type.kind not in _WHOLE:
        raise Unproven(node, "not a whole number")
    return value.sql


def difference(over: Expressions, node: exp.Expr) -> Typed:
    """Days from the second date to the first."""
    one, two = date_in(over, node.this), date_in(over, node.expression)
    days = f"CAST({one} - {two} AS INTEGER)"
    return guarded(f"isfinite({one}) AND isfinite({two})", days, INT, node, one, two)


def last_day(over: Expressions, node: exp.Expr) -> Typed:
    date = date_in(over, node.this)
    return _finite(f"last_day({date})", node, date)


def truncated(over: Expressions, node: exp.Expr) -> Typed:
    unit = node.args["unit"]
    name = _UNITS.get(unit.name.upper())
    if not isinstance(unit, exp.Literal) or name is None:
        raise Unproven(node)
    date = date_in(over, node.this)
    return _finite(f"CAST(date_trunc('{name}', {date}) AS DATE)", node, date)


def date_part(over: Expressions, node: exp.Expr) -> Typed:
    if isinstance(node, exp.Extract):
        part, operand = node.this.name.lower(), node.expression
    else:
        part, operand = _CALLS[type(node)], node.this
    if part not in _PARTS:
        raise Unproven(node)
    date = date_in(over, operand)
    return guarded(f"isfinite({date})", f"CAST({_PARTS[part].format(date)} AS INTEGER)", INT, node, date)
