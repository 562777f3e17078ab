"""Figures of large views and large changes: what is read, checkpointed and computed stays in Spark."""

from __future__ import annotations

import random
import sys
from pathlib import Path

from freshview.bench.data import V1
from freshview.bench.measure import Figure, Timing, duration, memory, peak_memory, reset_peak, seconds_of, spread
from freshview.bench.tables import copied, tables
from freshview.bench.views import exact

# 1.5 million rows at scale 1, with the key of orders.
_WIDE = """SELECT o_orderkey, o_custkey, o_orderdate, o_totalprice, c_name, c_mktsegment
FROM orders, customer WHERE o_custkey = c_custkey"""
_SUMS = """SELECT l_returnflag, l_linestatus, sum(l_quantity) AS quantity, count(*) AS n
FROM lineitem GROUP BY l_returnflag, l_linestatus"""


def large_view(folder: Path, scale: float, repeat: int) -> list[Figure]:
    """Time a read of a large view before and after a change of 10 rows, then its checkpoint and that of the table."""
    draw = random.Random(16)
    with copied(tables(folder, scale), folder / "large") as wh:
        wh.sql(f"CREATE MATERIALIZED VIEW wide AS {_WIDE}")
        most = wh.sql("SELECT max(o_orderkey) FROM orders").collect()[0][0]
        seconds: dict[str, list[float]] = {way: [] for way in ("before", "after", "view", "table")}

        def read() -> None:
            wh.sql("SELECT * FROM wide").write.format("noop").mode("overwrite").save()

        for i in range(2 * repeat + 2):
            for relation in ("orders", "wide"):
                wh.sql(f"CHECKPOINT {relation}")
            read()  # the files of the checkpoint are read for the first time
            taken = {"before": seconds_of(read)}
            # TPC-H uses the first 8 of every 32 order numbers.
            keys = ", ".join(str(32 * draw.randrange(most // 32) + 1) for _ in range(10))
            wh.sql(f"UPDATE orders SET o_totalprice = o_totalprice + 1 WHERE o_orderkey IN ({keys})")
            wh.maintain(["wide"])
            taken["after"] = seconds_of(read)
            for way in ("view", "table") if i % 2 else ("table", "view"):
                name = {"view": "wide", "table": "orders"}[way]
                taken[way] = seconds_of(lambda name=name: wh.sql(f"CHECKPOINT {name}"))  # type: ignore[misc]
            print(", ".join(f"{way} {duration(s)}" for way, s in taken.items()), file=sys.stderr, flush=True)
            if i >= 2:
                for way, value in taken.items():
                    seconds[way].append(value)
        before, after, view, table = (Timing(tuple(s)) for s in seconds.values())
        rows = wh.sql("SELECT count(*) FROM wide").collect()[0][0]
        reads = {"before": str(before), "after": str(after), "rows": f"{rows:,}"}
        folds = {"view": str(view), "table": str(table)}
        return [
            _ratio("large view, read after a change of 10 rows / before", after, before, 1.2, reads),
            _ratio(
                "large view, checkpoint after a change of 10 rows / of the keyed table below", view, table, 1.5, folds
            ),
            exact(wh, ["wide"]),
        ]


def large_insert(folder: Path, scale: float, repeat: int) -> list[Figure]:
    """Time V1 after a sixth of lineitem was inserted once more, under other keys: by rules, and recomputed."""
    with copied(tables(folder, scale), folder / "large") as wh:
        for name, refresh in (("v1", "auto"), ("v1_rules", "incremental"), ("v1_anew", "full")):
            wh.sql(f"CREATE MATERIALIZED VIEW {name} TBLPROPERTIES ('refresh' = '{refresh}') AS {V1}")
        columns = [c for c in wh.sql("SELECT * FROM lineitem").columns if c != "l_linenumber"]
        seconds: dict[str, list[float]] = {"v1_rules": [], "v1_anew": []}
        chosen, rows = "", 0
        for i in range(max(1, repeat - 1) + 1):
            copies = f"SELECT CAST(l_linenumber + {10 * (i + 1)} AS INT) AS l_linenumber, {', '.join(columns)}"
            some = f"l_linenumber < 10 AND pmod(hash(l_orderkey, l_linenumber, {i}), 6) = 0"
            rows = wh.sql(f"INSERT INTO lineitem BY NAME {copies} FROM lineitem WHERE {some}").rows
            for name in seconds if i % 2 else reversed(seconds):
                taken = seconds_of(lambda name=name: wh.maintain([name]))  # type: ignore[misc]
                print(f"{name}: {duration(taken)}", file=sys.stderr, flush=True)
                if i:
                    seconds[name].append(taken)
            chosen = ", ".join(job.strategy for job in wh.maintain(["v1"]))
            wh.sql("CHECKPOINT lineitem")
        rules, anew = (Timing(tuple(s)) for s in seconds.values())
        details = {"by rules": str(rules), "recomputed": str(anew), "rows": f"{rows:,}", "chosen": chosen}
        return [
            _ratio("V1, a sixth of lineitem inserted: refresh by rules / recompute", rules, anew, 0.6, details),
            exact(wh, ["v1", *seconds]),
        ]


def all_rows(folder: Path, scale: float, _repeat: int) -> list[Figure]:
    """Measure how this process grows while all rows of lineitem are updated, and views refreshed by rules."""
    with copied(tables(folder, scale), folder / "large") as wh:
        for name, text in (("v1", V1), ("sums", _SUMS)):
            wh.sql(f"CREATE MATERIALIZED VIEW {name} TBLPROPERTIES ('refresh' = 'incremental') AS {text}")
        wh.sql("UPDATE lineitem SET l_tax = l_tax WHERE l_orderkey = 1")  # what a first statement loads is no growth
        wh.maintain()
        reset_peak()
        begun = memory()
        rows = wh.sql("UPDATE lineitem SET l_quantity = l_quantity + 1").rows
        updated = peak_memory() - begun
        reset_peak()
        begun = memory()
        jobs = wh.maintain()
        grown = peak_memory() - begun
        how = {job.view: f"{job.strategy}, {duration(job.seconds)}" for job in jobs}
        details = {"rows": f"{rows:,}", "during the UPDATE": f"{updated / 1e6:.0f} MB", **how}
        name = "all rows of lineitem changed, views refreshed: growth of the Python process"
        return [Figure(name, grown / 1e6, 200.0, "MB", details), exact(wh, ["v1", "sums"])]


def _ratio(name: str, over: Timing, under: Timing, limit: float, details: dict[str, str]) -> Figure:
    return Figure(name, over.p50 / under.p50, limit, "×", details, spread=spread(over, under))


STEPS = (large_view, large_insert, all_rows)
