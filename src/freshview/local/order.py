"""Conditions that can fail, in the order in which Spark computes them.

Spark takes the conditions of a filter one after the other, once it has moved each to the side of a join that it is of.
The embedded engine tests plain comparisons where rows are read, also those that come later, and would not compute, and
not fail on, what comes before: `7 DIV g > 0 AND g > 0` for g = 0. So a condition that can fail ends a filter of its
own, on the side of a join that it is of, and what it leaves is a table before anything above is tested.

Law: the tree has the rows of the one that is given, and fails for more of them at most.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import dropwhile

from sqlglot import exp

from freshview.algebra.nodes import (
    Filter,
    Join,
    Node,
    Project,
    SetOperation,
    Union,
    conjunction,
    conjuncts,
    names_in,
)
from freshview.algebra.traversal import bottom_up, fold, with_inputs

# What fails in Spark for some values: overflow, a divisor of zero, a text that says no value, a date out of range.
_CAN_FAIL = (
    exp.Add, exp.Sub, exp.Mul, exp.Div, exp.IntDiv, exp.Mod, exp.Neg, exp.Abs, exp.Round, exp.Ceil, exp.Floor, exp.Cast,
    exp.TryCast, exp.AddMonths, exp.TsOrDsAdd,
)  # fmt: skip
# The sides of a join whose rows a condition may be tested for before: of the join's own, and of a filter over it.
_OWN = {"inner": ("left", "right"), "semi": ("left", "right"), "left": ("right",), "anti": ("right",)}
_ABOVE = {"inner": ("left", "right"), "semi": ("left",), "left": ("left",), "anti": ("left",)}


def in_order(root: Node) -> tuple[Node, frozenset[Node]]:
    """The tree with its conditions in Spark's order, and the filters whose rows have to be a table."""
    order = _Order()
    made = fold(root, lambda node, inputs: order.ordered(with_inputs(node, inputs)))
    return made, frozenset(order.ended & _tested(made)) if order.ended else frozenset()


def _tested(root: Node) -> set[Node]:
    """The nodes below some other condition."""
    found: set[Node] = set()
    for node in reversed(list(bottom_up(root))):
        if node in found or isinstance(node, Filter | Join):
            found.update(node.inputs)
    return found


class _Order:
    """Puts the conditions of nodes into order, inputs first."""

    def __init__(self) -> None:
        self.ended: set[Node] = set()  # filters that end with a condition that can fail
        self._failing: dict[Node, frozenset[str]] = {}  # the columns of a node whose computation can fail

    def ordered(self, node: Node) -> Node:
        """The node with its own conditions in order, over inputs that are."""
        failing = frozenset[str]().union(*(self._failing[i] for i in node.inputs))
        match node:
            case Project():
                return self._known(node, [name for name, e in node.items if _can_fail(e, failing)])
            case Union() | SetOperation():
                places = [i for n in node.inputs for i, c in enumerate(n.columns) if c in self._failing[n]]
                return self._known(node, [node.names[i] for i in places])
            case Filter() if _can_fail(node.predicate, failing):
                return self._filtered(node.input, _conditions(node.predicate))
            case Join() if node.condition is not None and _can_fail(node.condition, failing):
                return self._joined(node, _conditions(node.condition), failing.intersection(node.columns))
        return self._known(node, failing.intersection(node.columns) if failing else failing)

    def _known(self, node: Node, failing: Iterable[str]) -> Node:
        self._failing[node] = frozenset(failing)
        return node

    def _filtered(self, node: Node, conditions: list[exp.Expr]) -> Node:
        """The rows of a node that meet conditions, those that can fail at the sides of joins that they are of."""
        failing = self._failing[node]
        if not any(_can_fail(c, failing) for c in conditions):
            return self._known(_where(node, conditions), failing)
        if _is_over_join(node):
            match node:
                case Project():
                    items = dict(node.items)
                    below = self._filtered(node.input, [_substituted(c, items) for c in conditions])
                    return self._known(replace(node, input=below), failing)
                case Filter():
                    return self._filtered(node.input, [*_conditions(node.predicate), *conditions])
                case Join():
                    node, conditions = self._moved(node, conditions, _ABOVE)
        return self._in_turn(node, conditions, failing)

    def _in_turn(self, node: Node, conditions: list[exp.Expr], failing: frozenset[str]) -> Node:
        """Filters one over the other, each of which ends with a condition that can fail; the last one need not."""
        waiting: list[exp.Expr] = []
        for place, condition in enumerate(conditions, 1):
            waiting.append(condition)
            can_fail = _can_fail(condition, failing)
            if can_fail or place == len(conditions):
                node = self._known(_where(node, waiting), failing)
                waiting = []
                if can_fail:
                    self.ended.add(node)
        return node

    def _joined(self, node: Join, conditions: list[exp.Expr], failing: frozenset[str]) -> Node:
        """The join; what follows a condition that can fail for a pair of rows is tested after it: above an inner join,
        else as one condition with it."""
        join, left = self._moved(node, conditions, _OWN)
        failing_here = self._failing[join.left] | self._failing[join.right]
        later = list(dropwhile(lambda c: not _can_fail(c, failing_here), _of_pairs(left, join)))
        if len(later) < 2:
            later = []
        if later or join is not node:
            rest = [c for c in left if c not in later]
            if later and node.kind != "inner":
                rest, later = [*rest, _one_after_the_other(later)], []
            join = replace(join, condition=conjunction(rest))
        return self._in_turn(self._known(join, failing), later, failing)

    def _moved(
        self, join: Join, conditions: list[exp.Expr], movable: Mapping[str, Sequence[str]]
    ) -> tuple[Join, list[exp.Expr]]:
        """The join over filtered sides where a condition of one side can fail, and the conditions that are left."""
        failing = self._failing.get(join, frozenset())
        for side, below in (("left", join.left), ("right", join.right)):
            alone = [c for c in conditions if names_in(c) and _is_of(c, below)]
            if side in movable[join.kind] and any(_can_fail(c, self._failing[below]) for c in alone):
                filtered = self._filtered(below, alone)
                join = replace(join, left=filtered) if side == "left" else replace(join, right=filtered)
                conditions = [c for c in conditions if c not in alone]
        self._known(join, failing)
        return join, conditions


