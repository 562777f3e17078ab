"""Ctrl-C while Spark works: its jobs are cancelled, then the former handler of the interrupt is called.

PySpark installs a handler of its own for Ctrl-C when a context starts. It calls Spark over the very connection that is
waiting for the interrupted call; that fails, the jobs run on, and the handler that was installed before is not called.
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

_SECONDS = 5.0  # within which jobs have to be cancelled


@contextmanager
def own_interrupts() -> Iterator[None]:
    """Replace the handler that a session in the block installs by one that cancels, then calls the former handler."""
    if threading.current_thread() is not threading.main_thread():
        yield  # PySpark installs none there
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, _after_cancelling(before))


Handler = Callable[[int, FrameType | None], Any] | int | signal.Handlers | None


def _after_cancelling(before: Handler) -> Handler:
    if before in (signal.SIG_IGN, None):
        return signal.SIG_IGN

    def interrupted(number: int, frame: FrameType | None) -> None:
        """Cancel in another thread, which has a connection of its own; then call the former handler."""
        helper = threading.Thread(target=_cancel, name="freshview-interrupt", daemon=True)
        helper.start()
        helper.join(_SECONDS)
        if callable(before):
            before(number, frame)
        else:
            raise KeyboardInterrupt

    return interrupted


def _cancel() -> None:
    """Cancel all jobs: on a Spark of this process any job is ours; on a Connect server only those of our sessions."""
    with suppress(Exception):  # a Spark that no longer answers has nothing to cancel
        first = SparkSession.active()
        context = context_of(first)
        if context is not None:
            context.cancelAllJobs()
            return
        for session in (first, *clones()):
            with suppress(Exception):
                session.interruptAll()
