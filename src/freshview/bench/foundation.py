"""Figures of the foundation: writing, key lookup, loading and reading against the bare libraries.

Each step runs in a process of its own, so that its memory, and that it starts no Spark, can be measured.
"""

from __future__ import annotations

import random
import shutil
import sqlite3
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, QueryBuilder

import freshview
from freshview import Warehouse
from freshview.bench.data import CUSTOMER, LINEITEM, tpch
from freshview.bench.measure import Figure, Timing, alternated, peak_memory, seconds_of, spread
from freshview.storage.main import plain

_TABLES = ("customer", "lineitem")


def load(folder: Path, scale: float, repeat: int) -> list[Figure]:
    """Time a bulk load of lineitem through Spark against Spark's write.parquet of the same data."""
    data = tpch(folder, scale, _TABLES)
    home = folder / "warehouse"
    shutil.rmtree(home, ignore_errors=True)
    with freshview.connect(home) as wh:
        spark = wh.engine().session
        frame = spark.read.parquet(str(data / "lineitem.parquet"))
        spark.read.parquet(str(data / "customer.parquet")).write.mode("overwrite").parquet(str(folder / "plain"))

        def plain(_: int) -> None:
            frame.write.mode("overwrite").parquet(str(folder / "plain"))

        def ours(_: int) -> None:
            wh.sql("DROP TABLE IF EXISTS lineitem")
            wh.sql(LINEITEM)
            with wh.transaction() as tx:
                tx.insert("lineitem", frame)

        times = alternated({"plain": plain, "ours": ours}, repeat, warmup=1)
        peak = peak_memory() / 1e9
        wh.sql(CUSTOMER)
        with wh.transaction() as tx:
            tx.insert("customer", pq.read_table(data / "customer.parquet"))
        wh.sql("CHECKPOINT customer")
        wh.vacuum(retention=timedelta(0))
        shutil.rmtree(folder / "plain")
        ratio = times["ours"].p50 / times["plain"].p50
        between = spread(times["ours"], times["plain"])
        details = {"Freshview": str(times["ours"]), "write.parquet": str(times["plain"])}
        return [
            Figure("load lineitem / write.parquet", ratio, 2.5, "×", details, spread=between),
            Figure("peak memory of Python while loading lineitem", peak, 1.0, "GB", {}),
        ]


def write(folder: Path, _scale: float, repeat: int) -> list[Figure]:
    """Time 100-row upserts, without Spark, against a bare SQLite transaction with a blob of the same size."""
    with freshview.connect(folder / "warehouse") as wh:
        (customers,) = _samples(wh, "customer", 100, seed=1)
        (lines,) = _samples(wh, "lineitem", 100, seed=2)
        blob = _inline_size(wh, "customer", customers)
        bare = sqlite3.connect(folder / "bare.db", isolation_level=None)
        bare.executescript("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; CREATE TABLE IF NOT EXISTS b (x BLOB)")

        def bare_insert(_: int) -> None:
            bare.execute("BEGIN IMMEDIATE")
            bare.execute("INSERT INTO b VALUES (?)", (bytes(blob),))
            bare.execute("COMMIT")

        def upsert(table: str, rows: pa.Table) -> Callable[[int], object]:
            def run(_: int) -> None:
                with wh.transaction() as tx:
                    tx.upsert(table, rows)

            return run

        actions: dict[str, Callable[[int], object]] = {
            "bare": bare_insert,
            "customer": upsert("customer", customers),
            "lineitem": upsert("lineitem", lines),
        }
        times = alternated(actions, repeat=100 * repeat, warmup=20)
        bare.close()
        for table in _TABLES:
            wh.sql(f"CHECKPOINT {table}")
        started = "pyspark" in sys.modules
        allowed = max(10 * times["bare"].p50, 0.005)
        details = {"upsert": str(times["customer"]), "bare SQLite": str(times["bare"]), "blob": f"{blob} bytes"}
        both = {"lineitem": str(times["lineitem"]), "customer": str(times["customer"])}
        customer, lineitem = times["customer"].p50, times["lineitem"].p50
        return [
            Figure(
                "upsert of 100 customers / allowed (10 × bare SQLite or 5 ms)", customer / allowed, 1.0, "×", details
            ),
            Figure("upsert of 100 lines / of 100 customers", lineitem / customer, 1.5, "×", both),
            Figure("Spark started for upserts (0 = no)", float(started), 0.0, "", {}),
        ]


