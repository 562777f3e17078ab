"""Background work of a warehouse: heartbeats, news from external tables, checkpoints, garbage, maintenance."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

from freshview.catalog.activity import ActivityCatalog
from freshview.catalog.frontiers import Job
from freshview.catalog.queries import QueryCatalog
from freshview.catalog.records import Relation
from freshview.catalog.reports import Reports
from freshview.catalog.writer import Catalog
from freshview.cdc.notice import Watch
from freshview.definition.properties import is_auto, is_deferred, leaves_auxiliaries
from freshview.errors import CatalogUnavailable, FreshviewError, InvalidStatement
from freshview.events import Events
from freshview.interruption import Interruption
from freshview.refresh.times import PAST_JOBS
from freshview.schedule.activity import Activity, machine_load
from freshview.schedule.advice import apply_advice
from freshview.schedule.garbage import Garbage
from freshview.schedule.loops import Loop, report_failure
from freshview.schedule.manager import CurrentJob, Manager
from freshview.schedule.policies import POLICIES, candidates, with_lower
from freshview.schedule.pool import side_by_side
from freshview.schedule.presence import LOOK_SECONDS, Presence
from freshview.schedule.sizing import allowed_seconds, background_rows
from freshview.schedule.yielding import BackgroundWork, Chores
from freshview.storage.checkpoint import Checkpointer
from freshview.storage.store import Storage
from freshview.views.views import Views

if TYPE_CHECKING:
    from freshview.spark.engine import SparkEngine

SECONDS = 2.0  # between two turns
DUE_SEGMENTS = 500  # unfolded segments of a relation that make a checkpoint worth while
DUE_BYTES = 64 << 20  # or their size
PATIENCE = 60.0  # seconds for which a checkpoint waits for the system to become idle
WORKERS = 2  # views that are maintained side by side
_HEARTBEAT_SECONDS = 30.0
_POLL_SECONDS = 0.5  # between two looks at the flows whose time may have come
_AUXILIARY_SECONDS = 600.0  # between two looks at the auxiliary views that are left to the background
_ADVICE_SECONDS = 60.0  # between two looks at the modes that are left to the advice


@dataclass(frozen=True)
class Wishes:
    """The options for background work that a warehouse was opened with."""

    background: bool
    policy: str
    busy_load: float
    workers: int = WORKERS

    def __post_init__(self) -> None:
        if not isinstance(self.workers, int) or self.workers < 1:
            raise InvalidStatement(f"workers {self.workers}", "views are maintained by one at least", "Use 1 or more.")
        if not isinstance(self.busy_load, int | float) or not self.busy_load >= 0:
            cause = "is no load per core"
            raise InvalidStatement(f"busy_load {self.busy_load!r}", cause, "Give a number from 0 on; 1 is a busy core.")
        if self.policy not in POLICIES:
            raise InvalidStatement(f"policy {self.policy!r}", "is not known", f"Use one of {', '.join(POLICIES)}.")


class Upkeep:
    """The background loops of one open warehouse, and their coordination with statements."""

    def __init__(
        self,
        catalog: Catalog,
        events: Events,
        watch: Watch,
        views: Views,
        checkpointer: Checkpointer,
        storage: Storage,
        engine: Callable[[], SparkEngine],
        wishes: Wishes,
        poll: Callable[[], None] = lambda: None,
        forget: Callable[[timedelta], None] = lambda _: None,
    ) -> None:
        """`poll` takes what changed at the sources of flows and remote tables, if it is time; `forget` has flows forget
        the deletions that are older than a retention."""
        self.activity = Activity()
        self.manager: Manager | None = None
        self._catalog = catalog
        self._events = events
        self._watch = watch
        self._views = views
        self._checkpointer = checkpointer
        self._engine = engine
        self._busy_load = wishes.busy_load
        self._workers = wishes.workers
        self._garbage = Garbage(catalog, storage, events, self._is_busy, forget)
        self._chores = Chores(self._is_busy, views.jobs.turns.held_by)
        self._due_since: dict[int, float] = {}  # by relation: since when a checkpoint is worth while
        self._advice_due = time.monotonic() + _ADVICE_SECONDS
        self._auxiliaries_due = time.monotonic() + _AUXILIARY_SECONDS
        self._presence = Presence(ActivityCatalog(catalog), self.activity.is_on_spark, events)
        self._loops = [Loop("freshview-heartbeat", _HEARTBEAT_SECONDS, self._heartbeat, events)]
        if wishes.background:
            look, policy = partial(candidates, views.catalog), POLICIES[wishes.policy]
            turns, now = views.jobs.turns, catalog.now
            self.manager = Manager(
                look, self._maintain_one, self._is_busy, events, policy=policy, held_by=turns.held_by, now=now
            )
            self._loops.append(Loop("freshview-background", SECONDS, self._step, events))
            self._loops.append(Loop("freshview-flows", _POLL_SECONDS, poll, events))
            self._loops.append(Loop("freshview-listener", LOOK_SECONDS, self._listen, events))
            for number in range(wishes.workers):
                self._loops.append(Loop(f"freshview-manager-{number + 1}", SECONDS, self.manager.turn, events))

    def stop(self) -> None:
        """End all loops; the manager's jobs and checkpoints on Spark are cancelled, and their tasks stay pending."""
        self._chores.stop()
        if self.manager is not None:
            self.manager.stop()
        for loop in reversed(self._loops):
            loop.stop()
        self._presence.stop()
        with suppress(FreshviewError):  # the uses and runs since the last heartbeat are lost; closing goes on
            self.note_uses()

    # -- beside statements -------------------------------------------------------------------------

    def make_way(self, names: Iterable[str] = ()) -> None:
        """Cancel the background's work for a statement that needs Spark, except what the statement waits for.

        `names` are the views that it reads. Other processes hear of the statement through the catalog.
        """
        self.activity.needs_spark()
        self._presence.announce()
        if not self._is_working():
            return
        views = {r.id: r for r in self._catalog.relations() if r.kind == "view"}
        named = [r.id for r in map(self._catalog.find, names) if r is not None]
        self._give_way(with_lower(named, views))

    def _is_working(self) -> bool:
        """Whether the background does work that gives way."""
        return bool(self._chores.running) or (self.manager is not None and bool(self.manager.running))

    def _give_way(self, needed: Collection[int]) -> None:
        self._chores.give_way(needed)
        if self.manager is not None:
            self.manager.give_way(needed)

    def adopt(self, loaded: Iterable[Relation]) -> None:
        """Make the files of bulk loads part of main at once where that costs next to nothing."""
        for relation in loaded:
            with self._failures_reported(relation):
                self._checkpointer.adopt(relation)

    @contextmanager
    def _failures_reported(self, relation: Relation) -> Iterator[None]:
        """Report a checkpoint that fails as an event: it is tried again later, and other relations are folded."""
        try:
            yield
        except FreshviewError as error:
            self._events.emit("checkpoint.failed", relation=relation.name, error=str(error))

    def maintain(self, wanted: Sequence[Relation], csn: int, *, named: bool) -> list[Job]:
        """Bring views up to date: those that share a change together, the others side by side; an error is raised when
        all others are done.

        `wanted` are in the order in which their jobs are returned. `named`: deferred views are refreshed.
        """
        views = {r.id: r for r in self._catalog.relations() if r.kind == "view"}
        asked = {view.id: view for view in wanted}  # one may have been dropped meanwhile, and is not in `views`
        below = {view.id: (with_lower([view.id], views) - {view.id}) & asked.keys() for view in wanted}
        stale = asked.keys() & (backlog.view_id for backlog in self._views.catalog.backlogs())
        together: dict[int, list[Job]] = {}
        for job in self._views.maintenance.bring_together([view for view in wanted if view.id in stale], csn):
            together.setdefault(job.view_id, []).append(job)
        stale -= together.keys()
        workers = min(self._workers, len(stale))

        def run(view_id: int, interruption: Interruption) -> list[Job]:
            # Only work in a thread of its own has to be broken off there; little work starts no Spark.
            with self._engine().interruptible(interruption) if workers > 1 and view_id in stale else nullcontext():
                rest = self._views.maintenance.maintain(asked[view_id], csn, named=named)
            jobs = [*together.get(view_id, ()), *rest]
            self._events.emit("maintain.done", view=asked[view_id].name, jobs=jobs)
            return jobs

        outcomes = side_by_side(below, run, max(workers, 1))
        for view in wanted:
            if view.id in outcomes.failed:
                self._events.emit("maintain.failed", view=view.name, error=str(outcomes.failed[view.id]))
        for error in outcomes.failed.values():
            raise error
        return [job for view in wanted for job in outcomes.done[view.id]]

    # -- the loops ---------------------------------------------------------------------------------

    def _heartbeat(self) -> None:
        self._catalog.heartbeat()
        self.note_uses()

    def _listen(self) -> None:
        """Have the work in progress make way for statements of other processes, and end what is no longer protected."""
        if not self._is_working():
            return
        others = self._presence.others()
        if others.busy or others.awaited:
            self._give_way(others.awaited)
        is_foreground = bool(others.busy) or self.activity.is_busy()
        self._chores.look_again(is_foreground=is_foreground)
        if self.manager is not None:
            self.manager.look_again(is_foreground)

    def _step(self) -> None:
        """One turn of all upkeep. A part that fails is reported, and tried again at the next turn; the parts after it
        are done, unless the catalog cannot be reached: each of them asks it."""
        parts = (
            self._watch.look,
            self._fold,
            self.note_uses,
            self._views.maintenance.advance,
            self._views.deferred.keep_schedule,
            self._follow_advice,
            self._keep_auxiliaries,
            self._garbage.turn,
        )
        for part in parts:
            if self._chores.stopped:
                return
            try:
                part()
            except CatalogUnavailable:
                raise
            except Exception as error:
                report_failure(error, self._events)

    def _fold(self) -> None:
        """Run the checkpoints that are due in idle time; one that has waited for a minute runs beside other work, since
        every read pays for the segments. One that gives way stays due."""
        now = time.monotonic()
        backlog = self._catalog.backlog().items()
        due = [i for i, (segments, _, size) in backlog if segments >= DUE_SEGMENTS or size >= DUE_BYTES]
        self._due_since = {i: self._due_since.get(i, now) for i in due}
        for relation_id in due:
            since = self._due_since.pop(relation_id)
            relation = self._catalog.relation_by_id(relation_id)
            if relation is not None:
                with self._failures_reported(relation):
                    if not self._checkpoint(relation, is_late=now - since >= PATIENCE):
                        self._due_since[relation_id] = since

    def _checkpoint(self, relation: Relation, *, is_late: bool) -> bool:
        """Run a checkpoint that no statement waits for: where it needs Spark, it runs there at low priority. Return
        False if foreground work kept it from its end."""

        def run(work: BackgroundWork) -> None:
            with ExitStack() as stack:

                def engine() -> SparkEngine:
                    found = self._engine()
                    self._chores.has_engine(work)
                    stack.enter_context(found.background(work.interruption))
                    return found

                replace(self._checkpointer, engine=engine).run(relation)

        return self._chores.run(f"checkpoint {relation.id}", run, is_late=is_late)

    def _follow_advice(self) -> None:
        """Change the modes that are left to the advice, once in a while."""
        if time.monotonic() < self._advice_due:
            return
        self._advice_due = time.monotonic() + _ADVICE_SECONDS
        if any(r.kind == "view" and is_auto(r) for r in self._catalog.relations()):
            apply_advice(Reports(self._catalog).views(), self._views.modes.set_eager, self._events)

    def _keep_auxiliaries(self) -> None:
        """Create and drop the auxiliary views that are left to the background, once in a while, in idle time."""
        if time.monotonic() < self._auxiliaries_due or self._is_busy():
            return
        self._auxiliaries_due = time.monotonic() + _AUXILIARY_SECONDS
        self._views.lifecycle.drop_unread()
        if not any(r.kind == "view" and leaves_auxiliaries(r) for r in self._catalog.relations()):
            return
        try:
            if not self._chores.run("auxiliary views", self._make_auxiliaries):
                self._auxiliaries_due = time.monotonic() + PATIENCE
        except FreshviewError as error:
            self._events.emit("auxiliary.failed", error=str(error))

    def _make_auxiliaries(self, work: BackgroundWork) -> None:
        engine = self._engine()
        self._chores.has_engine(work)
        with engine.background(work.interruption):
            self._views.auxiliaries.keep(lambda views: self._views.proposing.proposed(views).choice)

    def note_uses(self) -> None:
        """Store the uses of views and the runs of queries that were counted since the last call."""
        if uses := self.activity.take_uses():
            self._views.maintenance.note_uses(uses)
        if runs := self.activity.take_runs():
            QueryCatalog(self._catalog).note(runs)

    def _is_busy(self) -> bool:
        return self.activity.is_busy() or machine_load() > self._busy_load or bool(self._presence.others().busy)

    def _maintain_one(self, job: CurrentJob) -> bool:
        """Run one bounded job of a view at low priority; return False if another process runs it."""
        view = self._catalog.relation_by_id(job.view.view_id)
        if view is None:
            return True
        maintenance, others = self._views.maintenance, self._companions(view, job)
        csn = self._catalog.snapshot() if job.upto is None else job.upto
        engine = self._engine()
        if self.manager is not None:
            self.manager.has_engine(job)
        with engine.background(job.interruption):
            rows = self._most_rows(view, job, views=len(others) + 1)
            together = maintenance.step_together(view, others, csn, most_rows=rows)
            done = any(one.view_id == view.id for one in together)
            done = done or maintenance.step(view, csn, most_rows=self._most_rows(view, job)) is not None
        if is_deferred(view):
            self._views.deferred.keep_schedule()
        return done

    def _companions(self, view: Relation, job: CurrentJob) -> list[Relation]:
        """The views that may be refreshed with the view of a job: those that wait, read a table that it reads, and
        below which none waits. A job that gave way before, or that others give way to, is kept small."""
        if job.halvings or job.is_protected:
            return []
        catalog = self._views.catalog
        waiting = {backlog.view_id for backlog in catalog.backlogs()}
        taken = {one.view.view_id for one in self.manager.running} if self.manager is not None else set()
        reads = set(catalog.inputs(view))
        others = [(other, set(catalog.inputs(other))) for other in catalog.by_id(waiting - taken - {view.id})]
        return [other for other, theirs in others if reads & theirs and not waiting & theirs]

    def _most_rows(self, view: Relation, job: CurrentJob, *, views: int = 1) -> int:
        """How many pending delta rows a background job of a view takes, now, if so many views take them: beside
        foreground work, as if the machine were busy. Of several views each is taken to cost what this one does."""
        past = self._views.catalog.finished(view, PAST_JOBS)
        load = self._busy_load if job.is_beside else machine_load()
        seconds = allowed_seconds(load, self._busy_load) / views
        return max(background_rows(past, seconds) >> job.halvings, 1)
