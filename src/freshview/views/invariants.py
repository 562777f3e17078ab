"""The invariants of DEFER §3, which can be checked at any time (Figure 1, and the minimality of §4.1 and §5.2).

    INV_IM   Q ≡ MV                                  eager
    INV_BL   PAST(L, Q) ≡ MV                         base-log, and lazy
    INV_DT   Q ≡ (MV ∸ ∇MV) ⊎ ΔMV                    differential
    INV_C    PAST(L, Q) ≡ (MV ∸ ∇MV) ⊎ ΔMV           combined

PAST(L, Q) is the definition over the base tables before the log: as of the view's frontier. Spark compares the stored
rows as bags; no check uses delta rules or the way in which queries read views.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from freshview.algebra.nodes import WEIGHT
from freshview.catalog.records import Deferral, Relation, RelationState, Segment
from freshview.definition.known import visible_rows
from freshview.definition.properties import BASE_LOG, COMBINED, DIFFERENTIAL, EAGER, LAZY
from freshview.delta.signed import part
from freshview.delta.tolerance import Difference, beyond_tolerance
from freshview.refresh.deltas import changes, fits_driver
from freshview.refresh.runner import Runner
from freshview.refresh.span import Span
from freshview.relation.delta import is_live, overlay, untag
from freshview.relation.schema import Schema
from freshview.spark.running import Frame

if TYPE_CHECKING:
    from freshview.spark.engine import SparkEngine


@dataclass(frozen=True)
class Invariant:
    """One invariant: its formula, and whether it holds.

    >>> print(freshview.Invariant("INV_IM", "Q ≡ MV", True))
    INV_IM holds (Q ≡ MV)
    """

    name: str
    says: str
    ok: bool
    found: str = ""  # what was found instead; or why it was not checked

    def __str__(self) -> str:
        found = f": {self.found}" if self.found else ""
        return f"{self.name} {'holds' if self.ok else 'is broken'} ({self.says}){found}"


STRONG = "strong minimality"  # of space, not of rows: a view whose differentials have rows that cancel is right

_STATES = {
    EAGER: ("INV_IM", "Q ≡ MV"),
    LAZY: ("INV_BL", "PAST(L, Q) ≡ MV"),
    BASE_LOG: ("INV_BL", "PAST(L, Q) ≡ MV"),
    DIFFERENTIAL: ("INV_DT", "Q ≡ (MV ∸ ∇MV) ⊎ ΔMV"),
    COMBINED: ("INV_C", "PAST(L, Q) ≡ (MV ∸ ∇MV) ⊎ ΔMV"),
}


@dataclass(frozen=True)
class Differentials:
    """∇MV and ΔMV: the stored rows that lead from what the view shows to what was propagated."""

    deleted: pa.Table
    inserted: pa.Table

    @classmethod
    def of(cls, parts: Sequence[pa.Table], schema: Schema) -> Differentials:
        """The net of several parts, in order (Lemma 3, with cancellation), as bags: both images of an update."""
        rows = overlay(list(parts), part(schema, None)).rows
        live = is_live(rows)
        return cls(untag(rows.filter(pc.invert(live))), untag(rows.filter(live)))


@dataclass(frozen=True)
class Invariants:
    """Checks one view's invariants."""

    view: Relation
    visible: Schema  # the columns of the definition
    runner: Runner
    stored: Callable[[int], RelationState]  # the view's rows at a CSN
    defined: Callable[[int], Frame]  # the definition at a CSN
    bases: Sequence[Relation]  # the tables that the view reads, directly or through other views

    def check(self, scenario: str, deferral: Deferral, segments: Sequence[Segment], log: bool) -> list[Invariant]:
        """Check all invariants of a scenario. `segments` are the stored differentials; `log`: is a commit pending?"""
        parts = [self.runner.storage.reader.segment_rows(s, self.view.schema) for s in segments]
        net = Differentials.of(parts, self.view.schema)
        found = [self._state(scenario, deferral, net), self._weak(deferral, net)]
        if scenario in (BASE_LOG, LAZY, EAGER):
            alone = not net.deleted.num_rows and not net.inserted.num_rows
            found.append(Invariant("no differentials", "∇MV = ΔMV = ∅", alone, "" if alone else _sizes(net)))
        else:
            found.append(self._strong(parts))
        if scenario in (DIFFERENTIAL, EAGER):
            found.append(Invariant("no log", "L = ∅", not log, "commits are pending" if log else ""))
        return found + [self._log(base, deferral.propagated) for base in self.bases if log and not base.is_external]

    def _state(self, scenario: str, deferral: Deferral, net: Differentials) -> Invariant:
        """Check the state invariant with the deleted rows added to both sides: given ∇MV ⊆ MV, no monus is needed."""
        name, says = _STATES[scenario]
        left = self.defined(deferral.propagated).unionAll(self._visible(net.deleted))
        right = self.runner.visible(self.stored(deferral.shown)).unionAll(self._visible(net.inserted))
        difference = compared(self.runner.engine, left, right, self.visible)
        ok = not difference.missing_rows and not difference.extra_rows
        found = f"{difference.missing_rows} rows are missing, {difference.extra_rows} too many"
        return Invariant(name, says, ok, "" if ok else found)

    def _weak(self, deferral: Deferral, net: Differentials) -> Invariant:
        mv = self.runner.engine.scan(self.stored(deferral.shown))
        return self._within("∇MV ⊆ MV", net.deleted, mv, self.view.schema)

    def _strong(self, parts: Sequence[pa.Table]) -> Invariant:
        return strong_minimality(parts, self.view.schema)

    def _log(self, base: Relation, frontier: int) -> Invariant:
        catalog = self.runner.catalog
        newest = catalog.snapshot()
        says = f"▲{base.name} ⊆ {base.name}"
        span = Span.between(catalog, self.runner.storage, frontier, newest)
        if not fits_driver(base, span.segments(base)):
            return Invariant("weak minimality", says, True, "not checked: the log is too large for the driver")
        rows = changes(span, base)
        added = rows.filter(pc.greater(rows.column(WEIGHT), 0)).drop_columns([WEIGHT])
        schema = part(base.schema, None)
        return self._within(says, added, self.runner.engine.scan(catalog.state(base, newest)), schema)

    def _within(self, says: str, some: pa.Table, all_rows: Frame, schema: Schema) -> Invariant:
        """Check that a bag is contained in another."""
        if not some.num_rows:
            return Invariant("weak minimality", says, True)
        engine = self.runner.engine
        frame = engine.frame(some, schema)
        beyond = engine.difference(frame, engine.among(all_rows, frame, schema), schema).where(f"{WEIGHT} > 0")
        rows = engine.arrow(beyond, "check").num_rows
        return Invariant("weak minimality", says, not rows, f"{rows} rows are not there" if rows else "")

    def _visible(self, rows: pa.Table) -> Any:
        return visible_rows(self.view, self.runner.engine.frame(rows, self.view.schema))


def strong_minimality(parts: Sequence[pa.Table], schema: Schema) -> Invariant:
    """Check that no row is both deleted and inserted by the stored differentials.

    Several parts need not be strongly minimal until they are composed: then the invariant does not hold, although the
    rows are right.
    """
    cancels = sum(p.num_rows for p in parts) - overlay(list(parts), part(schema, None)).rows.num_rows
    found = f"{cancels} rows cancel" + (f" when {len(parts)} parts are composed" if len(parts) > 1 else "")
    return Invariant(STRONG, "∇MV min ΔMV = ∅", not cancels, found if cancels else "")


def _sizes(net: Differentials) -> str:
    return f"{net.deleted.num_rows} rows deleted, {net.inserted.num_rows} inserted"


def compared(engine: SparkEngine, defined: Any, stored: Any, schema: Schema) -> Difference:
    """The difference between the defined and the stored rows, two frames of the same columns."""
    return beyond_tolerance(engine.arrow(engine.difference(defined, stored, schema), "check"))
