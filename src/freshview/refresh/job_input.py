"""The input of a job, read before its plan is chosen: the changes of the sources, and the few rows that meet them.

    changes    Δ of each source over the span, condensed; the plan has their sizes, the query reads their rows; one that
               is too large for the driver is not read here, and its size is that of its segments
    lookups    rows of the other relations that meet the changes, by key (`lookups.py`), as far as they are few

Each is read once, when it is first asked for; choosing, executing and EXPLAIN share it.

Views that are refreshed together share the images of each source's change (`SourceImages`): each nets them in the
columns that it uses. The parts that their plans have in common read a `GroupInput`: deltas and lookups in the columns
that any of the views uses.

    Δ of R in columns A  =  the net of (Δ of R in columns B) projected on A,  A ⊆ B

Rules take deltas whose rows cancel in part, so a plan may read Δ in more columns than it uses. Whether a change only
adds rows is asked of the Δ that is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc

from freshview.algebra.nodes import WEIGHT, Node, Scan, ScanSource, Stored, Table
from freshview.algebra.traversal import columns_read
from freshview.catalog.records import Relation, RelationState, Segment
from freshview.catalog.views import ViewCatalog
from freshview.definition.analysis import Definition
from freshview.delta.signed import part, undone
from freshview.errors import SnapshotExpired
from freshview.interruption import stop_if_asked
from freshview.refresh.condense import ChangeUse, condensed, condensed_in_spark, is_linear, use_of
from freshview.refresh.cost import DEFAULT, Calibration, Estimate, Rates, estimate_full
from freshview.refresh.deltas import fits_driver, images, member_rows, netted
from freshview.refresh.lookups import Lookups
from freshview.refresh.plan import ScanPlan, SourceChange, ViewSpan
from freshview.refresh.span import Span
from freshview.refresh.times import PAST_JOBS
from freshview.relation.delta import INSERT
from freshview.storage.external_files import only_adds
from freshview.storage.reader import rows_in_files


class SourceImages:
    """The images of the sources' changes over a span, read once for several views."""

    def __init__(self, span: Span, uses: Iterable[tuple[Relation, Sequence[str]]]) -> None:
        """`uses` are the sources of the views, and the columns that each view uses."""
        self._span = span
        self._columns: dict[int, dict[str, None]] = {}
        for relation, columns in uses:
            self._columns.setdefault(relation.id, {}).update(dict.fromkeys(columns))
        self._images: dict[int, tuple[pa.Table, pa.Table]] = {}
        self._deltas: dict[tuple[int, tuple[str, ...]], pa.Table] = {}

    def columns(self, relation: Relation) -> tuple[str, ...]:
        """The columns of a source that any of the views uses."""
        return tuple(self._columns[relation.id])

    def delta(self, relation: Relation, columns: Sequence[str]) -> pa.Table:
        """The signed delta of a source in some of these columns."""
        key = (relation.id, tuple(columns))
        if key not in self._deltas:
            if relation.id not in self._images:
                self._images[relation.id] = images(self._span, relation, self.columns(relation))
            self._deltas[key] = netted(self._images[relation.id], relation, columns)
        return self._deltas[key]

    def only_adds(self, relation: Relation) -> bool:
        """Has the delta in all of these columns positive weights only?"""
        weights = self.delta(relation, self.columns(relation)).column(WEIGHT)
        return len(weights) == 0 or pc.min(weights).as_py() > 0


