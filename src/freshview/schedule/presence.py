"""Foreground work across processes: this one announces its own in the catalog, and hears of the others'.

A statement that needs Spark only sets a flag; a thread writes the announcement, renews it once a second while such
a statement runs, and sleeps else. So no query waits for this write, a busy process writes one row a second, and
an idle one writes nothing. An announcement that is not renewed expires.

Law: a background job in any process hears of a statement in any other within a second: the announcement is written at
once, and processes with jobs in progress look for announcements four times a second.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress

from freshview.catalog.activity import ActivityCatalog, ForegroundWork
from freshview.errors import CatalogUnavailable, FreshviewError
from freshview.events import Events

RENEW_SECONDS = 1.0
LOOK_SECONDS = 0.25


class Presence:
    """Announces the foreground work of this process while it lasts."""

    def __init__(
        self,
        activity: ActivityCatalog,
        is_busy: Callable[[], bool],
        events: Events,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._activity = activity
        self._is_busy = is_busy
        self._events = events
        self._wanted = threading.Event()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._guard = threading.Lock()
        self._clock = clock
        self._written = float("-inf")  # when the last announcement was written

    def announce(self) -> None:
        """Have others know that a statement which needs Spark begins, and counts as foreground work already.

        Returns at once.
        """
        if self._wanted.is_set():
            return
        with self._guard:
            if self._thread is None:  # a process that only writes rows never needs one
                self._thread = threading.Thread(target=self._run, name="freshview-presence", daemon=True)
                self._thread.start()
        self._wanted.set()

    def _run(self) -> None:
        while self._wanted.wait() and not self._ended.is_set():
            self._wanted.clear()  # before the look for work: a statement that begins after the look sets it again
            try:
                while self.beat() and not self._ended.wait(RENEW_SECONDS):
                    pass
            except FreshviewError as error:
                with suppress(Exception):  # a listener that fails does not end the thread
                    self._events.emit("background.failed", error=str(error))
                self._ended.wait(RENEW_SECONDS)
                self._wanted.set()  # a statement that still runs is announced when the catalog is back

    def beat(self) -> bool:
        """Announce this process if it is busy, at most once in so many seconds; return whether it is busy."""
        self._ended.wait(max(self._written + RENEW_SECONDS - self._clock(), 0.0))
        if not self._is_busy():
            return False
        self._activity.busy()
        self._written = self._clock()
        return True

    def others(self) -> ForegroundWork:
        """The foreground work of other processes; none, if the catalog cannot be reached now."""
        try:
            return self._activity.of_others()
        except CatalogUnavailable as error:
            self._events.emit("background.failed", error=str(error))
            return ForegroundWork()

    def stop(self) -> None:
        self._ended.set()
        self._wanted.set()
        if self._thread is not None:
            self._thread.join()
