"""Views and tasks as status(), SHOW and EXPLAIN tell of them: from the catalog alone, a few questions for all."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import timedelta

from freshview.catalog.records import Relation
from freshview.catalog.reports import Reports, ViewReport
from freshview.catalog.views import ViewCatalog
from freshview.catalog.writer import Catalog
from freshview.definition.properties import is_auto, mode_of, next_runs, policy_of
from freshview.definition.verdict import Verdict
from freshview.refresh.explain import explained
from freshview.schedule.advice import Advice, advised
from freshview.views.views import Views


@dataclass(frozen=True)
class ViewStatus:
    """One view in a status report. What changes by itself, as time goes by, is left out of comparisons.

    >>> view = freshview.ViewStatus("totals", "lazy", False, 7, pending_tasks=2, pending_rows=30, last_error=None)
    >>> view.name, view.mode, view.frontier, view.pending_tasks
    ('totals', 'lazy', 7, 2)
    """

    name: str
    mode: str  # "lazy" | "eager" | "auto" | "deferred"
    eager: bool  # maintained inside commits now; 'auto' may change it
    frontier: int  # the CSN up to which it is maintained
    pending_tasks: int
    pending_rows: int
    last_error: str | None  # of the newest job, if that failed
    age: timedelta = field(default=timedelta(0), compare=False)  # of the oldest task
    in_progress: bool = field(default=False, compare=False)
    advice: str = field(default="", compare=False)  # the mode that would suit it, and why
    scenario: str = ""  # of a deferred view
    shown: int | None = None  # the CSN as of which a deferred view is read; others are fresh
    next_runs: str = field(default="", compare=False)  # when a deferred view's policies act next
    reading: str = ""  # what Spark said of how the text was read: proven by plan, tested, or recomputed and why


def overview(catalog: Catalog) -> tuple[ViewStatus, ...]:
    """All views, by name."""
    reports, now = Reports(catalog).views(), catalog.now()
    advice = advised(reports)
    return tuple(_status(report, advice[report.view.id], now) for report in reports)


def _status(report: ViewReport, advice: Advice, now: int) -> ViewStatus:
    left = report.backlog
    known = ViewStatus(
        report.view.name, "auto" if is_auto(report.view) else mode_of(report.eager), report.eager, report.frontier,
        left.tasks if left else 0, left.rows if left else 0, report.error,
        timedelta(microseconds=max(now - left.oldest_at, 0) if left else 0), report.in_progress, str(advice),
        reading=_reading(report.view),
    )  # fmt: skip
    if report.deferral is None:
        return known
    policy = policy_of(report.view)
    return replace(
        known, mode="deferred", advice="", scenario=policy.scenario, shown=report.deferral.shown,
        next_runs=next_runs(policy, report.deferral),
    )  # fmt: skip


def _reading(view: Relation) -> str:
    verdict = Verdict.of(view.facts)
    return str(verdict) if verdict is not None else "not asked about yet"


@dataclass(frozen=True)
class TaskStatus:
    """A task as SHOW TASKS tells it: a transaction that a view has not seen, or, with a `stmtsn`, has seen in part."""

    view: str
    txsn: int
    csn: int
    stmtsn: int
    tables: tuple[str, ...]
    rows: int
    age: timedelta
    in_progress: bool

    @property
    def status(self) -> str:
        return "in progress" if self.in_progress else "pending"


def pending_tasks(catalog: Catalog) -> list[TaskStatus]:
    """The tasks of all views, in commit order."""
    views, now = ViewCatalog(catalog), catalog.now()
    names, at_work = {r.id: r.name for r in catalog.relations()}, views.in_progress()
    return [
        TaskStatus(
            names[t.view_id], t.txsn, t.csn, t.stmtsn, tuple(names.get(i, "?") for i in t.tables), t.rows,
            timedelta(microseconds=max(now - t.committed_at, 0)), t.view_id in at_work,
        )
        for t in views.tasks()
        if t.view_id in names  # one that was dropped meanwhile has no tasks
    ]  # fmt: skip


def told_mode(status: ViewStatus) -> str:
    """The mode in words: what 'auto' has come to, and a deferred view's scenario, are told with it."""
    if status.mode == "deferred":
        return f"deferred ({status.scenario})"
    return f"auto ({mode_of(status.eager)} now)" if status.mode == "auto" else status.mode


def told_condition(status: ViewStatus) -> str:
    """How a view is doing, in words."""
    if status.in_progress:
        return "in progress"
    if status.last_error is not None:
        return f"failed: {status.last_error}"
    if status.shown is not None:
        return f"shows CSN {status.shown}"
    return "pending" if status.pending_tasks else "fresh"


def mode_line(catalog: Catalog, view: Relation) -> str:
    """A view's mode and the advice on it, in one line."""
    found = [s for s in overview(catalog) if s.name == view.name]
    if not found:
        return ""
    status = found[0]
    if status.mode == "deferred":
        due = f"; next: {status.next_runs}" if status.next_runs else ""
        return f"mode: {told_mode(status)}; shows CSN {status.shown}{due}"
    return f"mode: {told_mode(status)}; advice: {status.advice}"


def explain_view(views: Views, view: Relation) -> str:
    """How a view is stored and maintained, operator by operator, and the plan of its next job."""
    mode = mode_line(views.catalog.catalog, view)
    done = [job for job in views.catalog.history(view) if job.error is None]
    last = done[-1].condense if done else None
    ahead = views.maintenance.next_job(view)
    return explained(view.name, views.definitions.of(view), views.catalog.frontier(view), mode, last, ahead)
