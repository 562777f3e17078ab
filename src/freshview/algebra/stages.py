"""Cutting a plan into stages, so that Spark does not plan the same part again and again.

Spark copies a WITH query to every place that uses it: a plan whose parts share parts grows with every level, to
millions of operators for some delta plans. Parts that are used more than once and are known to be small (they come
from a delta) are therefore computed first, one after the other, and later parts read their rows.

    E[S, S]  =  E[scan(rows of S), scan(rows of S)]      S is computed once; the plan is a tree over small pieces
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache

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
from freshview.algebra.normal import merged
from freshview.algebra.traversal import bottom_up, fold, per_use, scans, with_inputs

_ENOUGH = 150  # operators that Spark plans quickly
_WORTH = 24  # operators that a stage saves at least


@dataclass(frozen=True)
class Stage:
    """A part that is computed before the later ones, and the scan by which they read it."""

    part: Node
    scan: Scan


Staged = tuple[tuple[Stage, ...], Node]  # the stages of a plan, in order, and the rest of it, which reads them


@lru_cache(maxsize=512)
def staged(plan: Node) -> Staged:
    """A plan cut into stages; kept, since plans are used again."""
    if per_use(plan, lambda _: 1) <= _ENOUGH:
        return (), plan
    plan = merged(plan)
    uses = Counter(i for node in bottom_up(plan) for i in node.inputs)
    stages: list[Stage] = []

    def cut(node: Node, inputs: tuple[tuple[Node, int, bool], ...]) -> tuple[Node, int, bool]:
        """The node over scans of stages, its number of operators (once per use), and whether it has few rows."""
        new = with_inputs(node, tuple(i for i, _, _ in inputs))
        size = 1 + sum(size for _, size, _ in inputs)
        small = _is_small(node, [small for _, _, small in inputs])
        if small and (uses[node] - 1) * size >= _WORTH and not isinstance(node, Scan):
            scan = Scan(Shared(len(stages) + 1), tuple((c, c) for c in node.columns))
            stages.append(Stage(new, scan))
            return scan, 1, small
        return new, size, small

    rest = fold(plan, cut)[0]
    return tuple(stages), rest


def comes_from_delta(root: Node) -> bool:
    """Has a plan few rows if deltas have few, and does it read one?"""
    return fold(root, lambda n, small: _is_small(n, list(small))) and any(s.version == "delta" for s in scans(root))


def _is_small(node: Node, inputs: list[bool]) -> bool:
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
