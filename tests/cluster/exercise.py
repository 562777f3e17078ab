"""What a user does with a warehouse, on whatever Spark the environment names; run by the tests in processes of its own.

    exercise.py build FOLDER CATALOG   all statements, compared with plain Spark; then writes until FOLDER.stop is there
    exercise.py watch FOLDER CATALOG   queries meanwhile, in another process, and makes FOLDER.stop
    exercise.py found FOLDER CATALOG   which Spark `freshview.connect()` finds by itself
    exercise.py cases FOLDER CATALOG   less common definitions, compared with plain Spark: some, in a soak all

CATALOG is a database URL, or `-` for SQLite in the folder.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests.effort import IS_SOAK
from tests.spark.less_common import CASES, Kept

import freshview
from freshview import Warehouse
from freshview.errors import Cancelled, FreshviewError, NotFound, StorageUnavailable
from freshview.interruption import Interruption
from freshview.schedule import upkeep
from freshview.spark.session import new_session, obtain_session
from freshview.storage.store import Storage

ORDERS = 12_000  # more than the driver folds by itself
CUSTOMERS = 300
ROUNDS = 2  # of the watcher: something is written between them
PATIENCE = 200.0  # seconds for which one process waits for the other

TABLES = {
    "customer": "id INT, region STRING, PRIMARY KEY (id)",
    "orders": "id BIGINT, customer INT, amount DECIMAL(12,2), PRIMARY KEY (id)",
    "note": "text STRING, stars INT",
}
_BY_REGION = (
    "SELECT c.region, count(*) AS n, sum(o.amount) AS total, max(o.amount) AS most "
    "FROM orders o JOIN customer c ON o.customer = c.id GROUP BY c.region"
)
VIEWS = {
    "by_region": _BY_REGION,
    "large": "SELECT region, total FROM by_region WHERE n > 1000",
}
MEANINGS = {**VIEWS, "large": f"SELECT region, total FROM ({_BY_REGION}) WHERE n > 1000"}

ARROW = {
    "customer": pa.schema({"id": pa.int32(), "region": pa.string()}),
    "orders": pa.schema({"id": pa.int64(), "customer": pa.int32(), "amount": pa.decimal128(12, 2)}),
    "note": pa.schema({"text": pa.string(), "stars": pa.int32()}),
}
Rows = dict[int, dict[str, Any]]


class World:
    """A warehouse, and its rows as plain Python keeps them."""

    def __init__(self, wh: Warehouse, spark: Any) -> None:
        self.wh = wh
        self.spark = spark
        self.customers: Rows = {}
        self.orders: Rows = {}
        self.notes: list[dict[str, Any]] = []

    def plain(self) -> dict[str, Counter[Any]]:
        """All views, by plain Spark over the rows as they should be."""
        tables = {"customer": self.customers.values(), "orders": self.orders.values()}
        for name, rows in tables.items():
            table = pa.Table.from_pylist(list(rows), ARROW[name])
            self.spark.createDataFrame(table).createOrReplaceTempView(f"plain_{name}")
        found = {}
        for view, text in MEANINGS.items():
            found[view] = bag(self.spark.sql(re.sub(r"\b(FROM|JOIN) (customer|orders)\b", r"\1 plain_\2", text)))
        return found

    def require_all(self, when: str) -> None:
        """Law: tables hold what was written, and views are what plain Spark makes of it."""
        for view, expected in self.plain().items():
            require_same(f"{when}: {view}", bag(self.wh.sql(f"SELECT * FROM {view}")), expected)
        tables = {"customer": self.customers.values(), "orders": self.orders.values(), "note": self.notes}
        for table, rows in tables.items():
            held = Counter(tuple(row.values()) for row in rows)
            require_same(f"{when}: {table}", bag(self.wh.sql(f"SELECT * FROM {table}")), held)


def bag(frame: Any) -> Counter[Any]:
    return Counter(tuple(row) for row in frame.collect())


def require_same(told: str, found: Counter[Any], expected: Counter[Any]) -> None:
    missing, extra = expected - found, found - expected
    assert found == expected, f"{told}: missing {list(missing)[:5]}, extra {list(extra)[:5]}"


def amount(number: int) -> Decimal:
    return Decimal(number).scaleb(-2)


def order(key: int) -> dict[str, Any]:
    return {"id": key, "customer": key * 7 % (CUSTOMERS + 20), "amount": amount(key * 31 % 9973)}


def build(folder: Path, catalog: str | None) -> None:
    """Every kind of statement; then the warehouse is written to while others query."""
    begun, spark = time.monotonic(), session()
    with freshview.connect(folder, catalog, spark=spark) as wh:
        world = World(wh, spark)
        for step in (load, change, read, refuse, mean, lose, interrupt):
            step(world)
            print(f"{time.monotonic() - begun:.1f} s: {step.__name__}", flush=True)
    with freshview.connect(folder, catalog, spark=spark, background=True) as wh:
        world.wh = wh
        manage(world)
        print(f"{time.monotonic() - begun:.1f} s: manage", flush=True)
    with freshview.connect(folder, catalog, spark=spark) as wh:
        world.wh = wh
        write_meanwhile(world, folder)
        keep(world)
    print("done", flush=True)


def session() -> Any:
    """The user's own session: of the cluster, or of the server that SPARK_REMOTE names."""
    master = os.environ.get("SPARK_MASTER")
    builder: Any = SparkSession.builder
    return (builder.master(master) if master else builder).appName("exercise").getOrCreate()


