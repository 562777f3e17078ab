"""Where a warehouse stands: its tables, its views and who holds back old versions, from the catalog alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from freshview.catalog.reports import Holder, Reports, overdue, told_overdue
from freshview.catalog.writer import Catalog
from freshview.display import Shown, Table, Told
from freshview.storage.vacuum import RETENTION
from freshview.warehouse.overview import ViewStatus, overview, told_condition, told_mode


@dataclass(frozen=True)
class TableStatus:
    """What is stored of one table or view, in a status report: its checkpoint, and the changes since."""

    name: str
    kind: str  # "table" | "external" | "view"
    rows_in_main: int  # rows of the last checkpoint
    pending_segments: int  # changes since, one per commit
    pending_rows: int  # rows of those changes


@dataclass(frozen=True, repr=False)
class Status(Shown):
    """Where a warehouse stands. Two are equal if nothing was committed in between, whatever the time.

    It prints as a report, and a notebook shows it as tables.

    >>> wh = freshview.connect(folder)
    >>> csn = wh.sql("CREATE TABLE orders (id INT PRIMARY KEY, amount INT)").csn
    >>> rows = wh.sql("INSERT INTO orders VALUES (1, 10), (2, 20)").rows
    >>> print(wh.status())
    warehouse ...: last commit CSN 2, readable since CSN 0
    tables:
      table   kind   rows in main  segments  their rows
      orders  table             0         1           2
    >>> wh.status() == wh.status()
    True
    """

    path: str  # of the folder
    catalog: str  # the database's URL, without a password
    csn: int  # of the last commit
    horizon: int  # the oldest CSN that can still be read
    tables: tuple[TableStatus, ...]  # views too: what is stored of them
    views: tuple[ViewStatus, ...] = ()
    holders: tuple[Holder, ...] = field(default=(), compare=False)  # who keeps old versions, the oldest first
    held_by: str = field(default="", compare=False)  # who has done so for longer than the default retention

    def _told(self) -> Told:
        stored = [t for t in self.tables if t.kind != "view"]
        tables = Table(
            ("table", "kind", "rows in main", "segments", "their rows"),
            [(t.name, t.kind, t.rows_in_main, t.pending_segments, t.pending_rows) for t in stored], "tables",
        )  # fmt: skip
        views = Table(
            ("view", "mode", "frontier", "tasks", "rows", "status", "reading", "advice"),
            [
                (
                    v.name, told_mode(v), v.frontier, v.pending_tasks, v.pending_rows, told_condition(v),
                    f"{v.reading:.60}", v.advice,
                )
                for v in self.views
            ],
            "views",
        )  # fmt: skip
        headline = f"warehouse {self.path}: last commit CSN {self.csn}, readable since CSN {self.horizon}"
        return Told(headline, [t for t in (tables, views) if t.rows], [self.held_by] if self.held_by else [])


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
