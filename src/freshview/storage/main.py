"""Main: a Delta Lake table per relation, written and read through delta-rs.

Every version that we commit carries app transactions with the CSN up to which it is complete, so that a version whose
catalog commit was lost can be adopted or undone (law 11.2). One holds the schema version, since columns may have been
renamed after that CSN.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from cachetools import LRUCache
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, QueryBuilder, Transaction
from deltalake import Schema as DeltaSchema
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, RemoveAction, create_table_with_add_actions

from freshview.catalog.records import DataFile, Main
from freshview.errors import CorruptWarehouse, StorageUnavailable, WriteConflict, first_line
from freshview.events import Events
from freshview.relation.schema import Schema
from freshview.relation.values import with_leaves
from freshview.storage.external import open_external
from freshview.storage.files import Layout, check_present, fsync_path, storage_errors

_CSN_STAMP = "freshview"  # app transactions: the CSN up to which a version is complete,
_SCHEMA_STAMP = "freshview.schema"  # the schema version it was written under,
_TIME_STAMP = "freshview.time"  # and the time of that CSN's commit: a catalog restored from a backup reuses CSNs
_CACHED_TABLES = 64
# No retries: a commit computed against one version must not land on another (law 11.2).
_SINGLE = CommitProperties(max_commit_retries=0)
# The catalog decides which versions are still needed, not the age of the log.
_HOOKS: dict[str, Any] = {"post_commithook_properties": PostCommitHookProperties(cleanup_expired_logs=False)}


def plain(table: object) -> pa.Table:
    """The table without Arrow's view types, which delta-rs makes and writes and pyarrow cannot take from."""
    result = pa.table(table)
    schema = pa.schema([pa.field(f.name, with_leaves(f.type, _without_view)) for f in result.schema])
    return result if result.schema.equals(schema) else result.cast(schema)


def _without_view(type_: pa.DataType) -> pa.DataType:
    if pa.types.is_string_view(type_):
        return pa.string()
    return pa.binary() if pa.types.is_binary_view(type_) else type_


@dataclass(frozen=True)
class NewMain:
    """The next version of a main table: complete up to a CSN, whose commit has that time, under a schema version."""

    relation_id: int
    base: Main | None
    schema: Schema
    schema_version: int
    csn: int
    moment: int


