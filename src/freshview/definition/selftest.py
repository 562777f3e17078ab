"""The self-test of a view: its text, what was made of it, and its rows kept by delta rules, over small tables.

Law: for every state of the tables,   text  =  tree  =  stored rows ⊕ what the delta rules give,   as bags.

The tables are made for the definition (`worlds.py`). They begin empty and go through a few changes. In every state
Spark's answer to the text is compared with the tree's; from each state to the next, all that is stored with what the
rules give: so the rules are right for rows that rules have kept. All states are asked about in one query of each kind,
since most of what a query over few rows costs is its planning. A difference is made small before it is shown. Where
the text leaves the order of ties open, the tables have none in what it orders by.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from freshview.algebra.nodes import WEIGHT, Lowered, Node, Scan, Stored
from freshview.algebra.stages import staged
from freshview.algebra.traversal import columns_read, per_use
from freshview.definition.analysis import Definition
from freshview.definition.worlds import EXTREME, Profile, World, changed, empty, profiles_for, words_of, world
from freshview.delta.forms import Form, delta_plan, rows_form
from freshview.delta.signed import net, net_images, part, with_weight
from freshview.delta.tolerance import beyond_tolerance
from freshview.errors import FreshviewError, first_line
from freshview.interruption import stop_if_asked
from freshview.relation.delta import Overlay
from freshview.relation.schema import Schema
from freshview.relation.types import DataType
from freshview.relation.values import python_rows
from freshview.spark.running import PlanRunner

_ROUNDS = 3
_SECONDS = 2.5  # after which no further tables are tried
_SMALL = 25  # operators of a view whose changes are asked about together
_QUESTIONS = 30  # that may be asked to make a difference small


class Fails(Exception):
    """Spark fails on a query over these tables."""


@dataclass(frozen=True)
class Tested:
    """What a self-test found: nothing different on so many rows in so many rounds, or a difference, in words."""

    rows: int = 0
    rounds: int = 0
    difference: str = ""


Reading = Callable[[Scan], Any]  # the frame that a scan reads


@dataclass(frozen=True)
class _Move:
    """A change of the tables, and the rows that the view had before it."""

    before: World
    after: World
    stored: pa.Table


class SelfTest:
    """Tests one definition on one Spark session."""

    def __init__(
        self, definition: Definition, runner: PlanRunner, schemas: Mapping[str, Schema], stored: Schema
    ) -> None:
        assert definition.form is not None
        assert definition.lowered is not None
        self._definition = definition
        self._form: Form = definition.form
        self._lowered: Lowered = definition.lowered
        self._runner = runner
        self._schemas = schemas
        self._stored = stored
        self._words = words_of(definition.text)
        self._frames: dict[tuple[str, int], Any] = {}
        self._kept: list[World] = []  # worlds whose frames are known by id

    def run(self) -> Tested:
        """Try worlds until one is met on which the text does not fail; extremes go with it, if those do not fail."""
        until = time.monotonic() + _SECONDS
        nothing = empty(self._schemas)
        failure = ""
        for profile in profiles_for(self._types()):
            usual = [nothing, *self._states(profile, _ROUNDS)]
            try:
                texts = self._texts(usual)
            except Fails as fails:
                failure = failure or str(fails)
                if time.monotonic() > until + _SECONDS:
                    break
                continue
            extreme = list(self._states(EXTREME, 1))
            try:
                texts += self._texts(extreme)
            except Fails:
                extreme = []
            moves = [(i, i + 1) for i in range(_ROUNDS)] + ([(0, len(usual))] if extreme else [])
            return self._through([*usual, *extreme], texts, moves, until)
        return Tested(difference=f"it could not be tested: Spark fails on all tables that were tried ({failure})")

    def _types(self) -> Iterator[DataType]:
        """The types of the columns that are read."""
        for name, columns in columns_read(self._form.tree).items():
            yield from (self._schemas[name].column(column).type for column in columns)

    def _states(self, profile: Profile, rounds: int) -> Iterator[World]:
        untied = not self._definition.as_written
        state = world(self._schemas, self._words, profile, untied=untied)
        yield state
        for number in range(1, rounds):
            state = changed(state, self._schemas, self._words, profile, number, untied=untied)
            yield state

    def _through(
        self, states: Sequence[World], texts: Sequence[pa.Table], moves: Sequence[tuple[int, int]], until: float
    ) -> Tested:
        """Every state by the tree, then every move between two by delta rules; beyond a time, two are enough."""
        trees: list[pa.Table] = []
        for state, text, found in zip(states, texts, self._trees(states), strict=True):
            if isinstance(found, str) or not self._equal(text, found, state):
                return Tested(difference=self._smallest(None, state))
            trees.append(found)
        counts = [sum(t.num_rows for t in state.values()) for state in states]
        if not self._definition.incremental:
            return Tested(sum(counts), len(moves))
        rows = done = 0
        for some in self._in_batches([_Move(states[i], states[j], trees[i]) for i, j in moves]):
            stop_if_asked("self-test")
            for (before, after), found in zip(moves[done:], self._moved(some), strict=False):
                if isinstance(found, str) or _differs(trees[after], found):
                    return Tested(difference=self._smallest(states[before], states[after]))
                rows, done = rows + counts[after], done + 1
            if done >= 2 and time.monotonic() > until:
                break
        return Tested(rows, done)

    # -- three answers -----------------------------------------------------------------------------

    def _texts(self, states: Sequence[World]) -> list[pa.Table]:
        """Spark's answers to the text."""
        asked = [
            self._runner.bound(self._definition.text, {n: self._frame(n, state) for n in state}) for state in states
        ]
        try:
            return self._runner.engine.answers(asked, "self-test")
        except (FreshviewError, pa.ArrowException) as error:
            raise Fails(told(error)) from error

    def _trees(self, states: Sequence[World]) -> list[pa.Table | str]:
        """The stored rows from scratch, by the tree; or the error."""
        return self._ran([(self._form.tree, self._reader(state)) for state in states], self._stored)

    def _moved(self, moves: Sequence[_Move]) -> list[pa.Table | str]:
        """The stored rows after changes, by delta rules; or the error."""
        plans = [self._delta(move) for move in moves]
        given = iter(self._ran([p for p in plans if p is not None], with_weight(self._stored)))
        result: list[pa.Table | str] = []
        for move, plan in zip(moves, plans, strict=True):
            signed = next(given) if plan is not None else None
            if isinstance(signed, str):
                result.append(signed)
            elif signed is None:
                result.append(move.stored)
            else:
                result.append(Overlay(self._stored, net(signed, self._stored)).apply(move.stored))
        return result

    def _delta(self, move: _Move) -> tuple[Node, Reading] | None:
        """What the delta rules run for a change, and over which frames; None if nothing."""
        used = columns_read(self._form.tree)
        deltas: dict[str, tuple[pa.Table, Schema]] = {}
        for name, schema in self._schemas.items():
            if move.before[name] is move.after[name]:
                continue
            shown = part(schema, used.get(name) or schema.names[:1])
            delta = net_images((move.before[name], move.after[name]), schema, shown)
            if delta.num_rows:
                deltas[name] = (delta, shown)
        grows = frozenset(n for n, (d, _) in deltas.items() if min(d.column(-1).to_pylist()) > 0)
        plan = delta_plan(self._form, self._lowered, set(deltas), self._definition.types, inserts_only=grows)
        if plan is None:
            return None
        engine = self._runner.engine

        def frame(scan: Scan) -> Any:
            if isinstance(scan.source, Stored):
                return engine.frame(move.stored, self._stored)
            if scan.version == "delta":
                rows, shown = deltas[scan.relation]
                return engine.frame(rows, with_weight(shown))
            return self._frame(scan.relation, move.before if scan.version == "old" else move.after)

        return plan, frame

    def _ran(self, plans: Sequence[tuple[Node, Reading]], schema: Schema) -> list[pa.Table | str]:
        """The rows of each plan, or the error. Plans that need no stages are asked together."""
        if len(plans) > 1 and not any(staged(plan)[0] for plan, _ in plans):
            try:
                asked = [self._runner.text(plan, frame) for plan, frame in plans]
                return [schema.conform(t) for t in self._runner.engine.answers(asked, "view")]
            except (FreshviewError, pa.ArrowException):
                pass  # which of them failed is seen one by one
        return [self._ran_alone(plan, frame, schema) for plan, frame in plans]

    def _ran_alone(self, plan: Node, frame: Reading, schema: Schema) -> pa.Table | str:
        try:
            return schema.conform(self._runner.engine.arrow(self._runner.in_stages(plan, frame), "view"))
        except (FreshviewError, pa.ArrowException) as error:
            return told(error)

    def _in_batches(self, moves: Sequence[_Move]) -> Iterator[Sequence[_Move]]:
        """Moves that are asked about together: all, or one by one where plans are large."""
        size = per_use(self._form.tree, lambda _: 1)
        step = len(moves) if size <= _SMALL else 1
        for start in range(0, len(moves), step):
            yield moves[start : start + step]

    def _reader(self, state: World) -> Reading:
        return lambda scan: self._frame(scan.relation, state)

    def _frame(self, name: str, state: World) -> Any:
        key = (name, id(state[name]))
        if key not in self._frames:
            self._kept.append(state)  # so that no other table gets its id
            self._frames[key] = self._runner.engine.frame(state[name], self._schemas[name])
        return self._frames[key]

    # -- comparing ---------------------------------------------------------------------------------

    def _shown(self, stored: pa.Table) -> pa.Table:
        rows = stored.filter(stored.column(self._form.shown)) if self._form.shown else stored
        return rows.select(list(self._definition.names))

    def _equal(self, expected: pa.Table, stored: pa.Table, state: World) -> bool:
        if not _differs(expected, self._shown(stored)):
            return True
        if self._definition.as_written or self._definition.plain is None:
            return False
        # Ties may still be open: then the tree without tie-breaks gives what the text gives, and the rest is as stored.
        plain = rows_form(self._definition.plain, self._definition.names).tree
        visible = Schema(tuple(self._stored.column(n) for n in self._definition.names))
        read = self._ran_alone(plain, self._reader(state), visible)
        return not isinstance(read, str) and not _differs(expected, read)

    # -- the smallest example ----------------------------------------------------------------------

    def _smallest(self, before: World | None, after: World) -> str:
        """A difference in words, over as few rows as can be found with a few questions."""
        for start in (None, before):
            if self._told(start, after) is not None:
                return self._told(start, self._reduced(start, after)) or ""
        return "the rows kept by delta rules differ from the text's after several changes"

    def _reduced(self, before: World | None, after: World) -> World:
        """The state with rows left out, by halves, that the difference does not need."""
        asked = 0
        for name in sorted(after, key=lambda n: -after[n].num_rows):
            size = after[name].num_rows
            while size:
                place = 0
                while place < after[name].num_rows and asked < _QUESTIONS:
                    rows = after[name]
                    fewer = {**after, name: pa.concat_tables([rows.slice(0, place), rows.slice(place + size)])}
                    asked += 1
                    if self._told(before, fewer) is None:
                        place += size
                    else:
                        after = fewer
                size //= 2
        return after

    def _told(self, before: World | None, after: World) -> str | None:
        """The difference between the text and the tree, or the rules from one state to another; None if none."""
        try:
            expected = self._texts([after])[0]
        except Fails:
            return None
        found = self._trees([after])[0]
        same = not isinstance(found, str) and self._equal(expected, found, after)
        if before is not None:
            start = self._trees([before])[0]
            if isinstance(start, str) or isinstance(found, str) or not same:
                return None
            scratch, found = found, self._moved([_Move(before, after, start)])[0]
            same = not isinstance(found, str) and not _differs(scratch, found)
        if same:
            return None
        tables = "; ".join(f"{n}: {_rows(t)}" for n, t in sorted(after.items()))
        how = "" if before is None else f" (changed from {'; '.join(f'{n}: {_rows(t)}' for n, t in before.items())})"
        if isinstance(found, str):
            return f"what was made of it fails ({found}) where the text gives {_rows(expected)}, over {tables}{how}"
        return f"the text gives {_rows(expected)}, what was made of it {_rows(self._shown(found))}, over {tables}{how}"


def _differs(expected: pa.Table, found: pa.Table) -> bool:
    """Are two bags different, beyond the tolerance of floating-point sums?"""
    if expected.num_columns != found.num_columns:
        return True
    alike = found.rename_columns(expected.column_names).cast(expected.schema)
    signed = [t.append_column(WEIGHT, pa.array([w] * t.num_rows, pa.int32())) for t, w in ((expected, 1), (alike, -1))]
    difference = beyond_tolerance(pa.concat_tables(signed))
    return bool(difference.missing_rows or difference.extra_rows)


def _rows(rows: pa.Table) -> str:
    shown = [tuple(r.values()) for r in python_rows(rows.slice(0, 4))]
    more = ", …" if rows.num_rows > len(shown) else ""
    return f"[{', '.join(map(_cell_row, shown))}{more}]"


def _cell_row(row: tuple[Any, ...]) -> str:
    return f"({', '.join(str(v) if v is not None else 'NULL' for v in row):.120})"


def told(error: BaseException) -> str:
    """An error in a few words, without the text of a query of ours."""
    return first_line(error.cause if isinstance(error, FreshviewError) and error.cause else error)[:200]
