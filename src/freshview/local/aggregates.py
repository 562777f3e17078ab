"""Rules for aggregate calls, with FILTER, and over windows."""

from __future__ import annotations

from dataclasses import replace

from sqlglot import exp

from freshview.local.numbers import EXACT_DOUBLE, rounded
from freshview.local.typed import (
    BIGINT,
    BOOLEAN,
    DIGITS,
    DOUBLE,
    WIDEST,
    Expressions,
    Typed,
    Unproven,
    duck_type,
    guarded,
)
from freshview.relation.types import DataType


def count(over: Expressions, node: exp.Expr) -> Typed:
    if node.this is None:
        raise Unproven(node)
    if isinstance(node.this, exp.Star):
        return Typed(f"COUNT(*){over.suffix}", BIGINT)
    if isinstance(node.this, exp.Distinct):
        (value,) = over.values(node.this.expressions[:1])
        if len(node.this.expressions) != 1 or value.type is None:
            raise Unproven(node)
        return Typed(f"COUNT(DISTINCT {value.sql}){over.suffix}", BIGINT)
    return Typed(f"COUNT({over.typed(node.this).sql}){over.suffix}", BIGINT)


def count_if(over: Expressions, node: exp.Expr) -> Typed:
    return Typed(f"COUNT(CASE WHEN {over.condition(node.this)} THEN 1 END){over.suffix}", BIGINT)


def sum_(over: Expressions, node: exp.Expr) -> Typed:
    """SUM in Spark's type. Where parts may overflow that the whole does not, Spark fails in some orders of rows."""
    (value,) = over.values([node.this])
    if value.type is not None and value.type.kind in DIGITS:
        type_, is_wide = BIGINT, value.type == BIGINT
    elif value.type is not None and value.type.kind == "decimal":
        precision, scale = value.type.params
        type_, is_wide = DataType("decimal", (min(precision + 10, WIDEST), scale)), precision + 10 > WIDEST
    else:
        raise Unproven(node)
    name = duck_type(type_)
    if not is_wide:
        return Typed(f"CAST(SUM({value.sql}){over.suffix} AS {name})", type_)
    # The engine's own sums of decimals may have 39 digits; the addition is checked.
    zero = "" if type_ == BIGINT else f" + CAST(0 AS {name})"
    total = f"CAST(SUM({value.sql}){over.suffix}{zero} AS {name})"
    sizes = f"abs(CAST({value.sql} AS HUGEINT))" if type_ == BIGINT else f"abs({value.sql})"
    return Typed(f"CASE WHEN CAST(SUM({sizes}){over.suffix}{zero} AS {name}) IS NULL THEN NULL ELSE {total} END", type_)


def average(over: Expressions, node: exp.Expr) -> Typed:
    """AVG as Spark computes it: of integers in doubles, exact as long as all sums are; of decimals in decimals.

    Spark averages decimals of up to 11 digits in doubles, too, and makes decimals of those: that is not proven.
    """
    (value,) = over.values([node.this])
    known = f"COUNT({value.sql}){over.suffix}"
    if value.type is not None and value.type.kind in DIGITS:
        total, most = (f"SUM({x}){over.suffix}" for x in (value.sql, f"abs(CAST({value.sql} AS HUGEINT))"))
        quotient = f"(CAST({total} AS DOUBLE) / {known})"
        return guarded(f"{most} <= {EXACT_DOUBLE}", quotient, DOUBLE, node, f"nullif({known}, 0)")
    if value.type is None or value.type.kind != "decimal" or not _SHORT < value.type.params[0] <= WIDEST - 10:
        raise Unproven(node, str(value.type))
    precision, scale = value.type.params
    result = DataType("decimal", (precision + 4, scale + 4))
    return rounded(sum_(over, node).sql, scale, f"nullif({known}, 0)", 0, result)


_SHORT = 11  # digits of decimals whose average Spark takes in doubles


def best(over: Expressions, node: exp.Expr) -> Typed:
    (value,) = over.values([node.this])
    if value.type is None:
        raise Unproven(node)
    return Typed(f"{'MAX' if isinstance(node, exp.Max) else 'MIN'}({value.sql}){over.suffix}", value.type)


def logical(over: Expressions, node: exp.Expr) -> Typed:
    word = "bool_and" if isinstance(node, exp.LogicalAnd) else "bool_or"
    return Typed(f"{word}({over.condition(node.this)}){over.suffix}", BOOLEAN)


def filtered(over: Expressions, node: exp.Expr) -> Typed:
    condition = replace(over, suffix="").condition(node.expression.this)
    return replace(over, suffix=f" FILTER (WHERE {condition}){over.suffix}").typed(node.this)
