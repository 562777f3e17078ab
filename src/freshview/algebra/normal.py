"""Normal form of trees: which nodes give equal bags, whatever their columns are called.

Columns are named anew from what they hold, operator by operator, and equal operators over equal inputs get one number.

    number(A) = number(B)   ⟹   A and B give the same bag over the same states, where columns of equal names correspond

The converse does not hold: joins in another order, or columns of a union in another order, count as different.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from sqlglot import exp

from freshview.algebra.nodes import (
    WEIGHT,
    Aggregate,
    Filter,
    Generate,
    Join,
    Node,
    Project,
    RowCriterion,
    Scan,
    SemiJoin,
    SetOperation,
    TopK,
    Union,
    Values,
    Window,
    column,
    conjuncts,
)
from freshview.algebra.traversal import bottom_up, with_inputs

_BLOCKS = (Aggregate, Window, SetOperation, TopK)  # what rules take as one piece: equal ones can become one node


@dataclass(frozen=True)
class Normal:
    """The normal form of a node: the number of its class, and the canonical name of each of its columns."""

    number: int
    names: Mapping[str, str]


class NormalForms:
    """Normal forms of the nodes of one tree or of several."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._known: dict[Node, Normal] = {}
        self._tests: dict[RowCriterion, int] = {}

    def of(self, root: Node) -> Normal:
        """Return the normal form of a node."""
        if root not in self._known:
            for node in bottom_up(root):
                if node not in self._known:
                    self._known[node] = self._formed(node)
        return self._known[root]

    def _formed(self, node: Node) -> Normal:
        forms = [self._known[i] for i in node.inputs]
        given = {c: f"{side}:{name}" for side, form in enumerate(forms) for c, name in form.names.items()}
        operator, made = self._described(node, forms, given)
        key = (type(node), tuple(f.number for f in forms), operator, frozenset(made.values()))
        number = self._numbers.setdefault(key, len(self._numbers))
        return Normal(number, {c: f"{number}.{self._numbered(what)}" for c, what in made.items()})

    def _numbered(self, what: Hashable) -> int:
        return self._numbers.setdefault(("column", what), len(self._numbers))

    def _described(
        self, node: Node, forms: list[Normal], given: Mapping[str, str]
    ) -> tuple[Hashable, dict[str, Hashable]]:
        """What an operator does, and what each of its columns holds; `given` has the canonical names of its inputs'."""
        places: dict[str, Hashable] = {c: i for i, c in enumerate(node.columns)}
        handed: dict[str, Hashable] = {c: given[c] for c in node.columns if c in given}
        match node:
            case Scan():
                fields: dict[str, Hashable] = {name: stored for stored, name in node.fields}
                weight: dict[str, Hashable] = {WEIGHT: WEIGHT} if node.version == "delta" else {}
                return (node.source, node.version, self._restrictions(node)), {**fields, **weight}
            case Values():
                return tuple(tuple(_meaning(e, given) for e in row) for row in node.rows), places
            case Filter():
                return _conditions(node.predicate, given), handed
            case Project():
                return None, {c: _meaning(e, given) for c, e in node.items}
            case Join():
                return (node.kind, node.small, _conditions(node.condition, given)), handed
            case Aggregate():
                keys = frozenset(given[k] for k in node.keys)
                return keys, {**{k: given[k] for k in node.keys}, **{c: _meaning(e, given) for c, e in node.items}}
            case Window():
                partition = frozenset(given[c] for c in node.partition)
                return partition, {**handed, **{c: _meaning(e, given) for c, e in node.items}}
            case Generate():
                generator = (_meaning(node.generator, given), node.outer)
                return generator, {**handed, **{c: ("generated", i) for i, c in enumerate(node.outputs)}}
            case TopK():
                return (tuple(_meaning(e, given) for e in node.order), node.limit, node.offset), handed
            case Union():
                return _by_place(node, forms), places
            case SetOperation():
                return (node.kind, node.sets, _by_place(node, forms)), places
        raise TypeError(type(node).__name__)

    def _restrictions(self, scan: Scan) -> frozenset[Hashable]:
        """The semi-joins of a scan, each with the numbers of the scans whose values it takes."""
        return frozenset(self._restriction(s) for s in scan.semijoins)

    def _restriction(self, by: SemiJoin) -> Hashable:
        sources = ((self.of(source).number, c, frozenset(map(self._tested, tests))) for source, c, tests in by.tested)
        return by.column, by.nulls, frozenset(sources)

    def _tested(self, test: RowCriterion) -> int:
        """A number for a test: equal ones have the same."""
        if test not in self._tests:
            asked = test.test
            form = self._restriction(asked) if isinstance(asked, SemiJoin) else asked.sql(dialect="spark")
            self._tests[test] = self._numbers.setdefault(("test", form), len(self._numbers))
        return self._tests[test]


def merged(root: Node) -> Node:
    """Return the tree with one node for all equal groupings, windows, set operations and limits, renamed for each use.

    Joins, filters and projections stay where they are: rules take a block of joins apart as one piece.
    """
    forms = NormalForms()
    first: dict[int, tuple[Normal, Node]] = {}
    done: dict[Node, Node] = {}
    for node in bottom_up(root):
        done[node] = with_inputs(node, tuple(done[i] for i in node.inputs))
        if not isinstance(node, _BLOCKS):
            continue
        form = forms.of(node)
        earlier, one = first.setdefault(form.number, (form, done[node]))
        if one is not done[node]:
            back = {canonical: c for c, canonical in earlier.names.items()}
            done[node] = Project(one, tuple((c, column(back[form.names[c]])) for c in node.columns))
    return done[root]


def _meaning(expression: exp.Expr, given: Mapping[str, str]) -> Hashable:
    """An expression over canonical columns. sqlglot compares some texts without case: the rendered text is exact."""

    def renamed(part: exp.Expr) -> exp.Expr:
        return column(given[part.name]) if isinstance(part, exp.Column) else part

    canonical = expression.transform(renamed)
    return canonical, canonical.sql(dialect="spark")


def _conditions(condition: exp.Expr | None, given: Mapping[str, str]) -> frozenset[Hashable]:
    return frozenset(_meaning(c, given) for c in conjuncts(condition)) if condition is not None else frozenset()


def _by_place(node: Union | SetOperation, forms: list[Normal]) -> Hashable:
    """The columns of each input, in order."""
    return tuple(tuple(f.names[c] for c in i.columns) for i, f in zip(node.inputs, forms, strict=True))
