"""Places in the log of a database: by which events are told apart, and in which order they count.

    LSN l of PostgreSQL        name (l)                    order (max(c, l), l)
    binlog of MySQL            name (file, position, row)  order the same; names of files are compared by length first

c is the LSN of the last commit before the event's transaction, which Debezium sends beside l. Law: transactions are in
the order of their commits, and the changes of one are in the order of their LSNs. For the changes of a transaction lie
before its own commit C, so max(c, l) is in [c, C), and these intervals follow each other as the commits do. Without c
the order is that of LSNs, in which transactions that ran at the same time interleave.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from freshview.cdc.texts import BadEvent

Order = tuple[int | str, ...]
_BEYOND = 2**64  # what places are counted with has 64 bits at most


@dataclass(frozen=True)
class LogPlace:
    """Where a log has an event: `name` tells it apart from other events, `order` says which one is the later."""

    name: Order
    order: Order


def lsn_place(lsn: Any, last_commit: Any = None) -> LogPlace:
    """The place of an LSN, with that of the last commit before its transaction if it is known; BadEvent if odd."""
    at = _number(lsn, "LSN")
    after = at if last_commit is None else _number(last_commit, "last commit")
    return LogPlace((at,), (max(after, at), at))


def binlog_place(file: Any, position: Any, row: Any) -> LogPlace:
    """The place of a row in a binlog; BadEvent if it is odd."""
    if not isinstance(file, str):
        raise BadEvent(f"its place in the log is odd: {file!r:.60} is no name of a binlog file")
    name = (file, _number(position, "position"), _number(row, "row"))
    return LogPlace(name, name)


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
