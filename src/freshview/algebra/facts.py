"""Facts of trees that rules share, each derived here alone: flat joins, and which parts grow or are small.

Keys and functional dependencies are in `keys.py`.
"""

from __future__ import annotations

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
    Shared,
    Union,
    Values,
    Window,
    conjuncts,
)
from freshview.algebra.traversal import fold, relations, scans


def is_inner_join(node: Node) -> bool:
    """Is a node an inner join, perhaps under filters?"""
    while isinstance(node, Filter):
        node = node.input
    return isinstance(node, Join) and node.kind == "inner"


def flat_join(node: Node, *, filtered_parts: bool = False) -> tuple[list[Node], list[exp.Expr]]:
    """The parts of nested inner joins, from left to right, and all conditions, with those of filters above and between.

    `filtered_parts`: a filter over a part that is no join stays with the part; else it is one of the conditions.
    """
    if filtered_parts and not is_inner_join(node):
        return [node], []
    match node:
        case Filter():
            parts, conditions = flat_join(node.input, filtered_parts=filtered_parts)
            return parts, [*conditions, *conjuncts(node.predicate)]
        case Join(kind="inner"):
            left, right = (flat_join(side, filtered_parts=filtered_parts) for side in node.inputs)
            own = conjuncts(node.condition) if node.condition is not None else []
            return [*left[0], *right[0]], [*left[1], *right[1], *own]
    return [node], []


def most_joined(root: Node) -> int:
    """The most relations whose rows are multiplied by joins of a tree. A grouping has at most the rows of one."""
    most = 0

    def joined(node: Node, inputs: tuple[int, ...]) -> int:
        nonlocal most
        match node:
            case Join(kind="semi" | "anti"):
                here = inputs[0]
            case Join():
                here = sum(inputs)
            case Aggregate():
                here = min(inputs[0], 1)
            case _:
                here = max(inputs, default=1)
        most = max(most, here)
        return here

    fold(root, joined)
    return most


def only_grows(root: Node, changed: set[str], inserts_only: frozenset[str]) -> bool:
    """Has the derived delta of a tree positive weights only? So it stays under operators whose rule never subtracts."""

    def grows(node: Node, inputs: tuple[bool, ...]) -> bool:
        match node:
            case Scan():
                return node.relation not in changed or node.relation in inserts_only
            case Filter() | Project() | Generate() | Union() | Join(kind="inner"):
                return all(inputs)
            case Join():
                return all(inputs) and not relations(node.right) & changed
        return not relations(node) & changed

    return fold(root, grows)


def comes_from_delta(root: Node) -> bool:
    """Has a plan few rows if deltas have few, and does it read one?"""
    return fold(root, lambda n, small: is_small(n, list(small))) and any(s.version == "delta" for s in scans(root))


def is_small(node: Node, inputs: list[bool]) -> bool:
    """Has the node few rows if deltas have few? One row of a delta may match many rows, but rarely does."""
    match node:
        case Scan():
            return node.version == "delta" or isinstance(node.source, Shared)
        case Values():
            return True
        case Aggregate():
            return inputs[0] or not node.keys
        case Filter() | Project() | Window() | Generate():
            return inputs[0]
        case Join():
            return inputs[0] or (node.kind in ("inner", "semi") and inputs[1])
        case Union() | SetOperation():
            return all(inputs)
    return False
