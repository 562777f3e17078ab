"""Runs translated plans over Arrow tables in this process.

Small plans run on one thread and with few optimizers: over a few thousand rows, more of either costs more than it saves
(V1's plan over 5,000 rows: 11 instead of 19 ms of the processor). The optimizers that are left out change how long a
plan takes, never its rows. Planning takes as long as running, so small plans are kept for their next run.

The memory of the engine is bounded, and so is that of a result: a plan that needs more is left to Spark. A plan of work
that is asked to stop is broken off, and is not left to Spark.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from cachetools import LRUCache

from freshview.algebra.nodes import WEIGHT, Node, Scan
from freshview.interruption import current, stop_if_asked
from freshview.local.numbers import MACROS
from freshview.local.plans import LocalPlan
from freshview.machine import memory

if TYPE_CHECKING:
    import duckdb

DuckSettings = dict[str, str | bool | int | float | list[str]]

MOST_MEMORY = 2 << 30  # bytes of the rows between operators, at most; on smaller machines an eighth of the memory
MOST_RESULT = 1 << 29  # bytes of a result, at most
SMALL = 100_000  # rows that a small plan reads, at most
_MOST_PLANS = 64  # small plans that are kept, at most
_WHAT = "a plan of the embedded engine"
_BATCH = 100_000  # rows of a result that are taken at a time
# The optimizers of small plans: without them one would compute columns that nothing reads, or join before it filters.
_FEW_OPTIMIZERS = frozenset({"column_lifetime", "unused_columns", "filter_pushdown", "cte_inlining"})
_SETTINGS: DuckSettings = {
    "enable_external_access": "false",
    "python_enable_replacements": "false",  # names in a query are tables that were handed over, nothing else
    "preserve_insertion_order": "false",
    "temp_directory": "",  # rows that do not fit the memory are Spark's business, not the disk's
    # What the first two leave out of an expression may be what Spark fails on. The third tests the bounds of a join
    # where rows are read: the first and the last date are infinite there, and are joined with nothing. The last one
    # tests conditions before those below them that can fail (order.py).
    "disabled_optimizers": "expression_rewriter,statistics_propagation,join_filter_pushdown,cte_filter_pusher",
}


class LocalError(Exception):
    """The embedded engine could not compute a plan: Spark computes it."""


_Given = list[tuple[str, pa.Table]]


class _Input:
    """What a small plan reads under one name: the rows of its present run, so that it is planned for all runs once."""

    def __init__(self, schema: pa.Schema) -> None:
        self.rows = schema.empty_table()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.rows.__arrow_c_stream__(requested_schema)


@dataclass
class _OpenPlan:
    """A connection for one plan, run by one thread at a time."""

    connection: duckdb.DuckDBPyConnection
    text: str

    def run(self, given: _Given) -> pa.Table:
        """The rows of the plan over these rows. Streams would be read by one thread: a large plan reads the tables."""
        for name, rows in given:
            self.connection.register(name, rows)
        return _fetched(self.connection.execute(self.text))

    def let_go(self) -> None:
        """Keep no rows."""
        self.connection.close()


@dataclass
class _KeptPlan(_OpenPlan):
    """A plan that is kept for its next run, over rows of the same columns."""

    inputs: dict[str, _Input]
    is_planned: bool = False

    def run(self, given: _Given) -> pa.Table:
        for name, rows in given:
            self.inputs[name].rows = rows
        if not self.is_planned:
            for name, read in self.inputs.items():
                self.connection.register(name, read)
            self.connection.execute(f"PREPARE plan AS {self.text}")
            self.is_planned = True
        return _fetched(self.connection.execute("EXECUTE plan"))

    def let_go(self) -> None:
        for read in self.inputs.values():
            read.rows = read.rows.schema.empty_table()


class LocalEngine:
    """Databases in this process without data of their own, for small plans and for others; safe to use from several
    threads."""

    def __init__(self, small: int = SMALL) -> None:
        self._guard = threading.Lock()
        self._small = small
        self._sound: LRUCache[tuple[str, ...], bool] = LRUCache(1000)
        self._databases: dict[bool, duckdb.DuckDBPyConnection] = {}  # by: is it for small plans?
        self._small_plans: LRUCache[Hashable, _KeptPlan] = LRUCache(_MOST_PLANS)  # that no thread runs now

    def run(self, plan: LocalPlan, rows: Callable[[Node], pa.Table]) -> pa.Table:
        """The rows of a plan. `rows` gives the stored columns of a scan, and the weight of a delta; of a part that
        Spark has computed, the columns of the part."""
        import duckdb  # when it is first needed: opening a warehouse is not the time

        stop_if_asked(_WHAT)
        try:
            given = [(name, _placed(rows(read), read)) for name, read in plan.reads]
        except (pa.ArrowException, KeyError) as error:
            raise LocalError(str(error)) from error
        is_small = sum(table.num_rows for _, table in given) <= self._small
        with self._plan(plan.text, given, is_small=is_small) as ready, _broken_off(ready.connection):
            try:
                self._require_constants(plan, ready.connection)
                found = ready.run(given)
                arrays = [found.column(i).cast(type_.arrow) for i, (_, type_) in enumerate(plan.columns)]
            except (duckdb.Error, pa.ArrowException, OSError, KeyError) as error:  # OSError: after the first batch
                stop_if_asked(_WHAT)
                raise LocalError(str(error)) from error
        return pa.table(arrays, schema=pa.schema([(name, type_.arrow) for name, type_ in plan.columns]))

    @contextmanager
    def _plan(self, text: str, given: _Given, *, is_small: bool) -> Iterator[_OpenPlan]:
        """A plan for this thread alone; a small one that has run before, and was kept, is not planned again. It is kept
        unless it fails."""
        key = (text, tuple((name, rows.schema) for name, rows in given))
        with self._guard:
            ready: _OpenPlan | None = self._small_plans.pop(key, None) if is_small else None
        if ready is None and is_small:
            ready = _KeptPlan(self._cursor(is_small=True), text, {name: _Input(rows.schema) for name, rows in given})
        elif ready is None:
            ready = _OpenPlan(self._cursor(is_small=False), text)
        is_done = False
        try:
            yield ready
            is_done = True
        finally:
            ready.let_go()
            with self._guard:
                if is_done and isinstance(ready, _KeptPlan) and self._databases:
                    self._small_plans[key] = ready
                else:
                    ready.connection.close()

    def _require_constants(self, plan: LocalPlan, connection: duckdb.DuckDBPyConnection) -> None:
        """Fail if one of a plan's constants cannot be computed: Spark fails too, even where no row needs it."""
        with self._guard:
            is_sound = not plan.constants or self._sound.get(plan.constants, False)
        if not is_sound:
            connection.execute(f"SELECT {', '.join(plan.constants)}").fetchall()
            with self._guard:
                self._sound[plan.constants] = True

    def close(self) -> None:
        """Let go of the databases."""
        with self._guard:
            for plan in self._small_plans.values():
                plan.connection.close()
            self._small_plans.clear()
            for database in self._databases.values():
                database.close()
            self._databases.clear()

    def _cursor(self, *, is_small: bool) -> duckdb.DuckDBPyConnection:
        with self._guard:
            if is_small not in self._databases:
                self._databases[is_small] = _opened(is_small=is_small)
            return self._databases[is_small].cursor()


