"""Freshview beside other systems: the time of a fresh answer of V1 after a change of TPC-H, in one run.

Every system holds equal tables and gets equal changes. While one of them is measured, the processes of all others are
stopped; those that live in this process, or in its Java, are idle. Answers are compared exactly after every change: a
wrong answer is an error, not a measurement.
"""

from __future__ import annotations

import random
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from freshview.bench.data import tpch
from freshview.bench.lazy_world import Customers
from freshview.bench.measure import Chart, Figure, Timing, duration, is_trial, seconds_of, spread
from freshview.bench.processes import stopped
from freshview.bench.tables import replaced
from freshview.errors import FreshviewError, QueryFailed
from freshview.storage.main import plain

TABLES = ("customer", "orders", "lineitem", "nation")
OURS, STORED = "Freshview", "Freshview with stored results"
DUCKDB, PATHWAY = "DuckDB, recomputed", "Pathway"
_CUSTOMERS, _ORDERS = "100 customers", "0.1 % of orders and lineitem"
_LIMITS = {(_CUSTOMERS, DUCKDB): 3.0, (_CUSTOMERS, PATHWAY): 1.5, (_ORDERS, DUCKDB): 1.5}  # of fresh answers
_UPDATE_LIMITS = {(_ORDERS, DUCKDB): 3.0}
WARMUP = 5  # rounds that are not counted: Java compiles what runs often, and all systems fill their caches
ORDER_KEY = {"orders": "o_orderkey", "lineitem": "l_orderkey"}  # of tables whose rows are changed by order

Row = tuple[str, str, int, Decimal, Decimal]  # of V1


@dataclass(frozen=True)
class TableChange:
    """The rows of one transaction: customers that move to another nation; deleted and inserted orders with lines."""

    name: str
    customers: pa.Table | None = None  # whole rows, each with an existing key
    gone: tuple[int, ...] = ()  # keys of deleted orders
    come: dict[str, pa.Table] = field(default_factory=dict)  # inserted rows of orders and lineitem
    left: dict[str, pa.Table] = field(default_factory=dict)  # old rows, for a system that needs them


class System(Protocol):
    """A system that holds the tables and can answer V1."""

    name: str
    setup: str  # how the system is set up, in a few words

    def apply(self, change: TableChange) -> None:
        """Make the change, as durably as the system usually does."""

    def answer(self) -> Sequence[Sequence[object]]:
        """Return the rows of V1 as of now."""

    def processes(self) -> Sequence[int]:
        """Return the processes that belong to this system alone: they are stopped while another is measured."""

    def close(self) -> None: ...


class Missing(FreshviewError):
    """A system cannot take part, for the stated reason."""


Maker = Callable[[Path, Path], System]  # takes a folder to work in, and the folder of the data


# -- changes ---------------------------------------------------------------------------------------


