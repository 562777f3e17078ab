"""The maintenance manager: which view next, and when (LAZY §2.2.2, §3.5).

It wakes every few seconds. If nothing is pending or the system is busy it sleeps again; else it runs one bounded job,
looks again, and so gives way to a burst of foreground work between two jobs. Foreground work that needs Spark has the
job at hand cancelled; it is taken up again when all is quiet. The choice is made by pure functions over plain data.

Law: no view starves. Whatever the policy, a view whose oldest task has waited for long goes first, busy or not, and its
job is not cancelled.
Law: what a statement waits for is not cancelled.
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

BACKGROUND_ROWS = 50_000  # pending delta rows that a background job takes: small, so that it can give way
_SECOND = 1_000_000
_PATIENCE = 300 * _SECOND  # a task that has waited this long goes before the policy's choice, even if all is busy
_LEAD = 1800 * _SECOND  # this long before its deadline a view goes first
_BACKOFF = (2.0, 300.0)  # seconds until a passing failure is tried again: at first, at most
BUSY_LOAD = 2.0  # processes per core that want to run; a job of our own makes about one
_QUIET = 0.5  # seconds without a statement: what a query returned is being computed after it
_YOUNG = 30.0  # seconds that an open transaction counts as work going on


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
    """Old tasks hold back the space of all younger ones."""
    return (view.oldest_at,)


def expected_use_first(view: Candidate) -> tuple[float, ...]:
    """What will be asked for soonest is fresh by then."""
    return (float("inf") if view.next_use is None else view.next_use, view.oldest_at)


def largest_first(view: Candidate) -> tuple[float, ...]:
    """Frees the most space."""
    return (-view.rows, view.oldest_at)


POLICIES: Mapping[str, Policy] = {"oldest": oldest_first, "use": expected_use_first, "size": largest_first}


def is_urgent(view: Candidate, now: int) -> bool:
    """Its deadline is near, or it has waited for too long."""
    if view.deadline is not None and view.deadline - now <= _LEAD:
        return True
    return view.deadline is None and now - view.oldest_at > _PATIENCE


def choose(candidates: Sequence[Candidate], policy: Policy, now: int) -> Candidate | None:
    """The view to maintain next: the urgent before others, those with a far deadline last; lower views before upper."""

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
    """What the catalog knows of a view with tasks, as a policy wants it."""
    deadline = view.properties.get("deadline")
    settings = json.loads(view.facts.get("settings", "{}"))
    return Candidate(
        backlog.view_id, backlog.oldest_at, backlog.newest_csn, backlog.rows,
        tuple(source_ids(view).values()), next_use(use, now) if use is not None else None,
        # One that was missed stays: the view is as urgent as before.
        next_deadline(deadline, _zone(settings), backlog.oldest_at) if deadline is not None else None,
    )  # fmt: skip


def candidates(views: ViewCatalog) -> list[Candidate]:
    """The views that have something to do, as the manager's policies see them; deferred ones when they are due."""
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
    """When a view is expected to be used again, from its mean gap; a use that is overdue is expected now."""
    return max(use.last_at + use.mean_gap, now) if use.mean_gap else None


def next_deadline(text: str, zone: tzinfo, now: int) -> int:
    """The first moment from now at which it is that time of day."""
    hour, minute = parse_deadline(text)
    today = datetime.fromtimestamp(now / _SECOND, UTC).astimezone(zone)
    for days in (0, 1):
        moment = (today + timedelta(days=days)).replace(hour=hour, minute=minute, second=0, microsecond=0)
        if (micros := int(moment.timestamp() * _SECOND)) >= now:
            return micros
    return micros


def _zone(settings: Mapping[str, str]) -> tzinfo:
    """The time zone that a view was created under; UTC for one that only Spark knows."""
    try:
        return ZoneInfo(settings.get("spark.sql.session.timeZone", "UTC"))
    except (ZoneInfoNotFoundError, ValueError):
        return UTC


# -- foreground work -------------------------------------------------------------------------------


def machine_load() -> float:
    """Processes per core that wanted to run in the last minute."""
    return os.getloadavg()[0] / (os.cpu_count() or 1)


