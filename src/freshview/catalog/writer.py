"""Changes to the catalog, the only commit point of a warehouse: what is not written here did not happen."""

from __future__ import annotations

import json
import os
import socket
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from freshview.catalog import tables as t
from freshview.catalog.commits import CommitRequest, OpenCommit, check_leases, check_pin, check_unchanged, next_csn
from freshview.catalog.engine import Database
from freshview.catalog.expiring import expire, forget_history
from freshview.catalog.positions import Move, move
from freshview.catalog.reader import CatalogReader
from freshview.catalog.records import Commit, Lease, Main, Pin, Relation, Segment, segment_values
from freshview.catalog.selections import newest_main, relation_row, segments_of
from freshview.errors import (
    AlreadyExists,
    FreshviewError,
    InvalidStatement,
    NotFound,
)
from freshview.machine import is_gone, process_space
from freshview.relation.schema import Schema, check_relation_name, fold, refuse_weight

LIFETIME = 120 * 1_000_000  # µs a pin or lease lives without a heartbeat

# Statements of every job and query: built once, since building one takes as long as running it.
_NEXT_TXSN = (
    t.clock.update().where(t.clock.c.id == 1).values(txsn=t.clock.c.txsn + 1).returning(t.clock.c.csn, t.clock.c.txsn)
)
_PIN = t.snapshots.insert()
_UNPIN = t.snapshots.delete().where(t.snapshots.c.id == sa.bindparam("pin"))
_OWN = sa.and_(t.leases.c.id.in_(sa.bindparam("leases", expanding=True)), t.leases.c.owner == sa.bindparam("owner"))
_UNPINNED = t.snapshots.delete().where(
    t.snapshots.c.id.in_(sa.bindparam("ids", expanding=True)), t.snapshots.c.owner == sa.bindparam("owner")
)
_LEASE = t.leases.insert()
_TAKEN = sa.select(t.leases.c.owner).where(t.leases.c.id == sa.bindparam("lease"))
_EXPIRED = t.leases.delete().where(
    t.leases.c.id == sa.bindparam("lease"), t.leases.c.expires_at < sa.bindparam("now", type_=sa.BigInteger)
)
_ENDED = t.leases.delete().where(t.leases.c.id == sa.bindparam("lease"))
_HELD, _DROPPED = sa.select(t.leases.c.id).where(_OWN), t.leases.delete().where(_OWN)


