"""The key of a query's rows: columns on which no two of its rows ever agree, by identity (NULL is NULL).

Each operator states functional dependencies X → Y: rows that agree on X agree on Y. Besides columns, a dependency may
name the row of a node's own (`Node` as an attribute): the rows of a scan, the groups of an aggregate. A set of columns
is a key if all rows that make up a result row depend on it.

    scan          its row → its columns; key of the table → its row
    σ a = b       a → b and b → a; so in an inner join's condition
    π             a column under another name depends on it, and it on the column
    ⋈             the dependencies of both sides; a row is a row of each side
    ⟕             X → Y of the right side becomes rows(left) ∪ (X − M) → Y: one row of the left meets rows of the right
                  that agree on M, the columns that the condition equates with the left, or a single row of NULLs
    ⋉, ▷, window, top  those of the (left) input
    γ             keys → group → columns; dependencies among the keys remain
    except, intersect  those of the left side, whose rows they are
    ∪, explode    a row of which nothing is known

SQL equality implies identity only for the types in `SourceFacts.exact`, and only between equal types.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sqlglot import exp

from freshview.algebra.nodes import (
    Aggregate,
    Filter,
    Generate,
    Join,
    Node,
    Project,
    Scan,
    SetOperation,
    TopK,
    Union,
    Values,
    Window,
    conjuncts,
)
from freshview.algebra.traversal import fold

Attributes = frozenset[str | Node]


@dataclass(frozen=True)
class SourceFacts:
    """What is known of a stored relation: its key, if it has one, and the types of columns whose equality is exact."""

    key: tuple[str, ...] = ()
    exact: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Dependencies:
    """The dependencies of a node's rows."""

    rows: Attributes  # together they are a row of the node
    given: tuple[tuple[Attributes, Attributes], ...] = ()
    exact: Mapping[str, str] = field(default_factory=dict)  # types of columns that come unchanged from a scan

    @property
    def attributes(self) -> Attributes:
        return self.rows.union(*(x | y for x, y in self.given))

    def determined(self, by: Iterable[str | Node]) -> Attributes:
        """All attributes that depend on some: their closure."""
        found, left = frozenset(by), list(self.given)
        while True:
            rest = [(x, y) for x, y in left if not x <= found]
            if len(rest) == len(left):
                return found
            found = found.union(*(y for x, y in left if x <= found))
            left = rest

    def identified(self, by: Iterable[str]) -> bool:
        """Do no two rows agree on these columns?"""
        return self.rows <= self.determined(by)

    def key(self, columns: Sequence[str]) -> tuple[str, ...]:
        """A smallest key among these columns, of which earlier ones are preferred; () if there is none, or if the node
        never has two rows."""
        if not self.identified(columns):
            return ()
        kept = list(columns)
        for name in reversed(columns):
            fewer = [c for c in kept if c != name]
            kept = fewer if self.identified(fewer) else kept
        return tuple(kept)


def dependencies(tree: Node, sources: Mapping[str, SourceFacts]) -> Dependencies:
    """The dependencies of a tree's rows over these relations."""

    def of(node: Node, inputs: tuple[Dependencies, ...]) -> Dependencies:
        match node:
            case Scan():
                return _scanned(node, sources.get(node.relation, SourceFacts()))
            case Values():
                row = _row(node) if len(node.rows) > 1 else frozenset[str | Node]()
                return Dependencies(row, ((row, frozenset(node.columns)),))
            case Filter():
                return _with(inputs[0], _equalities(inputs[0].exact, node.predicate))
            case Project():
                return _projected(node, inputs[0])
            case Join():
                return _joined(node, *inputs)
            case Aggregate():
                return _grouped(node, inputs[0])
            case SetOperation():
                return _renamed(inputs[0], dict(zip(node.names, node.left.columns, strict=True)), node.columns)
            case TopK():
                return inputs[0]
            case Window():
                return _without(inputs[0], {name for name, _ in node.items})
            case Generate():
                known = _without(inputs[0], set(node.outputs))
                return replace(known, rows=known.rows | _row(node))
            case Union():
                return Dependencies(_row(node))
        raise TypeError(type(node).__name__)

    return fold(tree, of)


