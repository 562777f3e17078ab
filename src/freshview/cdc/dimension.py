"""Dimension views over remote tables (PARTIAL §5.2, Definition 2): projections, selections, joins to a primary key.

Law (§5.6): in S ⋈ T with S.a = T.pk, T.pk depends on S.pk, so the key of S identifies the rows of the join. By
induction the key of the leftmost table identifies the rows of the view; no other key has to stay. A column that a join
equates with a column of that key serves as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from freshview.cdc.captures import Capture, reporting
from freshview.errors import NotMaintainable
from freshview.relation.schema import Column, Schema
from freshview.relation.types import INTEGERS, DataType


@dataclass(frozen=True, eq=False)
class RemoteNode:
    """A relation without duplicates; `schema.key` is empty if a projection dropped its key."""

    @property
    def inputs(self) -> tuple[RemoteNode, ...]:
        raise NotImplementedError

    @cached_property
    def schema(self) -> Schema:
        raise NotImplementedError

    @cached_property
    def equal_columns(self) -> tuple[frozenset[str], ...]:
        """Classes of columns that have equal values in every row."""
        return tuple(c for i in self.inputs for c in i.equal_columns)


@dataclass(frozen=True, eq=False)
class Remote(RemoteNode):
    """A table of another system: its new state can be queried by values, its old state cannot."""

    name: str
    table: Schema
    capture: Capture

    def __post_init__(self) -> None:
        if not self.table.key:
            raise NotMaintainable(f"remote table {self.name}", "it has no primary key", "Name its key columns.")

    @property
    def inputs(self) -> tuple[RemoteNode, ...]:
        return ()

    @cached_property
    def schema(self) -> Schema:
        return self.table


@dataclass(frozen=True)
class RowTest:
    """A predicate over rows: `test` returns a mask for a table of `columns`, whose NULLs count as false."""

    columns: tuple[str, ...]
    test: Callable[[pa.Table], pa.ChunkedArray]
    text: str = ""  # for EXPLAIN


@dataclass(frozen=True, eq=False)
class _OverOneInput(RemoteNode):
    """An operator over one input."""

    input: RemoteNode

    @property
    def inputs(self) -> tuple[RemoteNode, ...]:
        return (self.input,)


@dataclass(frozen=True, eq=False)
class RowFilter(_OverOneInput):
    """The rows that satisfy a condition."""

    condition: RowTest

    def __post_init__(self) -> None:
        for name in self.condition.columns:
            self.input.schema.column(name)

    @cached_property
    def schema(self) -> Schema:
        return self.input.schema


@dataclass(frozen=True, eq=False)
class Projection(_OverOneInput):
    """Columns of the input as (name, column of the input) pairs."""

    columns: tuple[tuple[str, str], ...]

    def __post_init__(self) -> None:
        assert self.schema

    @cached_property
    def sources(self) -> dict[str, str]:
        """The column of the input behind each column."""
        return {name: self.input.schema.column(source).name for name, source in self.columns}

    @cached_property
    def schema(self) -> Schema:
        given = self.input.schema
        columns = tuple(_renamed(given.column(source), name) for name, source in self.columns)
        key = [self._name_of(column) for column in given.key]
        return Schema(columns, tuple(k for k in key if k is not None) if None not in key else ())

    def _name_of(self, column: str) -> str | None:
        """The name under which a column of the input, or one that equals it, is kept."""
        same = {self.input.schema.column(column).name}.union(*(c for c in self.input.equal_columns if column in c))
        return next((name for name, source in self.sources.items() if source in same), None)

    @cached_property
    def equal_columns(self) -> tuple[frozenset[str], ...]:
        classes = [frozenset(n for n, s in self.sources.items() if s in c) for c in self.input.equal_columns]
        repeated = [frozenset(n for n, s in self.sources.items() if s == source) for source in self.sources.values()]
        return _merged([c for c in (*classes, *repeated) if len(c) > 1])


@dataclass(frozen=True, eq=False)
class Extend(_OverOneInput):
    """The input's columns, and further ones that are computed from each row: `compute` returns those alone."""

    columns: tuple[Column, ...]
    compute: Callable[[pa.Table], pa.Table]
    text: str = ""  # for EXPLAIN

    def __post_init__(self) -> None:
        assert self.schema

    @cached_property
    def schema(self) -> Schema:
        return Schema(self.input.schema.columns + self.columns, self.input.schema.key)


