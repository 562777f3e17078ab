"""The background loops: heartbeats, news from external tables, due checkpoints, the maintenance manager."""

from __future__ import annotations

import threading
from collections.abc import Callable

from freshview.events import Events

DUE_SEGMENTS = 500  # unfolded segments of a relation that make a checkpoint worth while
DUE_BYTES = 64 << 20
_HEARTBEAT_SECONDS = 30.0


class Loop:
    """Calls a function again and again in a thread of its own, until stopped; at once while it asks for more."""

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
            except Exception as error:  # whatever it is: told, and tried again at the next turn
                self._events.emit("background.failed", error=str(error))

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


def heartbeat_loop(step: Callable[[], None], events: Events) -> Loop:
    return Loop("freshview-heartbeat", _HEARTBEAT_SECONDS, step, events)
