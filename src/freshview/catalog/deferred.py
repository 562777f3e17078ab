"""Deferred views in the catalog (DEFER §3, §5).

A deferred view has two states. Up to its frontier the log has been propagated: the rows stored there are
(MV ∸ ∇MV) ⊎ ΔMV. The view shows an earlier state, MV, as of its last refresh. The view's segments in between are the
differential tables ∇MV and ΔMV; commits beyond the frontier are the log. Applying the differentials moves the shown
CSN to the frontier: one row of the catalog changes, however many rows of the view do. Readers wait for that alone.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import sqlalchemy as sa

from freshview.catalog import tables as t
from freshview.catalog.commits import check_leases
from freshview.catalog.frontiers import COMPOSED, MAINTAIN, Job, changes_after, end_leases, record
from freshview.catalog.lineage import read_ids
from freshview.catalog.records import Deferral, Relation, RelationState, Segment, segment_values
from freshview.catalog.selections import APPLIED, newest_main, readable_csn, segments_of
from freshview.catalog.views import ViewCatalog
from freshview.catalog.writer import checkpoint_lease
from freshview.errors import InvalidStatement

_KEPT = 24 * 3600 * 1_000_000  # µs for which the files of composed segments stay for queries that have begun


@dataclass(frozen=True)
class DeferredCatalog:
    """Reads and changes what the catalog holds of deferred views."""

    views: ViewCatalog

    def deferral(self, view: Relation) -> Deferral:
        """The shown and the propagated CSN of a deferred view; InvalidStatement if the view is not deferred."""
        with self.views.catalog.database.read() as c:
            return self._deferral(c, view)

    def all(self) -> dict[int, Deferral]:
        """The shown and the propagated CSN of all deferred views, by view id."""
        with self.views.catalog.database.read() as c:
            return deferrals(c)

    def shown(self, view: Relation, csn: int | None = None) -> RelationState:
        """MV: the state that the view shows now, or showed when its shown CSN was `csn`."""
        with self.views.catalog.database.read() as c:
            return self.views.catalog.state_in(c, view, self._deferral(c, view).shown if csn is None else csn)

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
        """The age of the oldest commit that is not in the state that the view shows; zero if there is none."""
        with self.views.catalog.database.read() as c:
            shown = self._deferral(c, view).shown
            oldest = c.execute(changes_after(view, shown, sa.func.min(t.commits.c.committed_at))).scalar()
            now = self.views.catalog.database.now(c)
            return timedelta(microseconds=max(now - oldest, 0)) if oldest is not None else timedelta(0)

    # -- moving --------------------------------------------------------------------------------------

    def show(self, view: Relation, at: int | None = None) -> Job:
        """Apply the differentials, so that the view shows all that was propagated; return the job for the history.

        `at` is the time that counts as the view's refresh (default: now).
        """
        catalog, begun = self.views.catalog, time.monotonic()
        with catalog.database.write() as c:
            start, now = self._deferral(c, view).shown, catalog.database.now(c)
            moved = t.frontiers.update().where(t.frontiers.c.view_id == view.id)
            c.execute(moved.values(shown=readable_csn(), refreshed_at=now if at is None else at))
            end, name = self._deferral(c, view).shown, view.name
            _, rows = _counted(c, view, start, end)
            took = time.monotonic() - begun
            job = Job(
                view_id=view.id, view=name, from_csn=start, to_csn=end, strategy="shown", view_rows=rows, seconds=took
            )
            record(c, catalog.database.now(c), job, APPLIED)
            return job

    def propagated(self, view_id: int, at: int) -> None:
        """Record that the log was propagated, with all commits that were in it at a time."""
        with self.views.catalog.database.write() as c:
            c.execute(t.frontiers.update().where(t.frontiers.c.view_id == view_id).values(propagated_at=at))

    # -- differential tables -------------------------------------------------------------------------

    def differential(self, view: Relation) -> tuple[Deferral, list[Segment]]:
        """The deferral of a view, and the segments of its differential tables, in order."""
        with self.views.catalog.database.read() as c:
            deferral = self._deferral(c, view)
            return deferral, segments_of(c, [view.id], deferral.shown, deferral.propagated)

    def composable(self, view: Relation, at_least: int, most_rows: int) -> tuple[Deferral, list[Segment]] | None:
        """The deferral of a view, and the segments of its differentials that no checkpoint has folded into main yet.

        None if there are fewer than `at_least`, or they hold more than `most_rows`. Segments are counted before they
        are read: the background asks every few seconds, and inline segments carry their rows.
        """
        with self.views.catalog.database.read() as c:
            deferral = self._deferral(c, view)
            floor = self._floor(c, view, deferral)
            count, rows = _counted(c, view, floor, deferral.propagated)
            if count < at_least or rows > most_rows:
                return None
            return deferral, segments_of(c, [view.id], floor, deferral.propagated)

    def _floor(self, c: sa.Connection, view: Relation, deferral: Deferral) -> int:
        main = newest_main(c, view.id)
        return max(deferral.shown, main.csn if main is not None else -1)

    def compose(
        self, view: Relation, deferral: Deferral, old: Sequence[Segment], new: Sequence[Segment], leases: Sequence[str]
    ) -> bool:
        """Replace differentials by the ones composed from them; False, with nothing changed, if a reader could notice.

        Law: a reader of the view finds the same rows before and after, wherever the view can be read. A query that has
        its version keeps it (`ViewCatalog.version`). But no view may read this one, or be about to (its next delta
        begins at one of the versions in between), and no checkpoint may be under way.
        """
        catalog = self.views.catalog
        with catalog.database.write() as c:
            catalog.database.lock_clock(c)
            check_leases(c, leases)
            if self._deferral(c, view) != deferral or self._is_read(c, view):
                return False
            floor = self._floor(c, view, deferral)
            if segments_of(c, [view.id], floor, deferral.propagated) != list(old):
                return False
            end = old[-1].csn
            s, j = t.segments.c, t.jobs.c
            c.execute(t.segments.delete().where(s.relation_id == view.id, s.csn > floor, s.csn <= end))
            for seq, segment in enumerate(new, old[-1].seq + 1):  # new numbers: readers cache segments by number
                c.execute(t.segments.insert().values(**segment_values(segment, end, seq)))
            gone = sa.and_(j.relation_id == view.id, j.kind == MAINTAIN, j.to_csn > floor, j.to_csn <= end)
            c.execute(t.jobs.update().where(gone).values(kind=COMPOSED))
            end_leases(c, leases)
            self._keep_files(c, view, old)
            return True

    def _is_read(self, c: sa.Connection, view: Relation) -> bool:
        s, l, now = t.snapshots.c, t.leases.c, self.views.catalog.database.now(c)  # noqa: E741
        creating = sa.select(s.id).where(s.purpose == "view", s.expires_at >= now)
        at_work = sa.select(l.id).where(l.id == checkpoint_lease(view.id))
        if c.execute(creating).first() is not None or c.execute(at_work).first() is not None:
            return True
        return any(view.id in read_ids(other) for other in self.views.catalog.relations_in(c, kind="view"))

    def _keep_files(self, c: sa.Connection, view: Relation, old: Sequence[Segment]) -> None:
        """Lease the files, in no process's name, for queries that have begun and are not evaluated yet."""
        until = self.views.catalog.database.now(c) + _KEPT
        for folder in {f.path.split("/")[0] for segment in old for f in segment.files}:
            values = {"id": f"{COMPOSED}-{view.id}-{folder}", "owner": COMPOSED, "relation_id": view.id}
            c.execute(t.leases.insert().values(**values, path=folder, expires_at=until))


def _counted(c: sa.Connection, view: Relation, after: int, upto: int) -> tuple[int, int]:
    """The number of a view's segments with after < csn ≤ upto, and of the rows in them."""
    s = t.segments.c
    count = sa.select(sa.func.count(), sa.func.coalesce(sa.func.sum(s.rows), 0))
    segments, rows = c.execute(count.where(s.relation_id == view.id, s.csn > after, s.csn <= upto)).one()
    return int(segments), int(rows)


def deferrals(c: sa.Connection, view_id: int | None = None) -> dict[int, Deferral]:
    """The deferrals of all deferred views, or of one, by view id."""
    f = t.frontiers.c
    query = sa.select(f.view_id, f.shown, readable_csn(), f.propagated_at, f.refreshed_at).where(f.shown.is_not(None))
    if view_id is not None:
        query = query.where(f.view_id == view_id)
    return {row[0]: Deferral(*map(int, row[1:])) for row in c.execute(query)}
