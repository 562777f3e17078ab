"""The protocol of sources: poll from a position, receive six sets and a new position.

Law: the changes between two positions are delivered by the poll between them, once, and whole. A position is a text
that the caller stores in the transaction in which it applies the changes; after that transaction it calls `confirm`,
and only then may the source forget what came before. Whatever dies in between, the next poll repeats the same changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from freshview.cdc.captures import Capture
from freshview.cdc.columns import ChangeColumns
from freshview.cdc.model import PartialDelta
from freshview.cdc.net import LoggedChange
from freshview.errors import CaptureFailed
from freshview.relation.schema import Schema


@dataclass(frozen=True)
class Quarantined:
    """An event that could not be read and was set aside: where it stands, why, and its text."""

    place: str
    cause: str
    text: str


class BadEvents(CaptureFailed):
    """Events that were read and that the reader cannot take; the first one is named by the message."""

    events: tuple[Quarantined, ...] = ()


def bad_events(name: str, events: Sequence[Quarantined]) -> BadEvents:
    """The error of events of the table `name` that are not to be set aside."""
    first = events[0]
    remedy = "Correct it, or let the source's option 'on error' 'quarantine' set such events aside."
    error = BadEvents(f"event of {name}, {first.place}", first.cause, remedy)
    error.events = tuple(events)
    return error


@dataclass(frozen=True)
class Poll:
    """The changes since a position, and the position after them.

    `changes` has each change, in the order of the source; then `delta`, which has the net effect, is empty. `skipped`
    counts events of other tables by table, `at` is the source's time of the poll, if it has one, and `more` is
    whether another poll would find more at once. `places` has the place of the last change of each key in `delta`, if
    the source has places.
    """

    capture: Capture
    delta: PartialDelta
    position: str
    quarantined: tuple[Quarantined, ...] = ()
    skipped: Mapping[str, int] = field(default_factory=dict)
    changes: tuple[LoggedChange, ...] | ChangeColumns | None = None
    at: datetime | None = None
    more: bool = False
    places: Mapping[tuple[Any, ...], str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        beyond = sorted(self.delta.filled - self.capture.sets)
        if beyond:
            declared = ", ".join(sorted(self.capture.sets))
            raise CaptureFailed(
                f"changes of {self.delta.name}",
                f"{self.capture.technique} delivered {', '.join(beyond)} besides {declared}",
                "Views were accepted for the sets that were declared: declare a capture that fits the source.",
            )


class Source(Protocol):
    """A table of another system whose changes can be polled."""

    @property
    def name(self) -> str: ...

    @property
    def schema(self) -> Schema: ...

    @property
    def capture(self) -> Capture: ...

    def poll(self, position: str | None) -> Poll:
        """The changes since a position; from None, all rows that there are."""
        ...

    def confirm(self, position: str) -> None:
        """The changes up to a position are committed: the source may forget them."""
        ...