class MainStore:
    """The main tables of a warehouse."""

    def __init__(self, layout: Layout, events: Events) -> None:
        self._layout = layout
        self._events = events
        self._cache: LRUCache[tuple[str, int], DeltaTable] = LRUCache(_CACHED_TABLES)
        self._lock = threading.Lock()

    def open(self, folder: Path | str, version: int) -> DeltaTable:
        """The Delta table of a version. Main tables never change and are cached; external ones may be rewritten."""
        if not Path(folder).is_relative_to(self._layout.tables):
            return open_external(str(folder), version)
        key = (str(folder), version)
        with self._lock:
            if key in self._cache:
                return self._cache[key]
        table = _load(folder, version)
        with self._lock:
            self._cache[key] = table
        return table

    def table(self, relation_id: int, version: int) -> DeltaTable:
        return self.open(self._layout.relation(relation_id), version)

    def files(self, relation_id: int, version: int) -> tuple[DataFile, ...]:
        """The data files of a version that the catalog knows."""
        return _files(self.table(relation_id, version))

    def present_files(self, relation_id: int, version: int, what: str) -> tuple[DataFile, ...]:
        """The data files of a version, all of which are there in full size; else CorruptWarehouse."""
        files = self.files(relation_id, version)
        check_present(files, self._layout.relation(relation_id), what)
        return files

    def query(self, relation_id: int, version: int, sql: str) -> pa.Table:
        """Run a delta-rs (DataFusion) query over a version, which is named t in it; return the rows."""
        table = self.table(relation_id, version)
        try:
            return plain(QueryBuilder().register("t", table).execute(sql))
        except (DeltaError, pa.ArrowException, OSError) as error:
            self.present_files(relation_id, version, f"relation {relation_id}")
            raise CorruptWarehouse(
                f"Delta table {table.table_uri}", f"cannot be read ({first_line(error)})", "Restore it from a backup."
            ) from error

    def read(self, relation_id: int, version: int, columns: Sequence[str] | None = None) -> pa.Table:
        """All rows of a version on the driver, in file order."""
        folder = self._layout.relation(relation_id)
        files = self.present_files(relation_id, version, f"relation {relation_id}")
        return read_parquet(files, folder, columns)

    def read_file(self, relation_id: int, file: DataFile, columns: Sequence[str], most_texts: int) -> pa.Table:
        """Some columns of all rows of one file, as far as it has them, without columns of texts of more bytes.

        Texts come as numbers of different texts: so they take no more memory than their bytes in the file say, which
        its footer has. A column that is left out is not read.
        """
        folder = self._layout.relation(relation_id)
        check_present([file], folder, f"folder {folder}")
        path = folder / file.path
        with damage_errors(folder):
            with pq.ParquetFile(path) as opened:
                held = [f for f in opened.schema_arrow if f.name in columns]
                texts = [f.name for f in held if pa.types.is_string(f.type) or pa.types.is_string_view(f.type)]
                sizes = _sizes(opened.metadata)
            small = [f.name for f in held if f.name not in texts or sizes.get(f.name, 0) <= most_texts]
            with pq.ParquetFile(path, read_dictionary=[n for n in texts if n in small]) as opened:
                return plain(opened.read(columns=small))

    # -- versions that the catalog may not know ----------------------------------------------------

    def latest_version(self, relation_id: int) -> int | None:
        """The newest Delta version in the folder, known to the catalog or not, readable or not."""
        log = self._layout.relation(relation_id) / "_delta_log"
        if not log.is_dir():
            return None
        with storage_errors(f"folder {log}"):
            return max((int(p.stem) for p in log.glob("*.json") if p.stem.isdigit()), default=None)

    def recover(self, relation_id: int, version: int, moment: Callable[[int], int]) -> Main | None:
        """Make a version that the catalog does not know durable and return it; None if it cannot be adopted.

        `moment` returns the time at which a CSN was committed. If the version holds another time, its CSN belongs to
        a history that a restore of the catalog has undone.
        """
        stamps = self._stamps(relation_id, version)
        if not {_CSN_STAMP, _SCHEMA_STAMP, _TIME_STAMP} <= stamps.keys():
            return None
        if stamps[_TIME_STAMP] != moment(stamps[_CSN_STAMP]):
            return None
        try:
            files = self._make_durable(relation_id, version)
            check_present(files, self._layout.relation(relation_id), f"relation {relation_id}")
        except CorruptWarehouse:  # the machine lost power before the files reached the disk
            return None
        return _main(files, version, stamps[_SCHEMA_STAMP], stamps[_CSN_STAMP])

    def unknown_files(self, relation_id: int, version: int) -> tuple[DataFile, ...]:
        """The data files of a version that may wait to be adopted; empty if the version cannot be read."""
        try:
            return _files(_load(self._layout.relation(relation_id), version))
        except CorruptWarehouse:
            return ()

    def _stamps(self, relation_id: int, version: int) -> dict[str, int]:
        """The app transactions in the log entry of this version alone; empty if the entry is torn."""
        path = self._layout.relation(relation_id) / "_delta_log" / f"{version:020d}.json"
        with storage_errors(f"Delta log of relation {relation_id}"):
            text = path.read_text(encoding="utf-8")
        try:
            found = [json.loads(line).get("txn") for line in text.splitlines() if line.strip()]
        except ValueError:
            return {}
        return {txn["appId"]: int(txn["version"]) for txn in found if txn}

    def restore(self, relation_id: int, version: int) -> int:
        """Undo versions that the catalog never saw; return the number of the version that undoes them."""
        folder = self._layout.relation(relation_id)
        self._drop_torn_entries(folder, version)
        if self.latest_version(relation_id) == version:
            return version
        with _writing(folder):
            table = DeltaTable(str(folder))
            table.restore(version, protocol_downgrade_allowed=True, commit_properties=_SINGLE, **_HOOKS)
        self._make_durable(relation_id, table.version())
        return table.version()

    def _drop_torn_entries(self, folder: Path, after: int) -> None:
        """Remove log entries beyond a version that a power cut left unreadable; no reader ever saw them."""
        for entry in sorted((folder / "_delta_log").glob("*.json"), reverse=True):
            if not entry.stem.isdigit() or int(entry.stem) <= after:
                continue
            try:
                _load(folder, int(entry.stem))
                return
            except CorruptWarehouse:
                with storage_errors(f"folder {folder}"):
                    entry.unlink()

    # -- new versions ------------------------------------------------------------------------------

    def adopt(self, new: NewMain, files: Sequence[DataFile]) -> Main:
        """Add files that are already in the folder to main."""
        return self._add(new, files, "append")

    def replace(self, new: NewMain, files: Sequence[DataFile]) -> Main:
        """Make these files all of main."""
        return self._add(new, files, "overwrite")

    def _add(self, new: NewMain, files: Sequence[DataFile], mode: str) -> Main:
        folder = self._layout.relation(new.relation_id)
        schema = delta_schema(new.schema)
        with _writing(folder):
            now = int(time.time() * 1000)
            actions = [
                AddAction(f.path, f.size, {}, now, True, _statistics(folder / f.path, new.schema)) for f in files
            ]
            if new.base is None:  # the catalog never knew any version in the log
                self._drop_torn_entries(folder, -1)
                create_table_with_add_actions(
                    str(folder), schema, actions, mode="overwrite", commit_properties=_properties(new), **_HOOKS
                )
            else:
                table, added = self._writable(new, widen=mode == "append"), list[AddAction | RemoveAction](actions)
                table.create_write_transaction(added, mode, schema, commit_properties=_properties(new), **_HOOKS)
        return self._committed(new)

    def merge(self, new: NewMain, rows: pa.Table, live: pa.Array) -> Main:
        """Replace rows of main by key: each source row takes the old row's place or, if it is not live, removes it."""
        folder = self._layout.relation(new.relation_id)
        source = rows.append_column("__live", live)
        keys = [rows.column(p) for p in new.schema.key_positions]
        # Without NULLs among the source's keys, equality finds the same rows, and sooner.
        equals = "IS NOT DISTINCT FROM" if any(k.null_count for k in keys) else "="
        predicate = " AND ".join(f"(t.{quoted(k)} {equals} s.{quoted(k)})" for k in new.schema.key)
        columns = {quoted(n): f"s.{quoted(n)}" for n in new.schema.names}
        with _writing(folder):
            merger = self._writable(new, widen=True).merge(
                source, predicate, source_alias="s", target_alias="t", commit_properties=_properties(new), **_HOOKS
            )
            (
                merger.when_matched_update(columns, predicate="s.__live")
                .when_matched_delete(predicate="NOT s.__live")
                .when_not_matched_insert(columns, predicate="s.__live")
                .execute()
            )
        return self._committed(new)

    def _writable(self, new: NewMain, *, widen: bool) -> DeltaTable:
        """The table at the base of a new version, which must be the latest: actions fit no other (law 11.2)."""
        folder = str(self._layout.relation(new.relation_id))
        table = _latest(folder, new.base.delta_version if new.base else -1)
        known = {f.name for f in table.schema().fields}
        added = [f for f in delta_schema(new.schema).fields if f.name not in known]
        if added and widen:
            table.alter.add_columns(added, commit_properties=_SINGLE, **_HOOKS)
            self._events.emit("main.widened", relation_id=new.relation_id, version=table.version())
            table = _latest(folder, table.version())
        return table

    def _committed(self, new: NewMain) -> Main:
        version = self.latest_version(new.relation_id)
        assert version is not None
        self._events.emit("main.committed", relation_id=new.relation_id, version=version)
        files = self._make_durable(new.relation_id, version)
        return _main(files, version, new.schema_version, new.csn)

    def _make_durable(self, relation_id: int, version: int) -> tuple[DataFile, ...]:
        """Flush data files and log entries to the disk, before a catalog row names the version; return the files."""
        folder = self._layout.relation(relation_id)
        files = _files(_load(folder, version))
        with storage_errors(f"folder {folder}"):
            for file in files:
                fsync_path(folder / file.path)
            for entry in sorted((folder / "_delta_log").iterdir()):
                fsync_path(entry)
            for directory in (folder / "_delta_log", folder, folder.parent):
                fsync_path(directory)
        return files