class Activity:
    """Counts the foreground work of a process, and which views it used."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._guard = threading.Lock()
        self._running = 0
        self._last = float("-inf")
        self._transactions: list[tuple[float, Callable[[], bool]]] = []
        self._uses: dict[int, tuple[int, int]] = {}

    @contextmanager
    def working(self) -> Iterator[None]:
        """A statement of the user's runs."""
        with self._guard:
            self._running += 1
        try:
            yield
        finally:
            with self._guard:
                self._running -= 1
                self._last = self._clock()

    def began(self, is_open: Callable[[], bool]) -> None:
        """A transaction has begun."""
        with self._guard:
            self._transactions = [*self._young(), (self._clock(), is_open)]

    def is_busy(self) -> bool:
        """Is foreground work going on? A transaction that somebody left open does not count for long."""
        with self._guard:
            self._transactions = self._young()
            return self._running > 0 or bool(self._transactions) or self._clock() - self._last < _QUIET

    def _young(self) -> list[tuple[float, Callable[[], bool]]]:
        now = self._clock()
        return [(begun, is_open) for begun, is_open in self._transactions if now - begun < _YOUNG and is_open()]

    def used(self, view_id: int, now: int) -> None:
        """A query used a view."""
        with self._guard:
            self._uses[view_id] = (self._uses.get(view_id, (0, 0))[0] + 1, now)

    def take_uses(self) -> dict[int, tuple[int, int]]:
        """View id → (how often, last time), since the last call."""
        with self._guard:
            taken, self._uses = self._uses, {}
            return taken


def _maintainable(waiting: Sequence[Candidate], ready: Sequence[Candidate]) -> list[Candidate]:
    """Those that wait for no view below them that is left alone for now."""
    free = list(ready)
    while True:
        stuck = {c.view_id for c in waiting} - {c.view_id for c in free}
        kept = [c for c in free if not stuck.intersection(c.sources)]
        if len(kept) == len(free):
            return kept
        free = kept


def with_lower(view_ids: Iterable[int], views: Mapping[int, Relation]) -> set[int]:
    """Views, and all views below them: what has to be fresh for them to be."""
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
    """The job at hand."""

    view: Candidate
    interruption: Interruption = field(default_factory=Interruption)
    awaited: bool = False  # a statement waits for it


@dataclass(frozen=True)
class Trouble:
    """Why a view is left alone for now."""

    newest_csn: int  # of its tasks when it failed
    until: float | None  # when it is tried again; None: when a new commit touches its tables
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
        """`look` finds the views with tasks; `run` does one job, False if somebody else is at it."""
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
        """A statement that needs Spark begins: cancel the job at hand, unless it is urgent or what somebody waits for.

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
        """Cancel the job at hand, whatever it is, and begin no other."""
        self._stopped = True
        if (job := self._running) is not None:
            job.interruption.request()

    def turn(self) -> bool:
        """One job, if there is one to do and time for it; True if another turn should follow at once."""
        waiting = self._look()
        self._troubles = {i: t for i, t in self._troubles.items() if i in {c.view_id for c in waiting}}
        ready = _maintainable(waiting, [c for c in waiting if self._is_ready(c)])
        if ready and self._is_busy():
            ready = [c for c in ready if is_urgent(c, self._now())]
        chosen = choose(ready, self._policy, self._now())
        if chosen is None:
            return False
        job = CurrentJob(chosen)
        self._running = job  # before the last look: foreground work that begins now is seen, or sees the job
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
        """A passing failure is tried again, later each time; wrong data waits for a commit that may correct it."""
        until, attempts = None, 0
        if is_transient(error):
            known = self._troubles.get(view.view_id)
            attempts = known.attempts + 1 if known is not None else 1
            until = self._clock() + min(_BACKOFF[0] * 2 ** (attempts - 1), _BACKOFF[1])
        self._troubles[view.view_id] = Trouble(view.newest_csn, until, attempts)
        self._events.emit("manager.failed", view_id=view.view_id, error=str(error), again=until is not None)
