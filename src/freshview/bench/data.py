"""TPC-H data for benchmarks, made once by tpchgen-cli and kept in a folder."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from freshview.errors import NotFound

CUSTOMER = """CREATE TABLE customer (
    c_custkey BIGINT, c_name STRING, c_address STRING, c_nationkey BIGINT, c_phone STRING,
    c_acctbal DECIMAL(15,2), c_mktsegment STRING, c_comment STRING, PRIMARY KEY (c_custkey))"""
LINEITEM = """CREATE TABLE lineitem (
    l_orderkey BIGINT, l_partkey BIGINT, l_suppkey BIGINT, l_linenumber INT, l_quantity DECIMAL(15,2),
    l_extendedprice DECIMAL(15,2), l_discount DECIMAL(15,2), l_tax DECIMAL(15,2), l_returnflag STRING,
    l_linestatus STRING, l_shipdate DATE, l_commitdate DATE, l_receiptdate DATE, l_shipinstruct STRING,
    l_shipmode STRING, l_comment STRING, PRIMARY KEY (l_orderkey, l_linenumber))"""


def tpch(folder: Path, scale: float, tables: tuple[str, ...]) -> Path:
    """A folder with one Parquet file per table, generated unless it is there already."""
    target = folder / f"tpch-{scale:g}"
    missing = [t for t in tables if not (target / f"{t}.parquet").exists()]
    if missing:
        tool = shutil.which("tpchgen-cli", path=str(Path(sys.executable).parent)) or shutil.which("tpchgen-cli")
        if tool is None:
            raise NotFound("tpchgen-cli", "is not installed", "Install it with: pip install tpchgen-cli")
        target.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            [tool, "parquet", "-s", f"{scale:g}", f"--tables={','.join(missing)}", f"--output-dir={target}"],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    return target
