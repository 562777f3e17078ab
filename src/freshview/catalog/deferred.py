"""What the catalog knows of deferred views (DEFER §3, §5).

A deferred view stands at two places. Up to its frontier the log has been propagated: what is stored there is
(MV ∸ ∇MV) ⊎ ΔMV. It shows an earlier state, MV, as of its last refresh. The view's segments in between are the
differential tables ∇MV and ΔMV; commits beyond the frontier are the log. To apply the differentials is to move what is
shown to the frontier: one row of the catalog changes, however many rows of the view do. That is all the time for
which a reader can be kept waiting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from freshview.catalog import tables as t
from freshview.catalog.reader import _segment, readable_csn
from freshview.catalog.records import Deferral, Relation, RelationState, Segment
from freshview.catalog.views import CHANGES, MAINTAIN, READERS, Job, ViewCatalog, source_ids
from freshview.catalog.writer import _segment_values
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

    def unseen_since(self, view: Relation) -> int | None:
        """When the oldest commit was made that is not in what the view shows; None if there is none."""
        r, i = t.commits.c, t.inputs.c
        with self.views.catalog.database.read() as c:
            query = (
                sa.select(sa.func.min(r.committed_at))
                .join_from(t.inputs, t.commits, r.relation_id == i.relation_id)
                .where(i.view_id == view.id, r.kind.in_(CHANGES), r.csn > self._deferral(c, view).shown)
            )
            return c.execute(query).scalar()

    # -- moving --------------------------------------------------------------------------------------

    def show(self, view: Relation, at: int | None = None) -> tuple[Deferral, int]:
        """Apply the differentials: the view shows all that was propagated. Where it stood, and where it stands now.

        `at` is the time that counts as its refresh, now if left out.
        """
        catalog = self.views.catalog
        f = t.frontiers.c
        with catalog.database.write() as c:
            before, now = self._deferral(c, view), catalog.database.now(c)
            moved = t.frontiers.update().where(f.view_id == view.id)
            c.execute(moved.values(shown=readable_csn(), refreshed_at=now if at is None else at))
            after = self._deferral(c, view).shown
            job = Job(view.id, before.shown, after, "shown", 0, 0, 0, 0.0, None, view.name)
            self.views._record(c, job, APPLIED)
            return before, after

    def propagated(self, view_id: int, at: int) -> None:
        """The log was propagated, all that was in it at a time."""
        with self.views.catalog.database.write() as c:
            c.execute(t.frontiers.update().where(t.frontiers.c.view_id == view_id).values(propagated_at=at))

    # -- differential tables -------------------------------------------------------------------------

    def differential(self, view: Relation) -> tuple[Deferral, list[Segment]]:
        """Where a view stands, and the segments of its differential tables, in order."""
        with self.views.catalog.database.read() as c:
            stand = self._deferral(c, view)
            return stand, self._between(c, view, stand.shown, stand.propagated)

    def waiting_rows(self, view: Relation) -> int:
        """How many rows of the differential tables wait to be shown."""
        s, f = t.segments.c, t.frontiers.c
        with self.views.catalog.database.read() as c:
            query = (
                sa.select(sa.func.sum(s.rows))
                .join_from(t.frontiers, t.segments, s.relation_id == f.view_id)
                .where(f.view_id == view.id, s.csn > f.shown, s.csn <= readable_csn())
            )
            return int(c.execute(query).scalar() or 0)

    def composable(self, view: Relation) -> tuple[Deferral, list[Segment]]:
        """Those of them that no checkpoint has folded into main yet."""
        with self.views.catalog.database.read() as c:
            stand = self._deferral(c, view)
            return stand, self._between(c, view, self._floor(c, view, stand), stand.propagated)

    def _between(self, c: sa.Connection, view: Relation, after: int, upto: int) -> list[Segment]:
        s = t.segments.c
        query = sa.select(t.segments).where(s.relation_id == view.id, s.csn > after, s.csn <= upto)
        return [_segment(row) for row in c.execute(query.order_by(s.csn, s.seq))]

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
            if self._between(c, view, floor, stand.propagated) != list(old):
                return False
            end = old[-1].csn
            s, j = t.segments.c, t.jobs.c
            c.execute(t.segments.delete().where(s.relation_id == view.id, s.csn > floor, s.csn <= end))
            for seq, segment in enumerate(new, old[-1].seq + 1):  # another number: readers remember segments by theirs
                c.execute(t.segments.insert().values(**_segment_values(segment, end, seq)))
            gone = sa.and_(j.relation_id == view.id, j.kind == MAINTAIN, j.to_csn > floor, j.to_csn <= end)
            c.execute(t.jobs.update().where(gone).values(kind=COMPOSED))
            if leases:
                c.execute(t.leases.delete().where(t.leases.c.id.in_(list(leases))))
            self._keep_files(c, view, old)
            return True

    def _is_read(self, c: sa.Connection, view: Relation) -> bool:
        s, l, now = t.snapshots.c, t.leases.c, self.views.catalog.database.now(c)  # noqa: E741
        readers = sa.select(s.id).where(s.purpose.in_((*READERS, "view")), s.expires_at >= now)
        at_work = sa.select(l.id).where(l.id == f"checkpoint-{view.id}")
        if c.execute(readers).first() is not None or c.execute(at_work).first() is not None:
            return True
        rows = c.execute(self.views.catalog._visible(None).where(t.relations.c.kind == "view")).all()
        return any(view.id in source_ids(self.views.catalog._relation(c, row)).values() for row in rows)

    def _keep_files(self, c: sa.Connection, view: Relation, old: Sequence[Segment]) -> None:
        """A lease of nobody's keeps files for queries that have begun and are not evaluated yet."""
        until = self.views.catalog.database.now(c) + _KEPT
        for folder in {f.path.split("/")[0] for segment in old for f in segment.files}:
            values = {"id": f"{COMPOSED}-{view.id}-{folder}", "owner": COMPOSED, "relation_id": view.id}
            c.execute(t.leases.insert().values(**values, path=folder, expires_at=until))


def deferrals(c: sa.Connection, view_id: int | None = None) -> dict[int, Deferral]:
    """Where deferred views stand, by id."""
    f = t.frontiers.c
    query = sa.select(f.view_id, f.shown, readable_csn(), f.propagated_at, f.refreshed_at).where(f.shown.is_not(None))
    if view_id is not None:
        query = query.where(f.view_id == view_id)
    return {row[0]: Deferral(*map(int, row[1:])) for row in c.execute(query)}
