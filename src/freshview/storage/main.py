"""Main: a Delta Lake table per relation, written and read through delta-rs.

Every version we commit carries an app transaction that tells the CSN up to which it is complete,
so that a version whose catalog commit was lost can be adopted or undone (law 11.2).
"""

from __future__ import annotations

import json
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, QueryBuilder, Transaction, write_deltalake
from deltalake import Schema as DeltaSchema
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction, create_table_with_add_actions

from freshview.catalog.records import DataFile, Main
from freshview.errors import CorruptWarehouse, StorageUnavailable
from freshview.relation.schema import Schema
from freshview.storage.files import Layout, check_present, fsync_path, storage_errors

APP_ID = "freshview"
_CACHED_TABLES = 64


def plain(table: object) -> pa.Table:
    """A delta-rs result as a pyarrow table without view types, which pyarrow cannot take from."""
    result = pa.table(table)
    fields = []
    for field in result.schema:
        type_ = field.type
        if pa.types.is_string_view(type_):
            type_ = pa.string()
        elif pa.types.is_binary_view(type_):
            type_ = pa.binary()
        fields.append(pa.field(field.name, type_))
    return result.cast(pa.schema(fields))


class MainStore:
    """The main tables of a warehouse."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._cache: OrderedDict[tuple[str, int], DeltaTable] = OrderedDict()
        self._lock = threading.Lock()

    def open(self, folder: Path | str, version: int) -> DeltaTable:
        """A version of a Delta table; versions do not change, so handles are kept."""
        key = (str(folder), version)
        with self._lock:
            if key in self._cache:
                self._cache.move_to_end(key)
                return self._cache[key]
        try:
            table = DeltaTable(str(folder), version=version)
        except (TableNotFoundError, DeltaError) as error:
            raise CorruptWarehouse(
                f"Delta table {folder}",
                f"version {version} cannot be opened ({_line(error)})",
                "Restore it from a backup.",
            ) from error
        with self._lock:
            self._cache[key] = table
            while len(self._cache) > _CACHED_TABLES:
                self._cache.popitem(last=False)
        return table

    def table(self, relation_id: int, version: int) -> DeltaTable:
        return self.open(self._layout.relation(relation_id), version)

    def latest_version(self, relation_id: int) -> int | None:
        """The newest Delta version in the folder, known to the catalog or not."""
        folder = self._layout.relation(relation_id)
        if not (folder / "_delta_log").is_dir():
            return None
        try:
            return DeltaTable(str(folder), without_files=True).version()
        except TableNotFoundError:
            return None

    def csn_of(self, relation_id: int, version: int) -> int | None:
        """The CSN that our app transaction gave to exactly this version; None if it is not ours."""
        path = self._layout.relation(relation_id) / "_delta_log" / f"{version:020d}.json"
        with storage_errors(f"Delta log of relation {relation_id}"):
            lines = path.read_text().splitlines()
        for action in map(json.loads, lines):
            if action.get("txn", {}).get("appId") == APP_ID:
                return int(action["txn"]["version"])
        return None

    def restore(self, relation_id: int, version: int) -> int:
        """Undo versions the catalog never saw; the number of the version that does so."""
        table = DeltaTable(str(self._layout.relation(relation_id)))
        table.restore(version)
        self._make_durable(relation_id, table.version())
        return table.version()

    def files(self, relation_id: int, version: int) -> tuple[DataFile, ...]:
        """The data files of a version."""
        actions = pa.table(self.table(relation_id, version).get_add_actions())
        columns = (actions.column(n).to_pylist() for n in ("path", "size_bytes", "num_records"))
        return tuple(DataFile(*entry) for entry in zip(*columns, strict=True))

    def present_files(self, relation_id: int, version: int, what: str) -> tuple[DataFile, ...]:
        """The same, after a look that all of them are there."""
        files = self.files(relation_id, version)
        check_present(files, self._layout.relation(relation_id), what)
        return files

    def query(self, relation_id: int, version: int, sql: str) -> pa.Table:
        """Run a delta-rs (DataFusion) query over a version, named t."""
        table = self.table(relation_id, version)
        try:
            return plain(QueryBuilder().register("t", table).execute(sql))
        except DeltaError as error:
            self.present_files(relation_id, version, f"relation {relation_id}")
            raise CorruptWarehouse(
                f"Delta table {table.table_uri}", f"cannot be read ({_line(error)})", "Restore it from a backup."
            ) from error

    def read(self, relation_id: int, version: int, columns: Sequence[str] | None = None) -> pa.Table:
        """All rows of a version on the driver, in file order."""
        folder = self._layout.relation(relation_id)
        files = self.present_files(relation_id, version, f"relation {relation_id}")
        return read_parquet(files, folder, columns)

    # -- new versions ------------------------------------------------------------------------------

    def adopt(self, relation_id: int, base: Main | None, files: Sequence[DataFile], schema: Schema, csn: int) -> Main:
        """Files already in the folder become part of main as they are."""
        return self._add(relation_id, base, files, schema, csn, "append")

    def replace(self, relation_id: int, base: Main | None, files: Sequence[DataFile], schema: Schema, csn: int) -> Main:
        """These files become all of main."""
        return self._add(relation_id, base, files, schema, csn, "overwrite")

    def _add(
        self, relation_id: int, base: Main | None, files: Sequence[DataFile], schema: Schema, csn: int, mode: str
    ) -> Main:
        folder = self._layout.relation(relation_id)
        actions = [
            AddAction(f.path, f.size, {}, int(time.time() * 1000), True, _statistics(folder / f.path, schema))
            for f in files
        ]
        with _writing(folder):
            if base is None:
                create_table_with_add_actions(
                    str(folder), delta_schema(schema), actions, mode="error", commit_properties=_properties(csn)
                )
            else:
                table = self._writable(relation_id, schema)
                table.create_write_transaction(
                    list[AddAction | RemoveAction](actions),
                    mode,
                    delta_schema(schema),
                    commit_properties=_properties(csn),
                )
        return self._committed(relation_id, csn)

    def append(self, relation_id: int, base: Main | None, rows: pa.Table, schema: Schema, csn: int) -> Main:
        """Rows with new keys go into a file of their own."""
        folder = self._layout.relation(relation_id)
        with _writing(folder):
            if base is None:
                write_deltalake(str(folder), rows, mode="error", commit_properties=_properties(csn))
            else:
                table = self._writable(relation_id, schema)
                write_deltalake(table, rows, mode="append", commit_properties=_properties(csn))
        return self._committed(relation_id, csn)

    def merge(self, relation_id: int, rows: pa.Table, live: pa.Array, schema: Schema, csn: int) -> Main:
        """Replace main's rows by key: one source row per key, put in place or only taken away."""
        folder = self._layout.relation(relation_id)
        source = rows.append_column("__live", live)
        predicate = " AND ".join(f"t.{_quoted(k)} = s.{_quoted(k)}" for k in schema.key)
        columns = {_quoted(n): f"s.{_quoted(n)}" for n in schema.names}
        with _writing(folder):
            merger = self._writable(relation_id, schema).merge(
                source, predicate, source_alias="s", target_alias="t", commit_properties=_properties(csn)
            )
            (
                merger.when_matched_update(columns, predicate="s.__live")
                .when_matched_delete(predicate="NOT s.__live")
                .when_not_matched_insert(columns, predicate="s.__live")
                .execute()
            )
        return self._committed(relation_id, csn)

    def _writable(self, relation_id: int, schema: Schema) -> DeltaTable:
        table = DeltaTable(str(self._layout.relation(relation_id)))
        known = {f.name for f in table.schema().fields}
        added = [f for f in delta_schema(schema).fields if f.name not in known]
        if added and len(known) + len(added) == len(schema.columns):
            table.alter.add_columns(added)
            table = DeltaTable(str(self._layout.relation(relation_id)))
        return table

    def _committed(self, relation_id: int, csn: int) -> Main:
        version = DeltaTable(str(self._layout.relation(relation_id)), without_files=True).version()
        self._make_durable(relation_id, version)
        files = self.files(relation_id, version)
        return Main(csn, version, 0, sum(f.rows for f in files), sum(f.size for f in files))

    def _make_durable(self, relation_id: int, version: int) -> None:
        """Data files and log entry reach the disk before the catalog tells of them."""
        folder = self._layout.relation(relation_id)
        for file in self.files(relation_id, version):
            fsync_path(folder / file.path)
        for entry in sorted((folder / "_delta_log").iterdir()):
            fsync_path(entry)
        for directory in (folder / "_delta_log", folder, folder.parent):
            fsync_path(directory)


