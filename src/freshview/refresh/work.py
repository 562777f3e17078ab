"""The change of a view's stored rows over a span: planned, carried out, and remembered for the next plan."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pyarrow as pa

from freshview.catalog.records import Relation, RelationState
from freshview.catalog.writer import Catalog
from freshview.definition.analysis import Definition
from freshview.definition.known import Definitions, settings_of
from freshview.errors import (
    BroadcastTooLarge,
    InvalidStatement,
    NotFound,
    QueryFailed,
    SnapshotExpired,
    TypeMismatch,
    first_line,
)
from freshview.events import Events
from freshview.refresh.cost import Pace, estimate_full
from freshview.refresh.deltas import TooLarge
from freshview.refresh.execute import Work, execute
from freshview.refresh.hand import Hand
from freshview.refresh.plan import FULL, INCREMENTAL, NOTHING, JobPlan, Rejected, alternatives, choose, recompute
from freshview.refresh.runner import Runner
from freshview.refresh.span import Span
from freshview.spark.engines import Engines
from freshview.storage.reader import LOCAL_ROWS
from freshview.storage.store import Storage

# The change, or what meets it, cannot be had; the result still can.
_CANNOT_BE_HAD = (TooLarge, SnapshotExpired, BroadcastTooLarge)
# Spark accepts the text: what was made of it is at fault, never the user. Rules may also compute what the definition
# does not; if it is not that, the definition fails again.
_NOT_BY_RULES = (*_CANNOT_BE_HAD, InvalidStatement, NotFound, TypeMismatch, pa.ArrowException, QueryFailed)


class Changing:
    """Computes the changes of one warehouse's views, and remembers how long they took."""

    def __init__(
        self, catalog: Catalog, storage: Storage, events: Events, engines: Engines, definitions: Definitions
    ) -> None:
        self._catalog = catalog
        self._storage = storage
        self._events = events
        self._engines = engines
        self._definitions = definitions
        self._paces: dict[int, Pace] = {}
        self._guard = threading.Lock()

    def change(self, view: Relation, span: Span, stored: RelationState, *, full: bool = False) -> Work:
        """The change of a view's stored rows over a span; `full`: recompute it."""
        hand = Hand(view, self._definitions.of(view), span, stored)
        plan = recompute(rejected=[Rejected(INCREMENTAL, "asked for")]) if full else self.plan(hand)
        if plan.strategy != FULL:
            try:
                return self._executed(plan, hand)
            except _NOT_BY_RULES as error:
                plan = plan.instead(self._obstacle(view, error))
        return self._executed(plan, hand)

    def plan(self, hand: Hand) -> JobPlan:
        """What a job for a view over a span does."""
        definition = hand.definition
        try:
            changes = hand.changes if definition.incremental else ()
            if definition.incremental and not changes:
                return JobPlan(NOTHING, hand.written)
            factors = self.pace(hand.view.id).factors()
            return choose(definition, changes, alternatives(definition, changes), hand.reads, hand.full, factors)
        except _NOT_BY_RULES as error:
            return recompute(rejected=[Rejected(INCREMENTAL, self._obstacle(hand.view, error))])

    def _obstacle(self, view: Relation, error: Exception) -> str:
        """Why the delta rules cannot be used this time, though the definition has them; or the error, if that is one
        of the definition too."""
        if isinstance(error, QueryFailed) and type(error) not in (QueryFailed, BroadcastTooLarge):
            raise error
        if not isinstance(error, _CANNOT_BE_HAD):
            self._events.emit("job.recomputes", view=view.name, error=str(error))
        return first_line(error)

    def _executed(self, plan: JobPlan, hand: Hand) -> Work:
        """Run a plan, and remember how long that took."""

        def runner(small: bool) -> Runner:
            return Runner(self._engines.under(settings_of(hand.view), small=small), self._catalog, self._storage)

        begun = time.monotonic()
        work = execute(plan, hand, runner)
        took = time.monotonic() - begun
        if plan.strategy != NOTHING and hand.full.rows:
            cost = plan.estimate if plan.estimate is not None else hand.full
            self.pace(hand.view.id).learn(plan.strategy, cost.seconds, took)
        return work

    def pace(self, view_id: int) -> Pace:
        """What is known of a view's costs."""
        with self._guard:
            return self._paces.setdefault(view_id, Pace())

    def learn_full(self, view_id: int, definition: Definition, rows: Callable[[str], int], seconds: float) -> None:
        """What computing all rows took: the first thing that is known of a view's cost."""
        expected = estimate_full(definition, rows)
        if expected.rows:
            self.pace(view_id).learn(FULL, expected.seconds, seconds)

    def applied(self, state: RelationState) -> None:
        """Have a small view's rows at hand, so that the next query finds it as one that was never touched."""
        if state.is_small(LOCAL_ROWS):
            self._engines.user().scan(state)
