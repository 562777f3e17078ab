"""How much one background job takes: as many delta rows as are expected to take a few seconds (LAZY §3.5).

Law: a job is expected to take no longer than the time allowed, or than twice its fixed part: smaller jobs would spend
most of their time on their fixed part. The time allowed shrinks with the load of the machine.
"""

from __future__ import annotations

from collections.abc import Sequence

from freshview.catalog.frontiers import Job
from freshview.refresh.times import times_of

JOB_ROWS = 200_000  # pending delta rows that a background job takes at most: it gives way between two jobs
BACKGROUND_ROWS = 50_000  # pending delta rows that a job takes while its cost is not known
_SECONDS = (1.0, 10.0)  # that a job may take: on a machine that counts as busy, and on an idle one


def allowed_seconds(load: float, busy_load: float) -> float:
    """How long a background job may take, at this load per core; above `busy_load` the machine counts as busy."""
    least, most = _SECONDS
    free = max(1.0 - load / busy_load, 0.0) if busy_load > 0 else 0.0
    return least + free * (most - least)


def background_rows(past: Sequence[Job], seconds: float) -> int:
    """How many pending delta rows a background job takes that may take so many seconds."""
    times = times_of(past)
    if times is None:
        return BACKGROUND_ROWS
    if not times.slope:
        return JOB_ROWS
    return max(min(int(max(seconds - times.fixed, times.fixed) / times.slope), JOB_ROWS), 1)
