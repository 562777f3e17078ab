"""The state of aggregates: what is stored per group, how a change adds to it, and the result computed from it.

    COUNT(x)        the known count: how many x are not NULL
    SUM(x)          the sum, and the known count: the sum of no values is NULL, not 0 (law 11.8)
    AVG(x)          sum and known count; the quotient is computed as Spark computes it
    MIN(x), MAX(x)  the best value. Inserted values merge into it. If a deleted value is not strictly worse, the best
                    may be gone, and only then is the group computed again; bool_and is MIN, bool_or is MAX

f(x) FILTER (WHERE c) is f(CASE WHEN c THEN x END). Equal arguments share their state.

Only what adds up exactly has a state (law 11.5): counts; sums of integers and decimals if Spark adds two of them
without losing digits; AVG where the quotient below repeats Spark's own to the last digit; MIN and MAX of types in
which equal values have the same bits. Types are Spark's answers; nothing is inferred.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sqlglot import exp

from freshview.algebra.nodes import WEIGHT, Aggregate, Node, Project, column, same
from freshview.relation.types import NEGATED

TypesOf = Callable[[Node], Mapping[str, str]]  # Spark's types of a tree's columns

_INTEGERS = ("tinyint", "smallint", "int", "bigint")
_PLAIN = r"(?:tinyint|smallint|int|bigint|decimal\(\d+,\d+\)|boolean|date|timestamp|timestamp_ntz|string|binary)"
_ONE_IMAGE = re.compile(f"{_PLAIN}|struct<y:{_PLAIN},x:{_PLAIN}>")  # equal values have the same bits
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
_WIDEST = 38  # digits of a decimal; a sum of that type can overflow
_IN_DOUBLES = 15  # Spark computes averages of at most this many digits in doubles
_SPARE = 13  # digits beyond the result's that a quotient needs, see _decimal_quotient
_BEST = ("min", "max")


def one_image(type_: str) -> bool:
    """Have equal values of a type the same bits?"""
    return _ONE_IMAGE.fullmatch(type_) is not None


@dataclass(frozen=True)
class StatePart:
    """A hidden column: the count, sum, minimum or maximum of an argument (None: of the rows)."""

    name: str
    kind: str  # "count" | "sum" | "min" | "max"
    argument: exp.Expr | None = None
    known: str = ""  # for a sum: the part that counts its values
    times: exp.Expr | None = None  # for a count: how many rows of the definition a row stands for; None: itself alone
    type: str = ""  # for a sum of partial sums: its own type, which is narrower than Spark's of such a sum
    is_long: bool = False  # for a sum: its argument has more digits than Spark's -x keeps

    @property
    def over_rows(self) -> exp.Expr:
        """The aggregate call that computes the part from all rows."""
        if self.times is not None:
            return exp.Sum(this=self._counted(self.times))
        if self.argument is None:
            return exp.Count(this=exp.Star())
        call = {"count": exp.Count, "sum": exp.Sum, "min": exp.Min, "max": exp.Max}[self.kind]
        return call(this=self.argument.copy())

    def finished(self, call: str) -> exp.Expr:
        """The part from the column that holds the call over all rows: of no rows there is no count to add."""
        if self.times is not None:
            return exp.Coalesce(this=column(call), expressions=[exp.Literal.number(0)])
        return exp.cast(column(call), self.type, dialect="spark") if self.type else column(call)

    def over_delta(self, type_: str, *, grows: bool) -> tuple[tuple[str, exp.Expr], ...]:
        """The aggregates of a change, as items; one that `grows` has no deleted rows. `type_` is the stored type."""
        if self.kind == "count":
            each: exp.Expr = column(WEIGHT)
            if self.times is not None:
                each = case(_sign(exp.GT), self.times.copy(), exp.Neg(this=self.times.copy()))
            return ((added(self.name), exp.Sum(this=self._counted(each))),)
        assert self.argument is not None
        if self.kind == "sum":
            # −1 × the smallest integer is no integer (law 11.8)
            wide = exp.cast(self.argument.copy(), "decimal(20, 0)") if type_ == "bigint" else self.argument
            taken: exp.Expr = exp.Neg(this=wide.copy())
            if self.is_long:
                taken = exp.Sub(this=exp.Literal.number(0), expression=exp.Paren(this=wide.copy()))
            return ((added(self.name), exp.Sum(this=case(_sign(exp.GT), wide.copy(), taken))),)
        best = exp.Min if self.kind == "min" else exp.Max
        if grows:
            return ((added(self.name), best(this=self.argument.copy())),)
        return (
            (added(self.name), best(this=case(_sign(exp.GT), self.argument.copy()))),
            (_gone(self.name), best(this=case(_sign(exp.LT), self.argument.copy()))),
        )

    def _counted(self, each: exp.Expr) -> exp.Expr:
        """What one row adds to a count, if it adds `each` where its argument is known."""
        if self.argument is None:
            return each.copy()
        unknown = exp.Is(this=self.argument.copy(), expression=exp.Null())
        return case(unknown, exp.Literal.number(0), each.copy())

    def merged(self, type_: str) -> exp.Expr:
        """The part's new value, from the stored value and that of the change."""
        old, new = column(stored(self.name)), column(added(self.name))
        if self.kind in _BEST:
            worse = (exp.GTE if self.kind == "max" else exp.LTE)(this=old.copy(), expression=new.copy())
            keep = exp.Or(this=exp.Is(this=new.copy(), expression=exp.Null()), expression=worse)
            return case(keep, old, new)
        value: exp.Expr = exp.cast(_sum_of(self.name), type_, dialect="spark")
        if self.kind == "sum":
            nothing = exp.EQ(this=_sum_of(self.known), expression=exp.Literal.number(0))
            value = case(nothing, exp.Null(), value)
        return value

    @property
    def in_doubt(self) -> exp.Expr | None:
        """The condition that the best may be gone: a deleted value is not strictly worse than the stored best.

        Values inserted and deleted by one change meet this test, too: either they are strictly worse than a value that
        stays, or they count as deleted. Without a stored best there is nothing to compare with: the best is in doubt.
        """
        if self.kind not in _BEST:
            return None
        gone, old = column(_gone(self.name)), column(stored(self.name))
        reaches = (exp.GTE if self.kind == "max" else exp.LTE)(this=gone.copy(), expression=old.copy())
        unknown = exp.Or(this=exp.Is(this=old.copy(), expression=exp.Null()), expression=reaches)
        known = exp.Not(this=exp.Is(this=gone.copy(), expression=exp.Null()))
        return exp.And(this=known, expression=exp.Paren(this=unknown))


