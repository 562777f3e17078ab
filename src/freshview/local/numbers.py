"""Rules for arithmetic and casts. Decimals are divided exactly, as integers of 128 bits, and rounded as Spark does."""

from __future__ import annotations

from dataclasses import replace

from sqlglot import exp

from freshview.errors import TypeMismatch
from freshview.local.dates import moved
from freshview.local.scalars import date_of, number
from freshview.local.texts import count_of
from freshview.local.typed import (
    BIGINT,
    DATE,
    DIGITS,
    DOUBLE,
    STRING,
    WIDEST,
    Expressions,
    Typed,
    Unproven,
    as_decimal,
    bounded,
    cast,
    common,
    decimal,
    duck_type,
    guarded,
)
from freshview.relation.types import NEGATED, DataType, from_sqlglot

EXACT_DOUBLE = 2**53  # integers up to here are doubles

_ARITHMETIC: dict[type[exp.Expr], str] = {exp.Add: "+", exp.Sub: "-", exp.Mul: "*"}


def arithmetic(over: Expressions, node: exp.Expr) -> Typed:
    operator = _ARITHMETIC[type(node)]
    if isinstance(node.expression, exp.Interval) and operator != "*":
        return moved(over, node, node.this, operator, node.expression)
    if isinstance(node.this, exp.Interval) and operator == "+":
        return moved(over, node, node.expression, operator, node.this)
    a, b = over.values([node.this, node.expression])
    if a.type is None or b.type is None:
        raise Unproven(node, "NULL as an operand")
    if a.type.kind in DIGITS and b.type.kind in DIGITS:
        type_ = common([a, b], node)
        return Typed(f"({cast(a, type_)} {operator} {cast(b, type_)})", type_)
    if a.type == DATE and b.type.kind in ("tinyint", "smallint", "int") and operator != "*":
        return guarded(f"isfinite({a.sql})", f"({a.sql} {operator} {b.sql})", DATE, node, a.sql, b.sql)
    if all(t.kind in DIGITS or t.kind == "decimal" for t in (a.type, b.type)):
        return _of_decimals(a, operator, b)
    raise Unproven(node, f"{a.type} {operator} {b.type}")


def _of_decimals(a: Typed, operator: str, b: Typed) -> Typed:
    """Where the type has fewer places than the exact result, the exact result is rounded once, as Spark does."""
    left, right = _operand(a), _operand(b)
    (p1, s1), (p2, s2) = left.params, right.params
    if operator == "*":
        type_ = bounded(p1 + p2 + 1, s1 + s2)
        if type_.params[1] < s1 + s2:
            product = f"fv_exact({_unscaled(a.sql, s1, s1)} * {_unscaled(b.sql, s2, s2)})"
            return _fewer_places(product, s1 + s2, type_)
        product = f"CAST({a.sql} AS {duck_type(left)}) * CAST({b.sql} AS {duck_type(right)})"
        return Typed(f"CAST({product} AS {duck_type(type_)})", type_)
    scale = max(s1, s2)
    type_ = bounded(max(p1 - s1, p2 - s2) + scale + 1, scale)
    if type_.params[1] < scale:
        total = f"{_unscaled(a.sql, s1, scale)} {operator} {_unscaled(b.sql, s2, scale)}"
        return _fewer_places(f"fv_exact({total})", scale, type_)
    name = duck_type(type_)
    return Typed(f"CAST(CAST({a.sql} AS {name}) {operator} CAST({b.sql} AS {name}) AS {name})", type_)


def _operand(value: Typed) -> DataType:
    """The decimal type of an operand: of an integer literal it has as many digits as the literal."""
    assert value.type is not None
    return DataType("decimal", (value.digits, 0)) if value.digits else as_decimal(value.type)


def negated(over: Expressions, node: exp.Expr) -> Typed:
    if isinstance(node.this, exp.Literal) and not node.this.is_string:
        return number(node, f"-{node.this.name}")
    return _signed(over, node, "-")


def absolute(over: Expressions, node: exp.Expr) -> Typed:
    return _signed(over, node, "abs")


def _signed(over: Expressions, node: exp.Expr, change: str) -> Typed:
    """A number with another sign, in its own type."""
    (value,) = over.values([node.this])
    if value.type is None or (value.type.kind not in DIGITS and value.type.kind != "decimal"):
        raise Unproven(node)
    if value.type.kind == "decimal" and value.type.params[0] > NEGATED:
        raise Unproven(node, f"Spark keeps {NEGATED} digits of it")
    return Typed(f"CAST({change}({value.sql}) AS {duck_type(value.type)})", value.type)


