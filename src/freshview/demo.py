"""`make demo`: tables, transactions, conflicts, time travel and upkeep, on the embedded default."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import freshview
from freshview.errors import FreshviewError, WriteConflict


def main() -> int:
    """Run the demo in a fresh folder; a sentence and exit code 1 if something is missing."""
    try:
        with tempfile.TemporaryDirectory(prefix="freshview-demo-") as folder:
            _demo(Path(folder) / "warehouse")
    except FreshviewError as error:
        print(f"freshview demo: {error}", file=sys.stderr)
        return 1
    return 0


def _demo(path: Path) -> None:
    with freshview.connect(path) as wh:
        _say("1. Two tables; catalog and data live in one folder, nothing else is needed")
        wh.sql("CREATE TABLE customer (id INT, name STRING NOT NULL, city STRING, PRIMARY KEY (id))")
        wh.sql("CREATE TABLE sale (id BIGINT, customer INT, amount DECIMAL(10,2), PRIMARY KEY (id))")

        _say("2. A transaction over both, committed at once (no Spark is started for it)")
        begun = time.perf_counter()
        with wh.transaction() as tx:
            tx.insert("customer", [{"id": i, "name": f"customer {i}", "city": "Oslo"} for i in range(1, 4)])
            tx.sql("INSERT INTO sale VALUES (1, 1, 10.00), (2, 1, 5.50), (3, 2, 7.25)")
        print(f"   committed at CSN {tx.csn} after {(time.perf_counter() - begun) * 1000:.1f} ms")

        _say("3. Spark answers queries over one snapshot (the first one starts Spark)")
        query = (
            "SELECT name, city, sum(amount) AS total FROM customer c LEFT JOIN sale s ON s.customer = c.id GROUP BY ALL"
        )
        wh.sql(f"{query} ORDER BY name").show()

        _say("4. First committer wins")
        first, second = wh.transaction(), wh.transaction()
        first.sql("UPDATE customer SET city = 'Bergen' WHERE id = 1")
        second.upsert("customer", [{"id": 1, "name": "customer 1", "city": "Tromsø"}])
        first.commit()
        try:
            second.commit()
        except WriteConflict as error:
            print(f"   {error}")

        _say("5. The past stays readable")
        wh.sql(f"SELECT * FROM customer VERSION AS OF {tx.csn} WHERE id = 1").show()
        wh.sql("SELECT * FROM customer WHERE id = 1").show()

        _say("6. A materialized view: writers do not pay for it, queries always see it fresh")
        wh.sql(f"CREATE MATERIALIZED VIEW totals AS {query}")
        wh.sql("INSERT INTO sale VALUES (4, 3, 99.00)")
        wh.sql("SELECT * FROM totals ORDER BY name").show()
        job = wh.history("totals")[-1]
        print(f"   maintained by the query: {job.strategy}, {job.delta_rows} changed row, {job.seconds:.2f} s")
        print(f"   equal to its definition: {wh.check('totals').ok}")

        _say("7. A bulk load goes through Spark and becomes a Delta table that any reader can open")
        outcome = wh.sql(
            "INSERT INTO sale SELECT id + 100, id % 3 + 1, CAST(id % 50 AS DECIMAL(10,2)) FROM range(500000)"
        )
        print(f"   {outcome.rows} rows at CSN {outcome.csn}")
        wh.sql(f"{query} ORDER BY name").show()

        _say("8. Upkeep: fold the small changes into the Delta tables, remove what nobody needs")
        for table in ("customer", "sale"):
            wh.sql(f"CHECKPOINT {table}")
        removed = wh.sql("VACUUM RETAIN 0 HOURS")
        print(f"   {removed.rows} superseded files removed")
        for status in wh.status().tables:
            print(f"   {status.name}: {status.rows_in_main} rows in Delta, {status.pending_segments} segments pending")


def _say(text: str) -> None:
    print(f"\n{text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
