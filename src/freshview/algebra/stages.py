"""Cutting a plan into stages, so that Spark does not plan the same part again and again.

Spark copies a WITH query to every place that uses it: a plan whose parts share parts grows with every level, to
millions of operators for some delta plans. Parts that are used more than once and are known to be small (they come
from a delta) are therefore computed first, one after the other, and later parts read their rows.

    E[S, S]  =  E[scan(rows of S), scan(rows of S)]      S is computed once; the plan is a tree over small pieces
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

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
)
from freshview.algebra.traversal import bottom_up, per_use, with_inputs

_ENOUGH = 150  # operators that Spark plans without much ado
_WORTH = 24  # operators that a stage saves at least


@dataclass(frozen=True)
class Stage:
    """A part to be computed before what comes after it, and the scan by which that reads it."""

    part: Node
    scan: Scan


def staged(plan: Node) -> tuple[list[Stage], Node]:
    """The stages of a plan, in order, and what is left of it."""
    if per_use(plan, lambda _: 1) <= _ENOUGH:
        return [], plan
    nodes = list(bottom_up(plan))
    uses = Counter(id(i) for node in nodes for i in node.inputs)
    stages: list[Stage] = []
    done: dict[int, Node] = {}
    size: dict[int, int] = {}
    small: dict[int, bool] = {}
    for node in nodes:
        new = with_inputs(node, tuple(done[id(i)] for i in node.inputs))
        size[id(node)] = 1 + sum(size[id(i)] for i in node.inputs)
        small[id(node)] = _is_small(node, [small[id(i)] for i in node.inputs])
        saved = (uses[id(node)] - 1) * size[id(node)]
        if small[id(node)] and saved >= _WORTH and not isinstance(node, Scan):
            scan = Scan(Shared(len(stages) + 1), tuple((c, c) for c in node.columns))
            stages.append(Stage(new, scan))
            new = scan
            size[id(node)] = 1
        done[id(node)] = new
    return stages, done[id(plan)]


def _is_small(node: Node, inputs: list[bool]) -> bool:
    """Does the node have few rows if deltas have few? One row of a delta may meet many, but rarely does."""
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