def round_(over: Expressions, node: exp.Expr) -> Typed:
    """ROUND of a decimal, HALF_UP, to a constant number of places."""
    (value,) = over.values([node.this])
    given = node.args.get("decimals")
    places = count_of(given, node) if given is not None else 0
    if value.type is None or value.type.kind != "decimal":
        raise Unproven(node)
    precision, scale = value.type.params
    kept = min(scale, places)
    type_ = DataType("decimal", (min(precision - scale + 1 + kept, WIDEST), kept))
    if kept == scale:
        return Typed(f"CAST({value.sql} AS {duck_type(type_)})", type_)
    return _fewer_places(_unscaled(value.sql, scale, scale), scale, type_)


def next_whole(over: Expressions, node: exp.Expr) -> Typed:
    """CEIL and FLOOR of a decimal."""
    (value,) = over.values([node.this])
    if value.type is None or value.type.kind != "decimal":
        raise Unproven(node)
    precision, scale = value.type.params
    type_ = bounded(precision - scale + 1, 0) if scale else value.type
    word = "ceil" if isinstance(node, exp.Ceil) else "floor"
    return Typed(f"CAST({word}({value.sql}) AS {duck_type(type_)})", type_)


def whole_quotient(over: Expressions, node: exp.Expr) -> Typed:
    """DIV of integers: without what is left, as a BIGINT."""
    a, b = over.values([node.this, node.expression])
    if a.type is None or b.type is None or not {a.type.kind, b.type.kind} <= DIGITS.keys():
        raise Unproven(node)
    one, two = cast(a, BIGINT), cast(b, BIGINT)
    return guarded(f"{two} <> 0", f"({one} // {two})", BIGINT, node, one, two)


def divided(over: Expressions, node: exp.Expr) -> Typed:
    """A quotient: of doubles for integers, else of decimals."""
    a, b = over.typed(node.this), over.typed(node.expression)
    kinds = {t.kind for t in (a.type, b.type) if t is not None}
    if kinds <= DIGITS.keys() or (kinds == {"double"} and _are_exact(over, node.this, node.expression)):
        one, two = cast(a, DOUBLE), cast(b, DOUBLE)
        return guarded(f"{two} <> 0", f"({one} / {two})", DOUBLE, node, one, two)
    if kinds <= {*DIGITS, "decimal"} and a.type is not None and b.type is not None:
        return _quotient(a, b)
    raise Unproven(node, "a quotient")


def _are_exact(over: Expressions, *nodes: exp.Expr) -> bool:
    """Are these doubles made of exact numbers? One division of such is the same in both engines."""
    casts = [n.unnest() for n in nodes]
    return all(isinstance(c, exp.Cast) and over.typed(c.this).type != DOUBLE for c in casts)


def remainder(over: Expressions, node: exp.Expr) -> Typed:
    """What division leaves, with the sign of the dividend."""
    a, b = over.values([node.this, node.expression])
    if a.type is None or b.type is None or not {a.type.kind, b.type.kind} <= {*DIGITS, "decimal"}:
        raise Unproven(node)
    if a.type.kind in DIGITS and b.type.kind in DIGITS:
        type_ = common([a, b], node)
        one, two = cast(a, type_), cast(b, type_)
        return guarded(f"{two} <> 0", f"({one} % {two})", type_, node, one, two)
    (p1, s1), (p2, s2) = _operand(a).params, _operand(b).params
    scale = max(s1, s2)
    rest = f"fv_rest({_unscaled(a.sql, s1, scale)}, {_unscaled(b.sql, s2, scale)})"
    return _scaled(rest, decimal(min(p1 - s1, p2 - s2) + scale, scale, node))


# -- exact division --------------------------------------------------------------------------------
#
# Spark divides decimals to 38 places and then rounds to the places of the result, s, both HALF_UP. That is rounding
# once, unless the quotient q lies within 10^-38 / 2 of a midpoint m of two results without being one. But |q - m| is
# at least 1 / (2 · 10^s · d), where d is the divisor as an integer: so d < 10^(38 - s) is asked for.

MACROS = """
    CREATE MACRO fv_half_up(n, d, bound) AS
        CASE WHEN n IS NULL OR d IS NULL THEN NULL WHEN d <> 0 AND abs(d) < bound THEN
            (CASE WHEN (n < 0) = (d < 0) THEN 1 ELSE -1 END) * ((2 * abs(n) + abs(d)) // (2 * abs(d)))
        ELSE CAST(error('Div: a value that is not proven') AS HUGEINT) END;
    CREATE MACRO fv_rest(n, d) AS
        CASE WHEN n IS NULL OR d IS NULL THEN NULL
        WHEN d <> 0 AND abs(n) < 100000000000000000000000000000000000000 THEN n % d
        ELSE CAST(error('Mod: a value that is not proven') AS HUGEINT) END;
    CREATE MACRO fv_exact(n) AS
        CASE WHEN n IS NULL OR abs(n) < 100000000000000000000000000000000000000 THEN n
        ELSE CAST(error('Mul: a value that is not proven') AS HUGEINT) END;
"""


