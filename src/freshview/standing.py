"""Where a warehouse stands: its tables, its views and who holds back old versions, from the catalog alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from freshview.catalog.reports import Holder, Reports, overdue, told_overdue
from freshview.catalog.writer import Catalog
from freshview.maintenance.overview import ViewStatus, overview
from freshview.maintenance.vacuum import RETENTION


@dataclass(frozen=True)
class TableStatus:
    """One table in a status report."""

    name: str
    kind: str
    rows_in_main: int
    pending_segments: int
    pending_rows: int


@dataclass(frozen=True)
class Status:
    """Where a warehouse stands. Two are equal if nothing was committed in between, whatever the time."""

    path: str
    catalog: str
    csn: int
    horizon: int
    tables: tuple[TableStatus, ...]
    views: tuple[ViewStatus, ...] = ()
    holders: tuple[Holder, ...] = field(default=(), compare=False)  # who keeps old versions, the oldest first
    held_by: str = field(default="", compare=False)  # who has done so for longer than the default retention


def standing(path: Path, catalog: Catalog) -> Status:
    """The status of the warehouse in this folder, with this catalog."""
    backlog = catalog.backlog()
    tables = []
    for relation in catalog.relations():
        main = catalog.latest_main(relation.id)
        segments, rows, _ = backlog.get(relation.id, (0, 0, 0))
        tables.append(TableStatus(relation.name, relation.kind, main.rows if main else 0, segments, rows))
    holders = Reports(catalog).holders(RETENTION)
    return Status(
        str(path), str(catalog.database), catalog.snapshot(), catalog.horizon(), tuple(tables), overview(catalog),
        holders, told_overdue(overdue(holders, RETENTION)),
    )  # fmt: skip
