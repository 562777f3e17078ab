"""Events, and what became of those that are not behind the position: repeated, late, or too late.

Law: an event that was delivered is skipped. Another one is late: a change of a row that was changed behind it has no
effect any more, since images are whole; a change of another row is taken. That holds as far as what was delivered can
be looked at: where a file is gone, or the event is before all that was delivered, a later change of its row may
have happened that nobody sees.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from freshview.cdc.log_places import LogPlace, Order, rank, shown
from freshview.cdc.net import Key, LoggedChange, of_one_key
from freshview.relation.schema import Schema


@dataclass(frozen=True)
class LogEvent:
    """Changes that an event reports: its place in the log of the database, its place in the files, and its time."""

    log: LogPlace | None
    changes: list[LoggedChange]
    place: str
    at: datetime | None = None

    @property
    def identity(self) -> str:
        """What makes a repeated event the same one; its place and the moment of sending do not count."""
        return repr((self.log and self.log.name, [(c.key, c.existed, c.new, c.old) for c in self.changes]))

    def is_before(self, order: Order | None, *, at: bool = False) -> bool:
        """Whether the event is before a place in the log (or `at` it); not if one of them is not known."""
        if self.log is None or order is None:
            return False
        return rank(self.log.order) < rank(order) or (at and self.log.order == order)


@dataclass
class Delivered:
    """What was delivered before, as far as it matters to some events: those that come again, the last changes of their
    rows (by rank in the log), the first place in the log, and a file that is gone."""

    repeated: set[str] = field(default_factory=set)
    changed: dict[Key, tuple[Any, ...]] = field(default_factory=dict)
    first: Order | None = None
    gone: str | None = None

    @staticmethod
    def of(before: Iterable[LogEvent], old: Sequence[LogEvent], schema: Schema, gone: str | None) -> Delivered:
        """What the events `before` a position have to do with those that are not behind it."""
        found = Delivered(gone=gone)
        identities = {event.identity for event in old}
        keys = {change.key for event in old for change in of_one_key(event.changes, schema)}
        for event in before:
            if event.log is None:
                continue
            if found.first is None or event.is_before(found.first):
                found.first = event.log.order
            if event.identity in identities:
                found.repeated.add(event.identity)
            for change in of_one_key(event.changes, schema):
                if change.key in keys:
                    found.changed[change.key] = max(rank(event.log.order), found.changed.get(change.key, ()))
        return found

    def too_late(self, order: Order, last: Order, *, is_asked_for: bool) -> str:
        """Why a late event cannot be taken; an empty text if it can. A replay asks for events before all others too."""
        cause = (
            f"its sequence {shown(order)} is before {shown(last)}, up to which changes were delivered, and it was not "
            "among them"
        )
        if self.gone:
            return f"{cause}; the file {self.gone}, which may have a later change of its row, is gone"
        is_in_log = self.first is not None and rank(self.first) < rank(order)
        return "" if is_in_log or is_asked_for else f"{cause}; nor was anything before it"

    def without_superseded(self, event: LogEvent, schema: Schema) -> LogEvent:
        """An event without the changes of rows that were changed behind it."""
        own = rank(event.log.order) if event.log else ()
        return replace(
            event, changes=[c for c in of_one_key(event.changes, schema) if self.changed.get(c.key, ()) <= own]
        )
