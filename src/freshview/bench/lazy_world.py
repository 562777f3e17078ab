"""The warehouses and updates of the lazy suite: TPC-H, the views of LAZY §5.1, customers that move."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from freshview import Warehouse
from freshview.bench.data import V1, V2, tpch
from freshview.bench.tables import copied, prepared, replaced, tables
from freshview.storage.main import plain

_SEGMENTS = ("AUTOMOBILE", "BUILDING", "FURNITURE", "HOUSEHOLD", "MACHINERY")
EIGHT_MORE = {
    "per_nation": "SELECT c_nationkey, count(*) AS customers FROM customer GROUP BY c_nationkey",
    "per_segment": "SELECT c_mktsegment, sum(c_acctbal) AS balance FROM customer GROUP BY c_mktsegment",
    "debtors": "SELECT c_custkey, c_name, c_acctbal FROM customer WHERE c_acctbal < 0",
    **{
        f"in_{segment.lower()}": "SELECT c_nationkey, count(*) AS customers, max(c_acctbal) AS richest "
        f"FROM customer WHERE c_mktsegment = '{segment}' GROUP BY c_nationkey"
        for segment in _SEGMENTS
    },
}

ONE, TWO, TEN = "one", "two", "ten"  # warehouses by the number of their views
_WORLDS: dict[str, tuple[str | None, dict[str, str]]] = {  # the warehouse below, and the views added to it
    ONE: (None, {"v1": V1}),
    TWO: (ONE, {"v2": V2}),
    TEN: (TWO, EIGHT_MORE),
}
VIEWS = {ONE: ("v1",), TWO: ("v1", "v2"), TEN: ("v1", "v2", *EIGHT_MORE)}


def world(folder: Path, scale: float, which: str) -> Path:
    """Prepare one of the three warehouses: all tables with V1; with V2 too; with eight more views."""
    below, views = _WORLDS[which]

    def create(wh: Warehouse) -> None:
        for name, text in views.items():
            wh.sql(f"CREATE MATERIALIZED VIEW {name} AS {text}")

    return prepared(folder, which, create, on=world(folder, scale, below) if below else tables(folder, scale))


def opened(folder: Path, scale: float, which: str, *, name: str = "", **options: Any) -> Warehouse:
    """Open a copy of one of the warehouses, which may be changed."""
    return copied(world(folder, scale, which), folder / "lazy" / (name or which), **options)


# -- updates ---------------------------------------------------------------------------------------


class Customers:
    """The rows of customer, and random updates of them: customers that move to another nation."""

    def __init__(self, folder: Path, scale: float, seed: int) -> None:
        rows = plain(pq.read_table(tpch(folder, scale, ("customer",)) / "customer.parquet"))
        self.rows = rows.sort_by("c_custkey")
        self.draw = random.Random(seed)

    @property
    def count(self) -> int:
        return int(self.rows.num_rows)

    def some(self, count: int) -> list[int]:
        """Return keys scattered over the table."""
        return self.draw.sample(range(1, self.count + 1), count)

    def moved(self, keys: Sequence[int]) -> pa.Table:
        """Return these customers, each in a random nation."""
        rows = self.rows.take([k - 1 for k in keys])
        return replaced(rows, "c_nationkey", [self.draw.randrange(25) for _ in keys])

    def runs(self, count: int, among: int) -> list[range]:
        """Return runs of 1 to 10 consecutive keys, scattered over the first `among` customers (LAZY §5.4)."""
        lengths = [self.draw.randint(1, 10) for _ in range(count)]
        firsts = [self.draw.randint(1, min(among, self.count) + 1 - n) for n in lengths]
        return [range(first, first + n) for first, n in zip(firsts, lengths, strict=True)]


def upsert(wh: Warehouse, rows: pa.Table) -> None:
    with wh.transaction() as tx:
        tx.upsert("customer", rows)


def set_mode(wh: Warehouse, views: Sequence[str], mode: str) -> None:
    """Set the maintenance of these views to 'eager' or 'lazy'."""
    for view in views:
        wh.sql(f"ALTER MATERIALIZED VIEW {view} SET TBLPROPERTIES ('maintenance'='{mode}')")
