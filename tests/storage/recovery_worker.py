"""A process that works on a warehouse until it is killed, and says what it did.

It says ("begin", what) before a step, ("done", what, csn) once that is acknowledged, ("failed", where) of an error.
"""

from __future__ import annotations

import os
import random
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake
from tests.forks import unflushed

import freshview
from freshview.events import Event
from freshview.storage import segments


def work(told: Connection, warehouse: Path, external: Path, seed: int, last_event: int, steps: int) -> None:
    """Until the end, or until it kills itself at the last event (0: never)."""
    unflushed()
    try:
        _work(told, warehouse, external, seed, last_event, steps)
    except BaseException:
        told.send(("failed", traceback.format_exc()))
        raise


def _work(told: Connection, warehouse: Path, external: Path, seed: int, last_event: int, steps: int) -> None:
    chance = random.Random(seed)
    seen = 0

    def say(*words: Any) -> None:
        told.send(words)  # at once, and what was said is heard though the process dies

    def count(_: Event) -> None:
        nonlocal seen
        seen += 1
        if seen == last_event:
            os._exit(9)

    wh = freshview.connect(warehouse)
    wh.events.listen(count)
    say("ready")
    for _ in range(steps):
        kind = chance.choices(
            ["write", "checkpoint", "vacuum", "create", "drop", "widen", "external"], [12, 8, 3, 1, 1, 1, 2]
        )[0]
        step(wh, str(external), chance, kind, say)
    say("end", seen)
    os._exit(0)


def step(wh: freshview.Warehouse, external: str, chance: random.Random, kind: str, say: Callable[..., None]) -> None:
    """One step: told before, told after."""
    extra = sorted(r.name for r in wh.status().tables if r.name.startswith("x")) if kind == "drop" else []
    match kind:
        case "write":
            segments.INLINE_BYTES = chance.choice([0, 1 << 20])
            value = chance.randrange(10**9)
            puts = [[k, str(value)] for k in chance.sample(range(60), chance.randint(1, 12))]
            drops = chance.sample(range(60, 80), 2) + chance.sample(range(60), chance.randint(0, 3))
            what = {"kind": kind, "puts": puts, "drops": drops, "log": [value] * chance.randint(1, 3)}
            say("begin", what)
            with wh.transaction() as tx:
                tx.upsert("a", [{"k": k, "v": v} for k, v in puts])
                tx.delete("a", drops)
                tx.insert("b", [{"n": n} for n in what["log"]])
            say("done", what, tx.csn)
        case "checkpoint":
            what = {"kind": kind}
            say("begin", what)
            wh.sql(f"CHECKPOINT {chance.choice(['a', 'b'])}")
            say("done", what, None)
        case "vacuum":
            what = {"kind": kind}
            say("begin", what)
            wh.vacuum(timedelta(0))
            say("done", what, None)
        case "create":
            what = {"kind": kind, "name": f"x{chance.randrange(10**6)}"}
            say("begin", what)
            wh.sql(f"CREATE TABLE {what['name']} (k INT)")
            say("done", what, None)
        case "drop" if extra:
            what = {"kind": kind, "name": chance.choice(extra)}
            say("begin", what)
            wh.sql(f"DROP TABLE {what['name']}")
            say("done", what, None)
        case "widen":
            what = {"kind": kind}
            say("begin", what)
            wh.sql(f"ALTER TABLE a ADD COLUMN c{chance.randrange(10**9)} INT")
            say("done", what, None)
        case "external":
            what = {"kind": kind}
            say("begin", what)
            write_deltalake(external, pa.table({"k": [chance.randrange(100)]}), mode="append")
            wh.transaction().rollback()
            say("done", what, None)
