"""The machine or container that the process runs on."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def memory() -> int:
    """Return the bytes of memory of this machine or container."""
    found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):  # there is no container, or it has no limit
        found = min(found, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return found
