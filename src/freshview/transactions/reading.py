"""Table names of a query resolved to states of relations: at a snapshot, or at a version that the query names."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, tzinfo

from freshview.catalog.records import PENDING, Relation, RelationState
from freshview.catalog.writer import Catalog
from freshview.errors import InvalidStatement, NotFound
from freshview.sql.binding import TableRef
from freshview.transactions.transaction import Transaction

MAX_CSN = PENDING - 1


class ReadContext:
    """Resolves names at one CSN, with a transaction's own writes on top if there is one."""

    def __init__(
        self, catalog: Catalog, csn: int, transaction: Transaction | None = None, *, newest: bool = False
    ) -> None:
        """`newest`: the CSN was the newest when it was pinned, so that no vacuum has passed it."""
        self._catalog = catalog
        self._csn = csn
        self._transaction = transaction
        self._newest = newest
        self._known: dict[str, Relation | None] = {}  # by name; names at a CSN do not change

    def knows(self, name: str) -> bool:
        """Whether a relation of that name exists."""
        return self.relation(name) is not None

    def relation(self, name: str) -> Relation | None:
        """The relation of that name, or None. Without a transaction the catalog is asked for each name once."""
        if self._transaction is not None:
            return self._catalog.find(name, self._csn)
        if name not in self._known:
            self._known[name] = self._catalog.find(name, self._csn)
        return self._known[name]

    def require(self, name: str) -> None:
        """Raise NotFound, with suggestions, if no relation has that name."""
        self._catalog.relation(name, self._csn)

    def state(self, ref: TableRef, zone: Callable[[], tzinfo]) -> RelationState:
        """The state that a table reference reads; a TIMESTAMP AS OF without a zone is in `zone`.

        Of a view at the newest CSN it has no rows: what is stored of it is asked for when it has been maintained.
        """
        csn = self._csn
        if ref.version is not None:
            csn = parse_csn(ref.version, ref.name)
        elif ref.timestamp is not None:
            csn = self._catalog.csn_at(parse_time(ref.timestamp, ref.name, zone()))
        elif self._transaction is not None:
            return self._transaction.state(self._transaction.relation(ref.name))
        if csn != self._csn:
            relation = self._catalog.find(ref.name, csn) or self._catalog.relation(ref.name)
            return self._catalog.state(relation, csn)
        relation = self.relation(ref.name) or self._catalog.relation(ref.name)
        if self._newest and relation.kind == "view":
            return RelationState(relation, csn, None, None, ())
        return self._catalog.state(relation, csn)


def parse_csn(text: str, name: str) -> int:
    """The CSN of a VERSION AS OF clause."""
    if not text.isdigit():
        raise InvalidStatement(f"{name} VERSION AS OF {text}", "a version is a whole number (a CSN)", "Write a CSN.")
    csn = int(text)
    if csn > MAX_CSN:
        raise NotFound(f"{name} at CSN {text}", "there is no such commit", "Ask for a committed version.")
    return csn


def parse_time(text: str, name: str, zone: tzinfo) -> int:
    """The time of a TIMESTAMP AS OF clause in microseconds since the epoch; without a zone, it is in `zone`."""
    try:
        moment = datetime.fromisoformat(text)
        return to_micros(moment if moment.tzinfo else moment.replace(tzinfo=zone))
    except ValueError:
        raise InvalidStatement(
            f"{name} TIMESTAMP AS OF {text!r}", "is not a time", "Write 'YYYY-MM-DD hh:mm:ss', with or without a zone."
        ) from None


def to_micros(moment: datetime) -> int:
    """A time in exact microseconds since the epoch; a naive time is local time."""
    try:
        delta = moment.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    except (ValueError, OverflowError):
        raise InvalidStatement(f"the time {moment}", "is out of range in UTC", "Give a later or earlier one.") from None
    return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds
