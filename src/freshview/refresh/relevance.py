"""What a query has to see of pending deltas: nothing, a part, or all (LAZY §3.5, DEFER §7).

The query's predicate p is projected on the delta tables, along the paths from the tables to the view (`paths.py`).

**Nothing.** If no path is met, σ_p(V) is the same before and after: the query reads the stored rows.

**A part.** Of the changes Δ of the tables R, let S be some of the rows, with all that meet a path. Between R ⊕ S and
R ⊕ Δ no path is met, so σ_p(V) is the same over both: the query reads V over R ⊕ S, which a job over the few rows of S
computes. Its result is laid over the stored rows for this query alone; the view stays where it was. S holds both images
of a key or none, so R ⊕ S is a state that the tables might have had. The part is taken if, by the times of the view's
past jobs, a job over all pending rows would take much longer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from types import MappingProxyType
from typing import TYPE_CHECKING

import pyarrow as pa
from sqlglot import exp
from sqlglot.errors import SqlglotError

from freshview.algebra.nodes import WEIGHT, Node, Project, Scan, Table, column, names_in
from freshview.algebra.traversal import columns_read, rewrite, scans
from freshview.catalog.records import Relation, RelationState, Segment
from freshview.catalog.views import ViewCatalog
from freshview.catalog.writer import Catalog
from freshview.definition.analysis import Definition, visible_columns
from freshview.definition.determinism import refuse_indeterminate
from freshview.definition.known import Definitions, empty_rows, settings_of
from freshview.delta.forms import hidden
from freshview.delta.signed import net, part
from freshview.errors import FreshviewError, NotMaintainable
from freshview.events import Events
from freshview.refresh.deltas import changes, fits_driver
from freshview.refresh.paths import HIT, is_open, numbered, paths, restricted
from freshview.refresh.points import Own
from freshview.refresh.span import Span
from freshview.refresh.tasks import Pending
from freshview.refresh.times import PAST_JOBS, times_of
from freshview.relation.delta import key_table, positions_in
from freshview.relation.schema import Column, Schema
from freshview.relation.types import DataType
from freshview.spark.engines import Engines
from freshview.spark.running import PlanRunner
from freshview.sql.rendering import text
from freshview.storage.reader import LOCAL_ROWS
from freshview.storage.segments import in_memory
from freshview.storage.store import Storage

if TYPE_CHECKING:
    from freshview.spark.engine import SparkEngine

_WORTH = 0.5  # seconds that a part has to save: the view has to be maintained for other queries all the same
_FEW = 0.1  # the share of the pending rows that a part has at most

# Returns the conditions of a query on the rows of a view with these columns; None if they are not known.
Matching = Callable[[Sequence[str]], list[exp.Expr] | None]


@dataclass(frozen=True)
class _Touched:
    """The paths from tables that have changed: table, path and the query's conditions that can be put on it."""

    paths: tuple[tuple[str, Node, list[exp.Expr]], ...]
    open: frozenset[str]  # the tables of which the query may see every row

    @property
    def is_open(self) -> bool:
        return bool(self.open)

    def sees_all(self, left: Pending) -> bool:
        """May the query see every pending row?"""
        return all(self.open.issuperset(map(str, task.tables)) for task in left.tasks)


@dataclass(frozen=True)
class _OverTables:
    """A view's definition over tables alone, and the paths from these. Scans name tables by their ids."""

    tree: Node
    tables: Mapping[str, Relation]
    definitions: Mapping[int, Definition]  # that it was made of, by the ids of the view and of those below it
    runner: PlanRunner
    _types: dict[Node, Mapping[str, str]] = field(default_factory=dict)

    @cached_property
    def paths(self) -> list[Node]:
        return paths(self.tree, self.types_of)

    @cached_property
    def columns(self) -> dict[str, tuple[str, ...]]:
        """The columns of each table that the definition uses."""
        return columns_read(self.tree)

    @cached_property
    def _empty(self) -> dict[str, object]:
        return {name: empty_rows(self.runner.engine, table) for name, table in self.tables.items()}

    def types_of(self, node: Node) -> Mapping[str, str]:
        if node not in self._types:
            self._types[node] = self.runner.types_of(self._empty)(node) if node.columns else {}
        return self._types[node]


@dataclass(frozen=True)
class Needed:
    """What a query has to see of a stale view: the stored rows, with the change by these rows of its tables on top."""

    stored: RelationState
    own: Own = field(default_factory=lambda: MappingProxyType({}))


