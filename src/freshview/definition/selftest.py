"""The self-test of a view: its text, the tree made of it, and its rows maintained by delta rules, over small tables.

Law: for every state of the tables,   text  =  tree  =  stored rows ⊕ what the delta rules give,   as bags.

The tables are made for the definition (`worlds.py`). They begin empty and go through a few changes. In every state
Spark's answer to the text is compared with the tree's; after each change, the tree's rows with those that the delta
rules give, hidden columns too: so the rules are right for rows that rules have maintained. (Of ORDER BY … LIMIT only
the rows of the view are compared: the buffer beyond them may hold fewer rows than one from scratch.) One query of each
kind asks about all states, since planning is most of the cost of a query over few rows. A difference is reduced to few
rows before it is reported. Where the text leaves ties open, the columns that it orders by have none.

Answers without rows, or with a column that is always NULL, prove little: then other tables are tried, within the time,
and those are taken on which most columns of the text have values. The result counts the rows of answers.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from freshview.algebra.facts import most_joined
from freshview.algebra.nodes import WEIGHT, Lowered, Node, Scan, Stored
from freshview.algebra.stages import staged
from freshview.algebra.traversal import columns_read, per_use
from freshview.definition.analysis import Definition
from freshview.definition.hints import hints_of
from freshview.definition.worlds import ALIKE, EXTREME, Profile, World, changed, empty, profiles_for, world
from freshview.delta.forms import Form, delta_plan, rows_form, with_buffer
from freshview.delta.signed import net, net_images, part, ran_out, with_weight
from freshview.delta.tolerance import beyond_tolerance
from freshview.errors import Cancelled, FreshviewError, first_line
from freshview.interruption import Interruption, is_asked_to_stop, stop_if_asked
from freshview.relation.delta import overlay
from freshview.relation.schema import Schema
from freshview.relation.types import DataType
from freshview.relation.values import python_rows
from freshview.spark.running import PlanRunner

_ROUNDS = 3
_SECONDS = 2.5  # after which no further tables are tried
_SMALL = 25  # operators of a view whose changes are tested in one query
_SEVERAL = "SCALAR_SUBQUERY_TOO_MANY_ROWS"  # Spark's error where a value is wanted and a subquery has more rows
_QUESTIONS = 30  # queries that may be run to reduce a difference
_REDUCING = 10.0  # seconds after which none is begun
_LONGEST = 120.0  # seconds after which one question is broken off


class Fails(Exception):
    """Spark fails on a query over these tables, or does not come to its end."""


@dataclass(frozen=True)
class Tested:
    """The result of a self-test: no difference on so many rows in so many rounds, or a difference in words."""

    rows: int = 0  # of the made tables
    rounds: int = 0
    difference: str = ""
    answers: int = 0  # rows that the text gave
    unmet: tuple[str, ...] = ()  # columns that were NULL in all of these


FrameOf = Callable[[Scan], Any]  # returns the frame that a scan reads


@dataclass(frozen=True)
class _Trial:
    """A change of the tables, and the rows that the view had stored before it."""

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
        self._form: Form = _tested(definition.form)
        self._lowered: Lowered = definition.lowered
        self._runner = runner
        self._schemas = schemas
        self._stored = stored
        self._hints = hints_of(definition.text)
        self._joined = most_joined(self._form.tree)
        self._frames: dict[tuple[str, int], Any] = {}
        self._kept: list[World] = []  # worlds whose tables' ids are keys of `_frames`

    def run(self) -> Tested:
        """Test on the world on which most columns have values, and on extremes, if the text does not fail there."""
        until = time.monotonic() + _SECONDS
        found = self._richest(until)
        if isinstance(found, str):
            return Tested(difference=f"it could not be tested: Spark fails on all tables that were tried ({found})")
        try:
            return self._tested_on(*found, until)
        except Fails as fails:
            return Tested(difference=f"it could not be tested: {fails}")

    def _tested_on(self, states: list[World], texts: list[pa.Table], until: float) -> Tested:
        """Test on these states and on extremes, where the text gives these answers."""
        moves = [(i, i + 1) for i in range(_ROUNDS)]
        for more in self._further():
            try:
                texts += self._texts(more)
            except Fails:
                continue
            moves += [(0, len(states)), *((len(states) + i, len(states) + i + 1) for i in range(len(more) - 1))]
            states = [*states, *more]
        tested = self._through(states, texts, moves, until)
        return replace(tested, answers=sum(t.num_rows for t in texts), unmet=_unmet(texts))

    def _richest(self, until: float) -> tuple[list[World], list[pa.Table]] | str:
        """The states of the first world in which every column of the answers has a value, and the answers; if there is
        none in the time, those of the world with the most such columns; an error of Spark if the text fails on all."""
        nothing = empty(self._schemas)
        best: tuple[list[World], list[pa.Table]] | None = None
        failure = ""
        left = list(profiles_for(self._types()))
        while left:
            states = [nothing, *self._states(left.pop(0), _ROUNDS)]
            try:
                texts = self._texts(states)
            except Fails as fails:
                failure = failure or str(fails)
                if _SEVERAL in str(fails):
                    left = [profile for profile in left if profile.once]
                elif time.monotonic() > (until if best is not None else until + _SECONDS):
                    break
                continue
            if best is None or _variety(texts) > _variety(best[1]):
                best = states, texts
            if not _unmet(texts) or time.monotonic() > until:
                break
            if not any(t.num_rows for t in texts):  # the conditions may have to be met by many rows at once
                left.sort(key=lambda profile: profile != ALIKE)
        return best if best is not None else failure

    def _further(self) -> Iterator[list[World]]:
        """Runs of states that are tested too, if the text does not fail there."""
        yield list(self._states(EXTREME, 1))

    def _types(self) -> Iterator[DataType]:
        """The types of the columns that the view reads."""
        for name, columns in columns_read(self._form.tree).items():
            yield from (self._schema(name).column(column).type for column in columns)

    def _states(self, profile: Profile, rounds: int) -> Iterator[World]:
        untied, profile = not self._definition.as_written, profile.for_join(self._joined)
        state = world(self._schemas, self._hints, profile, untied=untied)
        yield state
        for number in range(1, rounds):
            state = changed(state, self._schemas, self._hints, profile, number, untied=untied)
            yield state

    def _through(
        self, states: Sequence[World], texts: Sequence[pa.Table], moves: Sequence[tuple[int, int]], until: float
    ) -> Tested:
        """Test the tree in every state, then the delta rules on every move; when time is up, two moves are enough."""
        trees: list[pa.Table] = []
        for state, text, found in zip(states, texts, self._trees(states), strict=True):
            if isinstance(found, str) or not self._equal(text, found, state):
                return Tested(difference=self._smallest(None, state))
            trees.append(found)
        counts = [sum(t.num_rows for t in state.values()) for state in states]
        if not self._definition.incremental:
            return Tested(sum(counts), len(moves))
        rows = done = 0
        for some in self._in_batches([_Trial(states[i], states[j], trees[i]) for i, j in moves]):
            stop_if_asked("self-test")
            for (before, after), found in zip(moves[done:], self._moved(some), strict=False):
                if isinstance(found, str) or not self._agree(trees[after], found):
                    return Tested(difference=self._smallest(states[before], states[after]))
                rows, done = rows + counts[after], done + 1
            if done >= 2 and time.monotonic() > until:
                break
        return Tested(rows, done)

    # -- three answers -----------------------------------------------------------------------------

    def _texts(self, states: Sequence[World]) -> list[pa.Table]:
        """Spark's answers to the text."""
        text = self._definition.text
        asked = [self._runner.bound(text, {n: self._frame(n, state) for n in state}) for state in states]
        try:
            with self._in_time():
                return self._runner.engine.answers(asked, "self-test")
        except Cancelled:
            raise
        except (FreshviewError, pa.ArrowException) as error:
            raise Fails(brief(error)) from error

    @contextmanager
    def _in_time(self) -> Iterator[None]:
        """Break off what the block asks Spark when it takes too long; Fails then."""
        late = Interruption()
        watch = threading.Timer(_LONGEST, late.request)
        watch.daemon = True
        with self._runner.engine.interruptible(late):
            watch.start()
            try:
                yield
            except FreshviewError as error:
                if late.requested and not is_asked_to_stop():
                    raise Fails(f"Spark took more than {_LONGEST:g} s over a few rows") from error
                raise
            finally:
                watch.cancel()

    def _trees(self, states: Sequence[World]) -> list[pa.Table | str]:
        """The stored rows from scratch, by the tree; or the error."""
        return self._ran([(self._form.tree, self._reader(state)) for state in states], self._stored)

    def _moved(self, moves: Sequence[_Trial]) -> list[pa.Table | str]:
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
            elif ran_out(signed):
                result += self._trees([move.after])
            else:
                result.append(overlay([net(signed, self._stored)], self._stored).apply(move.stored))
        return result

    def _delta(self, move: _Trial) -> tuple[Node, FrameOf] | None:
        """The delta query of a move, and the frames that it reads; None if the view does not change."""
        used = columns_read(self._form.tree)
        deltas: dict[str, tuple[pa.Table, Schema]] = {}
        for name, columns in used.items():
            schema, before, after = self._schema(name), self._rows(name, move.before), self._rows(name, move.after)
            if before is after:
                continue
            wanted = part(schema, columns or schema.names[:1])
            delta = net_images((before, after), schema, wanted)
            if delta.num_rows:
                deltas[name] = (delta, wanted)
        grows = frozenset(n for n, (d, _) in deltas.items() if min(d.column(-1).to_pylist()) > 0)
        plan = delta_plan(self._form, self._lowered, set(deltas), self._definition.types, inserts_only=grows)
        if plan is None:
            return None
        engine = self._runner.engine

        def frame(scan: Scan) -> Any:
            if isinstance(scan.source, Stored):
                return engine.frame(move.stored, self._stored)
            if scan.version == "delta":
                rows, wanted = deltas[scan.relation]
                return engine.frame(rows, with_weight(wanted))
            return self._frame(scan.relation, move.before if scan.version == "old" else move.after)

        return plan, frame

    def _ran(self, plans: Sequence[tuple[Node, FrameOf]], schema: Schema) -> list[pa.Table | str]:
        """The rows of each plan, or the error. Plans that need no stages run in one query."""
        if len(plans) > 1 and not any(staged(plan)[0] for plan, _ in plans):
            try:
                asked = [self._runner.text(plan, frame) for plan, frame in plans]
                with self._in_time():
                    return [schema.conform(t) for t in self._runner.engine.answers(asked, "view")]
            except Cancelled:
                raise
            except (FreshviewError, pa.ArrowException):
                pass  # run one by one, to find those that fail
        return [self._ran_alone(plan, frame, schema) for plan, frame in plans]

    def _ran_alone(self, plan: Node, frame: FrameOf, schema: Schema) -> pa.Table | str:
        try:
            with self._in_time():
                return schema.conform(self._runner.engine.arrow(self._runner.in_stages(staged(plan), frame), "view"))
        except Cancelled:
            raise
        except (FreshviewError, pa.ArrowException) as error:
            return brief(error)

    def _in_batches(self, moves: Sequence[_Trial]) -> Iterator[Sequence[_Trial]]:
        """The moves that are tested in one query: all, or one by one where plans are large."""
        size = per_use(self._form.tree, lambda _: 1)
        step = len(moves) if size <= _SMALL else 1
        for start in range(0, len(moves), step):
            yield moves[start : start + step]

    def _reader(self, state: World) -> FrameOf:
        return lambda scan: self._frame(scan.relation, state)

    def _schema(self, name: str) -> Schema:
        """The columns of a relation that the tree reads."""
        return self._schemas[name]

    def _rows(self, name: str, state: World) -> pa.Table:
        """The rows of a relation that the tree reads."""
        return state[name]

    def _frame(self, name: str, state: World) -> Any:
        rows = self._rows(name, state)
        key = (name, id(rows))
        if key not in self._frames:
            self._kept.append(state)  # so that no other table gets the id of one of its tables
            self._frames[key] = self._runner.engine.frame(rows, self._schema(name))
        return self._frames[key]

    # -- comparing ---------------------------------------------------------------------------------

    def _members(self, stored: pa.Table) -> pa.Table:
        rows = stored.filter(stored.column(self._form.member)) if self._form.member else stored
        return rows.select(list(self._definition.names))

    def _agree(self, scratch: pa.Table, found: pa.Table) -> bool:
        """Are rows that the delta rules give those from scratch? A buffer may hold fewer rows than at its start."""
        if self._form.top is not None:
            scratch, found = self._members(scratch), self._members(found)
        return not differs(scratch, found)

    def _equal(self, expected: pa.Table, stored: pa.Table, state: World) -> bool:
        if not differs(expected, self._members(stored)):
            return True
        if self._definition.as_written or self._definition.plain is None:
            return False
        # Ties may still be open: then the tree without tie-breaks gives what the text gives.
        plain = rows_form(self._definition.plain, self._definition.names).tree
        visible = Schema(tuple(self._stored.column(n) for n in self._definition.names))
        read = self._ran_alone(plain, self._reader(state), visible)
        return not isinstance(read, str) and not differs(expected, read)

    # -- the smallest example ----------------------------------------------------------------------

    def _smallest(self, before: World | None, after: World) -> str:
        """A difference in words, over as few rows as can be found with a few queries."""
        for start in (None, before):
            if self._difference(start, after) is not None:
                return self._difference(start, self._reduced(start, after)) or ""
        return "the rows kept by delta rules differ from the text's after several changes"

    def _reduced(self, before: World | None, after: World) -> World:
        """The state without rows that the difference does not need; they are left out by halves."""
        asked, until = 0, time.monotonic() + _REDUCING
        for name in sorted(after, key=lambda n: -after[n].num_rows):
            size = after[name].num_rows
            while size:
                place = 0
                while place < after[name].num_rows and asked < _QUESTIONS and time.monotonic() < until:
                    rows = after[name]
                    fewer = {**after, name: pa.concat_tables([rows.slice(0, place), rows.slice(place + size)])}
                    asked += 1
                    if self._difference(before, fewer) is None:
                        place += size
                    else:
                        after = fewer
                size //= 2
        return after

    def _difference(self, before: World | None, after: World) -> str | None:
        """The difference in words between the text and the tree, or the delta rules from `before` on; None if none."""
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
            scratch, found = found, self._moved([_Trial(before, after, start)])[0]
            same = not isinstance(found, str) and self._agree(scratch, found)
        if same:
            return None
        tables = "; ".join(f"{n}: {_rows(t)}" for n, t in sorted(after.items()))
        if before is not None:
            tables += f" (changed from {'; '.join(f'{n}: {_rows(t)}' for n, t in before.items())})"
        if isinstance(found, str):
            return f"what was made of it fails ({found}) where the text gives {_rows(expected)}, over {tables}"
        return f"the text gives {_rows(expected)}, what was made of it {_rows(self._members(found))}, over {tables}"


