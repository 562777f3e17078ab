"""Relational algebra on bags: small frozen nodes over uniquely named columns.

A node names its output columns; no two nodes of a tree give the same name to different things. Nodes are compared and
hashed by identity. Scalar expressions are sqlglot expressions whose columns are those names, unqualified. Trees are
checked when they are built: an expression may only use columns of its input.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from sqlglot import exp

from freshview.errors import NotMaintainable


class IllegalTree(NotMaintainable):
    """An expression uses a column that its input does not have."""


WEIGHT = "__w"  # the signed multiplicity of a row in a delta


@dataclass(frozen=True, eq=False)
class Node:
    """A relation: a bag of rows over `columns`."""

    @property
    def inputs(self) -> tuple[Node, ...]:
        raise NotImplementedError

    @cached_property
    def columns(self) -> tuple[str, ...]:
        raise NotImplementedError


@dataclass(frozen=True)
class Table:
    """A table or view, by its name in the definition."""

    name: str


@dataclass(frozen=True)
class Stored:
    """The rows that are stored for the view itself; in a plan for several views, for one of them."""

    view: int = 0  # its id; 0 in a plan for one view


@dataclass(frozen=True)
class Shared:
    """A part of the plan that several other parts read, computed before them."""

    number: int


ScanSource = Table | Stored | Shared


@dataclass(frozen=True, eq=False)
class Scan(Node):
    """Stored rows; `fields` pairs the stored columns with their names in this tree.

    `version` names the state: "now" in a definition; in a delta plan "old", "new", or "delta", the change from old to
    new with a signed weight beside each row. Rows that one of the `semijoins` does not admit make no difference to
    the plan: they may be left out.
    """

    source: ScanSource
    fields: tuple[tuple[str, str], ...]
    version: str = "now"
    semijoins: tuple[SemiJoin, ...] = ()

    @property
    def relation(self) -> str:
        """The name of the table or view that is read."""
        assert isinstance(self.source, Table)
        return self.source.name

    @property
    def inputs(self) -> tuple[Node, ...]:
        return ()

    @cached_property
    def columns(self) -> tuple[str, ...]:
        return tuple(name for _, name in self.fields) + ((WEIGHT,) if self.version == "delta" else ())


@dataclass(frozen=True)
class SemiJoin:
    """Admits rows whose `column` has a value of one of the sources (scans, stored columns), or NULL if `nulls`.

    Of a source only the values of rows that pass all of its tests are needed; a reader may leave tests out.
    """

    column: str
    sources: tuple[tuple[Scan, str], ...]
    nulls: bool
    tests: tuple[tuple[RowCriterion, ...], ...] = ()  # of each source; (): there are none

    @property
    def tested(self) -> Iterable[tuple[Scan, str, tuple[RowCriterion, ...]]]:
        """The sources, each with its tests."""
        tests = self.tests or ((),) * len(self.sources)
        return [(scan, name, own) for (scan, name), own in zip(self.sources, tests, strict=True)]


@dataclass(frozen=True, eq=False)
class RowCriterion:
    """What rows of one scan pass, in its stored columns: an expression that is true for them, or a restriction."""

    test: exp.Expr | SemiJoin


@dataclass(frozen=True, eq=False)
class Values(Node):
    """Constant rows."""

    names: tuple[str, ...]
    rows: tuple[tuple[exp.Expr, ...], ...]

    @property
    def inputs(self) -> tuple[Node, ...]:
        return ()

    @cached_property
    def columns(self) -> tuple[str, ...]:
        return self.names


@dataclass(frozen=True, eq=False)
class Unary(Node):
    """A node over one input, by default with the columns of that input."""

    input: Node

    @property
    def inputs(self) -> tuple[Node, ...]:
        return (self.input,)

    @cached_property
    def columns(self) -> tuple[str, ...]:
        return self.input.columns


@dataclass(frozen=True, eq=False)
class Filter(Unary):
    """Rows for which the predicate is true."""

    predicate: exp.Expr

    def __post_init__(self) -> None:
        require(self.predicate, self.input.columns)


@dataclass(frozen=True, eq=False)
class Project(Unary):
    """Each row as (name, expression) items."""

    items: tuple[tuple[str, exp.Expr], ...]

    def __post_init__(self) -> None:
        for _, expression in self.items:
            require(expression, self.input.columns)

    @cached_property
    def columns(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.items)


@dataclass(frozen=True, eq=False)
class Join(Node):
    """A join of kind inner, left, semi or anti; all four are linear in the left input.

    Right joins are swapped left joins; a full join is a left join and the unmatched rows of the right side.
    """

    left: Node
    right: Node
    kind: str
    condition: exp.Expr | None = None
    small: str = ""  # "left" or "right": that side is known to be small, to be broadcast to the other

    def __post_init__(self) -> None:
        assert self.kind in ("inner", "left", "semi", "anti")
        shared = set(self.left.columns) & set(self.right.columns)
        if shared:
            raise NotMaintainable("join", f"both sides give {', '.join(sorted(shared))}", "")
        if self.condition is not None:
            require(self.condition, self.left.columns + self.right.columns)

    @property
    def inputs(self) -> tuple[Node, ...]:
        return (self.left, self.right)

    @cached_property
    def columns(self) -> tuple[str, ...]:
        return self.left.columns + (self.right.columns if self.kind in ("inner", "left") else ())


@dataclass(frozen=True, eq=False)
class Aggregate(Unary):
    """Groups by columns of the input. Without keys there is always exactly one row."""

    keys: tuple[str, ...]
    items: tuple[tuple[str, exp.Expr], ...]

    def __post_init__(self) -> None:
        for key in self.keys:
            require(column(key), self.input.columns)
        for _, expression in self.items:
            require(expression, self.input.columns)

    @cached_property
    def columns(self) -> tuple[str, ...]:
        return self.keys + tuple(name for name, _ in self.items)


@dataclass(frozen=True, eq=False)
class Union(Node):
    """All rows of all inputs, matched by place."""

    parts: tuple[Node, ...]
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        assert all(len(p.columns) == len(self.names) for p in self.parts)

    @property
    def inputs(self) -> tuple[Node, ...]:
        return self.parts

    @cached_property
    def columns(self) -> tuple[str, ...]:
        return self.names


@dataclass(frozen=True, eq=False)
class SetOperation(Node):
    """EXCEPT ALL (monus) or INTERSECT ALL (minimum) of two bags, matched by place, NULLs equal."""

    left: Node
    right: Node
    kind: str  # "except" | "intersect"
    names: tuple[str, ...]
    sets: bool = False  # both sides were made sets before: EXCEPT or INTERSECT without ALL

    @property
    def inputs(self) -> tuple[Node, ...]:
        return (self.left, self.right)

    @cached_property
    def columns(self) -> tuple[str, ...]:
        return self.names


@dataclass(frozen=True, eq=False)
class Window(Unary):
    """The input's rows with window functions beside them; all share one PARTITION BY (columns)."""

    partition: tuple[str, ...]
    items: tuple[tuple[str, exp.Expr], ...]

    def __post_init__(self) -> None:
        for _, expression in self.items:
            require(expression, self.input.columns)

    @cached_property
    def columns(self) -> tuple[str, ...]:
        return self.input.columns + tuple(name for name, _ in self.items)


