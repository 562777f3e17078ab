"""Processes of this machine as /proc lists them: whose children they are, and stopping them for a while."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def descendants(pid: int) -> list[int]:
    """Return a process with its children and theirs."""
    parents: dict[int, int] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended meanwhile
            parents[int(status.parent.name)] = int(status.read_text().rpartition(")")[2].split()[1])
    found = [pid]
    for parent in found:  # grows while it is read
        found += [child for child, of in parents.items() if of == parent]
    return found


@contextmanager
def stopped(pids: Iterable[int]) -> Iterator[None]:
    """Stop these processes while the block runs."""
    listed = list(pids)
    _signal(listed, signal.SIGSTOP)
    try:
        yield
    finally:
        _signal(listed, signal.SIGCONT)


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
