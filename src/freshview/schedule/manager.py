"""The maintenance manager: which view next, and when (LAZY §2.2.2, §3.5).

The manager wakes every few seconds. If nothing is pending or the system is busy it sleeps again; else it runs one
bounded job and looks again, so that foreground work can begin between two jobs. Foreground work that needs Spark has
the current job cancelled; the job begins again when no foreground work is left. Pure functions over plain data choose.

Law: no view starves. Whatever the policy, a view whose oldest task has waited for long goes first, busy or not, and its
job is not cancelled.
Law: a job that a statement waits for is not cancelled.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from freshview.catalog.deferred import DeferredCatalog
from freshview.catalog.records import Backlog, Relation
from freshview.catalog.views import Use, ViewCatalog, source_ids
from freshview.definition.properties import is_deferred, parse_deadline, policy_of
from freshview.errors import Cancelled
from freshview.events import Events
from freshview.interruption import Interruption
from freshview.refresh.jobs import is_transient

BACKGROUND_ROWS = 50_000  # pending delta rows that a background job takes: few, so that it can give way
_SECOND = 1_000_000
_PATIENCE = 300 * _SECOND  # a task that has waited this long goes before the policy's choice, even if all is busy
_LEAD = 1800 * _SECOND  # this long before its deadline a view goes first
_BACKOFF = (2.0, 300.0)  # seconds until a job is tried again after a passing failure: at first, at most
BUSY_LOAD = 2.0  # processes per core that want to run; a job of our own makes about one
_QUIET = 0.5  # seconds after a statement that still count as busy: the rows of its DataFrame may be computed then
_YOUNG = 30.0  # seconds for which an open transaction counts as foreground work


# -- policies: plain data in, a choice out -----------------------------------------------------------


@dataclass(frozen=True)
class Candidate:
    """A view with pending tasks, as a policy sees it. Times are in microseconds on the catalog's clock."""

    view_id: int
    oldest_at: int
    newest_csn: int
    rows: int
    sources: tuple[int, ...] = ()  # ids of the views that it reads
    next_use: int | None = None  # when a query is expected
    deadline: int | None = None  # when it has to be fresh


Policy = Callable[[Candidate], tuple[float, ...]]  # the smallest goes first


def oldest_first(view: Candidate) -> tuple[float, ...]:
    """Oldest task first: old tasks keep the space of all younger ones from being freed."""
    return (view.oldest_at,)


def expected_use_first(view: Candidate) -> tuple[float, ...]:
    """Next expected query first: the view is fresh by then."""
    return (float("inf") if view.next_use is None else view.next_use, view.oldest_at)


def largest_first(view: Candidate) -> tuple[float, ...]:
    """Most pending rows first: that frees the most space."""
    return (-view.rows, view.oldest_at)


POLICIES: Mapping[str, Policy] = {"oldest": oldest_first, "use": expected_use_first, "size": largest_first}


def is_urgent(view: Candidate, now: int) -> bool:
    """Is the deadline of a view near, or has it waited for too long?"""
    if view.deadline is not None and view.deadline - now <= _LEAD:
        return True
    return view.deadline is None and now - view.oldest_at > _PATIENCE


def choose(candidates: Sequence[Candidate], policy: Policy, now: int) -> Candidate | None:
    """The view to maintain next: urgent ones first, those with a far deadline last; lower views before upper."""

    def rank(view: Candidate) -> tuple[float, ...]:
        if is_urgent(view, now):
            return (0, view.deadline if view.deadline is not None else view.oldest_at, view.view_id)
        return (1 if view.deadline is None else 2, *policy(view), view.view_id)

    if not candidates:
        return None
    waiting = {c.view_id: c for c in candidates}
    chosen = min(candidates, key=rank)
    while below := [waiting[s] for s in chosen.sources if s in waiting]:
        chosen = min(below, key=rank)
    return chosen


def candidate(backlog: Backlog, view: Relation, use: Use | None, now: int) -> Candidate:
    """The catalog's data on a view with tasks, as a policy sees it."""
    text, settings = view.properties.get("deadline"), json.loads(view.facts.get("settings", "{}"))
    expected = next_use(use, now) if use is not None else None
    # The first deadline after the oldest task: a missed one stays, so that the view is as urgent as before.
    deadline = next_deadline(text, _zone(settings), backlog.oldest_at) if text is not None else None
    b, sources = backlog, tuple(source_ids(view).values())
    return Candidate(b.view_id, b.oldest_at, b.newest_csn, b.rows, sources, expected, deadline)


