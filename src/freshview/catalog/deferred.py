"""What the catalog knows of deferred views (DEFER §3, §5).

A deferred view stands at two places. Up to its frontier the log has been propagated: what is stored there is
(MV ∸ ∇MV) ⊎ ΔMV. It shows an earlier state, MV, as of its last refresh. The view's segments in between are the
differential tables ∇MV and ΔMV; commits beyond the frontier are the log. To apply the differentials is to move what is
shown to the frontier: one row of the catalog changes, however many rows of the view do. That is all the time for
which a reader can be kept waiting.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import sqlalchemy as sa

from freshview.catalog import tables as t
from freshview.catalog.frontiers import MAINTAIN, Job, changes_after, record
from freshview.catalog.reader import readable_csn
from freshview.catalog.records import Deferral, Relation, RelationState, Segment, segment_values
from freshview.catalog.views import READERS, ViewCatalog
from freshview.catalog.writer import checkpoint_lease
from freshview.errors import InvalidStatement

APPLIED = "refresh"  # jobs that moved what is shown
COMPOSED = "composed"  # jobs whose versions were composed with later ones: no version ends there any more
_KEPT = 24 * 3600 * 1_000_000  # µs for which files that were composed stay for queries that have begun


@dataclass(frozen=True)
class DeferredCatalog:
    """The catalog's side of deferred views."""

    views: ViewCatalog

    def deferral(self, view: Relation) -> Deferral:
        """Where a deferred view stands."""
        with self.views.catalog.database.read() as c:
            return self._deferral(c, view)

    def all(self) -> dict[int, Deferral]:
        """Where all deferred views stand, by id."""
        with self.views.catalog.database.read() as c:
            return deferrals(c)

    def shown(self, view: Relation, csn: int | None = None) -> RelationState:
        """MV: what the view shows now, or showed when that was as of `csn`."""
        with self.views.catalog.database.read() as c:
            return self.views.catalog._state(c, view, self._deferral(c, view).shown if csn is None else csn)

    def _deferral(self, c: sa.Connection, view: Relation) -> Deferral:
        found = deferrals(c, view.id).get(view.id)
        if found is None:
            raise InvalidStatement(
                f"view {view.name}",
                "it is not deferred",
                "ALTER MATERIALIZED VIEW … SET TBLPROPERTIES ('maintenance'='deferred') makes it so.",
            )
        return found

    def age(self, view: Relation) -> timedelta:
        """How long ago the oldest commit was made that is not in what the view shows."""
        with self.views.catalog.database.read() as c:
            shown = self._deferral(c, view).shown
            oldest = c.execute(changes_after(view, shown, sa.func.min(t.commits.c.committed_at))).scalar()
            now = self.views.catalog.database.now(c)
            return timedelta(microseconds=max(now - oldest, 0)) if oldest is not None else timedelta(0)

    # -- moving --------------------------------------------------------------------------------------

    def show(self, view: Relation, at: int | None = None) -> Job:
        """Apply the differentials: the view shows all that was propagated. What the history tells of that.

        `at` is the time that counts as its refresh, now if left out.
        """
        catalog, begun = self.views.catalog, time.monotonic()
        with catalog.database.write() as c:
            before, now = self._deferral(c, view).shown, catalog.database.now(c)
            moved = t.frontiers.update().where(t.frontiers.c.view_id == view.id)
            c.execute(moved.values(shown=readable_csn(), refreshed_at=now if at is None else at))
            after = self._deferral(c, view).shown
            _, rows = _counted(c, view, before, after)
            job = Job(view.id, before, after, "shown", 0, 0, rows, time.monotonic() - begun, None, view.name)
            record(c, self.views.catalog.database.now(c), job, APPLIED)
            return job

    def propagated(self, view_id: int, at: int) -> None:
        """The log was propagated, all that was in it at a time."""
        with self.views.catalog.database.write() as c:
            c.execute(t.frontiers.update().where(t.frontiers.c.view_id == view_id).values(propagated_at=at))

    # -- differential tables -------------------------------------------------------------------------

    def differential(self, view: Relation) -> tuple[Deferral, list[Segment]]:
        """Where a view stands, and the segments of its differential tables, in order."""
        with self.views.catalog.database.read() as c:
            stand = self._deferral(c, view)
            return stand, self.views.catalog._segments(c, [view.id], stand.shown, stand.propagated)

    def composable(self, view: Relation, at_least: int, most_rows: int) -> tuple[Deferral, list[Segment]] | None:
        """Those of them that no checkpoint has folded into main yet; None if they are fewer or hold more rows.

        They are counted first: the background asks every few seconds, and their rows may be in them.
        """
        with self.views.catalog.database.read() as c:
            stand = self._deferral(c, view)
            floor = self._floor(c, view, stand)
            count, rows = _counted(c, view, floor, stand.propagated)
            if count < at_least or rows > most_rows:
                return None
            return stand, self.views.catalog._segments(c, [view.id], floor, stand.propagated)

    def _floor(self, c: sa.Connection, view: Relation, stand: Deferral) -> int:
        main = self.views.catalog._main(c, view.id, None)
        return max(stand.shown, main.csn if main is not None else -1)

    def compose(
        self, view: Relation, stand: Deferral, old: Sequence[Segment], new: Sequence[Segment], leases: Sequence[str]
    ) -> bool:
        """Put composed differentials in place of those they were composed from; False if that would be seen.

        Law: whoever reads the view where it can be read finds the same rows before and after. So nobody may be reading
        (a query may have chosen a version in between), no view may read this one (its next delta begins at one of
        those versions), and no checkpoint may be under way.
        """
        catalog = self.views.catalog
        with catalog.database.write() as c:
            catalog.database.lock_clock(c)
            catalog._check_leases(c, leases)
            if self._deferral(c, view) != stand or self._is_read(c, view):
                return False
            floor = self._floor(c, view, stand)
            if catalog._segments(c, [view.id], floor, stand.propagated) != list(old):
                return False
            end = old[-1].csn
            s, j = t.segments.c, t.jobs.c
            c.execute(t.segments.delete().where(s.relation_id == view.id, s.csn > floor, s.csn <= end))
            for seq, segment in enumerate(new, old[-1].seq + 1):  # another number: readers remember segments by theirs
                c.execute(t.segments.insert().values(**segment_values(segment, end, seq)))
            gone = sa.and_(j.relation_id == view.id, j.kind == MAINTAIN, j.to_csn > floor, j.to_csn <= end)
            c.execute(t.jobs.update().where(gone).values(kind=COMPOSED))
            if leases:
                c.execute(t.leases.delete().where(t.leases.c.id.in_(list(leases))))
            self._keep_files(c, view, old)
            return True

    def _is_read(self, c: sa.Connection, view: Relation) -> bool:
        s, l, now = t.snapshots.c, t.leases.c, self.views.catalog.database.now(c)  # noqa: E741
        readers = sa.select(s.id).where(s.purpose.in_((*READERS, "view")), s.expires_at >= now)
        at_work = sa.select(l.id).where(l.id == checkpoint_lease(view.id))
        if c.execute(readers).first() is not None or c.execute(at_work).first() is not None:
            return True
        return bool(self.views._dependents(c, view))

    def _keep_files(self, c: sa.Connection, view: Relation, old: Sequence[Segment]) -> None:
        """A lease of nobody's keeps files for queries that have begun and are not evaluated yet."""
        until = self.views.catalog.database.now(c) + _KEPT
        for folder in {f.path.split("/")[0] for segment in old for f in segment.files}:
            values = {"id": f"{COMPOSED}-{view.id}-{folder}", "owner": COMPOSED, "relation_id": view.id}
            c.execute(t.leases.insert().values(**values, path=folder, expires_at=until))


def _counted(c: sa.Connection, view: Relation, after: int, upto: int) -> tuple[int, int]:
    """How many segments a view has with after < csn ≤ upto, and how many rows they hold."""
    s = t.segments.c
    count = sa.select(sa.func.count(), sa.func.coalesce(sa.func.sum(s.rows), 0))
    segments, rows = c.execute(count.where(s.relation_id == view.id, s.csn > after, s.csn <= upto)).one()
    return int(segments), int(rows)


def deferrals(c: sa.Connection, view_id: int | None = None) -> dict[int, Deferral]:
    """Where deferred views stand, by id."""
    f = t.frontiers.c
    query = sa.select(f.view_id, f.shown, readable_csn(), f.propagated_at, f.refreshed_at).where(f.shown.is_not(None))
    if view_id is not None:
        query = query.where(f.view_id == view_id)
    return {row[0]: Deferral(*map(int, row[1:])) for row in c.execute(query)}
