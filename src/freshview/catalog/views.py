"""What the catalog knows of views: definitions, frontiers, inputs, jobs.

A view's frontier is the truth about what it has seen. A maintenance commit is a compare-and-set on
(view, epoch, frontier): it writes the view's segment and the new frontier, or nothing.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from graphlib import TopologicalSorter
from typing import Any

import sqlalchemy as sa

from freshview.catalog import tables as t
from freshview.catalog.frontiers import (
    CHANGES,
    MAINTAIN,
    REFRESH,
    RESETS,
    Job,
    ViewStep,
    changed,
    frontier_of,
    move,
    record,
)
from freshview.catalog.reader import readable_csn
from freshview.catalog.records import Backlog, Frontier, Relation, RelationState, Segment, Task, segment_values
from freshview.catalog.writer import Catalog
from freshview.errors import NotFound, WriteConflict
from freshview.relation.schema import Schema, check_relation_name

READERS = ("transaction", "query")  # snapshots that may still ask for a view
_RECENT = 0.3  # how much the newest gap between uses counts


class _Moved(Exception):
    """A view is no longer where a job began."""


@dataclass(frozen=True)
class Use:
    """How a view has been used by queries."""

    uses: int
    last_at: int
    mean_gap: int


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
        facts: Mapping[str, str],
        sources: Sequence[Relation],
        segments: Sequence[Segment],
        leases: Sequence[str],
        csn: int,
        replaces: Relation | None = None,
        *,
        eager: bool = False,
        deferred: bool = False,
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
            view = Relation(view_id, name, "view", 1, 1, schema, created, None, dict(properties), dict(facts))
            catalog._insert_relation(c, view)
            catalog._ddl_commit(c, view_id, "create")
            c.execute(t.frontiers.insert().values(view_id=view_id, epoch=1, csn=csn, stmtsn=0, eager=int(eager)))
            self._defer(c, view_id, deferred)
            inputs = {i for source in sources for i in (source.id, *self._inputs(c, source))}
            if inputs:
                c.execute(t.inputs.insert(), [{"view_id": view_id, "relation_id": i} for i in sorted(inputs)])
            for seq, segment in enumerate(segments):
                c.execute(t.segments.insert().values(**segment_values(segment, csn, seq)))
            if leases:
                c.execute(t.leases.delete().where(t.leases.c.id.in_(list(leases))))
            return view, created

    def reserve_csn(self, view: Relation) -> int:
        """A commit of its own for a refresh that has no other to stand at."""
        with self.catalog.database.write() as c:
            self.catalog.database.lock_clock(c)
            return self.catalog._ddl_commit(c, view.id, "reserve")

    def frontier(self, view: Relation) -> int:
        """The CSN up to which a view is maintained and can be read."""
        return self.position(view).readable

    def position(self, view: Relation) -> Frontier:
        """What a view has seen, to the statement."""
        with self.catalog.database.read() as c:
            return frontier_of(c, view)

    def stored(self, view: Relation, csn: int) -> RelationState:
        """What is stored at a CSN; the first rows are older than the commit that created the view."""
        with self.catalog.database.read() as c:
            return self.catalog._state(c, view, csn)

    def by_id(self, view_ids: Collection[int]) -> list[Relation]:
        """Views, lower ones first."""
        every = lower_first(self.catalog.relations()) if view_ids else []  # a commit without overlays asks nothing
        return [view for view in every if view.id in view_ids]

    def inputs(self, view: Relation) -> list[int]:
        """Ids of the tables and views that a view reads, directly or through other views."""
        with self.catalog.database.read() as c:
            return self._inputs(c, view)

    def _inputs(self, c: sa.Connection, view: Relation) -> list[int]:
        query = sa.select(t.inputs.c.relation_id).where(t.inputs.c.view_id == view.id)
        return list(c.execute(query).scalars())

    # -- tasks -------------------------------------------------------------------------------------

    def pending(self, view: Relation, upto: int) -> tuple[Frontier, list[Task]]:
        """A view's frontier and its tasks up to a CSN, in commit order."""
        with self.catalog.database.read() as c:
            return frontier_of(c, view), self._tasks(c, t.inputs.c.view_id == view.id, t.commits.c.csn <= upto)

    def tasks(self) -> list[Task]:
        """All tasks of all views, in commit order."""
        with self.catalog.database.read() as c:
            return self._tasks(c)

    def _tasks(self, c: sa.Connection, *conditions: sa.ColumnElement[bool]) -> list[Task]:
        r, f, i = t.commits.c, t.frontiers.c, t.inputs.c
        stmtsn = sa.case((r.csn == f.csn, f.stmtsn), else_=0).label("stmtsn")
        query = _beyond_frontiers(i.view_id, r.relation_id, r.txsn, r.csn, stmtsn, r.committed_at, r.rows, r.kind)
        found: dict[tuple[int, int], list[Any]] = {}
        for row in c.execute(query.where(*conditions).order_by(r.csn, i.view_id, r.relation_id)):
            found.setdefault((row.csn, row.view_id), []).append(row)
        return [
            Task(
                view_id, rows[0].txsn, csn, rows[0].stmtsn, rows[0].committed_at, tuple(r.relation_id for r in rows),
                sum(r.rows for r in rows), any(r.kind in RESETS for r in rows),
            )
            for (csn, view_id), rows in found.items()
        ]  # fmt: skip

    def backlogs(self) -> list[Backlog]:
        """Of each view that has tasks: how many, how old, how large."""
        r, i = t.commits.c, t.inputs.c
        query = _beyond_frontiers(
            i.view_id, sa.func.count(r.csn.distinct()), sa.func.sum(r.rows), sa.func.min(r.committed_at),
            sa.func.max(r.csn),
        )  # fmt: skip
        with self.catalog.database.read() as c:
            return [Backlog(*map(int, row)) for row in c.execute(query.group_by(i.view_id).order_by(i.view_id))]

    def in_progress(self) -> set[int]:
        """Ids of the views that somebody is maintaining now."""
        with self.catalog.database.read() as c:
            return set(c.execute(self._at_work(c)).scalars())

    def _at_work(self, c: sa.Connection) -> sa.Select[Any]:
        l, now = t.leases.c, self.catalog.database.now(c)  # noqa: E741
        return sa.select(l.relation_id).where(l.path == JOB_PATH, l.expires_at >= now)

    def snapshots(self, after: int, before: int) -> list[int]:
        """CSNs between two that open transactions and queries may still read."""
        s = t.snapshots.c
        with self.catalog.database.read() as c:
            query = sa.select(s.csn).where(
                s.purpose.in_(READERS), s.csn > after, s.csn < before, s.expires_at >= self.catalog.database.now(c)
            )
            return sorted(set(c.execute(query).scalars()))

    def advance(self, csn: int) -> int:
        """Move views that have nothing to do up to a CSN: they need nothing older; how many moved.

        One that somebody is at stays where that job began.
        """
        f = t.frontiers.c
        waiting = _beyond_frontiers(t.inputs.c.view_id).where(t.commits.c.csn <= csn)
        with self.catalog.database.write(durable=False) as c:
            needed = [query.correlate(None) for query in (waiting, self._at_work(c))]
            idle = sa.and_(f.csn < csn, f.stmtsn == 0, *(f.view_id.not_in(query) for query in needed))
            return c.execute(t.frontiers.update().where(idle).values(csn=csn)).rowcount

    # -- versions ----------------------------------------------------------------------------------

    def stored_at(self, view: Relation, csn: int) -> int | None:
        """The CSN at which the stored rows are those of the view at `csn`; None if they never are.

        Versions of a view are where its jobs began and ended. Between two of them the view is the same as at one
        if no commit lies in between.
        """
        with self.catalog.database.read() as c:
            before, after = self._versions(c, view, csn)
            if before is not None and not changed(c, view, before, csn):
                return csn
            return after if after is not None and not changed(c, view, csn, after) else None

    def next_version(self, view: Relation, csn: int) -> int | None:
        """The first version of a view at or after a CSN; None if its frontier lies before."""
        with self.catalog.database.read() as c:
            return self._versions(c, view, csn)[1]

    def _versions(self, c: sa.Connection, view: Relation, csn: int) -> tuple[int | None, int | None]:
        """The nearest versions at or before a CSN, and at or after it."""
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

    # -- jobs --------------------------------------------------------------------------------------

    def apply(self, steps: Sequence[ViewStep]) -> bool:
        """Show the results of a job, all in one transaction, if every view is still where the job began; False, and
        nothing has changed, if one is not.

        Where a view was computed anew and had been wrong, a commit tells the views above, whose rows may come from
        what was wrong: they have a task, to which no delta leads.
        """
        try:
            with self.catalog.database.write() as c:
                if any(step.anew for step in steps):
                    self.catalog.database.lock_clock(c)
                for step in steps:
                    self._apply(c, step)
        except _Moved:
            return False
        return True

    def _apply(self, c: sa.Connection, step: ViewStep) -> None:
        self.catalog._check_leases(c, step.leases)
        if not move(c, step.view, step.start, Frontier(step.end), step.segments, step.leases):
            raise _Moved
        record(c, self.catalog.database.now(c), step.job)
        if step.anew and step.segments:
            self.catalog._ddl_commit(c, step.view.id, REFRESH)

    def set_eager(self, view: Relation, eager: bool) -> None:
        """Whether commits maintain a view from now on."""
        with self.catalog.database.write() as c:
            self.catalog.database.lock_clock(c)
            self._set_eager(c, view.id, eager)

    def _set_eager(self, c: sa.Connection, view_id: int, eager: bool) -> None:
        c.execute(t.frontiers.update().where(t.frontiers.c.view_id == view_id).values(eager=int(eager)))

    def _defer(self, c: sa.Connection, view_id: int, deferred: bool) -> None:
        """A view that becomes deferred shows what it has seen by now; one that is deferred already goes on as it is."""
        f = t.frontiers.c
        one, now = f.view_id == view_id, self.catalog.database.now(c)
        if deferred:
            begun = {"shown": readable_csn(), "propagated_at": now, "refreshed_at": now}
            c.execute(t.frontiers.update().where(one, f.shown.is_(None)).values(**begun))
        else:
            c.execute(t.frontiers.update().where(one).values(shown=None, propagated_at=None, refreshed_at=None))

    def is_eager(self, view: Relation) -> bool:
        with self.catalog.database.read() as c:
            return bool(c.execute(sa.select(t.frontiers.c.eager).where(t.frontiers.c.view_id == view.id)).scalar())

    def record(self, job: Job) -> None:
        """Keep a failed job in the history."""
        with self.catalog.database.write() as c:
            record(c, self.catalog.database.now(c), job)

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
        """Views whose definition names this relation, by name."""
        with self.catalog.database.read() as c:
            return self._dependents(c, relation)

    def _dependents(self, c: sa.Connection, relation: Relation) -> list[Relation]:
        r = t.relations.c
        rows = c.execute(self.catalog._visible(None).where(r.kind == "view").order_by(r.folded)).all()
        views = (self.catalog._relation(c, row) for row in rows)
        return [view for view in views if relation.id in source_ids(view).values()]

    def above(self, view: Relation) -> list[Relation]:
        """All views that read this one, directly or through others, lower ones first."""
        found = [view]
        for other in lower_first(self.catalog.relations()):
            if {r.id for r in found}.intersection(source_ids(other).values()):
                found.append(other)
        return found[1:]

    def sources(self, view: Relation) -> dict[str, Relation]:
        """The relations that a view's definition names."""
        found = {name: self.catalog.relation_by_id(id_) for name, id_ in source_ids(view).items()}
        if gone := [name for name, relation in found.items() if relation is None]:
            raise NotFound(f"view {view.name}", f"its source {gone[0]} is gone", "Drop the view.")
        return {name: relation for name, relation in found.items() if relation is not None}

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
        c.execute(t.uses.delete().where(t.uses.c.view_id == view.id))
        return csn

    def set_properties(
        self, view: Relation, properties: Mapping[str, str], *, eager: bool | None = None, deferred: bool | None = None
    ) -> int:
        """Change properties, and with them how a view is maintained; None leaves that as it is."""
        catalog = self.catalog
        with catalog.database.write() as c:
            catalog.database.lock_clock(c)
            self._check_properties(c, view)
            csn = catalog._ddl_commit(c, view.id, "alter")
            if eager is not None:
                self._set_eager(c, view.id, eager)
            if deferred is not None:
                self._defer(c, view.id, deferred)
            merged = {**view.properties, **properties}
            c.execute(t.relations.update().where(t.relations.c.id == view.id).values(properties=json.dumps(merged)))
            return csn

    def note(self, view: Relation, name: str, value: str) -> None:
        """Keep a fact of ours about a view; that is no change of it, and has no CSN."""
        with self.catalog.database.write() as c:
            known = c.execute(sa.select(t.relations.c.facts).where(t.relations.c.id == view.id)).scalar_one()
            merged = json.dumps({**json.loads(known), name: value})
            c.execute(t.relations.update().where(t.relations.c.id == view.id).values(facts=merged))

    def _check_properties(self, c: sa.Connection, view: Relation) -> None:
        """What was checked for a change is still so."""
        self.catalog._check_unchanged(c, view)
        known = c.execute(sa.select(t.relations.c.properties).where(t.relations.c.id == view.id)).scalar_one()
        if json.loads(known) != view.properties:
            raise WriteConflict(f"view {view.name}", "was altered meanwhile", "Run the statement again.")

    # -- uses --------------------------------------------------------------------------------------

    def note_uses(self, seen: Mapping[int, tuple[int, int]]) -> None:
        """Add to the history of use: view id → (how often, last time)."""
        with self.catalog.database.write(durable=False) as c:
            known = self._uses(c)
            held = set(c.execute(sa.select(t.frontiers.c.view_id)).scalars())
            for view_id, (count, last_at) in seen.items():
                if view_id not in held:
                    continue  # dropped meanwhile
                old = known.get(view_id)
                if old is None:
                    c.execute(t.uses.insert().values(view_id=view_id, uses=count, last_at=last_at, mean_gap=0))
                else:
                    values = asdict(used_again(old, count, last_at))
                    c.execute(t.uses.update().where(t.uses.c.view_id == view_id).values(**values))

    def uses(self) -> dict[int, Use]:
        """How views have been used, by id."""
        with self.catalog.database.read() as c:
            return self._uses(c)

    def _uses(self, c: sa.Connection) -> dict[int, Use]:
        return {r.view_id: Use(r.uses, r.last_at, r.mean_gap) for r in c.execute(sa.select(t.uses))}


