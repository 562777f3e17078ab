"""Measuring: repeated timings, their spread, and memory. Ratios compare timings of one run."""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

_TRIAL = 0.1  # below this scale fixed costs hide what depends on the data


@dataclass(frozen=True)
class Timing:
    """Seconds of repeated runs."""

    seconds: tuple[float, ...]

    @property
    def p50(self) -> float:
        return statistics.median(self.seconds)

    @property
    def p10(self) -> float:
        """The limit of the fastest tenth: the time of a short action while no other process runs."""
        return sorted(self.seconds)[len(self.seconds) // 10]

    @property
    def p95(self) -> float:
        """The time that 19 of 20 runs keep within."""
        return sorted(self.seconds)[-1 - len(self.seconds) // 20]

    @property
    def best(self) -> float:
        return min(self.seconds)

    @property
    def worst(self) -> float:
        return max(self.seconds)

    def __str__(self) -> str:
        return f"{duration(self.p50)} ({duration(self.best)} to {duration(self.worst)}, n={len(self.seconds)})"


def duration(seconds: float) -> str:
    """Return a duration as text, in milliseconds or seconds."""
    return f"{seconds * 1000:.2f} ms" if seconds < 1 else f"{seconds:.2f} s"


def seconds_of(action: Callable[[], object]) -> float:
    begun = time.perf_counter()
    action()
    return time.perf_counter() - begun


def alternated(
    actions: Mapping[str, Callable[[Any], object]], repeat: int, warmup: int = 1, given: Callable[[int], Any] = int
) -> dict[str, Timing]:
    """Time several actions in turn, so that a busy moment of the machine hits all of them alike.

    Every turn begins with another action. Each action gets the value of `given` for the turn's number, computed before
    the action is timed.
    """
    seconds: dict[str, list[float]] = {name: [] for name in actions}
    names = list(actions)
    for i in range(warmup + repeat):
        for name in names[i % len(names) :] + names[: i % len(names)]:
            what = given(i)
            begun = time.perf_counter()
            actions[name](what)
            if i >= warmup:
                seconds[name].append(time.perf_counter() - begun)
    return {name: Timing(tuple(values)) for name, values in seconds.items()}


def spread(over: Timing, under: Timing) -> tuple[float, float]:
    """Return the range of the ratios of two timings, round by round; of many rounds, of the middle eight tenths."""
    ratios = sorted(a / b for a, b in zip(over.seconds, under.seconds, strict=True))
    left_out = len(ratios) // 10
    return ratios[left_out], ratios[-1 - left_out]


@contextmanager
def meanwhile(action: Callable[[], object], pause: float = 0.0) -> Iterator[None]:
    """Repeat an action in another thread while the block runs. If the action fails, so does the block."""
    stop = threading.Event()

    def run() -> None:
        while not stop.wait(pause):
            action()

    with ThreadPoolExecutor(1) as other:
        ended = other.submit(run)
        try:
            yield
        finally:
            stop.set()
        ended.result()


def is_trial(scale: float) -> bool:
    """Return whether a scale is so small that a shortened suite is enough."""
    return scale < _TRIAL


def peak_memory() -> int:
    """Return the peak resident memory of this process, in bytes."""
    return _of_status("VmHWM")


def memory() -> int:
    """Return the resident memory of this process, in bytes."""
    return _of_status("VmRSS")


def cpu_seconds() -> tuple[float, float]:
    """Return the CPU seconds that this process has used, and those of its children, Java among them."""
    own, children = os.times(), 0.0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            values = path.read_text().rpartition(")")[2].split()  # the name before may have spaces
        except OSError:  # it has ended
            continue
        if int(values[1]) == os.getpid():
            children += (int(values[11]) + int(values[12])) / os.sysconf("SC_CLK_TCK")
    return own.user + own.system, children


def reset_peak() -> None:
    """Have the peak of this process begin anew, at its present memory."""
    Path("/proc/self/clear_refs").write_text("5")


def _of_status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"{name} is not in /proc/self/status")


Bars = dict[str, dict[str, float]]  # bar → part of it → seconds


@dataclass(frozen=True)
class Chart:
    """A chart: bars made of parts, in panels side by side; or lines over numbers, on logarithmic axes."""

    name: str
    title: str
    panels: dict[str, Bars]
    log: bool = False  # a logarithmic axis, for bars of one part
    lines: dict[str, dict[str, float]] = field(default_factory=dict)  # line → number → seconds
    along: str = "TPC-H scale"  # what the numbers of the lines are


@dataclass(frozen=True)
class Figure:
    """One measured figure: its name, its value, the limit that it should keep, the numbers behind it."""

    name: str
    value: float
    limit: float | None
    unit: str
    details: dict[str, str]
    at_least: bool = False
    chart: Chart | None = None
    spread: tuple[float, float] | None = None  # of the value over repetitions
    always: bool = False  # the limit is about correctness, and holds at every scale

    @property
    def met(self) -> bool | None:
        if self.limit is None:
            return None
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    def as_json(self) -> dict[str, object]:
        names = ("name", "value", "limit", "unit", "met", "at_least", "details")
        fields: dict[str, object] = {name: getattr(self, name) for name in names} | {"value": round(self.value, 4)}
        if self.spread is not None:
            fields["spread"] = [round(value, 4) for value in self.spread]
        if self.always:
            fields["always"] = True
        return fields | ({"chart": asdict(self.chart)} if self.chart is not None else {})
