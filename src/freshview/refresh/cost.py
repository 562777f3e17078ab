"""What a plan is expected to cost: rows that Spark reads from files, and a fixed price per operator.

Only meant to tell incremental from recomputing. The figures were measured with TPC-H at scale 1 on two cores; the
ratio between them matters more than their size. What jobs of a view really took corrects them (`Pace`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from freshview.algebra.nodes import Node, Scan, Shared
from freshview.algebra.stages import staged
from freshview.algebra.traversal import per_use
from freshview.definition.analysis import Definition
from freshview.storage.reader import LOCAL_ROWS

_ROWS_PER_SECOND = 2_500_000
_SECONDS_PER_OPERATOR = 0.012  # analysis, planning, code generation
_OPERATORS_PER_STAGE = 10  # a stage is a query of its own
_LEAST = 0.05  # seconds: below this an estimate says nothing
_MOST = 20.0  # times that a job may be off
_LEARN = 0.5  # how much the newest job counts
_FORGET = 0.1


@dataclass(frozen=True)
class Estimate:
    """Spark computes a query again for each use of it, so operators and rows count once per use."""

    rows: int
    operators: int

    @property
    def seconds(self) -> float:
        return self.rows / _ROWS_PER_SECOND + self.operators * _SECONDS_PER_OPERATOR


class Pace:
    """How much longer the jobs of one view take than estimated, by strategy; learnt from each job.

    A way that is not taken is not measured: what is known of it drifts towards the way that is, so that one bad moment
    of the machine does not rule a way out for good.
    """

    def __init__(self) -> None:
        self._factors: dict[str, float] = {}

    def factor(self, strategy: str) -> float:
        return self._factors.get(strategy, min(self._factors.values(), default=1.0))

    def factors(self) -> dict[str, float]:
        """What is known of each strategy; of one that was never taken, what the others gave."""
        return {strategy: self.factor(strategy) for strategy in ("incremental", "full")}

    def learn(self, strategy: str, estimated: float, actual: float) -> None:
        """A job took this long."""
        seen = min(max(actual / max(estimated, _LEAST), 1 / _MOST), _MOST)
        known = self._factors.get(strategy)
        self._factors[strategy] = seen if known is None else known + _LEARN * (seen - known)
        for other in self._factors.keys() - {strategy}:
            self._factors[other] += _FORGET * (self._factors[strategy] - self._factors[other])


def estimate(plan: Node, rows: Callable[[Scan], int]) -> Estimate:
    """The cost of a plan, run in stages; `rows` tells how many rows a scan reads from files."""

    def read(node: Node) -> int:
        return rows(node) if isinstance(node, Scan) and not isinstance(node.source, Shared) else 0

    stages, rest = staged(plan)
    parts = [*(s.part for s in stages), rest]
    operators = sum(per_use(p, lambda _: 1) for p in parts) + len(stages) * _OPERATORS_PER_STAGE
    return Estimate(sum(per_use(p, read) for p in parts), operators)


def estimate_full(definition: Definition, rows: Callable[[str], int]) -> Estimate:
    """What recomputing a view should cost, over sources of so many rows; nothing is known of one without a tree."""
    if definition.form is None:
        return Estimate(0, 0)
    sizes = {source: rows(source) for source in definition.sources}
    return estimate(definition.form.tree, lambda s: sizes[s.relation] if sizes[s.relation] > LOCAL_ROWS else 0)