JOB_PATH = "job"  # of a lease on a view's next job: it claims no files


def source_ids(view: Relation) -> dict[str, int]:
    """Names in a view's definition, and the ids of the relations that they mean."""
    return {name: entry["id"] for name, entry in json.loads(view.facts.get("sources", "{}")).items()}


def lower_first(relations: Iterable[Relation]) -> list[Relation]:
    """All relations of a warehouse, each after those that it reads."""
    known = {relation.id: relation for relation in sorted(relations, key=lambda r: r.id)}
    reads = {id_: [i for i in source_ids(relation).values() if i in known] for id_, relation in known.items()}
    return [known[id_] for id_ in TopologicalSorter(reads).static_order()]


def _beyond_frontiers(*columns: Any) -> sa.Select[Any]:
    """THE definition of what is pending: commits beyond a view's frontier to what the view reads."""
    r, f, i = t.commits.c, t.frontiers.c, t.inputs.c
    partial = sa.and_(f.stmtsn > 0, r.csn == f.csn)
    return (
        sa.select(*columns)
        .join_from(t.inputs, t.frontiers, f.view_id == i.view_id)
        .join(t.commits, r.relation_id == i.relation_id)
        .where(sa.or_(r.csn > f.csn, partial), r.kind.in_(CHANGES))
    )


def used_again(old: Use, count: int, last_at: int) -> Use:
    """A history of use with later uses added."""
    gap = max(last_at - old.last_at, 0) // count
    mean = gap if old.mean_gap == 0 else int((1 - _RECENT) * old.mean_gap + _RECENT * gap)
    return Use(old.uses + count, max(old.last_at, last_at), mean)
