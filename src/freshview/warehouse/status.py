"""The status of a warehouse: its tables, its views and what keeps old versions, from the catalog alone."""

from __future__ import annotations

from dataclasses import astuple, dataclass, field
from pathlib import Path

from freshview.catalog.records import REMOTE
from freshview.catalog.reports import Amount, Holder, Reports, overdue, overdue_sentence
from freshview.catalog.writer import Catalog
from freshview.display import Display, Displayed, Grid
from freshview.flows.remote_states import RemoteState, remote_states
from freshview.flows.states import FlowState, flow_states
from freshview.storage.vacuum import RETENTION
from freshview.warehouse.overview import ViewStatus, condition_text, mode_text, overview


@dataclass(frozen=True)
class TableStatus:
    """The stored rows of one table or view in a status report: its last checkpoint, and the changes since."""

    name: str
    kind: str  # "table" | "external" | "view" | "dimension view"
    rows_in_main: int  # rows of the last checkpoint
    pending_segments: int  # segments since the checkpoint, one per commit
    pending_rows: int  # delta rows of those segments


@dataclass(frozen=True, repr=False)
class Status(Displayed):
    """The status of a warehouse. Two are equal if nothing was committed in between, however much time has passed.

    A status prints as text; a notebook renders it as tables.

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
    tables: tuple[TableStatus, ...]  # the stored rows of tables and of views
    views: tuple[ViewStatus, ...] = ()
    holders: tuple[Holder, ...] = field(default=(), compare=False)  # what keeps old versions, the oldest first
    held_by: str = field(default="", compare=False)  # what has kept them for longer than the default retention
    flows: tuple[FlowState, ...] = ()
    remote_tables: tuple[RemoteState, ...] = ()

    def _display(self) -> Display:
        of_tables = ("table", "kind", "rows in main", "segments", "their rows")
        tables = Grid(of_tables, [astuple(t) for t in self.tables if t.kind != "view"], "tables")
        of_views = ("view", "mode", "frontier", "tasks", "rows", "status", "reading", "advice")
        views = Grid(of_views, list(map(_cells, self.views)), "views")
        of_holders = ("held by", "from CSN", "since", "segments", "rows", "bytes", "checkpoints")
        held = Grid(of_holders, [_held(h) for h in self.holders if h.keeps != Amount()], "held back from vacuum")
        of_flows = ("flow", "target", "source", "type", "poll", "polled", "quarantined", "status")
        flows = Grid(of_flows, [astuple(f) for f in self.flows], "flows")
        of_remote = ("remote table", "source", "capture", "poll", "polled", "status")
        remote = Grid(of_remote, [astuple(t) for t in self.remote_tables], "remote tables")
        headline = f"warehouse {self.path}: last commit CSN {self.csn}, readable since CSN {self.horizon}"
        grids = [t for t in (tables, views, flows, remote, held) if t.rows]
        return Display(headline, grids, [self.held_by] if self.held_by else [])


def _cells(v: ViewStatus) -> tuple[object, ...]:
    pending = v.pending_tasks, v.pending_rows
    return (v.name, mode_text(v), v.frontier, *pending, condition_text(v), f"{v.reading:.60}", v.advice)


def _held(holder: Holder) -> tuple[object, ...]:
    name = holder.name if holder.kind == "retention" else f"{holder.kind} {holder.name}"
    return (name, holder.csn, f"{holder.since:%Y-%m-%d %H:%M:%S} UTC", *astuple(holder.keeps))


def status_of(path: Path, catalog: Catalog) -> Status:
    """Return the status of the warehouse in a folder, with its catalog."""
    backlog = catalog.backlog()
    tables = []
    for relation in catalog.relations():
        if relation.kind == REMOTE:
            continue  # no rows of it are stored
        main = catalog.latest_main(relation.id)
        segments, rows, _ = backlog.get(relation.id, (0, 0, 0))
        tables.append(TableStatus(relation.name, relation.kind, main.rows if main else 0, segments, rows))
    holders = Reports(catalog).holders(RETENTION)
    csn, horizon, views = catalog.snapshot(), catalog.horizon(), overview(catalog)
    held_by = overdue_sentence(overdue(holders, RETENTION))
    captured = flow_states(catalog), remote_states(catalog)
    return Status(str(path), str(catalog.database), csn, horizon, tuple(tables), views, holders, held_by, *captured)
