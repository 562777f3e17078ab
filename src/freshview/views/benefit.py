"""What auxiliary views cost and save, by the times of jobs in the history, before and after views were rewritten.

A view's job is compared with the mean of its jobs before it was rewritten; the part of several auxiliary views in one
rewriting is not known, each gets the same share. An auxiliary view costs the time of its own jobs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from freshview.catalog.frontiers import Job
from freshview.catalog.lineage import is_auxiliary, rewriting_ids, source_ids
from freshview.catalog.records import Relation
from freshview.catalog.views import ViewCatalog
from freshview.definition.rewriting import Auxiliary, Rewriting

_PAST = 20  # jobs before a rewriting whose mean counts


@dataclass(frozen=True)
class Benefit:
    """The measured times of an auxiliary view so far."""

    jobs: int = 0  # of its own
    cost: float = 0.0  # seconds of them
    helped: int = 0  # jobs of views that were rewritten over it, and had jobs before that
    saved: float = 0.0  # seconds by which those took less than before

    def __str__(self) -> str:
        cost = f"cost {self.cost:.2g} s in {self.jobs} jobs"
        if not self.helped:
            return f"{cost}; nothing to compare yet"
        word, seconds = ("saved", self.saved) if self.saved >= 0 else ("lost", -self.saved)
        return f"{cost}; {word} {seconds:.2g} s in {self.helped} jobs of the views that read it"


def mean_seconds(views: ViewCatalog, view: Relation) -> float:
    """The mean time of a view's last jobs that did something; 0 if there were none."""
    past = [job.seconds for job in views.finished(view, _PAST) if job.strategy != "nothing"]
    return sum(past) / len(past) if past else 0.0


def benefit(auxiliary: Relation, every: Iterable[Relation], history: Iterable[Job]) -> Benefit:
    """The benefit of an auxiliary view, among all relations, by the finished jobs of the warehouse."""
    done = [job for job in history if job.error is None]
    own = [job for job in done if job.view_id == auxiliary.id]
    helped, saved = 0, 0.0
    by_id = {relation.id: relation for relation in every}
    for view in by_id.values():
        rewriting = Rewriting.of(view)
        if rewriting is None or auxiliary.id not in rewriting.sources.values() or not rewriting.before:
            continue
        share = sum(i in by_id and is_auxiliary(by_id[i]) for i in rewriting.sources.values())
        later = [j for j in done if j.view_id == view.id and j.from_csn >= rewriting.since and j.strategy != "nothing"]
        helped += len(later)
        saved += sum(rewriting.before - job.seconds for job in later) / share
    return Benefit(len(own), sum(job.seconds for job in own), helped, saved)


def about(view: Relation, every: Iterable[Relation], history: Iterable[Job]) -> str:
    """Why an auxiliary view is stored, and its benefit; what a view is rewritten over; empty for all others."""
    every = list(every)
    names = {relation.id: relation.name for relation in every}
    if is_auxiliary(view):
        readers = sorted(r.name for r in every if view.id in {*rewriting_ids(r).values(), *source_ids(r).values()})
        known, measured = Auxiliary.of(view), benefit(view, every, history)
        return f"{known.what}; for {', '.join(readers) or 'no view'}; {measured}"
    over = sorted(names[i] for i in rewriting_ids(view).values() if i in names and i not in source_ids(view).values())
    if not over:
        return ""
    return f"rewritten over {', '.join(over)}" + ("" if Rewriting.of(view) is not None else ", which is not proven now")
