"""When lazy, when eager (LAZY §6.1): advice on a view's mode, from measurements.

What counts is the ratio of updates to queries, how soon queries follow, the size of updates and the cost of
maintaining them. Eager suits updates that are rare, small and cheap to follow, and soon queried: then there is nothing
to combine, and under lazy maintenance the query would wait. In all other cases lazy is better.

Law: a mode changes only with a clear margin, and not before enough is known; so advice does not swing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from freshview.catalog.records import Relation
from freshview.catalog.reports import Measures, ViewReport
from freshview.definition.properties import is_auto, keeps_lazy, mode_of
from freshview.errors import FreshviewError
from freshview.events import Events

MARGIN = 2.0  # by which one mode must be better than the other for a change
_SOON = 60.0  # seconds to the next query: a later one finds the view maintained by the manager
_ROWS = 10_000  # delta rows of a small update
_SECONDS = 2.0  # for which a writer may be kept waiting
_HOURS, _UPDATES, _USES, _JOBS = 0.25, 10, 10, 3  # measured at least, before advice is given


@dataclass(frozen=True)
class Advice:
    """The mode that suits a view, and why."""

    mode: str  # "lazy" | "eager"
    reason: str

    def __str__(self) -> str:
        return f"{self.mode}, since {self.reason}"


def advise(measures: Measures, eager: bool, hindrance: str = "") -> Advice:
    """Advice for a view that is eager or lazy now; `hindrance` is why it cannot be changed to the other mode."""
    unknown = _unknown(measures)
    if unknown:
        return Advice(mode_of(eager), f"not enough is known ({unknown})")
    weakest, lean = min(_leanings(measures).items(), key=lambda entry: entry[1])
    if 1 / MARGIN < lean < MARGIN:
        return Advice(mode_of(eager), f"neither is clearly better: {_numbers(measures)}")
    wanted = lean >= MARGIN
    reason = f"{_EAGER if wanted else _LAZY[weakest]}: {_numbers(measures)}"
    if wanted != eager and hindrance:
        return Advice(mode_of(eager), f"{hindrance}, although {mode_of(wanted)} would be better: {reason}")
    return Advice(mode_of(wanted), reason)


def _unknown(measures: Measures) -> str:
    """What has not been measured often or long enough; empty if everything has."""
    counts = ((measures.updates, _UPDATES), (measures.uses, _USES), (measures.jobs, _JOBS))
    for (found, least), what in zip(counts, ("updates", "queries", "jobs"), strict=True):
        if found < least:
            return f"{found} {what}, {least} are needed"
    known = measures.hours >= _HOURS and measures.queries_per_hour is not None
    return "" if known else f"{_HOURS} hours of use are needed"


def _leanings(measures: Measures) -> dict[str, float]:
    """How far each measurement speaks for eager (above 1) or for lazy (below 1): eager needs all of them."""
    queries = measures.queries_per_hour or 0.0
    return {
        "ratio": queries / measures.updates_per_hour,
        "soon": queries * _SOON / 3600,
        "rows": _ROWS / max(measures.rows, 1),
        "seconds": _SECONDS / max(measures.seconds, 0.001),
    }


_EAGER = "updates are few and small, and queries follow at once"
_LAZY = {
    "ratio": "updates are more than queries, so combining them saves work",
    "soon": "queries come late enough to find it maintained",
    "rows": "updates are large, so their writers would wait",
    "seconds": "maintenance takes long, so writers would wait",
}


def _numbers(measures: Measures) -> str:
    queries = measures.queries_per_hour or 0.0
    return (
        f"{measures.updates_per_hour:.3g} updates and {queries:.3g} queries an hour, "
        f"{measures.rows:.3g} rows an update, {measures.seconds:.2g} s a job"
    )


# -- for all views -----------------------------------------------------------------------------------


def advised(reports: Sequence[ViewReport]) -> dict[int, Advice]:
    """Advice for each view, by id."""
    eager = {r.view.id for r in reports if r.eager}
    return {r.view.id: advise(r.measures, r.eager, _hindrance(r, reports, eager)) for r in reports}


def _hindrance(report: ViewReport, reports: Iterable[ViewReport], eager: set[int]) -> str:
    """Why a view has to keep its mode; empty if it may change. Commits must maintain all that an eager view reads."""
    if report.eager:
        above = [r.view.name for r in reports if r.eager and report.view.id in {s.id for s in r.sources}]
        return f"the eager view {above[0]} reads it" if above else ""
    source = keeps_lazy(report.sources, lambda view: view.id in eager)
    if source is None:
        return ""
    if source.is_external:
        return f"others write {source.name}, which it reads"
    return f"it reads {source.name}, which is lazy"


def apply_advice(
    reports: Sequence[ViewReport], set_eager: Callable[[Relation, bool], None], events: Events
) -> Mapping[str, str]:
    """Change the modes that are left to the advice, where that is possible; return view name → new mode."""
    advice, changed = advised(reports), {}
    for report in reports:
        view, wanted = report.view, advice[report.view.id]
        if not is_auto(view) or wanted.mode == mode_of(report.eager):
            continue
        if wanted.mode == "eager" and report.backlog is not None:
            continue  # the manager brings it up to date first, in jobs that give way
        try:
            set_eager(view, wanted.mode == "eager")
        except FreshviewError as error:
            events.emit("advice.refused", view=view.name, mode=wanted.mode, error=str(error))
        else:
            changed[view.name] = wanted.mode
            events.emit("advice.applied", view=view.name, mode=wanted.mode, reason=wanted.reason)
    return changed