class Relevance:
    """Decides which queries need no maintenance of a stale view, or only that of a part."""

    def __init__(
        self, catalog: Catalog, storage: Storage, events: Events, definitions: Definitions, engines: Engines
    ) -> None:
        self._catalog = catalog
        self._views = ViewCatalog(catalog)
        self._storage = storage
        self._events = events
        self._definitions = definitions
        self._engines = engines
        self._projections: dict[tuple[int, int], _OverTables] = {}

    def needed(
        self,
        view: Relation,
        left: Pending,
        csn: int,
        matching: Matching,
        reader: SparkEngine,
        *,
        report: bool = True,
    ) -> Needed | None:
        """What a query at a CSN has to see of a view although the tasks in `left` are pending; None if the view may
        have to be maintained. `report`: emit the event that maintenance is skipped."""
        try:
            if not self._is_worth_testing(view, left):
                return None
            conditions = matching(visible_columns(view))
            if conditions is None:
                return None
            start, projection = left.frontier.csn, self._projection(view)
            found = self._touched(view, left, projection, conditions, reader)
            if found is None or found.sees_all(left):
                return None
            saves = self._saves(view, left.rows)
            if found.is_open and not saves:
                return None
            pin = self._catalog.begin("job", at=start)
            try:
                if self._catalog.horizon() > start:
                    return None
                own = self._own(view, left, csn, projection, found, saves)
                if own is None:
                    return None
                stored = self._views.stored(view, start)
                if self._views.position(view) != left.frontier:
                    return None  # a job has moved it, and what it had stored may be composed
            finally:
                self._catalog.release(pin)
        except (FreshviewError, SqlglotError):
            return None  # a failed test decides nothing; maintenance or the query raises the error, if it is one
        rows = sum(segment.rows for segments in own.values() for segment in segments)
        emit = partial(self._events.emit, view=view.name, from_csn=start, to_csn=csn, rows=rows, pending=left.rows)
        if report:
            emit("view.part") if own else emit("view.skipped")
        return Needed(stored, own)

    def _is_worth_testing(self, view: Relation, left: Pending) -> bool:
        """Is it worth while to look at the pending rows? Over few of them Spark needs no job; to look at many has to
        save more than it takes."""
        in_part = left.frontier.stmtsn or any(task.stmtsn for task in left.tasks)
        if not left.tasks or in_part or left.reset:
            return False
        return left.rows <= LOCAL_ROWS or self._saves(view, left.rows)

    def _saves(self, view: Relation, rows: int) -> bool:
        """Would a job over a small share of these pending rows save time?"""
        times = times_of(self._views.finished(view, PAST_JOBS))
        return times is not None and times.seconds(rows) - times.seconds(int(_FEW * rows)) > _WORTH

    def _touched(
        self, view: Relation, left: Pending, projection: _OverTables, conditions: list[exp.Expr], reader: SparkEngine
    ) -> _Touched | None:
        """The paths from tables that have changed, with the conditions that fit them; None: ask no further."""
        # Without conditions of the query, nothing is evaluated that its session could read otherwise.
        if conditions and not _agree(projection.runner.engine, reader):
            return None
        for condition in conditions:
            refuse_indeterminate(f"SELECT {text(condition)}")
        touched = {str(table) for task in left.tasks for table in task.tables}
        found: list[tuple[str, Node, list[exp.Expr]]] = []
        for path in projection.paths:
            table = scans(path)[0].relation
            if table in touched:
                fitting = [c for c in conditions if _means_the_same(c, projection.types_of(path), view)]
                found.append((table, path, fitting))
        return _Touched(tuple(found), frozenset(t for t, path, fitting in found if is_open(restricted(path, fitting))))

    def _own(
        self, view: Relation, left: Pending, csn: int, projection: _OverTables, touched: _Touched, saves: bool
    ) -> Own | None:
        """The rows of the pending changes that the query has to see, as segments; None: all of them."""
        found = touched.paths
        span = Span.between(self._catalog, self._storage, left.frontier.csn, csn)
        if not all(fits_driver(r, span.segments(r)) for r in (projection.tables[t] for t, _, _ in found)):
            return None
        if not touched.is_open:
            deltas = {t: changes(span, projection.tables[t], projection.columns[t]) for t, _, _ in found}
            if not any(_is_met(projection, restricted(path, fitting), t, deltas[t]) for t, path, fitting in found):
                return {}
        seen = sum(s.rows for t in touched.open for s in span.segments(projection.tables[t]))
        return self._part(view, left, projection, found, span) if saves and _is_few(seen, left) else None

    def _part(
        self,
        view: Relation,
        left: Pending,
        projection: _OverTables,
        found: Sequence[tuple[str, Node, list[exp.Expr]]],
        span: Span,
    ) -> Own | None:
        """The part S of the pending changes; None if it is not small, or if it cannot be laid over a source."""
        if any(source.kind != "table" or source.is_external for source in self._definitions.of(view).sources.values()):
            return None
        own: dict[int, tuple[Segment, ...]] = {}
        for table in dict.fromkeys(t for t, _, _ in found):
            relation = self._catalog.relation_by_id(int(table))
            if relation is None or {projection.tables[table].schema, span.before(relation).schema} != {relation.schema}:
                return None
            signed = changes(span, relation)
            images = signed.drop_columns([WEIGHT])
            met = [_met(projection, path, fitting, relation, images) for t, path, fitting in found if t == table]
            keys = key_table(images, relation.schema)
            kept = positions_in(keys, keys.take(pa.concat_arrays(met)))
            segment = in_memory(relation.id, net(signed.take(kept), relation.schema), relation.schema_version)
            if segment is not None:
                own[relation.id] = (segment,)
        rows = sum(segment.rows for segments in own.values() for segment in segments)
        return own if _is_few(rows, left) else None

    def _projection(self, view: Relation) -> _OverTables:
        key = (view.id, view.epoch)
        known = self._projections.get(key)
        if known is None or not self._is_current(known, view):
            tables: dict[str, Relation] = {}
            definitions: dict[int, Definition] = {}
            tree = self._expanded(view, settings_of(view), tables, definitions)
            runner = PlanRunner(self._engines.under(settings_of(view), small=True))
            known = self._projections[key] = _OverTables(tree, tables, definitions, runner)
        return known

    def _is_current(self, known: _OverTables, view: Relation) -> bool:
        """Are the definitions that a projection was made of today's? Spark may turn out to read one otherwise."""
        below = known.definitions.keys() - {view.id}
        found = {**(self._catalog.relations_by_id(below) if below else {}), view.id: view}
        return all(i in found and self._definitions.of(found[i]) is d for i, d in known.definitions.items())

    def _expanded(
        self,
        view: Relation,
        settings: Mapping[str, str],
        tables: dict[str, Relation],
        definitions: dict[int, Definition],
    ) -> Node:
        """A view's definition, in which the definitions of views below it replace their scans."""
        definition = definitions[view.id] = self._definitions.of(view)
        if definition.lowered is None or settings_of(view) != settings:
            raise NotMaintainable(f"view {view.name}", "its definition cannot be looked into", "")
        sources = self._views.sources(view) if any(s.kind == "view" for s in definition.sources.values()) else {}

        def rule(node: Node) -> Node:
            if not isinstance(node, Scan):
                return node
            source = definition.sources[node.relation]
            if source.kind == "view":
                below = self._expanded(sources[node.relation], settings, tables, definitions)
                return Project(below, tuple((name, column(c)) for c, name in node.fields))
            if any(source.schema.column(c).type.kind in ("char", "varchar") for c, _ in node.fields):
                raise NotMaintainable(f"table {source.name}", "Spark compares padded strings in ways of its own", "")
            tables[str(source.id)] = source
            return replace(node, source=Table(str(source.id)))

        tree = rewrite(definition.lowered.node, rule)
        outputs = zip(definition.names, definition.lowered.outputs, strict=True)
        return Project(tree, tuple((name, column(c)) for name, (c, _) in outputs))