@dataclass(frozen=True)
class State:
    """What is stored of a group, and each aggregate of the view as an expression over it."""

    parts: tuple[StatePart, ...]  # the first counts the group's rows
    results: tuple[tuple[str, exp.Expr], ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(p.name for p in self.parts)

    @property
    def rows(self) -> str:
        return self.parts[0].name

    def of(self, rows: Node, keys: tuple[str, ...]) -> Node:
        """The groups of rows, with their state."""
        if all(p.times is None and not p.type for p in self.parts):
            return Aggregate(rows, keys, tuple((p.name, p.over_rows) for p in self.parts))
        calls = Aggregate(rows, keys, tuple((f"{p.name}__call", p.over_rows) for p in self.parts))
        return Project(calls, (*same(keys), *((p.name, p.finished(f"{p.name}__call")) for p in self.parts)))


def stored(name: str) -> str:
    """The name of a stored column in a delta plan."""
    return f"{name} old"  # no column has a space in its name


def added(name: str) -> str:
    """The name of the column that holds what a change adds to a part."""
    return f"{name} add"


def _gone(name: str) -> str:
    return f"{name}__gone"


def _sign(comparison: type[exp.GT | exp.LT]) -> exp.Expr:
    return comparison(this=column(WEIGHT), expression=exp.Literal.number(0))


def case(condition: exp.Expr, value: exp.Expr, default: exp.Expr | None = None) -> exp.Expr:
    """CASE WHEN condition THEN value ELSE default END."""
    return exp.Case(ifs=[exp.If(this=condition, true=value)], default=default)


def _sum_of(name: str) -> exp.Expr:
    """Stored + added; either may be NULL. (There is no literal in it: that would widen a decimal's type.)"""
    old, new = column(stored(name)), column(added(name))
    lacks = [(exp.Is(this=a.copy(), expression=exp.Null()), b.copy()) for a, b in ((old, new), (new, old))]
    return exp.Case(ifs=[exp.If(this=c, true=v) for c, v in lacks], default=exp.Add(this=old, expression=new))


# -- which aggregates have a state -----------------------------------------------------------------


def plain_call(call: exp.Expr) -> tuple[str, exp.Expr | None] | None:
    """An aggregate as (kind, argument), its FILTER inside the argument; None if its kind has no state."""
    condition = None
    if isinstance(call, exp.Filter):
        condition, call = call.expression.this, call.this
    if isinstance(call, exp.CountIf):
        counted = case(call.this.copy(), exp.Literal.number(1))
        return "count", counted if condition is None else case(condition.copy(), counted)
    kind = _kind(call)
    argument = call.expressions[0] if isinstance(call, exp.Anonymous) and call.expressions else call.this
    if kind is None or isinstance(argument, exp.Distinct) or not isinstance(argument, exp.Expr):
        return None
    if len(call.expressions) > (1 if isinstance(call, exp.Anonymous) else 0):
        return None
    always = kind == "count" and isinstance(argument, exp.Star | exp.Literal)
    if always:
        return ("count", None) if condition is None else ("count", case(condition.copy(), exp.Literal.number(1)))
    return kind, argument.copy() if condition is None else case(condition.copy(), argument.copy())


def _kind(call: exp.Expr) -> str | None:
    if isinstance(call, exp.Anonymous):
        return _BY_NAME.get(call.name.upper())
    return _BY_CLASS.get(type(call))


_BY_CLASS: dict[type[exp.Expr], str] = {exp.Count: "count", exp.Sum: "sum", exp.Avg: "avg"}
_BY_CLASS |= dict.fromkeys((exp.Min, exp.LogicalAnd), "min") | dict.fromkeys((exp.Max, exp.LogicalOr, exp.Any), "max")
_BY_NAME = {"BOOL_AND": "min", "EVERY": "min", "BOOL_OR": "max", "SOME": "max", "MEAN": "avg"}


def state_of(root: Aggregate, hidden: Callable[[str], str], types_of: TypesOf) -> State | None:
    """The state of an aggregate; None if one of its calls has no exact state. `hidden` names the state's columns."""
    calls = [(name, plain_call(call)) for name, call in root.items]
    if any(c is None for _, c in calls):
        return None
    plain = [(name, *c) for name, c in calls if c is not None]
    types = types_of(_probe(root, plain)) if any(k != "count" for _, k, _ in plain) else {}
    building = _StateParts(hidden, types)
    for name, kind, argument in plain:
        if not building.add(name, kind, argument):
            return None
    quotients = {name: q for name, q in building.quotients.items() if not _repeats(root, name, *q, types_of)}
    return None if quotients else State(tuple(building.parts), tuple(building.results))


def _probe(root: Aggregate, plain: list[tuple[str, str, exp.Expr | None]]) -> Node:
    """A tree whose types Spark is asked for: each call, the sum of two sums, the argument of a sum, what taking it away
    adds, and the mode."""
    items = list(root.items)
    for name, kind, argument in plain:
        if argument is not None and kind in ("sum", "avg"):
            total = exp.Sum(this=argument.copy())
            items.append((_total(name), total))
            items.append((_twice(name), exp.Add(this=total.copy(), expression=total.copy())))
            items.append((_argument(name), exp.Max(this=argument.copy())))
            less = exp.Sub(this=exp.Literal.number(0), expression=exp.Paren(this=argument.copy()))
            items.append((_taken(name), exp.Max(this=less)))
    lax = exp.Add(this=exp.Literal.string("1"), expression=exp.Literal.number(1))
    return Aggregate(root.input, root.keys, (*items, (_MODE, lax)))


_MODE = "__mode"  # '1' + 1: a double in the mode where overflow gives NULL, a bigint under ANSI, where overflow fails


def _total(name: str) -> str:
    return f"{name}__total"


def _twice(name: str) -> str:
    return f"{name}__twice"


def _argument(name: str) -> str:
    return f"{name}__argument"


def _taken(name: str) -> str:
    return f"{name}__taken"


class _StateParts:
    """Collects the parts of a state, equal ones once."""

    def __init__(self, hidden: Callable[[str], str], types: Mapping[str, str]) -> None:
        self._hidden = hidden
        self._types = types
        self._arguments: list[exp.Expr] = []
        self.parts = [StatePart(hidden("rows"), "count")]
        self.results: list[tuple[str, exp.Expr]] = []
        self.quotients: dict[str, tuple[exp.Expr, str]] = {}  # averages computed by dividing decimals: argument, type

    def add(self, name: str, kind: str, argument: exp.Expr | None) -> bool:
        """Add the parts of one call; return False if it has no exact state."""
        if argument is None:
            self.results.append((name, column(self.parts[0].name)))
        elif kind == "count":
            self.results.append((name, column(self._known(argument))))
        elif kind in _BEST:
            if not one_image(self._types[name]):
                return False
            self.results.append((name, column(self._part(kind, argument))))
        else:
            if not self._adds_up(name):
                return False
            known = self._known(argument)
            total = self._part("sum", argument, known, is_long=self._is_long(name))
            if kind == "sum":
                self.results.append((name, column(total)))
                return True
            quotient = self._average(name, argument, total, known)
            if quotient is None:
                return False
            self.results.append((name, quotient))
        return True

    def _adds_up(self, name: str) -> bool:
        """Can sums of this type be added, and values taken away, without losing digits or missing an overflow?"""
        type_, twice = self._types[_total(name)], self._types[_twice(name)]
        if type_ in _INTEGERS:
            return True
        sum_, added_ = _DECIMAL.fullmatch(type_), _DECIMAL.fullmatch(twice)
        given, taken = (_DECIMAL.fullmatch(self._types[of(name)]) for of in (_argument, _taken))
        if sum_ is None or added_ is None or given is None or sum_[2] != added_[2]:
            return False
        if self._is_long(name) and (taken is None or taken[2] != given[2]):
            return False
        return int(sum_[1]) < _WIDEST or self._types[_MODE] != "double"

    def _is_long(self, name: str) -> bool:
        """Has an argument more digits than Spark's -x keeps? 0 - x keeps all of them, if its type has room for them."""
        given = _DECIMAL.fullmatch(self._types[_argument(name)])
        return given is not None and int(given[1]) > NEGATED

    def _average(self, name: str, argument: exp.Expr, total: str, known: str) -> exp.Expr | None:
        result, given = self._types[name], self._types[_argument(name)]
        some = exp.GT(this=column(known), expression=exp.Literal.number(0))
        if given in _INTEGERS and given != "bigint":
            return case(some, _in_doubles(column(total), column(known)))
        precision_scale = _DECIMAL.fullmatch(result)
        if precision_scale is None or _DECIMAL.fullmatch(given) is None:
            return None
        precision, scale = map(int, precision_scale.groups())
        if precision <= _IN_DOUBLES:
            return case(some, _through_doubles(column(total), column(known), result, scale - 4))
        self.quotients[name] = (argument, result)
        whole, fraction, _ = _decimal_quotient(column(total), column(known), precision - scale)
        return case(some, exp.cast(exp.Add(this=whole, expression=fraction), result, dialect="spark"))

    def _known(self, argument: exp.Expr) -> str:
        return self._part("count", argument)

    def _part(self, kind: str, argument: exp.Expr, known: str = "", *, is_long: bool = False) -> str:
        found = next((p for p in self.parts if p.kind == kind and p.argument == argument), None)
        if found is None:
            if argument not in self._arguments:
                self._arguments.append(argument)
            word = "known" if kind == "count" else kind
            name = self._hidden(f"{word}{self._arguments.index(argument)}")
            found = StatePart(name, kind, argument, known, is_long=is_long)
            self.parts.append(found)
        return found.name


# -- averages as Spark computes them ---------------------------------------------------------------


def _in_doubles(total: exp.Expr, known: exp.Expr) -> exp.Expr:
    """AVG of small integers: Spark adds doubles, which is exact up to 2^53, and divides once.

    Beyond 2^53 (4 million rows of the largest INT in one group) Spark's own sum depends on the order of the rows.
    """
    return exp.Div(this=exp.cast(total, "double"), expression=exp.cast(known, "double"))


def _through_doubles(total: exp.Expr, known: exp.Expr, type_: str, scale: int) -> exp.Expr:
    """AVG of short decimals: Spark averages the unscaled integers in doubles, divides by 10^scale, and rounds."""
    power = exp.cast(exp.Literal.number(10**scale), f"decimal({scale + 1}, 0)")
    unscaled = exp.Mul(this=total, expression=power)
    mean = exp.Div(this=_in_doubles(unscaled, known), expression=exp.cast(exp.Literal.number(10**scale), "double"))
    return exp.cast(mean, type_, dialect="spark")


def _decimal_quotient(total: exp.Expr, known: exp.Expr, digits: int) -> tuple[exp.Expr, exp.Expr, exp.Expr]:
    """AVG of other decimals: the quotient's whole part and its fraction, whose sum is rounded to the result's scale r.

    Spark rounds total / n once to r places (HALF_UP); here the fraction, the sum and then the result are rounded. Both
    agree unless the exact quotient q lies so near a midpoint m of two results that an earlier rounding reaches m. But
    q − m is a multiple of 1 / (2 · 10^r · n): with fewer than 10^12 rows in a group and 13 digits more than r (_SPARE)
    m is out of reach; and a q that is a midpoint has r + 1 places and is not rounded before the end.
    """
    count = exp.cast(known.copy(), "decimal(12, 0)")
    rest = exp.Mod(this=total.copy(), expression=count.copy())
    multiple = exp.Paren(this=exp.Sub(this=total.copy(), expression=exp.Paren(this=rest.copy())))
    exact = exp.Div(this=multiple, expression=count)
    whole = exp.cast(exact.copy(), f"decimal({max(digits, 1)}, 0)")
    fraction = exp.Div(this=exp.Paren(this=rest.copy()), expression=exp.cast(known.copy(), "decimal(20, 0)"))
    return whole, fraction, exact


def _repeats(root: Aggregate, name: str, argument: exp.Expr, type_: str, types_of: TypesOf) -> bool:
    """Does the quotient keep enough digits to repeat Spark's average, after the point and before it?

    Where a type has too few digits before the point, Spark gives NULL or fails. How digits are shared between both
    sides of the point is a setting (allowPrecisionLoss), so Spark is asked for the type of each step.
    """
    match = _DECIMAL.fullmatch(type_)
    assert match is not None
    precision, scale = map(int, match.groups())
    total, known = exp.Sum(this=argument.copy()), exp.Count(this=argument.copy())
    whole, fraction, exact = _decimal_quotient(total, known, precision - scale)
    both = exp.Add(this=whole, expression=fraction.copy())
    steps = {"fraction": fraction, "both": both, "exact": exact, "multiple": exact.this.copy(), "total": total.copy()}
    types = types_of(Aggregate(root.input, root.keys, tuple((f"{name}__{step}", e) for step, e in steps.items())))
    found = {step: _DECIMAL.fullmatch(types[f"{name}__{step}"]) for step in steps}
    digits = {step: (int(m[1]) - int(m[2]), int(m[2])) for step, m in found.items() if m is not None}
    return (
        len(digits) == len(steps)
        and all(digits[step][1] - scale >= _SPARE for step in ("fraction", "both"))
        and all(digits[step][0] >= precision - scale for step in ("both", "exact"))
        and digits["multiple"][0] >= digits["total"][0]
    )
