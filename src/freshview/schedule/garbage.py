"""Garbage by itself (LAZY §2.2): the background removes what no snapshot, task or retention needs, a part at a time.

A pass over all relations is due every ten minutes. It is done in rounds of a few relations and a bounded number of
files, one round per turn of the background loop. Foreground work comes first: no round begins while the system is
busy, and a round that foreground work overtakes stops before its next file.

Once an hour a pass also has flows forget the deletions that they remember, which reads all that they remember.

Law: a pass removes what VACUUM with the same retention would remove at that time, and nothing else; of old jobs and
commits, which only the history lists, as many as one transaction deletes in each round.
Law: a pass that was put off for an hour is done even if the system is busy.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

from freshview.catalog.writer import Catalog
from freshview.events import Events
from freshview.storage.store import Storage
from freshview.storage.vacuum import RETENTION, VacuumPart, VacuumReport, vacuum

PASS_SECONDS = 600.0  # between two passes
PATIENCE_SECONDS = 3600.0  # for which a pass is put off at most
FORGET_SECONDS = 3600.0  # between two times at which flows forget
ROUND_RELATIONS = 8
ROUND_FILES = 1000
_LEASE = "vacuum"  # one process at a time: a second one would only list the same files


class Garbage:
    """Removes the garbage of one warehouse in the background."""

    def __init__(
        self,
        catalog: Catalog,
        storage: Storage,
        events: Events,
        is_busy: Callable[[], bool],
        forget: Callable[[timedelta], None] = lambda _: None,
        *,
        retention: timedelta = RETENTION,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`forget` has flows forget the deletions that are older than a retention."""
        self._catalog = catalog
        self._storage = storage
        self._events = events
        self._is_busy = is_busy
        self._forget = forget
        self._retention = retention
        self._clock = clock
        self._due = clock() + PASS_SECONDS
        self._forget_due = clock()
        self._left: list[int] = []  # relations of the pass at hand

    def turn(self) -> VacuumReport | None:
        """Do one round, if one is due and there is time for it; return what it removed."""
        if self._clock() < self._due or not self._goes_on():
            return None
        lease = self._catalog.lease(-1, _LEASE, _LEASE)
        if lease is None:
            self._due = self._clock() + PASS_SECONDS
            return None
        try:
            return self._round()
        finally:
            self._catalog.drop_leases([lease.id])

    def _round(self) -> VacuumReport:
        if self._clock() >= self._forget_due:
            self._forget_due = self._clock() + FORGET_SECONDS
            self._forget(self._retention)
        if not self._left:
            self._left = self._relations()
        taken, self._left = self._left[:ROUND_RELATIONS], self._left[ROUND_RELATIONS:]
        part = VacuumPart(frozenset(taken), ROUND_FILES, self._goes_on)
        try:
            report = vacuum(self._catalog, self._storage, self._events, self._retention, part)
            self._left = [*sorted(report.left), *self._left]
        finally:
            if not self._left:
                self._due = self._clock() + PASS_SECONDS
        if report.files:
            self._events.emit("vacuum.round", files=report.files, bytes=report.bytes, horizon=report.horizon)
        return report

    def _relations(self) -> list[int]:
        """Ids of all relations, of dropped ones, and of folders that belong to none."""
        known = {r.id for r in self._catalog.relations()} | {i for i, _ in self._catalog.dropped()}
        return sorted(known | set(self._storage.layout.relation_ids()))

    def _goes_on(self) -> bool:
        return self._clock() >= self._due + PATIENCE_SECONDS or not self._is_busy()
