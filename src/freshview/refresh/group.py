"""Jobs of several views that are stale over the same span, run as one refresh.

A view whose first task lies beyond a CSN is the same at its frontier and at that CSN, and so are its sources. So views
of different frontiers have the span from the last of these to their common end, if no task of theirs lies before it.

Law: each view of the refresh is published by compare-and-set on its own frontier; all of them in one catalog
transaction. A view that another process maintains, that cannot be computed with the others, whose data fails or whose
frontier has moved takes no part: its own job follows (`jobs.py`), and holds up no other.

A view whose rewriting reads other views is a level above them, and takes part when they have a version at the end of
its job: they are brought there first, together or each by its own job. Otherwise its own job decides what it reads.

No turn is waited for while another is held, so two refreshes cannot wait for each other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import Protocol

from freshview.catalog.frontiers import Job, ViewStep
from freshview.catalog.lineage import lower_first, read_ids
from freshview.catalog.records import Relation, RelationState
from freshview.catalog.views import ViewCatalog
from freshview.errors import Cancelled, FreshviewError, first_line
from freshview.events import Events
from freshview.refresh.execute import Change
from freshview.refresh.execute_together import Alone
from freshview.refresh.jobs import JobRunner
from freshview.refresh.points import Point
from freshview.refresh.span import Span
from freshview.refresh.tasks import Pending, pending
from freshview.storage.store import Storage

TOGETHER = True  # False: each view has jobs of its own


@dataclass(frozen=True)
class Member:
    """A view that may be refreshed with others: its tasks, and the CSN at which its next job would end."""

    view: Relation
    left: Pending
    end: int

    @property
    def start(self) -> int:
        return self.left.frontier.csn

    @property
    def tables(self) -> set[int]:
        """The tables whose changes the job takes."""
        return {table for task in self.left.tasks for table in task.tables}

    def shares(self, group: Sequence[Member]) -> bool:
        """Can the view be refreshed with these? The same tasks are beyond the frontiers of all, and one of the changes
        is theirs too."""
        members = [*group, self]
        is_one_span = max(m.start for m in members) < min(m.left.tasks[0].csn for m in members)
        return is_one_span and any(self.tables & m.tables for m in group)


class GroupExecutor(Protocol):
    """Computes the results of jobs of several views."""

    def changes(self, views: Sequence[tuple[Relation, RelationState]], span: Span) -> list[Change | Alone]:
        """The changes of several views over one span; for a view that has to be computed alone, why."""

    def sharing(self, view: Relation) -> Hashable:
        """What views that are refreshed together have in common; None if a view is not computed by delta rules."""


class GroupRunner:
    """Runs jobs of several views of one warehouse together."""

    def __init__(
        self,
        views: ViewCatalog,
        storage: Storage,
        events: Events,
        executor: GroupExecutor,
        jobs: JobRunner,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._views = views
        self._storage = storage
        self._events = events
        self._executor = executor
        self._jobs = jobs
        self._clock = clock

    def bring(
        self,
        views: Sequence[Relation],
        csn: int,
        *,
        most_rows: int | None = None,
        known: Mapping[int, Pending] | None = None,
    ) -> list[Job]:
        """Maintain views up to a CSN, lower ones first, as far as they are stale over the same spans; return the jobs.

        What their rewritings read is maintained with them. What is left has to be maintained by jobs of its own.
        `known` are the tasks up to that CSN of views, by their ids, if the caller has asked for them already.
        """
        if not TOGETHER or len(views) < 2:
            return []
        done: list[Job] = []
        left = dict(known or {})
        helping = self._helping(views)
        every = {view.id: view for view in (*helping.values(), *views)}
        for level in levels(list(every.values())):
            waiting = list(level)
            while len(waiting) > 1:
                ran = [job for group in self._groups(waiting, csn, most_rows, left) for job in self._run(group)]
                moved = {job.view_id for job in ran}
                left |= {job.view_id: left[job.view_id].after(job.to_csn) for job in ran if job.view_id in left}
                waiting = [view for view in waiting if view.id in moved]
                done += ran
            done += [job for view in level if view.id in helping for job in self._alone(view, csn, most_rows)]
        return done

    def _helping(self, views: Sequence[Relation]) -> dict[int, Relation]:
        """The views that the rewritings of views read, and all views that those read."""
        found: dict[int, Relation] = {}
        left = [one for view in views for one in self._views.rewriting_sources(view)]
        while left:
            one = left.pop()
            if one.kind == "view" and one.id not in found:
                found[one.id] = one
                left += self._views.catalog.relations_by_id(read_ids(one)).values()
        return found

    def _alone(self, view: Relation, csn: int, most_rows: int | None) -> list[Job]:
        """Maintain a view that rewritings read by jobs of its own, as far as it was not refreshed with others. One that
        fails holds up no view: those that are rewritten over it have their own jobs."""
        try:
            return self._jobs.bring(view, csn, most_rows=most_rows)
        except Cancelled:
            raise
        except FreshviewError:
            return []

    def step(self, view: Relation, others: Sequence[Relation], csn: int, *, most_rows: int | None = None) -> list[Job]:
        """Run one refresh of a view towards a CSN, with those of the others that share its change and span; return the
        jobs, none if there is no other such view. Views below these have to have been maintained."""
        return self._run(self.members(view, others, csn, most_rows=most_rows))

    def members(
        self, view: Relation, others: Sequence[Relation], csn: int, *, most_rows: int | None = None
    ) -> list[Member]:
        """A view and those of the others that would be refreshed with it towards a CSN; none if it has no company.
        Views below these have to have been maintained."""
        groups = self._groups([view, *others], csn, most_rows) if TOGETHER and others else []
        return next((g for g in groups if any(m.view.id == view.id for m in g)), [])

    def span(self, group: Sequence[Member]) -> Span:
        """The span over which all of these views are stale."""
        start, end = Point(max(member.start for member in group)), Point(group[0].end)
        return Span(self._views.catalog, self._storage, start, end)

    def stored(self, member: Member) -> RelationState:
        """The rows of a view before. They are read as they will be from now on, though the view may have had a key
        when they were stored."""
        return replace(self._views.stored(member.view, member.start), relation=member.view)

    def _groups(
        self, views: Iterable[Relation], csn: int, most_rows: int | None, known: Mapping[int, Pending] | None = None
    ) -> list[list[Member]]:
        """The views that have tasks, with those that are stale over the same span and share a change."""
        alike: dict[object, list[list[Member]]] = {}
        for view in views:
            member = self._member(view, csn, most_rows, (known or {}).get(view.id))
            common = self._sharing(view) if member is not None else None
            if member is not None and common is not None:
                groups = alike.setdefault((member.end, common), [])
                group = next((g for g in groups if member.shares(g)), None)
                groups.append([member]) if group is None else group.append(member)
        return [group for groups in alike.values() for group in groups if len(group) > 1]

    def _member(self, view: Relation, csn: int, most_rows: int | None, left: Pending | None) -> Member | None:
        """A view with its tasks; None if it has none, has seen a part of one, has to be recomputed, or if a view that
        its definition or its rewriting reads has no version at that CSN yet."""
        try:
            left = left if left is not None else pending(self._views, view, csn)
            if not left.tasks or left.reset or left.frontier.stmtsn:
                return None
            end = self._jobs.next_end(view, left, most_rows)
            read = [*self._views.sources(view).values(), *self._views.rewriting_sources(view)]
            below = [source for source in read if source.kind == "view"]
            if not all(self._views.has_version(source, end) for source in below):
                return None
            return Member(view, left.upto(end), end)
        except FreshviewError:  # its own job raises the error
            return None

    def _sharing(self, view: Relation) -> Hashable:
        """What a view has in common with those that it may be refreshed with; None if it is computed alone."""
        try:
            return self._executor.sharing(view)
        except Cancelled:
            raise
        except Exception:  # its definition cannot be read: its own job raises the error
            return None

    def _run(self, group: Sequence[Member]) -> list[Job]:
        """One refresh of the views whose turn it is."""
        begun = self._clock()
        with ExitStack() as stack:
            taken = [
                member
                for member in sorted(group, key=lambda m: m.view.id)
                if stack.enter_context(self._jobs.turns.turn(member.view, member.left.frontier, wait=False))
            ]
            if len(taken) < 2:
                return []
            pin = self._views.catalog.begin("job", at=min(member.start for member in taken))
            stack.callback(self._views.catalog.release, pin)
            computed = self._computed(taken)
            share = self._clock() - begun - sum(change.seconds for _, change in computed)
            steps: list[tuple[Member, ViewStep]] = []
            published: list[bool] = []
            try:
                for member, change in computed:
                    if (step := self._stored(member, change, share / len(computed))) is not None:
                        steps.append((member, step))
                with suppress(FreshviewError):  # nothing was published; their own jobs raise the error
                    published = self._views.apply_each([step for _, step in steps])
            finally:
                published = published or [False] * len(steps)
                for (_, step), done in zip(steps, published, strict=True):
                    if not done:
                        self._jobs.give_up(step)
        for (member, _), done in zip(steps, published, strict=True):
            self._jobs.ended(member.view, member.left, member.end, done=done)
        return [step.job for (_, step), done in zip(steps, published, strict=True) if done]

    def _computed(self, taken: Sequence[Member]) -> list[tuple[Member, Change]]:
        """The changes of the views; those that have to be computed alone are left out."""
        try:
            changes = self._executor.changes([(m.view, self.stored(m)) for m in taken], self.span(taken))
        except Cancelled:
            raise
        except Exception as error:  # of ours too: a defect in one view's plan holds up no other, and its job raises it
            changes = [first_line(error)] * len(taken)
        found = []
        for member, change in zip(taken, changes, strict=True):
            if isinstance(change, Change):
                found.append((member, change))
            else:
                self._events.emit("job.alone", view=member.view.name, why=change)
        return found

    def _stored(self, member: Member, change: Change, share: float) -> ViewStep | None:
        """A change that is stored and can be published; None if it cannot be stored."""
        phases = {"wait": 0.0, "sources": 0.0, "compute": change.seconds, "shared": share}
        seconds = change.seconds + share
        try:
            return self._jobs.stored(member.view, member.left, member.end, change, phases, seconds)
        except FreshviewError as error:
            self._events.emit("job.alone", view=member.view.name, why=first_line(error))
            return None


def levels(views: Sequence[Relation]) -> list[list[Relation]]:
    """Views by level: those of one level, and their rewritings, read none of the others, and only lower levels."""
    heights: dict[int, int] = {}
    for view in lower_first(views):
        heights[view.id] = 1 + max((heights.get(i, 0) for i in read_ids(view)), default=0)
    return [[v for v in views if heights[v.id] == height] for height in sorted(set(heights.values()))]
