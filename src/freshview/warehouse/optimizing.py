"""The report of `optimize`: what is chosen for how much, what lost, from which facts, and how close estimates were."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from html import escape

from freshview.catalog.queries import KeptQuery, QueryCatalog
from freshview.catalog.reports import Reports, ViewReport
from freshview.catalog.statistics import StatisticsCatalog
from freshview.catalog.writer import Catalog
from freshview.display import counted
from freshview.errors import InvalidStatement
from freshview.optimizer.choice import Choice
from freshview.optimizer.greedy import Limits
from freshview.optimizer.picture import svg_of
from freshview.optimizer.show import dag_of, text_of
from freshview.refresh.facts import PENDING, USUAL, ExpectedChanges
from freshview.refresh.proposal import Proposal, Proposing
from freshview.sql.parser import parse
from freshview.sql.statements import Query
from freshview.views.auxiliaries import AppliedPart

CONSIDERED = 20  # queries of the history: each costs Spark's analysis, and all of them the search


@dataclass(frozen=True, repr=False)
class Optimization:
    """What the optimiser proposes for all views together; it prints as a text, and a notebook shows the picture.

    `before` and `after` are the expected seconds of one refresh of all views: as they are, and with the proposal.
    """

    proposal: Proposal
    rates: tuple[str, ...] = ()  # a line per view: how often it is updated and queried
    history: tuple[KeptQuery, ...] = ()  # all texts of queries that are kept, if the queries are of these
    applied: tuple[AppliedPart, ...] = ()  # what became of the proposal, if it was applied

    def carried_out(self, apply: Callable[[Choice], tuple[AppliedPart, ...]]) -> Optimization:
        """The report after the choice was applied."""
        return replace(self, applied=apply(self.proposal.choice))

    @property
    def before(self) -> float:
        return self.proposal.choice.before

    @property
    def after(self) -> float:
        return self.proposal.choice.after

    @property
    def dag(self) -> str:
        """The search space as text: every node with its size, its costs and its operations."""
        return dag_of(self.proposal.choice)

    @property
    def svg(self) -> str:
        """The chosen plans as a picture."""
        return svg_of(self.proposal.choice)

    def __str__(self) -> str:
        steps = [f"{step.name}: {step.what}; {step.why}" for step in self.applied]
        parts = [*self._section("applied", steps), *self._section("facts", self._facts()), *self._estimates()]
        return "\n".join([text_of(self.proposal.choice), *parts])

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return f'<div style="overflow-x: auto">{self.svg}</div><pre style="overflow-x: auto">{escape(str(self))}</pre>'

    def _facts(self) -> list[str]:
        p = self.proposal
        found = [
            *p.findings.notes,
            *self._considered(),
            f"building a stored result is written off over {p.rounds:,.0f} refreshes",
        ]
        for name, facts in sorted(p.findings.facts.items()):
            distinct = ", ".join(f"{c} {n:,.0f}" for c, n in sorted(facts.distinct.items()))
            counted = f"; distinct: {distinct}" if distinct else ""
            change = f"+{facts.inserted:,.0f} -{facts.deleted:,.0f} per refresh"
            found.append(f"{name}: {facts.rows:,.0f} rows, {change}{counted}")
        return found

    def _considered(self) -> list[str]:
        if not self.history:
            return []
        since = datetime.fromtimestamp(min(one.first_at for one in self.history) / 1_000_000, UTC)
        considered, texts = len(self.proposal.choice.queries), counted(len(self.history), "text")
        most = f", at most the {CONSIDERED} that ran most often" if len(self.history) > CONSIDERED else ""
        return [f"queries: {considered} of {texts} that ran since {since:%Y-%m-%d %H:%M} UTC considered{most}"]

    def _estimates(self) -> list[str]:
        p = self.proposal
        lines = self._section("uses", self.rates)
        rows = [
            f"{c.view}, {c.way}: estimated {c.estimated:.3f} s, took {c.actual:.3f} s in {counted(c.jobs, 'job')}; "
            f"ratio {c.ratio:.2f}"
            for c in p.compared
        ]
        if rows:
            factors = f"incremental {p.prices.incremental:.2g}, full {p.prices.full:.2g}"
            rows.append(f"corrected by what jobs took: {factors} times")
        rows += [str(p.accuracy)] if p.accuracy is not None else []
        lines += self._section("estimates of usual refreshes against past jobs", rows)
        return lines + self._section("left out", [f"{name}: {why}" for name, why in p.left_out])

    def _section(self, title: str, items: Sequence[str]) -> list[str]:
        return [title, *(f"  {item}" for item in items)] if items else []


def optimized(
    catalog: Catalog,
    proposing: Proposing,
    *,
    space: float | None = None,
    changed: float | str | None = None,
    queries: Mapping[str, float] | None = None,
) -> Optimization:
    """The proposal for all views of a warehouse, and for queries with how often each runs between two refreshes.

    `space` bounds the bytes of results that are stored in addition. `changed` is the share of each table that a refresh
    finds changed, or "pending" for what is pending now; by default it is taken from the history. So are
    `queries`: those that ran most often, and can still be read.
    """
    if space is not None and not space >= 0:
        raise InvalidStatement(f"space {space!r}", "is not a number of bytes", "Give 0 or more bytes.")
    limits = Limits(permanent_bytes=space)
    for text, rate in (queries or {}).items():
        if not (isinstance(parse(text), Query) and 0 < rate < float("inf")):
            cause = "is no query that runs so often"
            raise InvalidStatement(f"{text:.100} × {rate}", cause, "Give SELECT statements with numbers above 0.")
    history = QueryCatalog(catalog).kept() if queries is None else []
    given = _per_refresh(history, proposing.statistics) if queries is None else queries
    proposal = proposing.proposed(limits=limits, changes=_changes(changed), queries=given, passing_over=queries is None)
    return Optimization(proposal, tuple(_rate(r) for r in Reports(catalog).views()), tuple(history))


def _per_refresh(history: Sequence[KeptQuery], statistics: StatisticsCatalog) -> dict[str, float]:
    """The queries that ran most often, each with its runs per refresh since the first of all texts was kept."""
    if not history:
        return {}
    refreshes = max(statistics.refreshes(min(one.first_at for one in history)), 1.0)
    return {one.text: one.runs / refreshes for one in history[:CONSIDERED]}


def _changes(changed: float | str | None) -> ExpectedChanges:
    if changed is None or changed in (USUAL, PENDING):
        return changed or USUAL
    if isinstance(changed, int | float) and not isinstance(changed, bool) and 0 < changed <= 1:
        return float(changed)
    raise InvalidStatement(
        f"changed={changed!r}", "is no share of a table", "Give a number above 0 and up to 1, or 'pending'."
    )


def _rate(report: ViewReport) -> str:
    m = report.measures
    queries = "not known yet" if m.queries_per_hour is None else f"{m.queries_per_hour:.3g} an hour"
    return f"{report.view.name}: queries {queries}, updates {m.updates_per_hour:.3g} an hour, {m.jobs} jobs"
