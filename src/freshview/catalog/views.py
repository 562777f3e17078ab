"""What the catalog knows of views: definitions, frontiers, inputs, jobs.

A view's frontier is the truth about what it has seen. A maintenance commit is a compare-and-set on
(view, epoch, frontier): it writes the view's segment and the new frontier, or nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from freshview.catalog import tables as t
from freshview.catalog.records import Commit, Relation, Segment
from freshview.catalog.writer import Catalog, _segment_values
from freshview.errors import NotFound, WriteConflict
from freshview.relation.schema import Schema, check_relation_name


@dataclass(frozen=True)
class Job:
    """A finished maintenance job, as the history shows it."""

    view_id: int
    from_csn: int
    to_csn: int
    strategy: str
    tasks: int
    delta_rows: int
    view_rows: int
    seconds: float
    error: str | None = None
    view: str = ""


@dataclass(frozen=True)
class ViewCatalog:
    """The catalog's side of views."""

    catalog: Catalog

    def create(
        self,
        view_id: int,
        name: str,
        schema: Schema,
        properties: Mapping[str, str],
        sources: Sequence[Relation],
        bases: Sequence[int],
        segments: Sequence[Segment],
        leases: Sequence[str],
        csn: int,
        replaces: Relation | None = None,
    ) -> tuple[Relation, int]:
        """A view with its first rows, computed at `csn`, in one transaction, in place of another if there is one."""
        check_relation_name(name)
        catalog = self.catalog
        with catalog.database.write() as c:
            clock = catalog.database.lock_clock(c)
            catalog._check_leases(c, leases)
            for source in sources:
                catalog._check_unchanged(c, source)
            if replaces is not None:
                self._drop(c, replaces)
                clock = catalog._clock(c)
            created = clock.csn + 1
            view = Relation(view_id, name, "view", 1, 1, schema, created, None, dict(properties))
            catalog._insert_relation(c, view)
            catalog._ddl_commit(c, view_id, "create")
            c.execute(t.frontiers.insert().values(view_id=view_id, epoch=1, csn=csn, stmtsn=0))
            if bases:
                c.execute(t.inputs.insert(), [{"view_id": view_id, "relation_id": b} for b in sorted(set(bases))])
            for seq, segment in enumerate(segments):
                c.execute(t.segments.insert().values(**_segment_values(segment, csn, seq)))
            if leases:
                c.execute(t.leases.delete().where(t.leases.c.id.in_(list(leases))))
            return view, created

    def reserve_csn(self, view: Relation) -> int:
        """A commit of its own for a refresh that has no other to stand at."""
        with self.catalog.database.write() as c:
            self.catalog.database.lock_clock(c)
            return self.catalog._ddl_commit(c, view.id, "refresh")

    def frontier(self, view: Relation) -> int:
        """The CSN up to which a view is maintained."""
        with self.catalog.database.read() as c:
            csn = c.execute(sa.select(t.frontiers.c.csn).where(t.frontiers.c.view_id == view.id)).scalar()
        if csn is None:
            raise NotFound(f"view {view.name}", "it was dropped meanwhile", "See SHOW MATERIALIZED VIEWS.")
        return int(csn)

    def bases(self, view: Relation) -> list[int]:
        """Ids of the tables that a view reads, directly or through other views."""
        with self.catalog.database.read() as c:
            query = sa.select(t.inputs.c.relation_id).where(t.inputs.c.view_id == view.id)
            return list(c.execute(query).scalars())

    def commits_between(self, relation_ids: Sequence[int], after: int, upto: int) -> list[Commit]:
        """Commits that touched these relations with after < csn ≤ upto."""
        r = t.commits.c
        query = sa.select(t.commits).where(r.relation_id.in_(list(relation_ids)), r.csn > after, r.csn <= upto)
        with self.catalog.database.read() as c:
            return [Commit(**row._mapping) for row in c.execute(query.order_by(r.csn))]

    def apply(
        self, view: Relation, c0: int, c1: int, segments: Sequence[Segment], leases: Sequence[str], job: Job
    ) -> bool:
        """Show a job's result if the view is still where the job began; False if not."""
        catalog = self.catalog
        with catalog.database.write() as c:
            catalog._check_leases(c, leases)
            f = t.frontiers.c
            moved = c.execute(
                t.frontiers.update().where(f.view_id == view.id, f.epoch == view.epoch, f.csn == c0).values(csn=c1)
            )
            if moved.rowcount != 1:
                return False
            for seq, segment in enumerate(segments):
                c.execute(t.segments.insert().values(**_segment_values(segment, c1, seq)))
            if leases:
                c.execute(t.leases.delete().where(t.leases.c.id.in_(list(leases))))
            self._record(c, job)
            return True

    def record(self, job: Job) -> None:
        """Keep a failed job in the history."""
        with self.catalog.database.write() as c:
            self._record(c, job)

    def _record(self, c: sa.Connection, job: Job) -> None:
        now = self.catalog.database.now(c)
        report = {
            "strategy": job.strategy, "tasks": job.tasks, "delta_rows": job.delta_rows, "view_rows": job.view_rows,
            "seconds": job.seconds,
        }  # fmt: skip
        c.execute(
            t.jobs.insert().values(
                relation_id=job.view_id,
                kind="maintain",
                from_csn=job.from_csn,
                to_csn=job.to_csn,
                started_at=now - int(job.seconds * 1e6),
                finished_at=now,
                report=json.dumps(report),
                error=job.error,
            )
        )

    def history(self, view: Relation | None = None) -> list[Job]:
        """Past jobs, oldest first."""
        query = sa.select(t.jobs, t.relations.c.name).join_from(
            t.jobs, t.relations, t.relations.c.id == t.jobs.c.relation_id
        )
        if view is not None:
            query = query.where(t.jobs.c.relation_id == view.id)
        with self.catalog.database.read() as c:
            rows = c.execute(query.order_by(t.jobs.c.id)).all()
        return [
            Job(r.relation_id, r.from_csn, r.to_csn, **json.loads(r.report), error=r.error, view=r.name) for r in rows
        ]

    def dependents(self, relation: Relation) -> list[Relation]:
        """Views whose definition names this relation."""
        views = [r for r in self.catalog.relations() if r.kind == "view"]
        return [v for v in views if relation.id in (s["id"] for s in json.loads(v.properties["sources"]).values())]

    def drop(self, view: Relation) -> int:
        """Drop a view, with its frontier: it holds back nothing any more."""
        with self.catalog.database.write() as c:
            self.catalog.database.lock_clock(c)
            return self._drop(c, view)

    def _drop(self, c: sa.Connection, view: Relation) -> int:
        csn = self.catalog._ddl_commit(c, view.id, "drop")
        dropped = t.relations.update().where(t.relations.c.id == view.id, t.relations.c.dropped_csn.is_(None))
        if c.execute(dropped.values(dropped_csn=csn)).rowcount != 1:
            raise WriteConflict(f"view {view.name}", "was dropped meanwhile", "Nothing is left to do.")
        c.execute(t.frontiers.delete().where(t.frontiers.c.view_id == view.id))
        c.execute(t.inputs.delete().where(t.inputs.c.view_id == view.id))
        return csn

    def set_properties(self, view: Relation, properties: Mapping[str, str]) -> int:
        catalog = self.catalog
        with catalog.database.write() as c:
            catalog.database.lock_clock(c)
            csn = catalog._ddl_commit(c, view.id, "alter")
            merged = {**view.properties, **properties}
            c.execute(t.relations.update().where(t.relations.c.id == view.id).values(properties=json.dumps(merged)))
            return csn