def _tested(form: Form) -> Form:
    """The form with a buffer so small that rows of a few fall out of it."""
    return with_buffer(form, form.top.reach + 1) if form.top is not None else form


def differs(expected: pa.Table, found: pa.Table) -> bool:
    """Are two bags different, beyond the tolerance of floating-point sums?"""
    if expected.num_columns != found.num_columns:
        return True
    alike = found.rename_columns(expected.column_names).cast(expected.schema)
    signed = [t.append_column(WEIGHT, pa.array([w] * t.num_rows, pa.int32())) for t, w in ((expected, 1), (alike, -1))]
    difference = beyond_tolerance(pa.concat_tables(signed))
    return bool(difference.missing_rows or difference.extra_rows)


def _unmet(texts: Sequence[pa.Table]) -> tuple[str, ...]:
    """The columns without any value in these answers."""
    places = range(texts[0].num_columns)
    return tuple(texts[0].column_names[i] for i in places if all(t.column(i).null_count == t.num_rows for t in texts))


def _variety(texts: Sequence[pa.Table]) -> tuple[int, bool]:
    """How much answers prove: fewer columns without values, and whether there are rows."""
    return -len(_unmet(texts)), any(t.num_rows for t in texts)


def _rows(rows: pa.Table) -> str:
    first = [tuple(r.values()) for r in python_rows(rows.slice(0, 4))]
    more = ", …" if rows.num_rows > len(first) else ""
    return f"[{', '.join(map(_cell_row, first))}{more}]"


def _cell_row(row: tuple[Any, ...]) -> str:
    return f"({', '.join(str(v) if v is not None else 'NULL' for v in row):.120})"


def brief(error: BaseException) -> str:
    """An error in a few words, without the text of our query."""
    return first_line(error.cause if isinstance(error, FreshviewError) and error.cause else error)[:200]
