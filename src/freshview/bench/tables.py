"""TPC-H as tables of warehouses: loaded once for all suites, and copied for each that changes them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import freshview
from freshview import Warehouse
from freshview.bench.data import KEYS, tpch

OF_VIEWS = ("customer", "orders", "lineitem", "nation", "supplier", "partsupp")  # that V1 and V2 read
_PREPARED = "prepared"


def load(
    wh: Warehouse, data: Path, tables: tuple[str, ...], *, most: int | None = None, done: Callable[[], object] = int
) -> int:
    """Tables from Parquet files, all their rows or so many at most; how many rows that are. `done`: told of each."""
    session, rows = wh.engine().session, 0
    some = "" if most is None else f" LIMIT {most}"
    for table in tables:
        source = f"freshview_source_{table}"
        session.read.parquet(str(data / f"{table}.parquet")).createOrReplaceTempView(source)
        rows += wh.sql(f"CREATE TABLE {table} PRIMARY KEY ({KEYS[table]}) AS SELECT * FROM {source}{some}").rows
        session.catalog.dropTempView(source)
        done()
    return rows


def new(home: Path) -> Warehouse:
    """An empty warehouse in the place of what is there."""
    shutil.rmtree(home, ignore_errors=True)
    return freshview.connect(home)


def prepared(folder: Path, name: str, fill: Callable[[Warehouse], object], *, on: Path | None = None) -> Path:
    """A closed warehouse to make copies of: filled once in a run, by who needs it first, on top of another or alone."""
    home, making = folder / _PREPARED / name, folder / _PREPARED / "making"
    if not home.exists():
        with new(making) if on is None else copied(on, making) as wh:
            fill(wh)
        making.rename(home)  # it is there whole or not
    return home


def tables(folder: Path, scale: float) -> Path:
    """All tables of TPC-H."""
    data = tpch(folder, scale, tuple(KEYS))
    return prepared(folder, "tables", lambda wh: load(wh, data, tuple(KEYS)))


def copied(source: Path, home: Path, **options: Any) -> Warehouse:
    """A copy of a closed warehouse. Data files are never written to again, so that it can share them."""
    shutil.rmtree(home, ignore_errors=True)
    shutil.copytree(source, home, copy_function=_shared)
    return freshview.connect(home, **options)


def _shared(source: str, target: str) -> None:
    if source.endswith(".parquet"):
        Path(target).hardlink_to(source)
    else:
        shutil.copy2(source, target)


def forget(folder: Path) -> None:
    """Remove what an earlier run has prepared, with other code or at another scale; generated data stays."""
    shutil.rmtree(folder / _PREPARED, ignore_errors=True)