def load(world: World) -> None:
    """Tables with keys and without, loaded from Spark frames, Arrow and SQL; views over them."""
    for name, columns in TABLES.items():
        world.wh.sql(f"CREATE TABLE {name} ({columns})")
    world.customers = {k: {"id": k, "region": f"r{k % 5}"} for k in range(CUSTOMERS)}
    world.orders = {k: order(k) for k in range(ORDERS)}
    world.notes = [{"text": f"n{i % 50}", "stars": i % 5} for i in range(200)]
    frame = world.spark.range(ORDERS).selectExpr(
        "id",
        f"CAST(id * 7 % {CUSTOMERS + 20} AS INT) AS customer",
        "CAST((id * 31 % 9973) / 100 AS DECIMAL(12,2)) AS amount",
    )
    with world.wh.transaction() as tx:
        tx.upsert("customer", list(world.customers.values()))
        assert tx.insert("orders", frame).rows == ORDERS
        tx.insert("note", pa.Table.from_pylist(world.notes, ARROW["note"]))
    for name, text in VIEWS.items():
        world.wh.sql(f"CREATE MATERIALIZED VIEW {name} AS {text}")


def change(world: World) -> None:
    """Transactions of all kinds, by SQL and by API, small and larger than the driver takes."""
    wh, orders = world.wh, world.orders
    with wh.transaction() as tx:
        changed = [{**orders[k], "amount": amount(k + 100_000)} for k in range(50)]
        tx.upsert("orders", changed)
        orders.update({row["id"]: row for row in changed})
        assert tx.sql("UPDATE customer SET region = 'r9' WHERE id % 10 = 3").rows == CUSTOMERS // 10
        assert tx.sql("SELECT count(*) FROM customer WHERE region = 'r9'").collect()[0][0] == CUSTOMERS // 10
        require_same("inside", bag(tx.sql("SELECT region, n FROM by_region")), _counts(world, moved=3))
    for row in world.customers.values():
        row["region"] = "r9" if row["id"] % 10 == 3 else row["region"]
    assert wh.sql("DELETE FROM orders WHERE id BETWEEN 100 AND 199").rows == 100
    for k in range(100, 200):
        del orders[k]
    world.spark.createDataFrame(
        [(k, k % CUSTOMERS, amount(777)) for k in range(ORDERS - 10, ORDERS + 10)],
        "id BIGINT, customer INT, amount DECIMAL(12,2)",
    ).createOrReplaceTempView("arrivals")
    wh.sql(
        "MERGE INTO orders o USING arrivals a ON o.id = a.id WHEN MATCHED AND a.id % 2 = 0 THEN DELETE "
        "WHEN MATCHED THEN UPDATE SET amount = a.amount WHEN NOT MATCHED THEN INSERT *"
    )
    for k in range(ORDERS - 10, ORDERS):
        if k % 2 == 0:
            del orders[k]
        else:
            orders[k]["amount"] = amount(777)
    orders |= {k: {"id": k, "customer": k % CUSTOMERS, "amount": amount(777)} for k in range(ORDERS, ORDERS + 10)}
    assert wh.sql("DELETE FROM note WHERE stars = 4").rows == 40
    world.notes = [n for n in world.notes if n["stars"] != 4]
    wh.sql("CHECKPOINT orders")
    more = wh.sql("UPDATE orders SET amount = amount + 1").rows  # so many delta rows make a frame that is not small
    assert more == len(orders) > 10_000
    for row in orders.values():
        row["amount"] += 1
    world.require_all("all changed")


def _counts(world: World, moved: int) -> Counter[Any]:
    """Orders by region, with customers moved that end in a digit."""
    regions = {k: "r9" if k % 10 == moved else row["region"] for k, row in world.customers.items()}
    counts = Counter(regions[o["customer"]] for o in world.orders.values() if o["customer"] in regions)
    return Counter(counts.items())


