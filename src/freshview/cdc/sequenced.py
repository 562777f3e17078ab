"""Changes with a sequence: which change of a key is the later one, whatever the order in which they arrive.

Law: of two changes of a key the one with the lower sequence loses; of two with the same sequence, the one that arrived
first. A deletion that the source reports without a sequence comes after all that arrived before it.

Where NULL means "as before" (IGNORE NULL UPDATES), each column has a last change of its own: the value is that of the
highest sequence that set it, behind the last deletion of the row. So a late change sets what later ones left open.
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
    """The last change of a key: its sequence, and the row that it left, None if it deleted the row.

    Where NULL means "as before": `set_at` has the sequence of the change that set each column, and `floor` that of the
    last deletion. None for `set_at` says that neither is known; then earlier changes are not taken.
    """

    sequence: Any
    image: Image | None
    set_at: tuple[Any, ...] | None = None
    floor: Any = None

    @property
    def limit(self) -> Any:
        """The sequence before which changes have no effect, where NULL means "as before"."""
        return self.sequence if self.image is None or self.set_at is None else self.floor


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
        if ignore_nulls and sequence is not None:
            if rank(sequence) >= max(rank(before.limit) if before else (0,), rank(truncated)):
                now = _merged(before, sequence, change.image)
                won.update({change.key: now} if now != before else {})
            continue
        if sequence is None:
            sequence = before.sequence if before is not None else truncated
        elif rank(sequence) < max(rank(before.sequence) if before else (0,), rank(truncated)):
            continue
        image = change.image
        if image is not None and ignore_nulls:
            image = filled(image, before.image if before else None)
        won[change.key] = Last(sequence, image)
    return Latest(won, truncated, is_emptied)


def _merged(before: Last | None, sequence: Any, image: Image | None) -> Last:
    """The last change of a key after one with this sequence, where NULL means "as before"."""
    if before is None or before.image is None:
        set_at = tuple(None if v is None else sequence for v in image) if image is not None else None
        return Last(sequence, image, set_at, before.limit if before and image is not None else None)
    known = before.set_at or (None,) * len(before.image)
    # A value whose change is not known is taken to be of the last one.
    old = [
        (v, before.sequence if v is not None and at is None else at) for v, at in zip(before.image, known, strict=True)
    ]
    if image is not None:
        pairs = [
            was if new is None or rank(sequence) < rank(was[1]) else (new, sequence)
            for new, was in zip(image, old, strict=True)
        ]
        limit = before.limit
    elif rank(sequence) >= rank(before.sequence):
        return Last(sequence, None)
    else:  # a late deletion: what was set before it goes
        pairs = [was if rank(was[1]) > rank(sequence) else (None, None) for was in old]
        limit = sequence
    values, set_at = zip(*pairs, strict=True)
    return Last(max(before.sequence, sequence, key=rank), tuple(values), tuple(set_at), limit)


def in_sequence(events: Mapping[Any, Any]) -> Sequence[tuple[Any, Any]]:
    """Items by sequence, in their order."""
    return sorted(events.items(), key=lambda item: rank(item[0]))
