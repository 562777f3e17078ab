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

from freshview.algebra.facts import is_small
from freshview.algebra.nodes import Node, Scan, Shared
from freshview.algebra.normal import merged
from freshview.algebra.traversal import bottom_up, fold, per_use, with_inputs

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
        small = is_small(node, [small for _, _, small in inputs])
        if small and (uses[node] - 1) * size >= _WORTH and not isinstance(node, Scan):
            scan = Scan(Shared(len(stages) + 1), tuple((c, c) for c in node.columns))
            stages.append(Stage(new, scan))
            return scan, 1, small
        return new, size, small

    rest = fold(plan, cut)[0]
    return tuple(stages), rest