class SourceInput:
    """What plans read of sources over a span."""

    span: Span
    prepared: dict[Node, pa.Table]  # parts of the plan that Spark has computed already

    @property
    def sources(self) -> Mapping[str, Relation]:
        """The sources by the names that plans have for them."""
        raise NotImplementedError

    @property
    def columns(self) -> Mapping[str, tuple[str, ...]]:
        """The columns that are read of each source's change."""
        raise NotImplementedError

    @property
    def images(self) -> SourceImages:
        raise NotImplementedError

    def own(self, source: Stored) -> RelationState:
        """The stored rows of a view that a plan reads, before."""
        raise NotImplementedError

    @property
    def is_linear(self) -> bool:
        """Is a change read by one plan, once, through filters and projections only?"""
        return False

    def use(self, source: str) -> ChangeUse | None:  # noqa: ARG002
        """How one plan reads the change of a source; None if several do."""
        return None

    @cached_property
    def segments(self) -> dict[str, list[Segment]]:
        """The segments that lead from before to after, for the sources that were written to over the span."""
        found = self.span.segments_of(self.sources.values())
        return {name: segments for name, segments in zip(self.sources, found, strict=True) if segments}

    @cached_property
    def _changed(self) -> dict[str, tuple[SourceChange, pa.Table | None]]:
        """The size and the rows of each source's change; None for the rows of one that stays in Spark."""
        found: dict[str, tuple[SourceChange, pa.Table | None]] = {}
        for name, segments in self.segments.items():
            relation = self.sources[name]
            stop_if_asked(f"change of {relation.name}")
            if not fits_driver(relation, segments):
                found[name] = (self._large(name, relation, segments), None)
                continue
            delta = self.images.delta(relation, self.columns[name])
            stored = 0 if relation.is_external else sum(s.rows for s in segments)
            read = max(stored, delta.num_rows)  # a blind upsert is stored as one row, and completed to two
            grows = delta.num_rows > 0 and self.images.only_adds(relation)
            step = condensed(relation)
            found[name] = (SourceChange(name, read, delta.num_rows, grows, condense=step), delta)
        return found

    def _large(self, name: str, relation: Relation, segments: Sequence[Segment]) -> SourceChange:
        """The change of a source that stays in Spark, from what is known of its segments without reading them."""
        if any(s.replaces for s in segments):
            rows, grows = self.before(name).rows_at_most + self.after(name).rows_at_most, False
        elif relation.is_external:
            rows, grows = sum(s.rows for s in segments), only_adds(relation, segments, self.after(name).main)
        else:
            rows, grows = sum(s.rows for s in segments), all(s.action == INSERT for s in segments)
        step = condensed_in_spark(relation, segments, grows=grows, is_linear=self.is_linear, use=self.use(name))
        return SourceChange(name, rows, rows, grows, in_spark=True, condense=step)

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
        try:
            whole = self.span.storage.reader.contents(self.state(scan))
        except SnapshotExpired:
            if (delta := self.to_undo(scan)) is None:
                raise
            rows = self.span.storage.reader.contents(self.after(scan.relation)).select(list(delta.column_names[:-1]))
            return undone(rows, delta, part(self.relation(scan).schema, delta.column_names[:-1]))
        return whole if isinstance(scan.source, Stored) else member_rows(self.relation(scan), whole)

    def to_undo(self, scan: Scan) -> pa.Table | None:
        """The change on the driver that leads from the state of a scan to the state after it, in the columns that are
        used; None if there is no such one. It is asked for when files of an external table's old version are gone."""
        is_external = isinstance(scan.source, Table) and self.sources[scan.relation].is_external
        return self.deltas.get(scan.relation) if is_external and scan.version == "old" else None

    def relation(self, scan: Scan) -> Relation:
        """The relation that a scan reads: a source, or a view itself."""
        return self.own(scan.source).relation if isinstance(scan.source, Stored) else self.sources[scan.relation]

    def reads(self, scan: Scan) -> int:
        """How many rows Spark reads from files for a scan."""
        if self.rows(scan) is not None:
            return 0
        if scan.version == "delta":
            return self._changed[scan.relation][0].cost
        return rows_in_files(self.state(scan))

    def measured(self, scan: Scan) -> ScanPlan:
        """How a scan is read: its rows are looked up now, if that can be done."""
        from_files, rows = self.reads(scan), self.rows(scan)
        if rows is None or scan.version == "delta":
            return ScanPlan(scan, from_files)
        return ScanPlan(scan, from_files, rows.num_rows, self._lookups.joined(scan, rows))

    def state(self, scan: Scan) -> RelationState:
        """The state that a scan reads. A relation without a change is the same before and after."""
        if isinstance(scan.source, Stored):
            return self.own(scan.source)
        is_old = scan.version == "old" or scan.relation not in self.deltas
        return self.before(scan.relation) if is_old else self.after(scan.relation)

    def before(self, source: str) -> RelationState:
        """A source at the start of the span."""
        return self.span.before(self.sources[source])

    def after(self, source: str) -> RelationState:
        """A source at the end of the span."""
        return self.span.after(self.sources[source])