def candidates(views: ViewCatalog) -> list[Candidate]:
    """The views with tasks, as the manager's policies see them; deferred views only when they are due."""
    now, uses, deferred = views.catalog.now(), views.uses(), DeferredCatalog(views).all()
    found = ((b, views.catalog.relation_by_id(b.view_id)) for b in views.backlogs())
    result = []
    for backlog, view in found:
        if view is None:
            continue
        ready, due = True, None
        if is_deferred(view) and view.id in deferred:
            ready, due = policy_of(view).wants_job(deferred[view.id], backlog.oldest_at, now)
        if ready:
            known = candidate(backlog, view, uses.get(view.id), now)
            result.append(known if due is None else replace(known, deadline=due))
    return result


def next_use(use: Use, now: int) -> int | None:
    """When a view is expected to be used again, by the mean gap of its uses; an overdue use is expected now."""
    return max(use.last_at + use.mean_gap, now) if use.mean_gap else None


def next_deadline(text: str, zone: tzinfo, now: int) -> int:
    """The first moment from `now` on at which it is that time of day."""
    hour, minute = parse_deadline(text)
    today = datetime.fromtimestamp(now / _SECOND, UTC).astimezone(zone)
    for days in (0, 1):
        moment = (today + timedelta(days=days)).replace(hour=hour, minute=minute, second=0, microsecond=0)
        if (micros := int(moment.timestamp() * _SECOND)) >= now:
            return micros
    return micros


def _zone(settings: Mapping[str, str]) -> tzinfo:
    """The time zone that a view was created under; UTC if Python does not know it."""
    try:
        return ZoneInfo(settings.get("spark.sql.session.timeZone", "UTC"))
    except (ZoneInfoNotFoundError, ValueError):
        return UTC


# -- foreground work -------------------------------------------------------------------------------


def machine_load() -> float:
    """Processes per core that wanted to run in the last minute."""
    return os.getloadavg()[0] / (os.cpu_count() or 1)


