"""A process that works on a warehouse until it is killed, and says what it did.

Usage: recovery_worker.py WAREHOUSE EXTERNAL SEED EVENT STEPS. It kills itself at the EVENT-th event (0: never).
Each line on stdout is JSON: ["begin", what] before a step, ["done", what, csn] once it is acknowledged.
"""

from __future__ import annotations

import json
import os
import random
import sys
from datetime import timedelta
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake

import freshview
from freshview.events import Event
from freshview.storage import segments


def say(*words: Any) -> None:
    os.write(1, (json.dumps(words) + "\n").encode())


def main(warehouse: str, external: str, seed: int, last_event: int, steps: int) -> None:
    chance = random.Random(seed)
    seen = 0

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
        step(wh, external, chance, kind)
    say("end", seen)
    os._exit(0)


def step(wh: freshview.Warehouse, external: str, chance: random.Random, kind: str) -> None:
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


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]))