@dataclass(frozen=True)
class JobInput(SourceInput):
    """The input of a job for a view over a span."""

    view: Relation
    definition: Definition
    span: Span
    stored: RelationState  # the view's own rows, before
    in_memory: bool = False  # the caller needs the result on the driver, whatever its size
    shared: SourceImages | None = None  # with the other views that are refreshed together
    rates: Rates = DEFAULT  # by which ways are compared
    prepared: dict[Node, pa.Table] = field(default_factory=dict)

    @property
    def whole(self) -> Definition:
        """The definition that recomputes the view: that of its text, also if rules maintain it by a rewriting."""
        return self.definition.original or self.definition

    @property
    def takes(self) -> ViewSpan:
        """The view, and from where to where the job takes it."""
        return ViewSpan(self.view.name, self.span.start, self.span.end)

    @property
    def is_linear(self) -> bool:
        form = self.definition.form
        return self.shared is None and form is not None and is_linear(form.tree)

    def use(self, source: str) -> ChangeUse | None:
        form = self.definition.form
        if self.shared is not None or form is None:
            return None
        past = ViewCatalog(self.span.catalog).finished(self.view, PAST_JOBS)
        seen = next((job.condense[source] for job in past if source in job.condense), None)
        sizes, alone = (lambda name: self.before(name).rows_at_most), len(self.segments) == 1
        use = use_of(form, source, sizes, alone=alone, is_keyed=bool(self.definition.key), past=seen)
        return replace(use, rates=self.rates) if use is not None else None

    @property
    def is_rewritten(self) -> bool:
        return self.definition is not self.whole

    def by_text(self) -> JobInput:
        """The input of the same job by the definition of the view's text."""
        return JobInput(self.view, self.whole, self.span, self.stored, self.in_memory, rates=self.rates)

    @property
    def sources(self) -> Mapping[str, Relation]:
        return self.definition.sources

    @cached_property
    def columns(self) -> Mapping[str, tuple[str, ...]]:
        return columns_used(self.definition)

    @cached_property
    def images(self) -> SourceImages:
        return self.shared or SourceImages(self.span, uses(self.definition))

    def own(self, source: Stored) -> RelationState:  # noqa: ARG002
        return self.stored

    def relation(self, scan: Scan) -> Relation:
        return self.view if isinstance(scan.source, Stored) else self.sources[scan.relation]

    @cached_property
    def full(self) -> Estimate:
        """The estimated cost of recomputing the view."""

        def rows(source: str) -> int:
            relation = self.whole.sources[source]
            state = self.span.after(relation) if self.span.segments(relation) else self.span.before(relation)
            return rows_in_files(state)

        return estimate_full(self.whole, rows, self.rates)

    @cached_property
    def calibration(self) -> Calibration:
        """What was learnt from the jobs of the view; the catalog keeps it with the frontier that each job moves."""
        return Calibration(ViewCatalog(self.span.catalog).factors(self.view))


@dataclass(frozen=True)
class GroupInput(SourceInput):
    """The input of the parts that several jobs over one span have in common."""

    jobs: tuple[JobInput, ...]
    span: Span
    shared: SourceImages
    rates: Rates = DEFAULT
    prepared: dict[Node, pa.Table] = field(default_factory=dict)

    @property
    def images(self) -> SourceImages:
        return self.shared

    @cached_property
    def sources(self) -> Mapping[str, Relation]:
        return {_name(r): r for job in self.jobs for r in job.sources.values()}

    @cached_property
    def columns(self) -> Mapping[str, tuple[str, ...]]:
        return {name: self.shared.columns(relation) for name, relation in self.sources.items()}

    def own(self, source: Stored) -> RelationState:
        return self._stored[source.view]

    @cached_property
    def _stored(self) -> dict[int, RelationState]:
        return {job.view.id: job.stored for job in self.jobs}

    def reading(self, place: int, scan: Scan) -> tuple[ScanSource, str]:
        """What a scan in the plan of a job reads, by the names of this input."""
        job = self.jobs[place]
        if isinstance(scan.source, Stored):
            return Stored(job.view.id), scan.version
        version = scan.version if scan.relation in job.deltas else "old"  # the same before and after
        return Table(_name(job.sources[scan.relation])), version


def _name(relation: Relation) -> str:
    """A name that differs from those of all other relations; a definition may know its source by an old name."""
    return f"{relation.name}#{relation.id}"


def columns_used(definition: Definition) -> dict[str, tuple[str, ...]]:
    """The columns of each source that a definition uses; the first column of a table that is only counted."""
    assert definition.form is not None
    used = columns_read(definition.form.tree)
    return {n: used.get(n) or s.schema.names[:1] for n, s in definition.sources.items()}


def uses(definition: Definition) -> list[tuple[Relation, Sequence[str]]]:
    """The sources of a definition, and the columns of them that it uses."""
    return [(definition.sources[name], columns) for name, columns in columns_used(definition).items()]
