"""Histories (SCD type 2): the rows of a key over time, from its changes in whatever order they arrive.

    history(events)   in the order of sequences: a row begins where a tracked column changes, and ends where the next
                      one begins or the key is deleted; a change of untracked columns alone replaces them in the row
    visible(rows)     the events that rows show: a row at each start, a deletion at each end where no row begins
    hidden            the events that rows do not show: history(visible(rows) | hidden) is the history of all events

Law: rows and hidden events together hold all events, so a late change splits the row that it falls into exactly as if
it had arrived in time. Forgetting all hidden events of a key never changes its rows: history(visible(rows)) = rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from freshview.cdc.sequenced import Image, in_sequence, rank

KeyEvents = Mapping[Any, Image | None]  # of one key, by sequence: the new row, None for a deletion


@dataclass(frozen=True)
class Period:
    """A row of a history: its image from a sequence (inclusive) to another (exclusive; None: it is the present one)."""

    start: Any
    end: Any
    image: Image


@dataclass(frozen=True)
class Rules:
    """Which places of an image are tracked, and whether NULL means "as before"."""

    tracked: tuple[int, ...]
    ignore_nulls: bool = False


@dataclass(frozen=True)
class History:
    """The rows of one key, and its events that they do not show."""

    periods: tuple[Period, ...] = ()
    hidden: KeyEvents = field(default_factory=dict)


def history(events: KeyEvents, rules: Rules) -> tuple[Period, ...]:
    """The rows of a key from all its events."""
    closed: list[Period] = []
    current: Period | None = None
    for sequence, given in in_sequence(events):
        image = given
        if image is not None and current is not None and rules.ignore_nulls:
            image = tuple(b if a is None else a for a, b in zip(image, current.image, strict=True))
        if image is not None and current is not None and _same(image, current.image, rules.tracked):
            current = Period(current.start, None, image)
            continue
        if current is not None:
            closed.append(Period(current.start, sequence, current.image))
        current = None if image is None else Period(sequence, None, image)
    return (*closed, current) if current is not None else tuple(closed)


def visible(periods: Iterable[Period]) -> dict[Any, Image | None]:
    """The events that rows show."""
    rows = tuple(periods)
    events: dict[Any, Image | None] = {p.end: None for p in rows if p.end is not None}
    return {**events, **{p.start: p.image for p in rows}}


def after(before: History, changes: Iterable[tuple[Any, Image | None]], rules: Rules) -> History:
    """The history after changes (sequence, new row or None), which arrived in this order."""
    events = {**visible(before.periods), **before.hidden, **dict(changes)}
    periods = history(events, rules)
    seen = visible(periods)
    hidden = {s: image for s, image in events.items() if s not in seen or not _equal(seen[s], image)}
    return History(periods, hidden)


def _same(some: Image, others: Image, places: Iterable[int]) -> bool:
    return all(_is(some[i], others[i]) for i in places)


def _equal(some: Image | None, others: Image | None) -> bool:
    if some is None or others is None:
        return some is others
    return _same(some, others, range(len(some)))


def _is(a: Any, b: Any) -> bool:
    """Equality of values, where NULL equals NULL and NaN equals NaN."""
    return rank(a) == rank(b) if isinstance(a, float) or isinstance(b, float) else bool(a == b)
