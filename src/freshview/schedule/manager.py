"""The maintenance manager: which job runs when, and when it gives way (LAZY §2.2.2, §3.5).

The manager's workers wake every few seconds. If nothing is pending or the system is busy they sleep again; else each
runs one bounded job and looks again, so that foreground work can begin between two jobs. Different views are maintained
side by side; jobs of one view follow each other, and a view waits for those below it while they have tasks. A view
that has waited for ten seconds goes to the last CSN at which all of those have versions, if that lies beyond its oldest
task: under a stream of commits they always have tasks. Foreground work that needs Spark, in any process, has the jobs
in progress cancelled; they begin again when no foreground work is left.

Law: a job that a statement waits for is not cancelled, and goes on at the statement's priority.
Law: steady foreground work holds no view up for ever. A view whose oldest task has waited for ten seconds, or whose
jobs gave way three times in a row, gets a *protected* job, one at a time: it begins even if the system is busy, and
does not give way for ten seconds from when it has an engine; after that it does. Each job in a row that gave way halves
the tasks' rows that the next one takes, down to one task, and each protected one doubles the time for which the next
one is protected. So a job that takes T seconds for one task is done after at most log₂(T / 10 s) + 1 protected jobs
that gave way; meanwhile views whose protected jobs gave way less often go first, then the oldest task, whatever the
policy. A job whose deadline is near does not give way at all. Any other job that begins beside foreground work takes as
little as one on a busy machine (`sizing`), about a second: of statements that come every 200 ms, few overlap it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from freshview.errors import Cancelled
from freshview.events import Events
from freshview.interruption import Interruption
from freshview.refresh.jobs import is_transient
from freshview.schedule.policies import (
    Candidate,
    Policy,
    choose,
    has_waited,
    inherited,
    is_near,
    last_csn,
    maintainable,
    oldest_first,
)
from freshview.schedule.yielding import GAVE_WAY, BackgroundWork, Yielded, give_way, look_again

_BACKOFF = (2.0, 300.0)  # seconds until a job is tried again after a passing failure: at first, at most


@dataclass
class CurrentJob(BackgroundWork):
    """A job that the manager runs."""

    view: Candidate
    halvings: int = 0  # how often the rows that it takes are halved
    is_beside: bool = False  # it begins beside foreground work, and may be asked to give way
    upto: int | None = None  # the CSN up to which the views below have versions; None: any


@dataclass(frozen=True)
class Trouble:
    """Why a view is not maintained for now: its job failed, or another process runs it."""

    newest_csn: int  # of its tasks when it failed
    until: float | None  # when the job is tried again; None: when a new commit touches the view's tables
    attempts: int = 0


class Manager:
    """Runs bounded jobs, one per worker and view at a time, when there is time for them."""

    def __init__(
        self,
        look: Callable[[], Sequence[Candidate]],
        run: Callable[[CurrentJob], bool],
        is_busy: Callable[[], bool],
        events: Events,
        *,
        policy: Policy = oldest_first,
        held_by: Callable[[Interruption], Collection[int]] = lambda _: (),
        now: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`look` finds the views with tasks; `run` runs one job, and returns False if another process runs it;
        `held_by` finds the views whose turn a job has: it may refresh several together, or bring those below along."""
        self._look = look
        self._run = run
        self._is_busy = is_busy
        self._events = events
        self._policy = policy
        self._held_by = held_by
        self._now = now
        self._clock = clock
        self._guard = threading.Lock()  # held while a worker chooses; the dictionaries below are replaced, not changed
        self._running: dict[int, CurrentJob] = {}
        self._troubles: dict[int, Trouble] = {}
        self._yielded: dict[int, Yielded] = {}
        self._stopped = False

    @property
    def running(self) -> tuple[CurrentJob, ...]:
        """The jobs in progress."""
        return tuple(self._running.values())

    # -- giving way --------------------------------------------------------------------------------

    def give_way(self, needed: Collection[int] = ()) -> None:
        """Have the jobs in progress make way for a statement that needs Spark, in this or another process.

        `needed` are the views that the statement waits for: their jobs are raised to its priority instead, also those
        that began for another view and have the turn of a needed one. A job that a statement waits for is not
        cancelled; a protected one only when its time is over. The statement counts as foreground work already, so that
        no other job begins.
        """
        give_way(self.running, needed, self._views_of, self._clock())

    def look_again(self, is_foreground: bool) -> None:
        """End protected jobs whose time is over, if foreground work `is_foreground` is still there."""
        look_again(self.running, self._clock(), is_foreground=is_foreground)

    def _views_of(self, job: CurrentJob) -> Iterable[int]:
        return (job.view.view_id, *self._held_by(job.interruption))

    def has_engine(self, job: CurrentJob) -> None:
        """Note that the engine of a job is there: the time for which the job is protected begins."""
        job.engine_since = self._clock()

    def stop(self) -> None:
        """Cancel the jobs in progress, whatever they are, and begin no other."""
        self._stopped = True
        for job in self.running:
            job.interruption.request()

    # -- a worker's turn ---------------------------------------------------------------------------

    def turn(self) -> bool:
        """Run one job, if one is due and there is time for it; return True if another turn should follow at once."""
        job = self._begun()
        if job is None:
            return False
        try:
            return self._may_begin(job) and self._do(job)
        finally:
            with self._guard:  # no worker has looked before the job's end and chooses after it
                self._running = _without(self._running, job.view.view_id)

    def _begun(self) -> CurrentJob | None:
        """The next job, which counts as running from now on: foreground work that begins now is seen by the last check
        before the job begins, or sees the job."""
        with self._guard:
            now = self._now()
            waiting = inherited(self._look(), now)
            known = {c.view_id for c in waiting}
            self._troubles = {i: t for i, t in self._troubles.items() if i in known}
            self._yielded = {i: y for i, y in self._yielded.items() if i in known}
            ready = maintainable(waiting, [c for c in waiting if self._is_ready(c)], now)
            policy, is_busy = self._policy, bool(ready) and self._is_busy()
            if is_busy:
                ready = maintainable(ready, [c for c in ready if self._protection(c) is not None], now)
                policy = self._fair
            chosen = choose(ready, policy, now)
            if chosen is None:
                return None
            protection = self._protection(chosen)
            is_beside = is_busy and protection != float("inf")
            upto = last_csn(chosen, waiting)
            job = CurrentJob(chosen, self._yielded_of(chosen).tries, is_beside, upto, protected_for=protection)
            self._running = {**self._running, chosen.view_id: job}
            return job

    def _may_begin(self, job: CurrentJob) -> bool:
        return not self._stopped and (job.is_protected or not self._is_busy())

    def _protection(self, view: Candidate) -> float | None:
        """The seconds for which a job of a view that begins now does not give way; None: it gives way at once.

        Unless its deadline is near, a job is protected only while no other one is.
        """
        if is_near(view, self._now()):
            return float("inf")
        if any(job.is_protected for job in self.running):
            return None
        yielded = self._yielded_of(view)
        if yielded.tries < GAVE_WAY and not has_waited(view, self._now()):
            return None
        return yielded.protection

    def _fair(self, view: Candidate) -> tuple[float, ...]:
        """The policy beside foreground work: every view gets its turn, and one whose jobs take long does not hold up
        those whose jobs do not."""
        return (self._yielded_of(view).protected, *oldest_first(view))

    def _yielded_of(self, view: Candidate) -> Yielded:
        return self._yielded.get(view.view_id, Yielded())

    def _do(self, job: CurrentJob) -> bool:
        view = job.view
        try:
            with job.interruption.here():
                done = self._run(job)
        except Exception as error:
            if isinstance(error, Cancelled) and job.interruption.requested:  # giving way is no failure
                with self._guard:
                    self._yielded = {**self._yielded, view.view_id: self._yielded_of(view).after(job)}
            else:
                self._leave(view, error)
        else:
            with self._guard:
                self._troubles = _without(self._troubles, view.view_id)
                if not done:
                    trouble = Trouble(view.newest_csn, self._clock() + _BACKOFF[0])
                    self._troubles = {**self._troubles, view.view_id: trouble}
                elif view.view_id in self._yielded:
                    self._yielded = {**self._yielded, view.view_id: self._yielded[view.view_id].eased()}
        return True

    def _is_ready(self, view: Candidate) -> bool:
        if view.view_id in self._running:
            return False
        trouble = self._troubles.get(view.view_id)
        if trouble is None:
            return True
        if trouble.until is None:
            return view.newest_csn > trouble.newest_csn
        return self._clock() >= trouble.until

    def _leave(self, view: Candidate, error: Exception) -> None:
        """Note a failure: a passing one is tried again, later each time; one on wrong data waits for a new commit."""
        until, attempts = None, 0
        with self._guard:
            if is_transient(error):
                known = self._troubles.get(view.view_id)
                attempts = known.attempts + 1 if known is not None else 1
                until = self._clock() + min(_BACKOFF[0] * 2 ** (attempts - 1), _BACKOFF[1])
            self._troubles = {**self._troubles, view.view_id: Trouble(view.newest_csn, until, attempts)}
        self._events.emit("manager.failed", view_id=view.view_id, error=str(error), again=until is not None)


_Entry = TypeVar("_Entry")


def _without(entries: dict[int, _Entry], key: int) -> dict[int, _Entry]:
    return {k: v for k, v in entries.items() if k != key}
