"""The rules that lost, kept: what it would cost to maintain a view by them need not be found out for every job.

To know what rules cost, a job looks up rows. If it recomputes the view after all, these were read in vain. So the next
jobs of the view take the cost from what the last one found, in proportion to their changes where these are smaller.

Law: that saves reading, and decides nothing else. The rows are looked up again

    when the view is defined anew, or other sources have changed, or in another way
    when the rules would win by the cost that is kept: the change has become smaller, or recomputing dearer by the
    times of past jobs, which correct what is kept as they correct all estimates
    for one job in ten: the rules may win for reasons that are not kept, and are never ruled out for good

What is kept is of one process, and holds no rows.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from cachetools import LRUCache

from freshview.definition.analysis import Definition
from freshview.refresh.job_input import JobInput
from freshview.refresh.plan import (
    FULL,
    INCREMENTAL,
    JobPlan,
    Rejected,
    SourceChanges,
    are_small,
    recompute_instead,
)

_KEPT = 512  # losses
_JOBS = 9  # that recompute a view by one loss
_WHY = "it is expected to take longer, by what an earlier job found"


@dataclass
class _Loss:
    """The cost of the rules for the changes of one job."""

    definition: Definition
    rows: Mapping[str, int]  # of the changes, by source
    engine: str
    estimated: float  # seconds, before what jobs in that engine took corrects them
    left: int = _JOBS  # jobs that may still go by it

    def scaled(self, changes: SourceChanges) -> float:
        """The cost for other changes of the same sources; for smaller ones it falls as fast as the smallest of them."""
        return self.estimated * min(1.0, *(change.rows / self.rows[change.source] for change in changes))


class Losses:
    """Keeps the losses of the views of one warehouse."""

    def __init__(self) -> None:
        self._kept: LRUCache[Hashable, _Loss] = LRUCache(_KEPT)
        self._lock = threading.Lock()

    def plan(self, given: JobInput, changes: SourceChanges) -> JobPlan | None:
        """The plan to recompute a view, if its rules lose by what an earlier job found; None: rows have to be read."""
        definition = given.definition
        with self._lock:
            loss = self._kept.get(_key(given, changes))
        if loss is None or loss.definition is not definition or definition.refresh == INCREMENTAL or not loss.left:
            return None
        seconds = loss.scaled(changes) * given.calibration.factor(loss.engine)
        dearer = Rejected(INCREMENTAL, _WHY, seconds, loss.engine)
        return recompute_instead(dearer, changes, given.full, given.calibration.factors(), given.takes)

    def note(self, given: JobInput, plan: JobPlan) -> None:
        """Keep the loss of a plan that is carried out; or count it, if the plan was made by it."""
        key, lost = _key(given, plan.changes), _lost(plan) if given.full.rows else None
        with self._lock:
            if lost is None:
                self._kept.pop(key, None)
            elif lost.why != _WHY:
                rows = {change.source: change.rows for change in plan.changes}
                estimated = (lost.seconds or 0.0) / given.calibration.factor(lost.engine)
                self._kept[key] = _Loss(given.definition, rows, lost.engine, estimated)
            elif (known := self._kept.get(key)) is not None:
                known.left -= 1


def _lost(plan: JobPlan) -> Rejected | None:
    """The rules, if a plan recomputes because they take longer."""
    found = (r for r in plan.rejected if r.strategy == INCREMENTAL and r.seconds is not None)
    return next(found, None) if plan.strategy == FULL else None


def _key(given: JobInput, changes: SourceChanges) -> Hashable:
    """What a loss is kept for: a view, and which of its sources have changed, and how."""
    return given.view.id, are_small(changes), frozenset((c.source, c.grows, c.in_spark) for c in changes)
