"""The hunt for FRESHVIEW_HUNT_SECONDS (default 1200), with a new seed each time; FRESHVIEW_SOAK_SEED replays one."""

from __future__ import annotations

import os
import time
from typing import Any

from tests.hunt.campaign import Plan, hunt
from tests.hunt.kinds import KINDS
from tests.hunt.report import lines_of
from tests.hunt.shrink import as_test
from tests.hunt.spark import be_quiet


def test_no_view_of_a_random_definition_is_wrong(spark: Any) -> None:
    seconds = float(os.environ.get("FRESHVIEW_HUNT_SECONDS", "1200"))
    seed = os.environ.get("FRESHVIEW_SOAK_SEED", str(time.time_ns()))
    print(f"\nhunt with seed {seed}", flush=True)
    be_quiet()
    wrong = []
    for kind, part, tally in hunt(Plan(seed, list(KINDS), 10**9, seconds=seconds), spark):
        print("\n".join(lines_of(kind, part, tally)), flush=True)
        wrong += tally.wrong
    assert not wrong, "\n\n".join(map(as_test, wrong))