def _load(folder: Path | str, version: int) -> DeltaTable:
    try:
        return DeltaTable(str(folder), version=version)
    except (DeltaError, OSError, ValueError) as error:
        raise CorruptWarehouse(
            f"Delta table {folder}",
            f"version {version} cannot be opened ({first_line(error)})",
            "Restore it from a backup.",
        ) from error


def _latest(folder: str, expected: int) -> DeltaTable:
    table = DeltaTable(folder)
    if table.version() != expected:
        raise WriteConflict(
            f"Delta table {folder}",
            f"version {table.version()} was written while version {expected} was being folded",
            "Run the checkpoint again.",
        )
    return table


def _files(table: DeltaTable) -> tuple[DataFile, ...]:
    actions = pa.table(table.get_add_actions())
    columns = (actions.column(n).to_pylist() for n in ("path", "size_bytes", "num_records"))
    return tuple(DataFile(*entry) for entry in zip(*columns, strict=True))


def _main(files: Sequence[DataFile], version: int, schema_version: int, csn: int) -> Main:
    return Main(csn, version, schema_version, sum(f.rows for f in files), sum(f.size for f in files))


def delta_schema(schema: Schema) -> DeltaSchema:
    return DeltaSchema.from_arrow(schema.arrow)


def _sizes(footer: pq.FileMetaData) -> dict[str, int]:
    """The bytes of each column of a file before compression."""
    sizes: dict[str, int] = {}
    for group in range(footer.num_row_groups):
        for place in range(footer.num_columns):
            column = footer.row_group(group).column(place)
            sizes[column.path_in_schema] = sizes.get(column.path_in_schema, 0) + column.total_uncompressed_size
    return sizes


