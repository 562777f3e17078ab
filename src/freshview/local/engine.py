"""Runs translated plans over Arrow tables in this process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import pyarrow as pa

from freshview.algebra.nodes import WEIGHT, Node, Scan
from freshview.local.numbers import MACROS
from freshview.local.plans import LocalPlan

if TYPE_CHECKING:
    import duckdb

_SETTINGS: dict[str, str | bool | int | float | list[str]] = {
    "enable_external_access": "false",
    "python_enable_replacements": "false",  # names in a query are tables that were handed over, nothing else
    "preserve_insertion_order": "false",
    # What these leave out of an expression may be what Spark fails on.
    "disabled_optimizers": "expression_rewriter,statistics_propagation",
}


class LocalError(Exception):
    """The embedded engine could not compute a plan: Spark computes it."""


class LocalEngine:
    """An embedded database without data of its own; safe to use from several threads."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._database: duckdb.DuckDBPyConnection | None = None

    def run(self, plan: LocalPlan, rows: Callable[[Node], pa.Table]) -> pa.Table:
        """The rows of a plan. `rows` gives the stored columns of a scan, and the weight of a delta; of a part that
        Spark has computed, the columns of the part."""
        import duckdb  # when it is first needed: opening a warehouse is not the time

        with self._cursor() as connection:
            try:
                for name, read in plan.reads:
                    connection.register(name, _placed(rows(read), read))
                found = connection.sql(plan.text).to_arrow_table()
                arrays = [found.column(i).cast(type_.arrow) for i, (_, type_) in enumerate(plan.columns)]
            except (duckdb.Error, pa.ArrowException, KeyError) as error:
                raise LocalError(str(error)) from error
        return pa.table(arrays, schema=pa.schema([(name, type_.arrow) for name, type_ in plan.columns]))

    def close(self) -> None:
        """Let go of the database."""
        with self._guard:
            if self._database is not None:
                self._database.close()
                self._database = None

    def _cursor(self) -> duckdb.DuckDBPyConnection:
        import duckdb

        with self._guard:
            if self._database is None:
                self._database = duckdb.connect(":memory:", config=_SETTINGS)
                self._database.execute(MACROS)
            return self._database.cursor()


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