def lookup(folder: Path, _scale: float, repeat: int) -> list[Figure]:
    """Time UPDATE and INSERT by key against bare delta-rs lookups of the same keys."""
    with freshview.connect(folder / "warehouse") as wh:
        wh.engine()  # Spark is warm, as it would be in a serving process
        relation = {t: wh._catalog.relation(t) for t in _TABLES}
        main = {t: wh._catalog.latest_main(r.id) for t, r in relation.items()}
        tables = {
            t: DeltaTable(str(wh._storage.layout.relation(r.id)), version=main[t].delta_version)  # type: ignore[union-attr]
            for t, r in relation.items()
        }
        draw = random.Random(3)
        most = {
            t: wh.sql(f"SELECT max({k}) FROM {t}").collect()[0][0]
            for t, k in (("customer", "c_custkey"), ("lineitem", "l_orderkey"))
        }
        keys = [sorted(draw.sample(range(1, most["customer"] + 1), 100)) for _ in range(1000)]
        # TPC-H uses 8 of every 32 order numbers: the others are new keys within the range that main holds.
        gaps = [k for k in range(1, most["lineitem"]) if k % 32 >= 8]
        drawn = draw.sample(gaps, 100 * (10 * repeat + 5))  # none twice
        fresh = [sorted(drawn[i : i + 100]) for i in range(0, len(drawn), 100)]
        (template,) = _samples(wh, "lineitem", 100, seed=4)

        def bare_rows(i: int) -> None:
            text = f"SELECT * FROM t WHERE c_custkey IN ({', '.join(map(str, keys[i]))})"
            assert pa.table(QueryBuilder().register("t", tables["customer"]).execute(text)).num_rows == 100

        def update_literal(i: int) -> None:
            text = ", ".join(map(str, keys[i]))
            assert wh.sql(f"UPDATE customer SET c_mktsegment = 'X{i}' WHERE c_custkey IN ({text})").rows == 100

        def update_expression(i: int) -> None:
            text = ", ".join(map(str, keys[-1 - i]))
            assert wh.sql(f"UPDATE customer SET c_acctbal = c_acctbal + 1 WHERE c_custkey IN ({text})").rows == 100

        def bare_keys(i: int) -> None:
            text = f"SELECT l_orderkey, l_linenumber FROM t WHERE l_orderkey IN ({', '.join(map(str, fresh[i]))})"
            assert pa.table(QueryBuilder().register("t", tables["lineitem"]).execute(text)).num_rows == 0

        def insert_lines(i: int) -> None:
            rows = template.set_column(0, "l_orderkey", pa.array(fresh[i], pa.int64()))
            with wh.transaction() as tx:
                tx.insert("lineitem", rows)

        actions: dict[str, Callable[[int], object]] = {
            "rows": bare_rows,
            "literal": update_literal,
            "expression": update_expression,
            "keys": bare_keys,
            "insert": insert_lines,
        }
        times = alternated(actions, repeat=10 * repeat, warmup=5)
        for table in _TABLES:
            wh.sql(f"CHECKPOINT {table}")
        return [
            _ratio("UPDATE 100 customers SET literal / bare lookup", times["literal"], times["rows"], 3.0),
            _ratio("UPDATE 100 customers SET expression / bare lookup", times["expression"], times["rows"], 3.0),
            _ratio("INSERT 100 lines / bare key-only lookup", times["insert"], times["keys"], 3.0),
        ]


