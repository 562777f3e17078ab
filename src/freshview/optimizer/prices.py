"""What single steps cost on the two engines, in seconds.

The defaults follow measurements with TPC-H at scale 1 on two cores (see docs/architecture.md); they are marked as
defaults until a calibration on the machine or cluster replaces them. Jobs choose their way by the same prices
(`refresh/cost.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any


@dataclass(frozen=True)
class Engine:
    """The prices of one engine."""

    query: float  # fixed, per query
    operator: float  # fixed, per operator of a plan
    scan: float  # per row that is read
    row: float  # per row that goes into or out of a join, filter or grouping
    keep: float  # fixed, per result kept for the duration of a refresh
    write: float  # per row that is written


@dataclass(frozen=True)
class Prices:
    """The prices of both engines, and of lookups and commits, which concern the storage."""

    embedded: Engine = Engine(query=0.005, operator=0.0005, scan=5e-8, row=1e-7, keep=0.0, write=2e-7)
    spark: Engine = Engine(query=0.2, operator=0.012, scan=2e-7, row=1e-7, keep=0.05, write=1e-6)
    embedded_rows: float = 300_000  # an operator over more rows runs on Spark
    lookup: float = 0.02  # fixed, per lookup of values in a stored relation
    passed: float = 2.5e-8  # per row that a lookup has to pass over in the files
    pruned: float = 20_000  # rows that a lookup passes over per value, in files sorted by the column
    value: float = 2e-6  # per value that is looked up
    lookup_values: float = 300_000  # more values are not looked up: Spark reads the relation
    indexed: float = 5e-4  # fixed, per lookup that an index in memory answers
    indexed_value: float = 1e-6  # per value that is looked up by an index in memory
    index_memory: float = 2e9  # bytes of the columns of a relation that are kept for such lookups; 0: files are read
    index_values: float = 20  # so few values are looked up in files all the same
    commit: float = 0.03  # fixed, per refresh: one commit shows the changes of all views
    result: float = 0.02  # fixed, per change of a stored result: tasks, plan, stored rows, segment
    merge: float = 1e-6  # per changed row of a stored result
    sort: float = 5e-7  # per row that is written in order
    incremental: float = 1.0  # actual over estimated time of refreshes by differentials, learnt from past jobs
    full: float = 1.0  # of refreshes that recompute
    is_default: bool = True  # False once a calibration has measured them

    @classmethod
    def of(cls, stored: Mapping[str, Any] | None) -> Prices:
        """The prices that a calibration stored; what it did not measure keeps its default."""
        default = cls()
        if stored is None:
            return default
        known: dict[str, Any] = {f.name: stored[f.name] for f in fields(cls) if f.name in stored}
        for name in ("embedded", "spark"):
            known[name] = _engine(getattr(default, name), stored.get(name, {}))
        return replace(default, **known)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def engine(self, rows: float) -> Engine:
        return self.embedded if rows <= self.embedded_rows else self.spark

    def processed(self, rows_in: float, rows_out: float) -> float:
        """An operator over so many rows."""
        engine = self.engine(rows_in + rows_out)
        return engine.operator + engine.row * (rows_in + rows_out)

    def scanned(self, rows: float) -> float:
        """Reading all rows of a stored relation or kept result."""
        return self.engine(rows).scan * rows

    def looked_up(self, rows: float, values: float, *, pruned: bool = False, width: float = 0.0) -> float:
        """Finding the rows with one of so many values in a stored relation; at most what reading all of it costs.

        `width` are the bytes of a row in the columns that may be kept in memory with an index; 0: they are not.
        """
        whole = self.scanned(rows)
        if values > self.lookup_values:
            return whole
        if width and self.index_values < values and rows * width <= self.index_memory:
            return min(whole, self.indexed + self.indexed_value * values)
        passed = min(rows, values * self.pruned) if pruned else rows
        return min(whole, self.lookup + self.value * values + self.passed * passed)

    def kept(self, rows: float) -> float:
        """Keeping a result for the duration of a refresh: the embedded engine's in memory, Spark's in files."""
        if self.engine(rows) is self.embedded:
            return self.embedded.keep + self.embedded.row * rows
        return self.spark.keep + self.spark.write * rows

    def written(self, rows: float) -> float:
        """Replacing a stored result."""
        return self.commit + self.engine(rows).write * rows

    def merged(self, rows: float, *, sorted_: bool = False) -> float:
        """Merging a differential into a stored result."""
        return rows * (self.merge + (self.sort if sorted_ else 0.0))


def _engine(default: Engine, stored: Mapping[str, float]) -> Engine:
    return replace(default, **{f.name: stored[f.name] for f in fields(Engine) if f.name in stored})
