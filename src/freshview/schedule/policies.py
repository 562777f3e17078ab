"""Which view next: policies over plain data (LAZY §3.5).

Law: no view starves. Whatever the policy, a view whose oldest task has waited for long goes first.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta, tzinfo
from graphlib import TopologicalSorter
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from freshview.catalog.deferred import DeferredCatalog
from freshview.catalog.lineage import rewriting_ids, source_ids
from freshview.catalog.records import Backlog, Relation
from freshview.catalog.uses import UseHistory
from freshview.catalog.views import ViewCatalog
from freshview.definition.properties import is_deferred, parse_deadline, policy_of

_SECOND = 1_000_000
_PATIENCE = 300 * _SECOND  # a task that has waited this long goes before the policy's choice
_PROGRESS = 10 * _SECOND  # a task that has waited this long is worth a job even if all is busy, and one of its own
_LEAD = 1800 * _SECOND  # this long before its deadline a view goes first


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
    oldest_csn: int = 0  # of its tasks
    helpers: tuple[int, ...] = ()  # ids of the views that its rewriting reads: they go first if they can

    def holds_up(self, upper: Candidate, now: int) -> bool:
        """Does a view that reads this one wait for it? If it has waited for long, a version of this one beyond its
        oldest task will do: under a stream of commits this one always has tasks. Others are spared a further job."""
        return self.view_id in upper.sources and self._is_behind(upper, now)

    def goes_before(self, upper: Candidate, now: int) -> bool:
        """Is this one maintained before the other, if both can be?"""
        return self.view_id in (*upper.sources, *upper.helpers) and self._is_behind(upper, now)

    def _is_behind(self, upper: Candidate, now: int) -> bool:
        return self.oldest_csn <= upper.oldest_csn or now - upper.oldest_at <= _PROGRESS


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


def is_near(view: Candidate, now: int) -> bool:
    """Is the deadline of a view near, or past?"""
    return view.deadline is not None and view.deadline - now <= _LEAD


def has_waited(view: Candidate, now: int) -> bool:
    """Has a view waited for so long that a job is worth while even beside foreground work? One with a deadline waits
    for that."""
    return view.deadline is None and now - view.oldest_at > _PROGRESS


def is_urgent(view: Candidate, now: int) -> bool:
    """Does a view go before the policy's choice: is its deadline near, or does it starve?"""
    return is_near(view, now) or (view.deadline is None and now - view.oldest_at > _PATIENCE)


def choose(candidates: Sequence[Candidate], policy: Policy, now: int) -> Candidate | None:
    """The view to maintain next: urgent ones first, those with a far deadline last; lower views before upper, and views
    that a rewriting reads before the rewritten one, so that each of them can be refreshed with others."""

    def rank(view: Candidate) -> tuple[float, ...]:
        if is_urgent(view, now):
            return (0, view.deadline if view.deadline is not None else view.oldest_at, view.view_id)
        return (1 if view.deadline is None else 2, *policy(view), view.view_id)

    if not candidates:
        return None
    chosen = min(candidates, key=rank)
    while below := [c for c in candidates if c.goes_before(chosen, now)]:
        chosen = min(below, key=rank)
    return chosen


def last_csn(view: Candidate, waiting: Iterable[Candidate]) -> int | None:
    """The CSN up to which a view can be maintained without a job of those below it; None: up to any."""
    below = [c.oldest_csn for c in waiting if c.view_id in view.sources]
    return min(below) - 1 if below else None


def candidate(backlog: Backlog, view: Relation, use: UseHistory | None, now: int) -> Candidate:
    """The catalog's data on a view with tasks, as a policy sees it."""
    text, settings = view.properties.get("deadline"), json.loads(view.facts.get("settings", "{}"))
    expected = next_use(use, now) if use is not None else None
    # The first deadline after the oldest task: a missed one stays, so that the view is as urgent as before.
    deadline = next_deadline(text, _zone(settings), backlog.oldest_at) if text is not None else None
    b, sources = backlog, tuple(source_ids(view).values())
    helpers = tuple(rewriting_ids(view).values())
    known = Candidate(b.view_id, b.oldest_at, b.newest_csn, b.rows, sources, expected, deadline, b.oldest_csn)
    return replace(known, helpers=helpers)


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


def next_use(use: UseHistory, now: int) -> int | None:
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


def maintainable(waiting: Sequence[Candidate], ready: Sequence[Candidate], now: int) -> list[Candidate]:
    """The ready views that are held up by no view that is waiting without being ready."""
    free = list(ready)
    while True:
        ids = {c.view_id for c in free}
        stuck = [c for c in waiting if c.view_id not in ids]
        kept = [c for c in free if not any(lower.holds_up(c, now) for lower in stuck)]
        if len(kept) == len(free):
            return kept
        free = kept


def inherited(waiting: Sequence[Candidate], now: int) -> list[Candidate]:
    """The views with the haste of those that they hold up: the oldest task of such a view, and its near deadline.

    A view below goes first, so without this an urgent view would wait for one that nothing hurries.
    """
    hasty = {c.view_id: c for c in waiting}
    for view in reversed(_lower_first(waiting)):
        view = hasty[view.view_id]
        for below in [hasty[s] for s in view.sources if s in hasty and hasty[s].holds_up(view, now)]:
            oldest = min(below.oldest_at, view.oldest_at)
            deadline = min(filter(None, (view.deadline, below.deadline))) if is_near(view, now) else below.deadline
            hasty[below.view_id] = replace(below, oldest_at=oldest, deadline=deadline)
    return [hasty[c.view_id] for c in waiting]


def _lower_first(views: Sequence[Candidate]) -> list[Candidate]:
    """Sort views so that each comes after those that it reads."""
    known = {c.view_id: c for c in views}
    reads = {c.view_id: [s for s in c.sources if s in known] for c in views}
    return [known[id_] for id_ in TopologicalSorter(reads).static_order()]


def with_lower(view_ids: Iterable[int], views: Mapping[int, Relation]) -> set[int]:
    """The ids of views, and of all views below them, which have to be fresh first."""
    found: set[int] = set()
    left = list(view_ids)
    while left:
        if (view_id := left.pop()) in views and view_id not in found:
            found.add(view_id)
            left += source_ids(views[view_id]).values()
    return found