def scan(folder: Path, _scale: float, repeat: int) -> list[Figure]:
    """Time a full-scan aggregate over 1,000 small transactions against the same table after a checkpoint."""
    queries = {
        "customer": "SELECT c_mktsegment, count(*), sum(c_acctbal) FROM {t} GROUP BY 1",
        "lineitem": "SELECT l_returnflag, l_linestatus, sum(l_extendedprice), count(*) FROM {t} GROUP BY 1, 2",
    }
    figures = []
    with freshview.connect(folder / "warehouse") as wh:
        for table, query in queries.items():
            wh.sql(f"CHECKPOINT {table}")
            before = wh.status().csn
            samples = _samples(wh, table, 5, seed=5, count=200)
            for i in range(1000):
                with wh.transaction() as tx:
                    tx.upsert(table, samples[i % len(samples)])
            after = wh.status().csn
            segmented = query.format(t=f"{table} VERSION AS OF {after}")
            folded = query.format(t=f"{table} VERSION AS OF {before}")

            def run(text: str) -> Callable[[int], object]:
                return lambda _: wh.sql(text).collect()

            times = alternated({"segments": run(segmented), "checkpointed": run(folded)}, repeat=3 * repeat, warmup=2)
            name = f"aggregate over {table} with 1,000 transactions / checkpointed"
            figures.append(_ratio(name, times["segments"], times["checkpointed"], 2.0))
            wh.sql(f"CHECKPOINT {table}")
    return figures


def update_all(folder: Path, _scale: float, repeat: int) -> list[Figure]:
    """Time an UPDATE of 150 k rows in one statement, whose segment is a file."""
    with freshview.connect(folder / "warehouse") as wh:
        relation = wh._catalog.relation("customer")
        wh.sql("SELECT count(*) FROM customer").collect()  # Spark is warm
        outcomes: list[freshview.Outcome] = []
        files = 0
        update = "UPDATE customer SET c_acctbal = c_acctbal + 1"
        seconds: list[float] = []
        for _ in range(repeat + 1):
            seconds.append(seconds_of(lambda: outcomes.append(wh.sql(update))))
            segment = wh._catalog.state(relation, outcomes[-1].csn or 0).segments[-1]
            files += bool(segment.files) and segment.payload is None
            wh.sql("CHECKPOINT customer")
        time_ = Timing(tuple(seconds[1:]))
        return [
            Figure(f"UPDATE of {outcomes[0].rows} rows", time_.p50, None, "s", {"time": str(time_)}),
            Figure("its segments that are files", files / len(outcomes), 1.0, "", {}, at_least=True),
        ]


STEPS = (load, write, lookup, scan, update_all)


def _ratio(name: str, ours: Timing, bare: Timing, limit: float) -> Figure:
    details = {"Freshview": str(ours), "bare": str(bare)}
    return Figure(name, ours.p50 / bare.p50, limit, "×", details, spread=spread(ours, bare))


def _samples(wh: Warehouse, table: str, rows: int, seed: int, count: int = 1) -> list[pa.Table]:
    """Return `count` random samples of existing rows, from the first file of main."""
    relation = wh._catalog.relation(table)
    main = wh._catalog.latest_main(relation.id)
    assert main is not None
    file = wh._storage.mains.files(relation.id, main.delta_version)[0]
    group = plain(pq.ParquetFile(wh._storage.layout.relation(relation.id) / file.path).read_row_group(0))
    draw = random.Random(seed)
    picked = [sorted(draw.sample(range(group.num_rows), rows)) for _ in range(count)]
    return [relation.schema.conform(group.take(pa.array(places))) for places in picked]


def _inline_size(wh: Warehouse, table: str, rows: pa.Table) -> int:
    """Return the bytes that an upsert of these rows stores in the catalog."""
    with wh.transaction() as tx:
        tx.upsert(table, rows)
    relation = wh._catalog.relation(table)
    return wh._catalog.state(relation, tx.csn or 0).segments[-1].size
