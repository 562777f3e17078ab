"""A background loop: a function that is called again and again in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

from freshview.events import Events


class Loop:
    """Calls a function again and again in a thread of its own, until stopped; without a pause after it returns True."""

    def __init__(self, name: str, every: float, step: Callable[[], bool | None], events: Events) -> None:
        self._every = every
        self._step = step
        self._events = events
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        again: bool | None = False
        while not self._stop.wait(0 if again else self._every):
            again = False
            try:
                again = self._step()
            except Exception as error:  # tried again at the next turn
                report_failure(error, self._events)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


def report_failure(error: Exception, events: Events) -> None:
    """Report a failure in the background as an event."""
    with suppress(Exception):  # a listener that fails does not end the loop
        events.emit("background.failed", error=str(error))
