"""Where the time of a fresh answer goes: V1 after a change of 100 customers, part by part.

The parts are functions of the product, wrapped while the profile runs. A part's time is its own: what it calls and what
is a part too counts there. What no part covers is the rest.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import wraps
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

from freshview import Warehouse
from freshview.bench.lazy_world import ONE, Customers, opened, upsert
from freshview.bench.measure import Figure, Timing
from freshview.bench.views import exact
from freshview.catalog.engine import Database
from freshview.local.engine import LocalEngine
from freshview.refresh import changing, embedded, execute, job_input, jobs, ways
from freshview.refresh.relevance import Relevance
from freshview.spark.engine import SparkEngine
from freshview.storage.reader import StateReader
from freshview.warehouse import queries

_REST = "the rest"
_SPARK = "Spark runs the query"
_FUNCTIONS: tuple[tuple[str, Any, str], ...] = (  # part, where its function is, the function's name
    ("parsing the query", queries, "bind"),
    ("relevance of the change", Relevance, "needed"),
    ("deltas of the sources", job_input, "images"),
    ("deltas of the sources", job_input, "netted"),
    ("lookups", StateReader, "matching"),
    ("lookups", StateReader, "lookup"),
    ("plan: delta rules", ways, "alternatives"),
    ("plan: choice", changing, "choose"),
    ("plan: translation", embedded, "translated"),
    ("embedded engine", LocalEngine, "run"),
    ("netting", execute, "net"),
    ("storing", jobs, "store"),
    ("frames for Spark", SparkEngine, "scan"),
    ("frames for Spark", SparkEngine, "shown"),
    ("Spark analyses the query", SparkEngine, "evaluated"),
    ("Spark analyses the query", SparkEngine, "query"),
)
_CONTEXTS: tuple[tuple[str, Any, str], ...] = (("catalog", Database, "read"), ("catalog", Database, "write"))


class PartSeconds:
    """Seconds by part, of the thread that made it."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._thread = threading.get_ident()
        self._open: list[float] = []  # of each part that is open: the seconds of the parts inside it

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count the time of the block, without the parts inside it, as this part."""
        if threading.get_ident() != self._thread:
            yield
            return
        self._open.append(0.0)
        begun = time.perf_counter()
        try:
            yield
        finally:
            taken = time.perf_counter() - begun
            inside = self._open.pop()
            self.seconds[name] = self.seconds.get(name, 0.0) + taken - inside
            if self._open:
                self._open[-1] += taken


@contextmanager
def profiled() -> Iterator[PartSeconds]:
    """Count the time of the product's parts while the block runs, and of all else in the block as the rest."""
    profile = PartSeconds()
    with ExitStack() as stack:
        for part, owner, name in _FUNCTIONS:
            stack.enter_context(patch.object(owner, name, _timed(profile, part, getattr(owner, name))))
        for part, owner, name in _CONTEXTS:
            stack.enter_context(patch.object(owner, name, _timed_context(profile, part, getattr(owner, name))))
        with profile.part(_REST):
            yield profile


def _timed(profile: PartSeconds, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def run(*args: Any, **options: Any) -> Any:
        with profile.part(part):
            return function(*args, **options)

    return run


def _timed_context(
    profile: PartSeconds, part: str, function: Callable[..., AbstractContextManager[Any]]
) -> Callable[..., AbstractContextManager[Any]]:
    @wraps(function)
    @contextmanager
    def run(*args: Any, **options: Any) -> Iterator[Any]:
        with profile.part(part), function(*args, **options) as value:
            yield value

    return run


def fresh_answer(folder: Path, scale: float, repeat: int) -> list[Figure]:
    """Profile the fresh answer of V1 after 100 customers have moved; the first rounds are a warm-up."""
    customers = Customers(folder, scale, seed=13)
    with opened(folder, scale, ONE) as wh:
        rounds = []
        for i in range(3 + 3 * repeat):
            upsert(wh, customers.moved(customers.some(min(100, customers.count))))
            found = _answered(wh)
            if i >= 3:
                rounds.append(found)
        total = median(sum(found.values()) for found in rounds)
        names = {name for found in rounds for name in found}
        parts = {name: Timing(tuple(found.get(name, 0.0) for found in rounds)) for name in names}
        details = {name: str(timing) for name, timing in sorted(parts.items(), key=lambda p: -p[1].p50)}
        return [
            Figure("V1, 100 customers, fresh answer, in parts", total * 1000, None, "ms", details),
            exact(wh, ["v1"]),
        ]


def _answered(wh: Warehouse) -> dict[str, float]:
    with profiled() as profile:
        frame = wh.sql("SELECT * FROM v1")
        with profile.part(_SPARK):
            frame.collect()
    return profile.seconds


STEPS = (fresh_answer,)
