"""Views in the catalog: definitions, inputs, tasks, versions, jobs and uses."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from graphlib import TopologicalSorter
from typing import Any

import sqlalchemy as sa

from freshview.catalog import tables as t
from freshview.catalog.commits import check_leases, check_unchanged
from freshview.catalog.frontiers import (
    CHANGES,
    MAINTAIN,
    MAINTAINED,
    REFRESH,
    RESETS,
    Job,
    ViewStep,
    changed,
    end_leases,
    frontier_of,
    move_frontier,
    record,
)
from freshview.catalog.reader import readable_csn
from freshview.catalog.records import Backlog, Frontier, Relation, RelationState, Segment, Task, segment_values
from freshview.catalog.writer import Catalog
from freshview.errors import NotFound, StorageUnavailable, WriteConflict
from freshview.relation.schema import Schema, check_relation_name

READERS = ("transaction", "query")  # purposes of snapshots that may still read a view
_RECENT = 0.3  # weight of the newest gap between uses in their mean


class _Moved(Exception):
    """A view is no longer where a job began."""


@dataclass(frozen=True)
class Use:
    """How often and when queries used a view."""

    uses: int
    last_at: int
    mean_gap: int


@dataclass(frozen=True)
class ViewCatalog:
    """Reads and changes what the catalog holds of views."""

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
        factors: Mapping[str, float] | None = None,
    ) -> tuple[Relation, int]:
        """Create a view with its first rows, computed at `csn`, in one transaction, in place of `replaces` if given.

        `factors` are what computing these rows has taught of the view's costs.
        """
        check_relation_name(name)
        catalog = self.catalog
        with catalog.database.write() as c:
            clock = catalog.database.lock_clock(c)
            check_leases(c, leases)
            for source in sources:
                check_unchanged(c, source)
            if replaces is not None:
                self.drop_in(c, replaces)
                clock = catalog.database.clock(c)
            created = clock.csn + 1
            view = Relation(view_id, name, "view", 1, 1, schema, created, None, dict(properties), dict(facts))
            catalog.insert_relation(c, view)
            catalog.ddl_commit(c, view_id, "create")
            costs = json.dumps(dict(factors or {}))
            begun = {"view_id": view_id, "epoch": 1, "csn": csn, "stmtsn": 0, "eager": int(eager), "costs": costs}
            c.execute(t.frontiers.insert().values(**begun))
            self._defer(c, view_id, deferred)
            self.set_inputs(c, view_id, sources)
            for seq, segment in enumerate(segments):
                c.execute(t.segments.insert().values(**segment_values(segment, csn, seq)))
            end_leases(c, leases)
            return view, created

    def reserve_csn(self, view: Relation) -> int:
        """Make a commit without rows, for a refresh whose end is no other commit; return its CSN."""
        with self.catalog.database.write() as c:
            self.catalog.database.lock_clock(c)
            return self.catalog.ddl_commit(c, view.id, "reserve")

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
            known = c.execute(sa.select(t.frontiers.c.costs).where(t.frontiers.c.view_id == view.id)).scalar()
        return dict(json.loads(known or "{}"))

    def inputs(self, view: Relation) -> list[int]:
        """Ids of the tables and views that a view reads, directly or through other views."""
        with self.catalog.database.read() as c:
            return self._inputs(c, view)

    def _inputs(self, c: sa.Connection, view: Relation) -> list[int]:
        query = sa.select(t.inputs.c.relation_id).where(t.inputs.c.view_id == view.id)
        return list(c.execute(query).scalars())

    def set_inputs(self, c: sa.Connection, view_id: int, sources: Iterable[Relation]) -> None:
        """Set what a view reads: these relations, and what they read."""
        inputs = {i for source in sources for i in (source.id, *self._inputs(c, source))}
        c.execute(t.inputs.delete().where(t.inputs.c.view_id == view_id))
        if inputs:
            c.execute(t.inputs.insert(), [{"view_id": view_id, "relation_id": i} for i in sorted(inputs)])

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
        query = beyond_frontiers(i.view_id, r.relation_id, r.txsn, r.csn, stmtsn, r.committed_at, r.rows, r.kind)
        found: dict[tuple[int, int], list[Any]] = {}
        for row in c.execute(query.where(*conditions).order_by(r.csn, i.view_id, r.relation_id)):
            found.setdefault((row.csn, row.view_id), []).append(row)
        return [_task(view_id, csn, rows) for (csn, view_id), rows in found.items()]

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
        s = t.snapshots.c
        with self.catalog.database.read() as c:
            query = sa.select(s.csn).where(
                s.purpose.in_(READERS), s.csn > after, s.csn < before, s.expires_at >= self.catalog.database.now(c)
            )
            return sorted(set(c.execute(query).scalars()))

    def advance(self, csn: int) -> int:
        """Move the frontiers of views without tasks up to a CSN; return how many moved.

        They need no older versions then. A view on which a job runs stays where that job began.
        """
        f = t.frontiers.c
        waiting = beyond_frontiers(t.inputs.c.view_id).where(t.commits.c.csn <= csn)
        with self.catalog.database.write(durable=False) as c:
            self.catalog.database.lock_clock(c)  # a commit moves several frontiers as well, in another order
            needed = [query.correlate(None) for query in (waiting, self._at_work(c))]
            idle = sa.and_(f.csn < csn, f.stmtsn == 0, *(f.view_id.not_in(query) for query in needed))
            return c.execute(t.frontiers.update().where(idle).values(csn=csn)).rowcount

    # -- versions ----------------------------------------------------------------------------------

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

    # -- jobs --------------------------------------------------------------------------------------

    def apply(self, steps: Sequence[ViewStep]) -> bool:
        """Publish the results of a job in one transaction, if every view is still where the job began.

        Return False, with nothing changed, if one is not. For a view that was computed anew and had been wrong, a
        commit is added, which is a task of the views above it: their rows may come from the wrong ones.
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

    def apply_each(self, steps: Sequence[ViewStep]) -> list[bool]:
        """Publish the results of several jobs in one transaction, each if its view is still where its job began and
        its leases are held; return which of them were. A step that is not published writes nothing."""
        with self.catalog.database.write() as c:
            self.catalog.database.lock_clock(c)  # a commit moves several frontiers as well, in another order
            return [self._applied(c, step) for step in steps]

    def _applied(self, c: sa.Connection, step: ViewStep) -> bool:
        try:
            self._apply(c, step)
        except (_Moved, StorageUnavailable):
            return False
        return True

    def _apply(self, c: sa.Connection, step: ViewStep) -> None:
        check_leases(c, step.leases)
        if not move_frontier(c, step, step.start, Frontier(step.end)):
            raise _Moved
        record(c, self.catalog.database.now(c), step.job)
        if step.anew and step.segments:
            self.catalog.ddl_commit(c, step.view.id, REFRESH)

    def set_eager(self, view: Relation, eager: bool) -> None:
        """Set whether commits maintain a view from now on."""
        with self.catalog.database.write() as c:
            self.catalog.database.lock_clock(c)
            self._set_eager(c, view.id, eager)

    def _set_eager(self, c: sa.Connection, view_id: int, eager: bool) -> None:
        c.execute(t.frontiers.update().where(t.frontiers.c.view_id == view_id).values(eager=int(eager)))

    def _defer(self, c: sa.Connection, view_id: int, deferred: bool) -> None:
        """Make a view deferred (from now on it shows what it has seen so far) or not; one that already is stays so."""
        f = t.frontiers.c
        one, now = f.view_id == view_id, self.catalog.database.now(c)
        if deferred:
            begun = {"shown": readable_csn(), "propagated_at": now, "refreshed_at": now}
            c.execute(t.frontiers.update().where(one, f.shown.is_(None)).values(**begun))
        else:
            c.execute(t.frontiers.update().where(one).values(shown=None, propagated_at=None, refreshed_at=None))

    def is_eager(self, view: Relation) -> bool:
        """Whether commits maintain a view."""
        with self.catalog.database.read() as c:
            return bool(c.execute(sa.select(t.frontiers.c.eager).where(t.frontiers.c.view_id == view.id)).scalar())

    def record(self, job: Job) -> None:
        """Add a failed job to the history."""
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
        return [_job(row) for row in rows]

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

    def drop(self, view: Relation) -> int:
        """Drop a view and its frontier, which then holds back no old versions; return the CSN of the drop."""
        with self.catalog.database.write() as c:
            self.catalog.database.lock_clock(c)
            return self.drop_in(c, view)

    def drop_in(self, c: sa.Connection, view: Relation) -> int:
        """Drop a view in a transaction that holds the clock; return the CSN of the drop."""
        csn = self.catalog.ddl_commit(c, view.id, "drop")
        dropped = t.relations.update().where(t.relations.c.id == view.id, t.relations.c.dropped_csn.is_(None))
        if c.execute(dropped.values(dropped_csn=csn)).rowcount != 1:
            raise WriteConflict(f"view {view.name}", "was dropped meanwhile", "Nothing is left to do.")
        for table in (t.frontiers, t.inputs, t.uses):
            c.execute(table.delete().where(table.c.view_id == view.id))
        return csn

    def set_properties(
        self, view: Relation, properties: Mapping[str, str], *, eager: bool | None = None, deferred: bool | None = None
    ) -> int:
        """Change properties of a view and how it is maintained (None: unchanged); return the CSN."""
        catalog = self.catalog
        with catalog.database.write() as c:
            catalog.database.lock_clock(c)
            self._check_properties(c, view)
            csn = catalog.ddl_commit(c, view.id, "alter")
            if eager is not None:
                self._set_eager(c, view.id, eager)
            if deferred is not None:
                self._defer(c, view.id, deferred)
            merged = {**view.properties, **properties}
            c.execute(t.relations.update().where(t.relations.c.id == view.id).values(properties=json.dumps(merged)))
            return csn

    def note(self, view: Relation, name: str, value: str) -> None:
        """Store one of the facts that Freshview keeps of a view; this is not a commit and has no CSN."""
        with self.catalog.database.write() as c:
            known = c.execute(sa.select(t.relations.c.facts).where(t.relations.c.id == view.id)).scalar_one()
            merged = json.dumps({**json.loads(known), name: value})
            c.execute(t.relations.update().where(t.relations.c.id == view.id).values(facts=merged))

    def _check_properties(self, c: sa.Connection, view: Relation) -> None:
        """Raise WriteConflict if the view or its properties have changed since they were read."""
        check_unchanged(c, view)
        known = c.execute(sa.select(t.relations.c.properties).where(t.relations.c.id == view.id)).scalar_one()
        if json.loads(known) != view.properties:
            raise WriteConflict(f"view {view.name}", "was altered meanwhile", "Run the statement again.")

    # -- uses --------------------------------------------------------------------------------------

    def note_uses(self, seen: Mapping[int, tuple[int, int]]) -> None:
        """Add uses to the history: view id → (how often, last time)."""
        with self.catalog.database.write(durable=False) as c:
            self.catalog.database.lock_clock(c)  # other processes add uses of the same views
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
        """How queries used the views, by view id."""
        with self.catalog.database.read() as c:
            return self._uses(c)

    def _uses(self, c: sa.Connection) -> dict[int, Use]:
        return {r.view_id: Use(r.uses, r.last_at, r.mean_gap) for r in c.execute(sa.select(t.uses))}


