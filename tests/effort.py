"""How hard random tests try: enough for every commit by default, ten times that in `make soak`."""

from __future__ import annotations

import os


def examples(count: int) -> int:
    """So many examples, times FRESHVIEW_EFFORT."""
    return max(5, round(count * float(os.environ.get("FRESHVIEW_EFFORT", "1"))))
