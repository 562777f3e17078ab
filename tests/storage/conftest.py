"""Reading a warehouse without Spark, and looking at its files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.internals import internals

from freshview import Warehouse

Bag = Counter[tuple[Any, ...]]


def as_bag(table: pa.Table) -> Bag:
    """Rows by place, values by identity (so that -0.0 and NaN count)."""
    return Counter(tuple(map(repr, row.values())) for row in table.to_pylist())


@pytest.fixture
def bag_of() -> Callable[[pa.Table], Bag]:
    return as_bag


@pytest.fixture
def contents() -> Callable[..., Bag]:
    """contents(wh, table, csn): what a reader at that CSN sees, on the driver."""

    def read(wh: Warehouse, name: str, csn: int | None = None) -> Bag:
        return as_bag(internals(wh).rows(name, csn))

    return read


@pytest.fixture
def data_files() -> Callable[[Warehouse], set[Path]]:
    """All data files that lie in a warehouse, needed or not."""

    def find(wh: Warehouse) -> set[Path]:
        return {p for p in (wh.path / "tables").rglob("*") if p.is_file() and "_delta_log" not in p.parts}

    return find
