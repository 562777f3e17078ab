"""Reading a warehouse on the driver, without Spark."""

from __future__ import annotations

from typing import Any

from freshview import Warehouse


def contents(wh: Warehouse, name: str, csn: int | None = None) -> list[dict[str, Any]]:
    """All rows of a table at a CSN (default: now), in the order of their text."""
    at = wh._catalog.snapshot() if csn is None else csn
    relation = wh._catalog.find(name, at) or wh._catalog.relation(name)
    rows: list[dict[str, Any]] = wh._storage.reader.contents(wh._catalog.state(relation, at)).to_pylist()
    return sorted(rows, key=repr)


def seen_by(wh: Warehouse, tx: Any, name: str) -> list[dict[str, Any]]:
    """All rows of a table as an open transaction sees them."""
    core = tx._core
    rows: list[dict[str, Any]] = wh._storage.reader.contents(core.state(core.relation(name))).to_pylist()
    return sorted(rows, key=repr)
