"""Can pending deltas matter to a query? Its predicate is projected on the delta tables (LAZY §3.5).

Law: if no path is met, then σ_p(V) is the same before and after, as a bag: the query may read the stored rows.

A *path* leads from one scan of a table up to the view. It is a tree without branches: what each operator on the path
makes of one row of the scan, as far as that is known from this row alone. A row meets the conditions on the path, and
those of the query on top, or it does not. If no row of a scan's delta meets its path, then at every operator N the
rows that the conditions above let through come from the same rows as before:

    σ, π     σ_p(σ_q(E)) = σ_{p∧q}(E); σ_p(π(E)) = π(σ_{p∘π}(E)): columns that are made of known ones are known
    γ        σ_p(γ_K(E)) = γ_K(σ_p(E)) for p over K: keys are known, if groups hold equal values that are the same bits
    ⋈, ×     σ_p(L ⋈ R) = σ_p(σ_pL(L) ⋈ σ_pR(R)): a side knows its own columns, and those of the other that the join
             makes equal to them, if equal values are the same bits
    ⊎        each part knows its own columns, by place
    others   know nothing (outer, semi and anti joins, windows, top-k, EXCEPT, generators); conditions below them count

The paths of all scans of all changed tables must be unmet. A condition that fails on a row (a cast, a division) makes
the delta matter; so does any construct that is not understood.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa
from sqlglot import exp
from sqlglot.errors import SqlglotError

from freshview.algebra.nodes import (
    Aggregate,
    Filter,
    Join,
    Node,
    Project,
    Scan,
    Table,
    Union,
    column,
    conjuncts,
    names_in,
    same,
)
from freshview.algebra.pruning import pruned
from freshview.algebra.traversal import bottom_up, columns_read, rewrite, scans
from freshview.catalog.records import Relation, RelationState
from freshview.catalog.views import ViewCatalog
from freshview.catalog.writer import Catalog
from freshview.definition.analysis import visible_columns
from freshview.definition.determinism import refuse_indeterminate
from freshview.definition.known import Definitions, empty_rows, settings_of
from freshview.delta.aggregates import TypesOf
from freshview.delta.signed import part
from freshview.errors import FreshviewError, NotMaintainable
from freshview.events import Events
from freshview.refresh.deltas import changes, fits_driver
from freshview.refresh.span import Span
from freshview.refresh.tasks import Pending
from freshview.spark.engines import Engines
from freshview.spark.running import PlanRunner
from freshview.sql.rendering import text
from freshview.storage.reader import LOCAL_ROWS
from freshview.storage.store import Storage

if TYPE_CHECKING:
    from freshview.spark.engine import SparkEngine

_MOST_PATHS = 64  # a definition that reads its tables more often than this is always maintained
_HIT = "hit"
_EXACT = re.compile(r"boolean|tinyint|smallint|int|bigint|decimal\(\d+,\d+\)|string|binary|date|timestamp(_ntz)?")

# Returns the conditions of a query on the rows of a view with these columns; None if they are not known.
Matching = Callable[[Sequence[str]], list[exp.Expr] | None]


# -- paths -----------------------------------------------------------------------------------------


def paths(root: Node, types_of: TypesOf) -> list[Node]:
    """The paths of all scans to the root of a definition."""
    return _Paths(types_of).of(root)


def restricted(path: Node, conditions: Iterable[exp.Expr]) -> Node:
    """A path whose rows also meet those conditions whose columns it has. It gives one constant column."""
    for condition in conditions:
        if names_in(condition) <= set(path.columns):
            path = Filter(path, condition)
    return pruned(Project(path, ((_HIT, exp.Literal.number(1)),)), {_HIT})


def is_open(path: Node) -> bool:
    """Does every row meet a path?"""
    return not any(isinstance(node, Filter) for node in bottom_up(path))


class _Paths:
    def __init__(self, types_of: TypesOf) -> None:
        self._types_of = types_of
        self._done: dict[Node, list[Node]] = {}

    def of(self, node: Node) -> list[Node]:
        if node not in self._done:
            found = self._of(node)
            if len(found) > _MOST_PATHS:
                raise NotMaintainable("definition", "it reads its tables too often", "")
            self._done[node] = found
        return self._done[node]

    def _of(self, node: Node) -> list[Node]:
        match node:
            case Scan():
                return [node]
            case Project():
                return [_projected(path, node) for path in self.of(node.input)]
            case Filter() | Join(kind="inner"):
                return self._joined(node)
            case Aggregate():
                return [self._grouped(path, node) for path in self.of(node.input)]
            case Union():
                return [_by_place(path, p, node) for p in node.parts for path in self.of(p)]
        return [Project(path, ()) for i in node.inputs for path in self.of(i)]

    def _grouped(self, path: Node, node: Aggregate) -> Node:
        """A path through a grouping. The key of a group of -0.0 and 0.0 is one of both: no row determines which."""
        known = [k for k in node.keys if k in path.columns]
        types = self._types_of(path) if known else {}
        return Project(path, same(k for k in known if _EXACT.fullmatch(types[k])))

    def _joined(self, node: Node) -> list[Node]:
        """The paths through filters and inner joins: all conditions hold for the rows of all parts."""
        parts, conditions = _flat(node)
        equal = [(c.this.name, c.expression.name) for c in conditions if _is_equality(c)]
        pairs = [p for a, b in equal for p in ((a, b), (b, a)) if self._are_same(parts, a, b)]
        return [_met(path, pairs, conditions) for p in parts for path in self.of(p)]

    def _are_same(self, parts: Sequence[Node], a: str, b: str) -> bool:
        """Are equal values of two columns the same bits?"""
        types = [self._types_of(p)[c] for c in (a, b) for p in parts if c in p.columns]
        return len(types) == 2 and types[0] == types[1] and _EXACT.fullmatch(types[0]) is not None


def _flat(node: Node) -> tuple[list[Node], list[exp.Expr]]:
    match node:
        case Filter():
            parts, conditions = _flat(node.input)
            return parts, [*conditions, *conjuncts(node.predicate)]
        case Join(kind="inner"):
            left, right = _flat(node.left), _flat(node.right)
            own = conjuncts(node.condition) if node.condition is not None else []
            return left[0] + right[0], [*left[1], *right[1], *own]
    return [node], []


def _is_equality(condition: exp.Expr) -> bool:
    return isinstance(condition, exp.EQ | exp.NullSafeEQ) and all(
        isinstance(side, exp.Column) for side in (condition.this, condition.expression)
    )


def _met(path: Node, pairs: Sequence[tuple[str, str]], conditions: Sequence[exp.Expr]) -> Node:
    """A path through a join: columns equal to known ones are known; then the conditions over known columns apply."""
    own = set(path.columns)
    while new := next(((a, b) for a, b in pairs if a in path.columns and b not in path.columns), None):
        path = Project(path, (*same(path.columns), (new[1], column(new[0]))))
    for condition in conditions:
        copied = _is_equality(condition) and not names_in(condition) <= own  # would compare a column with itself
        if names_in(condition) <= set(path.columns) and not copied:
            path = Filter(path, condition)
    return path


def _projected(path: Node, node: Project) -> Node:
    return Project(path, tuple((n, e) for n, e in node.items if names_in(e) <= set(path.columns)))


def _by_place(path: Node, side: Node, node: Union) -> Node:
    pairs = zip(node.names, side.columns, strict=True)
    return Project(path, tuple((n, column(c)) for n, c in pairs if c in path.columns))


# -- views -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Projection:
    """A view's definition over tables alone, and the paths from these. Scans name tables by their ids."""

    tree: Node
    tables: Mapping[str, Relation]
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


