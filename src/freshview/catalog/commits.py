"""A transaction's commit in the catalog: one database transaction, which holds the lock on the clock throughout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from freshview.catalog import tables as t
from freshview.catalog.engine import Clock, Database
from freshview.catalog.frontiers import ViewChange, end_leases, publish_with_commit
from freshview.catalog.positions import Move, move
from freshview.catalog.records import Commit, Pin, Relation, Segment, segment_values
from freshview.catalog.selections import relation_row
from freshview.errors import SnapshotExpired, StorageUnavailable, WriteConflict


@dataclass(frozen=True)
class CommitRequest:
    """Everything that one transaction makes visible with its commit."""

    pin: Pin
    relations: tuple[Relation, ...]
    segments: tuple[Segment, ...]
    leases: tuple[str, ...] = ()
    checked_to: int = 0  # the CSN up to which conflicts have been checked
    created: frozenset[int] = frozenset()  # ids of relations that appear with this commit
    views: tuple[ViewChange, ...] = ()  # changes of views to publish with this commit, lower ones first
    moves: tuple[Move, ...] = ()  # of the sources whose changes this commit takes


@dataclass(frozen=True)
class Committed:
    """The result of a commit request: its CSN, and the changes of views that were published with it."""

    csn: int
    views: tuple[ViewChange, ...] = ()


@dataclass(frozen=True)
class OpenCommit:
    """A commit that holds the catalog's lock: no other commit comes in between."""

    connection: Connection
    database: Database
    clock: Clock
    request: CommitRequest
    others: Sequence[Segment]  # what other transactions have committed to the same relations since the first check

    def publish(self) -> Committed:
        """Make the request visible as the next CSN; Outdated if an eager view would not be as of it."""
        c, request = self.connection, self.request
        for to in request.moves:
            move(c, to, self.database.now(c))
        csn, now = next_csn(c, self.database, self.clock)
        rows = {r.id: 0 for r in request.relations}
        counter = dict.fromkeys(rows, 0)
        values = []
        for segment in request.segments:
            rows[segment.relation_id] += segment.rows
            values.append(segment_values(segment, csn, counter[segment.relation_id]))
            counter[segment.relation_id] += 1
        kinds = {i: "create" if i in request.created else "data" for i in rows}
        made = [Commit(i, csn, request.pin.txsn, now, kinds[i], n) for i, n in rows.items()]
        c.execute(t.commits.insert(), [asdict(commit) for commit in made])
        if values:
            c.execute(t.segments.insert(), values)
        end_leases(c, request.leases)
        c.execute(t.snapshots.delete().where(t.snapshots.c.id == request.pin.id))
        return Committed(csn, publish_with_commit(c, csn, now, list(rows), request.views))


def next_csn(c: Connection, database: Database, clock: Clock) -> tuple[int, int]:
    """Take the CSN after a locked clock's; return it with its time, which strictly increases with CSNs."""
    now = max(database.now(c), clock.committed_at + 1)
    c.execute(t.clock.update().where(t.clock.c.id == 1).values(csn=clock.csn + 1, committed_at=now))
    return clock.csn + 1, now


def check_pin(c: Connection, pin: Pin) -> None:
    """Raise SnapshotExpired if a transaction's snapshot is no longer registered."""
    if c.execute(sa.select(t.snapshots.c.id).where(t.snapshots.c.id == pin.id)).first() is None:
        raise SnapshotExpired(
            f"transaction {pin.txsn}",
            "its snapshot was given up (after a long pause, or the warehouse was closed)",
            "Run the transaction again.",
        )


def check_leases(c: Connection, leases: Sequence[str]) -> None:
    """Raise StorageUnavailable unless all of these leases are still held."""
    query = sa.select(sa.func.count()).select_from(t.leases).where(t.leases.c.id.in_(leases))
    if leases and c.execute(query).scalar_one() != len(leases):
        cause = "the lease on written files expired before they were committed"
        raise StorageUnavailable("commit", cause, "Run the transaction again.")


def check_unchanged(c: Connection, relation: Relation) -> None:
    """Raise WriteConflict if a relation was dropped, altered or renamed since it was read."""
    row = relation_row(c, relation.id)
    if row is None or row.dropped_csn is not None:
        raise WriteConflict(f"table {relation.name}", "was dropped meanwhile", "Run the transaction again.")
    if (row.epoch, row.schema_version) != (relation.epoch, relation.schema_version):
        raise WriteConflict(f"table {relation.name}", "was altered or renamed meanwhile", "Run the transaction again.")
