"""Subsets of the leaves of a join block, as bits of a number: which are connected, and how they are cut in two."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

_L = TypeVar("_L")


def adjacent(count: int, masks: Iterable[int]) -> list[int]:
    """For each leaf the leaves that a condition connects it with; parts without a condition are chained."""
    adjacent = [0] * count
    for mask in masks:
        for i in range(count):
            if mask >> i & 1:
                adjacent[i] |= mask & ~(1 << i)
    first, rest = _reach(adjacent, 1), ((1 << count) - 1)
    while first != rest:
        near, far = (first & -first).bit_length() - 1, ((rest & ~first) & -(rest & ~first)).bit_length() - 1
        adjacent[near] |= 1 << far
        adjacent[far] |= 1 << near
        first = _reach(adjacent, 1)
    return adjacent


def _reach(adjacent: Sequence[int], start: int, among: int = -1) -> int:
    reached, frontier = start, start
    while frontier:
        i = (frontier & -frontier).bit_length() - 1
        new = adjacent[i] & among & ~reached
        reached |= new
        frontier = (frontier & (frontier - 1)) | new
    return reached


def connected(adjacent: Sequence[int]) -> list[int]:
    """All connected subsets."""
    return [m for m in range(1, 1 << len(adjacent)) if _reach(adjacent, m & -m, m) == m]


def outward(adjacent: Sequence[int]) -> set[int]:
    """The single leaves, and the prefixes of one order per leaf that starts there and adds what is connected."""
    everything = (1 << len(adjacent)) - 1
    found: set[int] = set()
    for start in range(len(adjacent)):
        mask = 1 << start
        found.add(mask)
        while mask != everything:
            near = 0
            for i, others in enumerate(adjacent):
                near |= others if mask >> i & 1 else 0
            near &= ~mask
            mask |= near & -near
            found.add(mask)
    return found


def splits(mask: int, known: Mapping[int, object], complete: bool) -> Iterator[tuple[int, int]]:
    """The ways to cut a subset in two that are nodes themselves; the lowest leaf is on the left."""
    if complete:
        lowest = mask & -mask
        left = (mask - 1) & mask
        while left:
            if left & lowest and left in known and mask & ~left in known:
                yield left, mask & ~left
            left = (left - 1) & mask
        return
    for i in range(mask.bit_length()):
        bit = 1 << i
        if mask & bit and mask != bit and mask & ~bit in known:
            yield mask & ~bit, bit


def picked(leaves: Sequence[_L], mask: int) -> list[_L]:
    """The leaves of a subset."""
    return [leaf for i, leaf in enumerate(leaves) if mask >> i & 1]