REWRITING = "rewriting"  # a fact of a view: other relations from which its rows are maintained (`rewritings.py`)
AUXILIARY = "auxiliary"  # a fact of a view that the optimiser stores: why it is stored
JOB_PATH = "job"  # path of a lease on a view's next job; the lease claims no files


def _task(view_id: int, csn: int, rows: Sequence[Any]) -> Task:
    """The task of a view for a commit, from the rows of the commit in the tables that the view reads."""
    first, tables = rows[0], tuple(r.relation_id for r in rows)
    reset = any(r.kind in RESETS for r in rows)
    return Task(view_id, first.txsn, csn, first.stmtsn, first.committed_at, tables, sum(r.rows for r in rows), reset)


def _job(row: sa.Row[Any]) -> Job:
    ends = {"view_id": row.relation_id, "from_csn": row.from_csn, "to_csn": row.to_csn}
    return Job(**ends, **json.loads(row.report), error=row.error, view=row.name)


def source_ids(view: Relation) -> dict[str, int]:
    """Names in a view's definition, with the ids of the relations that they refer to."""
    return {name: entry["id"] for name, entry in json.loads(view.facts.get("sources", "{}")).items()}


def rewriting_ids(view: Relation) -> dict[str, int]:
    """Names in a view's rewriting, with the ids of the relations that they refer to; empty if it has none."""
    return {name: entry["id"] for name, entry in json.loads(view.facts.get(REWRITING, "{}")).get("sources", {}).items()}


