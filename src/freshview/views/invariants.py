"""The invariants of DEFER §3 as checks that can be run at any time (Figure 1, and the minimality of §4.1 and §5.2).

    INV_IM   Q ≡ MV                                  eager
    INV_BL   PAST(L, Q) ≡ MV                         base-log, and lazy
    INV_DT   Q ≡ (MV ∸ ∇MV) ⊎ ΔMV                    differential
    INV_C    PAST(L, Q) ≡ (MV ∸ ∇MV) ⊎ ΔMV           combined

PAST(L, Q) is the definition over the base tables before the log: as of the view's frontier. Bags are compared by
Spark, from the rows that are stored; nothing here uses delta rules or the way in which views are read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from freshview.algebra.nodes import WEIGHT
from freshview.catalog.records import Deferral, Relation, RelationState, Segment
from freshview.definition.known import as_seen
from freshview.definition.properties import BASE_LOG, COMBINED, DIFFERENTIAL, EAGER, LAZY
from freshview.delta.signed import part
from freshview.delta.tolerance import Difference, beyond_tolerance
from freshview.refresh.deltas import TooLarge, changes
from freshview.refresh.runner import Runner
from freshview.refresh.span import Span
from freshview.relation.delta import is_live, overlay, untag
from freshview.relation.schema import Schema
from freshview.spark.running import Frame

if TYPE_CHECKING:
    from freshview.spark.engine import SparkEngine


@dataclass(frozen=True)
class Invariant:
    """One invariant: what it says, and whether it holds.

    >>> print(freshview.Invariant("INV_IM", "Q ≡ MV", True))
    INV_IM holds (Q ≡ MV)
    """

    name: str
    says: str
    ok: bool
    found: str = ""  # what was found instead; or why it was not looked at

    def __str__(self) -> str:
        found = f": {self.found}" if self.found else ""
        return f"{self.name} {'holds' if self.ok else 'is broken'} ({self.says}){found}"


_STATES = {
    EAGER: ("INV_IM", "Q ≡ MV"),
    LAZY: ("INV_BL", "PAST(L, Q) ≡ MV"),
    BASE_LOG: ("INV_BL", "PAST(L, Q) ≡ MV"),
    DIFFERENTIAL: ("INV_DT", "Q ≡ (MV ∸ ∇MV) ⊎ ΔMV"),
    COMBINED: ("INV_C", "PAST(L, Q) ≡ (MV ∸ ∇MV) ⊎ ΔMV"),
}


@dataclass(frozen=True)
class Differentials:
    """∇MV and ΔMV: rows that are stored on the way from what is shown to what was propagated."""

    deleted: pa.Table
    inserted: pa.Table

    @classmethod
    def of(cls, parts: Sequence[pa.Table], schema: Schema) -> Differentials:
        """The net of several parts, in order (Lemma 3, with cancellation)."""
        rows = overlay(list(parts), schema).rows
        live = is_live(rows)
        return cls(untag(rows.filter(pc.invert(live))), untag(rows.filter(live)))


@dataclass(frozen=True)
class Invariants:
    """Checks one view's invariants."""

    view: Relation
    shown: Schema  # the columns that the definition has
    runner: Runner
    stored: Callable[[int], RelationState]  # the view's rows at a CSN
    defined: Callable[[int], Frame]  # the definition at a CSN
    bases: Sequence[Relation]

    def check(self, scenario: str, stand: Deferral, segments: Sequence[Segment], log: bool) -> list[Invariant]:
        """`segments` are the stored differentials; `log` tells whether there is one, and is checked too."""
        parts = [self.runner.storage.reader.segment_rows(s, self.view.schema) for s in segments]
        net = Differentials.of(parts, self.view.schema)
        found = [self._state(scenario, stand, net), self._weak(stand, net)]
        if scenario in (BASE_LOG, LAZY, EAGER):
            alone = not net.deleted.num_rows and not net.inserted.num_rows
            found.append(Invariant("no differentials", "∇MV = ΔMV = ∅", alone, "" if alone else _sizes(net)))
        else:
            found.append(self._strong(parts))
        if scenario in (DIFFERENTIAL, EAGER):
            found.append(Invariant("no log", "L = ∅", not log, "commits are pending" if log else ""))
        return found + [self._log(base, stand.propagated) for base in self.bases if log and not base.is_external]

    def _state(self, scenario: str, stand: Deferral, net: Differentials) -> Invariant:
        """Both sides with the deleted rows added: given ∇MV ⊆ MV, that is the same, and no monus is needed."""
        name, says = _STATES[scenario]
        left = self.defined(stand.propagated).unionAll(self._visible(net.deleted))
        right = self.runner.shown(self.stored(stand.shown)).unionAll(self._visible(net.inserted))
        difference = compared(self.runner.engine, left, right, self.shown)
        ok = not difference.missing_rows and not difference.extra_rows
        told = f"{difference.missing_rows} rows are missing, {difference.extra_rows} too many"
        return Invariant(name, says, ok, "" if ok else told)

    def _weak(self, stand: Deferral, net: Differentials) -> Invariant:
        mv = self.runner.engine.scan(self.stored(stand.shown))
        return self._within("∇MV ⊆ MV", net.deleted, mv, self.view.schema)

    def _strong(self, parts: Sequence[pa.Table]) -> Invariant:
        """Of the differentials as they are stored; parts that could not be composed yet may have rows to cancel."""
        stored = sum(p.num_rows for p in parts)
        left = overlay(list(parts), self.view.schema).rows.num_rows
        waiting = f"{stored - left} rows cancel when {len(parts)} parts are composed"
        ok = stored == left or len(parts) > 1
        return Invariant("strong minimality", "∇MV min ΔMV = ∅", ok, waiting if stored != left else "")

    def _log(self, base: Relation, frontier: int) -> Invariant:
        catalog = self.runner.catalog
        newest = catalog.snapshot()
        says = f"▲{base.name} ⊆ {base.name}"
        try:
            rows = changes(Span.between(catalog, self.runner.storage, frontier, newest), base)
        except TooLarge:
            return Invariant("weak minimality", says, True, "not looked at: the log is too large for the driver")
        added = rows.filter(pc.greater(rows.column(WEIGHT), 0)).drop_columns([WEIGHT])
        schema = part(base.schema, None)
        return self._within(says, added, self.runner.engine.scan(catalog.state(base, newest)), schema)

    def _within(self, says: str, some: pa.Table, all_rows: Frame, schema: Schema) -> Invariant:
        """Is a bag contained in another?"""
        if not some.num_rows:
            return Invariant("weak minimality", says, True)
        engine = self.runner.engine
        frame = engine.frame(some, schema)
        beyond = engine.difference(frame, engine.among(all_rows, frame, schema), schema).where(f"{WEIGHT} > 0")
        rows = engine.arrow(beyond, "check").num_rows
        return Invariant("weak minimality", says, not rows, f"{rows} rows are not there" if rows else "")

    def _visible(self, rows: pa.Table) -> Any:
        return as_seen(self.view, self.runner.engine.frame(rows, self.view.schema))


def _sizes(net: Differentials) -> str:
    return f"{net.deleted.num_rows} rows deleted, {net.inserted.num_rows} inserted"


def compared(engine: SparkEngine, defined: Any, stored: Any, schema: Schema) -> Difference:
    """The difference of what is defined and what is stored, two frames of the same columns."""
    return beyond_tolerance(engine.arrow(engine.difference(defined, stored, schema), "check"))
