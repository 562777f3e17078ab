"""How often and when queries used a view."""

from __future__ import annotations

from dataclasses import dataclass

_RECENT = 0.3  # weight of the newest gap between uses in their mean


@dataclass(frozen=True)
class UseHistory:
    """How often and when queries used a view."""

    uses: int
    last_at: int
    mean_gap: int


def used_again(old: UseHistory, count: int, last_at: int) -> UseHistory:
    """The history of use with `count` later uses added."""
    gap = max(last_at - old.last_at, 0) // count
    mean = gap if old.mean_gap == 0 else int((1 - _RECENT) * old.mean_gap + _RECENT * gap)
    return UseHistory(old.uses + count, max(old.last_at, last_at), mean)
