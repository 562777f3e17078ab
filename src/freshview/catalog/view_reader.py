"""What the catalog knows of views: frontiers, tasks, versions, jobs, sources and uses. Nothing is changed here."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from freshview.catalog import tables as t
from freshview.catalog.frontiers import (
    CHANGES,
    MAINTAIN,
    MAINTAINED,
    RESETS,
    Job,
    changed,
    frontier_of,
)
from freshview.catalog.lineage import lower_first, read_ids, rewriting_ids, source_ids
from freshview.catalog.records import Backlog, Frontier, Relation, RelationState, Task
from freshview.catalog.uses import UseHistory
from freshview.catalog.writer import Catalog
from freshview.errors import NotFound

READERS = ("transaction", "query")  # purposes of snapshots that may still read a view
JOB_PATH = "job"  # path of a lease on a view's next job; the lease claims no files

_COSTS = sa.select(t.frontiers.c.costs).where(t.frontiers.c.view_id == sa.bindparam("view"))
_INPUTS = sa.select(t.inputs.c.relation_id).where(t.inputs.c.view_id == sa.bindparam("view"))


@dataclass(frozen=True)
class ViewReader:
    """Reads what the catalog holds of views."""

    catalog: Catalog

    def frontier(self, view: Relation) -> int:
        """The CSN up to which a view is maintained and can be read."""
        return self.position(view).readable

    def position(self, view: Relation) -> Frontier:
        """The last commit that a view has seen, and its last statement if it has seen only a part."""
        with self.catalog.database.read() as c:
            return frontier_of(c, view)

    def stored(self, view: Relation, csn: int) -> RelationState:
        """The stored rows of a view at a CSN, which may lie before the commit that created the view."""
        with self.catalog.database.read() as c:
            return self.catalog.state_in(c, view, csn)

    def by_id(self, view_ids: Collection[int]) -> list[Relation]:
        """The views with these ids, lower ones first."""
        every = lower_first(self.catalog.relations()) if view_ids else []  # a commit without overlays reads nothing
        return [view for view in every if view.id in view_ids]

    def factors(self, view: Relation) -> dict[str, float]:
        """What was learnt of the costs of a view, by way."""
        with self.catalog.database.read() as c:
            known = c.execute(_COSTS, {"view": view.id}).scalar()
        return dict(json.loads(known or "{}"))

    def inputs(self, view: Relation) -> list[int]:
        """Ids of the tables and views that a view reads, directly or through other views."""
        with self.catalog.database.read() as c:
            return self._inputs(c, view)

    def _inputs(self, c: sa.Connection, view: Relation) -> list[int]:
        return list(c.execute(_INPUTS, {"view": view.id}).scalars())

    def pending(self, view: Relation, upto: int) -> tuple[Frontier, list[Task]]:
        """A view's frontier and its tasks up to a CSN, in commit order."""
        with self.catalog.database.read() as c:
            return frontier_of(c, view), _tasks(c.execute(_PENDING, {"view": view.id, "upto": upto}))

    def tasks(self) -> list[Task]:
        """All tasks of all views, in commit order."""
        with self.catalog.database.read() as c:
            return _tasks(c.execute(_ALL_PENDING))

    def backlogs(self) -> list[Backlog]:
        """The number, rows, oldest time, newest and oldest CSN of the tasks of each view that has any."""
        r, i, of = t.commits.c, t.inputs.c, sa.func
        tasks, rows, csns = of.count(r.csn.distinct()), of.sum(r.rows), (of.max(r.csn), of.min(r.csn))
        query = beyond_frontiers(i.view_id, tasks, rows, of.min(r.committed_at), *csns)
        with self.catalog.database.read() as c:
            return [Backlog(*map(int, row)) for row in c.execute(query.group_by(i.view_id).order_by(i.view_id))]

    def in_progress(self) -> set[int]:
        """Ids of the views on which a maintenance job runs now, in any process."""
        with self.catalog.database.read() as c:
            return set(c.execute(self._at_work(c)).scalars())

    def _at_work(self, c: sa.Connection) -> sa.Select[Any]:
        l, now = t.leases.c, self.catalog.database.now(c)  # noqa: E741
        return sa.select(l.relation_id).where(l.path == JOB_PATH, l.expires_at >= now)

    def snapshots(self, after: int, before: int) -> list[int]:
        """CSNs with after < csn < before that open transactions and queries may still read."""
        with self.catalog.database.read() as c:
            asked = {"after": after, "before": before, "now": self.catalog.database.now(c)}
            return sorted(set(c.execute(_SNAPSHOTS, asked).scalars()))

    def has_version(self, view: Relation, csn: int) -> bool:
        """Has a view a version at this very CSN?"""
        return self.stored_at(view, csn) == csn

    def stored_at(self, view: Relation, csn: int) -> int | None:
        """A CSN at which the stored rows are those of the view at `csn`, or None.

        A view has versions at the CSNs where its jobs began and ended. At a CSN between two versions the view equals
        a version if no commit between that version and the CSN changed what the view reads.
        """
        with self.catalog.database.read() as c:
            return self._stored_at(c, view, csn)

    def _stored_at(self, c: sa.Connection, view: Relation, csn: int) -> int | None:
        before, after = self._versions(c, view, csn)
        if before is not None and not changed(c, view, before, csn):
            return csn
        return after if after is not None and not changed(c, view, csn, after) else None

    def version(self, view: Relation, csn: int) -> RelationState | None:
        """The stored rows of a view at a CSN; None if they are not stored.

        Both are read in one transaction: once a reader has the state, its segments can be read even if they are
        composed, so a composition need not wait for readers.
        """
        with self.catalog.database.read() as c:
            at = self._stored_at(c, view, csn)
            return None if at is None else self.catalog.state_in(c, view, at)

    def next_version(self, view: Relation, csn: int) -> int | None:
        """The first version of a view at or after a CSN; None if the view's frontier lies before it."""
        with self.catalog.database.read() as c:
            return self._versions(c, view, csn)[1]

    def _versions(self, c: sa.Connection, view: Relation, csn: int) -> tuple[int | None, int | None]:
        """The nearest version at or before a CSN, and the nearest at or after it."""
        frontier = frontier_of(c, view).readable
        if frontier <= csn:
            return frontier, frontier if frontier == csn else None
        j = t.jobs.c
        mine = sa.and_(j.relation_id == view.id, j.error.is_(None), j.kind == MAINTAIN)
        ends = [sa.select(column.label("csn")).where(mine) for column in (j.from_csn, j.to_csn)]
        version = sa.union(*ends).subquery().c.csn
        before = c.execute(sa.select(sa.func.max(version)).where(version <= csn)).scalar()
        after = c.execute(sa.select(sa.func.min(version)).where(version >= csn)).scalar()
        return before, frontier if after is None else min(after, frontier)

    def is_eager(self, view: Relation) -> bool:
        """Whether commits maintain a view."""
        with self.catalog.database.read() as c:
            return bool(c.execute(sa.select(t.frontiers.c.eager).where(t.frontiers.c.view_id == view.id)).scalar())

    def history(self, view: Relation | None = None) -> list[Job]:
        """Past jobs, oldest first."""
        query = sa.select(t.jobs, t.relations.c.name).join_from(
            t.jobs, t.relations, t.relations.c.id == t.jobs.c.relation_id
        )
        if view is not None:
            query = query.where(t.jobs.c.relation_id == view.id)
        with self.catalog.database.read() as c:
            rows = c.execute(query.order_by(t.jobs.c.id)).all()
        return [_job(row) for row in rows]

    def job_times(self, beyond: int) -> list[tuple[int, int]]:
        """When the jobs to CSNs beyond one ran, done or not: from and to, on the catalog's clock."""
        j = t.jobs.c
        with self.catalog.database.read() as c:
            rows = c.execute(sa.select(j.started_at, j.finished_at).where(j.to_csn > beyond).order_by(j.id)).all()
        return [(row.started_at, row.finished_at) for row in rows]

    def finished(self, view: Relation, most: int) -> list[Job]:
        """The newest jobs of a view that were done, newest first."""
        j = t.jobs.c
        query = sa.select(t.jobs, sa.literal(view.name).label("name")).where(
            j.relation_id == view.id, j.kind.in_(MAINTAINED), j.error.is_(None)
        )
        with self.catalog.database.read() as c:
            return [_job(row) for row in c.execute(query.order_by(j.id.desc()).limit(most))]

    def dependents(self, relation: Relation) -> list[Relation]:
        """Views whose definition names this relation, by name."""
        with self.catalog.database.read() as c:
            return self.dependents_in(c, relation)

    def dependents_in(self, c: sa.Connection, relation: Relation) -> list[Relation]:
        """Views whose definition names a relation, by name, in a transaction that the caller holds."""
        return [r for r in self.catalog.relations_in(c) if relation.id in source_ids(r).values()]

    def above(self, view: Relation) -> list[Relation]:
        """All views that read this one, directly or through others, lower ones first."""
        found = [view]
        for other in lower_first(self.catalog.relations()):
            if {r.id for r in found} & read_ids(other):
                found.append(other)
        return found[1:]

    def sources(self, view: Relation) -> dict[str, Relation]:
        """The relations that a view's definition names, by the names used there."""
        named = source_ids(view)
        found = self.catalog.relations_by_id(named.values())
        if gone := [name for name, id_ in named.items() if id_ not in found]:
            raise NotFound(f"view {view.name}", f"its source {gone[0]} is gone", "Drop the view.")
        return {name: found[id_] for name, id_ in named.items()}

    def rewriting_sources(self, view: Relation) -> list[Relation]:
        """The relations that a view's rewriting reads and its definition does not; those that are there."""
        ids = sorted({*rewriting_ids(view).values()} - {*source_ids(view).values()})
        found = self.catalog.relations_by_id(ids) if ids else {}
        return [found[id_] for id_ in ids if id_ in found]

    def uses(self) -> dict[int, UseHistory]:
        """How queries used the views, by view id."""
        with self.catalog.database.read() as c:
            return self._uses(c)

    def _uses(self, c: sa.Connection) -> dict[int, UseHistory]:
        return {r.view_id: UseHistory(r.uses, r.last_at, r.mean_gap) for r in c.execute(sa.select(t.uses))}


