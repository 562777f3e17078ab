"""The self-test of a view: its text, what was made of it, and its rows kept by delta rules, over small tables.

Law: for every state of the tables,   text  =  tree  =  stored rows ⊕ what the delta rules give,   as bags.

The tables are made for the definition (`worlds.py`). They begin empty and go through a few changes; after each, Spark's
answer to the text is compared with the rows that the rules have kept. A difference is made small before it is shown.
Where the text leaves the order of ties open, the tables have none in what it orders by.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from freshview.algebra.nodes import WEIGHT, Lowered, Node, Scan
from freshview.algebra.traversal import columns_read
from freshview.delta.forms import STORED, Form, delta_plan, rows_form
from freshview.errors import FreshviewError
from freshview.interruption import stop_if_asked
from freshview.maintenance.changes import net_images, part, with_weight
from freshview.maintenance.checking import beyond_tolerance
from freshview.maintenance.definition import Definition
from freshview.maintenance.runner import Runner
from freshview.maintenance.work import net
from freshview.maintenance.worlds import EXTREME, PROFILES, Profile, World, changed, empty, words_of, world
from freshview.relation.delta import Overlay
from freshview.relation.schema import Schema

_ROUNDS = 3
_SECONDS = 2.5  # after which no further tables are tried
_QUESTIONS = 30  # that may be asked to make a difference small


class Fails(Exception):
    """Spark fails on a query over these tables."""


@dataclass(frozen=True)
class Tested:
    """What a self-test found: nothing different on so many rows in so many rounds, or a difference, in words."""

    rows: int = 0
    rounds: int = 0
    difference: str = ""


class SelfTest:
    """Tests one definition on one Spark session."""

    def __init__(self, definition: Definition, runner: Runner, schemas: Mapping[str, Schema], stored: Schema) -> None:
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
        """Try worlds until one has shown that all three agree, then one of extremes."""
        begun = time.monotonic()
        failure = ""
        for profile in PROFILES:
            try:
                found = self._through(profile, until=begun + _SECONDS)
            except Fails as fails:
                failure = failure or str(fails)
                if time.monotonic() - begun > 2 * _SECONDS:
                    break
                continue
            if found.difference or time.monotonic() - begun > _SECONDS:
                return found
            try:
                extreme = self._through(EXTREME, rounds=1, until=begun + _SECONDS)
            except Fails:
                return found
            if extreme.difference:
                return extreme
            return Tested(found.rows + extreme.rows, found.rounds + extreme.rounds)
        return Tested(difference=f"it could not be tested: Spark fails on all tables that were tried ({failure})")

    def _through(self, profile: Profile, rounds: int = _ROUNDS, *, until: float) -> Tested:
        """The states of one profile, one after the other; beyond a time, two changes are enough."""
        rows, done = 0, -1
        before: World | None = None
        stored: pa.Table | None = None
        for state in self._states(profile, rounds):
            stop_if_asked("self-test")
            expected = self._text(state)
            found = self._tree(state) if before is None or stored is None else self._maintained(before, state, stored)
            if isinstance(found, str) or not self._equal(expected, found, state):
                return Tested(difference=self._smallest(before, state))
            stored = found
            rows, done = rows + sum(t.num_rows for t in state.values()), done + 1
            before = state
            if done >= 2 and time.monotonic() > until:
                break
        return Tested(rows, done)

    def _states(self, profile: Profile, rounds: int) -> Iterator[World]:
        untied = not self._definition.as_written
        state = empty(self._schemas)
        yield state
        state = world(self._schemas, self._words, profile, untied=untied)
        yield state
        for number in range(1, rounds):
            state = changed(state, self._schemas, self._words, profile, number, untied=untied)
            yield state

    # -- three answers -----------------------------------------------------------------------------

    def _text(self, state: World) -> pa.Table:
        """Spark's answer to the text."""
        frames = {n: self._frame(n, state) for n in state}
        try:
            return self._runner.engine.arrow(self._runner.original(self._definition.text, frames), "self-test")
        except (FreshviewError, pa.ArrowException) as error:
            raise Fails(told(error)) from error

    def _tree(self, state: World) -> pa.Table | str:
        """The stored rows from scratch, by the tree; or the error."""
        return self._ran(self._form.tree, lambda s: self._frame(s.relation, state), self._stored)

    def _maintained(self, before: World, after: World, stored: pa.Table) -> pa.Table | str:
        """The stored rows after a change, by delta rules where the view has them; or the error."""
        if not self._definition.incremental:
            return self._tree(after)
        used = columns_read(self._form.tree)
        deltas: dict[str, tuple[pa.Table, Schema]] = {}
        for name, schema in self._schemas.items():
            if before[name] is after[name]:
                continue
            shown = part(schema, used.get(name) or schema.names[:1])
            delta = net_images((before[name], after[name]), schema, shown)
            if delta.num_rows:
                deltas[name] = (delta, shown)
        grows = frozenset(n for n, (d, _) in deltas.items() if min(d.column(-1).to_pylist()) > 0)
        plan = delta_plan(self._form, self._lowered, set(deltas), self._definition.types, inserts_only=grows)
        if plan is None:
            return stored
        engine = self._runner.engine

        def frame(scan: Scan) -> Any:
            if scan.relation == STORED:
                return engine.frame(stored, self._stored)
            if scan.version == "delta":
                rows, shown = deltas[scan.relation]
                return engine.frame(rows, with_weight(shown))
            return self._frame(scan.relation, before if scan.version == "old" else after)

        signed = self._ran(plan, frame, with_weight(self._stored), staged=True)
        if isinstance(signed, str):
            return signed
        return Overlay(self._stored, net(signed, self._stored)).apply(stored)

    def _ran(self, plan: Node, frame: Any, schema: Schema, *, staged: bool = False) -> pa.Table | str:
        run = self._runner.in_stages if staged else self._runner.run
        try:
            return self._runner.fetch(run(plan, frame), schema, small=True)
        except (FreshviewError, pa.ArrowException) as error:
            return told(error)

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
        read = self._ran(plain, lambda s: self._frame(s.relation, state), visible)
        again = self._tree(state)
        return not isinstance(read, str) and not isinstance(again, str) and not (
            _differs(expected, read) or _differs(again, stored)
        )

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
            expected = self._text(after)
        except Fails:
            return None
        start = self._tree(before) if before is not None else None
        if isinstance(start, str):
            return None
        found = self._tree(after) if start is None or before is None else self._maintained(before, after, start)
        tables = "; ".join(f"{n}: {_rows(t)}" for n, t in sorted(after.items()))
        how = "" if before is None else f" (changed from {'; '.join(f'{n}: {_rows(t)}' for n, t in before.items())})"
        if isinstance(found, str):
            return f"what was made of it fails ({found}) where the text gives {_rows(expected)}, over {tables}{how}"
        if self._equal(expected, found, after):
            return None
        return f"the text gives {_rows(expected)}, what was made of it {_rows(self._shown(found))}, over {tables}{how}"


