"""What a plan is expected to cost: rows that Spark reads from files, and a fixed price per operator.

Only meant to tell incremental from recomputing. The figures were measured with TPC-H at scale 1 on two cores; the
ratio between them matters more than their size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from freshview.algebra.nodes import Node, Scan
from freshview.algebra.stages import STAGE, staged
from freshview.algebra.traversal import per_use

_ROWS_PER_SECOND = 2_500_000
_SECONDS_PER_OPERATOR = 0.012  # analysis, planning, code generation
_OPERATORS_PER_STAGE = 10  # a stage is a query of its own


@dataclass(frozen=True)
class Estimate:
    """Spark computes a query again for each use of it, so operators and rows count once per use."""

    rows: int
    operators: int

    @property
    def seconds(self) -> float:
        return self.rows / _ROWS_PER_SECOND + self.operators * _SECONDS_PER_OPERATOR


def estimate(plan: Node, rows: Callable[[Scan], int]) -> Estimate:
    """The cost of a plan, run in stages; `rows` tells how many rows a scan reads from files."""

    def read(node: Node) -> int:
        return rows(node) if isinstance(node, Scan) and not node.relation.startswith(STAGE) else 0

    stages, rest = staged(plan)
    parts = [*(s.part for s in stages), rest]
    operators = sum(per_use(p, lambda _: 1) for p in parts) + len(stages) * _OPERATORS_PER_STAGE
    return Estimate(sum(per_use(p, read) for p in parts), operators)
