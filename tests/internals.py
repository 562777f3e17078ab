"""What tests ask of a warehouse beyond its public surface: no other module of tests reads private attributes."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import sqlalchemy as sa

from freshview import Warehouse
from freshview.catalog import tables as t
from freshview.catalog.frontiers import Job
from freshview.catalog.records import Commit, DataFile, Main, Relation, RelationState, Segment
from freshview.catalog.writer import Catalog
from freshview.errors import FreshviewError
from freshview.flows.refreshing import Flows
from freshview.refresh.cost import Calibration
from freshview.schedule.garbage import Garbage
from freshview.schedule.manager import CurrentJob, Manager
from freshview.schedule.policies import Candidate, candidates
from freshview.schedule.presence import Presence
from freshview.sql.binding import bind
from freshview.storage.checkpoint import CheckpointReport
from freshview.storage.reader import StateReader
from freshview.storage.store import Storage
from freshview.transactions.user_transaction import UserTransaction
from freshview.views.dimensions import DimensionViews
from freshview.views.views import Views


class Internals:
    """The rooms of one open warehouse, and what they hold of a table or view by its name."""

    def __init__(self, wh: Warehouse) -> None:
        self._wh = wh

    # -- the rooms, for tests that replace a method or ask what is asked nowhere else ------------------

    @property
    def dimensions(self) -> DimensionViews:
        return self._wh._dimensions

    @property
    def catalog(self) -> Catalog:
        return self._wh._catalog

    @property
    def storage(self) -> Storage:
        return self._wh._storage

    @property
    def views(self) -> Views:
        return self._wh._views

    @property
    def flows(self) -> Flows:
        return self._wh._flows

    def evaluate_flows_with(self, engine: Any) -> None:
        """Have something else than Spark evaluate the expressions of flows."""
        definitions = self._wh._flows.definitions
        poller = replace(definitions.poller, engine=lambda: engine)
        self._wh._flows = replace(self._wh._flows, definitions=replace(definitions, poller=poller))

    @property
    def reader(self) -> StateReader:
        return self.storage.reader

    # -- the catalog -----------------------------------------------------------------------------------

    def newest_csn(self) -> int:
        return self.catalog.snapshot()

    def horizon(self) -> int:
        """The oldest CSN that can still be read."""
        return self.catalog.horizon()

    def relation(self, name: str) -> Relation:
        return self.catalog.relation(name)

    def relations(self, csn: int | None = None) -> list[Relation]:
        """All tables and views at a CSN (default: now), by name."""
        return self.catalog.relations(csn)

    def commits(self, name: str | None = None) -> list[Commit]:
        """All commits, or those that changed one table or view."""
        return self.catalog.commits(None if name is None else self.relation(name).id)

    def segments(self, *names: str, after: int = -1, upto: int | None = None) -> list[Segment]:
        """Segments of these tables and views with after < CSN ≤ upto."""
        return self.catalog.segments([self.relation(name).id for name in names], after, upto)

    def state(self, name: str, csn: int | None = None) -> RelationState:
        """main ⊕ segments of the relation that has this name at the CSN (default: now)."""
        at = self.newest_csn() if csn is None else csn
        return self.catalog.state(self.catalog.find(name, at) or self.relation(name), at)

    def main(self, name: str) -> Main | None:
        """The newest main table of a relation."""
        return self.catalog.latest_main(self.relation(name).id)

    def segment_files(self, name: str) -> set[str]:
        """Paths of the files that segments of a relation refer to, below its folder."""
        return self.catalog.referenced_files(self.relation(name).id)

    def leased_paths(self, name: str) -> list[str]:
        """Folders of a relation into which somebody is writing."""
        return self.catalog.leased_paths(self.relation(name).id)

    def reading_database(self) -> AbstractContextManager[sa.Connection]:
        """A read transaction on the tables of the catalog's database."""
        return self.catalog.database.read()

    def writing_database(self) -> AbstractContextManager[sa.Connection]:
        """A write transaction on the tables of the catalog's database."""
        return self.catalog.database.write()

    # -- storage ---------------------------------------------------------------------------------------

    def keep_in_memory(self, most: int) -> None:
        """Keep mains with up to so many bytes of files in memory, in which keys are looked up."""
        self.reader._cache._largest = most

    def rows(self, name: str, csn: int | None = None) -> pa.Table:
        """All rows of a relation at a CSN (default: now), read on the driver."""
        return self.reader.contents(self.state(name, csn))

    def rows_in(self, transaction: UserTransaction, name: str) -> pa.Table:
        """All rows of a relation as an open transaction sees them, read on the driver."""
        return self.reader.contents(state_in(transaction, name))

    def segment_rows(self, segment: Segment, name: str) -> pa.Table:
        """The delta rows of a segment of that relation."""
        return self.reader.segment_rows(segment, self.relation(name).schema)

    def folder(self, name: str) -> Path:
        """The folder of a relation's files."""
        return self.storage.layout.relation(self.relation(name).id)

    def main_files(self, name: str) -> tuple[DataFile, ...]:
        """The data files of the newest main table of a relation."""
        main = self.main(name)
        return () if main is None else self.storage.mains.files(self.relation(name).id, main.delta_version)

    def checkpoint(self, name: str) -> CheckpointReport:
        return self._wh._checkpointer.run(self.relation(name))

    # -- external tables, views and the background ----------------------------------------------------

    def notice(self) -> None:
        """Notice what others wrote to external tables, as every statement does first."""
        self._wh._watch.look()

    def lost(self) -> list[FreshviewError]:
        """What a reader is told of each external table that cannot be read."""
        return list(self._wh._watch.lost.values())

    def frontier(self, view: str) -> int:
        """The CSN that a view has been maintained to."""
        return self.views.catalog.frontier(self.relation(view))

    def waiting(self) -> list[Candidate]:
        """The views that the maintenance manager may choose from."""
        return candidates(self.views.catalog)

    def running_job(self) -> CurrentJob | None:
        """The job that the maintenance manager runs now; the first, if it runs several."""
        manager = self._wh._upkeep.manager
        assert manager is not None, "the warehouse was opened without background"
        return next(iter(manager.running), None)

    def end_job_lease(self, view: str) -> None:
        """End the lease of whoever maintains a view, as if it had expired."""
        self.catalog.drop_leases([f"job-{self.relation(view).id}"])

    def set_calibration(self, view: str, calibration: Calibration) -> None:
        """Replace what past jobs of a view are taken to have cost."""
        costs = {"costs": json.dumps(dict(calibration.learnt))}
        with self.catalog.database.write() as c:
            c.execute(t.frontiers.update().where(t.frontiers.c.view_id == self.relation(view).id).values(**costs))

    def step_of_upkeep(self) -> None:
        """One turn of the background loop: notice, due checkpoints, schedules of deferred views, advice."""
        self._wh._upkeep._step()

    def replace_engine(self, engine: Any) -> None:
        """Have the upkeep use another engine than Spark."""
        self._wh._upkeep._engine = lambda: engine

    def stop_upkeep(self) -> None:
        """End the work of the background, as close() does first."""
        self._wh._upkeep.stop()

    def auxiliaries_are_due(self) -> None:
        """Have the next turn of the background loop make auxiliary views."""
        self._wh._upkeep._auxiliaries_due = 0.0

    def replace_garbage(self, garbage: Garbage) -> None:
        """Let the background loop use another remover of garbage, on a clock of the test."""
        self._wh._upkeep._garbage = garbage

    def make_way(self) -> None:
        """What a statement that needs Spark does first."""
        self._wh._upkeep.make_way()

    def listen(self) -> None:
        """One look of the background for statements of other processes."""
        self._wh._upkeep._listen()

    def background_rows(self, view: str, halvings: int = 0, *, is_beside: bool = False) -> int:
        """How many pending delta rows a background job of a view would take now."""
        relation = self.relation(view)
        job = CurrentJob(Candidate(relation.id, 0, 0, 0), halvings, is_beside=is_beside)
        return self._wh._upkeep._most_rows(relation, job)

    def background_job(self, view: str) -> bool:
        """Run a background job of a view, as a worker does that has chosen it."""
        return self._wh._upkeep._maintain_one(CurrentJob(Candidate(self.relation(view).id, 0, 0, 0)))

    def heartbeat(self) -> None:
        self._wh._upkeep._heartbeat()

    def used(self, view_id: int) -> None:
        """Count a use of a view, as a query of it does."""
        self._wh._activity.used(view_id, self.catalog.now())

    def ran(self, text: str) -> None:
        """Note that a query ran, as a query of the newest rows does when it has its answer."""
        self._wh._queries._note(bind(text, lambda name: self.catalog.find(name) is not None))

    @property
    def presence(self) -> Presence:
        """The announcements of the warehouse's foreground work."""
        return self._wh._upkeep._presence

    def manage(self, view_ids: list[int], run: Callable[[CurrentJob], bool]) -> Manager:
        """Give the warehouse a manager without threads, for views that always have tasks."""
        upkeep, now = self._wh._upkeep, self.catalog.now

        def look() -> list[Candidate]:
            return [Candidate(view_id, now(), 1, 1) for view_id in view_ids]

        held_by = self.views.jobs.turns.held_by
        upkeep.manager = Manager(look, run, upkeep._is_busy, self._wh.events, held_by=held_by, now=now)
        return upkeep.manager

    def follow_advice(self, *, is_due: bool = False) -> None:
        """Change the modes of views that were left to the advice, if it is time, or as if it were."""
        if is_due:
            self._wh._upkeep._advice_due = 0.0
        self._wh._upkeep._follow_advice()

    def maintain(self, views: list[Relation]) -> list[Job]:
        """Bring views up to date that were read before."""
        return self._wh._upkeep.maintain(views, self.newest_csn(), named=False)

    def is_busy(self) -> bool:
        """Whether the background leaves the machine to others."""
        return self._wh._upkeep._is_busy()

    def statement(self) -> AbstractContextManager[None]:
        """While it is entered, the background takes the warehouse to be running a statement."""
        return self._wh._activity.working()


def internals(wh: Warehouse) -> Internals:
    return Internals(wh)


def relation_in(transaction: UserTransaction, name: str) -> Relation:
    """A table or view as an open transaction sees it."""
    return transaction._core.relation(name)


def state_in(transaction: UserTransaction, name: str) -> RelationState:
    """main ⊕ segments of a relation as an open transaction sees it."""
    return transaction._core.state(relation_in(transaction, name))


def apply_in(transaction: UserTransaction, name: str, old: Any, new: Any) -> None:
    """Replace whole rows of a table inside a transaction: Arrow tables of the rows before and after, or None."""
    transaction._core.apply(transaction._core.writable(name), old, new)
