"""Spark jobs of low priority: in a pool of low weight, with a tag by which they are cancelled.

Both belong to the thread and to the Spark context, so all sessions that the thread uses have them. A pool does not
preempt tasks that run: who cannot wait for them cancels the job.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from freshview.interruption import Interruption

POOLS = Path(__file__).with_name("pools.xml")  # for a session of our own; elsewhere a pool counts as any other
POOL = "freshview-background"
_POOL_PROPERTY = "spark.scheduler.pool"


@contextmanager
def background(session: SparkSession, interruption: Interruption) -> Iterator[None]:
    """What this thread runs on Spark in the block has low priority, and is cancelled when that is requested.

    Over Spark Connect, which has neither pools nor tags for all sessions of a thread, a request is noticed between two
    queries.
    """
    context = _context(session)
    if context is None:
        yield
        return
    tag = f"freshview-{uuid.uuid4().hex}"
    pool = context.getLocalProperty(_POOL_PROPERTY)
    context.addJobTag(tag)
    context.setLocalProperty(_POOL_PROPERTY, POOL)
    try:
        with interruption.broken_off_by(lambda: _cancel(context, tag)):
            yield
    finally:
        with suppress(Exception):  # a Spark that is gone has forgotten them
            context.setLocalProperty(_POOL_PROPERTY, pool)  # type: ignore[arg-type]  # None takes it away
            context.removeJobTag(tag)


def _context(session: SparkSession) -> SparkContext | None:
    """The context of a session; None over Spark Connect."""
    try:
        return session.sparkContext
    except PySparkException:
        return None


def _cancel(context: SparkContext, tag: str) -> None:
    with suppress(Exception):  # nothing runs on a Spark that is gone
        context.cancelJobsWithTag(tag)
