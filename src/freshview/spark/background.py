"""Spark jobs of low priority: in a pool of low weight, with a tag by which they are cancelled.

Pool and tag belong to the thread and to the Spark context, so all sessions that the thread uses have them. A pool does
not preempt running tasks: a statement that cannot wait for them cancels the job.

Over Spark Connect there is no context, and so no pool; a tag belongs to the thread and one session, and is set on each.
"""

from __future__ import annotations

import atexit
import threading
import uuid
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from freshview.interruption import Interruption

POOLS = Path(__file__).with_name("pools.xml")  # for a Spark that we start; elsewhere all pools have equal weight
POOL = "freshview-background"
_POOL_PROPERTY = "spark.scheduler.pool"


# Over Spark Connect: sessions that we made. A session that is garbage-collected when Python ends waits for ever for
# threads that have ended already, so all are closed before.
_clones: weakref.WeakSet[SparkSession] = weakref.WeakSet()


def _hang_up(session: Any) -> None:
    """Close the connection of a session that we made. Its stop() would stop a server that this process started."""
    _clones.discard(session)
    with suppress(Exception):  # a server that is gone has closed the connection
        session.client.close()


def clones() -> list[SparkSession]:
    """Over Spark Connect: the sessions that we made beside the first."""
    return list(_clones)


@atexit.register
def _hang_up_all() -> None:
    for session in clones():
        _hang_up(session)


def context_of(session: SparkSession) -> SparkContext | None:
    """The context of a session; None over Spark Connect."""
    try:
        return session.sparkContext
    except PySparkException:
        return None


class Sessions:
    """The sessions of one warehouse on one Spark; a thread can use all of them at low priority."""

    def __init__(self, first: SparkSession) -> None:
        self._context = context_of(first)
        self._all = [first]
        self._guard = threading.Lock()
        self._here = threading.local()  # over Spark Connect: the tags of this thread

    def add(self, session: SparkSession) -> None:
        """Add a session, which may be made in the middle of a block of `background`."""
        with self._guard:
            self._all.append(session)
        if self._context is None:
            _clones.add(session)
            for tag in self._tags():
                session.addTag(tag)

    def drop(self, session: SparkSession) -> None:
        """Close a session that is no longer used; the first is the user's, and stays."""
        with self._guard:
            if session is self._all[0] or session not in self._all:  # a warehouse may be closed twice
                return
            self._all.remove(session)
        if self._context is None:
            _hang_up(session)

    @contextmanager
    def background(self, interruption: Interruption) -> Iterator[None]:
        """Give Spark jobs of this thread in the block low priority, and cancel them when that is requested.

        Jobs that begin after the priority was raised have that of statements; a job that is running keeps its pool.
        """
        with self.interruptible(interruption):
            if self._context is None:
                yield
                return
            with self._pooled(self._context, interruption):
                yield

    @contextmanager
    def interruptible(self, interruption: Interruption) -> Iterator[None]:
        """Cancel Spark jobs of this thread in the block when that is requested."""
        tag = f"freshview-{uuid.uuid4().hex}"
        marked = self._tagged(tag) if self._context is None else self._tagged_thread(self._context, tag)
        with marked, interruption.broken_off_by(lambda: self._cancel(tag)):
            yield

    @contextmanager
    def _pooled(self, context: SparkContext, interruption: Interruption) -> Iterator[None]:
        pool = context.getLocalProperty(_POOL_PROPERTY)

        def leave_pool() -> None:
            with suppress(Exception):  # a Spark that is gone has no pool
                context.setLocalProperty(_POOL_PROPERTY, pool)  # type: ignore[arg-type]  # None removes it

        context.setLocalProperty(_POOL_PROPERTY, POOL)
        try:
            with interruption.hurried_by(leave_pool):
                yield
        finally:
            leave_pool()

    @contextmanager
    def _tagged_thread(self, context: SparkContext, tag: str) -> Iterator[None]:
        context.addJobTag(tag)
        try:
            yield
        finally:
            with suppress(Exception):  # a Spark that is gone has no tag
                context.removeJobTag(tag)

    @contextmanager
    def _tagged(self, tag: str) -> Iterator[None]:
        self._tags().append(tag)
        for session in self._known():
            session.addTag(tag)
        try:
            yield
        finally:
            self._tags().remove(tag)
            for session in self._known():
                session.removeTag(tag)

    def _cancel(self, tag: str) -> None:
        if self._context is not None:
            with suppress(Exception):  # nothing runs on a Spark that is gone
                self._context.cancelJobsWithTag(tag)
            return
        for session in self._known():
            with suppress(Exception):
                session.interruptTag(tag)

    def _known(self) -> list[SparkSession]:
        with self._guard:
            return list(self._all)

    def _tags(self) -> list[str]:
        if not hasattr(self._here, "tags"):
            self._here.tags = []
        tags: list[str] = self._here.tags
        return tags