@dataclass(frozen=True, eq=False)
class Generate(Unary):
    """Each row beside each row that a generator (explode …) makes of it."""

    generator: exp.Expr
    outputs: tuple[str, ...]
    outer: bool = False

    def __post_init__(self) -> None:
        require(self.generator, self.input.columns)

    @cached_property
    def columns(self) -> tuple[str, ...]:
        return self.input.columns + self.outputs


@dataclass(frozen=True, eq=False)
class TopK(Unary):
    """The first rows by an order over the whole input."""

    order: tuple[exp.Expr, ...]
    limit: int | None  # None: all but the first `offset`
    offset: int = 0


@dataclass(frozen=True)
class Lowered:
    """A query as algebra: the tree, and the columns of the result with their names, in order."""

    node: Node
    outputs: tuple[tuple[str, str], ...]  # (column of the tree, name)


def column(name: str) -> exp.Column:
    """A reference to a column of the tree."""
    return exp.Column(this=exp.Identifier(this=name, quoted=True))  # `exp.column` copies the identifier


def same(names: Iterable[str]) -> tuple[tuple[str, exp.Expr], ...]:
    """Items that pass columns on unchanged."""
    return tuple((n, column(n)) for n in names)


def chosen(node: Node, names: tuple[str, ...]) -> Node:
    """A node with exactly these columns, in this order."""
    return node if node.columns == names else Project(node, same(names))


def names_in(expression: exp.Expr) -> set[str]:
    """The columns that an expression uses."""
    if isinstance(expression, exp.Column):  # most are: items that pass columns on
        return {expression.name}
    return {c.name for c in expression.find_all(exp.Column)}


def conjuncts(tree: exp.Expr) -> list[exp.Expr]:
    """The operands of nested ANDs, brackets removed."""
    tree = tree.unnest()
    return [c for side in tree.flatten() for c in conjuncts(side)] if isinstance(tree, exp.And) else [tree]


def conjunction(conditions: Sequence[exp.Expr]) -> exp.Expr | None:
    """All conditions joined by AND; None if there are none."""
    return exp.and_(*conditions, copy=True) if conditions else None


def equalities(join: Join, further: Sequence[exp.Expr] = ()) -> list[tuple[exp.Expr, exp.Expr, bool]]:
    """(left, right, null-safe) of each equality between the sides in the join's condition or in `further`."""
    left, right = set(join.left.columns), set(join.right.columns)
    found = []
    for c in [*(conjuncts(join.condition) if join.condition is not None else ()), *further]:
        if isinstance(c, exp.EQ | exp.NullSafeEQ):
            for a, b in ((c.this, c.expression), (c.expression, c.this)):
                if names_in(a) and names_in(b) and names_in(a) <= left and names_in(b) <= right:
                    found.append((a, b, isinstance(c, exp.NullSafeEQ)))
    return found


def require(expression: exp.Expr, available: tuple[str, ...]) -> None:
    """Raise IllegalTree if an expression uses other columns than these, or holds a subquery."""
    missing = names_in(expression) - set(available)
    if missing:
        raise IllegalTree(
            f"expression {expression.sql(dialect='spark')}",
            f"uses {', '.join(sorted(missing))}, not given by its input",
            "",
        )
    if expression.find(exp.Query):  # Spark would look its tables up in its own catalog
        raise IllegalTree("expression", "holds a subquery", "")
