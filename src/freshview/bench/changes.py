"""Random changes of TPC-H tables in a warehouse, for views over them."""

from __future__ import annotations

import random

import pyarrow as pa
import pyarrow.compute as pc

from freshview import Warehouse
from freshview.bench.data import KEYS
from freshview.bench.tables import replaced

_BUCKETS = 100_000  # by which shares of a table are drawn


def changed_customers(wh: Warehouse, draw: random.Random, count: int) -> pa.Table:
    """Return random customers, each moved to another nation."""
    most = wh.sql("SELECT max(c_custkey) FROM customer").collect()[0][0]
    keys = ", ".join(map(str, draw.sample(range(1, most + 1), count)))
    rows = wh.sql(f"SELECT * FROM customer WHERE c_custkey IN ({keys})").toArrow()
    return replaced(rows, "c_nationkey", [(n + 1) % 25 for n in rows.column("c_nationkey").to_pylist()])


def change_customers(wh: Warehouse, draw: random.Random, count: int) -> None:
    with wh.transaction() as tx:
        tx.upsert("customer", changed_customers(wh, draw, count))


def change_orders(wh: Warehouse, draw: random.Random) -> None:
    """Delete 0.05 % of the orders with their lines, scattered over the table, and insert as many."""
    seed = draw.randrange(1_000_000)
    some = wh.sql(f"SELECT o_orderkey FROM orders WHERE pmod(hash(o_orderkey, {seed}), 1000) = 0")
    _exchange(wh, draw, [row[0] for row in some.collect()])


def change_few_orders(wh: Warehouse, draw: random.Random, count: int) -> None:
    """Delete half of so many orders with their lines, scattered over the table, and insert as many."""
    order = f"ORDER BY hash(o_orderkey, {draw.randrange(1_000_000)})"
    some = wh.sql(f"SELECT o_orderkey FROM orders {order} LIMIT {count}")
    _exchange(wh, draw, [row[0] for row in some.collect()])


def _exchange(wh: Warehouse, draw: random.Random, keys: list[int]) -> None:
    """Delete every other one of these orders with its lines, and insert copies of the others."""
    old, new = keys[::2], keys[1::2]
    offset = 10_000_000 + draw.randrange(1_000_000_000)
    with wh.transaction() as tx:
        for table, column in (("orders", "o_orderkey"), ("lineitem", "l_orderkey")):
            listed = ", ".join(map(str, new))
            rows = wh.sql(f"SELECT * FROM {table} WHERE {column} IN ({listed})").toArrow()
            place = rows.schema.get_field_index(column)
            fresh = pc.add(rows.column(place), pa.scalar(offset, rows.schema.field(place).type))
            tx.sql(f"DELETE FROM {table} WHERE {column} IN ({', '.join(map(str, old))})")
            tx.insert(table, rows.set_column(place, rows.schema.field(place), fresh))


def change_all(wh: Warehouse, draw: random.Random) -> None:
    """Change orders and lineitem; in other tables exchange a column's values among 0.1 % of the rows (at least two)."""
    change_orders(wh, draw)
    for table in (t for t in KEYS if t not in ("orders", "lineitem")):
        keys = KEYS[table].split(", ")
        order = f"ORDER BY hash({keys[0]}, {draw.randrange(1_000_000)})"
        count = max(2, wh.sql(f"SELECT count(*) FROM {table}").collect()[0][0] // 1000)
        rows = wh.sql(f"SELECT * FROM {table} {order} LIMIT {count}").toArrow()
        place = draw.choice([i for i, n in enumerate(rows.column_names) if n not in keys])
        column = rows.column(place)
        turned = pa.concat_arrays([column.slice(1).combine_chunks(), column.slice(0, 1).combine_chunks()])
        with wh.transaction() as tx:
            tx.upsert(table, rows.set_column(place, rows.schema.field(place), turned))


def change_share(wh: Warehouse, draw: random.Random, share: float) -> int:
    """Delete half of a share of the orders with their lines, and insert copies of as many others; return the rows.

    The statements run in Spark, so that any share can be changed.
    """
    seed, half = draw.randrange(1_000_000), max(1, round(share * _BUCKETS / 2))
    offset = 10_000_000_000 + draw.randrange(1_000_000_000) * 1_000
    rows = 0
    with wh.transaction() as tx:
        for table, column in (("orders", "o_orderkey"), ("lineitem", "l_orderkey")):
            bucket = f"pmod(hash({column}, {seed}), {_BUCKETS})"
            columns = [c for c in wh.sql(f"SELECT * FROM {table}").columns if c != column]
            copies = f"SELECT {column} + {offset} AS {column}, {', '.join(columns)} FROM {table}"
            others = f"{bucket} >= {half} AND {bucket} < {2 * half}"
            rows += tx.sql(f"INSERT INTO {table} {copies} WHERE {others}").rows
            rows += tx.sql(f"DELETE FROM {table} WHERE {bucket} < {half}").rows
    return rows
