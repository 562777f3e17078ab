"""Polls of several processes from one stored position: one of them commits, the others poll again from there."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable
from typing import TypeVar

from freshview.errors import WriteConflict

T = TypeVar("T")
_TRIES, _SECONDS = 5, 30.0  # both must have passed: a short poll may lose often, and a long one takes its time
INSTALLING = 60  # seconds to wait for another process that installs a capture anew and loads its table


def taking_turns(poll: Callable[[], T]) -> T:
    """Poll; again after a WriteConflict, which is raised if it happens too often.

    The pause is random, so that of two processes that poll without end each commits now and then.
    """
    until = time.monotonic() + _SECONDS
    for attempt in itertools.count(1):
        try:
            return poll()
        except WriteConflict:
            if attempt >= _TRIES and time.monotonic() > until:
                raise
        time.sleep(random.random() * 0.05)
    raise AssertionError("unreachable")