class TableChanges:
    """Random changes of TPC-H, determined by the seed."""

    def __init__(self, folder: Path, scale: float, seed: int) -> None:
        self._data = tpch(folder, scale, TABLES)
        self._customers = Customers(folder, scale, seed)
        self._draw = random.Random(seed)
        keys = pq.read_table(self._data / "orders.parquet", columns=["o_orderkey"]).column(0).to_pylist()
        self._draw.shuffle(keys)
        self._keys, self._widest, self._shift = keys, max(keys), 0
        self._nations: dict[int, int] = {}  # of customers that have moved

    def customers(self) -> TableChange:
        """Return a change of 100 customers, scattered, each in a random nation."""
        keys = self._customers.some(min(100, self._customers.count))
        moved = self._customers.moved(keys)
        was = self._customers.rows.take([k - 1 for k in keys])
        nations = [self._nations.get(k, n) for k, n in zip(keys, was.column("c_nationkey").to_pylist(), strict=True)]
        self._nations.update(zip(keys, moved.column("c_nationkey").to_pylist(), strict=True))
        return TableChange(f"{len(keys)} customers", moved, left={"customer": replaced(was, "c_nationkey", nations)})

    def orders(self) -> TableChange:
        """Return a change that deletes 0.05 % of the orders with their lines, and inserts copies of as many others."""
        count = max(1, len(self._keys) // 2000)
        gone, self._keys = self._keys[:count], self._keys[count:]
        copied = self._draw.sample(self._keys, count)
        self._shift += self._widest  # keys that were never used
        come = {table: self._under_new_keys(table, self._rows(table, copied)) for table in ORDER_KEY}
        left = {table: self._rows(table, gone) for table in ORDER_KEY}
        return TableChange(_ORDERS, gone=tuple(gone), come=come, left=left)

    def _rows(self, table: str, orders: list[int]) -> pa.Table:
        path = self._data / f"{table}.parquet"
        schema = plain(pq.read_schema(path).empty_table()).schema  # pyarrow cannot filter string views
        return pq.read_table(path, schema=schema, filters=pc.field(ORDER_KEY[table]).isin(orders))

    def _under_new_keys(self, table: str, rows: pa.Table) -> pa.Table:
        place = rows.schema.get_field_index(ORDER_KEY[table])
        old = rows.schema.field(place)
        return rows.set_column(place, old, pc.add(rows.column(place), pa.scalar(self._shift, old.type)))


# -- the race --------------------------------------------------------------------------------------


@dataclass
class SystemTimes:
    """Seconds of one system and kind of change, round by round."""

    update: list[float] = field(default_factory=list)
    answer: list[float] = field(default_factory=list)

    @property
    def updating(self) -> Timing:
        return Timing(tuple(self.update))

    @property
    def answering(self) -> Timing:
        return Timing(tuple(self.answer))

    @property
    def bar(self) -> dict[str, float]:
        return {"update": self.updating.p50, "fresh answer": self.answering.p50}


RaceTimes = dict[str, dict[str, SystemTimes]]  # kind of change → system → its seconds


def canonical(rows: Sequence[Sequence[object]]) -> list[Row]:
    """Return rows of V1 in one order and of one type; raise QueryFailed if a sum is not an exact decimal."""
    found = []
    for nation, segment, count, price, quantity in rows:
        for value in (price, quantity):
            if not isinstance(value, Decimal):
                raise QueryFailed("answer of V1", f"a sum is a {type(value).__name__}", "Sums have to be decimals.")
        found.append((str(nation), str(segment), int(str(count)), price, quantity))
    return sorted(found)  # type: ignore[arg-type]


@dataclass
class Starters:
    """The systems that take part, their loading times, and why others do not take part."""

    systems: list[System] = field(default_factory=list)
    loading: dict[str, float] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)


def raced(systems: Sequence[System], changes: TableChanges, repeat: int, *, warmup: int = 1) -> tuple[RaceTimes, int]:
    """Time equal changes of all systems in turn, each round in another order; count the answers that were compared."""
    race: RaceTimes = {}
    compared = 0
    for i in range(warmup + repeat):
        for change in (changes.customers(), changes.orders()):
            answers: dict[str, list[Row]] = {}
            for system in [*systems[i % len(systems) :], *systems[: i % len(systems)]]:
                with stopped(pid for other in systems if other is not system for pid in other.processes()):
                    updated, answered, rows = timed(system, change)
                answers[system.name] = canonical(rows)
                line = f"{change.name}, {system.name}: update {duration(updated)}, fresh answer {duration(answered)}"
                print(line, file=sys.stderr, flush=True)
                if i >= warmup:
                    spent = race.setdefault(change.name, {}).setdefault(system.name, SystemTimes())
                    spent.update.append(updated)
                    spent.answer.append(answered)
            compared += agreed(answers, change)
    return race, compared


def timed(system: System, change: TableChange) -> tuple[float, float, list[Sequence[object]]]:
    """Return the seconds of a change and of the fresh answer after it, and the answer."""
    updated = seconds_of(lambda: system.apply(change))
    rows: list[Sequence[object]] = []
    answered = seconds_of(lambda: rows.extend(system.answer()))
    return updated, answered, rows


def agreed(answers: dict[str, list[Row]], change: TableChange) -> int:
    """Return the number of equal answers; raise QueryFailed with the first difference if not all are equal."""
    (first, expected), *others = answers.items()
    for name, rows in others:
        if rows != expected:
            odd = next((a, b) for a, b in zip([*expected, None], [*rows, None], strict=False) if a != b)
            raise QueryFailed(f"V1 after {change.name}", f"{first} and {name} differ: {odd[0]} and {odd[1]}", "")
    return len(answers)


