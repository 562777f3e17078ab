"""Requests to a thread to stop its work, or to hurry: it stops or hurries at its next step, and what it waits for is
broken off."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from freshview.errors import Cancelled

_AGAIN = 0.1  # seconds between two calls of a function that breaks off a wait

_here = threading.local()


class Interruption:
    """One piece of work that any thread may ask to stop or to hurry, at any time, even before the work has begun."""

    def __init__(self, *, gives_way: bool = False) -> None:
        """`gives_way`: the work is in the background, until its priority is raised."""
        self._guard = threading.Lock()
        self._requested = False
        self._gives_way = gives_way
        self._raising: list[Callable[[], None]] = []
        self._stops: dict[threading.Event, Callable[[], None]] = {}

    @property
    def requested(self) -> bool:
        """Whether a thread has asked the work to stop."""
        return self._requested

    def request(self) -> None:
        """Ask the work to stop. Returns at once; the work ends at the next step of its thread."""
        with self._guard:
            first, self._requested = not self._requested, True
            stops = dict(self._stops)
        if first:
            for done, stop in stops.items():
                stop()
                threading.Thread(target=_insist, args=(stop, done), name="freshview-interrupt", daemon=True).start()

    @property
    def gives_way(self) -> bool:
        """Whether the work is in the background, and no statement waits for it."""
        return self._gives_way

    def raise_priority(self) -> None:
        """Make the work one that a statement waits for. Returns at once; the work hurries from its next step on."""
        self._gives_way = False

    @contextmanager
    def hurried_by(self, hurry: Callable[[], None]) -> Iterator[None]:
        """Call `hurry` in the thread of the block, once, at its first step after the priority was raised."""
        self._raising.append(hurry)
        try:
            yield
        finally:
            if hurry in self._raising:
                self._raising.remove(hurry)

    def step(self, what: str) -> None:
        """Hurry or stop, if that was asked for; called by the thread that does the work."""
        while not self._gives_way and self._raising:
            self._raising.pop()()
        if self._requested:
            raise cancelled(what)

    @contextmanager
    def here(self) -> Iterator[None]:
        """Make what this thread does in the block the work, which `stop_if_asked` can stop."""
        before = getattr(_here, "interruption", None)
        _here.interruption = self
        try:
            yield
        finally:
            _here.interruption = before

    @contextmanager
    def broken_off_by(self, stop: Callable[[], None]) -> Iterator[None]:
        """Call `stop` on a request, repeatedly until the block is left: the thread may begin to wait after a call."""
        done = threading.Event()
        with self._guard:
            self._stops[done] = stop
        try:
            if self._requested:
                raise cancelled("background job")
            yield
        finally:
            done.set()
            with self._guard:
                del self._stops[done]


def _insist(stop: Callable[[], None], done: threading.Event) -> None:
    while not done.wait(_AGAIN):
        stop()


def current() -> Interruption | None:
    """The work of this thread; None if nobody can stop or hurry it."""
    interruption: Interruption | None = getattr(_here, "interruption", None)
    return interruption


def ask_to_stop() -> None:
    """Ask this thread's work to stop: for a signal handler, which runs in the thread that it interrupts."""
    interruption = current()
    if interruption is not None:
        interruption.request()


def is_asked_to_stop() -> bool:
    """Whether this thread's work was asked to stop."""
    interruption = current()
    return interruption is not None and interruption.requested


def stop_if_asked(what: str) -> None:
    """Raise Cancelled if this thread's work was asked to stop; called where work can stop without harm."""
    interruption = current()
    if interruption is not None:
        interruption.step(what)


def gives_way() -> bool:
    """Whether this thread works in the background, and no statement waits for its work."""
    interruption = current()
    return interruption is not None and interruption.gives_way


def cancelled(what: str) -> Cancelled:
    """The error of work that was asked to stop."""
    return Cancelled(what, "was cancelled to make way for other work", "Run it again.")
