"""Estimates against what jobs took: how far the optimiser's seconds are from the history, and what corrects them.

A view's estimate is that of its usual refresh as things are stored now, auxiliary views included; its actual time is
the mean of its newest jobs of that way, since it was rewritten if it was. The median ratio of actual to estimated time,
per way, corrects the prices of the next choice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median, quantiles

from freshview.catalog.frontiers import Job
from freshview.optimizer.cost import FULL, INCREMENTAL, Costs, Maintained
from freshview.optimizer.prices import Prices

_LEAST_JOBS = 3  # of one way, over all views, before prices are corrected
_MOST = 20.0  # the largest factor of a correction


@dataclass(frozen=True)
class ComparedTimes:
    """The usual refresh of a view by one way: estimated and actual seconds."""

    view: str
    way: str
    estimated: float  # by the prices as they were measured, not corrected
    actual: float  # mean of its newest jobs
    jobs: int

    @property
    def ratio(self) -> float:
        """Estimated over actual time."""
        return self.estimated / max(self.actual, 1e-6)


@dataclass(frozen=True)
class Accuracy:
    """How well the times of jobs were estimated: the ratio of estimated to actual time over jobs."""

    jobs: int
    median: float
    tenth: float  # a tenth of the jobs had a lower ratio
    ninetieth: float  # a tenth of the jobs had a higher ratio

    def __str__(self) -> str:
        spread = f", between {self.tenth:.2f} and {self.ninetieth:.2f} for 8 of 10" if self.jobs > 1 else ""
        return f"estimated / actual time over {self.jobs} job{'s' * (self.jobs > 1)}: median {self.median:.2f}{spread}"


def accuracy(jobs: Iterable[Job]) -> Accuracy | None:
    """How well finished jobs were estimated when they were planned; None if no job was."""
    ratios = [j.expected / max(computing(j), 1e-3) for j in jobs if j.error is None and j.expected]
    if not ratios:
        return None
    tenths = quantiles(ratios, n=10) if len(ratios) > 1 else [ratios[0]] * 9
    return Accuracy(len(ratios), median(ratios), tenths[0], tenths[-1])


def computing(job: Job) -> float:
    """The seconds of a job without those that it waited for others; with its share of what several views had in
    common."""
    return job.seconds if not job.phases else sum(job.phases.get(p, 0.0) for p in ("compute", "shared", "store"))


def compared(
    costs: Costs, jobs: Mapping[str, Sequence[Job]], stored: Mapping[str, int] | None = None
) -> list[ComparedTimes]:
    """The estimates under `costs` of each view, and of results that are stored in addition, beside their jobs; a way
    without jobs has no entry. `stored` are the nodes of those results, by the names of their views."""
    estimates = {root.name: costs.mntcost(root) for root in costs.dag.roots}
    estimates |= {n: Maintained(costs.imntcost(i), costs.rmntcost(i)) for n, i in (stored or {}).items()}
    found = []
    for name, cost in estimates.items():
        for way, seconds in {INCREMENTAL: cost.incremental, FULL: cost.full}.items():
            times = [computing(j) for j in jobs.get(name, ()) if j.strategy == way]
            if times and seconds:
                found.append(ComparedTimes(name, way, seconds, sum(times) / len(times), len(times)))
    return found


def corrected(prices: Prices, rows: Sequence[ComparedTimes]) -> Prices:
    """Prices with the factors that the history teaches; a way with few jobs takes the factor of the other one."""
    learnt: dict[str, float] = {}
    for way in (INCREMENTAL, FULL):
        ratios = [1 / max(c.ratio, 1e-6) for c in rows if c.way == way for _ in range(c.jobs)]
        if len(ratios) >= _LEAST_JOBS:
            learnt[way] = min(max(median(ratios), 1 / _MOST), _MOST)
    if not learnt:
        return prices
    other = next(iter(learnt.values()))
    return replace(prices, incremental=learnt.get(INCREMENTAL, other), full=learnt.get(FULL, other))
