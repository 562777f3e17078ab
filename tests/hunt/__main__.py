"""`python -m tests.hunt`: look for definitions whose view is silently wrong, and count what became of the others."""

from __future__ import annotations

import argparse
import multiprocessing
import queue
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.hunt.campaign import Plan, Result, hunt, work
from tests.hunt.kinds import KINDS
from tests.hunt.report import lines_of, summary, write_failures, write_section
from tests.hunt.run import Tally


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a hunt; 1 if anything was wrong."""
    parser = argparse.ArgumentParser(prog="tests.hunt", description=__doc__)
    parser.add_argument("--definitions", type=int, default=400, help="how many, of those that Spark accepts")
    parser.add_argument("--kinds", default=",".join(KINDS), help="some of: %(default)s")
    parser.add_argument("--seed", default="1")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so many seconds")
    parser.add_argument("--batch", type=int, default=40, help="definitions to one warehouse")
    parser.add_argument("--shrink", type=float, default=40.0, help="seconds to make a failure smaller; 0: not at all")
    parser.add_argument("--selftest", choices=("on", "off"), default="on", help="of the views; off finds what it hides")
    parser.add_argument("--failures", type=Path, default=Path("build/hunt/failures.md"))
    parser.add_argument(
        "--report", type=Path, nargs="?", const=Path("docs/conformance.md"), help="write the section here"
    )
    chosen = parser.parse_args(arguments)
    plans = [
        Plan(
            chosen.seed,
            chosen.kinds.split(","),
            -(-chosen.definitions // chosen.processes),
            chosen.batch,
            chosen.seconds,
            chosen.shrink,
            place,
            chosen.processes,
            chosen.selftest == "on",
        )
        for place in range(chosen.processes)
    ]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # an exit in good order ends the processes beside this one
    begun = time.monotonic()
    tallies = {kind: Tally() for kind in chosen.kinds.split(",")}
    for kind, seed, tally in _results(plans):
        tallies[kind].add(tally)
        write_failures(chosen.failures, tally)
        for line in lines_of(kind, seed, tally):
            print(f"{time.monotonic() - begun:6.0f} s  {line}", flush=True)
    table = summary(tallies, time.monotonic() - begun)
    print("\n".join(table))
    if chosen.report is not None:
        write_section(chosen.report, table, chosen)
    return 1 if any(t.wrong for t in tallies.values()) else 0


def _results(plans: Sequence[Plan]) -> Iterator[Result]:
    """What comes of the batches of all plans, as they end."""
    if len(plans) == 1:
        yield from hunt(plans[0])
        return
    context = multiprocessing.get_context("spawn")
    results: multiprocessing.Queue[Result | str] = context.Queue()
    workers = [context.Process(target=work, args=(plan, results), daemon=True) for plan in plans]
    for worker in workers:
        worker.start()
    while True:
        were_alive = any(worker.is_alive() for worker in workers)
        try:
            found = results.get(timeout=2.0)
        except queue.Empty:
            if not were_alive:
                break
            continue
        if isinstance(found, str):
            raise SystemExit(found)
        yield found


if __name__ == "__main__":
    sys.exit(main())
