"""The difference of two bags, floating-point numbers compared within a tolerance.

Bit-identical rows have cancelled before. Of the others, a missing and an extra row count as the same if they agree in
everything but floating-point numbers, and in those up to TOLERANCE of their size, whether in a column, an array, a
struct or a map. NaN equals NaN, infinity equals infinity. Rows are sorted and compared in order, not each with each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa

from freshview.algebra.nodes import WEIGHT
from freshview.relation.values import python_rows

TOLERANCE = 1e-9  # of the larger number's size; sums of doubles depend on the order in which Spark adds
_NEAR_ZERO = 1e-12  # numbers that cancel may leave this much
_SINGLE = 1e-6  # FLOAT has seven digits
LISTED = 100  # rows of each kind in a report

Row = dict[str, Any]
_Entry = tuple[Any, tuple[tuple[float, float], ...], Row]  # what must be equal, numbers with tolerances, the row


@dataclass(frozen=True)
class Difference:
    """Rows that a store lacks and rows that it has too many: a few of each, and how many there are."""

    missing: tuple[Row, ...]
    extra: tuple[Row, ...]
    missing_rows: int
    extra_rows: int


def beyond_tolerance(signed: pa.Table) -> Difference:
    """The signed rows (above 0: missing, below 0: extra) without the pairs that are equal within tolerance."""
    left: tuple[list[Row], list[Row]] = ([], [])
    by_key: dict[Any, tuple[list[_Entry], list[_Entry]]] = {}
    for side, entries in enumerate(_entries(signed)):
        for entry in entries:
            by_key.setdefault(entry[0], ([], []))[side].append(entry)
    for ours, theirs in by_key.values():
        for side, rest in enumerate(_unpaired(ours, theirs)):
            left[side].extend(entry[2] for entry in rest)
    return Difference(tuple(left[0][:LISTED]), tuple(left[1][:LISTED]), len(left[0]), len(left[1]))


def _entries(signed: pa.Table) -> tuple[list[_Entry], list[_Entry]]:
    """Missing and extra rows, each repeated by its weight."""
    found: tuple[list[_Entry], list[_Entry]] = ([], [])
    for row in python_rows(signed):
        weight = row.pop(WEIGHT)
        numbers: list[tuple[float, float]] = []
        key = tuple(_exact(row[f.name], f.type, numbers) for f in signed.schema if f.name != WEIGHT)
        found[weight < 0].extend([(key, tuple(numbers), row)] * abs(weight))
    return found


def _exact(value: Any, type_: pa.DataType, numbers: list[tuple[float, float]]) -> Any:
    """The part of a value that must be equal; finite numbers are appended to `numbers`, with their tolerance."""
    if value is None:
        return None
    if pa.types.is_floating(type_):
        if not np.isfinite(value):
            return str(value)
        numbers.append((value, TOLERANCE if type_ == pa.float64() else _SINGLE))
        return "number"
    if pa.types.is_struct(type_):
        return tuple(_exact(value[f.name], f.type, numbers) for f in type_)
    if pa.types.is_map(type_):  # entries have no order: they are compared by key
        pairs = sorted(value, key=lambda kv: repr(kv[0]))
        kinds = (type_.key_type, type_.item_type)
        return tuple(tuple(_exact(x, t, numbers) for x, t in zip(kv, kinds, strict=True)) for kv in pairs)
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        return tuple(_exact(v, type_.value_type, numbers) for v in value)
    return value


def _unpaired(ours: list[_Entry], theirs: list[_Entry]) -> tuple[list[_Entry], list[_Entry]]:
    """The entries, all of one key, that have no partner on the other side."""
    if not ours or not theirs:
        return ours, theirs
    left: tuple[list[_Entry], list[_Entry]] = ([], [])
    for cluster in _clusters([(0, e) for e in ours] + [(1, e) for e in theirs]):
        sides = [sorted((e for s, e in cluster if s == side), key=itemgetter(1)) for side in (0, 1)]
        for side, rest in enumerate(_searched(*_met_in_order(*sides))):
            left[side].extend(rest)
    return left


def _met_in_order(ours: list[_Entry], theirs: list[_Entry]) -> tuple[list[_Entry], list[_Entry]]:
    """Two sorted lists without the pairs found in one pass over both; rows of one number have no other pairs."""
    left: tuple[list[_Entry], list[_Entry]] = ([], [])
    i = j = 0
    while i < len(ours) and j < len(theirs):
        if _close(ours[i], theirs[j]):
            i, j = i + 1, j + 1
        elif ours[i][1] < theirs[j][1]:
            left[0].append(ours[i])
            i += 1
        else:
            left[1].append(theirs[j])
            j += 1
    return left[0] + ours[i:], left[1] + theirs[j:]


def _clusters(entries: list[tuple[int, _Entry]]) -> list[list[tuple[int, _Entry]]]:
    """The entries split, number by number, where the next one is beyond tolerance: partners stay together."""
    waiting, done = [(entries, 0)], []
    width = len(entries[0][1][1])
    while waiting:
        cluster, place = waiting.pop()  # split by the numbers before `place`
        if place == width or len({s for s, _ in cluster}) == 1:
            done.append(cluster)
            continue
        cluster.sort(key=lambda e: e[1][1][place][0])
        runs = [0]
        for (_, a), (_, b) in pairwise(cluster):
            runs.append(runs[-1] + (not _near(a[1][place], b[1][place])))
        numbered = zip(runs, cluster, strict=True)
        parts = [[e for _, e in part] for _, part in groupby(numbered, key=itemgetter(0))]
        waiting += [(part, place + 1) for part in parts]
    return done


def _searched(ours: Sequence[_Entry], theirs: Sequence[_Entry]) -> tuple[list[_Entry], list[_Entry]]:
    """The entries of one cluster without the pairs found by comparing each with each: for rows of several numbers."""
    if not ours or not theirs or len(ours[0][1]) < 2:
        return list(ours), list(theirs)
    rest, left = list(theirs), []
    for entry in ours:
        partner = next((i for i, other in enumerate(rest) if _close(entry, other)), None)
        if partner is None:
            left.append(entry)
        else:
            rest.pop(partner)
    return left, rest


def _close(a: _Entry, b: _Entry) -> bool:
    return all(_near(x, y) for x, y in zip(a[1], b[1], strict=True))


def _near(a: tuple[float, float], b: tuple[float, float]) -> bool:
    return abs(a[0] - b[0]) <= max(a[1] * max(abs(a[0]), abs(b[0])), _NEAR_ZERO)