def read_ids(view: Relation) -> set[int]:
    """The ids of the relations that a view's definition or its rewriting names."""
    return {*source_ids(view).values(), *rewriting_ids(view).values()}


def is_auxiliary(relation: Relation) -> bool:
    """Is a relation a view that the optimiser stores in addition to the users'?"""
    return AUXILIARY in relation.facts


def sorted_column(relation: Relation) -> str:
    """The column on which the files of a relation are sorted instead of its key; empty if it is none."""
    name = json.loads(relation.facts.get(AUXILIARY, "{}")).get("sorted_by", "")
    return name if name in relation.schema.names else ""


def lower_first(relations: Iterable[Relation]) -> list[Relation]:
    """Sort all relations of a warehouse so that each comes after those that it reads."""
    known = {relation.id: relation for relation in sorted(relations, key=lambda r: r.id)}
    reads = {id_: [i for i in read_ids(relation) if i in known] for id_, relation in known.items()}
    return [known[id_] for id_ in TopologicalSorter(reads).static_order()]


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


def used_again(old: Use, count: int, last_at: int) -> Use:
    """The history of use with `count` later uses added."""
    gap = max(last_at - old.last_at, 0) // count
    mean = gap if old.mean_gap == 0 else int((1 - _RECENT) * old.mean_gap + _RECENT * gap)
    return Use(old.uses + count, max(old.last_at, last_at), mean)
