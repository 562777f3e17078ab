"""The workload of MQO §7.1: ten views, five with aggregates, over eight relations; all relations grow by one share.

Most views have selections of their own, so that what they share is a join or a grouping, seldom a whole query.
"""

from __future__ import annotations

import random

from freshview import Warehouse

AGGREGATES = {
    "revenue_of_nations": """SELECT c_nationkey, count(*) AS n, sum(l_extendedprice) AS price
        FROM customer, orders, lineitem
        WHERE c_custkey = o_custkey AND o_orderkey = l_orderkey AND o_orderdate >= DATE '1995-01-01'
        GROUP BY c_nationkey""",
    "shipped_by_supplier": """SELECT s_nationkey, o_orderpriority, count(*) AS n, sum(l_quantity) AS quantity
        FROM orders, lineitem, supplier
        WHERE o_orderkey = l_orderkey AND l_suppkey = s_suppkey AND l_shipdate >= DATE '1996-01-01'
        GROUP BY s_nationkey, o_orderpriority""",
    "stock_of_nations": """SELECT n_name, p_brand, sum(ps_availqty) AS available, max(ps_supplycost) AS dearest
        FROM part, partsupp, supplier, nation
        WHERE p_partkey = ps_partkey AND ps_suppkey = s_suppkey AND s_nationkey = n_nationkey AND p_size < 15
        GROUP BY n_name, p_brand""",
    "balances": """SELECT r_name, c_mktsegment, count(*) AS n, sum(c_acctbal) AS balance
        FROM customer, nation, region WHERE c_nationkey = n_nationkey AND n_regionkey = r_regionkey
        GROUP BY r_name, c_mktsegment""",
    "sold_types": """SELECT p_type, sum(l_quantity) AS quantity, sum(l_extendedprice) AS price
        FROM lineitem, part WHERE l_partkey = p_partkey AND p_container LIKE 'MED%' GROUP BY p_type""",
}
JOINS = {
    "urgent_orders": """SELECT o_orderkey, o_orderdate, o_totalprice, c_name, c_mktsegment
        FROM customer, orders WHERE c_custkey = o_custkey AND o_orderpriority = '1-URGENT'""",
    "large_returns": """SELECT o_orderkey, l_linenumber, l_quantity, l_extendedprice, c_name, c_nationkey
        FROM customer, orders, lineitem
        WHERE c_custkey = o_custkey AND o_orderkey = l_orderkey AND l_returnflag = 'R' AND l_quantity > 45""",
    "small_parts": """SELECT p_partkey, p_name, ps_suppkey, ps_supplycost, s_name
        FROM part, partsupp, supplier
        WHERE p_partkey = ps_partkey AND ps_suppkey = s_suppkey AND p_size = 15""",
    "late_by_air": """SELECT o_orderkey, l_linenumber, o_orderdate, l_shipdate, s_name
        FROM orders, lineitem, supplier
        WHERE o_orderkey = l_orderkey AND l_suppkey = s_suppkey AND l_shipmode = 'AIR'
            AND o_orderdate >= DATE '1998-01-01'""",
    "scarce_parts": """SELECT ps_partkey, ps_suppkey, ps_availqty, s_name, n_name, r_name
        FROM partsupp, supplier, nation, region
        WHERE ps_suppkey = s_suppkey AND s_nationkey = n_nationkey AND n_regionkey = r_regionkey
            AND ps_availqty < 500""",
}
VIEWS = AGGREGATES | JOINS

# The key column by which rows of a table are copied; tables of one kind of key get the copies of the same rows.
_COPIED = {
    "region": "r_regionkey",
    "nation": "n_nationkey",
    "supplier": "s_suppkey",
    "customer": "c_custkey",
    "part": "p_partkey",
    "partsupp": "ps_partkey",
    "orders": "o_orderkey",
    "lineitem": "l_orderkey",
}
_BUCKETS = 100_000


def create(wh: Warehouse, views: dict[str, str]) -> None:
    for name, text in views.items():
        wh.sql(f"CREATE MATERIALIZED VIEW {name} AS {text}")


def grow(wh: Warehouse, draw: random.Random, share: float) -> int:
    """Insert copies of a share of every table under new keys, one row at least; return the number of rows."""
    seed, offset = draw.randrange(1_000_000), 10_000_000_000 + draw.randrange(1_000_000) * 10_000_000
    rows = 0
    with wh.transaction() as tx:
        for table, key in _COPIED.items():
            columns = wh.sql(f"SELECT * FROM {table}").columns
            copied = ", ".join(f"{key} + {offset} AS {key}" if c == key else c for c in columns)
            some = f"WHERE pmod(hash({key}, {seed}), {_BUCKETS}) < {round(share * _BUCKETS)}"
            few = "LIMIT 1" if table in ("region", "nation") else some
            rows += tx.sql(f"INSERT INTO {table} SELECT {copied} FROM {table} {few}").rows
    return rows