class Catalog(CatalogReader):
    """The catalog of a warehouse, read and written by one process."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._owner = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}{process_space()}"
        self._given_up: set[str] = set()  # pins and leases whose rows the catalog may still hold

    @property
    def owner(self) -> str:
        """The name of this process as an owner of pins, leases and announcements."""
        return self._owner

    # -- snapshots and leases ------------------------------------------------------------------

    def begin(self, purpose: str = "transaction", at: int | None = None) -> Pin:
        """Register a snapshot (the newest, or `at`), so that nothing it can read is removed."""
        with self.database.write(durable=False) as c:
            row = c.execute(_NEXT_TXSN).one_or_none() or self.database.clock(c)
            if at is not None and not 0 <= at <= row.csn:
                raise NotFound(f"CSN {at}", f"the last commit is CSN {row.csn}", "Ask for a committed version.")
            pin = Pin(uuid.uuid4().hex, row.csn if at is None else at, row.txsn)
            values = {"owner": self._owner, "purpose": purpose, "expires_at": self.database.now(c) + LIFETIME}
            c.execute(_PIN, {**asdict(pin), **values})
            return pin

    def release(self, pin: Pin) -> None:
        """Give up a snapshot."""
        with self._giving_up([pin.id]), self.database.write(durable=False) as c:
            c.execute(_UNPIN, {"pin": pin.id})

    def lease(self, relation_id: int, path: str, name: str | None = None, *, inherits: bool = False) -> Lease | None:
        """Claim a folder before writing to it. A named lease is exclusive: None if another process holds it.

        `inherits`: a named lease of a process of this machine that is gone is taken over before it expires. This is for
        leases that only save work: a fork of that process may still work under its lease.
        """
        with self.database.write(durable=False) as c:
            now = self.database.now(c)
            lease = Lease(name or uuid.uuid4().hex, relation_id, path)
            if name is not None:
                self.database.lock_clock(c)  # of two processes that ask at once, one waits for the other
                self._end_given_up(c)
                c.execute(_EXPIRED, {"lease": name, "now": now})
                owner = c.execute(_TAKEN, {"lease": name}).scalar()
                if owner is not None and not (inherits and _has_died(owner)):
                    return None
                c.execute(_ENDED, {"lease": name})
            c.execute(_LEASE, {**asdict(lease), "owner": self._owner, "expires_at": now + LIFETIME})
            return lease

    def drop_leases(self, ids: Sequence[str]) -> set[str]:
        """Give up leases and return the ids that were still held; only files under those may be removed."""
        with self._giving_up(ids), self.database.write(durable=False) as c:
            own = {"leases": list(ids), "owner": self._owner}
            held = set(c.execute(_HELD, own).scalars())
            c.execute(_DROPPED, own)
            return held

    def end_in(self, c: Connection, ids: Sequence[str]) -> None:
        """Give up leases and pins of this process in a transaction that the caller holds."""
        if ids:
            c.execute(_UNPINNED, {"ids": list(ids), "owner": self._owner})  # in the order of vacuum and heartbeats
            c.execute(_DROPPED, {"leases": list(ids), "owner": self._owner})

    def holds(self, ids: Sequence[str]) -> bool:
        """Are all of these leases still held by this process?"""
        query = sa.select(sa.func.count()).where(t.leases.c.id.in_(list(ids)), t.leases.c.owner == self._owner)
        with self.database.read() as c:
            return c.execute(query).scalar_one() == len(ids)

    def heartbeat(self) -> None:
        """Prolong all pins and leases of this process, except those that were given up while the catalog failed.

        Rows that a transaction holds locked are left out: it ends them, or the next heartbeat prolongs them. So a
        heartbeat waits for no commit that waits for it.
        """
        with self.database.write(durable=False) as c:
            self._end_given_up(c)
            until = self.database.now(c) + LIFETIME
            for table in (t.snapshots, t.leases):
                own = sa.select(table.c.id).where(table.c.owner == self._owner).with_for_update(skip_locked=True)
                ids = c.execute(own).scalars().all()
                c.execute(table.update().where(table.c.id.in_(ids)).values(expires_at=until))
        self.database.fold_log()

    def harden(self) -> None:
        """Make all that the catalog holds outlive a power cut, before files are made of it that do."""
        with self.database.write() as c:
            c.execute(_NEXT_TXSN)  # only a transaction that writes is synced, and with it all before it

    @contextmanager
    def _giving_up(self, ids: Sequence[str]) -> Iterator[None]:
        """Note pins or leases that nobody needs any more, if the block that deletes their rows fails."""
        try:
            yield
        except FreshviewError:
            self._given_up.update(ids)
            raise

    def _end_given_up(self, c: Connection) -> None:
        """Delete the rows of pins and leases that could not be given up before."""
        if not self._given_up:
            return
        self.database.lock_clock(c)  # no thread takes a lease of the same name meanwhile
        ended = set(self._given_up)
        for table in (t.snapshots, t.leases):
            c.execute(table.delete().where(table.c.id.in_(ended), table.c.owner == self._owner))
        self._given_up -= ended

    def leave(self) -> None:
        """Give up all pins and leases of this process, and end its announced work."""
        with self.database.write(durable=False) as c:
            for table in (t.leases, t.snapshots, t.activity):  # in the order of a commit
                c.execute(table.delete().where(table.c.owner == self._owner))

    # -- commits -------------------------------------------------------------------------------

    @contextmanager
    def committing(self, request: CommitRequest) -> Iterator[OpenCommit]:
        """Hold the catalog's lock for a transaction's commit, once it is known that the transaction still may commit.

        In the block the caller looks at what others have committed, and publishes; leaving it with an exception makes
        nothing visible. First committer wins (DESIGN §2).
        """
        with self.database.write() as c:
            clock = self.database.lock_clock(c)
            check_pin(c, request.pin)
            check_leases(c, request.leases)
            for relation in request.relations:
                if relation.id in request.created:
                    self.insert_relation(c, replace(relation, created_csn=clock.csn + 1))
                else:
                    check_unchanged(c, relation)
            others = []
            if clock.csn > request.checked_to:
                others = segments_of(c, [r.id for r in request.relations], request.checked_to)
            yield OpenCommit(c, self.database, clock, request, others)

    def move(self, moves: Sequence[Move]) -> None:
        """Move the positions of sources that brought no changes; this is no commit."""
        with self.database.write() as c:
            self.database.lock_clock(c)
            for to in moves:
                move(c, to, self.database.now(c))

    def require_unchanged(self, relations: Sequence[Relation]) -> None:
        """Raise WriteConflict if one of these relations was dropped, altered or renamed since it was read."""
        with self.database.read() as c:
            for relation in relations:
                check_unchanged(c, relation)

    # -- definitions ---------------------------------------------------------------------------

    def create(
        self,
        name: str,
        kind: str,
        schema: Schema,
        *,
        location: str | None = None,
        properties: Mapping[str, str] | None = None,
        main: Main | None = None,
    ) -> tuple[Relation, int]:
        """Create a relation in a commit of its own; return it and its CSN."""
        check_relation_name(name)
        with self.database.write() as c:
            clock = self.database.lock_clock(c)
            csn = clock.csn + 1
            relation = Relation(self._reserved(c), name, kind, 1, 1, schema, csn, location, dict(properties or {}))
            self.insert_relation(c, relation)
            self.ddl_commit(c, relation.id, "create")
            if main is not None:
                c.execute(t.mains.insert().values(**_main_values(relation.id, csn, main, self.database.now(c))))
            return relation, csn

    def reserve_id(self) -> int:
        """A relation id that is given out only once: files can be written before the relation exists."""
        with self.database.write() as c:
            return self._reserved(c)

    def _reserved(self, c: Connection) -> int:
        blank = t.relations.insert().values(
            name="", folded="", kind="", epoch=0, schema_version=0, created_csn=0, dropped_csn=0, properties="{}"
        )
        reserved = int(c.execute(blank).inserted_primary_key[0])  # type: ignore[index]
        c.execute(t.relations.delete().where(t.relations.c.id == reserved))
        return reserved

    def insert_relation(self, c: Connection, relation: Relation) -> None:
        """Add a relation with its first schema version, in a transaction that commits it."""
        refuse_weight(relation.schema)
        self._check_free(c, relation.name)
        created = relation.created_csn
        names = {"id": relation.id, "name": relation.name, "folded": fold(relation.name), "kind": relation.kind}
        versions = {"epoch": relation.epoch, "schema_version": relation.schema_version, "created_csn": created}
        texts = {"properties": json.dumps(dict(relation.properties)), "facts": json.dumps(dict(relation.facts))}
        c.execute(t.relations.insert().values(**names, **versions, **texts, location=relation.location))
        self._insert_schema(c, relation.id, 1, created, relation.name, relation.schema)

    def drop(self, name: str, unread: Collection[int] = ()) -> int:
        """Drop a relation, and the positions of tables (`unread`) that nothing reads then; return the CSN."""
        with self.database.write() as c:
            self.database.lock_clock(c)
            relation = self._require(c, name)
            fed = t.flows.c
            flow = c.execute(
                sa.select(fed.name).where((fed.relation_id == relation.id) | (fed.memory_id == relation.id))
            ).scalar()
            if flow is not None:
                raise InvalidStatement(f"table {relation.name}", f"flow {flow} writes it", "DROP FLOW first.")
            csn = self.ddl_commit(c, relation.id, "drop")
            c.execute(t.relations.update().where(t.relations.c.id == relation.id).values(dropped_csn=csn))
            c.execute(t.positions.delete().where(t.positions.c.relation_id.in_([relation.id, *unread])))
            return csn

    def rename(self, name: str, new_name: str) -> int:
        """Rename a relation; return the CSN from which it has the new name."""
        check_relation_name(new_name)
        with self.database.write() as c:
            self.database.lock_clock(c)
            relation = self._require(c, name)
            if fold(new_name) != fold(relation.name):
                self._check_free(c, new_name)
            csn = self.ddl_commit(c, relation.id, "rename")
            renamed = t.relations.update().where(t.relations.c.id == relation.id)
            c.execute(renamed.values(name=new_name, folded=fold(new_name)))
            self._new_schema(c, relation.id, relation.schema, csn)
            return csn

    def alter(self, name: str, change: Callable[[Schema], Schema]) -> int:
        """Give a relation a new schema version (columns appended or renamed, none moved); return its CSN."""
        with self.database.write() as c:
            self.database.lock_clock(c)
            relation = self._require(c, name)
            schema = change(relation.schema)
            refuse_weight(schema)
            csn = self.ddl_commit(c, relation.id, "alter")
            self._new_schema(c, relation.id, schema, csn)
            return csn

    def _new_schema(self, c: Connection, relation_id: int, schema: Schema, csn: int) -> int:
        """Add the next schema version, under the relation's present name; return its number."""
        r = t.relations.c
        row = c.execute(sa.select(r.name, r.schema_version).where(r.id == relation_id)).one()
        version: int = row.schema_version + 1
        self._insert_schema(c, relation_id, version, csn, row.name, schema)
        c.execute(t.relations.update().where(r.id == relation_id).values(schema_version=version))
        return version

    def _insert_schema(self, c: Connection, relation: int, version: int, csn: int, name: str, schema: Schema) -> None:
        values = {"relation_id": relation, "version": version, "csn": csn, "name": name, "folded": fold(name)}
        c.execute(t.schemas.insert().values(**values, body=schema.to_json()))

    def _require(self, c: Connection, name: str) -> Relation:
        found = self._find(c, name, None)
        if found is None:
            raise NotFound(f"table or view {name}", "not found", "SHOW TABLES lists what there is.")
        return found

    def require_free(self, name: str) -> None:
        """Raise AlreadyExists if a relation has the name."""
        with self.database.read() as c:
            self._check_free(c, name)

    def _check_free(self, c: Connection, name: str) -> None:
        if (taken := self._find(c, name, None)) is not None:
            raise AlreadyExists(
                f"{taken.kind} {taken.name}", "exists already", "Choose another name, drop it, or use IF NOT EXISTS."
            )

    def ddl_commit(self, c: Connection, relation_id: int, kind: str) -> int:
        """Add a commit without rows to a relation's history, in a transaction that holds the clock; return its CSN."""
        clock = self.database.clock(c)
        csn, now = next_csn(c, self.database, clock)
        c.execute(t.commits.insert().values(**asdict(Commit(relation_id, csn, clock.txsn, now, kind, 0))))
        return csn

    # -- main versions -------------------------------------------------------------------------

    def record_main(self, relation: Relation, seen: Main | None, new: Main, lease: Lease | None = None) -> bool:
        """Publish a checkpoint if main is still the one that it was computed from; return whether it was published.

        A lease, if given, must still be held: else vacuum may have taken the files for orphans.
        """
        with self.database.write() as c:
            self.database.lock_clock(c)
            if lease is not None:
                held = sa.select(t.leases.c.id).where(t.leases.c.id == lease.id, t.leases.c.owner == self._owner)
                if c.execute(held).first() is None:
                    return False
            row = relation_row(c, relation.id)
            if row is None or row.dropped_csn is not None or row.epoch != relation.epoch:
                return False
            if newest_main(c, relation.id) != seen:
                return False
            if seen is not None and seen.csn == new.csn:  # the same rows in other files
                c.execute(t.mains.delete().where(t.mains.c.relation_id == relation.id, t.mains.c.csn == seen.csn))
            c.execute(t.mains.insert().values(**_main_values(relation.id, new.csn, new, self.database.now(c))))
            return True

    def notice(
        self, relation: Relation, seen: Main, new: Main, *, rows: int, reset: bool, schema: Schema | None = None
    ) -> int | None:
        """Record a new version of an external table as a commit; its CSN, or None if another process was first.

        A reset (the table's history was rewritten) begins a new epoch: no delta leads from the old rows to the new.
        """
        with self.database.write() as c:
            clock = self.database.lock_clock(c)
            row = relation_row(c, relation.id)
            if row is None or row.dropped_csn is not None or newest_main(c, relation.id) != seen:
                return None
            csn, now = next_csn(c, self.database, clock)
            commit = Commit(relation.id, csn, clock.txsn, now, "reset" if reset else "data", rows)
            c.execute(t.commits.insert().values(**asdict(commit)))
            version = row.schema_version
            if schema is not None:
                version = self._new_schema(c, relation.id, schema, csn)
            if reset:
                c.execute(t.relations.update().where(t.relations.c.id == relation.id).values(epoch=relation.epoch + 1))
            else:
                between = (seen.delta_version, new.delta_version)
                reference = Segment(relation.id, csn, 0, rows, 0, version, versions=between)
                c.execute(t.segments.insert().values(**segment_values(reference, csn, 0)))
            main = Main(csn, new.delta_version, version, new.rows, new.size, new.fingerprint)
            c.execute(t.mains.insert().values(**_main_values(relation.id, csn, main, now)))
            return csn

    # -- vacuum --------------------------------------------------------------------------------

    def expire(self, retention: int, only: Collection[int] | None = None) -> tuple[int, list[int]]:
        """Remove versions that no snapshot, task or retention (µs) needs, of all relations or `only` of these.

        Return the new horizon, and the ids of dropped relations whose files can go. Of the history that nothing needs
        all is deleted, in transactions of bounded size, or with `only` as much as one of these deletes.
        """
        with self.database.write() as c:
            done = expire(c, self.database, self.database.lock_clock(c), retention, only)
        is_left = True
        while is_left:
            with self.database.write() as c:
                is_left = forget_history(c, self.database, self.database.lock_clock(c), retention) and only is None
        return done

    def forget(self, relation_ids: Sequence[int]) -> None:
        """Delete the rows of dropped relations, once their files are gone."""
        with self.database.write() as c:
            c.execute(t.relations.delete().where(t.relations.c.id.in_(list(relation_ids))))

    def leased_paths(self, relation_id: int) -> list[str]:
        """Folders of a relation that writers have leased; vacuum leaves them alone."""
        with self.database.read() as c:
            query = sa.select(t.leases.c.path).where(t.leases.c.relation_id == relation_id)
            return list(c.execute(query).scalars())


def _has_died(owner: str) -> bool:
    """Whether an owner was a process of this machine and container, and is gone; False if that cannot be known."""
    parts, space = owner.rsplit(":", 2), process_space()
    return bool(space) and len(parts) == 3 and parts[2].endswith(space) and is_gone(int(parts[1]))


def checkpoint_lease(relation_id: int) -> str:
    """The name of the lease under which a relation's segments are folded into main."""
    return f"checkpoint-{relation_id}"


def _main_values(relation_id: int, csn: int, main: Main, created_at: int) -> dict[str, object]:
    return {
        "relation_id": relation_id,
        "csn": csn,
        "delta_version": main.delta_version,
        "schema_version": main.schema_version,
        "rows": main.rows,
        "bytes": main.size,
        "fingerprint": main.fingerprint,
        "created_at": created_at,
    }
