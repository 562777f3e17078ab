"""Ctrl-C while Spark works: its jobs are cancelled, then the interrupt goes its usual way.

PySpark installs an answer of its own to Ctrl-C when a context starts. It calls Spark over the very connection that is
waiting for the interrupted call; that fails, the jobs run on, and whoever had installed an answer before is not asked.
Over Spark Connect it installs none, and interrupts the one operation that the interrupted call waits for.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from pyspark.sql import SparkSession

from freshview.spark.background import clones, context_of

_SECONDS = 5.0  # that cancelling may take


@contextmanager
def own_interrupts() -> Iterator[None]:
    """A session that starts meanwhile leaves the answer to Ctrl-C as it was, with the cancelling before it."""
    if threading.current_thread() is not threading.main_thread():
        yield  # PySpark leaves it alone there too
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, _after_cancelling(before))


Answer = Callable[[int, FrameType | None], Any] | int | signal.Handlers | None


def _after_cancelling(before: Answer) -> Answer:
    if before in (signal.SIG_IGN, None):
        return signal.SIG_IGN

    def interrupted(number: int, frame: FrameType | None) -> None:
        """In a thread of its own, which has a connection of its own."""
        helper = threading.Thread(target=_cancel, name="freshview-interrupt", daemon=True)
        helper.start()
        helper.join(_SECONDS)
        if callable(before):
            before(number, frame)
        else:
            raise KeyboardInterrupt

    return interrupted


def _cancel() -> None:
    """Cancel all that runs: on a Spark of ours any job is ours; of a Connect server only what our sessions run."""
    with suppress(Exception):  # a Spark that does not answer any more has nothing to cancel
        first = SparkSession.active()
        context = context_of(first)
        if context is not None:
            context.cancelAllJobs()
            return
        for session in (first, *clones()):
            with suppress(Exception):
                session.interruptAll()