def _is_few(rows: int, left: Pending) -> bool:
    """Are these rows a small share of the pending ones?"""
    return rows <= _FEW * left.rows


def _means_the_same(condition: exp.Expr, types: Mapping[str, str], view: Relation) -> bool:
    """Do the columns of a condition have the types that the query sees?"""
    return all(types.get(c) == str(view.schema.column(c).type) for c in names_in(condition))


def _is_met(projection: _OverTables, path: Node, table: str, delta: pa.Table) -> bool:
    """Does a row of the delta meet the path? Spark needs no job to answer that over few rows of the driver."""
    if not delta.num_rows:
        return False
    columns = [c for c, _ in scans(path)[0].fields]
    engine = projection.runner.engine
    rows = engine.frame(delta.select(columns), part(projection.tables[table].schema, columns))
    found = projection.runner.run(path, lambda _: rows).limit(1)
    return bool(engine.collect(found, [pa.field(HIT, pa.int32())], "predicate of the query").num_rows)


def _met(
    projection: _OverTables, path: Node, conditions: Sequence[exp.Expr], relation: Relation, rows: pa.Table
) -> pa.Array:
    """The positions of the rows that meet a path with these conditions."""
    number = hidden("row", relation.schema.names)
    tested = numbered(path, conditions, number)
    columns = [c for c, _ in scans(tested)[0].fields if c != number]
    schema = Schema((*map(relation.schema.column, columns), Column(number, DataType("bigint"))))
    given = rows.select(columns).append_column(number, pa.array(range(rows.num_rows), pa.int64()))
    engine = projection.runner.engine
    frame = engine.frame(given, schema)
    found = engine.collect(projection.runner.run(tested, lambda _: frame), [pa.field(number, pa.int64())], "predicate")
    return found.column(number).combine_chunks()


def _agree(ours: SparkEngine, theirs: SparkEngine) -> bool:
    """Does a predicate mean the same in two sessions?"""
    return ours.settings() == theirs.settings()
