"""TPC-H as tables of warehouses: loaded once for all suites, and copied for each suite that changes them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

import freshview
from freshview import Warehouse
from freshview.bench.data import KEYS, tpch

OF_VIEWS = ("customer", "orders", "lineitem", "nation", "supplier", "partsupp")  # the tables that V1 and V2 read
_PREPARED = "prepared"
_SCALE = "scale"  # a file that names the scale of what is prepared


def load(
    wh: Warehouse, data: Path, tables: tuple[str, ...], *, most: int | None = None, done: Callable[[], object] = int
) -> int:
    """Create tables from Parquet files, with `most` rows each at most; call `done` after each; return the row count."""
    session, rows = wh.engine().session, 0
    some = "" if most is None else f" LIMIT {most}"
    for table in tables:
        source = f"freshview_source_{table}"
        session.read.parquet(str(data / f"{table}.parquet")).createOrReplaceTempView(source)
        rows += wh.sql(f"CREATE TABLE {table} PRIMARY KEY ({KEYS[table]}) AS SELECT * FROM {source}{some}").rows
        session.catalog.dropTempView(source)
        done()
    return rows


def replaced(rows: pa.Table, column: str, values: list[Any]) -> pa.Table:
    """Return the rows with other values in a column, whose type stays."""
    place = rows.schema.get_field_index(column)
    field = rows.schema.field(place)
    return rows.set_column(place, field, pa.array(values, field.type))


def new(home: Path) -> Warehouse:
    """Open an empty warehouse in a folder; what the folder had is removed."""
    shutil.rmtree(home, ignore_errors=True)
    return freshview.connect(home)


def prepared(folder: Path, name: str, fill: Callable[[Warehouse], object], *, on: Path | None = None) -> Path:
    """Return a closed warehouse to copy, filled at its first use in a run, on a copy of another or from nothing."""
    home, making = folder / _PREPARED / name, folder / _PREPARED / "making"
    if not home.exists():
        with new(making) if on is None else copied(on, making) as wh:
            fill(wh)
        making.rename(home)  # it appears whole or not at all
    return home


def tables(folder: Path, scale: float) -> Path:
    """Prepare a warehouse with all tables of TPC-H."""
    data = tpch(folder, scale, tuple(KEYS))
    return prepared(folder, "tables", lambda wh: load(wh, data, tuple(KEYS)))


def copied(source: Path, home: Path, **options: Any) -> Warehouse:
    """Open a copy of a closed warehouse. Data files never change, so the copy shares them by hard links."""
    shutil.rmtree(home, ignore_errors=True)
    shutil.copytree(source, home, copy_function=_shared)
    return freshview.connect(home, **options)


def _shared(source: str, target: str) -> None:
    if source.endswith(".parquet"):
        Path(target).hardlink_to(source)
    else:
        shutil.copy2(source, target)


def forget(folder: Path, scale: float) -> None:
    """Remove the warehouses that an earlier run prepared, maybe with other code or scale; generated data stays. Those
    that this run prepares are of this scale."""
    shutil.rmtree(folder / _PREPARED, ignore_errors=True)
    (folder / _PREPARED).mkdir(parents=True)
    (folder / _PREPARED / _SCALE).write_text(repr(scale))


def is_kept(folder: Path, scale: float) -> bool:
    """Return whether the warehouses that an earlier run prepared are of this scale."""
    path = folder / _PREPARED / _SCALE
    return path.exists() and path.read_text() == repr(scale)
