"""Foreground work of all processes, in the catalog: who is busy since when, and who waits for a job of which view.

A process writes a row when it becomes busy, and renews it about once a second while it stays busy; no query writes one.
A row that is not renewed expires, so a process that ends or dies is not taken to be busy.
"""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from freshview.catalog import tables as t
from freshview.catalog.writer import Catalog

LIFETIME = 2_500_000  # µs for which a row counts without being renewed
_STATEMENT = 0  # in place of a view's id: the process runs statements that need Spark


@dataclass(frozen=True)
class ForegroundWork:
    """What the processes of a warehouse do in the foreground."""

    busy: tuple[tuple[str, int], ...] = ()  # processes, and since when
    awaited: frozenset[int] = frozenset()  # ids of the views for whose jobs statements wait


@dataclass(frozen=True)
class ActivityCatalog:
    """Announces the foreground work of one process, and reads that of the others."""

    catalog: Catalog

    def busy(self) -> None:
        """Announce that this process runs statements that need Spark."""
        self._announce(_STATEMENT)

    def waits(self, view_id: int) -> None:
        """Announce that a statement of this process waits for a job of a view, which another process runs."""
        self._announce(view_id)

    def waited(self, view_id: int) -> None:
        """Take back that a statement waits."""
        a = t.activity.c
        with self.catalog.database.write(durable=False) as c:
            c.execute(t.activity.delete().where(a.owner == self.catalog.owner, a.view_id == view_id))

    def _announce(self, view_id: int) -> None:
        a, owner = t.activity.c, self.catalog.owner
        with self.catalog.database.write(durable=False) as c:
            now = self.catalog.database.now(c)
            c.execute(t.activity.delete().where(a.expires_at < now))
            mine = t.activity.update().where(a.owner == owner, a.view_id == view_id)
            if not c.execute(mine.values(expires_at=now + LIFETIME)).rowcount:
                values = {"owner": owner, "view_id": view_id, "since": now, "expires_at": now + LIFETIME}
                c.execute(t.activity.insert().values(**values))

    def of_others(self) -> ForegroundWork:
        """The foreground work of all other processes."""
        a = t.activity.c
        with self.catalog.database.read() as c:
            now = self.catalog.database.now(c)
            query = sa.select(a.owner, a.view_id, a.since).where(a.owner != self.catalog.owner, a.expires_at >= now)
            rows = c.execute(query.order_by(a.since, a.owner)).all()
        busy = tuple((row.owner, row.since) for row in rows if row.view_id == _STATEMENT)
        return ForegroundWork(busy, frozenset(row.view_id for row in rows if row.view_id != _STATEMENT))
