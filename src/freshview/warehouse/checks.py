"""Checks of stored rows: views against their definitions, tables against their declared keys and NOT NULL columns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from freshview.catalog.records import REMOTE, Relation
from freshview.catalog.writer import Catalog
from freshview.delta.tolerance import Difference
from freshview.display import Display, Displayed, Grid, counted
from freshview.errors import InvalidStatement
from freshview.views.checking import Checking
from freshview.views.dimensions import DimensionViews
from freshview.views.invariants import STRONG, Invariant

if TYPE_CHECKING:
    from freshview.spark.engine import SparkEngine

_PRINTED = 10  # rows of each kind in a printed report


@dataclass(frozen=True, repr=False)
class CheckReport(Displayed):
    """The result of check(): whether the stored rows are right, and which are missing or too many.

    A report prints as text; a notebook renders the rows as tables.

    >>> report = freshview.CheckReport("totals", False, [{"region": "north", "total": 10}], [], missing_rows=1)
    >>> report.ok
    False
    >>> print(report)
    totals: NOT OK, 1 row missing, 0 too many
    missing, the first 1:
      region  total
      north      10
    """

    name: str
    ok: bool
    missing: list[dict[str, Any]]  # the first of the missing rows
    extra: list[dict[str, Any]]
    missing_rows: int = 0  # the number of all missing rows
    extra_rows: int = 0
    invariants: tuple[Invariant, ...] = ()  # of a view, if the check included them

    def _display(self) -> Display:
        rows = f"{counted(self.missing_rows, 'row')} missing, {self.extra_rows} too many"
        parts = (("missing", self.missing[:_PRINTED]), ("too many", self.extra[:_PRINTED]))
        tables = [Grid.of(found, f"{title}, the first {len(found)}") for title, found in parts if found]
        return Display(f"{self.name}: {'ok' if self.ok else 'NOT OK'}, {rows}", tables, list(map(str, self.invariants)))


def check_view(view: Relation, checking: Checking, *, invariant: bool) -> CheckReport:
    """Compare a view, as a bag, with its definition; with `invariant`, check the invariants of its mode too.

    Strong minimality is reported as it is found. It is a matter of space, and restored by the next composition: a view
    whose rows are right is ok without it.
    """
    promised = tuple(checking.invariants(view)) if invariant else ()
    return _report(view, checking.difference(view), promised)


def check_dimension(view: Relation, dimensions: DimensionViews, *, invariant: bool) -> CheckReport:
    """Bring a dimension view to the state of its source, and compare it with its definition over that very state."""
    if invariant:
        raise InvalidStatement(f"dimension view {view.name}", "it has no mode with invariants", "Leave them out.")
    return _report(view, dimensions.difference(view), ())


def _report(view: Relation, found: Difference, promised: tuple[Invariant, ...]) -> CheckReport:
    ok = not found.missing_rows and not found.extra_rows and all(i.ok for i in promised if i.name != STRONG)
    missing, extra = list(found.missing), list(found.extra)
    return CheckReport(view.name, ok, missing, extra, found.missing_rows, found.extra_rows, promised)


def check_table(
    table: Relation, catalog: Catalog, engine: Callable[[], SparkEngine], *, invariant: bool
) -> CheckReport:
    """Check the declared key and the NOT NULL columns of a table."""
    if table.kind == REMOTE:
        raise InvalidStatement(f"remote table {table.name}", "no rows of it are stored here", "Check a view of it.")
    if invariant:
        raise InvalidStatement(f"{table.kind} {table.name}", "only views have invariants", "Name a view.")
    frame = engine().scan(catalog.state(table, catalog.snapshot()))
    extra = engine().offending(frame, table.schema, f"table {table.name}")
    return CheckReport(table.name, not extra, [], extra, 0, len(extra))
