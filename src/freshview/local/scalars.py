"""Rules for names, constants, conditions and choices."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date

from sqlglot import exp

from freshview.local.typed import (
    BIGINT,
    BOOLEAN,
    DATE,
    INT,
    STRING,
    WIDEST,
    Expressions,
    Typed,
    Unproven,
    cast,
    common,
    duck_type,
    quoted,
)
from freshview.relation.types import DataType

_ISO_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")

# -- names and constants ---------------------------------------------------------------------------


def column(over: Expressions, node: exp.Expr) -> Typed:
    return over.columns[node.name]


def literal(_: Expressions, node: exp.Expr) -> Typed:
    if node.is_string:
        return Typed(quoted(node.name), STRING)
    return number(node, node.name)


def number(node: exp.Expr, text: str) -> Typed:
    """An integer is an INT or BIGINT, a number with a point a decimal of its digits."""
    sign, digits = ("-", text[1:]) if text.startswith("-") else ("", text)
    if digits.isdigit():
        value = int(sign + digits)
        for type_, bits in ((INT, 31), (BIGINT, 63)):
            if -(2**bits) <= value < 2**bits:
                return Typed(f"CAST({value} AS {duck_type(type_)})", type_, len(str(abs(value))))
        raise Unproven(node, "an integer beyond BIGINT")
    whole, point, fraction = digits.partition(".")
    if not point or not (whole + fraction).isdigit():
        raise Unproven(node, "not a plain number")
    scale = len(fraction)
    precision = max(len((whole + fraction).lstrip("0")), scale, 1)
    if precision > WIDEST:
        raise Unproven(node, "too many digits")
    type_ = DataType("decimal", (precision, scale))
    return Typed(f"CAST('{sign}{whole or '0'}.{fraction}' AS {duck_type(type_)})", type_)


def boolean(_: Expressions, node: exp.Expr) -> Typed:
    return Typed("TRUE" if node.this else "FALSE", BOOLEAN)


def null(_: Expressions, __: exp.Expr) -> Typed:
    return Typed("NULL", None)


def paren(over: Expressions, node: exp.Expr) -> Typed:
    return over.typed(node.this)


# -- logic -----------------------------------------------------------------------------------------


def connected(over: Expressions, node: exp.Expr) -> Typed:
    word = "AND" if isinstance(node, exp.And) else "OR"
    return Typed(f"({over.condition(node.this)} {word} {over.condition(node.expression)})", BOOLEAN)


def not_(over: Expressions, node: exp.Expr) -> Typed:
    return Typed(f"(NOT {over.condition(node.this)})", BOOLEAN)


def is_(over: Expressions, node: exp.Expr) -> Typed:
    if isinstance(node.expression, exp.Null):
        return Typed(f"({over.typed(node.this).sql} IS NULL)", BOOLEAN)
    if isinstance(node.expression, exp.Boolean):
        return Typed(f"({over.condition(node.this)} IS {'TRUE' if node.expression.this else 'FALSE'})", BOOLEAN)
    raise Unproven(node)


COMPARISONS: dict[type[exp.Expr], str] = {
    exp.EQ: "=", exp.NEQ: "<>", exp.LT: "<", exp.LTE: "<=", exp.GT: ">", exp.GTE: ">=",
    exp.NullSafeEQ: "IS NOT DISTINCT FROM", exp.NullSafeNEQ: "IS DISTINCT FROM",
}  # fmt: skip


def comparison(over: Expressions, node: exp.Expr) -> Typed:
    return compared(over, node, node.this, COMPARISONS[type(node)], node.expression)


def compared(over: Expressions, node: exp.Expr, left: exp.Expr, operator: str, right: exp.Expr) -> Typed:
    a, b = comparable(over, [left, right], node)
    return Typed(f"({a} {operator} {b})", BOOLEAN)


def comparable(over: Expressions, nodes: Sequence[exp.Expr], what: exp.Expr) -> list[str]:
    """Operands in one type: comparing them there is comparing them as Spark does."""
    values = over.values(nodes)
    if any(v.type == DATE for v in values):
        values = [_dated(n, v) for n, v in zip(nodes, values, strict=True)]
    type_ = common(values, what)
    return [cast(v, type_) for v in values]


def _dated(node: exp.Expr, value: Typed) -> Typed:
    """A string literal that stands for a date beside one."""
    return date_of(node.this if isinstance(node, exp.Paren) else node) if value.type == STRING else value


def date_of(node: exp.Expr) -> Typed:
    if isinstance(node, exp.Literal) and node.is_string and _ISO_DATE.fullmatch(node.name):
        try:
            date.fromisoformat(node.name)
        except ValueError as error:
            raise Unproven(node, "not a date") from error
        return Typed(f"DATE '{node.name}'", DATE)
    raise Unproven(node, "a text read as a date")


def in_(over: Expressions, node: exp.Expr) -> Typed:
    if not node.expressions or any(node.args.get(k) for k in ("query", "unnest", "field")):
        raise Unproven(node)
    value, *others = comparable(over, [node.this, *node.expressions], node)
    return Typed(f"({value} IN ({', '.join(others)}))", BOOLEAN)


def between(over: Expressions, node: exp.Expr) -> Typed:
    low = compared(over, node, node.this, ">=", node.args["low"])
    high = compared(over, node, node.this, "<=", node.args["high"])
    return Typed(f"({low.sql} AND {high.sql})", BOOLEAN)


# -- choices ---------------------------------------------------------------------------------------


def case(over: Expressions, node: exp.Expr) -> Typed:
    operand = node.args.get("this")
    conditions = []
    for branch in node.args["ifs"]:
        if operand is None:
            conditions.append(over.condition(branch.this))
        else:
            conditions.append(compared(over, node, operand, "=", branch.this).sql)
    default = node.args.get("default") or exp.Null()
    values = [over.typed(v) for v in (*(b.args["true"] for b in node.args["ifs"]), default)]
    return _chosen(conditions, values, node)


def if_(over: Expressions, node: exp.Expr) -> Typed:
    values = [over.typed(v) for v in (node.args["true"], node.args.get("false") or exp.Null())]
    return _chosen([over.condition(node.this)], values, node)


def _chosen(conditions: Sequence[str], values: Sequence[Typed], node: exp.Expr) -> Typed:
    type_ = common(values, node)
    *texts, default = (cast(v, type_) for v in values)
    whens = " ".join(f"WHEN {c} THEN {t}" for c, t in zip(conditions, texts, strict=True))
    return Typed(f"CASE {whens} ELSE {default} END", type_)


def nvl2(over: Expressions, node: exp.Expr) -> Typed:
    values = [over.typed(node.args[k]) for k in ("true", "false")]
    return _chosen([f"({over.typed(node.this).sql}) IS NOT NULL"], values, node)


def nullif(over: Expressions, node: exp.Expr) -> Typed:
    value = over.typed(node.this)
    if value.type is None:
        raise Unproven(node)
    is_equal = compared(over, node, node.this, "=", node.expression).sql
    return Typed(f"CASE WHEN {is_equal} THEN NULL ELSE {cast(value, value.type)} END", value.type)


def coalesce(over: Expressions, node: exp.Expr) -> Typed:
    values = [over.typed(v) for v in (node.this, *node.expressions)]
    type_ = common(values, node)
    return Typed(f"COALESCE({', '.join(cast(v, type_) for v in values)})", type_)


def extreme(over: Expressions, node: exp.Expr) -> Typed:
    """GREATEST and LEAST: NULLs are left out in both engines."""
    values = over.values([node.this, *node.expressions])
    type_ = common(values, node)
    word = "greatest" if isinstance(node, exp.Greatest) else "least"
    return Typed(f"{word}({', '.join(cast(v, type_) for v in values)})", type_)
