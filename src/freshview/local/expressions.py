"""Expressions in the embedded engine's SQL, as far as they are proven to give Spark's bits.

`PROVEN` lists every construct with its rule; a rule says for which types it holds, and Spark's type of the result.
What is not listed raises `Unproven`. Where only some values are safe, the text guards itself: other values raise an
error when it runs, and Spark runs the plan instead. All rules hold under Spark's defaults (ANSI) only.

    integers    Spark and DuckDB compute in the wider type and fail on overflow
    decimals    digits and scale as Spark's DecimalPrecision; only where no digit of the exact result is rounded away
    texts       compared by bytes; CHAR is not: Spark pads it
    FLOAT, DOUBLE, nested types   handed on, never computed with, but for one division of exact integers
"""

from __future__ import annotations

from sqlglot import exp

from freshview.local import aggregates, dates, numbers, scalars, texts
from freshview.local.typed import ByName, Expressions, TypeRule

PROVEN: dict[type[exp.Expr], TypeRule] = {
    exp.Column: scalars.column,
    exp.Literal: scalars.literal,
    exp.Boolean: scalars.boolean,
    exp.Null: scalars.null,
    exp.Paren: scalars.paren,
    exp.And: scalars.connected,
    exp.Or: scalars.connected,
    exp.Not: scalars.not_,
    exp.Is: scalars.is_,
    **dict.fromkeys(scalars.COMPARISONS, scalars.comparison),
    exp.In: scalars.in_,
    exp.Between: scalars.between,
    exp.Case: scalars.case,
    exp.If: scalars.if_,
    exp.Coalesce: scalars.coalesce,
    exp.Nvl2: scalars.nvl2,
    exp.Nullif: scalars.nullif,
    exp.Greatest: scalars.extreme,
    exp.Least: scalars.extreme,
    exp.Add: numbers.arithmetic,
    exp.Sub: numbers.arithmetic,
    exp.Mul: numbers.arithmetic,
    exp.Neg: numbers.negated,
    exp.Abs: numbers.absolute,
    exp.Div: numbers.divided,
    exp.IntDiv: numbers.whole_quotient,
    exp.Mod: numbers.remainder,
    exp.Round: numbers.round_,
    exp.Ceil: numbers.next_whole,
    exp.Floor: numbers.next_whole,
    exp.Cast: numbers.cast_,
    exp.TryCast: numbers.cast_,  # how sqlglot reads Spark's CAST; TRY_CAST says `safe`
    exp.Like: texts.like,
    exp.StartsWith: texts.found,
    exp.EndsWith: texts.found,
    exp.Contains: texts.found,
    exp.StrPosition: texts.position,
    exp.Substring: texts.substring,
    exp.Left: texts.end_of,
    exp.Right: texts.end_of,
    exp.Trim: texts.trim,
    exp.Replace: texts.replaced,
    exp.Upper: texts.cased,
    exp.Lower: texts.cased,
    exp.Length: texts.length,
    exp.DPipe: texts.concat,
    exp.Concat: texts.concat,
    exp.Year: dates.date_part,
    exp.Month: dates.date_part,
    exp.Day: dates.date_part,
    exp.DayOfMonth: dates.date_part,
    exp.DayOfWeek: dates.date_part,
    exp.DayOfYear: dates.date_part,
    exp.WeekOfYear: dates.date_part,
    exp.Quarter: dates.date_part,
    exp.Extract: dates.date_part,
    exp.AddMonths: dates.add_months,
    exp.TsOrDsAdd: dates.add_days,
    exp.DateDiff: dates.difference,
    exp.LastDay: dates.last_day,
    exp.DateTrunc: dates.truncated,
    exp.Count: aggregates.count,
    exp.CountIf: aggregates.count_if,
    exp.Sum: aggregates.sum_,
    exp.Avg: aggregates.average,
    exp.Max: aggregates.best,
    exp.Min: aggregates.best,
    exp.LogicalAnd: aggregates.logical,
    exp.LogicalOr: aggregates.logical,
    exp.Filter: aggregates.filtered,
}

# The arguments of sqlglot's nodes that the rules read; one that a rule does not know of may change the meaning.
_PLAIN = frozenset({"this", "expression"})
_ARGUMENTS: dict[type[exp.Expr], frozenset[str]] = {
    exp.Literal: frozenset({"this", "is_string"}),
    exp.In: frozenset({"this", "expressions"}),
    exp.Between: frozenset({"this", "low", "high"}),
    exp.Like: frozenset({"this", "expression", "negate"}),
    exp.Case: frozenset({"this", "ifs", "default"}),
    exp.If: frozenset({"this", "true", "false"}),
    exp.Coalesce: frozenset({"this", "expressions"}),
    exp.Div: frozenset({"this", "expression", "typed", "safe"}),
    exp.Cast: frozenset({"this", "to"}),
    exp.TryCast: frozenset({"this", "to"}),
    exp.Substring: frozenset({"this", "start", "length"}),
    exp.DPipe: frozenset({"this", "expression", "safe"}),
    exp.Concat: frozenset({"expressions", "safe"}),
    exp.Count: frozenset({"this", "big_int"}),
    exp.Nvl2: frozenset({"this", "true", "false"}),
    exp.Greatest: frozenset({"this", "expressions", "ignore_nulls"}),
    exp.Least: frozenset({"this", "expressions", "ignore_nulls"}),
    exp.Round: frozenset({"this", "decimals"}),
    exp.StrPosition: frozenset({"this", "substr"}),
    exp.Trim: frozenset({"this", "expression", "position"}),
    exp.Replace: frozenset({"this", "expression", "replacement"}),
    exp.TsOrDsAdd: frozenset({"this", "expression", "unit"}),
    exp.DateTrunc: frozenset({"this", "unit"}),
}
_RULES = {kind: (rule, _ARGUMENTS.get(kind, _PLAIN)) for kind, rule in PROVEN.items()}


def over(columns: ByName) -> Expressions:
    """Translates expressions over these columns."""
    return Expressions(columns, _RULES)