def _differs(expected: pa.Table, found: pa.Table) -> bool:
    """Are two bags different, beyond the tolerance of floating-point sums?"""
    if expected.num_columns != found.num_columns:
        return True
    alike = found.rename_columns(expected.column_names).cast(expected.schema)
    signed = [t.append_column(WEIGHT, pa.array([w] * t.num_rows, pa.int32())) for t, w in ((expected, 1), (alike, -1))]
    try:
        difference = beyond_tolerance(pa.concat_tables(signed))
    except (OverflowError, ValueError) as error:  # a date that Python does not know: nothing can be said of these rows
        raise Fails(told(error)) from error
    return bool(difference.missing_rows or difference.extra_rows)


def _rows(rows: pa.Table) -> str:
    shown = [tuple(r.values()) for r in rows.slice(0, 4).to_pylist()]
    more = ", …" if rows.num_rows > len(shown) else ""
    return f"[{', '.join(map(_cell_row, shown))}{more}]"


def _cell_row(row: tuple[Any, ...]) -> str:
    return f"({', '.join(str(v) if v is not None else 'NULL' for v in row):.120})"


def told(error: BaseException) -> str:
    """An error in a few words, without the text of a query of ours."""
    words = error.cause if isinstance(error, FreshviewError) else str(error)
    return (words.splitlines() or [type(error).__name__])[0][:200]
