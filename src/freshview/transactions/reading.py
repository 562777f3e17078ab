"""What a query's table names mean: a relation's state at a snapshot, or at a version it asks for."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, tzinfo

from freshview.catalog.records import PENDING, RelationState
from freshview.catalog.writer import Catalog
from freshview.errors import InvalidStatement, NotFound
from freshview.sql.binding import TableRef
from freshview.transactions.transaction import Transaction

MAX_CSN = PENDING - 1


class ReadContext:
    """Resolves names at one CSN, with a transaction's own writes on top if there is one."""

    def __init__(self, catalog: Catalog, csn: int, transaction: Transaction | None = None) -> None:
        self._catalog = catalog
        self._csn = csn
        self._transaction = transaction

    def knows(self, name: str) -> bool:
        return self._catalog.find(name, self._csn) is not None

    def require(self, name: str) -> None:
        """NotFound, with suggestions, if there is no such relation."""
        self._catalog.relation(name, self._csn)

    def state(self, ref: TableRef, zone: Callable[[], tzinfo]) -> RelationState:
        csn = self._csn
        if ref.version is not None:
            csn = parse_csn(ref.version, ref.name)
        elif ref.timestamp is not None:
            csn = self._catalog.csn_at(parse_time(ref.timestamp, ref.name, zone()))
        elif self._transaction is not None:
            return self._transaction.state(self._transaction.relation(ref.name))
        relation = self._catalog.relation(ref.name, csn if self._catalog.find(ref.name, csn) else None)
        return self._catalog.state(relation, csn)


def parse_csn(text: str, name: str) -> int:
    if not text.isdigit():
        raise InvalidStatement(f"{name} VERSION AS OF {text}", "a version is a whole number (a CSN)", "Write a CSN.")
    csn = int(text)
    if csn > MAX_CSN:
        raise NotFound(f"{name} at CSN {text}", "there is no such commit", "Ask for a committed version.")
    return csn


def parse_time(text: str, name: str, zone: tzinfo) -> int:
    """Microseconds since the epoch; times without a zone are in the session's."""
    try:
        moment = datetime.fromisoformat(text)
        return to_micros(moment if moment.tzinfo else moment.replace(tzinfo=zone))
    except ValueError:
        raise InvalidStatement(
            f"{name} TIMESTAMP AS OF {text!r}", "is not a time", "Write 'YYYY-MM-DD hh:mm:ss', with or without a zone."
        ) from None


def to_micros(moment: datetime) -> int:
    """Exact microseconds; a naive time is local time."""
    try:
        delta = moment.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    except (ValueError, OverflowError):
        raise InvalidStatement(f"the time {moment}", "is out of range in UTC", "Give a later or earlier one.") from None
    return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds
