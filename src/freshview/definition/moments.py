"""Strings that Spark takes for a date or a time that passes: 'today', 'now UTC', TIMESTAMP '06:00' (of today).

Spark converts such a constant wherever a date or a time is expected; where that is, types alone decide. So the word
is refused, unless it is surely used as text: beside other text, or as an argument of a function of text. A time of day
is refused here where the text converts it to a timestamp; where Spark does so, its plan shows it (`plan_checks.py`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from sqlglot import exp

from freshview.sql.literals import is_moment, may_be_time_of_day, may_become_moment

_CONVERSIONS = (exp.Cast, exp.TryCast, exp.TsOrDsToDate, exp.StrToTime, exp.StrToDate)
_OF_CLOCK = (exp.DType.TIMESTAMP, exp.DType.TIMESTAMPTZ, exp.DType.TIMESTAMPLTZ)  # Spark's TIMESTAMP, by its names
_COMPARISONS = (
    *(exp.EQ, exp.NEQ, exp.NullSafeEQ, exp.NullSafeNEQ, exp.GT, exp.GTE, exp.LT, exp.LTE),
    *(exp.Between, exp.In, exp.Nullif),
)
_OF_TIME = re.compile("DATE|TIME|TS_|DAY|MONTH|YEAR|WEEK|QUARTER|HOUR|MINUTE|SECOND|TRUNC|EXTRACT|INTERVAL|UNIX")
_OF_TEXT = (
    *(exp.Alias, exp.Select, exp.Concat, exp.ConcatWs, exp.DPipe, exp.Like, exp.ILike, exp.RegexpLike, exp.Lower),
    *(exp.Upper, exp.Trim, exp.Length, exp.StrPosition, exp.Contains, exp.StartsWith, exp.EndsWith, exp.Reverse),
)
# Expressions whose value is text whatever their operands are. (|| of arrays is an array.)
_TEXTS = (exp.ConcatWs, exp.Lower, exp.Upper, exp.Trim, exp.RawString)


def takes_moment(node: exp.Expr, names: Sequence[str]) -> bool:
    """May an expression of these names take a string for a date or a time that passes?"""
    if isinstance(node, exp.SetOperation):
        if isinstance(node.parent, exp.SetOperation):
            return False  # that one has the columns of this one, and is asked too
        return any(map(_mix, zip(*_columns(node), strict=False))) or not _are_alike(node)
    if isinstance(node, exp.If) and isinstance(node.parent, exp.Case):
        compared = node.parent.this  # CASE x WHEN 'today'; what follows THEN belongs to the CASE
        return is_moment(node.this) and not (compared is not None and is_text(compared))
    arms = _arms(node)
    if arms is not None:
        return _mix(arms)
    if isinstance(node, _COMPARISONS):
        return _mix(list(node.iter_expressions()))
    if isinstance(node, exp.Cast) and _is_time_of_day(node.this) and node.to.is_type(*_OF_CLOCK):
        return True
    if isinstance(node, _CONVERSIONS) or any(map(_OF_TIME.search, names)):
        return any(map(may_become_moment, node.iter_expressions()))
    return not isinstance(node, _OF_TEXT) and any(map(is_moment, node.iter_expressions()))


def _is_time_of_day(node: exp.Expr) -> bool:
    return isinstance(node.unnest(), exp.Literal | exp.RawString) and may_be_time_of_day(node.unnest().name)


def is_text(node: exp.Expr) -> bool:
    """Is the value of an expression surely text, or NULL?"""
    match node:
        case exp.Literal():
            return bool(node.is_string)
        case exp.Null():
            return True
        case exp.Paren() | exp.Alias():
            return is_text(node.this)
        case exp.Cast() | exp.TryCast():
            return bool(node.to.is_type(*exp.DataType.TEXT_TYPES))
        case exp.Concat():
            return all(map(is_text, node.expressions))
        case exp.DPipe():
            return is_text(node.this) and is_text(node.expression)
    arms = _arms(node) if isinstance(node, exp.If | exp.Case | exp.Coalesce | exp.Nvl2) else None
    return isinstance(node, _TEXTS) if arms is None else all(map(is_text, arms))


def _mix(parts: Sequence[exp.Expr]) -> bool:
    """Is a string that may become a moment combined with a value that may be a date?"""
    return any(map(may_become_moment, parts)) and not all(map(is_text, parts))


def _arms(node: exp.Expr) -> list[exp.Expr] | None:
    """The operands to which Spark gives one common type; None if the expression has none."""
    match node:
        case exp.Case():
            found = [branch.args.get("true") for branch in node.args["ifs"]] + [node.args.get("default")]
        case exp.If() | exp.Nvl2():
            found = [node.args.get("true"), node.args.get("false")]
        case exp.Coalesce() | exp.Greatest() | exp.Least():
            found = [node.this, *node.expressions]
        case exp.Array() if not isinstance(node.parent, exp.VarMap | exp.Map):
            found = list(node.expressions)
        case _:
            return None
    return [arm for arm in found if arm is not None]


def _columns(node: exp.Expr) -> list[list[exp.Expr]]:
    """The SELECT lists of the parts of a set operation, in order: there may be more than Python's stack is deep."""
    found, left = [], [node]
    while left:
        part = left.pop()
        if isinstance(part, exp.SetOperation):
            left += [part.right, part.left]
        elif isinstance(part, exp.Subquery):
            left.append(part.this)
        else:
            found.append([item.unalias() for item in part.selects] if isinstance(part, exp.Select) else [])
    return found


def _are_alike(node: exp.SetOperation) -> bool:
    """Do all parts have the same number of columns? If a star hides it: has no part a string that may be a moment?"""
    parts = _columns(node)
    clear = len({len(part) for part in parts}) == 1 and not any(i.is_star for part in parts for i in part)
    return clear or not any(map(may_become_moment, (i for part in parts for i in part)))