def _quotient(a: Typed, b: Typed) -> Typed:
    (p1, s1), (p2, s2) = _operand(a).params, _operand(b).params
    scale = max(6, s1 + p2 + 1)
    type_ = bounded(p1 - s1 + s2 + scale, scale)
    return rounded(a.sql, s1, b.sql, s2, type_)


def rounded(dividend: str, s1: int, divisor: str, s2: int, type_: DataType) -> Typed:
    """A quotient of decimals of so many places as Spark rounds it to a type."""
    places = type_.params[1]
    shift = places - s1 + s2
    above, below = _unscaled(dividend, s1, s1 + max(shift, 0)), _unscaled(divisor, s2, s2 + max(-shift, 0))
    return _scaled(f"fv_half_up({above}, {below}, {_power(38 - places)})", type_)


def _fewer_places(text: str, scale: int, type_: DataType) -> Typed:
    """An integer of 128 bits, the digits of a decimal of this scale, rounded to the places of a type."""
    unit = _power(scale - type_.params[1])
    return _scaled(f"fv_half_up({text}, {unit}, {_power(38)})", type_)


def _unscaled(text: str, scale: int, places: int) -> str:
    """A decimal of this scale as the integer of its digits, with so many places."""
    whole = f"CAST({text} AS DECIMAL(38, {scale})) * CAST('{10**scale}' AS DECIMAL({scale + 1}, 0))" if scale else text
    integer = f"CAST({whole} AS HUGEINT)"
    return f"({integer} * {_power(places - scale)})" if places > scale else integer


def _scaled(text: str, type_: DataType) -> Typed:
    """An integer of 128 bits as the digits of a decimal."""
    scale, name = type_.params[1], duck_type(type_)
    if not scale:
        return Typed(f"CAST({text} AS {name})", type_)
    unit = f"CAST('0.{'1'.rjust(scale, '0')}' AS DECIMAL({scale + 1 if scale < 38 else 38}, {scale}))"
    return Typed(f"CAST(CAST({text} AS DECIMAL(38, 0)) * {unit} AS {name})", type_)


def _power(digits: int) -> str:
    return f"CAST('{10**digits}' AS HUGEINT)"


# -- casts -----------------------------------------------------------------------------------------


def cast_(over: Expressions, node: exp.Expr) -> Typed:
    try:
        target = from_sqlglot(node.args["to"])
    except TypeMismatch as error:
        raise Unproven(node, str(error)) from error
    if target == DATE and isinstance(node.this, exp.Literal):
        return date_of(node.this)
    value = over.typed(node.this)
    if value.type is None:
        return Typed(f"CAST(NULL AS {duck_type(target)})", target)
    if value.type == target:
        return replace(value, digits=0)
    given, name = value.type, duck_type(target)
    match given.kind, target.kind:
        case ("tinyint" | "smallint" | "int" | "bigint", "tinyint" | "smallint" | "int" | "bigint" | "decimal"):
            return Typed(f"CAST({value.sql} AS {name})", target)
        case ("tinyint" | "smallint" | "int" | "bigint" | "boolean", "string"):
            return Typed(f"CAST({value.sql} AS {name})", target)
        case ("tinyint" | "smallint" | "int" | "bigint", "double" | "boolean"):
            return Typed(f"CAST({value.sql} AS {name})", target)
        case ("boolean", "tinyint" | "smallint" | "int" | "bigint"):
            return Typed(f"CAST({value.sql} AS {name})", target)
        case ("decimal", "decimal"):
            return Typed(f"CAST({value.sql} AS {name})", target)
        case ("decimal", "string") if given.params[0] > given.params[1]:  # else the zero before the point is missing
            return Typed(f"CAST({value.sql} AS {name})", target)
        case ("decimal", "tinyint" | "smallint" | "int" | "bigint"):
            return Typed(f"CAST(trunc({value.sql}) AS {name})", target)
        case ("decimal", "double"):
            unscaled = f"abs({value.sql}) < CAST('{EXACT_DOUBLE // 10 ** given.params[1]}' AS DECIMAL(38, 0))"
            return guarded(unscaled, f"CAST({value.sql} AS DOUBLE)", DOUBLE, node, value.sql)
        case ("string", "tinyint" | "smallint" | "int" | "bigint" | "date") if given == STRING:
            plain = f"regexp_full_match({value.sql}, '{_DATE_TEXT if target == DATE else _INTEGER_TEXT}')"
            return guarded(plain, f"CAST({value.sql} AS {name})", target, node, value.sql)
        case ("date", "string"):
            usual = f"{value.sql} BETWEEN DATE '0001-01-01' AND DATE '9999-12-31'"
            return guarded(usual, f"CAST({value.sql} AS VARCHAR)", STRING, node, value.sql)
    raise Unproven(node, f"{given} as {target}")


# Texts of which there is one reading; Spark takes many more.
_INTEGER_TEXT = r"-?[0-9]{1,18}"
_DATE_TEXT = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
