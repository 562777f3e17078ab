"""How much one background job takes: as many delta rows as are expected to take a few seconds (LAZY §3.5).

The time of a job is estimated as fixed + slope · rows, from the view's past jobs: the fixed part is the shortest of
their times, the slope the steepest line from that job to a larger one, so the estimate is on the safe side.

Law: a job is expected to take no longer than the time allowed, or than twice its fixed part: smaller jobs would spend
most of their time on their fixed part. The time allowed shrinks with the load of the machine.
"""

from __future__ import annotations

from collections.abc import Sequence

from freshview.catalog.frontiers import Job

JOB_ROWS = 200_000  # pending delta rows that a background job takes at most: it gives way between two jobs
BACKGROUND_ROWS = 50_000  # pending delta rows that a job takes while its cost is not known
PAST_JOBS = 20  # that the estimate is made from: the newest
_SECONDS = (1.0, 10.0)  # that a job may take: on a machine that counts as busy, and on an idle one


def allowed_seconds(load: float, busy_load: float) -> float:
    """How long a background job may take, at this load per core; above `busy_load` the machine counts as busy."""
    least, most = _SECONDS
    free = max(1.0 - load / busy_load, 0.0) if busy_load > 0 else 0.0
    return least + free * (most - least)


def background_rows(past: Sequence[Job], seconds: float) -> int:
    """How many pending delta rows a background job takes that may take so many seconds."""
    sizes = [(job.rows_in, _own_seconds(job)) for job in past if job.rows_in]
    if len({rows for rows, _ in sizes}) < 2:
        return BACKGROUND_ROWS
    fewest, fixed = min(sizes, key=lambda size: (size[1], size[0]))
    slope = max(((took - fixed) / (rows - fewest) for rows, took in sizes if rows > fewest), default=0.0)
    if slope <= 0:
        return JOB_ROWS
    return max(min(int(max(seconds - fixed, fixed) / slope), JOB_ROWS), 1)


def _own_seconds(job: Job) -> float:
    """The time that a job took for itself, without waiting for others and for the views below."""
    return max(job.seconds - job.phases.get("wait", 0.0) - job.phases.get("sources", 0.0), 0.0)