class Relevance:
    """Decides which queries need no maintenance of a stale view."""

    def __init__(
        self, catalog: Catalog, storage: Storage, events: Events, definitions: Definitions, engines: Engines
    ) -> None:
        self._catalog = catalog
        self._views = ViewCatalog(catalog)
        self._storage = storage
        self._events = events
        self._definitions = definitions
        self._engines = engines
        self._projections: dict[tuple[int, int], _Projection] = {}

    def unaffected(
        self, view: Relation, left: Pending, csn: int, matching: Matching, reader: SparkEngine
    ) -> RelationState | None:
        """The stored rows, if they answer a query at a CSN although the tasks in `left` are pending; None if the view
        may have to be maintained."""
        try:
            if not _is_worth_testing(left):
                return None
            conditions = matching(visible_columns(view))
            if conditions is None:
                return None
            start = left.frontier.csn
            pin = self._catalog.begin("job", at=start)
            try:
                if self._catalog.horizon() > start or self._is_relevant(view, left, csn, conditions, reader):
                    return None
                stored = self._views.stored(view, start)
                if self._views.position(view) != left.frontier:
                    return None  # a job has moved it, and what it had stored may be composed
            finally:
                self._catalog.release(pin)
        except (FreshviewError, SqlglotError):
            return None  # a failed test decides nothing; maintenance or the query raises the error, if it is one
        self._events.emit("view.skipped", view=view.name, from_csn=start, to_csn=csn)
        return stored

    def _is_relevant(
        self, view: Relation, left: Pending, csn: int, conditions: list[exp.Expr], reader: SparkEngine
    ) -> bool:
        projection = self._projection(view)
        if not _agree(projection.runner.engine, reader):
            return True
        for condition in conditions:
            refuse_indeterminate(f"SELECT {text(condition)}")
        touched = {str(table) for task in left.tasks for table in task.tables}
        found = []
        for path in projection.paths:
            table = scans(path)[0].relation
            if table in touched:
                fitting = [c for c in conditions if _means_the_same(c, projection.types_of(path), view)]
                found.append((table, restricted(path, fitting)))
        if any(is_open(path) for _, path in found):
            return True
        span = Span.between(self._catalog, self._storage, left.frontier.csn, csn)
        if not all(fits_driver(r, span.segments(r)) for r in (projection.tables[t] for t, _ in found)):
            return True
        deltas = {t: changes(span, projection.tables[t], projection.columns[t]) for t, _ in found}
        return any(_is_met(projection, path, table, deltas[table]) for table, path in found)

    def _projection(self, view: Relation) -> _Projection:
        key = (view.id, view.epoch)
        if key not in self._projections:
            tables: dict[str, Relation] = {}
            tree = self._expanded(view, settings_of(view), tables)
            runner = PlanRunner(self._engines.under(settings_of(view), small=True))
            self._projections[key] = _Projection(tree, tables, runner)
        return self._projections[key]

    def _expanded(self, view: Relation, settings: Mapping[str, str], tables: dict[str, Relation]) -> Node:
        """A view's definition, in which the definitions of views below it replace their scans."""
        definition = self._definitions.of(view)
        if definition.lowered is None or settings_of(view) != settings:
            raise NotMaintainable(f"view {view.name}", "its definition cannot be looked into", "")

        def rule(node: Node) -> Node:
            if not isinstance(node, Scan):
                return node
            source = definition.sources[node.relation]
            if source.kind == "view":
                below = self._expanded(source, settings, tables)
                return Project(below, tuple((name, column(c)) for c, name in node.fields))
            if any(source.schema.column(c).type.kind in ("char", "varchar") for c, _ in node.fields):
                raise NotMaintainable(f"table {source.name}", "Spark compares padded strings in ways of its own", "")
            tables[str(source.id)] = source
            return replace(node, source=Table(str(source.id)))

        tree = rewrite(definition.lowered.node, rule)
        outputs = zip(definition.names, definition.lowered.outputs, strict=True)
        return Project(tree, tuple((name, column(c)) for name, (c, _) in outputs))


