"""The turn to run a job of a view: who has it.

Threads of one process take a lock, processes a lease on the view's next job. Who finds it taken waits for the job in
progress, and takes over when the lease has expired on the catalog's clock, or at once from a process of this machine
that is gone. A statement that waits raises the priority of the job, in this process or in another one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from freshview.catalog.activity import ActivityCatalog
from freshview.catalog.records import Frontier, Lease, Relation
from freshview.catalog.view_reader import JOB_PATH
from freshview.catalog.views import ViewCatalog
from freshview.errors import Crowded, FreshviewError
from freshview.events import Events
from freshview.interruption import Interruption, current, gives_way, stop_if_asked

_PATIENCE = 600.0  # seconds of waiting for a job in progress elsewhere
_ANNOUNCE = 1.0  # seconds between two announcements that a statement waits, to this and to other processes
_POLLS = (0.01, 0.25)  # seconds between two looks at the lease: at first, at most


@dataclass
class JobTurn:
    """A turn that was taken: the lease that shows it to other processes."""

    lease: str
    ended: bool = False  # with what its job has published


class Turns:
    """Gives out the turns to run jobs of one warehouse's views."""

    def __init__(
        self, views: ViewCatalog, events: Events, clock: Callable[[], float], sleep: Callable[[float], None]
    ) -> None:
        self._views = views
        self._events = events
        self._clock = clock
        self._sleep = sleep
        self._locks: dict[int, threading.Lock] = {}
        self._working: dict[int, Interruption | None] = {}  # by view: the work of this process that has its lock
        self._guard = threading.Lock()

    @contextmanager
    def turn(self, view: Relation, c0: Frontier, *, wait: bool) -> Iterator[JobTurn | None]:
        """Take the turn to run a job of a view from c0; yield None if it is taken, or the frontier moved before."""
        with self._local_turn(view, wait) as ours:
            lease = self._lease(view, c0, wait) if ours else None
            if lease is None:
                yield None
                return
            turn = JobTurn(lease.id)
            try:
                yield turn if self._views.position(view) == c0 else None
            finally:
                if not turn.ended:
                    self._views.catalog.drop_leases([turn.lease])

    def held_by(self, work: Interruption) -> frozenset[int]:
        """The views whose turn some work of this process has now: of a job that refreshes several, all of them, and of
        one that brings a view below along, that view."""
        return frozenset(view_id for view_id, holder in self._working.copy().items() if holder is work)

    @contextmanager
    def _local_turn(self, view: Relation, wait: bool) -> Iterator[bool]:
        """Take the view's lock in this process, so that threads wait without polling; yield False if it is taken."""
        with self._guard:
            lock = self._locks.setdefault(view.id, threading.Lock())
        taken, until = lock.acquire(blocking=False), self._clock() + _PATIENCE
        while wait and not taken:
            if self._clock() > until:
                raise crowded(view)
            stop_if_asked(f"view {view.name}")
            self._hurry(view)
            taken = lock.acquire(timeout=_ANNOUNCE)
        if not taken:
            yield False
            return
        self._working[view.id] = current()
        try:
            yield True
        finally:
            del self._working[view.id]
            lock.release()

    def _hurry(self, view: Relation) -> None:
        """Raise the view's job in this process to the priority of the statement that waits for it here."""
        job = self._working.get(view.id)
        if job is not None and not gives_way():
            job.raise_priority()

    def _lease(self, view: Relation, c0: Frontier, wait: bool) -> Lease | None:
        """The lease on the view's next job; None as soon as another process has moved the frontier."""
        until, (pause, longest) = self._clock() + _PATIENCE, _POLLS
        with self._announced(view) as announce:
            while True:
                lease = self._views.catalog.lease(view.id, JOB_PATH, f"job-{view.id}", inherits=True)
                if lease is not None or not wait or self._views.position(view) != c0:
                    return lease
                if self._clock() > until:
                    raise crowded(view)
                announce()
                self._events.emit("job.waiting", view=view.name, from_csn=c0.readable)
                stop_if_asked(f"view {view.name}")
                self._sleep(pause)
                pause = min(2 * pause, longest)

    @contextmanager
    def _announced(self, view: Relation) -> Iterator[Callable[[], None]]:
        """Yield a function that announces, once a second at most, that a statement waits for the view's job.

        The process that runs the job raises it to the priority of statements. Background work announces nothing.
        """
        activity, since = ActivityCatalog(self._views.catalog), float("-inf")

        def announce() -> None:
            nonlocal since
            if not gives_way() and self._clock() - since >= _ANNOUNCE:
                activity.waits(view.id)
                since = self._clock()

        try:
            yield announce
        finally:
            if since > float("-inf"):
                with suppress(FreshviewError):  # it expires; the lease that was obtained is not lost
                    activity.waited(view.id)


def crowded(view: Relation) -> FreshviewError:
    """The error of a statement that others kept from its turn."""
    return Crowded(f"view {view.name}", "others kept maintaining it at the same time", "Try again.")
