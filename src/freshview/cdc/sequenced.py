"""Changes with a sequence: which change of a key is the later one, whatever the order in which they arrive.

Law: of two changes of a key the one with the lower sequence loses; of two with the same sequence, the one that arrived
first. A deletion that the source reports without a sequence comes after all that arrived before it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

Key = tuple[Any, ...]
Image = tuple[Any, ...]
Rank = tuple[Any, ...]


@dataclass(frozen=True)
class SequencedChange:
    """One change: `image` is the new row, None for a deletion; `sequence` is None if the change has none.

    `is_reported`: the source reports a deletion of a row, whose sequence, if any, is that of the row before.
    """

    key: Key
    sequence: Any
    image: Image | None
    at: datetime | None = None
    place: str = ""
    truncates: bool = False
    is_reported: bool = False


@dataclass(frozen=True)
class Last:
    """The last change of a key: its sequence, and the row that it left, None if it deleted the row."""

    sequence: Any
    image: Image | None


@dataclass(frozen=True)
class Latest:
    """The last changes of keys, and the sequence of the last truncation, None if there was none."""

    changed: Mapping[Key, Last]
    truncated: Any = None
    is_emptied: bool = False  # whether one of the changes is a truncation


def rank(sequence: Any) -> Rank:
    """What sequences are compared by, as Spark orders them: NULL first, NaN last, structs field by field."""
    if sequence is None:
        return (0,)
    if isinstance(sequence, float):
        return (2,) if math.isnan(sequence) else (1, sequence)
    if isinstance(sequence, Mapping):
        return (1, *(rank(part) for part in sequence.values()))
    return (1, sequence)


def filled(image: Image, before: Image | None) -> Image:
    """An image whose NULLs mean "as before" (IGNORE NULL UPDATES)."""
    if before is None:
        return image
    return tuple(old if new is None else new for new, old in zip(image, before, strict=True))


def latest(
    changes: Iterable[SequencedChange],
    stored: Mapping[Key, Last],
    truncated: Any = None,
    *,
    ignore_nulls: bool = False,
) -> Latest:
    """The last change of each key that wins against what is stored (SCD type 1), in the order of arrival.

    `stored` has the last change of each key so far, with its row where `ignore_nulls` asks for it.
    """
    won: dict[Key, Last] = {}
    is_emptied = False
    for change in changes:
        if change.truncates:
            if rank(change.sequence) >= rank(truncated):
                truncated, is_emptied = change.sequence, True
                won = {k: last for k, last in won.items() if rank(last.sequence) > rank(truncated)}
                stored = {k: last for k, last in stored.items() if rank(last.sequence) > rank(truncated)}
            continue
        before = won.get(change.key, stored.get(change.key))
        sequence = change.sequence
        if sequence is None:
            sequence = before.sequence if before is not None else truncated
        elif rank(sequence) < max(rank(before.sequence) if before else (0,), rank(truncated)):
            continue
        image = change.image
        if image is not None and ignore_nulls:
            image = filled(image, before.image if before else None)
        won[change.key] = Last(sequence, image)
    return Latest(won, truncated, is_emptied)


def in_sequence(events: Mapping[Any, Any]) -> Sequence[tuple[Any, Any]]:
    """Items by sequence, in their order."""
    return sorted(events.items(), key=lambda item: rank(item[0]))