class Activity:
    """Counts the foreground work of a process, and the uses of views by it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._guard = threading.Lock()
        self._running = 0
        self._last = float("-inf")
        self._transactions: list[tuple[float, Callable[[], bool]]] = []
        self._uses: dict[int, tuple[int, int]] = {}

    @contextmanager
    def working(self) -> Iterator[None]:
        """Count the block as a statement of the user."""
        with self._guard:
            self._running += 1
        try:
            yield
        finally:
            with self._guard:
                self._running -= 1
                self._last = self._clock()

    def began(self, is_open: Callable[[], bool]) -> None:
        """Note that a transaction has begun."""
        with self._guard:
            self._transactions = [*self._young(), (self._clock(), is_open)]

    def is_busy(self) -> bool:
        """Is foreground work going on? A transaction that was left open does not count for long."""
        with self._guard:
            self._transactions = self._young()
            return self._running > 0 or bool(self._transactions) or self._clock() - self._last < _QUIET

    def _young(self) -> list[tuple[float, Callable[[], bool]]]:
        now = self._clock()
        return [(begun, is_open) for begun, is_open in self._transactions if now - begun < _YOUNG and is_open()]

    def used(self, view_id: int, now: int) -> None:
        """Note that a query used a view."""
        with self._guard:
            self._uses[view_id] = (self._uses.get(view_id, (0, 0))[0] + 1, now)

    def take_uses(self) -> dict[int, tuple[int, int]]:
        """View id → (how often, last time), since the last call."""
        with self._guard:
            taken, self._uses = self._uses, {}
            return taken


def _maintainable(waiting: Sequence[Candidate], ready: Sequence[Candidate]) -> list[Candidate]:
    """The ready views none of whose lower views is waiting without being ready."""
    free = list(ready)
    while True:
        stuck = {c.view_id for c in waiting} - {c.view_id for c in free}
        kept = [c for c in free if not stuck.intersection(c.sources)]
        if len(kept) == len(free):
            return kept
        free = kept


def with_lower(view_ids: Iterable[int], views: Mapping[int, Relation]) -> set[int]:
    """The ids of views, and of all views below them, which have to be fresh first."""
    found: set[int] = set()
    left = list(view_ids)
    while left:
        if (view_id := left.pop()) in views and view_id not in found:
            found.add(view_id)
            left += source_ids(views[view_id]).values()
    return found


# -- the manager -----------------------------------------------------------------------------------


@dataclass
class CurrentJob:
    """The job that the manager runs."""

    view: Candidate
    interruption: Interruption = field(default_factory=Interruption)
    awaited: bool = False  # a statement waits for it


@dataclass(frozen=True)
class Trouble:
    """Why a view is not maintained for now: its job failed, or another process runs it."""

    newest_csn: int  # of its tasks when it failed
    until: float | None  # when the job is tried again; None: when a new commit touches the view's tables
    attempts: int = 0


class Manager:
    """Runs one bounded job at a time, when there is time for it."""

    def __init__(
        self,
        look: Callable[[], Sequence[Candidate]],
        run: Callable[[Candidate, Interruption], bool],
        is_busy: Callable[[], bool],
        events: Events,
        *,
        policy: Policy = oldest_first,
        now: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`look` finds the views with tasks; `run` runs one job, and returns False if another process runs it."""
        self._look = look
        self._run = run
        self._is_busy = is_busy
        self._events = events
        self._policy = policy
        self._now = now
        self._clock = clock
        self._troubles: dict[int, Trouble] = {}
        self._running: CurrentJob | None = None
        self._stopped = False

    @property
    def is_running(self) -> bool:
        return self._running is not None

    def give_way(self, needed: Collection[int] = ()) -> None:
        """Cancel the current job for a statement that needs Spark, unless it is urgent or a statement waits for it.

        `needed` are the views that the statement waits for. The statement counts as foreground work already, so that
        no other job begins.
        """
        job = self._running
        if job is None or job.awaited:
            return
        if job.view.view_id in needed:
            job.awaited = True
        elif not is_urgent(job.view, self._now()):
            job.interruption.request()

    def stop(self) -> None:
        """Cancel the current job, whatever it is, and begin no other."""
        self._stopped = True
        if (job := self._running) is not None:
            job.interruption.request()

    def turn(self) -> bool:
        """Run one job, if one is due and there is time for it; return True if another turn should follow at once."""
        waiting = self._look()
        self._troubles = {i: t for i, t in self._troubles.items() if i in {c.view_id for c in waiting}}
        ready = _maintainable(waiting, [c for c in waiting if self._is_ready(c)])
        if ready and self._is_busy():
            ready = [c for c in ready if is_urgent(c, self._now())]
        chosen = choose(ready, self._policy, self._now())
        if chosen is None:
            return False
        job = CurrentJob(chosen)
        self._running = job  # before the last check: foreground work that begins now is seen there, or sees the job
        try:
            return self._may_begin(job) and self._do(job)
        finally:
            self._running = None

    def _may_begin(self, job: CurrentJob) -> bool:
        return not self._stopped and (is_urgent(job.view, self._now()) or not self._is_busy())

    def _do(self, job: CurrentJob) -> bool:
        view = job.view
        try:
            with job.interruption.here():
                done = self._run(view, job.interruption)
        except Exception as error:
            if not (isinstance(error, Cancelled) and job.interruption.requested):  # giving way is no failure
                self._leave(view, error)
        else:
            self._troubles.pop(view.view_id, None)
            if not done:
                self._troubles[view.view_id] = Trouble(view.newest_csn, self._clock() + _BACKOFF[0])
        return True

    def _is_ready(self, view: Candidate) -> bool:
        trouble = self._troubles.get(view.view_id)
        if trouble is None:
            return True
        if trouble.until is None:
            return view.newest_csn > trouble.newest_csn
        return self._clock() >= trouble.until

    def _leave(self, view: Candidate, error: Exception) -> None:
        """Note a failure: a passing one is tried again, later each time; one on wrong data waits for a new commit."""
        until, attempts = None, 0
        if is_transient(error):
            known = self._troubles.get(view.view_id)
            attempts = known.attempts + 1 if known is not None else 1
            until = self._clock() + min(_BACKOFF[0] * 2 ** (attempts - 1), _BACKOFF[1])
        self._troubles[view.view_id] = Trouble(view.newest_csn, until, attempts)
        self._events.emit("manager.failed", view_id=view.view_id, error=str(error), again=until is not None)