def read_parquet(files: Sequence[DataFile], folder: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """The rows of files as one table. Nested columns have Parquet's field names; conform() casts them."""
    check_present(files, folder, f"folder {folder}")
    names = list(columns) if columns is not None else None
    with damage_errors(folder):
        parts = [plain(pq.ParquetFile(folder / f.path).read(columns=names)) for f in files]
        return pa.concat_tables(parts, promote_options="permissive")


@contextmanager
def damage_errors(folder: Path) -> Iterator[None]:
    """Raise Arrow's errors on a damaged file as CorruptWarehouse."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise CorruptWarehouse(
            f"folder {folder}", f"a data file cannot be read ({first_line(error)})", "Restore it from a backup."
        ) from error


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Raise failures of delta-rs while writing as FreshviewErrors."""
    with storage_errors(f"folder {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except CommitFailedError as error:
        raise WriteConflict(
            f"Delta table {folder}", "another process wrote a version meanwhile", "Run the checkpoint again."
        ) from error
    except (DeltaError, pa.ArrowException, OSError) as error:
        raise StorageUnavailable(
            f"Delta table {folder}", f"cannot be written ({first_line(error)})", "Check the folder and try again."
        ) from error


def _properties(new: NewMain) -> CommitProperties:
    stamps = {_CSN_STAMP: new.csn, _SCHEMA_STAMP: new.schema_version, _TIME_STAMP: new.moment}
    return CommitProperties(app_transactions=[Transaction(*s) for s in stamps.items()], max_commit_retries=0)


def _statistics(path: Path, schema: Schema) -> str:
    """Delta statistics of a file: row count, and the range of integer and date keys, by which readers skip files."""
    footer = pq.read_metadata(path)
    minimum: dict[str, object] = {}
    maximum: dict[str, object] = {}
    places = {footer.schema.column(i).path: i for i in range(footer.num_columns)}
    ranged = [k for k in schema.key if schema.column(k).type.kind in ("tinyint", "smallint", "int", "bigint", "date")]
    for name in ranged:
        if name not in places or "." in name:  # the path of a field of a struct has a dot too
            continue
        groups = [footer.row_group(g).column(places[name]).statistics for g in range(footer.num_row_groups)]
        if groups and all(s is not None and s.has_min_max for s in groups):
            with suppress(OverflowError, ValueError):  # Python has no date beyond the year 9999
                minimum[name], maximum[name] = min(s.min for s in groups), max(s.max for s in groups)
    return json.dumps({"numRecords": footer.num_rows, "minValues": minimum, "maxValues": maximum}, default=str)


def quoted(name: str) -> str:
    """A name as an identifier of DataFusion, which reads Delta tables on the driver."""
    return '"' + name.replace('"', '""') + '"'
