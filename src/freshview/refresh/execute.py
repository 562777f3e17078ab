"""Carrying out the plan of a job: it runs what the record says, over the rows at hand, and decides nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from freshview.algebra.nodes import Scan, Stored
from freshview.definition.known import as_seen
from freshview.delta.signed import net, part, weighted, with_weight
from freshview.refresh.hand import Hand
from freshview.refresh.plan import FULL, INCREMENTAL, JobPlan
from freshview.refresh.runner import Runner
from freshview.storage.reader import OVERLAY_ROWS

Runners = Callable[[bool], Runner]  # for jobs over few rows, or over many


@dataclass(frozen=True)
class Condensed:
    """A place where a delta was condensed (LAZY §4), and how many of its rows went."""

    on: str  # a source, or the view
    read: int
    left: int


@dataclass(frozen=True)
class Work:
    """What a job gives: delta rows of the stored relation, and how they were computed."""

    strategy: str  # "incremental" | "full" | "nothing"
    rows: pa.Table
    delta_rows: int
    condensed: tuple[Condensed, ...] = ()


def execute(plan: JobPlan, hand: Hand, runners: Runners) -> Work:
    """Do what a plan says."""
    if plan.strategy == FULL:
        return Work(FULL, _recomputed(hand, runners(False)), 0)
    condensed = [Condensed(c.source, c.read, c.rows) for c in hand.written]
    if plan.strategy != INCREMENTAL:
        return Work(plan.strategy, hand.view.schema.segment_arrow.empty_table(), 0, tuple(condensed))
    signed = _by_rules(plan, hand, runners(plan.is_local))
    rows = net(signed, hand.view.schema)
    condensed.append(Condensed(hand.view.name, signed.num_rows, rows.num_rows))
    return Work(plan.strategy, rows, plan.delta_rows, tuple(condensed))


def _by_rules(plan: JobPlan, hand: Hand, runner: Runner) -> pa.Table:
    """What the delta query gives, with weights."""
    assert plan.query is not None

    def frame(scan: Scan) -> Any:
        is_stored = isinstance(scan.source, Stored)
        relation = hand.view if is_stored else hand.definition.sources[scan.relation]
        rows = hand.rows(scan)
        if rows is None:
            whole = runner.engine.scan(hand.state(scan))
            return whole if is_stored else as_seen(relation, whole)
        if scan.version == "delta":
            return runner.engine.frame(rows, with_weight(part(relation.schema, hand.columns[scan.relation])))
        return runner.engine.frame(rows, part(relation.schema, rows.column_names))

    return runner.fetch(runner.in_stages(plan.query, frame), with_weight(hand.view.schema), small=plan.is_local)


def _recomputed(hand: Hand, runner: Runner) -> pa.Table:
    """The difference between what the definition gives now and what is stored."""
    frames = {name: runner.shown(hand.after(name)) for name in hand.definition.sources}
    schema = hand.view.schema
    with runner.settled(runner.stored(hand.definition, frames, schema)) as files:
        if sum(f.rows for f in files) + hand.stored.rows_at_most <= OVERLAY_ROWS:
            fresh, old = runner.read(0, files, schema), runner.storage.reader.contents(hand.stored)
            signed = pa.concat_tables([weighted(fresh, 1, schema), weighted(old, -1, schema)])
        else:
            rows = runner.engine.read_files(0, files, schema)
            difference = runner.engine.difference(rows, runner.engine.scan(hand.stored), schema)
            signed = runner.fetch(difference, with_weight(schema))
    return net(signed, schema)
