"""The work of one job: the change of a view's stored rows over a span.

By delta rules where the definition has them and they are the cheaper way for this change; else by recomputing the
definition and taking the difference to what is stored, so that only what differs is written.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from freshview.algebra.nodes import WEIGHT, Node, Scan
from freshview.algebra.traversal import columns_read, scans
from freshview.catalog.records import Relation, RelationState
from freshview.catalog.writer import Catalog
from freshview.definition.analysis import Definition
from freshview.definition.known import Definitions, as_seen, settings_of
from freshview.delta.forms import STORED, delta_plan
from freshview.delta.near import reduced
from freshview.delta.signed import net, part, weighted, with_weight
from freshview.errors import (
    BroadcastTooLarge,
    InvalidStatement,
    NotFound,
    QueryFailed,
    SnapshotExpired,
    TypeMismatch,
)
from freshview.events import Events
from freshview.refresh.cost import Estimate, Pace, estimate
from freshview.refresh.deltas import TooLarge, changes
from freshview.refresh.lookups import Reduction
from freshview.refresh.runner import Runner
from freshview.refresh.span import Span
from freshview.spark.engines import Engines
from freshview.storage.reader import LOCAL_ROWS, OVERLAY_ROWS
from freshview.storage.store import Storage

_SMALL_DELTA = 50_000  # deltas up to this many rows are sent to the other sides, and the result is fetched
_SLACK = 0.3  # seconds by which a delta plan may be dearer: it writes less
_RECOMPUTE_SHARE = 0.3  # a change of more than this share of a table is recomputed


@dataclass(frozen=True)
class Work:
    """One job's way and its result: delta rows of the stored relation."""

    strategy: str  # "incremental" | "full" | "nothing"
    rows: pa.Table
    delta_rows: int
    condensed: tuple[Condensed, ...] = ()


@dataclass(frozen=True)
class Condensed:
    """A place where a delta was condensed (LAZY §4), and how many of its rows went."""

    on: str  # a source, or the view
    read: int
    left: int