@dataclass(frozen=True, eq=False)
class KeyJoin(RemoteNode):
    """left ⋈ right, where the columns `on` of the left equal the primary key of the right, in the order of the key."""

    left: RemoteNode
    right: RemoteNode
    on: tuple[str, ...]

    def __post_init__(self) -> None:
        key = self.right.schema.key
        names = f"({', '.join(self.on)})"
        if not key or len(key) != len(self.on):
            wanted = f"({', '.join(key)})" if key else "of a primary key, which a projection dropped"
            raise NotMaintainable(
                f"join on {names}", f"the right side is not identified by {wanted}", "Join to a whole primary key."
            )
        for left, right in zip(self.on, key, strict=True):
            given, wanted_type = self.left.schema.column(left).type, self.right.schema.column(right).type
            if not _comparable(given, wanted_type):
                raise NotMaintainable(
                    f"join on {left} = {right}",
                    f"{given} and {wanted_type} do not compare by identity",
                    "Give both columns one type.",
                )
            if not is_stored(self.left, left):
                raise NotMaintainable(
                    f"join on {left} = {right}",
                    "one side is computed, so that rows cannot be found by it at the source",
                    "Join on columns of the tables.",
                )
        assert self.schema

    @property
    def inputs(self) -> tuple[RemoteNode, ...]:
        return (self.left, self.right)

    @cached_property
    def on_columns(self) -> tuple[str, ...]:
        """`on`, spelled as the left side spells its columns."""
        return tuple(self.left.schema.column(c).name for c in self.on)

    @cached_property
    def schema(self) -> Schema:
        return Schema(self.left.schema.columns + self.right.schema.columns, self.left.schema.key)

    @cached_property
    def equal_columns(self) -> tuple[frozenset[str], ...]:
        types = {c.name: c.type for c in self.schema.columns}
        pairs = zip(self.on_columns, self.right.schema.key, strict=True)
        return _merged([*super().equal_columns, *(frozenset(p) for p in pairs if types[p[0]] == types[p[1]])])


def remotes(view: RemoteNode) -> Iterator[Remote]:
    """The remote tables of a view, from left to right."""
    if isinstance(view, Remote):
        yield view
    for node in view.inputs:
        yield from remotes(node)


def check_maintainable(view: RemoteNode, name: str) -> None:
    """Raise NotMaintainable if the captured sets do not determine the view.

    A view that dropped its key can be kept only if every table delivers complete sets.
    """
    for table in remotes(view):
        for kind in table.capture.undetected:
            sets = " or ".join(reporting(kind))
            raise NotMaintainable(
                f"view {name}",
                f"{kind} of {table.name} are not captured: {table.capture.technique} delivers no {sets}",
                f"Capture {table.name} by a technique that reports them, declare that {kind} never happen there, or "
                "copy the table into the warehouse.",
            )
    if view.schema.key:
        return
    owner = next(remotes(view))
    key = ", ".join(f"{owner.name}.{k}" for k in owner.table.key)
    for table in remotes(view):
        if table.capture.partial_sets:
            raise NotMaintainable(
                f"view {name}",
                f"it drops {key}, and {table.capture.technique} of {table.name} delivers "
                f"{', '.join(table.capture.partial_sets)} where {', '.join(table.capture.missing_sets)} would be "
                "needed to find the rows that changed",
                f"Add {key} to the view, capture {table.name} by a log with old images or by snapshots, or copy the "
                "table into the warehouse.",
            )


def keyed(view: RemoteNode) -> RemoteNode:
    """The view with the key that its projections dropped, in further columns at the end; the view itself if it has one.

    The key comes from the leftmost table, so only projections on the way to that table are widened.
    """
    if view.schema.key:
        return view
    if isinstance(view, RowFilter):
        return RowFilter(keyed(view.input), view.condition)
    if isinstance(view, Extend):
        return Extend(keyed(view.input), view.columns, view.compute, view.text)
    if isinstance(view, KeyJoin):
        return KeyJoin(keyed(view.left), view.right, view.on)
    assert isinstance(view, Projection)
    wider = keyed(view.input)
    return Projection(wider, view.columns + tuple((_unused(view.schema, k), k) for k in wider.schema.key))


def _unused(schema: Schema, name: str) -> str:
    while schema.has(name):
        name += "_key"
    return name


def _renamed(column: Column, name: str) -> Column:
    return Column(name, column.type, column.nullable, column.comment)


def is_stored(node: RemoteNode, column: str) -> bool:
    """Whether a column of a node is a column of a remote table, by which the source finds rows."""
    name = node.schema.column(column).name
    match node:
        case Projection():
            return is_stored(node.input, node.sources[name])
        case Extend() if name in {c.name for c in node.columns}:
            return False
    return all(is_stored(i, name) for i in node.inputs if i.schema.has(name))


def _comparable(left: DataType, right: DataType) -> bool:
    """Whether equal values have equal bits, or are integers, which are widened.

    CHAR is compared with padding, so it joins its own type alone.
    """
    if left.kind in INTEGERS and right.kind in INTEGERS:
        return True
    return left == right or {left.kind, right.kind} <= {"string", "varchar"}


def _merged(classes: list[frozenset[str]]) -> tuple[frozenset[str], ...]:
    """Classes of equal columns; those that share a column become one."""
    merged: list[frozenset[str]] = []
    for new in classes:
        touching = [c for c in merged if c & new]
        merged = [c for c in merged if not c & new] + [new.union(*touching)]
    return tuple(merged)