def _is_worth_testing(left: Pending) -> bool:
    partial = left.frontier.stmtsn or any(task.stmtsn for task in left.tasks)
    return bool(left.tasks) and not partial and not left.reset and left.rows <= LOCAL_ROWS


def _means_the_same(condition: exp.Expr, types: Mapping[str, str], view: Relation) -> bool:
    """Do the columns of a condition have the types that the query sees?"""
    return all(types.get(c) == str(view.schema.column(c).type) for c in names_in(condition))


def _is_met(projection: _Projection, path: Node, table: str, delta: pa.Table) -> bool:
    """Does a row of the delta meet the path? Spark needs no job to answer that over rows of the driver."""
    if not delta.num_rows:
        return False
    if delta.num_rows > LOCAL_ROWS:
        return True
    columns = [c for c, _ in scans(path)[0].fields]
    engine = projection.runner.engine
    rows = engine.frame(delta.select(columns), part(projection.tables[table].schema, columns))
    found = projection.runner.run(path, lambda _: rows).limit(1)
    return bool(engine.collect(found, [pa.field(_HIT, pa.int32())], "predicate of the query").num_rows)


def _agree(ours: SparkEngine, theirs: SparkEngine) -> bool:
    """Does a predicate mean the same in two sessions?"""
    return ours.settings() == theirs.settings()
