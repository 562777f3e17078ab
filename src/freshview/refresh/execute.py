"""Carrying out the plan of a job: the plan decides everything, this module only runs it over the job's input."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from freshview.algebra.nodes import Scan, Stored
from freshview.definition.known import visible_rows
from freshview.delta.signed import net, part, weighted, with_weight
from freshview.local.engine import LocalEngine
from freshview.refresh.job_input import JobInput
from freshview.refresh.plan import FULL, INCREMENTAL, JobPlan
from freshview.refresh.runner import Runner
from freshview.storage.reader import OVERLAY_ROWS

Runners = Callable[[bool], Runner]  # True: for a job over few rows
Sizes = Mapping[str, Sequence[int]]  # of a job's deltas, by source or view: rows read and left by condensing (LAZY §4)


@dataclass(frozen=True)
class Change:
    """The result of a job: delta rows of the view's stored relation, and how they were computed."""

    strategy: str  # "incremental" | "full" | "nothing"
    rows: pa.Table
    delta_rows: int  # of the sources
    sizes: Sizes = field(default_factory=dict)
    engine: str = ""  # "embedded", or "spark" and what kept the job there
    expected: float = 0.0  # seconds, of the way that was chosen; 0 if they were not estimated
    otherwise: float = 0.0  # seconds that the best rejected way was expected to take; 0 if there was no other way
    factors: Mapping[str, float] = field(default_factory=dict)  # learnt with this job, by way; empty if nothing was


def execute(plan: JobPlan, given: JobInput, runners: Runners, local: LocalEngine) -> Change:
    """The change that a plan gives."""
    engine = f"{plan.engine}: {plan.why_spark}" if plan.why_spark else plan.engine
    if plan.strategy == FULL:
        return Change(FULL, _recomputed(given, runners(False)), 0, engine=engine)
    sizes = {c.source: (c.read, c.rows) for c in given.written}
    if plan.strategy != INCREMENTAL:
        return Change(plan.strategy, given.view.schema.segment_arrow.empty_table(), 0, sizes)
    if plan.local is not None:
        signed = with_weight(given.view.schema).conform(local.run(plan.local, given.table))
    else:
        signed = _by_rules(plan, given, runners(plan.is_local))
    rows = net(signed, given.view.schema)
    sizes[given.view.name] = (signed.num_rows, rows.num_rows)
    return Change(plan.strategy, rows, plan.delta_rows, sizes, engine)


def _by_rules(plan: JobPlan, given: JobInput, runner: Runner) -> pa.Table:
    """The rows of the delta query, with weights."""
    assert plan.query is not None

    def frame(scan: Scan) -> Any:
        relation, rows = given.relation(scan), given.rows(scan)
        if rows is None:
            whole = runner.engine.scan(given.state(scan))
            return whole if isinstance(scan.source, Stored) else visible_rows(relation, whole)
        if scan.version == "delta":
            return runner.engine.frame(rows, with_weight(part(relation.schema, given.columns[scan.relation])))
        return runner.engine.frame(rows, part(relation.schema, rows.column_names))

    return runner.fetch(runner.in_stages(plan.query, frame), with_weight(given.view.schema), small=plan.is_local)


def _recomputed(given: JobInput, runner: Runner) -> pa.Table:
    """The difference between the definition at the end of the span and the stored rows."""
    frames = {name: runner.visible(given.after(name)) for name in given.definition.sources}
    schema = given.view.schema
    with runner.as_files(runner.stored(given.definition, frames, schema)) as files:
        if sum(f.rows for f in files) + given.stored.rows_at_most <= OVERLAY_ROWS:
            fresh, old = runner.read(0, files, schema), runner.storage.reader.contents(given.stored)
            signed = pa.concat_tables([weighted(fresh, 1, schema), weighted(old, -1, schema)])
        else:
            rows = runner.engine.read_files(0, files, schema)
            difference = runner.engine.difference(rows, runner.engine.scan(given.stored), schema)
            signed = runner.fetch(difference, with_weight(schema))
    return net(signed, schema)