@dataclass(frozen=True)
class Working:
    """A view to be taken over a span."""

    view: Relation
    definition: Definition
    span: Span
    stored: RelationState  # the view's own rows, before
    runner: Callable[[bool], Runner]  # for small jobs, or for large ones
    pace: Pace = field(default_factory=Pace)
    refused: Callable[[Exception], None] = lambda _: None  # told why the delta rules could not be carried out
    _states: dict[tuple[str, bool], RelationState] = field(default_factory=dict)
    _condensed: list[Condensed] = field(default_factory=list)

    def work(self, *, full: bool) -> Work:
        if self.definition.incremental and not full:
            try:
                if not self.deltas:
                    return Work("nothing", self.view.schema.segment_arrow.empty_table(), 0, tuple(self._condensed))
                plan = self._chosen_plan()
                if plan is not None:
                    return self._timed("incremental", plan, lambda: self._incremental(plan))
            except (TooLarge, SnapshotExpired, BroadcastTooLarge):
                pass  # the change cannot be had; the result still can
            except (InvalidStatement, NotFound, TypeMismatch, pa.ArrowException) as error:
                self.refused(error)  # Spark accepts the text: what was made of it is at fault, never the user
            except QueryFailed as error:
                if type(error) is not QueryFailed:
                    raise
                self.refused(error)  # rules may compute what the definition does not; if not, it fails again
        return self._timed("full", None, self._full)

    def _timed(self, strategy: str, plan: Node | None, run: Callable[[], Work]) -> Work:
        """Run it, and remember how long it took."""
        begun = time.monotonic()
        work = run()
        took = time.monotonic() - begun
        if self._estimate_full.rows:
            self.pace.learn(strategy, self._expected(plan), took)
        return work

    # -- what changed ------------------------------------------------------------------------------

    @cached_property
    def deltas(self) -> dict[str, pa.Table]:
        """Net changes of the sources, those that have any, as far as the view uses their columns."""
        found = {}
        for name, relation in self.definition.sources.items():
            segments = self.span.segments(relation)
            if not segments:
                continue
            delta = changes(self.span, relation, self._columns[name], segments)
            stored = 0 if relation.is_external else sum(s.rows for s in segments)
            read = max(stored, delta.num_rows)  # a blind upsert is stored as one row, and completed to two
            self._condensed.append(Condensed(name, read, delta.num_rows))
            if delta.num_rows:
                found[name] = delta
        return found

    @cached_property
    def _columns(self) -> dict[str, tuple[str, ...]]:
        """The columns of each source that the definition uses; of a table that is only counted, the first."""
        assert self.definition.form is not None
        used = columns_read(self.definition.form.tree)
        return {n: used.get(n) or s.schema.names[:1] for n, s in self.definition.sources.items()}

    @property
    def _rows(self) -> int:
        return sum(d.num_rows for d in self.deltas.values())

    @property
    def _is_small(self) -> bool:
        return self._rows <= _SMALL_DELTA

    # -- which way ---------------------------------------------------------------------------------

    def _chosen_plan(self) -> Node | None:
        """The delta plan, if it is expected to be better than recomputing."""
        forced = self.definition.refresh == "incremental"
        if not forced and any(self._is_large(name) for name in self.deltas):
            return None
        plan = self._plan(outward=False)
        if self._left_to_spark(plan):
            plan = self._plan(outward=True)
        incremental = self._expected(plan) * self._factor("incremental")
        full = self._expected(None) * self._factor("full")
        return plan if forced or incremental <= full + _SLACK else None

    def _factor(self, strategy: str) -> float:
        """What was learnt of a strategy; where all is small, times tell more of the machine than of the way."""
        return self.pace.factor(strategy) if self._estimate_full.rows else 1.0

    def _expected(self, plan: Node | None) -> float:
        """Seconds that a job should take, by the estimate alone; without a plan it recomputes."""
        return self._estimate(plan).seconds if plan is not None else self._estimate_full.seconds

    def _is_large(self, name: str) -> bool:
        rows = self._state(Scan(name, (), "new")).rows_at_most
        return bool(self.deltas[name].num_rows > max(1000, _RECOMPUTE_SHARE * rows))

    def _plan(self, *, outward: bool) -> Node:
        """The delta plan. `outward`: what is small is sent to what is large; else all is small, and Spark sees that."""
        form, lowered = self.definition.form, self.definition.lowered
        assert form is not None
        assert lowered is not None
        plan = delta_plan(
            form, lowered, set(self.deltas), self.definition.types, small=self._is_small and outward,
            inserts_only=frozenset(n for n, d in self.deltas.items() if pc.min(d.column(WEIGHT)).as_py() > 0),
        )  # fmt: skip
        assert plan is not None
        return reduced(plan) if self._is_small else plan

    @cached_property
    def _reduction(self) -> Reduction:
        return Reduction(self.runner(True).storage.reader, self._state, self.deltas)

    def _left_to_spark(self, plan: Node) -> bool:
        return any(self._rows_to_read(s) for s in scans(plan))

    def _rows_to_read(self, scan: Scan) -> int:
        """How many rows of files Spark reads for a scan."""
        if scan.version == "delta" or self._reduction.table(scan) is not None:
            return 0
        rows = self._state(scan).rows_at_most
        return rows if rows > LOCAL_ROWS else 0

    def _estimate(self, plan: Node) -> Estimate:
        """Rows that were not fetched count double: a delta meets many of them, else they would have been."""
        return estimate(plan, lambda scan: 2 * self._rows_to_read(scan))

    @cached_property
    def _estimate_full(self) -> Estimate:
        return estimate_full(self.definition, self.span.after)

    def _state(self, scan: Scan) -> RelationState:
        """The state that a scan reads. What did not change is the same before and after."""
        is_old = scan.version == "old" or scan.relation not in self.deltas
        key = (scan.relation, is_old)
        if key not in self._states:
            if scan.relation == STORED:
                self._states[key] = self.stored
            else:
                source = self.definition.sources[scan.relation]
                self._states[key] = self.span.before(source) if is_old else self.span.after(source)
        return self._states[key]

    # -- doing it ----------------------------------------------------------------------------------

    def _incremental(self, plan: Node) -> Work:
        local = self._is_small and not self._left_to_spark(plan)
        runner = self.runner(local)

        def frame(scan: Scan) -> Any:
            relation = self.view if scan.relation == STORED else self.definition.sources[scan.relation]
            rows = self._reduction.table(scan)
            if scan.version == "delta":
                return runner.engine.frame(rows, with_weight(part(relation.schema, self._columns[scan.relation])))
            if rows is not None:
                return runner.engine.frame(rows, part(relation.schema, rows.column_names))
            whole = runner.engine.scan(self._state(scan))
            return whole if scan.relation == STORED else as_seen(relation, whole)

        signed = runner.fetch(runner.in_stages(plan, frame), with_weight(self.view.schema), small=local)
        rows = net(signed, self.view.schema)
        condensed = (*self._condensed, Condensed(self.view.name, signed.num_rows, rows.num_rows))
        return Work("incremental", rows, self._rows, condensed)

    def _full(self) -> Work:
        runner = self.runner(False)
        frames = {n: runner.shown(self.span.after(r)) for n, r in self.definition.sources.items()}
        schema = self.view.schema
        with runner.settled(runner.stored(self.definition, frames, schema)) as files:
            if sum(f.rows for f in files) + self.stored.rows_at_most <= OVERLAY_ROWS:
                fresh, old = runner.read(0, files, schema), runner.storage.reader.contents(self.stored)
                signed = pa.concat_tables([weighted(fresh, 1, schema), weighted(old, -1, schema)])
            else:
                rows = runner.engine.read_files(0, files, schema)
                difference = runner.engine.difference(rows, runner.engine.scan(self.stored), schema)
                signed = runner.fetch(difference, with_weight(schema))
        return Work("full", net(signed, schema), 0)


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
        """The change of a view's stored rows over a span."""
        settings = settings_of(view)

        def runner(small: bool) -> Runner:
            return Runner(self._engines.under(settings, small=small), self._catalog, self._storage)

        def refused(error: Exception) -> None:
            self._events.emit("job.recomputes", view=view.name, error=str(error))

        working = Working(view, self._definitions.of(view), span, stored, runner, self.pace(view.id), refused)
        return working.work(full=full)

    def pace(self, view_id: int) -> Pace:
        """What is known of a view's costs."""
        with self._guard:
            return self._paces.setdefault(view_id, Pace())

    def learn_full(self, view_id: int, definition: Definition, csn: int, seconds: float) -> None:
        """What computing all rows took: the first thing that is known of a view's cost."""
        expected = estimate_full(definition, lambda source: self._catalog.state(source, csn))
        if expected.rows:
            self.pace(view_id).learn("full", expected.seconds, seconds)

    def applied(self, state: RelationState) -> None:
        """Have a small view's rows at hand, so that the next query finds it as one that was never touched."""
        if state.is_small(LOCAL_ROWS):
            self._engines.user().scan(state)


def estimate_full(definition: Definition, state: Callable[[Relation], RelationState]) -> Estimate:
    """What recomputing a view should cost, over these states of its sources; nothing is known of one without a tree."""
    if definition.form is None:
        return Estimate(0, 0)
    rows = {name: state(source).rows_at_most for name, source in definition.sources.items()}
    return estimate(definition.form.tree, lambda s: rows[s.relation] if rows[s.relation] > LOCAL_ROWS else 0)