@contextmanager
def _broken_off(connection: duckdb.DuckDBPyConnection) -> Iterator[None]:
    """Break off what the connection runs in the block if this thread's work is asked to stop."""
    import duckdb

    def stop() -> None:
        with suppress(duckdb.Error):  # the block was left meanwhile
            connection.interrupt()

    work = current()
    if work is None:
        yield
        return
    with work.broken_off_by(stop):
        yield


def _opened(*, is_small: bool) -> duckdb.DuckDBPyConnection:
    import duckdb

    settings: DuckSettings = {**_SETTINGS, "memory_limit": f"{min(MOST_MEMORY, memory() // 8)}B"}
    database = duckdb.connect(":memory:", config=settings | ({"threads": 1} if is_small else {}))
    database.execute(MACROS)
    if is_small:
        known = [str(row[0]) for row in database.execute("SELECT name FROM duckdb_optimizers()").fetchall()]
        left_out = ",".join(name for name in known if name not in _FEW_OPTIMIZERS)
        database.execute(f"SET disabled_optimizers = '{left_out}'")
    return database


def _fetched(result: duckdb.DuckDBPyConnection) -> pa.Table:
    """The rows of a result, unless they are too many."""
    reader = result.to_arrow_reader(_BATCH)
    batches, size = [], 0
    for batch in reader:
        size += batch.nbytes
        if size > MOST_RESULT:
            raise LocalError(f"its result takes more than {MOST_RESULT >> 20:,} MiB")
        batches.append(batch)
    return pa.Table.from_batches(batches, reader.schema)


def _placed(table: pa.Table, read: Node) -> pa.Table:
    """The columns that a plan reads, named by their places."""
    columns = list(read.columns)
    if isinstance(read, Scan):
        columns = [stored for stored, _ in read.fields] + ([WEIGHT] if read.version == "delta" else [])
    arrays = [table.column(c) for c in columns]
    for array in arrays:
        if pa.types.is_string(array.type):
            array.validate(full=True)  # DuckDB counts the characters of a text that is no UTF-8 otherwise than Spark
    return pa.table(arrays, names=[f"c{i}" for i in range(len(columns))])
