"""Taking the changes of a source into a table: poll, commit with the position, confirm."""

from __future__ import annotations

from collections.abc import Callable

from freshview.catalog.positions import Move
from freshview.catalog.records import Relation
from freshview.catalog.writer import Catalog
from freshview.cdc.event_files import EventFiles
from freshview.cdc.fitting import Fit
from freshview.cdc.source import Source
from freshview.errors import CaptureFailed, InvalidStatement
from freshview.events import Events
from freshview.flows.feeding import take_rows
from freshview.relation.schema import Schema, fold
from freshview.transactions.transaction import Outcome
from freshview.transactions.user_transaction import UserTransaction


def capture(
    catalog: Catalog, events: Events, begin: Callable[[], UserTransaction], relation: Relation, source: Source
) -> Outcome:
    """Take all that changed since the stored position, by one commit per poll; WriteConflict if another process did so
    meanwhile. Events that were set aside are reported once their poll is committed, and stored nowhere.
    """
    fit = Fit(relation.name, source.schema, Schema(relation.schema.columns))
    if isinstance(source, EventFiles) and not fit.is_certain:
        source = source.fitting(fit.unfit)
    rows = 0
    while True:
        taken, more = _take(catalog, events, begin, relation, source)
        rows += taken.rows
        if not more:
            return Outcome(rows, taken.csn)


def _take(
    catalog: Catalog, events: Events, begin: Callable[[], UserTransaction], relation: Relation, source: Source
) -> tuple[Outcome, bool]:
    """Take the changes of one poll; return them, and whether another poll would find more at once.

    An error of the poll does not count if another process has moved the position meanwhile: then it is polled again.

    The source is confirmed after the commit. If the process dies in between, the next poll begins at the stored
    position, and its confirmation covers this one.
    """
    while True:
        known = catalog.position(relation.id)
        _check(relation, source, known[0] if known else None)
        before = known[1] if known else None
        try:
            poll = source.poll(before)
            break
        except CaptureFailed:
            if catalog.position(relation.id) == known:
                raise
    with begin() as transaction:
        rows = take_rows(transaction, relation, poll.delta, poll.delta.schema.names)
        transaction.move(Move(relation.id, relation.name, source.name, before, poll.position))
    for event in poll.quarantined:
        events.emit(
            "capture.quarantined", relation=relation.name, place=event.place, cause=event.cause, text=event.text
        )
    for table, count in poll.skipped.items():
        events.emit("capture.skipped", relation=relation.name, table=table, events=count)
    source.confirm(poll.position)
    return Outcome(rows, transaction.csn), poll.more


def _check(relation: Relation, source: Source, fed_by: str | None) -> None:
    if relation.kind != "table":
        raise InvalidStatement(f"{relation.kind} {relation.name}", "is read-only here", "Capture into a table.")
    if fed_by not in (None, source.name):
        raise InvalidStatement(
            f"table {relation.name}", f"it takes the changes of {fed_by}, not of {source.name}", "Use another table."
        )
    if set(map(fold, relation.schema.key)) != set(map(fold, source.schema.key)):
        keys = [", ".join(s.key) or "none" for s in (relation.schema, source.schema)]
        raise InvalidStatement(
            f"table {relation.name}",
            f"its primary key is ({keys[0]}), that of {source.name} ({keys[1]})",
            "Create the table with the key of the source.",
        )
    missing = ((source.name, _without(relation, source)), ("the table", _without(source, relation)))
    lacks = [f"{owner} has no column {', '.join(columns)}" for owner, columns in missing if columns]
    if lacks:
        raise InvalidStatement(
            f"table {relation.name}", " and ".join(lacks), "Create the table with the columns of the source."
        )


def _without(some: Relation | Source, others: Relation | Source) -> list[str]:
    """The columns of one that the other does not have."""
    known = set(map(fold, others.schema.names))
    return [n for n in some.schema.names if fold(n) not in known]
