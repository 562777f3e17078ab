"""INSERT, UPDATE, DELETE and MERGE inside a transaction.

Statements of literals, and of conditions that a lookup answers, run without Spark. Any other statement is one query
that Spark evaluates once, into files, which are then read with Arrow. Large results are never loaded whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from freshview.catalog.records import DataFile, Relation, RelationState
from freshview.errors import DuplicateKey, InvalidStatement, NotNullViolation
from freshview.relation.delta import DELETE, INSERT, UPSERT, first_duplicate, tag
from freshview.relation.ingest import check_required, is_number_store, store_number
from freshview.relation.schema import Column, Schema
from freshview.sql import dml
from freshview.sql.binding import BoundQuery, TableRef, bind
from freshview.sql.literals import NotLiteral, literal_rows, parse_expression, value
from freshview.sql.statements import Delete, Dml, Insert, Merge, Update
from freshview.storage.reader import LOCAL_ROWS
from freshview.storage.segments import fits_inline
from freshview.storage.store import Storage
from freshview.transactions.constraints import check_keys
from freshview.transactions.evaluated import (
    StatementResult,
    cast_to,
    has_null,
    keys_only,
    new_images,
    old_images,
    repeated_key,
    stored_keys,
)
from freshview.transactions.reading import ReadContext
from freshview.transactions.row_lookup import LookedUp, RowLookup
from freshview.transactions.transaction import Transaction

IN_MEMORY_ROWS = 500_000  # a statement's result up to this size is handled in one piece
_KEYS_IN_MEMORY = 10_000_000  # keys up to this many are checked on the driver

Frame = Any  # a Spark DataFrame, opaque to this module
Split = Callable[[pa.Table], tuple[pa.Table, pa.Table]]


class StatementEngine(Protocol):
    """The part of Spark that statements need."""

    def scan(self, state: RelationState) -> Frame: ...
    def frame(self, rows: pa.Table, schema: Schema) -> Frame: ...
    def numbered(self, rows: pa.Table, schema: Schema, number: str) -> Frame: ...
    def evaluated(self, frame: Frame, query: dml.RowQuery, what: str) -> Frame: ...
    def query(self, text: str, frames: dict[str, Frame], what: str) -> Frame: ...
    def stored(
        self, frame: Frame, targets: Sequence[tuple[str, Column]], table: str, keep: Sequence[str] = ...
    ) -> Frame: ...
    def assigned(
        self, frame: Frame, columns: Sequence[Column], schema: Schema, table: str, *, named: bool = ...
    ) -> Frame: ...
    def collect(self, frame: Frame, types: Sequence[pa.Field], what: str) -> pa.Table: ...
    def write(self, frame: Frame, relation_id: int, folder: str, what: str) -> tuple[DataFile, ...]: ...
    def arrow_fields(self, frame: Frame) -> list[pa.Field]: ...
    def frame_schema_names(self, frame: Frame) -> list[str]: ...
    def repeated_key(self, frames: Sequence[Frame], schema: Schema) -> dict[str, Any] | None: ...
    def read_files(self, relation_id: int, files: Sequence[DataFile], schema: Schema) -> Frame: ...


@dataclass
class Statements:
    """Runs writing statements for one transaction."""

    transaction: Transaction
    reading: ReadContext
    storage: Storage
    engine: Callable[[], StatementEngine]  # starts Spark when first called
    frame: Callable[[TableRef], Frame]  # the rows of a table or view as this transaction sees them
    expects: Callable[[Iterable[str]], None]  # called with the names that a statement reads, before Spark runs

    def run(self, statement: Dml) -> int:
        """Run one statement; return the number of rows affected."""
        match statement:
            case Insert():
                return self._insert(statement)
            case Update():
                return self._update(statement)
            case Delete():
                return self._delete(statement)
            case Merge():
                return self._merge(statement)

    @property
    def _lookup(self) -> RowLookup:
        return RowLookup(self.transaction, self.reading, self.storage.reader)

    # -- INSERT ------------------------------------------------------------------------------------

    def _insert(self, statement: Insert) -> int:
        relation = self.transaction.writable(statement.table)
        schema = relation.schema
        columns = _named(statement.columns, schema, relation.name) or schema.columns
        if not statement.by_name:
            try:
                rows = literal_rows(statement.query, columns)
                return self.transaction.apply(relation, None, schema.widened(rows))
            except NotLiteral:
                pass
        bound = self._bind(statement.query)
        frame = self._query(bound)
        if statement.by_name:
            columns = _named(self.engine().frame_schema_names(frame), schema, relation.name)
        frame = self.engine().assigned(frame, columns, schema, relation.name, named=statement.by_name)
        if not bound.tables and statement.query.lstrip()[:6].upper() == "VALUES":
            collected = self.engine().collect(frame, list(schema.arrow), relation.name)
            return self.transaction.apply(relation, None, collected)
        return self._insert_stored(relation, frame)

    def insert_frame(self, name: str, frame: Frame) -> int:
        """Insert the rows of a Spark DataFrame, columns by name; return their number."""
        relation = self.transaction.writable(name)
        return self._insert_stored(relation, self._by_name(relation, frame))

    def upsert_frame(self, name: str, frame: Frame) -> int:
        """Insert or replace rows by key from a Spark DataFrame, columns by name; return their number."""
        relation = self.transaction.writable(name)
        if not relation.schema.key:
            self.transaction.upsert_rows(name, [])  # raises the error for a table without a key
        staged = self._stage(relation, self._by_name(relation, frame), "delta")
        if staged.rows <= IN_MEMORY_ROWS:
            return self.transaction.upsert_rows(name, staged.take())
        self._check_stored(relation, staged.files, against_existing=False)
        return self.transaction.apply_files(relation, staged.files, UPSERT)

    def delete_frame(self, name: str, frame: Frame) -> int:
        """Delete rows by key from a Spark DataFrame of keys; return the number of keys."""
        relation = self.transaction.writable(name)
        key = Schema(tuple(relation.schema.column(k) for k in relation.schema.key) or relation.schema.columns)
        columns = _named(self.engine().frame_schema_names(frame), key, relation.name)
        keys = self.engine().assigned(frame, columns, key, relation.name)
        return self.transaction.delete_keys(name, self.engine().collect(keys, list(key.arrow), relation.name))

    def _by_name(self, relation: Relation, frame: Frame) -> Frame:
        columns = _named(self.engine().frame_schema_names(frame), relation.schema, relation.name)
        return self.engine().assigned(frame, columns, relation.schema, relation.name, named=True)

    def _insert_stored(self, relation: Relation, frame: Frame) -> int:
        staged = self._stage(relation, frame, "bulk")
        if fits_inline(staged.size):
            return self.transaction.apply(relation, None, staged.take())
        self._check_stored(relation, staged.files, against_existing=True)
        return self.transaction.apply_files(relation, staged.files, INSERT)

    def _check_stored(self, relation: Relation, files: Sequence[DataFile], *, against_existing: bool) -> None:
        """Check the constraints of rows in files: NOT NULL by the files' footers, keys by their columns."""
        schema, home = relation.schema, self.storage.layout.relation(relation.id)
        for name in schema.required:
            for file in files:
                if has_null(home / file.path, name):
                    raise NotNullViolation(
                        f"column {name} of {relation.name}", "a row has NULL", "The column is NOT NULL; give a value."
                    )
        if not schema.key:
            return
        state = self.transaction.state(relation)
        existing = against_existing and state.rows_at_most > 0
        rows, paths = sum(f.rows for f in files), [home / f.path for f in files]
        if existing and rows <= IN_MEMORY_ROWS:
            check_keys(self.storage.reader, state, None, schema.widened(stored_keys(paths, schema)))
            return
        if rows <= _KEYS_IN_MEMORY and not existing:
            repeated = repeated_key(paths, schema)
        else:
            frames = [self.engine().read_files(relation.id, files, schema)]
            repeated = self.engine().repeated_key(frames + ([self.engine().scan(state)] if existing else []), schema)
        if repeated is not None:
            key = ", ".join(f"{k}={v!r}" for k, v in repeated.items())
            raise DuplicateKey(
                f"table {relation.name}", f"key ({key}) would exist twice", "Give each key once, and only new ones."
            )

    # -- UPDATE and DELETE -------------------------------------------------------------------------

    def _update(self, statement: Update) -> int:
        relation = self.transaction.writable(statement.table)
        schema = relation.schema
        new_values = dml.set_positions(statement.assignments, schema)
        qualifier = statement.alias or statement.table
        found = self._lookup.where(relation, statement.where, qualifier)
        if found is not None and found.exact:
            try:
                constants = {i: value(parse_expression(e), schema.columns[i]) for i, e in new_values.items()}
                return self.transaction.apply(relation, found.rows, _with_constants(found.rows, constants, schema))
            except NotLiteral:
                pass
        if found is not None and found.rows.num_rows <= LOCAL_ROWS:
            query = dml.row_query(statement.assignments, schema, qualifier, found.rest)
            if query is not None:
                return self._run_on_rows(relation, found.rows, query, list(new_values))

        def split(rows: pa.Table) -> tuple[pa.Table, pa.Table]:
            old = old_images(rows, schema)
            new = [
                rows.column(dml.new_name(i)) if i in new_values else old.column(i) for i in range(len(schema.columns))
            ]
            return old, pa.table([cast_to(a, c) for a, c in zip(new, schema.columns, strict=True)], schema=schema.arrow)

        targets = [(dml.new_name(i), schema.columns[i]) for i in new_values]
        keys_kept = not {schema.names[i] for i in new_values} & set(schema.key)
        text = dml.update_query(statement, schema)
        return self._run_split(relation, found, text, targets, split, keys_kept=keys_kept)

    def _delete(self, statement: Delete) -> int:
        relation = self.transaction.writable(statement.table)
        schema = relation.schema
        qualifier = statement.alias or statement.table
        found = self._lookup.where(relation, statement.where, qualifier, keys=True)
        if found is not None and found.blind:
            return self.transaction.apply_blind(relation, found.rows)
        if found is not None and found.exact:
            return self.transaction.apply(relation, found.rows, None)
        if found is not None and found.rows.num_rows <= LOCAL_ROWS:
            query = dml.row_query((), schema, qualifier, found.rest)
            if query is not None:
                return self._run_on_rows(relation, found.rows, query, None)

        def split(rows: pa.Table) -> tuple[pa.Table, pa.Table]:
            return old_images(rows, schema), schema.arrow.empty_table()

        return self._run_split(relation, found, dml.delete_query(statement, schema), [], split, keys_kept=True)

    def _run_on_rows(self, relation: Relation, rows: pa.Table, query: dml.RowQuery, assigned: list[int] | None) -> int:
        """Evaluate the condition, and for UPDATE the new values, over rows in memory, without a Spark job."""
        schema = relation.schema
        used = query.mentioned(schema)
        part = Schema(tuple(schema.columns[i] for i in used))
        frame = self.engine().numbered(rows.select(used), part, dml.ROW_ID)
        frame = self.engine().evaluated(frame, query, f"statement on {relation.name}")
        targets = [(dml.new_name(i), schema.columns[i]) for i in assigned or ()]
        fields = self.engine().arrow_fields(frame)
        if not all(is_number_store(f.type, c) for f, (_, c) in zip(fields[1:], targets, strict=True)):
            frame = self.engine().stored(frame, targets, relation.name, keep=[dml.ROW_ID])
            fields = [fields[0], *(pa.field(n, c.type.arrow) for n, c in targets)]
        found = self.engine().collect(frame, fields, f"statement on {relation.name}")
        old = rows.take(found.column(0))
        if assigned is None:
            return self.transaction.apply(relation, old, None)
        values = {i: store_number(found.column(dml.new_name(i)), schema.columns[i], relation.name) for i in assigned}
        new = [values.get(i, old.column(i)) for i in range(len(schema.columns))]
        return self.transaction.apply(relation, old, pa.table(new, schema=schema.arrow))

    def _run_split(
        self,
        relation: Relation,
        found: LookedUp | None,
        text: str,
        targets: Sequence[tuple[str, Column]],
        split: Split,
        *,
        keys_kept: bool,
    ) -> int:
        """Evaluate an update or delete query over the rows found, or over the whole table, into files."""
        target = self._target(relation, found)
        frame = self._query(self._bind(text), target, what=f"statement on {relation.name}")
        old = [dml.old_name(i) for i in range(len(relation.schema.columns))]
        frame = self.engine().stored(frame, targets, relation.name, keep=old)
        return self._apply_split(relation, self._stage(relation, frame, "stage"), split, keys_kept=keys_kept)

    # -- MERGE -------------------------------------------------------------------------------------

    def _merge(self, statement: Merge) -> int:
        relation = self.transaction.writable(statement.table)
        schema = relation.schema
        bound = self._bind(dml.merge_query(statement, schema))
        found = self._lookup.source(relation, statement)
        frame = self._query(bound, self._target(relation, found), what=f"MERGE INTO {relation.name}")
        values = [dml.clause_values(statement, c, schema) for c in statement.clauses]
        targets = [(dml.new_name(i, k), schema.columns[i]) for k, v in enumerate(values) for i in v]
        keep = [dml.CLAUSE, dml.ROW_ID, *(dml.old_name(i) for i in range(len(schema.columns)))]
        staged = self._stage(relation, self.engine().stored(frame, targets, relation.name, keep=keep), "stage")
        self._check_cardinality(relation, staged, [k for k, c in enumerate(statement.clauses) if c.action != "insert"])

        def split(rows: pa.Table) -> tuple[pa.Table, pa.Table]:
            deletes, inserts = [], []
            for k, clause in enumerate(statement.clauses):
                part = rows.filter(pc.equal(rows.column(dml.CLAUSE), k))
                old = old_images(part, schema)
                if clause.action != "insert":
                    deletes.append(old)
                if clause.action != "delete":
                    blank = old if clause.action == "update" else None
                    inserts.append(new_images(part, blank, k, values[k], schema))
            empty = schema.arrow.empty_table()
            return pa.concat_tables([empty, *deletes]), pa.concat_tables([empty, *inserts])

        return self._apply_split(relation, staged, split, keys_kept=False)

    def _check_cardinality(self, relation: Relation, staged: StatementResult, clauses: list[int]) -> None:
        """Raise InvalidStatement if several source rows change one target row."""
        parts = [pq.read_table(p, columns=[dml.CLAUSE, dml.ROW_ID]) for p in staged.paths]
        if not parts:
            return
        rows = pa.concat_tables(parts)
        changed = rows.filter(pc.is_in(rows.column(dml.CLAUSE), pa.array(clauses, rows.schema.field(0).type)))
        if first_duplicate(changed.select([dml.ROW_ID])) is not None:
            raise InvalidStatement(
                f"MERGE INTO {relation.name}",
                "several source rows match one target row",
                "Make the ON condition or the source unique.",
            )

    # -- shared ------------------------------------------------------------------------------------

    def _bind(self, text: str) -> BoundQuery:
        return bind(text, lambda name: name == dml.TARGET or self.reading.knows(name))

    def _query(self, bound: BoundQuery, target: Frame = None, what: str = "") -> Frame:
        """The query as a frame; errors name `what`, or the user's own text."""
        self.expects(ref.name for ref in bound.tables.values())
        engine = self.engine()
        frames = {
            placeholder: target if ref.name == dml.TARGET else self.frame(ref)
            for placeholder, ref in bound.tables.items()
        }
        return engine.query(bound.text, frames, what or f"query {bound.original}")

    def _target(self, relation: Relation, found: LookedUp | None) -> Frame:
        """The rows that a statement may change: those found, or the whole table."""
        if found is not None:
            return self.engine().frame(found.rows, relation.schema)
        return self.engine().scan(self.transaction.state(relation))

    def _stage(self, relation: Relation, frame: Frame, kind: str) -> StatementResult:
        """Evaluate a frame, once, into a leased folder."""
        lease = self.transaction.lease_folder(relation, kind)
        files = self.engine().write(frame, relation.id, lease.path, f"statement on {relation.name}")
        home = self.storage.layout.relation(relation.id)
        return StatementResult(files, [home / f.path for f in files], relation.schema)

    def _apply_split(self, relation: Relation, staged: StatementResult, split: Split, *, keys_kept: bool) -> int:
        if staged.rows <= IN_MEMORY_ROWS:
            rows = staged.load()
            if rows is not None:
                self.transaction.apply(relation, *split(rows))
            return staged.rows
        schema, state = relation.schema, self.transaction.state(relation)
        stmtsn = self.transaction.next_stmtsn
        old_keys, new_keys = [], []

        def deltas() -> Iterator[pa.Table]:
            for batch in staged.batches():
                deletes, inserts = split(batch)
                check_required(inserts, schema, relation.name)
                if schema.key and not keys_kept:
                    old_keys.append(keys_only(deletes, schema))
                    new_keys.append(keys_only(inserts, schema))
                yield pa.concat_tables([tag(deletes, schema, DELETE, stmtsn), tag(inserts, schema, INSERT, stmtsn)])

        lease = self.transaction.lease_folder(relation, "delta")
        files = self.storage.write_parquet_batches(relation.id, lease.path, deltas(), schema.segment_arrow)
        if new_keys:
            check_keys(self.storage.reader, state, pa.concat_tables(old_keys), pa.concat_tables(new_keys))
        self.transaction.apply_files(relation, files, None)
        return staged.rows


def _named(names: Iterable[str], schema: Schema, table: str) -> tuple[Column, ...]:
    """The columns of these names; InvalidStatement if one is named twice."""
    columns = tuple(schema.column(n) for n in names)
    if len(set(columns)) < len(columns):
        raise InvalidStatement(f"table {table}", "a column is named twice", "Name each once.")
    return columns


def _with_constants(rows: pa.Table, constants: dict[int, Any], schema: Schema) -> pa.Table:
    arrays = [
        pa.array([constants[i]] * rows.num_rows, c.type.arrow) if i in constants else rows.column(i)
        for i, c in enumerate(schema.columns)
    ]
    return pa.table(arrays, schema=schema.arrow)
