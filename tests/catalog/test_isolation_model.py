"""Interleaved transactions against a model of snapshot isolation with first committer wins.

The model is plain dictionaries. It says what every transaction sees, what every committed CSN
holds, and exactly which commits fail.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, cast

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)
from tests.catalog.helpers import contents, seen_by
from tests.effort import examples
from tests.internals import apply_in, internals, relation_in

from freshview import Warehouse
from freshview.errors import DuplicateKey, TransactionClosed, WriteConflict

KEYS = st.integers(0, 2)
VALUES = st.integers(0, 2)
ROWS = st.dictionaries(KEYS, VALUES, min_size=1, max_size=2)
KEYED = st.sampled_from(["one", "two"])
KINDS = st.sampled_from(["insert", "upsert", "delete", "move", "add", "take"])
_numbers = itertools.count()


@dataclass
class State:
    """What the three tables hold."""

    keyed: dict[str, dict[int, int]] = field(default_factory=lambda: {"one": {}, "two": {}})
    bag: Counter[int] = field(default_factory=Counter)

    def copy(self) -> State:
        return State({n: dict(rows) for n, rows in self.keyed.items()}, Counter(self.bag))


@dataclass
class ModelTransaction:
    """A transaction: the snapshot it began on, what it sees, what it wrote."""

    real: Any
    snapshot: int
    sees: State
    written: set[tuple[str, int]] = field(default_factory=set)
    wrote: bool = False


class Isolation(RuleBasedStateMachine):
    """Rules are what users do; each checks what the model says about it."""

    transactions = Bundle("transactions")
    conflicts: ClassVar[list[int]] = []

    def __init__(self, wh: Warehouse) -> None:
        super().__init__()
        self.wh = wh
        number = next(_numbers)
        self.names = {n: f"{n}_{number}" for n in ("one", "two", "bag")}
        for n in ("one", "two"):
            wh.sql(f"CREATE TABLE {self.names[n]} (k INT, v INT, PRIMARY KEY (k))")
        wh.sql(f"CREATE TABLE {self.names['bag']} (a INT)")
        self.first = self.last = internals(wh).newest_csn()
        self.history = {self.first: State()}
        self.commits: list[tuple[int, set[tuple[str, int]]]] = []
        self.open: list[ModelTransaction] = []

    # -- what transactions do ----------------------------------------------------------------------

    @initialize(target=transactions)
    def begin_first(self) -> ModelTransaction:
        return self.begin_one()

    @initialize(target=transactions)
    def begin_second(self) -> ModelTransaction:
        return self.begin_one()

    @precondition(lambda self: len(self.open) < 3)
    @rule(target=transactions)
    def begin(self) -> ModelTransaction:
        return self.begin_one()

    def begin_one(self) -> ModelTransaction:
        tx = ModelTransaction(self.wh.transaction(), self.last, self.history[self.last].copy())
        self.open.append(tx)
        return tx

    @rule(tx=transactions, steps=st.lists(st.tuples(KEYED, ROWS, KINDS), min_size=1, max_size=3))
    def write(self, tx: ModelTransaction, steps: list[tuple[str, dict[int, int], str]]) -> None:
        """A few statements at once, so that transactions meet; each sees just what it should."""
        for table, rows, kind in steps:
            self.statement(tx, table, rows, kind)
            self._check(tx.sees, lambda name: seen_by(self.wh, tx.real, name))

    def statement(self, tx: ModelTransaction, table: str, rows: dict[int, int], kind: str) -> None:
        match kind:
            case "insert":
                self.insert(tx, table, rows)
            case "upsert":
                self.upsert(tx, table, rows)
            case "delete":
                self.delete(tx, table, set(rows))
            case "move":
                self.move_keys(tx, table, 1 + sum(rows.values()))
            case "add":
                self.insert_into_bag(tx, [*rows, *rows.values()])
            case "take":
                self.delete_from_bag(tx, [*rows, *rows.values()])

    def insert(self, tx: ModelTransaction, table: str, rows: dict[int, int]) -> None:
        data = [{"k": k, "v": v} for k, v in rows.items()]
        if tx not in self.open:
            with pytest.raises(TransactionClosed):
                tx.real.insert(self.names[table], data)
        elif rows.keys() & tx.sees.keyed[table].keys():
            with pytest.raises(DuplicateKey):
                tx.real.insert(self.names[table], data)
        else:
            tx.real.insert(self.names[table], data)
            self._wrote(tx, table, rows, rows)

    def upsert(self, tx: ModelTransaction, table: str, rows: dict[int, int]) -> None:
        tx.real.upsert(self.names[table], [{"k": k, "v": v} for k, v in rows.items()])
        self._wrote(tx, table, rows, rows)

    def delete(self, tx: ModelTransaction, table: str, keys: set[int]) -> None:
        tx.real.delete(self.names[table], sorted(keys))
        for k in keys:
            tx.sees.keyed[table].pop(k, None)
        self._wrote(tx, table, keys, {})

    def move_keys(self, tx: ModelTransaction, table: str, shift: int) -> None:
        """UPDATE t SET k = k + shift: old and new keys are written, also where they overlap."""
        if not tx.sees.keyed[table]:
            return
        schema = relation_in(tx.real, self.names[table]).schema.arrow
        old = tx.sees.keyed[table]
        new = {k + shift: v for k, v in old.items()}
        images = [pa.table({"k": list(r), "v": list(r.values())}, schema=schema) for r in (old, new)]
        apply_in(tx.real, self.names[table], *images)
        tx.sees.keyed[table] = {}
        self._wrote(tx, table, old.keys() | new.keys(), new)

    def insert_into_bag(self, tx: ModelTransaction, rows: list[int]) -> None:
        tx.real.insert(self.names["bag"], [{"a": a} for a in rows])
        tx.sees.bag.update(rows)
        tx.wrote |= bool(rows)

    def delete_from_bag(self, tx: ModelTransaction, rows: list[int]) -> None:
        """Delete those of the rows that the transaction sees, copy by copy."""
        gone = Counter(rows) & tx.sees.bag
        schema = relation_in(tx.real, self.names["bag"]).schema.arrow
        apply_in(tx.real, self.names["bag"], pa.table({"a": list(gone.elements())}, schema=schema), None)
        tx.sees.bag -= gone
        tx.written |= {("bag", a) for a in gone}
        tx.wrote |= bool(gone)

    def _wrote(self, tx: ModelTransaction, table: str, keys: Any, rows: dict[int, int]) -> None:
        tx.sees.keyed[table].update(rows)
        tx.written |= {(table, k) for k in keys}
        tx.wrote |= bool(keys)

    # -- how they end ------------------------------------------------------------------------------

    @rule(tx=consumes(transactions), keep=st.sampled_from([True, True, True, False]))
    def end(self, tx: ModelTransaction, keep: bool) -> None:
        self.open.remove(tx)
        if keep:
            self.commit(tx)
        else:
            tx.real.rollback()
            assert internals(self.wh).newest_csn() == self.last
        self.insert(tx, "one", {0: 0})

    def commit(self, tx: ModelTransaction) -> None:
        if any(csn > tx.snapshot and written & tx.written for csn, written in self.commits):
            with pytest.raises(WriteConflict):
                tx.real.commit()
            assert internals(self.wh).newest_csn() == self.last
            self.conflicts.append(tx.snapshot)
            return
        csn = tx.real.commit()
        if not tx.wrote:
            assert csn == tx.snapshot
            return
        assert csn == self.last + 1
        state = self.history[self.last].copy()
        before = self.history[tx.snapshot]
        for table in ("one", "two"):
            for key in (k for t, k in tx.written if t == table):
                state.keyed[table].pop(key, None)
                if key in tx.sees.keyed[table]:
                    state.keyed[table][key] = tx.sees.keyed[table][key]
        state.bag.update(tx.sees.bag - before.bag)
        state.bag.subtract(before.bag - tx.sees.bag)
        state.bag = +state.bag
        self.last, self.history[csn] = csn, state
        self.commits.append((csn, tx.written))

    @rule(table=st.sampled_from(["one", "two", "bag"]))
    def checkpoint(self, table: str) -> None:
        """Changes where rows lie, and nothing else."""
        self.wh.sql(f"CHECKPOINT {self.names[table]}")

    # -- what they see -----------------------------------------------------------------------------

    def _check(self, state: State, read: Callable[[str], list[dict[str, Any]]]) -> None:
        for table, rows in state.keyed.items():
            assert {r["k"]: r["v"] for r in read(self.names[table])} == rows
        assert Counter(r["a"] for r in read(self.names["bag"])) == state.bag

    def teardown(self) -> None:
        """Commit the open transactions; then every version holds what the model holds."""
        for tx in self.open:
            self.commit(tx)
        for csn, state in self.history.items():
            self._check(state, partial(contents, self.wh, csn=csn))


def test_interleaved_transactions_are_snapshot_isolated(
    open_warehouse: Callable[[], Warehouse], catalog_url: str | None
) -> None:
    wh = open_warehouse()
    Isolation.conflicts.clear()
    run_state_machine_as_test(
        cast("type[Isolation]", lambda: Isolation(wh)),
        settings=settings(
            max_examples=examples(25) if catalog_url is None else 10,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    assert Isolation.conflicts or catalog_url  # the long run did try what it is about


@pytest.mark.parametrize("seed", range(4))
def test_long_histories_are_snapshot_isolated(open_warehouse: Callable[[], Warehouse], seed: int) -> None:
    """The state machine driven by a random generator: longer histories than Hypothesis draws."""
    dice, machine = random.Random(seed), Isolation(open_warehouse())
    Isolation.conflicts.clear()
    kinds = ["insert", "upsert", "delete", "move", "add", "take"]
    for _ in range(100):
        if len(machine.open) < 4 and dice.random() < 0.5:
            machine.begin_one()
        tx = dice.choice(machine.open) if machine.open else machine.begin_one()
        for _ in range(dice.randint(1, 2)):
            rows = {dice.randint(0, 4): dice.randint(0, 2) for _ in range(dice.randint(1, 2))}
            machine.statement(tx, dice.choice(["one", "two"]), rows, dice.choice(kinds))
        if dice.random() < 0.4:
            machine.end(tx, dice.random() < 0.9)
        if dice.random() < 0.05:
            machine.checkpoint(dice.choice(["one", "two", "bag"]))
    machine.teardown()
    assert Isolation.conflicts
    assert len(machine.history) > 10
