"""Paths from the tables of a view up to it: what a row of a table can be in the view (LAZY §3.5).

Law: if no path is met, then σ_p(V) is the same before and after, as a bag: the query may read the stored rows.

A *path* leads from one scan of a table up to the view. It is a tree without branches: what each operator on the path
makes of one row of the scan, as far as that is known from this row alone. A row meets the conditions on the path, and
those of the query on top, or it does not. If no row of a scan's delta meets its path, then at every operator N the
rows that the conditions above let through come from the same rows as before:

    σ, π     σ_p(σ_q(E)) = σ_{p∧q}(E); σ_p(π(E)) = π(σ_{p∘π}(E)): columns that are made of known ones are known
    γ        σ_p(γ_K(E)) = γ_K(σ_p(E)) for p over K: keys are known, if groups hold equal values that are the same bits
    ⋈, ×     σ_p(L ⋈ R) = σ_p(σ_pL(L) ⋈ σ_pR(R)): a side knows its own columns, and those of the other that the join
             makes equal to them, if equal values are the same bits
    ⊎        each part knows its own columns, by place
    others   know nothing (outer, semi and anti joins, windows, top-k, EXCEPT, generators); conditions below them count

The paths of all scans of all changed tables must be unmet. A condition that fails on a row (a cast, a division) makes
the delta matter; so does any construct that is not understood.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from sqlglot import exp

from freshview.algebra.facts import flat_join
from freshview.algebra.nodes import (
    Aggregate,
    Filter,
    Join,
    Node,
    Project,
    Scan,
    Union,
    column,
    names_in,
    same,
)
from freshview.algebra.pruning import pruned
from freshview.algebra.traversal import bottom_up, rewrite
from freshview.delta.aggregates import TypesOf
from freshview.errors import NotMaintainable

_MOST_PATHS = 64  # a definition that reads its tables more often than this is always maintained
HIT = "hit"
_EXACT = re.compile(r"boolean|tinyint|smallint|int|bigint|decimal\(\d+,\d+\)|string|binary|date|timestamp(_ntz)?")


def paths(root: Node, types_of: TypesOf) -> list[Node]:
    """The paths of all scans to the root of a definition."""
    return _Paths(types_of).of(root)


def restricted(path: Node, conditions: Iterable[exp.Expr]) -> Node:
    """A path whose rows also meet those conditions whose columns it has. It gives one constant column."""
    return pruned(Project(_filtered(path, conditions), ((HIT, exp.Literal.number(1)),)), {HIT})


def numbered(path: Node, conditions: Iterable[exp.Expr], number: str) -> Node:
    """The numbers of the rows that meet a restricted path; its scan reads them in a column of that name."""

    def rule(node: Node) -> Node:
        match node:
            case Scan():
                return replace(node, fields=(*node.fields, (number, number)))
            case Project():
                return Project(node.input, (*node.items, (number, column(number))))
        return node

    kept = rewrite(_filtered(path, conditions), rule)
    return pruned(Project(kept, ((number, column(number)),)), {number})


def _filtered(path: Node, conditions: Iterable[exp.Expr]) -> Node:
    for condition in conditions:
        if names_in(condition) <= set(path.columns):
            path = Filter(path, condition)
    return path


def is_open(path: Node) -> bool:
    """Does every row meet a path?"""
    return not any(isinstance(node, Filter) for node in bottom_up(path))


class _Paths:
    def __init__(self, types_of: TypesOf) -> None:
        self._types_of = types_of
        self._done: dict[Node, list[Node]] = {}

    def of(self, node: Node) -> list[Node]:
        if node not in self._done:
            found = self._of(node)
            if len(found) > _MOST_PATHS:
                raise NotMaintainable("definition", "it reads its tables too often", "")
            self._done[node] = found
        return self._done[node]

    def _of(self, node: Node) -> list[Node]:
        match node:
            case Scan():
                return [node]
            case Project():
                return [_projected(path, node) for path in self.of(node.input)]
            case Filter() | Join(kind="inner"):
                return self._joined(node)
            case Aggregate():
                return [self._grouped(path, node) for path in self.of(node.input)]
            case Union():
                return [_by_place(path, p, node) for p in node.parts for path in self.of(p)]
        return [Project(path, ()) for i in node.inputs for path in self.of(i)]

    def _grouped(self, path: Node, node: Aggregate) -> Node:
        """A path through a grouping. The key of a group of -0.0 and 0.0 is one of both: no row determines which."""
        known = [k for k in node.keys if k in path.columns]
        types = self._types_of(path) if known else {}
        return Project(path, same(k for k in known if _EXACT.fullmatch(types[k])))

    def _joined(self, node: Node) -> list[Node]:
        """The paths through filters and inner joins: all conditions hold for the rows of all parts."""
        parts, conditions = flat_join(node)
        equal = [(c.this.name, c.expression.name) for c in conditions if _is_equality(c)]
        pairs = [p for a, b in equal for p in ((a, b), (b, a)) if self._are_same(parts, a, b)]
        return [_met(path, pairs, conditions) for p in parts for path in self.of(p)]

    def _are_same(self, parts: Sequence[Node], a: str, b: str) -> bool:
        """Are equal values of two columns the same bits?"""
        types = [self._types_of(p)[c] for c in (a, b) for p in parts if c in p.columns]
        return len(types) == 2 and types[0] == types[1] and _EXACT.fullmatch(types[0]) is not None


def _is_equality(condition: exp.Expr) -> bool:
    return isinstance(condition, exp.EQ | exp.NullSafeEQ) and all(
        isinstance(side, exp.Column) for side in (condition.this, condition.expression)
    )


def _met(path: Node, pairs: Sequence[tuple[str, str]], conditions: Sequence[exp.Expr]) -> Node:
    """A path through a join: columns equal to known ones are known; then the conditions over known columns apply."""
    own = set(path.columns)
    while new := next(((a, b) for a, b in pairs if a in path.columns and b not in path.columns), None):
        path = Project(path, (*same(path.columns), (new[1], column(new[0]))))
    for condition in conditions:
        copied = _is_equality(condition) and not names_in(condition) <= own  # would compare a column with itself
        if names_in(condition) <= set(path.columns) and not copied:
            path = Filter(path, condition)
    return path


def _projected(path: Node, node: Project) -> Node:
    return Project(path, tuple((n, e) for n, e in node.items if names_in(e) <= set(path.columns)))


def _by_place(path: Node, side: Node, node: Union) -> Node:
    pairs = zip(node.names, side.columns, strict=True)
    return Project(path, tuple((n, column(c)) for n, c in pairs if c in path.columns))
