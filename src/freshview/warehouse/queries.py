"""SELECT, SHOW, DESCRIBE and EXPLAIN: names become DataFrames, and views are as fresh as the query asks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING

from freshview.catalog.queries import LONGEST
from freshview.catalog.records import DIMENSION, RelationState
from freshview.catalog.writer import Catalog
from freshview.cdc.notice import Watch
from freshview.errors import FreshviewError, InvalidStatement
from freshview.flows.explain import explain_flow
from freshview.flows.refreshing import Flows
from freshview.refresh.relevance import Matching
from freshview.refresh.tasks import Pending
from freshview.sql.binding import BoundQuery, TableRef, bind
from freshview.sql.dml import RowQuery, has_subquery, text_read
from freshview.sql.one_line import one_line
from freshview.sql.pins import asked
from freshview.sql.plain import plain
from freshview.sql.predicates import asked_of
from freshview.sql.statements import (
    Delete,
    Describe,
    ExplainFlow,
    ExplainOptimize,
    ExplainRefresh,
    Insert,
    Merge,
    Query,
    Show,
    Statement,
    Update,
)
from freshview.sql.tokens import is_word, tokenize
from freshview.transactions.reading import ReadContext, to_micros
from freshview.transactions.transaction import Transaction
from freshview.views.dimensions import DimensionViews
from freshview.views.reading import Freshness, Reads
from freshview.views.views import Views
from freshview.warehouse.explain_dimension import explain_dimension
from freshview.warehouse.optimizing import optimized
from freshview.warehouse.overview import explain_view
from freshview.warehouse.show import listed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from freshview.spark.engine import SparkEngine

_UNRUN = ("EXPLAIN", "DESCRIBE", "DESC")  # before a query of which the rows are not wanted


class Queries:
    """Runs the statements that read."""

    def __init__(
        self,
        catalog: Catalog,
        views: Views,
        dimensions: DimensionViews,
        watch: Watch,
        engine: Callable[[], SparkEngine],
        has_session: Callable[[], bool],
        make_way: Callable[[Iterable[str]], None],
        used: Callable[[int, int], None],
        ran: Callable[[str, int], None] | None,
        flows: Flows,
    ) -> None:
        """`used` is called with the id of each view that a query reads, and the time; `ran` with the text of each query
        of the newest rows."""
        self._catalog = catalog
        self._views = views
        self._dimensions = dimensions
        self._watch = watch
        self._engine = engine
        self._has_session = has_session
        self._make_way = make_way
        self._used = used
        self._ran = ran
        self._flows = flows

    def read(
        self,
        statement: Statement,
        *,
        transaction: Transaction | None = None,
        as_of: int | datetime | None = None,
        freshness: Freshness = None,
    ) -> DataFrame:
        if isinstance(statement, Query):
            return self._query(statement.text, transaction, as_of, freshness)
        if isinstance(statement, ExplainFlow):
            lines = explain_flow(self._flows, statement.name).splitlines()
            return self._engine().session.createDataFrame([(line,) for line in lines], "plan STRING")
        if isinstance(statement, ExplainRefresh):
            return self._lines(self.explained(statement.name))
        if isinstance(statement, ExplainOptimize):
            report = optimized(self._catalog, self._views.proposing)
            return self._lines(f"{report}\nsearch space\n{report.dag}" if statement.extended else str(report))
        assert isinstance(statement, Show | Describe)
        answer = listed(self._catalog, statement)
        schema = ", ".join(f"{c} STRING" for c in answer.columns)
        return self._engine().session.createDataFrame(answer.rows, schema)

    def _lines(self, text: str) -> DataFrame:
        return self._engine().session.createDataFrame([(line,) for line in text.splitlines()], "plan STRING")

    def explained(self, name: str) -> str:
        """Return how a view is stored and maintained."""
        if self._catalog.relation(name).kind == DIMENSION:
            return explain_dimension(self._dimensions, self._catalog.relation(name))
        return explain_view(self._views, self._catalog.view(name))

    def inside(self, transaction: Transaction, reading: ReadContext) -> Callable[[TableRef], DataFrame]:
        """Return how the statements of a transaction read tables and views."""
        lost = dict(self._watch.lost)

        def frame(ref: TableRef) -> DataFrame:
            remote = self._remote_frames([ref], reading)
            if remote:
                return remote[ref.name]
            return self._frame(ref, self._state(ref, reading), transaction, None, lost)

        return frame

    def _query(
        self,
        text: str,
        transaction: Transaction | None,
        as_of: int | datetime | None,
        freshness: Freshness = None,
    ) -> DataFrame:
        if transaction is not None:
            return self._bound(text, ReadContext(self._catalog, transaction.snapshot, transaction), transaction)
        self._watch.look()
        if as_of is None:
            self.poll(lambda: _names_in(text), freshness)
        csn = self._csn_of(as_of)
        pin = self._catalog.begin("query", at=csn)
        try:
            past = as_of is not None  # deferred views too are read as of that CSN
            chosen = "fresh" if past else freshness
            reading = ReadContext(self._catalog, pin.csn, newest=not past)
            return self._bound(text, reading, freshness=chosen, past=past)
        finally:
            self._catalog.release(pin)

    def poll(self, names: Callable[[], Iterable[str]], freshness: Freshness) -> None:
        """Poll the flows and dimension views that are polled on query, and feed relations of these names."""
        if freshness == "any" or not self._flows.records.has_sources():
            return
        if polled := self._flows.on_query:
            found = [relation for name in names() if (relation := self._catalog.find(name)) is not None]
            inputs = [i for r in found if r.kind == "view" for i in self._views.catalog.inputs(r)]
            self._flows.look(polled & {*inputs, *(r.id for r in found)}, freshness)
        self._dimensions.refresh_for(names, freshness)

    def poll_for(self, statement: Insert | Update | Delete | Merge, freshness: Freshness) -> None:
        """Poll for what a writing statement reads. INSERT … VALUES reads nothing, and asks the catalog nothing."""
        if not isinstance(statement, Insert) or has_subquery(statement.query):
            self.poll(lambda: self._read_by(statement), freshness)

    def _read_by(self, statement: Insert | Update | Delete | Merge) -> list[str]:
        """The relations that a writing statement reads: its target too, unless it only adds rows."""
        target = self._catalog.find(statement.table)
        if target is None:
            return []
        text = text_read(statement, target.schema)
        own = [] if isinstance(statement, Insert) else [target.name]
        return own + (_names_in(text) if text else [])

    def _csn_of(self, as_of: int | datetime | None) -> int | None:
        if isinstance(as_of, datetime):
            return self._catalog.csn_at(to_micros(as_of))
        if as_of is None or (isinstance(as_of, int) and not isinstance(as_of, bool)):
            return as_of
        raise InvalidStatement(f"as_of={as_of!r}", "is neither a CSN nor a datetime", "Give a number or a datetime.")

    def _bound(
        self,
        text: str,
        reading: ReadContext,
        transaction: Transaction | None = None,
        freshness: Freshness = None,
        *,
        past: bool = False,
    ) -> DataFrame:
        def is_ours(name: str) -> bool:
            if reading.knows(name):
                return True
            if not self._has_session():
                reading.require(name)  # without a session there are no temporary views
            return False

        bound = bind(text, is_ours)
        self._make_way((ref.name for ref in bound.tables.values()) if freshness != "any" else ())
        engine = self._engine()
        lost = dict(self._watch.lost)
        remote = self._remote_frames(bound.tables.values(), reading, text, past=past)
        states = {ref: self._state(ref, reading) for ref in bound.tables.values() if ref.name not in remote}
        with self._views.maintenance.together(()):
            is_fresh = transaction is None and freshness in (None, "fresh") and not lost
            left = self._refresh_together(text, states) if is_fresh else {}
            frames = {
                placeholder: remote[ref.name]
                if ref.name in remote
                else self._frame(
                    ref, states[ref], transaction, freshness, lost, partial(asked_of, text, ref.name), left
                )
                for placeholder, ref in bound.tables.items()
            }
        parts = self._parts(bound, frames) if transaction is None else None
        if parts is not None:
            frame, query = parts
            answer = engine.evaluated(frame.alias(query.qualifier), query, f"query {text}")
        else:
            answer = engine.query(bound.text, frames, f"query {text}")
        if is_fresh and not past and not remote:
            self._note(bound)
        return answer

    def _note(self, bound: BoundQuery) -> None:
        """Note the text of a query that ran, for the optimiser; not of EXPLAIN, of the past, or of no table."""
        is_past = any(ref.version or ref.timestamp for ref in bound.tables.values())
        if self._ran is None or not bound.tables or is_past or is_word(tokenize(bound.original)[0], *_UNRUN):
            return
        text = one_line(bound.original)
        if len(text) <= LONGEST and "\0" not in text:  # PostgreSQL stores no NUL
            self._ran(text, time.time_ns() // 1000)

    def _parts(self, bound: BoundQuery, frames: Mapping[str, DataFrame]) -> tuple[DataFrame, RowQuery] | None:
        """The one frame of a query that only chooses rows and columns of it, and what it chooses."""
        if len(frames) != 1 or bound.foreign:
            return None
        (frame,) = frames.values()
        query = plain(bound.original, lambda: frame.columns)
        return (frame, query) if query is not None else None

    def _state(self, ref: TableRef, reading: ReadContext) -> RelationState:
        return reading.state(ref, self._engine().time_zone)

    def _refresh_together(self, text: str, states: Mapping[TableRef, RelationState]) -> Mapping[Reads, Pending]:
        """Maintain the views that a query reads together, if there are several; return what is known of their tasks."""
        views = {
            s.relation.id: (s.relation, s.csn, partial(asked_of, text, ref.name))
            for ref, s in states.items()
            if _is_view(s)
        }
        return self._views.reading.refresh_together(list(views.values())) if len(views) > 1 else {}

    def _remote_frames(
        self, refs: Iterable[TableRef], reading: ReadContext, text: str = "", *, past: bool = False
    ) -> dict[str, DataFrame]:
        """Return the present rows of the remote tables among these; those of one server are of one moment.

        Rows that the text of the query, if it is given, certainly does not use are left at the server.
        """
        found = {}
        known = {r.id for r in self._dimensions.tables.relations()}
        for ref in refs if known else ():
            relation = reading.relation(ref.name)
            if relation is not None and relation.id in known:
                if past or ref.version or ref.timestamp:
                    cause = "its old state cannot be queried: no rows of it are stored here"
                    raise InvalidStatement(f"remote table {ref.name}", cause, "Query it as it is, or a view of it.")
                found[ref.name] = relation
        conditions = {name: asked_of(text, name, r.schema.names) if text else None for name, r in found.items()}
        needed = {found[name].name: asked(given, found[name].schema) for name, given in conditions.items() if given}
        rows = self._dimensions.contents(found.values(), needed) if found else {}
        return {name: self._engine().frame(rows[r.name], r.schema) for name, r in found.items()}

    def _frame(
        self,
        ref: TableRef,
        state: RelationState,
        transaction: Transaction | None,
        freshness: Freshness,
        lost: Mapping[int, FreshviewError],
        matching: Matching | None = None,
        left: Mapping[Reads, Pending] | None = None,
    ) -> DataFrame:
        """Return a table or view as a DataFrame; raise the error of an external table that could not be read."""
        is_view = _is_view(state)
        if lost and freshness != "any" and not (ref.version or ref.timestamp):
            for relation_id in self._views.catalog.inputs(state.relation) if is_view else [state.relation.id]:
                if relation_id in lost:
                    raise lost[relation_id]
        if not is_view:
            return self._engine().scan(state)
        past = bool(ref.version or ref.timestamp)
        known = (left or {}).get((state.relation.id, state.csn))
        return self._view_frame(state, transaction, "fresh" if past else freshness, matching, known)

    def _view_frame(
        self,
        state: RelationState,
        transaction: Transaction | None,
        freshness: Freshness,
        matching: Matching | None,
        left: Pending | None,
    ) -> DataFrame:
        """Return a view as a DataFrame. Inside a transaction a view that is not deferred includes the own writes."""
        view = state.relation
        self._used(view.id, time.time_ns() // 1000)
        if transaction is not None and freshness is None:
            inside: DataFrame | None = self._views.reading.read_inside(view, transaction)
            if inside is not None:
                return inside
        read = self._views.reading.read
        stored: DataFrame = read(view, state.csn, freshness=freshness, matching=matching, left=left)
        return stored


def _is_view(state: RelationState) -> bool:
    return state.relation.kind == "view"


def _names_in(text: str) -> list[str]:
    """Return the tables that a query names."""
    names: list[str] = []
    bind(text, lambda name: bool(names.append(name)))  # type: ignore[func-returns-value]
    return names