def read(world: World) -> None:
    """Queries of all three kinds; what they plan to read lies in the warehouse, where all workers see it."""
    wh = world.wh
    before, csn = bag(wh.sql("SELECT * FROM by_region")), wh.status().csn
    with wh.transaction() as tx:
        tx.delete("customer", list(range(100)))
    world.customers = {k: row for k, row in world.customers.items() if k >= 100}
    require_same("any", bag(wh.sql("SELECT * FROM by_region", freshness="any")), before)
    require_same("as of", bag(wh.sql("SELECT * FROM by_region", as_of=csn)), before)
    after = world.plain()["by_region"]
    assert after != before
    require_same("fresh", bag(wh.sql("SELECT * FROM by_region")), after)
    require_same("as of, later", bag(wh.sql(f"SELECT * FROM by_region VERSION AS OF {csn}")), before)
    files = wh.sql("SELECT * FROM orders").inputFiles()
    outside = [f for f in files if not f.removeprefix("file://").startswith(f"{wh.path}/")]
    assert files
    assert not outside, f"workers elsewhere would not find {outside}"


def refuse(world: World) -> None:
    """Errors are told as they are on one machine, and at the call; a view is no business of the user's session."""
    wh, spark = world.wh, world.spark
    for text in ("SELECT nothing FROM orders", "SELECT * FROM nowhere", "SELECT no_such_function(id) FROM orders"):
        with pytest.raises(NotFound):
            wh.sql(text)
    spark.sql("CREATE TEMPORARY FUNCTION twice(x INT) RETURNS INT RETURN 2 * x")
    spark.sql("DECLARE OR REPLACE VARIABLE mine INT DEFAULT 5")
    for name, expression in {"temporary": "twice(stars)", "variable": "stars + mine"}.items():
        wh.sql(f"SELECT {expression} AS x FROM note").collect()  # a query may use it
        with pytest.raises(FreshviewError):  # a view may not: other sessions have it not, or another one
            wh.sql(f"CREATE MATERIALIZED VIEW {name} AS SELECT text, {expression} AS x FROM note")
    spark.sql("DROP TEMPORARY FUNCTION twice")
    spark.sql("DROP TEMPORARY VARIABLE mine")


def mean(world: World) -> None:
    """A setting of the session gives statements and views their meaning; a view keeps it when the session loses it."""
    wh, conf = world.wh, world.spark.conf
    wh.sql("CREATE TABLE word (k STRING, v STRING, at TIMESTAMP, PRIMARY KEY (k))")
    wh.sql(
        "INSERT INTO word SELECT k, v, timestamp_seconds(0) FROM VALUES ('v', 'x'), ('a', 'a'), ('b', 'b') AS w(k, v)"
    )
    changed = {"spark.sql.ansi.doubleQuotedIdentifiers": "true", "spark.sql.session.timeZone": "America/New_York"}
    before = {key: conf.get(key) for key in changed}
    for key, value in changed.items():
        conf.set(key, value)
    wh.sql(
        'CREATE MATERIALIZED VIEW same AS SELECT k, day(at) AS d, count(*) AS n FROM word WHERE k = "v" GROUP BY 1, 2'
    )
    assert wh.sql('DELETE FROM word WHERE k = "v"').rows == 2, "the rows whose columns are equal, not the word v"
    for key, value in before.items():
        conf.set(key, value)
    wh.sql("INSERT INTO word SELECT 'c', 'c', timestamp_seconds(0)")
    require_same("kept meaning", bag(wh.sql("SELECT * FROM same")), Counter({("c", 31, 1): 1}))


def lose(world: World) -> None:
    """Rows that a worker wrote elsewhere, since it does not share the folder, are missed, and nothing commits."""
    collect, csn = Storage.collect, world.wh.status().csn
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Storage, "collect", lambda *where: collect(*where)[1:])
        with pytest.raises(StorageUnavailable, match="Spark wrote 20000 rows, 10000 are here"):
            world.wh.sql("INSERT INTO note SELECT CAST(id AS STRING), 1 FROM range(0, 20000, 1, 2)")
    assert world.wh.status().csn == csn


def interrupt(world: World) -> None:
    """Work in the background is broken off in the middle of a query that would run for days, on siblings too."""
    interruption, started = Interruption(), threading.Event()

    def ask() -> None:
        started.wait()
        time.sleep(1)
        interruption.request()

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    engine = world.wh.engine()
    with interruption.here(), engine.background(interruption):
        sibling = engine.sibling(engine.settings(), small=False)  # made in the middle of it
        endless = sibling.session.range(10**15).selectExpr("sum(id % 7) AS s")
        started.set()
        with pytest.raises(Cancelled):
            sibling.arrow(endless, "endless query")
    sibling.close()
    asking.join()
    assert world.wh.sql("SELECT count(*) FROM orders").collect()[0][0] == len(world.orders)


