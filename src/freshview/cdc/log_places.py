"""Places in the log of a database: which identify events, and give the order in which they count.

    LSN l of PostgreSQL        name (l)                    order (max(c, l), l)
    binlog of MySQL            name (file, position, row)  order the same; names of files are compared by length first

Places are of one log. Where another server takes over, or a log is begun anew or restored, places go back while time
goes on: `LogEnd.denies` finds that, so that what is new is not taken for what is old.

c is the LSN of the last commit before the event's transaction, which Debezium sends beside l. Law: transactions are in
the order of their commits, and the changes of one are in the order of their LSNs. For the changes of a transaction lie
before its own commit C, so max(c, l) is in [c, C), and these intervals follow each other as the commits do. Without c
the order is that of LSNs, in which transactions that ran at the same time interleave.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from freshview.cdc.texts import BadEvent

Order = tuple[int | str, ...]
_BEYOND = 2**64  # what places are counted with has 64 bits at most
_DISORDER = timedelta(minutes=1)  # by which the times of changes may differ from the order of their commits


@dataclass(frozen=True)
class LogPlace:
    """The place of an event in a log: `name` is that of no other event, and the later event has the greater `order`.

    `server` is the server that made the change, if the event names it. `by_commit`: the order is that of commits.
    """

    name: Order
    order: Order
    server: str = ""
    by_commit: bool = True


@dataclass(frozen=True)
class LogEnd:
    """The last place in a log among events, the server of that event, and the latest time of the events."""

    order: Order | None = None
    server: str = ""
    at: datetime | None = None

    def after(self, place: LogPlace, at: datetime | None) -> LogEnd:
        """The end with one more event."""
        latest = max(filter(None, (self.at, at)), default=None)
        if self.order is None or rank(place.order) >= rank(self.order):
            return LogEnd(place.order, place.server or self.server, latest)
        return LogEnd(self.order, self.server, latest)

    def denies(self, place: LogPlace, at: datetime | None) -> str:
        """Why an event whose place is before this end is of another log; an empty text if it may be of this one.

        A change of another server is one of the same log only if it is earlier. One of the same server, or of a server
        that is not known, may have a later time, since times are not in the exact order of commits; but not by much.
        """
        if self.order is None or rank(place.order) >= rank(self.order):
            return ""
        cause = f"its sequence {shown(place.order)} is before {shown(self.order)}, up to which changes were read"
        is_later = self.at is None or at is None or at >= self.at
        if place.server and self.server and place.server != self.server and is_later:
            return f"{cause}, and it is of server {place.server}, not {self.server}: its log is another one"
        is_apart = rank(place.order[:-1]) < rank(self.order[:-1])
        if place.by_commit and is_apart and self.at is not None and at is not None and at > self.at + _DISORDER:
            return f"{cause}, and it was made at {at}, after these ({self.at}): its log is another one"
        return ""


def lsn_place(lsn: Any, last_commit: Any = None) -> LogPlace:
    """The place of an LSN, with that of the last commit before its transaction if it is known; BadEvent if odd."""
    at = _number(lsn, "LSN")
    after = at if last_commit is None else _number(last_commit, "last commit")
    return LogPlace((at,), (max(after, at), at), by_commit=last_commit is not None)


def binlog_place(file: Any, position: Any, row: Any, server: Any = None) -> LogPlace:
    """The place of a row in a binlog, with the number of its server if it is known; BadEvent if it is odd."""
    if not isinstance(file, str):
        raise BadEvent(f"its place in the log is odd: {file!r:.60} is no name of a binlog file")
    name = (file, _number(position, "position"), _number(row, "row"))
    return LogPlace(name, name, str(server) if server else "")  # 0 is no server: rows of snapshots have it


def rank(order: Order) -> tuple[Any, ...]:
    """What orders are compared by; those of different kinds of log can be compared, but mean nothing together."""
    return (len(order), *((len(part), part) if isinstance(part, str) else part for part in order))


def is_same_log(some: Order, other: Order) -> bool:
    """Whether two orders are of one kind of log."""
    return len(some) == len(other)


def order_of(stored: Sequence[Any]) -> Order:
    """The order that a position holds; positions of earlier versions have an LSN alone."""
    return tuple(stored) * (2 if len(stored) == 1 else 1)


def shown(order: Order) -> str:
    """An order as it is shown to users."""
    if len(order) == 2:
        return str(order[1]) if order[0] == order[1] else f"{order[1]} (after the commit at {order[0]})"
    return "/".join(map(str, order))


def _number(given: Any, what: str) -> int:
    if isinstance(given, str) and given.isascii() and given.isdigit() and len(given) <= 20:
        given = int(given)
    if isinstance(given, bool) or not isinstance(given, int) or not 0 <= given < _BEYOND:
        raise BadEvent(f"its place in the log is odd: {given!r:.60} is no {what}")
    return given
