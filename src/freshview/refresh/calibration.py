"""Prices measured on this machine or cluster: single steps of both engines and of the storage, over generated rows.

    a price per row        two sizes of one step: the difference of their times over the difference of their rows
    a fixed price          what is left of a step over few rows
    a lookup in files      of one value and of several by the column that files are sorted by, and by another column, of
                           few values and of many
    a lookup in memory     of few values and of many, by a column whose index is in memory

Each step is timed a few times, and the median counts. Rows are written to a leased folder of the warehouse, on the
disk that its tables are on, and removed in the end, also after an error.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa

from freshview.algebra.nodes import Node, Scan
from freshview.algebra.traversal import per_use
from freshview.catalog.records import DataFile, Main, Relation, RelationState
from freshview.catalog.statistics import StatisticsCatalog
from freshview.events import Events
from freshview.interruption import stop_if_asked
from freshview.local.engine import LocalEngine
from freshview.local.plans import translated
from freshview.optimizer.prices import Engine, Prices
from freshview.relation.conditions import Among
from freshview.relation.delta import INSERT, encode, tag
from freshview.relation.schema import Column, Schema
from freshview.relation.types import DataType
from freshview.spark.engines import Engines
from freshview.sql.lowering import lower
from freshview.storage.main import NewMain
from freshview.storage.reader import StateReader
from freshview.storage.store import Storage

SMALL, LARGE = 50_000, 1_500_000  # rows of the generated tables: main tables of the larger size are not kept in memory
_EMBEDDED = 5  # the part of the large table, as a divisor, that the embedded engine is measured with
_TIMES = 3  # each step is timed so often
_VALUES = 10  # of the larger lookup by the column that files are sorted by; so few are never looked up in memory
_SOME, _MANY = 100, 20_000  # values of a lookup in memory, and in files that keep nothing in memory
_MOST_FOUND = 300_000
_SCHEMA = Schema(tuple(Column(c, DataType("bigint")) for c in ("id", "k", "v")))
_GROUPED = "SELECT k, COUNT(v) AS n FROM t GROUP BY k"
_JOINED = "SELECT t.k, COUNT(t.v) AS n FROM t JOIN u ON t.id = u.id GROUP BY t.k"
_CHAIN = (
    "SELECT t.k, COUNT(t.v) AS n FROM t JOIN u ON t.id = u.id JOIN w ON w.id = u.id JOIN x ON x.id = w.id "
    "JOIN y ON y.id = x.id JOIN z ON z.id = y.id GROUP BY t.k"
)

Measured = Mapping[str, float]  # seconds of each step


@dataclass(frozen=True)
class Calibrating:
    """Measures the prices of one warehouse's engines."""

    statistics: StatisticsCatalog
    storage: Storage
    engines: Engines
    events: Events

    def run(self) -> Prices:
        """Measure all prices, store them in the catalog, and return them."""
        catalog = self.statistics.catalog
        lease = catalog.lease(0, self.storage.layout.new_folder("stage"))
        assert lease is not None
        try:
            with ExitStack() as stack:
                bench = _Bench(self, lease.path, SMALL, LARGE, stack)
                for number, (name, step) in enumerate(bench.steps()):
                    stop_if_asked("calibration")
                    self.events.emit("calibrate.step", step=name, number=number, steps=len(bench.steps()))
                    step()
            memory = float(self.storage.reader.columns.budget)
            prices = replace(priced(bench.seconds, SMALL, LARGE), index_memory=memory)
            self.statistics.set_prices(prices.to_dict())
            return prices
        finally:
            self.storage.discard(0, lease.path)
            catalog.drop_leases([lease.id])


