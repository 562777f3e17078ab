"""Changes to views in the catalog: definitions and inputs, the results of jobs, properties and uses."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass

import sqlalchemy as sa

from freshview.catalog import tables as t
from freshview.catalog.commits import check_leases, check_unchanged
from freshview.catalog.frontiers import (
    REFRESH,
    Job,
    ViewStep,
    end_leases,
    move_frontier,
    record,
)
from freshview.catalog.records import Frontier, Relation, Segment, segment_values
from freshview.catalog.selections import readable_csn
from freshview.catalog.uses import used_again
from freshview.catalog.view_reader import ViewReader, beyond_frontiers
from freshview.errors import StorageUnavailable, WriteConflict
from freshview.relation.schema import Schema, check_relation_name


class _Moved(Exception):
    """A view is no longer where a job began."""


@dataclass(frozen=True)
class ViewCatalog(ViewReader):
    """Reads and changes what the catalog holds of views."""

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

    def set_inputs(self, c: sa.Connection, view_id: int, sources: Iterable[Relation]) -> None:
        """Set what a view reads: these relations, and what they read."""
        inputs = {i for source in sources for i in (source.id, *self._inputs(c, source))}
        c.execute(t.inputs.delete().where(t.inputs.c.view_id == view_id))
        if inputs:
            c.execute(t.inputs.insert(), [{"view_id": view_id, "relation_id": i} for i in sorted(inputs)])

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

    # -- jobs --------------------------------------------------------------------------------------

    def apply(self, steps: Sequence[ViewStep]) -> bool:
        """Publish the results of a job in one transaction, if every view is still where the job began.

        Return False, with nothing changed, if one is not. For a view that was computed anew and had been wrong, a
        commit is added, which is a task of the views above it: their rows may come from the wrong ones.
        """
        try:
            with self._publishing(steps) as c:
                if any(step.anew for step in steps):
                    self.catalog.database.lock_clock(c)
                self.catalog.end_in(c, [one for step in steps for one in step.ends])
                for step in steps:
                    self._apply(c, step)
        except _Moved:
            return False
        return True

    def apply_each(self, steps: Sequence[ViewStep]) -> list[bool]:
        """Publish the results of several jobs in one transaction, each if its view is still where its job began and
        its leases are held; return which of them were. A step that is not published writes nothing."""
        with self._publishing(steps) as c:
            self.catalog.database.lock_clock(c)  # a commit moves several frontiers as well, in another order
            return [self._applied(c, step) for step in steps]

    def _publishing(self, steps: Sequence[ViewStep]) -> AbstractContextManager[sa.Connection]:
        """A transaction that publishes results of jobs. Small ones need not outlive a power cut: their jobs run again.

        SQLite loses the newest transactions alone, and none before a durable one; what is made of a view outside of
        the catalog is preceded by one (`Catalog.harden`). A server's clients may outlive the server, with views in
        their memory that it has forgotten, so there all results are durable.
        """
        database = self.catalog.database
        durable = not database.is_sqlite or any(step.anew or not _is_inline(step) for step in steps)
        return database.write(durable=durable)

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

    def record(self, job: Job) -> None:
        """Add a failed job to the history."""
        with self.catalog.database.write() as c:
            record(c, self.catalog.database.now(c), job)

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
            self.catalog.database.lock_clock(c)  # all facts are one value, and others note theirs
            known = c.execute(sa.select(t.relations.c.facts).where(t.relations.c.id == view.id)).scalar_one()
            merged = json.dumps({**json.loads(known), name: value})
            c.execute(t.relations.update().where(t.relations.c.id == view.id).values(facts=merged))

    def _check_properties(self, c: sa.Connection, view: Relation) -> None:
        """Raise WriteConflict if the view or its properties have changed since they were read."""
        check_unchanged(c, view)
        known = c.execute(sa.select(t.relations.c.properties).where(t.relations.c.id == view.id)).scalar_one()
        if json.loads(known) != view.properties:
            raise WriteConflict(f"view {view.name}", "was altered meanwhile", "Run the statement again.")

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


def _is_inline(step: ViewStep) -> bool:
    return not step.leases and all(segment.is_inline for segment in step.segments)