def _conditions(tree: exp.Expr) -> list[exp.Expr]:
    """The operands of nested ANDs; BETWEEN is two, of which the engine tests the second one first if it is plain."""
    found: list[exp.Expr] = []
    for condition in conjuncts(tree):
        if type(condition) is exp.Between and not condition.args.get("symmetric"):
            value, low, high = (condition.args[name] for name in ("this", "low", "high"))
            found += [
                exp.GTE(this=value.copy(), expression=low.copy()),
                exp.LTE(this=value.copy(), expression=high.copy()),
            ]
        else:
            found.append(condition)
    return found


def _is_over_join(node: Node) -> bool:
    while isinstance(node, Project | Filter):
        node = node.input
    return isinstance(node, Join)


def _of_pairs(conditions: Sequence[exp.Expr], join: Join) -> list[exp.Expr]:
    """The conditions that are tested for pairs of rows that equalities have found, in Spark's order.

    Those of the left side alone are among them, and come first, where they leave no rows out of that side.
    """
    of_left = [c for c in conditions if names_in(c) and _is_of(c, join.left)] if join.kind in ("left", "anti") else []
    return of_left + [c for c in conditions if _is_of_pairs(c, join)]


def _is_of(condition: exp.Expr, node: Node) -> bool:
    return names_in(condition) <= set(node.columns)


def _is_of_pairs(condition: exp.Expr, join: Join) -> bool:
    """Is it of both sides, and no equality between them?"""
    if _is_of(condition, join.left) or _is_of(condition, join.right):
        return False
    if not isinstance(condition, exp.EQ | exp.NullSafeEQ):
        return True
    sides = (condition.this, condition.expression)
    return not any(_is_of(a, join.left) and _is_of(b, join.right) for a, b in (sides, sides[::-1]))


def _one_after_the_other(conditions: Sequence[exp.Expr]) -> exp.Expr:
    """Their conjunction, in which each is computed for pairs for which the one before it is not false."""
    *before, made = conditions
    for condition in reversed(before):
        made = exp.Case().when(exp.not_(condition), exp.false()).else_(exp.and_(condition, made, copy=True))
    return made


def _where(node: Node, conditions: Sequence[exp.Expr]) -> Filter:
    return Filter(node, exp.and_(*conditions, copy=True))


def _substituted(expression: exp.Expr, items: Mapping[str, exp.Expr]) -> exp.Expr:
    """The expression over what a projection reads."""
    return expression.transform(
        lambda part: exp.paren(items[part.name], copy=True) if isinstance(part, exp.Column) else part
    )


def _can_fail(expression: exp.Expr, failing: frozenset[str]) -> bool:
    """Can it fail for some rows? What is computed of constants fails before there are rows."""
    if type(expression) is exp.Column:
        return expression.name in failing
    if failing and names_in(expression) & failing:
        return True
    return any(names_in(part) for part in expression.find_all(*_CAN_FAIL))