def _row(node: Node) -> Attributes:
    return frozenset((node,))


def _with(known: Dependencies, more: Iterable[tuple[Attributes, Attributes]]) -> Dependencies:
    return replace(known, given=(*known.given, *more))


def _scanned(node: Scan, source: SourceFacts) -> Dependencies:
    row, names = _row(node), dict(node.fields)
    given: list[tuple[Attributes, Attributes]] = [(row, frozenset(node.columns))]
    if source.key and all(k in names for k in source.key):
        given.append((frozenset(names[k] for k in source.key), row))
    exact = {name: source.exact[stored] for stored, name in node.fields if stored in source.exact}
    return Dependencies(row, tuple(given), exact)


def _same(a: str, b: str) -> list[tuple[Attributes, Attributes]]:
    one, other = frozenset[str | Node]((a,)), frozenset[str | Node]((b,))
    return [(one, other), (other, one)]


def _pairs(exact: Mapping[str, str], condition: exp.Expr | None) -> list[tuple[str, str]]:
    """The columns that a condition makes identical: equality of other types, or after a cast, is not identity."""
    found = []
    for part in conjuncts(condition) if condition is not None else ():
        if isinstance(part, exp.EQ | exp.NullSafeEQ):
            one, other = part.this.unnest(), part.expression.unnest()
            if isinstance(one, exp.Column) and isinstance(other, exp.Column):
                type_ = exact.get(one.name)
                if type_ is not None and type_ == exact.get(other.name):
                    found.append((one.name, other.name))
    return found


def _equalities(exact: Mapping[str, str], condition: exp.Expr | None) -> list[tuple[Attributes, Attributes]]:
    return [rule for a, b in _pairs(exact, condition) for rule in _same(a, b)]


def _projected(node: Project, known: Dependencies) -> Dependencies:
    passed = {name: e.name for name, e in node.items if isinstance(e, exp.Column)}
    return _renamed(known, passed, node.columns)


def _renamed(known: Dependencies, passed: Mapping[str, str], columns: Sequence[str]) -> Dependencies:
    """The dependencies of columns of which some are `passed` on, by name, from the input's columns."""
    anew = {c for c in columns if passed.get(c) != c} & (known.attributes | known.exact.keys())
    rest = _without(known, anew)
    given, exact = list(rest.given), dict(rest.exact)
    for name, column in passed.items():
        if name != column and not {name, column} & anew:
            given += _same(name, column)
            exact |= {name: exact[column]} if column in exact else {}
    return Dependencies(known.rows, tuple(given), exact)


def _without(known: Dependencies, names: Collection[str | Node]) -> Dependencies:
    """The dependencies that do not use these names: they mean something else from here on."""
    given = tuple((x, y.difference(names)) for x, y in known.given if not x.intersection(names))
    return Dependencies(known.rows, given, {n: t for n, t in known.exact.items() if n not in names})


def _joined(node: Join, left: Dependencies, right: Dependencies) -> Dependencies:
    if node.kind in ("semi", "anti"):
        return left
    if left.attributes & right.attributes:  # both sides read one node: each has rows of its own
        return Dependencies(_row(node))
    exact, rows = {**left.exact, **right.exact}, left.rows | right.rows
    pairs = _pairs(exact, node.condition)
    if node.kind == "inner":
        both = Dependencies(rows, (*left.given, *right.given), exact)
        return _with(both, [rule for a, b in pairs for rule in _same(a, b)])
    met = {c for pair in pairs if not set(pair) <= set(node.right.columns) for c in pair} & set(node.right.columns)
    return Dependencies(rows, (*left.given, *((left.rows | x - met, y) for x, y in right.given)), exact)


def _grouped(node: Aggregate, known: Dependencies) -> Dependencies:
    keys, group = frozenset[str | Node](node.keys), _row(node)
    known = _without(known, {name for name, _ in node.items})
    # Spark may show another value of a group than its rows have (0.0 for -0.0). No table has such a column in its key,
    # and no equality of such columns is taken for identity: they determine nothing unless they were grouped before.
    given = (*known.given, (keys, group), (group, frozenset[str | Node](node.columns)))
    return Dependencies(group, given, {k: known.exact[k] for k in node.keys if k in known.exact})
