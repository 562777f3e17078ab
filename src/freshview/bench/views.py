"""Figures of views: what an incremental refresh costs against recomputing, in one warm session."""

from __future__ import annotations

import random
import shutil
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import freshview
from freshview import Warehouse
from freshview.bench.data import tpch
from freshview.bench.measure import Figure, Timing

_KEYS = {
    "customer": "c_custkey", "orders": "o_orderkey", "lineitem": "l_orderkey, l_linenumber", "nation": "n_nationkey",
}  # fmt: skip
# V1 of LAZY §5.1.
_V1 = """SELECT n_name, c_mktsegment, count(*) AS totalcnt, sum(l_extendedprice) AS totalprice,
    sum(l_quantity) AS totalquantity
FROM customer, orders, lineitem, nation
WHERE c_custkey = o_custkey AND o_orderkey = l_orderkey AND n_nationkey = c_nationkey
GROUP BY n_name, c_mktsegment"""


def refresh(folder: Path, scale: float, repeat: int) -> list[Figure]:
    """V1: 100 customers changed, and 0.1 % of orders and lineitem deleted and inserted."""
    home = folder / "views"
    with _loaded(home, folder, scale) as wh:
        wh.sql(f"CREATE OR REPLACE MATERIALIZED VIEW v1 AS {_V1}")
        draw = random.Random(1)
        customers = wh.sql("SELECT max(c_custkey) FROM customer").collect()[0][0]
        orders = wh.sql("SELECT max(o_orderkey) FROM orders").collect()[0][0]

        def change_customers() -> None:
            keys = ", ".join(map(str, draw.sample(range(1, customers + 1), 100)))
            wh.sql(f"UPDATE customer SET c_nationkey = (c_nationkey + 1) % 25 WHERE c_custkey IN ({keys})")

        def change_orders() -> None:
            low = draw.randrange(orders - orders // 1000)
            window = f"BETWEEN {low} AND {low + orders // 1000}"
            with wh.transaction() as tx:
                tx.sql(
                    f"UPDATE lineitem SET l_quantity = l_quantity + 1 WHERE l_orderkey {window} AND l_linenumber > 1"
                )
                tx.sql(f"DELETE FROM lineitem WHERE l_orderkey {window} AND l_linenumber = 1")
                tx.sql(f"UPDATE orders SET o_custkey = o_custkey % {customers} + 1 WHERE o_orderkey {window}")

        figures = [
            _ratio(wh, "100 customers", change_customers, repeat, 5.0),
            _ratio(wh, "0.1 % of orders and lineitem", change_orders, repeat, 4.0),
        ]
        exact = wh.check("v1").ok
        return [
            *figures,
            Figure("V1 equals its definition afterwards (1 = yes)", float(exact), 1.0, "", {}, at_least=True),
        ]


STEPS: tuple[Callable[[Path, float, int], list[Figure]], ...] = (refresh,)


def _ratio(wh: Warehouse, what: str, change: Callable[[], None], repeat: int, limit: float) -> Figure:
    """Recomputing over refreshing, in turn."""
    refreshed, recomputed = [], []
    strategies: set[str] = set()
    for i in range(repeat + 2):
        change()
        begun = time.perf_counter()
        jobs = wh.maintain(["v1"])
        middle = time.perf_counter()
        wh.sql(_V1).collect()
        end = time.perf_counter()
        strategies.update(j.strategy for j in jobs)
        if i >= 2:
            refreshed.append(middle - begun)
            recomputed.append(end - middle)
    details = {
        "refresh": str(Timing(tuple(refreshed))), "recompute": str(Timing(tuple(recomputed))),
        "strategy": ", ".join(sorted(strategies)),
    }  # fmt: skip
    ratio = statistics.median(recomputed) / statistics.median(refreshed)
    return Figure(f"V1, {what}: recompute / refresh", ratio, limit, "×", details, at_least=True)


def _loaded(home: Path, folder: Path, scale: float) -> Warehouse:
    """A warehouse with the four tables of V1."""
    data = tpch(folder, scale, tuple(_KEYS))
    shutil.rmtree(home, ignore_errors=True)
    wh = freshview.connect(home)
    for table, key in _KEYS.items():
        wh.engine().session.read.parquet(str(data / f"{table}.parquet")).createOrReplaceTempView(f"source_{table}")
        wh.sql(f"CREATE TABLE {table} PRIMARY KEY ({key}) AS SELECT * FROM source_{table}")
    return wh