def _task(view_id: int, csn: int, rows: Sequence[Any]) -> Task:
    """The task of a view for a commit, from the rows of the commit in the tables that the view reads."""
    first, tables = rows[0], tuple(r.relation_id for r in rows)
    reset = any(r.kind in RESETS for r in rows)
    return Task(view_id, first.txsn, csn, first.stmtsn, first.committed_at, tables, sum(r.rows for r in rows), reset)


def _job(row: sa.Row[Any]) -> Job:
    ends = {"view_id": row.relation_id, "from_csn": row.from_csn, "to_csn": row.to_csn}
    return Job(**ends, **json.loads(row.report), error=row.error, view=row.name)


def _tasks(rows: Iterable[sa.Row[Any]]) -> list[Task]:
    """The tasks of views, from rows of `_pending`."""
    found: dict[tuple[int, int], list[Any]] = {}
    for row in rows:
        found.setdefault((row.csn, row.view_id), []).append(row)
    return [_task(view_id, csn, parts) for (csn, view_id), parts in found.items()]


def beyond_frontiers(*columns: Any) -> sa.Select[Any]:
    """THE definition of what is pending: commits beyond a view's frontier to what the view reads."""
    r, f, i = t.commits.c, t.frontiers.c, t.inputs.c
    partial = sa.and_(f.stmtsn > 0, r.csn == f.csn)
    return (
        sa.select(*columns)
        .join_from(t.inputs, t.frontiers, f.view_id == i.view_id)
        .join(t.commits, r.relation_id == i.relation_id)
        .where(sa.or_(r.csn > f.csn, partial), r.kind.in_(CHANGES))
    )


def _pending() -> sa.Select[Any]:
    """The query for the commits that are pending, in commit order: a row per view and table."""
    r, f, i = t.commits.c, t.frontiers.c, t.inputs.c
    stmtsn = sa.case((r.csn == f.csn, f.stmtsn), else_=0).label("stmtsn")
    query = beyond_frontiers(i.view_id, r.relation_id, r.txsn, r.csn, stmtsn, r.committed_at, r.rows, r.kind)
    return query.order_by(r.csn, i.view_id, r.relation_id)


# Built once: every fresh answer asks them.
_ALL_PENDING = _pending()
_PENDING = _ALL_PENDING.where(
    t.inputs.c.view_id == sa.bindparam("view"), t.commits.c.csn <= sa.bindparam("upto", type_=sa.BigInteger)
)
_SNAPSHOTS = sa.select(t.snapshots.c.csn).where(
    t.snapshots.c.purpose.in_(READERS),
    t.snapshots.c.csn > sa.bindparam("after", type_=sa.BigInteger),
    t.snapshots.c.csn < sa.bindparam("before", type_=sa.BigInteger),
    t.snapshots.c.expires_at >= sa.bindparam("now", type_=sa.BigInteger),
)
