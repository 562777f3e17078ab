"""What the optimiser proposes for the views of a warehouse: the choice, and the facts that it follows from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from freshview.catalog.frontiers import Job
from freshview.catalog.lineage import is_auxiliary, lower_first
from freshview.catalog.records import Relation
from freshview.catalog.reports import WINDOW
from freshview.catalog.statistics import StatisticsCatalog
from freshview.catalog.views import ViewCatalog
from freshview.definition.analysis import Definition
from freshview.definition.known import Definitions
from freshview.definition.rewriting import Auxiliary, Rewriting
from freshview.errors import FreshviewError, InvalidStatement, NotFound, NotMaintainable, TypeMismatch
from freshview.optimizer.choice import Choice, optimise
from freshview.optimizer.cost import Costs
from freshview.optimizer.existing import count_stored
from freshview.optimizer.greedy import Limits
from freshview.optimizer.prices import Prices
from freshview.refresh.accuracy import Accuracy, ComparedTimes, accuracy, compared, corrected
from freshview.refresh.facts import USUAL, ExpectedChanges, Findings, found
from freshview.refresh.workload import CountedQuery, Workload, workload
from freshview.spark.engines import Engines
from freshview.sql.binding import bind, refuse_foreign

_UNREADABLE = (InvalidStatement, NotFound, NotMaintainable, TypeMismatch)  # what the text of a query can be
_JOBS = 5  # newest jobs of a view that its estimate is compared with
_WRITTEN_OFF = timedelta(days=30)  # building a result that is stored in addition is written off over this time
_LEAST_ROUNDS, _ROUNDS = 10.0, 1000.0  # refreshes in that time: at least, and where none are known


@dataclass(frozen=True)
class Proposal:
    """A choice for a set of views, with the search space, the facts and the prices that it was made by."""

    choice: Choice
    findings: Findings
    prices: Prices  # corrected by the history
    left_out: tuple[tuple[str, str], ...]  # views that the choice does not concern, each with the reason
    rounds: float  # refreshes over which building a stored result is written off
    compared: tuple[ComparedTimes, ...] = ()  # estimates of usual refreshes as they are now, and what jobs took
    accuracy: Accuracy | None = None  # of the estimates of single jobs, in the history


@dataclass(frozen=True)
class Proposing:
    """Makes proposals for the views of one warehouse."""

    statistics: StatisticsCatalog
    definitions: Definitions
    engines: Engines
    lookup_memory: int  # bytes of columns that the storage keeps in memory for lookups

    def proposed(
        self,
        views: Sequence[Relation] | None = None,
        *,
        limits: Limits | None = None,
        changes: ExpectedChanges = USUAL,
        counting: bool = True,
        queries: Mapping[str, float] | None = None,
        passing_over: bool = False,
    ) -> Proposal:
        """The choice for these views (default: all of users), and for queries with how often each runs between two
        refreshes.

        `changes` is "usual", "pending" or a share of each table (see `facts`). `counting`: distinct values that are
        not known yet are counted by Spark. `passing_over`: a query that cannot be read, since a table of it was dropped
        or altered, is left out without an error. Nothing is created or changed, but for counts that are kept in the
        catalog.
        """
        every = self.statistics.catalog.relations()
        wanted = None if views is None else {view.id for view in views}
        known, left_out = [], []
        for view in lower_first(every):
            if view.kind == "view" and not is_auxiliary(view) and (wanted is None or view.id in wanted):
                try:
                    known.append((view, self.definitions.of(view)))
                except FreshviewError as error:
                    left_out.append((view.name, str(error)))
        over = workload(known, every, lambda settings: self._queries(queries or {}, settings, passing_over))
        count = self._count if counting else None
        findings = found(self.statistics, over, changes, count)
        usual = findings if changes == USUAL else found(self.statistics, over, USUAL)
        measured = replace(Prices.of(self.statistics.prices()), index_memory=float(self.lookup_memory))
        history, stored = ViewCatalog(self.statistics.catalog), [r for r in every if is_auxiliary(r)]
        jobs = {view.name: _since_rewritten(view, history.finished(view, _JOBS)) for view in (*over.views, *stored)}
        costs = Costs(over.dag, usual.facts, measured)
        kept = {view.name: Auxiliary.of(view) for view in stored}
        nodes = count_stored(costs, {known.content: known.sorted_by for known in kept.values()})
        rows = compared(costs, jobs, {n: nodes[known.content] for n, known in kept.items() if known.content in nodes})
        prices, rounds = corrected(measured, rows), self._rounds(over)
        choice = optimise(over.dag, findings.facts, prices, limits, rounds=rounds)
        close = accuracy(job for view in (*over.views, *stored) for job in history.history(view))
        return Proposal(choice, findings, prices, (*left_out, *over.left_out), rounds, tuple(rows), close)

    def _queries(
        self, texts: Mapping[str, float], settings: Mapping[str, str], passing_over: bool
    ) -> list[CountedQuery]:
        """Queries over relations of the warehouse; under the user's settings if there are no views."""
        found: list[CountedQuery] = []
        for text, rate in texts.items():
            try:
                definition = self._query(text, settings)
            except _UNREADABLE:
                if not passing_over:
                    raise
                continue
            found.append(CountedQuery(f"query {len(found) + 1} ({' '.join(text.split()):.60})", definition, rate))
        return found

    def _query(self, text: str, settings: Mapping[str, str]) -> Definition:
        """A query over relations of the warehouse; an error if it reads anything else."""
        sources: dict[str, Relation] = {}

        def is_ours(name: str) -> bool:
            sources[name] = self.statistics.catalog.relation(name)
            return True

        refuse_foreign(bind(text, is_ours))
        return self.definitions.of_query(text, sources, settings or self.engines.user().settings())

    def _rounds(self, over: Workload) -> float:
        """The refreshes of a month, at the rate of the last day."""
        churn = self.statistics.churn([r.id for r in over.relations.values()])
        refreshes = max((c.refreshes for c in churn.values()), default=0)
        return max(refreshes * (_WRITTEN_OFF / WINDOW), _LEAST_ROUNDS) if refreshes else _ROUNDS

    def _count(self, relation: Relation, csn: int, columns: list[str]) -> tuple[int, dict[str, int]]:
        """Count the rows and distinct values of a relation's stored rows."""
        engine = self.engines.user()
        return engine.counted(engine.scan(self.statistics.catalog.state(relation, csn)), columns)


def _since_rewritten(view: Relation, jobs: Sequence[Job]) -> list[Job]:
    """The jobs of a view that may have used its rewriting; all of them if it has none."""
    rewriting = Rewriting.of(view)
    return [job for job in jobs if rewriting is None or job.from_csn >= rewriting.since]
