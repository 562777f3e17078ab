"""The parts of `views/` put together: each part knows only those named before it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from freshview.catalog.statistics import StatisticsCatalog
from freshview.catalog.views import ViewCatalog
from freshview.catalog.writer import Catalog
from freshview.definition.known import Definitions
from freshview.events import Events
from freshview.refresh.calibration import Calibrating
from freshview.refresh.changing import Changing
from freshview.refresh.group import GroupRunner
from freshview.refresh.jobs import JobRunner
from freshview.refresh.proposal import Proposing
from freshview.refresh.relevance import Relevance
from freshview.spark.engines import Engines
from freshview.storage.store import Storage
from freshview.transactions.transaction import Transaction
from freshview.views.auxiliaries import Auxiliaries
from freshview.views.checking import Checking
from freshview.views.commits import Inside
from freshview.views.deferred import Deferred
from freshview.views.lifecycle import Lifecycle
from freshview.views.maintenance import Maintenance
from freshview.views.modes import Modes
from freshview.views.reading import Reading

if TYPE_CHECKING:
    from freshview.spark.engine import SparkEngine


class Views:
    """The parts that keep the views of one warehouse."""

    def __init__(self, catalog: Catalog, storage: Storage, events: Events, user: Callable[[], SparkEngine]) -> None:
        self.catalog = ViewCatalog(catalog)
        self._storage = storage
        self.engines = Engines(user)
        self.definitions = Definitions(self.catalog, self.engines, events)
        self.changing = Changing(catalog, storage, events, self.engines, self.definitions)
        self.jobs = JobRunner(catalog, storage, events, self.changing, self.changing.pauses)
        self.groups = GroupRunner(self.catalog, storage, events, self.changing, self.jobs)
        self.deferred = Deferred(self.catalog, storage, events, self.jobs)
        parts = (self.definitions, self.changing, self.jobs, self.groups, self.deferred)
        self.maintenance = Maintenance(self.catalog, storage, *parts)
        self.modes = Modes(self.catalog, self.deferred, self.maintenance, self.definitions)
        self.lifecycle = Lifecycle(self.catalog, storage, events, self.engines, self.definitions, self.jobs, self.modes)
        self.auxiliaries = Auxiliaries(
            self.catalog, self.engines, self.definitions, self.maintenance, self.lifecycle, events
        )
        relevance = Relevance(catalog, storage, events, self.definitions, self.engines)
        below = (self.definitions, self.jobs, self.deferred, self.maintenance, relevance)
        self.reading = Reading(self.catalog, storage, self.engines, *below)
        statistics = StatisticsCatalog(catalog)
        self.proposing = Proposing(statistics, self.definitions, self.engines, storage.reader.columns.budget)
        self.calibrating = Calibrating(statistics, storage, self.engines, events)
        self.checking = Checking(self.catalog, storage, self.engines, self.deferred, self.reading)
        self._eager_turn = threading.RLock()

    def inside(self, transaction: Transaction, make_way: Callable[[Iterable[str]], None]) -> Inside:
        """The views as a transaction sees and changes them, from its begin to its commit."""
        return Inside(self.catalog, self._storage, self.maintenance, transaction, self._eager_turn, make_way)

    def close(self) -> None:
        self.changing.close()
        self.engines.close()
