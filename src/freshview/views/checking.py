"""Is a view what its definition says, and does its mode keep its promises?"""

from __future__ import annotations

from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    pass


class Checking:
    """Checks the views of one warehouse against their definitions."""

    def __init__(
        self, views: ViewCatalog, storage: Storage, engines: Engines, deferred: Deferred, reading: Reading
    ) -> None:
        self._views = views
        self._catalog = views.catalog
        self._storage = storage
        self._engines = engines
        self._deferred = deferred
        self._reading = reading

    def difference(self, view: Relation) -> Difference:
        """Rows that the store lacks, and rows it has too many, against the definition at its frontier."""
        pin = self._catalog.begin("query", at=self._views.frontier(view))
        try:
            runner = self._runner(view)
            stored = runner.shown(self._views.stored(view, pin.csn))
            return compared(
                runner.engine, self._reading.defined(view, pin.csn, None, runner), stored, visible_schema(view)
            )
        finally:
            self._catalog.release(pin)

    def invariants(self, view: Relation) -> list[Invariant]:
        """The invariants of the view's scenario (DEFER §3), checked on what is stored."""
        pin = self._catalog.begin("query", at=self._views.frontier(view))
        try:
            runner = self._runner(view)
            if is_deferred(view):
                scenario = policy_of(view).scenario
                if scenario == BASE_LOG and self._views.dependents(view):
                    scenario = COMBINED  # for a view above it, it is propagated all the same
                stand, segments = self._deferred.catalog.differential(view)
            else:
                scenario, segments = mode_of(self._views.is_eager(view)), []
                stand = Deferral(pin.csn, pin.csn, 0, 0)
            read = map(self._catalog.relation_by_id, self._views.inputs(view))
            bases = [r for r in read if r is not None and r.kind != "view"]
            checks = Invariants(
                view, visible_schema(view), runner, lambda csn: self._views.stored(view, csn),
                lambda csn: self._reading.defined(view, csn, None, runner), bases,
            )  # fmt: skip
            log = bool(pending(self._views, view, self._catalog.snapshot()).tasks)
            return checks.check(scenario, stand, segments, log)
        finally:
            self._catalog.release(pin)

    def _runner(self, view: Relation) -> Runner:
        return Runner(self._engines.under(settings_of(view)), self._catalog, self._storage)
