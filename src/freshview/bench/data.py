"""TPC-H for the demo and the benchmarks: data generated once by tpchgen-cli, and the views of LAZY §5.1."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from freshview.errors import NotFound, StorageUnavailable

CUSTOMER = """CREATE TABLE customer (
    c_custkey BIGINT, c_name STRING, c_address STRING, c_nationkey BIGINT, c_phone STRING,
    c_acctbal DECIMAL(15,2), c_mktsegment STRING, c_comment STRING, PRIMARY KEY (c_custkey))"""
LINEITEM = """CREATE TABLE lineitem (
    l_orderkey BIGINT, l_partkey BIGINT, l_suppkey BIGINT, l_linenumber INT, l_quantity DECIMAL(15,2),
    l_extendedprice DECIMAL(15,2), l_discount DECIMAL(15,2), l_tax DECIMAL(15,2), l_returnflag STRING,
    l_linestatus STRING, l_shipdate DATE, l_commitdate DATE, l_receiptdate DATE, l_shipinstruct STRING,
    l_shipmode STRING, l_comment STRING, PRIMARY KEY (l_orderkey, l_linenumber))"""
KEYS = {
    "customer": "c_custkey",
    "orders": "o_orderkey",
    "lineitem": "l_orderkey, l_linenumber",
    "nation": "n_nationkey",
    "region": "r_regionkey",
    "part": "p_partkey",
    "supplier": "s_suppkey",
    "partsupp": "ps_partkey, ps_suppkey",
}
# V1 of LAZY §5.1.
V1 = """SELECT n_name, c_mktsegment, count(*) AS totalcnt, sum(l_extendedprice) AS totalprice,
    sum(l_quantity) AS totalquantity
FROM customer, orders, lineitem, nation
WHERE c_custkey = o_custkey AND o_orderkey = l_orderkey AND n_nationkey = c_nationkey
GROUP BY n_name, c_mktsegment"""
# V2 of LAZY §5.1: orders whose customer and supplier come from different nations.
V2 = """SELECT s_name, c_name, c_mktsegment, ps_comment, o_orderkey, o_orderdate, l_linenumber, l_quantity,
    l_extendedprice, ps_supplycost
FROM customer, orders, lineitem, supplier, partsupp
WHERE c_custkey = o_custkey AND o_orderkey = l_orderkey AND l_suppkey = ps_suppkey AND l_partkey = ps_partkey
    AND ps_suppkey = s_suppkey AND s_nationkey <> c_nationkey"""


def tpch(folder: Path, scale: float, tables: tuple[str, ...]) -> Path:
    """Return a folder with a Parquet file per table; missing files are generated, and appear whole or not at all."""
    target = folder / f"tpch-{scale:g}"
    missing = [t for t in tables if not (target / f"{t}.parquet").exists()]
    if missing:
        target.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="making-", dir=target) as making:
            _generate(Path(making), scale, missing)
            for table in missing:
                (Path(making) / f"{table}.parquet").replace(target / f"{table}.parquet")
    return target


def _generate(target: Path, scale: float, tables: list[str]) -> None:
    tool = shutil.which("tpchgen-cli", path=str(Path(sys.executable).parent)) or shutil.which("tpchgen-cli")
    if tool is None:
        raise NotFound("tpchgen-cli", "is not installed", "Install it with: pip install tpchgen-cli")
    command = [tool, "parquet", "-s", f"{scale:g}", f"--tables={','.join(tables)}", f"--output-dir={target}"]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        cause = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise StorageUnavailable(f"TPC-H data at scale {scale:g}", f"tpchgen-cli failed ({cause})", "Check disk space.")
