"""What the optimiser proposes for the views of a warehouse: the choice, and the facts that it follows from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from freshview.catalog.records import Relation
from freshview.catalog.statistics import StatisticsCatalog
from freshview.catalog.views import lower_first
from freshview.definition.known import Definitions
from freshview.errors import FreshviewError
from freshview.optimizer.choice import Choice, optimise
from freshview.optimizer.greedy import Limits
from freshview.optimizer.prices import Prices
from freshview.refresh.facts import USUAL, Changes, Findings, found
from freshview.refresh.workload import Workload, workload
from freshview.spark.engines import Engines


@dataclass(frozen=True)
class Proposal:
    """A choice for a set of views, with the search space, the facts and the prices that it was made by."""

    choice: Choice
    workload: Workload
    findings: Findings
    prices: Prices
    left_out: tuple[tuple[str, str], ...]  # views that the choice does not concern, each with the reason


@dataclass(frozen=True)
class Proposing:
    """Makes proposals for the views of one warehouse."""

    statistics: StatisticsCatalog
    definitions: Definitions
    engines: Engines

    def proposed(
        self,
        views: Sequence[Relation] | None = None,
        *,
        limits: Limits | None = None,
        changes: Changes = USUAL,
        counting: bool = True,
    ) -> Proposal:
        """The choice for these views (default: all).

        `changes` is "usual", "pending" or a share of each table (see `facts`). `counting`: distinct values that are
        not known yet are counted by Spark. Nothing is created or changed, but for counts that are kept in the catalog.
        """
        every = self.statistics.catalog.relations()
        wanted = None if views is None else {view.id for view in views}
        known, left_out = [], []
        for view in lower_first(every):
            if view.kind == "view" and (wanted is None or view.id in wanted):
                try:
                    known.append((view, self.definitions.of(view)))
                except FreshviewError as error:
                    left_out.append((view.name, str(error)))
        over = workload(known, every)
        findings = found(self.statistics, over, changes, self._count if counting else None)
        prices = Prices.of(self.statistics.prices())
        choice = optimise(over.dag, findings.facts, prices, limits)
        return Proposal(choice, over, findings, prices, (*left_out, *over.left_out))

    def _count(self, relation: Relation, csn: int, columns: list[str]) -> tuple[int, dict[str, int]]:
        """Count the rows and distinct values of a relation's stored rows."""
        engine = self.engines.user()
        return engine.counted(engine.scan(self.statistics.catalog.state(relation, csn)), columns)
