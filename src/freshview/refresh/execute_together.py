"""Carrying out the plan of one refresh of several views: each part once, then each view over the parts.

A part that fails takes its users out of the refresh, and a view that fails takes itself out: its own job computes it,
or raises its own error.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any, TypeVar

import pyarrow as pa

from freshview.algebra.nodes import Node, Scan, Shared
from freshview.delta.signed import RanOut
from freshview.errors import Cancelled, FreshviewError, first_line
from freshview.interruption import stop_if_asked
from freshview.local.engine import LocalEngine, LocalError
from freshview.refresh.execute import Change, Frames, execute, frames_of
from freshview.refresh.job_input import GroupInput
from freshview.refresh.plan import SPARK, RefreshPlan, SharedPart
from freshview.refresh.runner import Runner
from freshview.refresh.stages import Stages

Alone = str  # why a view's own job is to compute its change
Computed = TypeVar("Computed")


class _Left(Exception):
    """A view cannot be computed with the others, and why."""


_REASONS = (_Left, LocalError, RanOut, FreshviewError, pa.ArrowException, RecursionError)


def execute_together(
    plan: RefreshPlan, group: GroupInput, runners: Callable[[bool], Runner], local: LocalEngine, stages: Stages
) -> list[Change | Alone]:
    """The change of each view of a group, with its own time and an equal share of the time for the parts."""
    shared = _Parts(plan, group, runners, local, stages)
    members = sum(one is not None for one in plan.jobs)
    changes: list[Change | Alone] = []
    for one, job in zip(plan.jobs, group.jobs, strict=True):
        if one is None:
            changes.append("it shares nothing")
            continue
        stop_if_asked(f"view {job.view.name}")
        begun = time.monotonic()
        try:
            change = execute(one, job, runners, local, stages, shared.table, shared.frames)
        except Cancelled:
            raise
        except _REASONS as error:
            changes.append(first_line(error))
            continue
        own = time.monotonic() - begun
        changes.append(replace(change, seconds=own, shared=shared.seconds / members))
    return changes


class _Parts:
    """The rows of the parts of a refresh."""

    def __init__(
        self,
        plan: RefreshPlan,
        group: GroupInput,
        runners: Callable[[bool], Runner],
        local: LocalEngine,
        stages: Stages,
    ) -> None:
        self._group = group
        self._rows: dict[Shared, pa.Table | Alone] = {}
        self._held: dict[Shared, Any] = {}  # frames, or why there is none
        self._stages = stages
        self.frames: Frames | None = None
        begun = time.monotonic()
        if any(one is not None and one.engine == SPARK for one in plan.jobs):
            self.frames = frames_of(group, runners(False), stages, self._frame)
        for part in plan.parts:
            if part.local is not None:
                self._rows[part.source] = _tried(partial(local.run, part.local, self.table))
            else:
                self._held[part.source] = _tried(partial(self._computed, part, runners(False)))
        self.seconds = time.monotonic() - begun

    def table(self, read: Node) -> pa.Table:
        """The rows that the embedded engine reads."""
        if not isinstance(read, Scan) or not isinstance(read.source, Shared):
            return self._group.table(read)
        rows = self._rows[read.source]
        if isinstance(rows, Alone):
            raise _Left(rows)
        return rows

    def _computed(self, part: SharedPart, runner: Runner) -> Any:
        """The rows of a part by Spark, in files until the refresh ends."""
        assert self.frames is not None
        hold, engine = self._stages.held, runner.engine
        places = count()
        held = runner.in_stages(
            part.stages, self.frames, lambda rows: hold(("part", part.source, next(places)), rows, engine)
        )
        return hold(("shared", part.source), held, engine)

    def _frame(self, source: Shared) -> Any:
        frame = self._held[source]
        if isinstance(frame, Alone):
            raise _Left(frame)
        return frame


def _tried(compute: Callable[[], Computed]) -> Computed | Alone:
    """What a function returns, or why it failed."""
    try:
        return compute()
    except Cancelled:
        raise
    except _REASONS as error:
        return first_line(error)
