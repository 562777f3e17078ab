"""Carrying out the plan of a job over the job's input.

The plan decides what is computed and by which engine. How many rows a result has is found here: up to `OVERLAY_ROWS`
are netted and kept on the driver, more are netted by Spark and stay in files. Both ways give the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, TypeAlias

import pyarrow as pa

from freshview.algebra.nodes import Node, Scan, Shared, Stored
from freshview.definition.analysis import member_column
from freshview.definition.known import visible_rows
from freshview.delta.signed import net, part, refuse_repeated_images, repeated_key, weighted, with_weight
from freshview.errors import SnapshotExpired
from freshview.local.engine import LocalEngine
from freshview.refresh.cost import DRIVER_BYTES
from freshview.refresh.job_input import JobInput, SourceInput
from freshview.refresh.plan import FULL, INCREMENTAL, JobPlan
from freshview.refresh.runner import Runner
from freshview.refresh.stages import Stages
from freshview.relation.delta import REPLACE
from freshview.relation.schema import Schema
from freshview.storage.reader import LOCAL_ROWS, OVERLAY_ROWS
from freshview.storage.segments import Written

Runners = Callable[[bool], Runner]  # True: for a job over few rows
Frames = Callable[[Scan], Any]  # the frame of a scan
CondenseSizes = Mapping[str, Sequence[int]]  # by source or view: rows of deltas read, and left by condensing (LAZY §4)
Rows: TypeAlias = pa.Table | Written  # delta rows of a view: on the driver, or in files if they are many


@dataclass(frozen=True)
class Change:
    """The result of a job: delta rows of the view's stored relation, and how they were computed."""

    strategy: str  # "incremental" | "full" | "nothing"
    rows: Rows
    delta_rows: int  # of the sources
    sizes: CondenseSizes = field(default_factory=dict)
    engine: str = ""  # "embedded", or "spark" and what kept the job there
    expected: float = 0.0  # seconds, of the way that was chosen; 0 if they were not estimated
    otherwise: float = 0.0  # seconds that the best rejected way was expected to take; 0 if there was no other way
    factors: Mapping[str, float] = field(default_factory=dict)  # learnt with this job, by way; empty if nothing was
    replaced: str = ""  # why `rows` are all rows of the view, in place of the stored ones; "": they are delta rows
    seconds: float = 0.0  # of a view that was refreshed with others: for this view alone
    shared: float = 0.0  # and its share of the seconds for what several views needed


def execute(
    plan: JobPlan,
    given: JobInput,
    runners: Runners,
    local: LocalEngine,
    stages: Stages,
    table: Callable[[Node], pa.Table] | None = None,
    frames: Frames | None = None,
) -> Change:
    """The change that a plan gives; `stages` keeps results on the way to it. In a refresh of several views, `table` has
    the rows that the embedded engine reads, and `frames` those that Spark reads."""
    engine = f"{plan.engine}: {plan.why_spark}" if plan.why_spark else plan.engine
    if plan.strategy == FULL:
        rows = _recomputed(plan, given, runners(False), stages)
        replaced = plan.replaces if isinstance(rows, Written) and rows.segment.replaces else ""
        return Change(FULL, rows, 0, engine=engine, replaced=replaced)
    sizes: dict[str, Sequence[int]] = {c.source: (c.read, c.rows) for c in plan.written if not c.in_spark}
    if plan.strategy != INCREMENTAL:
        return Change(plan.strategy, given.view.schema.segment_arrow.empty_table(), 0, sizes)
    if plan.local is None and not plan.is_local:
        signed_rows, rows = _by_spark(plan, given, runners(False), stages, frames, sizes)
    else:
        if plan.local is not None:
            signed = with_weight(given.view.schema).conform(local.run(plan.local, table or given.table))
        else:
            signed = _over_rows_at_hand(plan, given, runners(True))
        signed_rows, rows = signed.num_rows, net(signed, given.view.schema)
    sizes[given.view.name] = (signed_rows, rows.num_rows)
    return Change(plan.strategy, rows, plan.delta_rows, sizes, engine)


def _over_rows_at_hand(plan: JobPlan, given: JobInput, runner: Runner) -> pa.Table:
    """The rows of a delta query whose scans and result are small, with weights."""
    query = runner.in_stages(plan.stages, lambda scan: _frame(scan, given, runner))
    return runner.fetch(query, with_weight(given.view.schema), small=True)


def _by_spark(
    plan: JobPlan,
    given: JobInput,
    runner: Runner,
    stages: Stages,
    frames: Frames | None,
    sizes: dict[str, Sequence[int]],
) -> tuple[int, Rows]:
    """The number of signed rows of a delta query, and its delta rows, netted on the driver if they are few. The rows
    that condensing leaves of large changes are added to `sizes`."""
    schema, engine = given.view.schema, runner.engine
    frame = frames or frames_of(given, runner, stages, sizes=sizes)
    places = count()
    held = (lambda rows: stages.held(("part", next(places)), rows, engine)) if plan.holds_stages_in_files else None
    signed = runner.in_stages(plan.stages, frame, held)
    assert plan.condense is not None
    if not plan.condense.runs:
        rows = _stored(engine.delta_rows(signed, schema, condensed=True), given, runner)
        return rows.num_rows, rows
    files = stages.files("signed", signed, engine)
    rows_signed = sum(f.rows for f in files)
    if rows_signed <= OVERLAY_ROWS:
        return rows_signed, net(runner.read(0, files, with_weight(schema)), schema)
    return rows_signed, _netted(engine.read_files(0, files, with_weight(schema)), given, runner)


