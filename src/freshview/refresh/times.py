"""How long a job of a view takes for so many delta rows, by the view's past jobs: fixed + slope · rows.

The fixed part is the shortest of their times, the slope the steepest line from that job to a larger one, so the
estimate is on the safe side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from freshview.catalog.frontiers import Job

PAST_JOBS = 20  # that the estimate is made from: the newest


@dataclass(frozen=True)
class Times:
    """The line through the times of a view's past jobs."""

    rows: int  # of the shortest job
    fixed: float  # seconds that it took
    slope: float  # seconds for each further row

    def seconds(self, rows: int) -> float:
        """The time that a job of so many delta rows is expected to take."""
        return self.fixed + max(rows - self.rows, 0) * self.slope


def times_of(past: Sequence[Job]) -> Times | None:
    """The times of a view's jobs; None if there were no jobs of different sizes."""
    sizes = [(job.rows_in, _own_seconds(job)) for job in past if job.rows_in]
    if len({rows for rows, _ in sizes}) < 2:
        return None
    fewest, fixed = min(sizes, key=lambda size: (size[1], size[0]))
    slope = max(((took - fixed) / (rows - fewest) for rows, took in sizes if rows > fewest), default=0.0)
    return Times(fewest, fixed, max(slope, 0.0))


def _own_seconds(job: Job) -> float:
    """The time that a job took for itself, without waiting for others and for the views below."""
    return max(job.seconds - job.phases.get("wait", 0.0) - job.phases.get("sources", 0.0), 0.0)
