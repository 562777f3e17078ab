"""External Delta tables: somebody else writes them, we read their versions and what changed between."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from freshview.catalog.records import Main, Relation
from freshview.errors import FreshviewError, InvalidStatement, NotFound, SnapshotExpired
from freshview.relation.delta import DELETE, INSERT, overlay, tag
from freshview.relation.schema import Column, Schema
from freshview.relation.types import from_arrow
from freshview.storage.main import plain

_UNREADABLE = {"deletionVectors": "deletion vectors", "columnMapping": "column mapping", "v2Checkpoint": ""}


def open_external(location: str, version: int | None = None) -> DeltaTable:
    """The newest (or a given) version of an external table, if we can read it exactly."""
    try:
        table = DeltaTable(location, version=version)
    except TableNotFoundError as error:
        raise NotFound(f"Delta table {location}", "there is none at that location", "Check LOCATION.") from error
    except (DeltaError, OSError, ValueError) as error:
        raise NotFound(
            f"Delta table {location}", str(error).splitlines()[0], "Check LOCATION and its rights."
        ) from error
    protocol = table.protocol()
    features = set(protocol.reader_features or ())
    lacking = sorted(_UNREADABLE[f] for f in features if _UNREADABLE.get(f))
    if not lacking and "delta.columnMapping.mode" in table.metadata().configuration:
        mode = table.metadata().configuration["delta.columnMapping.mode"]
        lacking = ["column mapping"] if mode not in ("none", "") else []
    if lacking:
        raise InvalidStatement(
            f"Delta table {location}",
            f"it uses {' and '.join(lacking)}, which is not supported",
            "Disable the feature on the table (and purge it), or copy the table.",
        )
    return table


def external_schema(table: DeltaTable, key: tuple[str, ...]) -> Schema:
    arrow = pa.schema(table.schema())
    columns = tuple(Column(f.name, from_arrow(f.type), f.nullable) for f in arrow)
    return Schema(columns, key)


def describe(table: DeltaTable) -> Main:
    """A version as the catalog will remember it (its CSN and schema version are the catalog's)."""
    actions = pa.table(table.get_add_actions())
    counts = actions.column("num_records").to_pylist()
    rows = sum(c for c in counts if c is not None) if None not in counts else _count(table)
    return Main(0, table.version(), 0, rows, sum(actions.column("size_bytes").to_pylist()), fingerprint(table))


def _count(table: DeltaTable) -> int:
    return sum(pq.read_metadata(_path(uri)).num_rows for uri in table.file_uris())


def fingerprint(table: DeltaTable) -> str:
    """What tells one history from another: the table's id and the last commit as it was written."""
    commit = _commit_text(table, table.version())
    digest = hashlib.sha256(commit.encode()).hexdigest() if commit is not None else ""
    return f"{table.metadata().id}:{digest}"


def _commit_text(table: DeltaTable, version: int) -> str | None:
    path = _path(table.table_uri) / "_delta_log" / f"{version:020d}.json"
    try:
        return path.read_text()
    except OSError:
        return None


def _path(uri: str) -> Path:
    return Path(unquote(uri.removeprefix("file://"))) if uri.startswith("file://") else Path(uri)


def is_continued(seen: Main, newest: DeltaTable) -> bool:
    """Does the table's history still contain the version that we saw last, unchanged?"""
    if newest.version() < seen.delta_version:
        return False
    table_id, digest = (seen.fingerprint or ":").split(":", 1)
    if str(newest.metadata().id) != table_id:
        return False
    commit = _commit_text(newest, seen.delta_version)
    if commit is not None:
        return hashlib.sha256(commit.encode()).hexdigest() == digest
    return False  # cleaned from the log: we cannot tell what happened since


def changed_file_count(seen: Main, newest: DeltaTable) -> int | None:
    """How many data files differ from the version seen last; None if the log no longer tells."""
    try:
        change = changed_files(newest, seen.delta_version, newest.version())
    except SnapshotExpired:
        return None
    return len(change.added) + len(change.removed)


@dataclass(frozen=True)
class FileChange:
    """Data files that came and went between two versions, by path, with partition values."""

    added: dict[str, dict[str, str | None]]
    removed: dict[str, dict[str, str | None]]


def changed_files(table: DeltaTable, after: int, upto: int) -> FileChange:
    """Net file changes of versions (after, upto]; rearrangements (dataChange=false) do not count."""
    added: dict[str, dict[str, str | None]] = {}
    removed: dict[str, dict[str, str | None]] = {}
    moved: dict[str, dict[str, str | None]] = {}  # added by a rearrangement: holds no new rows
    for version in range(after + 1, upto + 1):
        commit = _commit_text(table, version)
        if commit is None:
            raise SnapshotExpired(f"Delta table {table.table_uri}", f"commit {version} is gone from its log", "")
        for action in map(json.loads, commit.splitlines()):
            if "add" in action:
                path, values = action["add"]["path"], action["add"].get("partitionValues") or {}
                if not action["add"].get("dataChange", True):
                    moved[path] = values
                elif path in removed:
                    del removed[path]
                else:
                    added[path] = values
            elif "remove" in action:
                path, values = action["remove"]["path"], action["remove"].get("partitionValues") or {}
                if not action["remove"].get("dataChange", True):
                    if path in added or path in moved:  # its rows live on in rearranged files
                        return _by_file_sets(table, after, upto)
                elif path in added:
                    del added[path]
                elif path in moved:
                    return _by_file_sets(table, after, upto)
                else:
                    removed[path] = values
    return FileChange(added, removed)


def _by_file_sets(table: DeltaTable, after: int, upto: int) -> FileChange:
    """When rearranged files are changed again: all files that differ, whose equal rows cancel."""
    old = _listing(DeltaTable(table.table_uri, version=after))
    new = _listing(DeltaTable(table.table_uri, version=upto))
    return FileChange({p: v for p, v in new.items() if p not in old}, {p: v for p, v in old.items() if p not in new})


def _listing(table: DeltaTable) -> dict[str, dict[str, str | None]]:
    actions = pa.table(table.get_add_actions())
    names = table.metadata().partition_columns
    listing: dict[str, dict[str, str | None]] = {}
    for row in actions.to_pylist():
        partition = row.get("partition") or row.get("partition_values") or {}
        listing[row["path"]] = {n: _text(partition.get(n)) for n in names}
    return listing


def _text(value: object) -> str | None:
    if value is None:
        return None
    return str(value).lower() if isinstance(value, bool) else str(value)


def partition_groups(table: DeltaTable, schema: Schema) -> Iterator[tuple[dict[str, str | None], list[str]]]:
    """Files of a version, grouped by partition values, with absolute paths."""
    root = _path(table.table_uri)
    groups: dict[tuple[tuple[str, str | None], ...], list[str]] = {}
    for path, values in _listing(table).items():
        groups.setdefault(tuple(values.items()), []).append(str(root / unquote(path)))
    for values_key, paths in groups.items():
        yield {schema.column(n).name: v for n, v in values_key}, paths


def changes(relation: Relation, after: int, upto: int) -> pa.Table:
    """The delta rows between two versions: from the change data feed, else from changed files.

    As bags both are exact; rows that were only rewritten cancel.
    """
    assert relation.location is not None
    table = open_external(relation.location, upto)
    bag = Schema(relation.schema.columns)
    config = table.metadata().configuration
    if config.get("delta.enableChangeDataFeed") == "true":
        try:
            return _from_feed(table, bag, after, upto)
        except (DeltaError, FreshviewError, OSError):
            pass  # the feed was enabled later, or its files are gone: the data files still tell
    return _from_files(table, bag, after, upto)


def _from_feed(table: DeltaTable, bag: Schema, after: int, upto: int) -> pa.Table:
    feed = plain(table.load_cdf(starting_version=after + 1, ending_version=upto))
    feed = feed.sort_by([("_commit_version", "ascending")])
    kinds = feed.column("_change_type").to_pylist()
    rows = bag.conform(feed.select(list(bag.names)))
    old = [i for i, k in enumerate(kinds) if k in ("delete", "update_preimage")]
    new = [i for i, k in enumerate(kinds) if k in ("insert", "update_postimage")]
    return _net(rows.take(old), rows.take(new), bag)


def _from_files(table: DeltaTable, bag: Schema, after: int, upto: int) -> pa.Table:
    change = changed_files(table, after, upto)
    return _net(_rows(table, change.removed, bag), _rows(table, change.added, bag), bag)


def _net(old: pa.Table, new: pa.Table, bag: Schema) -> pa.Table:
    return overlay([tag(old, bag, DELETE, 1), tag(new, bag, INSERT, 1)], bag).rows


def _rows(table: DeltaTable, files: dict[str, dict[str, str | None]], bag: Schema) -> pa.Table:
    root = _path(table.table_uri)
    parts = [bag.arrow.empty_table()]
    for path, values in files.items():
        try:
            stored = pq.ParquetFile(root / unquote(path)).read()
        except (OSError, pa.ArrowInvalid) as error:
            raise SnapshotExpired(f"Delta table {root}", f"file {path} is gone", "") from error
        arrays = []
        for column in bag.columns:
            if column.name in values:
                value = pa.array([values[column.name]] * stored.num_rows, pa.string())
                arrays.append(value.cast(column.type.arrow))
            elif column.name in stored.column_names:
                arrays.append(stored.column(column.name).cast(column.type.arrow))
            else:
                arrays.append(pa.nulls(stored.num_rows, column.type.arrow))
        parts.append(pa.table(arrays, schema=bag.arrow))
    return pa.concat_tables(parts)