def figures(race: RaceTimes, compared: int, starters: Starters) -> list[Figure]:
    """Return the figures of each system against ours, of the equal answers, and of the missing systems."""
    systems = starters.systems
    panels = {kind: {s.name: found[s.name].bar for s in systems} for kind, found in race.items()}
    chart = Chart("fresh", "From a change to a fresh answer of V1", panels)
    found = [
        figure
        for kind, by_name in race.items()
        for system in systems
        if system.name != OURS
        for figure in _against(kind, system.name, by_name[system.name], by_name[OURS])
    ]
    setup = {s.name: f"{s.setup}; loaded in {duration(starters.loading[s.name])}" for s in systems}
    return [
        Figure("systems measured", len(systems), None, "", setup, chart=chart),
        *found,
        Figure("answers that equal those of all others", compared, compared, "", {}, at_least=True, always=True),
        Figure("systems that could not take part", len(starters.missing), None, "", starters.missing),
    ]


def _against(kind: str, name: str, theirs: SystemTimes, ours: SystemTimes) -> list[Figure]:
    """Return the ratio of the fresh answers, and that of the updates where it has a limit."""
    both = ((name, theirs), (OURS, ours))
    answers = {f"{system}, fresh answer": str(spent.answering) for system, spent in both}
    updates = {f"{system}, update": str(spent.updating) for system, spent in both}
    details, limit = answers | updates, _LIMITS.get((kind, name))
    if name == PATHWAY:  # it maintains at once and in memory: how much longer do we take?
        found = [_ratio(f"V1, {kind}, fresh answer: {OURS} / {name}", ours.answer, theirs.answer, limit, details)]
    else:
        title = f"V1, {kind}, fresh answer: {name} / {OURS}"
        found = [_ratio(title, theirs.answer, ours.answer, limit, details, at_least=True)]
    if (kind, name) in _UPDATE_LIMITS:
        allowed = _UPDATE_LIMITS[kind, name]
        found.append(_ratio(f"V1, {kind}, update: {OURS} / {name}", ours.update, theirs.update, allowed, updates))
    return found


def _ratio(
    name: str,
    over: list[float],
    under: list[float],
    limit: float | None,
    details: dict[str, str],
    *,
    at_least: bool = False,
) -> Figure:
    """Return the median of the rounds' ratios."""
    ratio = statistics.median(a / b for a, b in zip(over, under, strict=True))
    between = spread(Timing(tuple(over)), Timing(tuple(under)))
    return Figure(name, ratio, limit, "×", details, at_least=at_least, spread=between)


# -- the suite -------------------------------------------------------------------------------------


@contextmanager
def gathered(folder: Path, scale: float, makers: dict[str, Maker]) -> Iterator[Starters]:
    """Load the systems that are installed here; close them at the end."""
    data = tpch(folder, scale, TABLES)
    home = folder / "peers"
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir()
    found = Starters()
    with ExitStack() as stack:
        for name, make in makers.items():
            begun = time.perf_counter()
            try:
                system = make(home, data)
            except Missing as reason:
                found.missing[name] = str(reason)
                print(f"{name}: {reason}", file=sys.stderr, flush=True)
                continue
            stack.callback(system.close)
            found.systems.append(system)
            found.loading[system.name] = time.perf_counter() - begun
            print(f"{name}: loaded in {duration(found.loading[system.name])}", file=sys.stderr, flush=True)
        yield found
    shutil.rmtree(home, ignore_errors=True)


def fresh_answers(folder: Path, scale: float, repeat: int) -> list[Figure]:
    """Time V1 after 100 customers have moved, and after 0.1 % of orders and lineitem have changed."""
    from freshview.bench.peers_systems import MAKERS  # imports packages that listing the suites does not need

    with gathered(folder, scale, MAKERS) as found:
        warmup = 1 if is_trial(scale) else WARMUP
        race, compared = raced(found.systems, TableChanges(folder, scale, seed=11), repeat, warmup=warmup)
        return figures(race, compared, found)


STEPS = (fresh_answers,)
