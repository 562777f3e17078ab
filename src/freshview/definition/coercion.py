"""Spark's implicit conversions, made explicit in the tree, so that a delta has the converted values.

Branches of a set operation are cast to their common type: the delta of one branch alone would else have that branch's
own type. EXCEPT and INTERSECT convert values before they make sets of them: '1' and '01' may become one. IN (query) is
an equality in the tree; without ANSI, Spark converts the sides of IN to strings where it converts those of `=` to
numbers, so that such an IN has no delta rule. Nor has NOT IN over floating-point numbers: Spark compares them by their
bits there, and by value everywhere else. A correlated scalar subquery becomes groups that are joined by `key = outer`;
if that comparison converts keys of several groups to one value, each group would answer: it has no delta rule. Groups
make 0.0 of -0.0, but Spark's optimiser drops a grouping by constants or of one row: those have no delta rule either.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from sqlglot import exp

from freshview.algebra.nodes import (
    Aggregate,
    Filter,
    Join,
    Lowered,
    Node,
    Project,
    SetOperation,
    TopK,
    Union,
    Values,
    Window,
    column,
    equalities,
    names_in,
)
from freshview.algebra.traversal import bottom_up, rewrite, scans, with_inputs
from freshview.delta.aggregates import TypesOf
from freshview.sql.fragments import OF_IN, Unsupported

_INTEGERS = {"tinyint", "smallint", "int", "bigint"}


def coerced(lowered: Lowered, types_of: TypesOf, chars: Collection[tuple[str, str]] = ()) -> Lowered:
    """The tree with Spark's implicit conversions as casts. `chars` are the (relation, column) pairs of type CHAR."""
    found = rewrite(lowered.node, lambda node: _widened(node, types_of))
    constants: dict[Node, frozenset[str]] = {}
    is_one_row: dict[Node, bool] = {}
    for node in bottom_up(found):
        constants[node] = _constants(node, [constants[i] for i in node.inputs])
        is_one_row[node] = _is_one_row(node, [is_one_row[i] for i in node.inputs])
        if isinstance(node, Join) and node.kind == "left":
            _require_one_group(node, types_of)
        if isinstance(node, Join) and node.condition is not None:
            _require_in_as_equality(node, types_of, chars)
        if isinstance(node, Aggregate | SetOperation):
            doubtful = [i.columns if is_one_row[i] else constants[i] for i in node.inputs]
            _require_normalised_keys(node, doubtful, types_of)
    return Lowered(found, lowered.outputs)


def _widened(node: Node, types_of: TypesOf) -> Node:
    if not isinstance(node, Union | SetOperation):
        return node
    common = types_of(node)
    parts = []
    for part in node.inputs:
        own = types_of(part)
        pairs = list(zip(part.columns, node.columns, strict=True))
        if all(own[c] == common[n] for c, n in pairs):
            parts.append(part)
            continue
        items = [(c, column(c) if own[c] == common[n] else _cast(c, common[n])) for c, n in pairs]
        if isinstance(node, SetOperation) and node.sets:
            assert isinstance(part, Aggregate)  # lowering has made it a set
            parts.append(Aggregate(Project(part.input, tuple(items)), part.keys, ()))
        else:
            parts.append(Project(part, tuple(items)))
    return with_inputs(node, tuple(parts))


def _require_in_as_equality(node: Join, types_of: TypesOf, chars: Collection[tuple[str, str]]) -> None:
    """Raise if IN (query) does not convert as `=` does: it does so under ANSI, among numbers, and of equal types.

    It does not for CHAR columns: `=` pads the shorter value, IN (query) compares values as they are.
    """
    assert node.condition is not None
    both = [e for e in node.condition.find_all(exp.EQ) if e.meta_get(OF_IN)]
    if not both:
        return
    if all(any((s.relation, c) in chars for s in scans(side) for c, _ in s.fields) for side in node.inputs):
        raise Unsupported("IN (query) over CHAR columns")
    sides = [(f"side{i}", s.copy()) for i, s in enumerate(s for e in both for s in (e.this, e.expression))]
    lax = exp.Add(this=exp.Literal.string("1"), expression=exp.Literal.number(1))  # a double without ANSI
    types = types_of(Project(Join(node.left, node.right, "inner"), (*sides, ("lax", lax))))
    for one, two in zip(sides[::2], sides[1::2], strict=True):
        a, b = types[one[0]], types[two[0]]
        if node.kind == "anti" and _INEXACT.search(f"{a} {b}"):
            raise Unsupported(f"NOT IN (query) over {a}, where Spark distinguishes -0.0 from 0.0")
        if a != b and types["lax"] == "double" and not all(map(_NUMBER.fullmatch, (a, b))):
            raise Unsupported(f"IN (query) that compares {a} with {b}")


def _require_normalised_keys(
    node: Aggregate | SetOperation, below: Sequence[Collection[str]], types_of: TypesOf
) -> None:
    """Raise if Spark may leave -0.0 in a key as it is: where its optimiser finds a constant, or a single row. `below`
    are the columns of each input that may be one."""
    for given, doubtful in zip(node.inputs, below, strict=True):
        keys = [k for k in (node.keys if isinstance(node, Aggregate) else given.columns) if k in doubtful]
        if keys and _INEXACT.search(" ".join(map(types_of(given).__getitem__, keys))):
            raise Unsupported("groups by a constant floating-point number, or of a single row, where -0.0 may stay")


def _constants(node: Node, below: Sequence[frozenset[str]]) -> frozenset[str]:
    """The columns of a node that may be the same in all rows, whatever tables hold; `below` are those of its inputs."""
    match node:
        case Values():
            return frozenset(node.columns if len(node.rows) <= 1 else ())
        case Project():
            return frozenset(name for name, expression in node.items if names_in(expression) <= below[0])
        case Union() | SetOperation():
            places = [[c in found for c in i.columns] for i, found in zip(node.inputs, below, strict=True)]
            return frozenset(name for name, *maybe in zip(node.names, *places, strict=True) if any(maybe))
    return frozenset().union(*below).intersection(node.columns)


def _is_one_row(node: Node, below: Sequence[bool]) -> bool:
    """Can a node have one row at most, as Spark sees without looking at data? `below` has the answers of its inputs."""
    match node:
        case Aggregate():
            return not node.keys or below[0]
        case TopK():
            return (node.limit is not None and node.limit <= 1) or below[0]
        case Values():
            return len(node.rows) <= 1
        case Filter() | Project() | Window() | Join():
            return all(below)
    return False


_INEXACT = re.compile(r"\b(float|double)\b")
_NUMBER = re.compile(r"tinyint|smallint|int|bigint|float|double|decimal\(\d+,\d+\)")


def _cast(name: str, type_: str) -> exp.Expr:
    return exp.cast(column(name), type_, dialect="spark")


def _require_one_group(node: Join, types_of: TypesOf) -> None:
    """Raise if a row of the left may meet several groups of a scalar subquery. (A join to groups has the same tree.)"""
    below = node.right
    while isinstance(below, Project | Filter):
        below = below.input
    if not isinstance(below, Aggregate) or node.condition is None:
        return
    types = types_of(node.right)
    for outer, key, _ in equalities(node):
        if isinstance(key, exp.Column):
            given = types_of(Project(node.left, (("outer", outer.copy()),)))["outer"]
            kinds = {types[key.name], given}
            if len(kinds) > 1 and not kinds <= _INTEGERS:
                raise Unsupported(f"a correlated subquery that compares {types[key.name]} with {given}")
