"""Reading a warehouse on the driver, without Spark."""

from __future__ import annotations

from typing import Any

from tests.internals import internals

from freshview import Warehouse


def contents(wh: Warehouse, name: str, csn: int | None = None) -> list[dict[str, Any]]:
    """All rows of a table at a CSN (default: now), in the order of their text."""
    return sorted(internals(wh).rows(name, csn).to_pylist(), key=repr)


def seen_by(wh: Warehouse, tx: Any, name: str) -> list[dict[str, Any]]:
    """All rows of a table as an open transaction sees them."""
    return sorted(internals(wh).rows_in(tx, name).to_pylist(), key=repr)
