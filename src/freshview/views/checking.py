"""Checks of stored views: their rows against their definitions, and the invariants of their modes."""

from __future__ import annotations

from dataclasses import dataclass

from freshview.catalog.records import Deferral, Relation
from freshview.catalog.views import ViewCatalog
from freshview.definition.analysis import visible_schema
from freshview.definition.known import settings_of
from freshview.definition.properties import BASE_LOG, COMBINED, is_deferred, mode_of, policy_of
from freshview.delta.tolerance import Difference
from freshview.refresh.runner import Runner
from freshview.refresh.tasks import pending
from freshview.spark.engines import Engines
from freshview.storage.store import Storage
from freshview.views.deferred import Deferred
from freshview.views.invariants import Invariant, Invariants, compared
from freshview.views.reading import Reading


@dataclass(frozen=True)
class Checking:
    """Checks the views of one warehouse against their definitions."""

    views: ViewCatalog
    storage: Storage
    engines: Engines
    deferred: Deferred
    reading: Reading

    def difference(self, view: Relation) -> Difference:
        """Rows that the store lacks, and rows it has too many, against the definition at the view's frontier."""
        while True:
            pin = self.views.catalog.begin("query", at=self.views.frontier(view))
            try:
                if (stored := self.views.version(view, pin.csn)) is None:
                    continue  # a job has moved the frontier meanwhile, and composed what lay before
                runner = self._runner(view)
                defined = self.reading.defined(view, pin.csn, None, runner)
                return compared(runner.engine, defined, runner.visible(stored), visible_schema(view))
            finally:
                self.views.catalog.release(pin)

    def invariants(self, view: Relation) -> list[Invariant]:
        """The invariants of the view's scenario (DEFER §3), checked on what is stored."""
        pin = self.views.catalog.begin("query", at=self.views.frontier(view))
        try:
            runner = self._runner(view)
            if is_deferred(view):
                scenario = policy_of(view).scenario
                if scenario == BASE_LOG and self.views.dependents(view):
                    scenario = COMBINED  # a view above it has it propagated all the same
                deferral, segments = self.deferred.catalog.differential(view)
            else:
                scenario, segments = mode_of(self.views.is_eager(view)), []
                deferral = Deferral(pin.csn, pin.csn, 0, 0)
            read = self.views.catalog.relations_by_id(self.views.inputs(view)).values()
            checks = Invariants(
                view=view,
                visible=visible_schema(view),
                runner=runner,
                stored=lambda csn: self.views.stored(view, csn),
                defined=lambda csn: self.reading.defined(view, csn, None, runner),
                bases=[r for r in read if r.kind != "view"],
            )
            log = bool(pending(self.views, view, self.views.catalog.snapshot()).tasks)
            return checks.check(scenario, deferral, segments, log)
        finally:
            self.views.catalog.release(pin)

    def _runner(self, view: Relation) -> Runner:
        return Runner(self.engines.under(settings_of(view)), self.views.catalog, self.storage)
