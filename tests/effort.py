"""How hard random tests try: the same few draws for every commit, ten times as many and fresh ones in `make soak`."""

from __future__ import annotations

import os
import random

_EFFORT = os.environ.get("FRESHVIEW_EFFORT")
IS_SOAK = _EFFORT is not None
SOAK_SEED = int(os.environ.get("FRESHVIEW_SEED") or random.SystemRandom().randrange(10**9))


def examples(count: int, commit: int | None = None) -> int:
    """Return the number of examples, times FRESHVIEW_EFFORT; `commit` if that many are enough for a commit."""
    if commit is not None and not IS_SOAK:
        return commit
    return max(min(5, count), round(count * float(_EFFORT or "1")))


def seed_of(fixed: int) -> int:
    """The seed of a random test: this one, so that a commit never fails by luck; in a soak one of the run's seed."""
    return random.Random(f"{SOAK_SEED} {fixed}").randrange(10**9) if IS_SOAK else fixed