def frames_of(
    given: SourceInput,
    runner: Runner,
    stages: Stages,
    shared: Callable[[Shared], Any] | None = None,
    sizes: dict[str, Sequence[int]] | None = None,
) -> Frames:
    """The frames of scans; what has to be computed for them is kept in stages. `shared` has the frames of parts that
    were computed before; `sizes` gets the rows of large changes that were read, and left by condensing."""
    known: dict[Scan, Any] = {}
    sizes = {} if sizes is None else sizes

    def frame(scan: Scan) -> Any:
        if isinstance(scan.source, Shared):
            assert shared is not None
            return shared(scan.source)
        if scan not in known:
            is_at_hand = scan.version != "delta" or given.rows(scan) is not None
            read = _frame(scan, given, runner) if is_at_hand else None
            known[scan] = read if is_at_hand else _large_delta(scan, given, runner, stages, sizes)
        return known[scan]

    return frame


def _netted(signed: Any, given: JobInput, runner: Runner) -> Rows:
    """Many signed rows as delta rows, netted by Spark."""
    return _stored(runner.engine.delta_rows(signed, given.view.schema), given, runner)


def _stored(delta_rows: Any, given: JobInput, runner: Runner) -> Rows:
    """Delta rows in files; few, and those of a caller that needs them on the driver, are read."""
    schema = given.view.schema
    written = runner.written(delta_rows, given.view.id, None)
    stays = False
    try:
        if given.in_memory or written.num_rows <= OVERLAY_ROWS:
            segment = written.segment
            rows = runner.storage.reader.segment_rows(segment, schema) if written.num_rows else _none(schema)
            refuse_repeated_images(rows, schema)
            return rows
        repeated = runner.engine.repeated_image(written.segment, schema) if schema.key else None
        if repeated is not None:
            raise repeated_key(f"({', '.join(f'{k}={v!r}' for k, v in repeated.items())})")
        stays = True
        return written
    finally:
        if not stays:
            runner.unwanted(written)


def _none(schema: Schema) -> pa.Table:
    return schema.segment_arrow.empty_table()


def _frame(scan: Scan, given: SourceInput, runner: Runner) -> Any:
    """The rows of a scan: those at hand, or all of its relation."""
    relation, rows = given.relation(scan), given.rows(scan)
    if rows is None:
        try:
            whole = runner.engine.scan(given.state(scan))
        except SnapshotExpired:
            if (delta := given.to_undo(scan)) is None:
                raise
            after = runner.engine.scan(given.after(scan.relation))
            return runner.engine.undone(after, delta, part(relation.schema, delta.column_names[:-1]))
        return whole if isinstance(scan.source, Stored) else visible_rows(relation, whole)
    if scan.version == "delta":
        return runner.engine.frame(rows, with_weight(part(relation.schema, given.columns[scan.relation])))
    return runner.engine.frame(rows, part(relation.schema, rows.column_names))


def _large_delta(
    scan: Scan, given: SourceInput, runner: Runner, stages: Stages, sizes: dict[str, Sequence[int]]
) -> Any:
    """The change of a source as a frame. If its rows had to be condensed they are kept in files: a delta plan may read
    them more than once."""
    name, relation = scan.relation, given.relation(scan)
    change = next(c for c in given.changes if c.source == name)
    states, columns = (given.before(name), given.after(name)), given.columns[name]
    member = member_column(relation)
    delta = runner.engine.changes(
        relation, states, given.segments[name], columns, member, condense=change.condense, grows=change.grows
    )
    if not change.condense.runs:
        return delta
    held = stages.held(("delta", name, tuple(columns), change.condense.step), delta, runner.engine)
    if held is not delta and change.condense.cancels:
        sizes[name] = (change.rows, stages.rows)
    return held


def _recomputed(plan: JobPlan, given: JobInput, runner: Runner, stages: Stages) -> Rows:
    """All rows of the view at the end of the span, or their difference from the stored rows. The computed rows are a
    result of the job: one that gives way while they are compared does not compute them again."""
    frames = {name: runner.visible(given.span.after(source)) for name, source in given.whole.sources.items()}
    schema, view_id = given.view.schema, given.view.id
    defined = runner.stored(given.whole, frames, schema)
    few = _fetched(defined, given, runner)
    if few is not None:
        return _compared(few, given, runner)
    fresh = stages.written("all rows", lambda: runner.written(defined, view_id, REPLACE))
    if fresh.num_rows + given.stored.rows_at_most <= OVERLAY_ROWS:
        return _compared(runner.read(view_id, fresh.segment.files, schema), given, runner)
    if plan.replaces and runner.has_columns(defined, schema):
        stages.given_up(fresh)
        return fresh
    rows = runner.engine.read_files(view_id, fresh.segment.files, schema)
    return _netted(runner.engine.signed(rows, runner.engine.scan(given.stored)), given, runner)


def _fetched(defined: Any, given: JobInput, runner: Runner) -> pa.Table | None:
    """The rows of a view that had few of them, without the files that cost more than such rows; None if they are no
    longer few: then Spark computes them again, and writes them."""
    stored = given.stored
    most = min(2 * LOCAL_ROWS, OVERLAY_ROWS - stored.rows_at_most)
    size = sum(s.size for s in stored.segments) + (stored.main.size if stored.main is not None else 0)
    if most <= 0 or not stored.is_small(LOCAL_ROWS) or size > DRIVER_BYTES:  # Spark fetches 1 GB at most
        return None
    rows = runner.fetch(defined.limit(most + 1), given.view.schema, small=True)
    return rows if rows.num_rows <= most else None


def _compared(new: pa.Table, given: JobInput, runner: Runner) -> pa.Table:
    """The difference of a view's rows from the stored ones, all on the driver."""
    schema, old = given.view.schema, runner.storage.reader.contents(given.stored)
    return net(pa.concat_tables([weighted(new, 1, schema), weighted(old, -1, schema)]), schema)
