"""The machine or container that the process runs on."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path


def memory() -> int:
    """Return the bytes of memory of this machine or container."""
    found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):  # there is no container, or it has no limit
        found = min(found, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return found


def process_space() -> str:
    """Return a name of the processes among which the id of this process is its own: those of one pid namespace of one
    boot of the kernel. Containers may share a host name and not their process ids. "" where the system names none."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
        return hashlib.sha256(f"{boot} {os.readlink('/proc/self/ns/pid')}".encode()).hexdigest()[:12]
    except OSError:
        return ""


def is_gone(pid: int) -> bool:
    """Return whether no process of this process space has an id. A process that ended may have left it to another."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:  # it is another user's
        return False
    return False
