"""Views and tasks as status(), SHOW and EXPLAIN report them: from the catalog alone, by a few queries for all views."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import timedelta

from freshview.catalog.lineage import is_auxiliary
from freshview.catalog.records import Relation
from freshview.catalog.reports import Reports, ViewReport
from freshview.catalog.views import ViewCatalog
from freshview.catalog.writer import Catalog
from freshview.definition.properties import is_auto, mode_of, next_runs, policy_of
from freshview.definition.rewriting import Rewriting
from freshview.definition.verdict import Verdict
from freshview.refresh.explain import explained, planned_together
from freshview.schedule.advice import Advice, advised
from freshview.views.benefit import about
from freshview.views.views import Views


@dataclass(frozen=True)
class ViewStatus:
    """One view in a status report. Fields that change with time alone do not count in comparisons.

    >>> view = freshview.ViewStatus("totals", "lazy", False, 7, pending_tasks=2, pending_rows=30, last_error=None)
    >>> view.name, view.mode, view.frontier, view.pending_tasks
    ('totals', 'lazy', 7, 2)
    """

    name: str
    mode: str  # "lazy" | "eager" | "auto" | "deferred" | "auxiliary"
    eager: bool  # whether commits maintain the view now; 'auto' may change it
    frontier: int  # the CSN up to which the view is maintained
    pending_tasks: int
    pending_rows: int
    last_error: str | None  # of the newest job, if it failed
    age: timedelta = field(default=timedelta(0), compare=False)  # of the oldest task
    in_progress: bool = field(default=False, compare=False)
    advice: str = field(default="", compare=False)  # the mode that would suit the view, and why
    scenario: str = ""  # of a deferred view
    shown: int | None = None  # the CSN that a deferred view shows; None for other modes
    next_runs: str = field(default="", compare=False)  # when a deferred view's policies act next
    reading: str = ""  # the verdict on how the text was read: proven by plan, tested, or recomputed and why
    about: str = field(default="", compare=False)  # why an auxiliary view is stored; what a view is rewritten over


def overview(catalog: Catalog) -> tuple[ViewStatus, ...]:
    """Return the status of every view, ordered by name."""
    reports, now = Reports(catalog).views(), catalog.now()
    advice, every = advised(reports), catalog.relations()
    history = ViewCatalog(catalog).history() if any(map(is_auxiliary, every)) else []
    found = (_status(report, advice[report.view.id], now) for report in reports)
    return tuple(replace(s, about=about(r.view, every, history)) for s, r in zip(found, reports, strict=True))


def _status(report: ViewReport, advice: Advice, now: int) -> ViewStatus:
    view, eager, left = report.view, report.eager, report.backlog
    tasks, rows, age = (left.tasks, left.rows, _age(left.oldest_at, now)) if left else (0, 0, timedelta(0))
    mode = "auxiliary" if is_auxiliary(view) else "auto" if is_auto(view) else mode_of(eager)
    known = ViewStatus(view.name, mode, eager, report.frontier, tasks, rows, report.error, age, report.in_progress)
    known = replace(known, advice="" if is_auxiliary(view) else str(advice), reading=_reading(view))
    if report.deferral is None:
        return known
    policy, shown = policy_of(view), report.deferral.shown
    due = next_runs(policy, report.deferral)
    return replace(known, mode="deferred", advice="", scenario=policy.scenario, shown=shown, next_runs=due)


def _age(moment: int, now: int) -> timedelta:
    """Return the time since a moment; 0 if the clock has gone back."""
    return timedelta(microseconds=max(now - moment, 0))


def _reading(view: Relation) -> str:
    verdict = Verdict.of(view.facts)
    return str(verdict) if verdict is not None else "not asked about yet"


@dataclass(frozen=True)
class TaskStatus:
    """A task as SHOW TASKS lists it: a commit that a view has not seen or, with a `stmtsn`, has seen in part."""

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
    """Return the tasks of all views, in commit order."""
    views, now = ViewCatalog(catalog), catalog.now()
    names, at_work = {r.id: r.name for r in catalog.relations()}, views.in_progress()
    found = []
    for t in views.tasks():
        if t.view_id in names:  # a view that was dropped meanwhile has no tasks
            view, tables, age = names[t.view_id], tuple(names.get(i, "?") for i in t.tables), _age(t.committed_at, now)
            found.append(TaskStatus(view, t.txsn, t.csn, t.stmtsn, tables, t.rows, age, t.view_id in at_work))
    return found


def mode_text(status: ViewStatus) -> str:
    """Return the mode in words, with the choice of 'auto' or the scenario of a deferred view."""
    if status.mode == "deferred":
        return f"deferred ({status.scenario})"
    return f"auto ({mode_of(status.eager)} now)" if status.mode == "auto" else status.mode


def condition_text(status: ViewStatus) -> str:
    """Return the condition of a view in words: in progress, failed, pending, fresh, or what it shows."""
    if status.in_progress:
        return "in progress"
    if status.last_error is not None:
        return f"failed: {status.last_error}"
    if status.shown is not None:
        return f"shows CSN {status.shown}"
    return "pending" if status.pending_tasks else "fresh"


def mode_line(catalog: Catalog, view: Relation) -> str:
    """Return a view's mode and the advice on it, or a deferred view's next runs, in one line."""
    status = next((s for s in overview(catalog) if s.name == view.name), None)
    if status is None:
        return ""
    if status.mode == "deferred":
        due = f"; next: {status.next_runs}" if status.next_runs else ""
        return f"mode: {mode_text(status)}; shows CSN {status.shown}{due}"
    return f"mode: {mode_text(status)}" + (f"; advice: {status.advice}" if status.advice else "")


def explain_view(views: Views, view: Relation) -> str:
    """Return how a view is stored and maintained, operator by operator, and the plan of its next job."""
    mode = mode_line(views.catalog.catalog, view)
    done = [job for job in views.catalog.history(view) if job.error is None]
    past = (done, views.catalog.factors(view))
    ahead = views.maintenance.next_job(view)
    definition, kept = views.definitions.of(view), Rewriting.of(view)
    proof = kept.proof if kept is not None else ""
    text = explained(view.name, definition, views.catalog.frontier(view), mode, past, ahead, proof)
    status = next((s.about for s in overview(views.catalog.catalog) if s.name == view.name and s.about), "")
    text = f"{text}\n  {status}" if status else text
    together = views.maintenance.next_refresh(view)
    return text if together is None else "\n".join([text, *planned_together(view.name, together)])