def priced(seconds: Measured, small: int, large: int) -> Prices:
    """The prices that follow from the times of single steps; none is 0 or less, however the machine was disturbed."""
    default = Prices()

    def per_row(few: str, many: str, least: float) -> float:
        return max((seconds[many] - seconds[few]) / (large - small), least)

    def fixed(step: str, least: float) -> float:
        return max(seconds[step], least)

    joined = seconds["embedded join large"] - seconds["embedded join small"]
    row = max(joined / (large // _EMBEDDED - small) / 2, 1e-9)  # two inputs of so many rows
    embedded = Engine(
        query=fixed("embedded query", 1e-4),
        operator=max((seconds["embedded chain"] - seconds["embedded query"]) / _OPERATORS, 1e-5),
        scan=max(seconds["embedded scan"] / large, 1e-9),
        row=row,
        keep=0.0,
        write=per_row("embedded write small", "embedded write large", 1e-8),
    )
    scan = per_row("spark scan small", "spark scan large", 1e-9)
    grouped = (seconds["spark group large"] - seconds["spark scan large"]) / large
    spark = Engine(
        query=fixed("spark query", 1e-3),
        operator=max((seconds["spark chain"] - seconds["spark query"]) / _OPERATORS, 1e-4),
        scan=scan,
        row=max(grouped, 1e-9),
        keep=max(seconds["spark write small"] - seconds["spark query"], 1e-3),
        write=max(per_row("spark write small", "spark write large", 1e-8) - scan, 1e-8),
    )
    each = max((seconds["lookup of several"] - seconds["lookup"]) / (_VALUES - 1), 0.0)  # value in sorted files
    lookup = max(seconds["lookup"] - each, 1e-4)
    passed = max((seconds["lookup unsorted"] - lookup) / large, 1e-10)
    in_memory = max((seconds["lookup of many in memory"] - seconds["lookup in memory"]) / (_MANY - _SOME), 1e-8)
    in_files = max((seconds["lookup of many"] - seconds["lookup unsorted"]) / (_MANY - _VALUES), 1e-8)
    return replace(
        default,
        embedded=embedded,
        spark=spark,
        lookup=lookup,
        passed=passed,
        pruned=min(max(each / passed, 100.0), float(large)),
        value=in_files,
        indexed=max(seconds["lookup in memory"] - _SOME * in_memory, 1e-5),
        indexed_value=in_memory,
        commit=fixed("commit", 1e-4),
        merge=max(seconds["merge"] / large, 1e-9) + embedded.write,
        sort=max((seconds["spark sorted write"] - seconds["spark write large"]) / large, 1e-9),
        is_default=False,
    )


class _Bench:
    """The steps of one calibration, and the seconds that they took."""

    def __init__(self, of: Calibrating, folder: str, small: int, large: int, stack: ExitStack) -> None:
        self._of = of
        self._folder = folder
        budget = of.storage.reader.columns.budget
        self._scratch = Storage(of.storage.layout.relation(0) / folder, lookup_memory=budget)
        self._few, self._many, self._one = _rows(small), _rows(large), _rows(1)
        self._local = LocalEngine()
        stack.callback(self._local.close)
        self._numbers = np.random.default_rng(7)
        self._frames: dict[str, Any] = {}
        self._state: RelationState | None = None
        self.seconds: dict[str, float] = {}

    def steps(self) -> list[tuple[str, Callable[[], None]]]:
        return [
            ("the embedded engine", self._embedded),
            ("files on the driver", self._files),
            ("lookups", self._lookups),
            ("commits", self._commits),
            ("Spark's fixed costs", self._spark_fixed),
            ("Spark's scans and groupings", self._spark_rows),
            ("Spark's writes", self._spark_writes),
        ]

    def _timed(self, name: str, act: Callable[[], object], times: int = _TIMES) -> None:
        found = []
        for _ in range(times):
            begun = time.perf_counter()
            act()
            found.append(time.perf_counter() - begun)
        self.seconds[name] = median(found)

    # -- the embedded engine and the driver --------------------------------------------------------

    def _embedded(self) -> None:
        def run(text: str, rows: pa.Table) -> Callable[[], object]:
            plan = translated(_tree(text), _types, _unprepared)
            return lambda: self._local.run(plan, lambda _: rows)

        run(_GROUPED, self._one)()  # the engine starts
        self._timed("embedded query", run(_GROUPED, self._one))
        self._timed("embedded chain", run(_CHAIN, self._one))
        self._timed("embedded join small", run(_JOINED, self._few))
        self._timed("embedded join large", run(_JOINED, self._many.slice(0, self._many.num_rows // _EMBEDDED)))

    def _files(self) -> None:
        few = [f"few-{i}" for i in range(_TIMES)]
        many = [f"many-{i}" for i in range(_TIMES)]
        self._timed("embedded write small", lambda: self._scratch.write_parquet(1, few.pop(), self._few))
        self._timed("embedded write large", lambda: self._scratch.write_parquet(1, many.pop(), self._many))
        files = self._scratch.write_parquet(2, "main", self._many)
        main = self._scratch.mains.adopt(NewMain(2, None, _SCHEMA, 1, 1, 0), files)
        self._state = _state(main)
        self._timed("embedded scan", lambda: self._scratch.mains.read(2, main.delta_version))
        self._timed("merge", lambda: encode(tag(self._many, _SCHEMA, INSERT, 1)))

    def _lookups(self) -> None:
        different = {"id": self._many.num_rows, "k": _different(self._many.num_rows)}
        in_files = StateReader(self._scratch.layout, self._scratch.mains, 0)

        def find(column: str, count: int, reader: StateReader = self._scratch.reader) -> Callable[[], object]:
            def look() -> object:
                values = pa.array(np.unique(self._numbers.integers(0, different[column], count)), pa.int64())
                by = ((column, Among(values, False)),)
                assert self._state is not None
                return reader.matching(self._state, by, columns=("id", "v"), limit=_MOST_FOUND)

            return look

        find("id", 1)()
        self._timed("lookup", find("id", 1), 5)
        self._timed("lookup of several", find("id", _VALUES), 5)
        self._timed("lookup unsorted", find("k", _VALUES))
        self._timed("lookup of many", find("k", _MANY, in_files))
        for _ in range(2):
            find("k", _SOME)()  # the first lookups read files, and keep the columns
        self._timed("lookup in memory", find("k", _SOME), 5)
        self._timed("lookup of many in memory", find("k", _MANY), 5)

    def _commits(self) -> None:
        statistics = self._of.statistics

        def commit() -> None:
            pin = statistics.catalog.begin("job")
            statistics.write_nothing()
            statistics.catalog.release(pin)

        self._timed("commit", commit, 5)

    # -- Spark -------------------------------------------------------------------------------------

    def _spark_fixed(self) -> None:
        engine = self._of.engines.under(self._of.engines.user().settings(), small=True)
        frame = engine.frame(self._one, _SCHEMA)
        for name, text in (("spark query", _GROUPED), ("spark chain", _CHAIN)):
            asked = _asked(text)
            frames = dict.fromkeys(_named(text), frame)

            def run(asked: str = asked, frames: dict[str, Any] = frames) -> object:
                return engine.arrow(engine.query(asked, frames, "calibration"), "calibration")

            run()  # a new plan shape costs more once
            self._timed(name, run)

    def _spark_rows(self) -> None:
        engine = self._of.engines.under(self._of.engines.user().settings())
        for name, rows in (("small", self._few), ("large", self._many)):
            written = self._of.storage.write_parquet(0, f"{self._folder}/spark-{name}", rows)
            self._frames[name] = engine.read_files(0, written, _SCHEMA)
        scan, group = (
            "SELECT max(v) AS m FROM {t}",
            "SELECT max(n) AS m FROM (SELECT k, sum(v) AS n FROM {t} GROUP BY k)",
        )
        for step, text, size in (
            ("scan small", scan, "small"),
            ("scan large", scan, "large"),
            ("group large", group, "large"),
        ):

            def run(text: str = text, size: str = size) -> object:
                return engine.arrow(engine.query(text, {"t": self._frames[size]}, "calibration"), "calibration")

            run()
            self._timed(f"spark {step}", run)

    def _spark_writes(self) -> None:
        engine = self._of.engines.under(self._of.engines.user().settings())
        ordered = engine.query("SELECT * FROM {t} ORDER BY k", {"t": self._frames["large"]}, "calibration")
        frames = {"write small": self._frames["small"], "write large": self._frames["large"], "sorted write": ordered}
        for number, (name, frame) in enumerate(frames.items()):

            def run(number: int = number, frame: Any = frame) -> tuple[DataFile, ...]:
                return engine.write(frame, 0, f"{self._folder}/out-{number}", "calibration")

            run()
            self._timed(f"spark {name}", run, 2)


def _rows(count: int) -> pa.Table:
    """Rows in the order of `id`, with ten of them per value of `k`, in no order."""
    ids, numbers = np.arange(count, dtype=np.int64), np.random.default_rng(count)
    shuffled = numbers.permutation(ids) % _different(count)
    return pa.table({"id": ids, "k": shuffled, "v": numbers.integers(0, 1 << 40, count)}, schema=_SCHEMA.arrow)


def _different(count: int) -> int:
    """The values of `k` in so many rows."""
    return max(count // 10, 1)


def _state(main: Main) -> RelationState:
    relation = Relation(2, "calibration", "table", 1, 1, _SCHEMA, 1)
    return RelationState(relation, 1, main, _SCHEMA, ())


def _named(text: str) -> list[str]:
    """The names of the tables in one of the texts above."""
    words = text.split()
    return [words[i + 1] for i, word in enumerate(words) if word in ("FROM", "JOIN")]


def _asked(text: str) -> str:
    """A text above with placeholders for its tables."""
    for name in _named(text):
        text = text.replace(f"FROM {name} ", f"FROM {{{name}}} {name} ").replace(
            f"JOIN {name} ", f"JOIN {{{name}}} {name} "
        )
    return text


def _tree(text: str) -> Node:
    return lower(text, dict.fromkeys(_named(text), _SCHEMA.names)).node


def _types(scan: Scan) -> dict[str, DataType]:  # noqa: ARG001
    return {c.name: c.type for c in _SCHEMA.columns}


def _unprepared(part: Node) -> dict[str, DataType]:
    raise AssertionError(f"{type(part).__name__} is not proven")


_OPERATORS = per_use(_tree(_CHAIN), lambda _: 1) - per_use(_tree(_GROUPED), lambda _: 1)
