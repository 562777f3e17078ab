"""Pruning: columns that nothing above uses are left out, down to the scans.

A change of a column that a view does not use is then no change of the scan, and deltas have few columns. Columns that
decide which rows there are stay: the keys of groups, all columns that EXCEPT and INTERSECT compare, the columns of
conditions and orders.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

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
    chosen,
    names_in,
)
from freshview.algebra.traversal import bottom_up, fold, with_inputs

Items = tuple[tuple[str, exp.Expr], ...]


def pruned(root: Node, wanted: Iterable[str]) -> Node:
    """The tree without the columns that neither `wanted` nor anything in the tree uses. Shared nodes stay shared."""
    needed: dict[Node, set[str]] = defaultdict(set)
    needed[root] = set(wanted)
    for node in reversed(list(bottom_up(root))):  # a node comes after all that use it
        for child, names in zip(node.inputs, _asked(node, needed[node]), strict=True):
            needed[child] |= names
    return fold(root, lambda node, inputs: _narrowed(node, inputs, needed[node]))


def _asked(node: Node, needed: set[str]) -> list[set[str]]:
    """The columns that a node needs of each input, if these of its own columns are needed."""
    match node:
        case Scan() | Values():
            return []
        case Filter():
            return [needed | names_in(node.predicate)]
        case Project():
            return [_used(_kept(node.items, needed))]
        case Join():
            both = needed | (names_in(node.condition) if node.condition is not None else set())
            return [both & set(side.columns) for side in node.inputs]
        case Aggregate():
            return [set(node.keys) | _used(_kept_beside(node, needed))]
        case Window():
            kept = tuple((n, e) for n, e in node.items if n in needed)
            return [(needed & set(node.input.columns)) | (_used(kept) | set(node.partition) if kept else set())]
        case Generate():
            return [(needed & set(node.input.columns)) | names_in(node.generator)]
        case TopK():
            return [needed | {n for term in node.order for n in names_in(term)}]
        case Union():
            return [set(_at(part, _places(node, needed))) for part in node.parts]
        case SetOperation():
            return [set(side.columns) for side in node.inputs]
    raise TypeError(type(node).__name__)


def _narrowed(node: Node, inputs: tuple[Node, ...], needed: set[str]) -> Node:
    """A node over narrower inputs, without the columns that nothing needs."""
    match node:
        case Scan():
            return replace(node, fields=tuple(f for f in node.fields if f[1] in needed) or node.fields[:1])
        case Project():
            return replace(node, input=inputs[0], items=_kept(node.items, needed))
        case Aggregate():
            return replace(node, input=inputs[0], items=_kept_beside(node, needed))
        case Window():
            kept = tuple((n, e) for n, e in node.items if n in needed)
            return replace(node, input=inputs[0], items=kept) if kept else inputs[0]
        case Union():
            places = _places(node, needed)
            parts = tuple(chosen(new, _at(old, places)) for new, old in zip(inputs, node.parts, strict=True))
            return Union(parts, tuple(node.names[i] for i in places))
        case SetOperation():
            left, right = (chosen(new, old.columns) for new, old in zip(inputs, node.inputs, strict=True))
            return replace(node, left=left, right=right)
    return with_inputs(node, inputs)


def _kept(items: Items, needed: set[str]) -> Items:
    """The needed items, at least one: a relation with rows has a column."""
    return tuple(i for i in items if i[0] in needed) or items[:1]


def _kept_beside(node: Aggregate, needed: set[str]) -> Items:
    """The needed aggregates; an aggregate with keys may have none."""
    return tuple(i for i in node.items if i[0] in needed) if node.keys else _kept(node.items, needed)


def _used(items: Items) -> set[str]:
    return {n for _, e in items for n in names_in(e)}


def _places(node: Union, needed: set[str]) -> list[int]:
    return [i for i, n in enumerate(node.names) if n in needed] or list(range(min(1, len(node.names))))


def _at(node: Node, places: list[int]) -> tuple[str, ...]:
    return tuple(node.columns[i] for i in places)