def delta_schema(schema: Schema) -> DeltaSchema:
    return DeltaSchema.from_arrow(schema.arrow)


def read_parquet(files: Sequence[DataFile], folder: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Files as one table. Nested columns come in Parquet's field names; conform() casts them."""
    check_present(files, folder, f"folder {folder}")
    try:
        return pa.concat_tables(
            [
                pq.ParquetFile(folder / f.path).read(columns=list(columns) if columns is not None else None)
                for f in files
            ],
            promote_options="permissive",
        )
    except (pa.ArrowInvalid, OSError) as error:
        raise CorruptWarehouse(
            f"folder {folder}", f"a data file cannot be read ({_line(error)})", "Restore it from a backup."
        ) from error


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Failures of delta-rs while writing, in our words."""
    with storage_errors(f"folder {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except (DeltaError, OSError) as error:
        raise StorageUnavailable(
            f"Delta table {folder}", f"cannot be written ({_line(error)})", "Check the folder and try again."
        ) from error


def _properties(csn: int) -> CommitProperties:
    # No retries: a commit computed against one version must not land on another (law 11.2).
    return CommitProperties(app_transactions=[Transaction(APP_ID, csn)], max_commit_retries=0)


def _statistics(path: Path, schema: Schema) -> str:
    """Row count, and the range of integer and date keys, so that readers can skip files."""
    footer = pq.read_metadata(path)
    minimum: dict[str, object] = {}
    maximum: dict[str, object] = {}
    places = {footer.schema.column(i).path: i for i in range(footer.num_columns)}
    for name in schema.key:
        if schema.column(name).type.kind not in ("tinyint", "smallint", "int", "bigint", "date") or name not in places:
            continue
        groups = [footer.row_group(g).column(places[name]).statistics for g in range(footer.num_row_groups)]
        if groups and all(s is not None and s.has_min_max for s in groups):
            minimum[name] = min(s.min for s in groups)
            maximum[name] = max(s.max for s in groups)
    return json.dumps({"numRecords": footer.num_rows, "minValues": minimum, "maxValues": maximum}, default=str)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _line(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
