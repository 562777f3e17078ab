"""One process of a hunt: batch after batch of all kinds in turn, failures made smaller on the way."""

from __future__ import annotations

import multiprocessing
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tests.hunt import spark as sessions
from tests.hunt.batch import Batch, Definition
from tests.hunt.kinds import KINDS
from tests.hunt.run import Failure, Tally, run_batch
from tests.hunt.shrink import shrink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Result = tuple[str, str, Tally]  # kind and seed of a batch, and what came of it

_SHRUNK = 12  # failures of a process that are made smaller; after so many, what they have in common is known


@dataclass(frozen=True)
class Plan:
    """What one of several processes does: the batches whose number leaves its place, divided by the processes."""

    seed: str
    kinds: Sequence[str]
    definitions: int
    size: int = 40
    seconds: float = float("inf")
    shrink_seconds: float = 40.0
    place: int = 0
    processes: int = 1
    selftest: bool = True


def hunt(plan: Plan, spark: SparkSession | None = None) -> Iterator[Result]:
    """Kind, seed and outcome of batch after batch, until there were enough definitions or seconds."""
    end = time.monotonic() + plan.seconds
    session = sessions.start() if spark is None else spark
    number, seen, shrunk = plan.place, 0, 0
    while seen < plan.definitions and time.monotonic() < end:
        turn = number // plan.processes
        kind = plan.kinds[(turn + plan.place) % len(plan.kinds)]
        seed = f"{plan.seed}/{number}"
        batch = Batch(kind, seed, (), (), {}, ())
        try:
            batch = KINDS[kind](session, seed, min(plan.size, plan.definitions))
            batch = replace(batch, selftest=plan.selftest, **_circumstances(batch))
            tally = run_batch(session, batch)
        except Exception as error:  # in making it, or of its tables and changes under a setting; other batches go on
            tally = Tally(
                manners=[Failure(replace(batch, definitions=[Definition("")]), "the whole batch", repr(error))]
            )
        if plan.shrink_seconds:
            budget = max(0, _SHRUNK - shrunk)
            shrunk += len(tally.wrong[:budget])
            tally.wrong[:budget] = [shrink(session, f, plan.shrink_seconds) for f in tally.wrong[:budget]]
        seen += tally.definitions
        number += plan.processes
        yield kind, seed, tally


def _circumstances(batch: Batch) -> dict[str, Any]:
    """Who maintains the views of a batch, and who writes its tables: one time in two all views are maintained at once,
    one in three others write the tables that can be theirs."""
    draw = random.Random(f"circumstances {batch.seed}")
    maintained, of_others = draw.random() < 1 / 2, draw.random() < 1 / 3
    return {
        "maintained": maintained,
        "foreign": frozenset(t.name for t in batch.tables if of_others and t.can_be_foreign),
    }


def work(plan: Plan, results: Any) -> None:
    """Hunt in a process of its own, and put what comes of each batch into a queue; an error as a text.

    The process ends with the one that started it, however that one ended: at the latest after the batch in hand.
    """
    parent = multiprocessing.parent_process()
    try:
        for found in hunt(plan):
            results.put(found)
            if parent is not None and not parent.is_alive():
                return
    except Exception as error:
        results.put(f"process {plan.place}: {type(error).__name__}: {error}")
        raise
