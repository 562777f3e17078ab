"""Figures of deferred maintenance (DEFER): overhead of writers, waiting time of readers, savings of early propagation.

The data are the retail example of DEFER §1.1 with 10 million sales, and V1 of LAZY §5.1 on TPC-H. Sales keep coming in
while a step measures.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from freshview import Warehouse
from freshview.bench.lazy_world import ONE, Customers, opened, upsert, world
from freshview.bench.measure import Figure, Timing, alternated, duration, meanwhile, seconds_of
from freshview.bench.tables import copied, prepared
from freshview.bench.views import exact

VIEW = (
    "SELECT c.custId, c.name, c.score, s.itemNo, s.quantity FROM customer c, sales s "
    "WHERE c.custId = s.custId AND s.quantity != 0 AND c.score = 'High'"
)
_SALES, _CUSTOMERS = 10_000_000, 100_000  # at scale 1; one customer in ten has the score High
_HOURS = 24
_DAY = 1_200_000  # sales of a day


def prepare(folder: Path, scale: float, _repeat: int) -> list[Figure]:
    """Prepare the retail warehouse and the TPC-H one of the lazy suite; all further steps work on copies of them."""
    shop(folder, scale)
    world(folder, scale, ONE)
    customers, sales = _sizes(scale)
    return [Figure("sales in the retail example", sales, None, "rows", {"customers": str(customers)})]


def shop(folder: Path, scale: float) -> Path:
    """Prepare the tables of the retail example."""
    customers, sales = _sizes(scale)

    def fill(wh: Warehouse) -> None:
        wh.sql("CREATE TABLE customer (custId INT, name STRING, address STRING, score STRING, PRIMARY KEY (custId))")
        wh.sql("CREATE TABLE sales (custId INT, itemNo INT, quantity INT, salesPrice DECIMAL(10,2))")
        wh.sql(
            "INSERT INTO customer SELECT CAST(id AS INT), concat('customer ', id), concat('street ', id), "
            f"IF(id % 10 = 0, 'High', 'Low') FROM range({customers})"
        )
        wh.sql(
            f"INSERT INTO sales SELECT CAST(pmod(hash(id), {customers}) AS INT), CAST(id % 5000 AS INT), "
            f"CAST(id % 7 AS INT), CAST(id % 900 / 7 AS DECIMAL(10,2)) FROM range({sales})"
        )

    return prepared(folder, "shop", fill)


def _sizes(scale: float) -> tuple[int, int]:
    return max(int(_CUSTOMERS * scale), 100), max(int(_SALES * scale), 1000)


@contextmanager
def retail(folder: Path, scale: float, name: str, scenario: str | None) -> Iterator[Warehouse]:
    """Open a copy of the retail warehouse, with the view in a scenario, or without the view."""
    with copied(shop(folder, scale), folder / "deferred" / name) as wh:
        if scenario is not None:
            wh.sql(
                "CREATE MATERIALIZED VIEW v TBLPROPERTIES ('maintenance'='deferred', "
                f"'scenario'='{scenario}') AS {VIEW}"
            )
        yield wh


class Sales:
    """Random sales."""

    def __init__(self, scale: float, seed: int) -> None:
        self._customers, _ = _sizes(scale)
        self._draw = np.random.default_rng(seed)

    def some(self, count: int) -> pa.Table:
        draw = self._draw
        return pa.table(
            {
                "custId": pa.array(draw.integers(0, self._customers, count), pa.int32()),
                "itemNo": pa.array(draw.integers(0, 5000, count), pa.int32()),
                "quantity": pa.array(draw.integers(0, 7, count), pa.int32()),
                "salesPrice": pa.array(draw.integers(1, 900, count), pa.int16()).cast(pa.decimal128(10, 2)),
            }
        )


def sell(wh: Warehouse, rows: pa.Table) -> None:
    with wh.transaction() as tx:
        tx.insert("sales", rows)


def selling(wh: Warehouse, sales: Sales) -> AbstractContextManager[None]:
    """Insert a few sales repeatedly while the block runs."""
    return meanwhile(lambda: sell(wh, sales.some(5)), 0.05)


# -- what writers pay --------------------------------------------------------------------------------


def overhead(folder: Path, scale: float, repeat: int) -> list[Figure]:
    """Time a transaction of 100 sales without a view, and with a view in each scenario."""
    sales = Sales(scale, seed=1)
    with (
        retail(folder, scale, "none", None) as none,
        retail(folder, scale, "base-log", "base-log") as log,
        retail(folder, scale, "combined", "combined") as combined,
        retail(folder, scale, "differential", "differential") as eager,
    ):
        worlds = {"no view": none, "base-log": log, "combined": combined}
        actions = {name: partial(sell, wh) for name, wh in worlds.items()}
        times = alternated(actions, 100 * repeat, warmup=20, given=lambda _: sales.some(100))
        costly = Timing(tuple(seconds_of(lambda: sell(eager, sales.some(100))) for _ in range(repeat + 1))[1:])
        found = _overheads("100 sales", {**times, "differential": costly})
        for wh in (log, combined, eager):
            wh.refresh("v")
        right = [_holds(wh) for wh in (log, combined, eager)]
    return [*found, _all_hold(right)]


def overhead_tpch(folder: Path, scale: float, repeat: int) -> list[Figure]:
    """Time an upsert of 100 customers without V1, and with V1 in the scenarios that maintain it after the commit."""
    customers = Customers(folder, scale, seed=11)
    with (
        opened(folder, scale, ONE, name="no-view") as none,
        opened(folder, scale, ONE, name="base-log") as log,
        opened(folder, scale, ONE, name="combined") as combined,
    ):
        none.sql("DROP MATERIALIZED VIEW v1")
        for wh, scenario in ((log, "base-log"), (combined, "combined")):
            wh.sql(f"ALTER MATERIALIZED VIEW v1 SET TBLPROPERTIES ('maintenance'='deferred', 'scenario'='{scenario}')")
        worlds = {"no view": none, "base-log": log, "combined": combined}
        keys = customers.some(100)
        actions = {name: partial(upsert, wh) for name, wh in worlds.items()}
        times = alternated(actions, 100 * repeat, warmup=20, given=lambda _: customers.moved(keys))
        for wh in (log, combined):
            wh.refresh("v1")
        right = [exact(wh, ["v1"]) for wh in (log, combined)]
    return [*_overheads("V1, upsert of 100 customers", times), *right]


def _overheads(what: str, times: dict[str, Timing]) -> list[Figure]:
    """Return ratios of the fastest tenths: other processes would distort the times of short commits."""
    details = {name: f"{t}, fastest tenth {duration(t.p10)}" for name, t in times.items()}
    none = times["no view"]
    return [
        Figure(f"{what}: {name} / no view", t.p10 / none.p10, 1.1 if name != "differential" else None, "×", details)
        for name, t in times.items()
        if name != "no view"
    ]


# -- how long readers wait -----------------------------------------------------------------------------


def downtime(folder: Path, scale: float, repeat: int) -> list[Figure]:
    """Time partial refreshes after small and large propagations, while sales come in and a reader queries."""
    sales = Sales(scale, seed=2)
    sizes = [n for n in (100, 10_000, 100_000) if n <= _DAY * scale] or [100]
    taken: dict[int, list[float]] = {}
    waits: list[float] = []
    with retail(folder, scale, "downtime", "combined") as wh:
        recompute = Timing(tuple(seconds_of(lambda: _recomputed(wh)) for _ in range(repeat + 1))[1:])
        wh.sql("DROP MATERIALIZED VIEW again")
        quiet = [seconds_of(lambda: wh.sql("SELECT * FROM v")) for _ in range(20)][5:]
        for size in sizes:
            for _ in range(repeat):
                sell(wh, sales.some(size))
                wh.propagate("v")
                with selling(wh, sales), _reading(wh, waits):
                    time.sleep(0.2)
                    taken.setdefault(size, []).append(seconds_of(lambda: wh.partial_refresh("v")))
                    time.sleep(0.2)
        report = wh.check("v", invariant=True)
    all_taken = Timing(tuple(seconds for found in taken.values() for seconds in found))
    details = {
        **{f"after {size:,} sales": str(Timing(tuple(found))) for size, found in taken.items()},
        "reader's statement meanwhile": str(Timing(tuple(waits))),
        "and when nothing goes on": str(Timing(tuple(quiet))),
        "recomputing the view": str(recompute),
    }
    return [
        Figure("partial refresh, the longest", all_taken.worst * 1000, 50.0, "ms", details),
        Figure("partial refresh / recomputing the view", all_taken.p50 / recompute.p50, 0.01, "×", details),
        _all_hold([report.ok]),
    ]


def _recomputed(wh: Warehouse) -> None:
    """Recompute and store the view, as a system without deltas does."""
    wh.sql(f"CREATE OR REPLACE MATERIALIZED VIEW again TBLPROPERTIES ('maintenance'='deferred') AS {VIEW}")


def _reading(wh: Warehouse, waits: list[float]) -> AbstractContextManager[None]:
    """Query the view repeatedly; collect the seconds until the query is bound to files."""
    return meanwhile(lambda: waits.append(seconds_of(lambda: wh.sql("SELECT * FROM v"))))


# -- what propagating early saves ----------------------------------------------------------------------


def policies(folder: Path, scale: float, _repeat: int) -> list[Figure]:
    """Time the refresh of a day's sales: all from the log, or after hourly propagation (Policies 1 and 2)."""
    hour = max(int(_DAY * scale) // _HOURS, 10)
    seconds: dict[str, float] = {}
    propagated = 0.0
    right = []
    for scenario in ("base-log", "combined"):
        sales = Sales(scale, seed=3)
        with retail(folder, scale, f"day-{scenario}", scenario) as wh:
            sell(wh, sales.some(hour))
            wh.refresh("v")  # warm-up
            for at in range(_HOURS):
                sell(wh, sales.some(hour))
                if scenario == "combined" and at < _HOURS - 1:
                    propagated += seconds_of(lambda: wh.propagate("v"))
            with selling(wh, Sales(scale, seed=4)):
                seconds[scenario] = seconds_of(lambda: wh.refresh("v"))
                if scenario == "combined":
                    seconds["partial"] = seconds_of(lambda: wh.partial_refresh("v"))
            right.append(_holds(wh))
    details = {
        "base-log, the whole day": duration(seconds["base-log"]),
        "Policy 1, the last hour": duration(seconds["combined"]),
        "Policy 2, nothing but showing": duration(seconds["partial"]),
        "propagating 23 hours, with readers undisturbed": duration(propagated),
        "sales an hour": f"{hour:,}",
    }
    return [
        Figure("refresh, Policy 1 / base-log", seconds["combined"] / seconds["base-log"], 0.1, "×", details),
        _all_hold(right),
    ]


def _holds(wh: Warehouse) -> bool:
    return wh.check("v", invariant=True).ok


def _all_hold(found: list[bool]) -> Figure:
    return Figure(
        "views whose invariants hold afterwards", sum(found) / len(found), 1.0, "", {}, at_least=True, always=True
    )


STEPS = (prepare, overhead, overhead_tpch, downtime, policies)
