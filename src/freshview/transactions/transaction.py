"""A transaction: a snapshot, its own writes on top, and one commit that makes them all visible at once.

Nothing here needs Spark. Statements arrive as delta rows (Arrow) or as files that were written under a lease;
`transactions/dml.py` turns SQL into those.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import pyarrow as pa

from freshview.catalog.commits import CommitRequest, Committed
from freshview.catalog.frontiers import Outdated
from freshview.catalog.positions import Move
from freshview.catalog.records import FLOW, DataFile, Lease, Relation, RelationState, Segment
from freshview.catalog.writer import Catalog
from freshview.errors import CatalogUnavailable, InvalidStatement, TransactionClosed
from freshview.events import Events
from freshview.relation.delta import DELETE, DELETE_KEY, INSERT, UPSERT, key_table, tag, untag
from freshview.relation.ingest import Data, check_required, to_table
from freshview.relation.schema import Schema, fold, require_text
from freshview.storage.segments import fits_inline, in_files, in_memory, inline
from freshview.storage.store import Storage
from freshview.transactions.company import Company
from freshview.transactions.conflicts import check_conflicts
from freshview.transactions.constraints import check_statement, check_unique

_YOUNG_SECONDS = 0.05  # age up to which a transaction checks conflicts only under the lock


@dataclass(frozen=True)
class Outcome:
    """The result of a statement: rows written, and the CSN once it is committed.

    >>> freshview.Outcome(rows=2, csn=7).rows
    2
    """

    rows: int
    csn: int | None = None


class Transaction:
    """Snapshot isolation over all tables of a warehouse. Used by one thread at a time."""

    def __init__(
        self,
        catalog: Catalog,
        storage: Storage,
        events: Events,
        company: Callable[[Transaction], Company] | None = None,
    ) -> None:
        self._catalog = catalog
        self._storage = storage
        self._events = events
        self._pin = catalog.begin()
        self._begun = time.monotonic()
        self._relations: dict[int, Relation] = {}
        self._pending: dict[int, list[Segment]] = {}
        self._leases: list[Lease] = []
        self._created: dict[str, Relation] = {}
        self._moves: list[Move] = []
        self._stmtsn = 0
        self._open = True
        self.csn: int | None = None
        self.flow: str | None = None  # the flow whose memory this transaction may write
        self.company = company(self) if company is not None else None

    @property
    def txsn(self) -> int:
        """The transaction's sequence number."""
        return self._pin.txsn

    @property
    def snapshot(self) -> int:
        """The CSN that reads see, before the transaction's own writes."""
        return self._pin.csn

    @property
    def is_open(self) -> bool:
        return self._open

    @property
    def loaded(self) -> list[Relation]:
        """The relations for which this transaction wrote files of plain inserted rows."""
        return [self._relations[i] for i, parts in self._pending.items() if any(s.action == INSERT for s in parts)]

    @property
    def written(self) -> set[int]:
        """Ids of the relations that this transaction has written."""
        return set(self._pending)

    @property
    def own(self) -> dict[int, tuple[Segment, ...]]:
        """The segments that this transaction has written so far, by relation id, in the order of statements."""
        return {i: tuple(parts) for i, parts in self._pending.items()}

    @property
    def stmtsn(self) -> int:
        """The number of the last statement."""
        return self._stmtsn

    # -- reading -----------------------------------------------------------------------------------

    def relation(self, name: str) -> Relation:
        """The relation of that name in this transaction's snapshot."""
        self._require_open()
        require_text(name)
        return self._created.get(fold(name)) or self._catalog.relation(name, self._pin.csn)

    def state(self, relation: Relation) -> RelationState:
        """The relation as this transaction sees it: its snapshot ⊕ own earlier statements."""
        self._require_open()
        if fold(relation.name) in self._created:
            state = self._bare_state(relation)
        else:
            state = self._catalog.state(relation, self._pin.csn)
        return replace(state, segments=state.segments + tuple(self._pending.get(relation.id, ())))

    def create(
        self,
        name: str,
        schema: Schema,
        properties: Mapping[str, str],
        kind: str = "table",
        facts: Mapping[str, str] | None = None,
    ) -> Relation:
        """Create a table that becomes visible with this transaction's commit, and with the rows written to it."""
        self._require_open()
        self._catalog.require_free(name)
        number, given = self._catalog.reserve_id(), (dict(properties), dict(facts or {}))
        relation = Relation(number, name, kind, 1, 1, schema, self._pin.csn, None, *given)
        self._created[fold(name)] = relation
        self._relations[relation.id] = relation
        self._pending[relation.id] = []
        self.lease_folder(relation, "new")
        return relation

    # -- writing -----------------------------------------------------------------------------------

    def insert_rows(self, name: str, data: Data) -> int:
        """Insert rows and return their number; DuplicateKey if a key exists."""
        relation = self.writable(name)
        rows = to_table(data, relation.schema, relation.name)
        return self.apply(relation, None, rows)

    def upsert_rows(self, name: str, data: Data) -> int:
        """Insert or replace rows by key, without reading the old ones; return their number."""
        relation = self._keyed(name, "upsert")
        rows = to_table(data, relation.schema, relation.name)
        check_required(rows, relation.schema, relation.name)
        check_unique(rows, key_table(rows, relation.schema), self._bare_state(relation))
        self._record(relation, tag(rows, relation.schema, UPSERT, self._next_statement()))
        return int(rows.num_rows)

    def delete_keys(self, name: str, keys: Data) -> int:
        """Delete rows by key, without reading them; return the number of keys. Unknown keys are no error."""
        relation = self._keyed(name, "delete")
        schema = relation.schema
        if len(schema.key) == 1 and isinstance(keys, list | tuple | set | frozenset | range):
            keys = [key if isinstance(key, Mapping) else {schema.key[0]: key} for key in keys]
        given = to_table(keys, schema, relation.name, only=schema.key)
        check_required(given, schema, relation.name, schema.key)
        return self.apply_blind(relation, schema.widened(given.rename_columns(list(schema.key))))

    def apply_blind(self, relation: Relation, rows: pa.Table) -> int:
        """Add a statement that deletes rows by their keys; other columns are not read. Return the number of keys."""
        self._require_open()
        self._record(relation, tag(rows, relation.schema, DELETE_KEY, self._next_statement()))
        return int(rows.num_rows)

    def apply(self, relation: Relation, deletes: pa.Table | None, inserts: pa.Table | None) -> int:
        """Add a statement by its full old and new images, after a check of constraints; return the rows affected."""
        self._require_open()
        inserts = inserts if inserts is not None else relation.schema.arrow.empty_table()
        checked = self.state(relation) if relation.schema.key and inserts.num_rows else self._bare_state(relation)
        check_statement(self._storage.reader, checked, deletes, inserts)
        stmtsn = self._next_statement()
        parts = [tag(inserts, relation.schema, INSERT, stmtsn)]
        if deletes is not None and deletes.num_rows:
            parts.insert(0, tag(deletes, relation.schema, DELETE, stmtsn))
        self._record(relation, pa.concat_tables(parts))
        return int(max(inserts.num_rows, deletes.num_rows if deletes is not None else 0))

    def apply_delta(self, relation: Relation, delta: pa.Table) -> int:
        """Add delta rows that keep a dimension view, in the statement `next_stmtsn`; return their number.

        Their keys were not checked: they follow from the changes of the source.
        """
        self._require_open()
        self._next_statement()
        if delta.num_rows:
            self._record(relation, delta)
        return int(delta.num_rows)

    def move_position(self, to: Move) -> None:
        """Store a source's position with this transaction's commit: both happen, or neither."""
        self._require_open()
        self._moves.append(to)

    def lease_folder(self, relation: Relation, kind: str) -> Lease:
        """Lease a folder of the relation for segment files of this transaction."""
        folder = self._storage.layout.new_folder(kind)
        lease = self._catalog.lease(relation.id, folder)
        assert lease is not None
        self._leases.append(lease)
        return lease

    def apply_files(self, relation: Relation, files: Sequence[DataFile], action: int | None) -> int:
        """Add a statement whose delta rows lie in leased files and meet the constraints; return their number."""
        self._require_open()
        stmtsn = self._next_statement()
        segment = in_files(relation.id, files, relation.schema_version, stmtsn=stmtsn, action=action)
        if files:
            self._add(relation, segment)
        return segment.rows

    def writable(self, name: str) -> Relation:
        """The relation of that name; InvalidStatement if statements may not write it."""
        relation = self.relation(name)
        if relation.kind != "table":
            external = "Write to the external table with its own tools."
            remedy = external if relation.is_external else "Write to its base tables."
            raise InvalidStatement(f"{relation.kind} {relation.name}", "is read-only here", remedy)
        flow = relation.facts.get(FLOW)
        if flow not in (None, self.flow):
            raise InvalidStatement(
                f"table {relation.name}",
                f"is what flow {flow} remembers of its changes, and written by the flow alone",
                f"Write to the table that it feeds; REFRESH FLOW {flow} FULL reads its source anew.",
            )
        return relation

    @property
    def next_stmtsn(self) -> int:
        return self._stmtsn + 1

    # -- ending ------------------------------------------------------------------------------------

    def commit(self) -> int:
        """Make all statements visible at once; return the CSN."""
        self._require_open()
        segments = [s for parts in self._pending.values() for s in parts]
        if not segments and not self._created:
            self.rollback()
            if self._moves:
                self._catalog.move(self._moves)
            self.csn = self._pin.csn
            return self.csn
        try:
            relations = tuple(self._relations.values())
            final = tuple(s for r in relations for s in self._packed(r))
            checked_to = self._check_conflicts(relations, final)
            leases = tuple(lease.id for lease in self._leases)
            created = frozenset(r.id for r in self._created.values())
            request = CommitRequest(self._pin, relations, final, leases, checked_to, created, moves=tuple(self._moves))
            self._events.emit("commit.prepared", txsn=self.txsn)
            self.csn = self._commit(request)
        except BaseException:
            self.rollback()
            raise
        self._open = False
        self._end_company()
        self._discard_staged(final)
        self._events.emit("commit.done", txsn=self.txsn, csn=self.csn)
        return self.csn

    def _commit(self, request: CommitRequest) -> int:
        """Commit in the catalog; if the catalog's answer got lost, ask whether the commit happened."""
        try:
            return self._committed(request)
        except CatalogUnavailable:
            done = self._catalog.committed(self.txsn, [r.id for r in request.relations])
            if done is None:
                raise
            return done

    def _committed(self, request: CommitRequest) -> int:
        """Commit, with the changes of views that belong to it; again while an eager view is not as of the commit."""
        company = self.company
        while True:
            views = company.changes() if company is not None else ()
            try:
                done = self._published(replace(request, views=views))
            except Outdated as outdated:
                if company is None:
                    raise
                company.renew(outdated.view_ids)
                continue
            if company is not None:
                company.published(done.views)
            return done.csn

    def _published(self, request: CommitRequest) -> Committed:
        """Make a request visible, if no other transaction wrote the same rows since its first check."""
        with self._catalog.committing(request) as commit:
            check_conflicts(self._storage.reader, request.relations, request.segments, commit.others)
            return commit.publish()

    def _discard_staged(self, kept: tuple[Segment, ...]) -> None:
        """Remove leased folders that hold no committed files."""
        used = {(s.relation_id, f.path.split("/")[0]) for s in kept for f in s.files}
        for lease in self._leases:
            if (lease.relation_id, lease.path) not in used:
                self._storage.discard(lease.relation_id, lease.path)

    def _check_conflicts(self, relations: tuple[Relation, ...], own: tuple[Segment, ...]) -> int:
        """Check conflicts before the catalog is locked; return the CSN up to which they are checked.

        A young transaction has little to check: it does so under the lock, which saves a query.
        """
        if time.monotonic() - self._begun < _YOUNG_SECONDS:
            return self._pin.csn
        newest = self._catalog.snapshot()
        if newest > self._pin.csn:
            others = self._catalog.segments([r.id for r in relations], self._pin.csn, newest)
            self._catalog.require_unchanged(relations)  # so that all of them have our columns
            check_conflicts(self._storage.reader, relations, own, others)
        return newest

    def _packed(self, relation: Relation) -> list[Segment]:
        """The relation's pending segments as they will be stored: neighbouring ones in memory become one."""
        packed: list[Segment] = []
        run: list[pa.Table] = []

        def flush() -> None:
            if run:
                packed.append(self._stored(relation, pa.concat_tables(run)))
                run.clear()

        for segment in self._pending[relation.id]:
            if segment.rows_in_memory is not None:
                run.append(segment.rows_in_memory)
            else:
                flush()
                packed.append(segment)
        flush()
        return packed

    def _stored(self, relation: Relation, rows: pa.Table) -> Segment:
        """A segment of this transaction's rows, inline or, if the rows are large together, in a file."""
        if fits_inline(rows.nbytes):
            return inline(relation.id, rows, relation.schema_version)
        lease = self.lease_folder(relation, "delta")
        files = self._storage.write_parquet(relation.id, lease.path, rows)
        return in_files(relation.id, files, relation.schema_version)

    def rollback(self) -> None:
        """Discard all statements, and their files.

        Only files whose lease is still held are removed: a commit may have happened although its answer got lost. If
        the catalog cannot be reached, pin and leases expire, and vacuum removes the files.
        """
        if not self._open:
            return
        self._open = False
        self._end_company()
        self._pending.clear()
        with suppress(CatalogUnavailable):
            self._catalog.release(self._pin)
            held = self._catalog.drop_leases([lease.id for lease in self._leases]) if self._leases else set()
            for lease in self._leases:
                if lease.id in held:
                    self._storage.discard(lease.relation_id, lease.path)

    def _end_company(self) -> None:
        if self.company is not None:
            with suppress(CatalogUnavailable):
                self.company.end()

    # -- inner workings ----------------------------------------------------------------------------

    def _record(self, relation: Relation, delta: pa.Table) -> None:
        if not fits_inline(delta.nbytes):
            self._spill(relation, delta)
        elif (segment := in_memory(relation.id, delta.combine_chunks(), relation.schema_version)) is not None:
            self._add(relation, segment)

    def _add(self, relation: Relation, segment: Segment) -> None:
        self._relations[relation.id] = relation
        self._pending.setdefault(relation.id, []).append(segment)

    def _spill(self, relation: Relation, delta: pa.Table) -> None:
        """Write a large statement to a file; rows of one action are stored plain, so that main can adopt the file."""
        stmtsn = self._stmtsn
        distinct = delta.column("_action").unique().to_pylist()
        action = distinct[0] if len(distinct) == 1 else None
        lease = self.lease_folder(relation, "bulk" if action == INSERT else "delta")
        rows = untag(delta) if action is not None else delta
        files = self._storage.write_parquet(relation.id, lease.path, rows)
        self._stmtsn = stmtsn - 1  # apply_files counts the statement again
        self.apply_files(relation, files, action)

    def _next_statement(self) -> int:
        self._stmtsn += 1
        return self._stmtsn

    def _keyed(self, name: str, verb: str) -> Relation:
        relation = self.writable(name)
        if not relation.schema.key:
            raise InvalidStatement(
                f"{verb} by key on {relation.name}",
                "the table has no primary key",
                "Use SQL INSERT, UPDATE or DELETE, or create the table with a PRIMARY KEY.",
            )
        return relation

    def _bare_state(self, relation: Relation) -> RelationState:
        """An empty state of the relation, made without reading the catalog."""
        return RelationState(relation, self._pin.csn, None, None, ())

    def _require_open(self) -> None:
        if not self._open:
            ended = "committed" if self.csn is not None else "rolled back"
            raise TransactionClosed(f"transaction {self.txsn}", f"it was {ended}", "Begin a new one.")
