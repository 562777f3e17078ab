"""Scalar expressions over canonical columns, and what one condition implies about another.

    c ⟹ d    wherever c is true, d is true: c is d, or both restrict one column, c to a subset of what d admits

Restrictions are ranges and IN-lists of literals, over columns of types whose values compare exactly (integers,
decimals, dates, plain strings). NULL meets no restriction, so every restriction of a column implies IS NOT NULL.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from functools import lru_cache

from sqlglot import exp

from freshview.algebra.nodes import column, names_in

_EXACT = re.compile(r"(tinyint|smallint|int|bigint|decimal\(\d+,\d+\))|(string)|(date)")
_FLIPPED: dict[type[exp.Expr], type[exp.Binary]] = {
    exp.LT: exp.GT,
    exp.LTE: exp.GTE,
    exp.GT: exp.LT,
    exp.GTE: exp.LTE,
    exp.EQ: exp.EQ,
}
_FLIPPED |= {exp.NEQ: exp.NEQ, exp.NullSafeEQ: exp.NullSafeEQ}
_SYMMETRIC = (exp.EQ, exp.NEQ, exp.NullSafeEQ)

TypeOf = Callable[[str], str]  # Spark's type of a canonical column; empty if it is not known
Constant = Decimal | str | date


@dataclass(frozen=True)
class Term:
    """An expression over canonical columns; terms of equal text have equal values."""

    text: str
    expression: exp.Expr = field(compare=False, repr=False)
    columns: frozenset[str] = field(compare=False, repr=False)


def term(expression: exp.Expr) -> Term:
    """An expression as a term. sqlglot compares some texts without case: the rendered text is exact."""
    return Term(expression.sql(dialect="spark"), expression, frozenset(names_in(expression)))


def substituted(expression: exp.Expr, meaning: Mapping[str, exp.Expr]) -> exp.Expr:
    """The expression with its columns replaced by what they hold."""

    def replaced(part: exp.Expr) -> exp.Expr:
        return _enclosed(meaning[part.name].copy()) if isinstance(part, exp.Column) and part.name in meaning else part

    if isinstance(expression, exp.Column):
        return meaning.get(expression.name, expression).copy()
    return expression.transform(replaced)


def renamed(expression: exp.Expr, names: Mapping[str, str]) -> exp.Expr:
    """The expression over columns of other names."""
    return substituted(expression, {old: column(new) for old, new in names.items()})


def _enclosed(expression: exp.Expr) -> exp.Expr:
    is_call = isinstance(expression, exp.Func) and not isinstance(expression, exp.Connector | exp.Binary)
    return expression if is_call or isinstance(expression, exp.Column | exp.Literal) else exp.Paren(this=expression)


def conditions(predicate: exp.Expr) -> list[Term]:
    """One conjunct as canonical terms: BETWEEN is two, `5 < x` is `x > 5`, the sides of `=` are in one order."""
    predicate = predicate.unnest()
    if isinstance(predicate, exp.Between) and not predicate.args.get("symmetric"):
        low = exp.GTE(this=predicate.this.copy(), expression=predicate.args["low"].copy())
        high = exp.LTE(this=predicate.this.copy(), expression=predicate.args["high"].copy())
        return [*conditions(low), *conditions(high)]
    flipped = _FLIPPED.get(type(predicate))
    if flipped is not None:
        left, right = predicate.this, predicate.expression
        constant_first = not names_in(left) and names_in(right)
        ordered = isinstance(predicate, _SYMMETRIC) and names_in(right) and _text(right) < _text(left)
        if constant_first or ordered:
            predicate = flipped(this=right.copy(), expression=left.copy())
    return [term(predicate)]


def _text(expression: exp.Expr) -> str:
    return expression.sql(dialect="spark")


# -- implication -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Admitted:
    """What a condition admits of one column: a finite set, or an interval with open or closed ends."""

    column: str
    members: frozenset[Constant] | None = None
    low: Constant | None = None
    high: Constant | None = None
    open_low: bool = False
    open_high: bool = False

    def admits(self, value: Constant) -> bool:
        if self.members is not None:
            return value in self.members
        above = self.low is None or _above(value, self.low, self.open_low)
        return above and (self.high is None or _above(self.high, value, self.open_high))

    def within(self, other: _Admitted) -> bool:
        """Is every value that this admits also admitted by the other?"""
        if self.members is not None:
            return all(map(other.admits, self.members))
        if other.members is not None:
            return False
        return _tighter(self.low, self.open_low, other.low, other.open_low, 1) and _tighter(
            self.high, self.open_high, other.high, other.open_high, -1
        )


def _above(value: Constant, bound: Constant, is_open: bool) -> bool:
    return value > bound if is_open else value >= bound  # type: ignore[operator]  # constants of one column, of one kind


def _tighter(own: Constant | None, own_open: bool, other: Constant | None, other_open: bool, sign: int) -> bool:
    """Is one bound at least as strict as another? `sign` is 1 for lower bounds, -1 for upper ones."""
    if other is None or own is None:
        return other is None
    if own == other:
        return own_open or not other_open
    return (own > other) == (sign > 0)  # type: ignore[operator]


def implies(given: Iterable[Term], wanted: Term, types: TypeOf) -> bool:
    """Does a conjunction imply a condition? False means: not known to."""
    given = list(given)
    if wanted in given:
        return True
    tested = wanted.expression
    if isinstance(tested, exp.Not) and isinstance(tested.this, exp.Is) and isinstance(tested.this.expression, exp.Null):
        name = tested.this.this.name if isinstance(tested.this.this, exp.Column) else None
        return any((v := _values(g, types)) is not None and v.column == name for g in given)
    target = _values(wanted, types)
    if target is None:
        return False
    own = [v for g in given if (v := _values(g, types)) is not None and v.column == target.column]
    return any(v.within(target) for v in own)


def _values(condition: Term, types: TypeOf) -> _Admitted | None:
    """The restriction of one column that a condition is, or None."""
    return _restriction(condition, types(next(iter(condition.columns)))) if len(condition.columns) == 1 else None


@lru_cache(maxsize=10_000)
def _restriction(condition: Term, type_: str) -> _Admitted | None:
    tree = condition.expression
    subject = tree.this
    if not isinstance(subject, exp.Column):
        return None
    name = subject.name
    if isinstance(tree, exp.In):
        if tree.args.get("query") or tree.args.get("unnest") or not tree.expressions:
            return None
        found = [_constant(e, type_) for e in tree.expressions if not isinstance(e, exp.Null)]
        known = [m for m in found if m is not None]
        return _Admitted(name, frozenset(known)) if known and len(known) == len(found) else None
    if not isinstance(tree, exp.EQ | exp.LT | exp.LTE | exp.GT | exp.GTE):
        return None
    value = _constant(tree.expression, type_)
    if value is None:
        return None
    match tree:
        case exp.EQ():
            return _Admitted(name, frozenset([value]))
        case exp.LT() | exp.LTE():
            return _Admitted(name, high=value, open_high=isinstance(tree, exp.LT))
        case _:
            return _Admitted(name, low=value, open_low=isinstance(tree, exp.GT))


def _constant(tree: exp.Expr, type_: str) -> Constant | None:
    """The value of a literal of a column's own kind; None if Spark might convert one side."""
    kind = _EXACT.fullmatch(type_)
    if kind is None:
        return None
    if kind[1]:
        negative = isinstance(tree, exp.Neg)
        literal = tree.this if negative else tree
        if isinstance(literal, exp.Literal) and not literal.is_string and re.fullmatch(r"\d+(\.\d+)?", literal.name):
            return -Decimal(literal.name) if negative else Decimal(literal.name)
    elif kind[2]:
        if isinstance(tree, exp.Literal) and tree.is_string:
            return str(tree.this)
    elif isinstance(tree, exp.Cast) and tree.to.is_type("date") and isinstance(tree.this, exp.Literal):
        text = str(tree.this.this)
        if re.fullmatch(r"\d{4}-\d\d-\d\d", text):
            try:
                return date.fromisoformat(text)
            except ValueError:
                return None
    return None