def manage(world: World) -> None:
    """The manager, in the background, brings views up to date that nobody asks for."""
    upkeep.machine_load = lambda: 0.0  # type: ignore[attr-defined]  # other tests keep the machine busy
    with world.wh.transaction() as tx:
        tx.upsert("customer", [{"id": k, "region": "r1"} for k in range(50)])
    world.customers |= {k: {"id": k, "region": "r1"} for k in range(50)}
    wait_for(lambda: not any(v.pending_tasks for v in world.wh.status().views), "the manager has maintained the views")
    assert [j for j in world.wh.history("by_region") if j.error is None]
    for view, expected in world.plain().items():
        require_same(f"managed: {view}", bag(world.wh.sql(f"SELECT * FROM {view}", freshness="any")), expected)


def write_meanwhile(world: World, folder: Path) -> None:
    """Amounts move from order to order, in transactions, as long as another process queries."""
    mark(folder, "ready")
    keys, number = sorted(world.orders), 0
    while not (folder.with_suffix(".stop")).exists():
        a, b = world.orders[keys[number * 13 % 5000]], world.orders[keys[5000 + number * 17 % 5000]]
        if number % 10 == 9:
            text = f"UPDATE orders SET amount = amount + IF(id = {a['id']}, -1, 1) WHERE id IN ({a['id']}, {b['id']})"
            assert world.wh.sql(text).rows == 2
            a["amount"], b["amount"] = a["amount"] - 1, b["amount"] + 1
        else:
            a["amount"], b["amount"] = a["amount"] - amount(150), b["amount"] + amount(150)
            with world.wh.transaction() as tx:
                tx.upsert("orders", [a, b])
        number += 1
        time.sleep(0.3)
    print(f"{number} transactions", flush=True)
    assert number > ROUNDS


def keep(world: World) -> None:
    """All is right in the end, and stays so when segments are folded and old versions go."""
    for name in [*TABLES, *VIEWS]:
        report = world.wh.check(name)
        assert report.ok, report
        world.wh.sql(f"CHECKPOINT {name}")
    world.wh.sql("VACUUM RETAIN 0 HOURS")
    world.require_all("kept")


def watch(folder: Path, catalog: str | None) -> None:
    """Queries while another process writes: each sees whole transactions only, and views as of its snapshot."""
    obtain_session()  # what freshview.connect() finds; starting it takes as long as the writer's first steps
    wait_for(folder.with_suffix(".ready").exists, "the writer has begun")
    try:
        with freshview.connect(folder, catalog) as wh:
            seen, sums = set(), set()
            for _ in range(ROUNDS):
                csn = wh.status().csn
                for view, text in MEANINGS.items():
                    found, expected = (bag(wh.sql(q, as_of=csn)) for q in (f"SELECT * FROM {view}", text))
                    require_same(f"{view} at {csn}", found, expected)
                sums.add(wh.sql("SELECT sum(amount) FROM orders").collect()[0][0])
                seen.add(csn)
            assert len(seen) == ROUNDS, f"nothing was written between queries: {seen}"
            assert len(sums) == 1, f"a query saw half a transaction: {sums}"
    finally:
        mark(folder, "stop")
    print("done", flush=True)


def found(folder: Path, catalog: str | None) -> None:
    """Which Spark a warehouse uses that was opened without one."""
    with freshview.connect(folder, catalog) as wh:
        wh.sql("CREATE TABLE t (k INT PRIMARY KEY)")
        wh.sql("INSERT INTO t SELECT CAST(id AS INT) FROM range(3)")
        print(wh.sql("SELECT count(*) FROM t").collect()[0][0], type(wh.engine().session).__module__, flush=True)


def cases(folder: Path, catalog: str | None) -> None:
    """Law of less common SQL, as on one machine: a view equals its own text, run by plain Spark, whatever changed."""
    spark = session()
    chosen = dict(list(CASES.items())[:: 1 if IS_SOAK else 12])
    with freshview.connect(folder, catalog, spark=spark) as wh:
        plain: Any = new_session(spark)
        kept = Kept(wh, plain, at_every_step=False)
        try:
            kept.run(chosen)
        finally:
            plain.client.close()  # or its threads keep this process alive; a cloned session cannot be stopped
    for name in chosen:
        kept.require_equal(name)
    print(f"{len(chosen)} definitions", flush=True)


def mark(folder: Path, name: str) -> None:
    folder.with_suffix(f".{name}").touch()


def wait_for(happened: Any, told: str) -> None:
    until = time.monotonic() + PATIENCE
    while not happened():
        assert time.monotonic() < until, f"waited in vain until {told}"
        time.sleep(0.1)


if __name__ == "__main__":
    roles = {"build": build, "watch": watch, "found": found, "cases": cases}
    roles[sys.argv[1]](Path(sys.argv[2]), None if sys.argv[3] == "-" else sys.argv[3])
