"""The input of a job, read before its plan is chosen: the changes of the sources, and the few rows that meet them.

    changes    Δ of each source over the span, condensed; the plan has their sizes, the query reads their rows; one that
               is too large for the driver is not read here, and its size is that of its segments
    lookups    rows of the other relations that meet the changes, by key (`lookups.py`), as far as they are few

Each is read once, when it is first asked for; choosing, executing and EXPLAIN share it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc

from freshview.algebra.nodes import WEIGHT, Node, Scan, Stored
from freshview.algebra.traversal import columns_read
from freshview.catalog.records import Relation, RelationState, Segment
from freshview.catalog.views import ViewCatalog
from freshview.definition.analysis import Definition
from freshview.refresh.cost import Calibration, Estimate, estimate_full
from freshview.refresh.deltas import changes, fits_driver, member_rows
from freshview.refresh.lookups import Lookups
from freshview.refresh.plan import SourceChange
from freshview.refresh.span import Span
from freshview.relation.delta import INSERT
from freshview.storage.external import only_adds
from freshview.storage.reader import LOCAL_ROWS


@dataclass(frozen=True)
class JobInput:
    """The input of a job for a view over a span."""

    view: Relation
    definition: Definition
    span: Span
    stored: RelationState  # the view's own rows, before
    in_memory: bool = False  # the caller needs the result on the driver, whatever its size
    prepared: dict[Node, pa.Table] = field(default_factory=dict)  # parts of the plan that Spark has computed already

    @cached_property
    def segments(self) -> dict[str, list[Segment]]:
        """The segments that lead from before to after, for the sources that were written to over the span."""
        found = {name: self.span.segments(relation) for name, relation in self.definition.sources.items()}
        return {name: segments for name, segments in found.items() if segments}

    @cached_property
    def _changed(self) -> dict[str, tuple[SourceChange, pa.Table | None]]:
        """The size and the rows of each source's change; None for the rows of one that stays in Spark."""
        found: dict[str, tuple[SourceChange, pa.Table | None]] = {}
        for name, segments in self.segments.items():
            relation = self.definition.sources[name]
            if not fits_driver(relation, segments):
                found[name] = (self._large(name, relation, segments), None)
                continue
            delta = changes(self.span, relation, self.columns[name], segments)
            stored = 0 if relation.is_external else sum(s.rows for s in segments)
            read = max(stored, delta.num_rows)  # a blind upsert is stored as one row, and completed to two
            grows = delta.num_rows > 0 and pc.min(delta.column(WEIGHT)).as_py() > 0
            size = self.after(name).rows_at_most if delta.num_rows else 0
            found[name] = (SourceChange(name, read, delta.num_rows, grows, size), delta)
        return found

    def _large(self, name: str, relation: Relation, segments: Sequence[Segment]) -> SourceChange:
        """The change of a source that stays in Spark, from what is known of its segments without reading them."""
        after = self.after(name)
        if any(s.replaces for s in segments):
            rows, grows = self.before(name).rows_at_most + after.rows_at_most, False
        elif relation.is_external:
            rows, grows = sum(s.rows for s in segments), only_adds(relation, segments, after.main)
        else:
            rows, grows = sum(s.rows for s in segments), all(s.action == INSERT for s in segments)
        return SourceChange(name, rows, rows, grows, after.rows_at_most, in_spark=True)

    @property
    def written(self) -> tuple[SourceChange, ...]:
        """The changes of all sources that were written to, also those of which condensing leaves no row."""
        return tuple(change for change, _ in self._changed.values())

    @property
    def changes(self) -> tuple[SourceChange, ...]:
        """The changes of which condensing leaves rows, in the columns that the view uses."""
        return tuple(change for change in self.written if change.rows)

    @cached_property
    def deltas(self) -> dict[str, pa.Table | None]:
        """The rows of `changes` by source, each row with its weight; None for those that stay in Spark."""
        return {change.source: self._changed[change.source][1] for change in self.changes}

    @cached_property
    def columns(self) -> dict[str, tuple[str, ...]]:
        """The columns of each source that the definition uses; the first column of a table that is only counted."""
        assert self.definition.form is not None
        used = columns_read(self.definition.form.tree)
        return {n: used.get(n) or s.schema.names[:1] for n, s in self.definition.sources.items()}

    @cached_property
    def _lookups(self) -> Lookups:
        return Lookups(self.span.storage.reader, self.state, self.deltas)

    def rows(self, scan: Scan) -> pa.Table | None:
        """The rows of a scan that matter; None if Spark has to read them."""
        return self._lookups.table(scan)

    def table(self, read: Node) -> pa.Table:
        """The rows of a prepared part, or of a scan for which `reads` is 0: those that matter, or all rows of a small
        relation."""
        if read in self.prepared:
            return self.prepared[read]
        assert isinstance(read, Scan)
        return self._scanned(read)

    def _scanned(self, scan: Scan) -> pa.Table:
        rows = self.rows(scan)
        if rows is not None:
            return rows
        whole = self.span.storage.reader.contents(self.state(scan))
        return whole if isinstance(scan.source, Stored) else member_rows(self.relation(scan), whole)

    def relation(self, scan: Scan) -> Relation:
        """The relation that a scan reads: a source, or the view itself."""
        return self.view if isinstance(scan.source, Stored) else self.definition.sources[scan.relation]

    def reads(self, scan: Scan) -> int:
        """How many rows Spark reads from files for a scan."""
        if self.rows(scan) is not None:
            return 0
        if scan.version == "delta":
            return self._changed[scan.relation][0].cost
        rows = self.state(scan).rows_at_most
        return rows if rows > LOCAL_ROWS else 0

    @cached_property
    def full(self) -> Estimate:
        """The estimated cost of recomputing the view."""
        return estimate_full(self.definition, lambda source: self.after(source).rows_at_most)

    @cached_property
    def calibration(self) -> Calibration:
        """What was learnt from the jobs of the view; the catalog keeps it with the frontier that each job moves."""
        return Calibration(ViewCatalog(self.span.catalog).factors(self.view))

    def state(self, scan: Scan) -> RelationState:
        """The state that a scan reads. A relation without a change is the same before and after."""
        if isinstance(scan.source, Stored):
            return self.stored
        is_old = scan.version == "old" or scan.relation not in self.deltas
        return self.span.before(self.relation(scan)) if is_old else self.after(scan.relation)

    def before(self, source: str) -> RelationState:
        """A source at the start of the span."""
        return self.span.before(self.definition.sources[source])

    def after(self, source: str) -> RelationState:
        """A source at the end of the span."""
        return self.span.after(self.definition.sources[source])
