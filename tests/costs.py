"""A pytest plugin that prints which modules of tests took the most of the processors.

Other runs beside this one make every test slower, but none costlier: seconds of a processor, of this process and of
those that it started, say where the time of all runs goes. Only where the kernel lists processes in /proc.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path

import pytest

_MOST = 25  # modules to print
_PROCESSES = Path("/proc")
# Places in a process's stat, behind its name: user and system, its own and of those of its children that have ended.
_PARENT, _TIMES = 1, slice(11, 15)


def seconds_of_processors() -> float:
    """What this process, those that it started, and those that they started have used."""
    parents: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for folder in _PROCESSES.glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        parents.setdefault(int(fields[_PARENT]), []).append(int(folder.name))
        ticks[int(folder.name)] = sum(map(int, fields[_TIMES]))
    ours = [os.getpid()]
    for process in ours:
        ours += parents.get(process, [])
    return sum(ticks.get(process, 0) for process in ours) / os.sysconf("SC_CLK_TCK")


class Costs:
    """Seconds of a processor by module. What is torn down late counts for the module that follows."""

    def __init__(self) -> None:
        self._by_module: dict[str, float] = defaultdict(float)
        self._module = ""
        self._before = 0.0

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        module = item.nodeid.partition("::")[0]
        if module != self._module:
            self._count()
            self._module = module
        return (yield)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        self._count()
        total = sum(self._by_module.values())
        terminalreporter.section(f"costliest modules of {total:.0f} s of a processor")
        for module, seconds in sorted(self._by_module.items(), key=lambda item: -item[1])[:_MOST]:
            terminalreporter.write_line(f"{seconds:7.1f} s  {module}")

    def _count(self) -> None:
        now = seconds_of_processors()
        self._by_module[self._module or "start"] += now - self._before
        self._before = now


def pytest_configure(config: pytest.Config) -> None:
    if _PROCESSES.is_dir():
        config.pluginmanager.register(Costs())
