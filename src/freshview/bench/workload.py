"""The workload of MQO §7.1: ten views, five with aggregates, over eight relations; all relations grow by one share.

Most views have selections of their own, so that what they share is a join or a grouping, seldom a whole query.
"""

from __future__ import annotations

import random
from collections.abc import Collection

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

_KEY, _TEXT, _NUMBER, _DAY = "bigint", "string", "decimal(15,2)", "date"
# The columns that the views use, and the sizes of scale 1, for searches without tables.
TYPES = {
    "region": {"r_regionkey": _KEY, "r_name": _TEXT},
    "nation": {"n_nationkey": _KEY, "n_name": _TEXT, "n_regionkey": _KEY},
    "supplier": {"s_suppkey": _KEY, "s_name": _TEXT, "s_nationkey": _KEY},
    "customer": {
        "c_custkey": _KEY,
        "c_name": _TEXT,
        "c_nationkey": _KEY,
        "c_acctbal": _NUMBER,
        "c_mktsegment": _TEXT,
    },
    "part": {
        "p_partkey": _KEY,
        "p_name": _TEXT,
        "p_brand": _TEXT,
        "p_type": _TEXT,
        "p_size": _KEY,
        "p_container": _TEXT,
    },
    "partsupp": {"ps_partkey": _KEY, "ps_suppkey": _KEY, "ps_availqty": _KEY, "ps_supplycost": _NUMBER},
    "orders": {
        "o_orderkey": _KEY,
        "o_custkey": _KEY,
        "o_totalprice": _NUMBER,
        "o_orderdate": _DAY,
        "o_orderpriority": _TEXT,
    },
    "lineitem": {
        "l_orderkey": _KEY,
        "l_linenumber": _KEY,
        "l_partkey": _KEY,
        "l_suppkey": _KEY,
        "l_quantity": _NUMBER,
        "l_extendedprice": _NUMBER,
        "l_returnflag": _TEXT,
        "l_shipdate": _DAY,
        "l_shipmode": _TEXT,
    },
}
ROWS = {
    "region": 5.0,
    "nation": 25.0,
    "supplier": 1e4,
    "customer": 150e3,
    "part": 2e5,
    "partsupp": 8e5,
    "orders": 1.5e6,
    "lineitem": 6e6,
}
DISTINCT = {
    "r_regionkey": 5.0,
    "r_name": 5.0,
    "n_nationkey": 25.0,
    "n_regionkey": 5.0,
    "n_name": 25.0,
    "s_suppkey": 1e4,
    "s_nationkey": 25.0,
    "c_custkey": 150e3,
    "c_nationkey": 25.0,
    "c_mktsegment": 5.0,
    "p_partkey": 2e5,
    "p_size": 50.0,
    "p_brand": 25.0,
    "p_type": 150.0,
    "p_container": 40.0,
    "ps_partkey": 2e5,
    "ps_suppkey": 1e4,
    "ps_availqty": 1e4,
    "o_orderkey": 1.5e6,
    "o_custkey": 1e5,
    "o_orderpriority": 5.0,
    "o_orderdate": 2400.0,
    "l_orderkey": 1.5e6,
    "l_partkey": 2e5,
    "l_suppkey": 1e4,
    "l_returnflag": 3.0,
    "l_quantity": 50.0,
    "l_shipdate": 2500.0,
    "l_shipmode": 7.0,
}

# The key column by which rows of a table are copied; tables of one kind of key get the copies of the same rows.
COPIED = {
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


def grow(wh: Warehouse, draw: random.Random, share: float, tables: Collection[str] = tuple(COPIED)) -> int:
    """Insert copies of a share of these tables under new keys, one row at least; return the number of rows."""
    seed, offset = draw.randrange(1_000_000), 10_000_000_000 + draw.randrange(1_000_000) * 10_000_000
    rows = 0
    with wh.transaction() as tx:
        for table, key in COPIED.items():
            if table not in tables:
                continue
            columns = wh.sql(f"SELECT * FROM {table}").columns
            copied = ", ".join(f"{key} + {offset} AS {key}" if c == key else c for c in columns)
            some = f"WHERE pmod(hash({key}, {seed}), {_BUCKETS}) < {round(share * _BUCKETS)}"
            few = "LIMIT 1" if table in ("region", "nation") else some
            rows += tx.sql(f"INSERT INTO {table} SELECT {copied} FROM {table} {few}").rows
    return rows
