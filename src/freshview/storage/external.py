"""External Delta tables, which other tools write: opening a version, and what is noted of one that was seen."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from freshview.catalog.records import Main, Relation
from freshview.errors import InvalidStatement, NotFound, SnapshotExpired, TypeMismatch, first_line
from freshview.relation.schema import Column, Schema
from freshview.relation.types import from_arrow
from freshview.storage.files import check_location

# Reader features under which the rows of a version are still the rows of its files.
_READABLE = {"timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"}
_FEATURES = {"deletionVectors": "deletion vectors", "columnMapping": "column mapping"}

PartitionValues = dict[str, str | None]


def open_external(location: str, version: int | None = None) -> DeltaTable:
    """The newest (or a given) version of an external table, if it can be read exactly; else an error."""
    what = f"Delta table {location}"
    root = root_of(location)
    if "://" in location and not location.startswith("file://"):
        raise InvalidStatement(f"LOCATION {location}", "is not on a local file system", "Give a path.")
    check_location(root, f"LOCATION {location}")
    try:
        table = DeltaTable(str(root), version=version)
    except TableNotFoundError as error:
        raise NotFound(what, "there is none at that location", "Check LOCATION.") from error
    except (DeltaError, OSError, ValueError) as error:
        if version is not None and (root / "_delta_log").is_dir():
            raise expired(location, version, "its log no longer has it") from error
        raise NotFound(what, f"it cannot be opened ({first_line(error)})", "Check LOCATION and its rights.") from error
    _require_readable(table, what)
    return table


def _require_readable(table: DeltaTable, what: str) -> None:
    """Raise InvalidStatement for features under which a version's rows are not simply the rows of its files."""
    features = set(table.protocol().reader_features or ()) - _READABLE
    mode = table.metadata().configuration.get("delta.columnMapping.mode") or "none"
    features = features - {"columnMapping"} if mode == "none" else features | {"columnMapping"}
    if features:
        names = " and ".join(_FEATURES.get(f, f"the feature {f}") for f in sorted(features))
        raise InvalidStatement(
            what,
            f"it uses {names}, which is not supported",
            "Drop the feature from the table (ALTER TABLE … DROP FEATURE), or copy the table.",
        )


def open_seen(relation: Relation, seen: Main) -> DeltaTable:
    """A version that was seen before, if it is still the same one; else SnapshotExpired."""
    assert relation.location is not None
    table = open_external(relation.location, seen.delta_version)
    if not _is_same(table, seen):
        raise expired(relation.location, seen.delta_version, "the table's history was rewritten since it was seen")
    return table


def external_schema(table: DeltaTable, key: tuple[str, ...]) -> Schema:
    """The table's columns, with the key that was declared for it."""
    arrow = pa.schema(table.schema())
    columns = tuple(Column(f.name, from_arrow(f.type), f.nullable) for f in arrow)
    return Schema(columns, key)


def declared_schema(table: DeltaTable, relation: Relation) -> Schema:
    """The present columns of a relation's Delta table, with the declared key, which must be among them."""
    try:
        return external_schema(table, relation.schema.key)
    except (NotFound, InvalidStatement, TypeMismatch) as error:
        raise InvalidStatement(
            f"table {relation.name}",
            f"the columns of its Delta table no longer fit ({error})",
            "Drop it and create it again.",
        ) from error


def describe(table: DeltaTable) -> Main:
    """A version as the catalog stores it, with CSN 0 and schema version 1, which the catalog replaces."""
    actions = pa.table(table.get_add_actions())
    counts = actions.column("num_records").to_pylist()
    rows = sum(c for c in counts if c is not None) if None not in counts else _count(table)
    return Main(0, table.version(), 1, rows, sum(actions.column("size_bytes").to_pylist()), fingerprint(table))


def _count(table: DeltaTable) -> int:
    root = root_of(table.table_uri)
    return sum(footer(root, f.path).num_rows for f in listing(table))


# -- the same history ----------------------------------------------------------------------------------


def fingerprint(table: DeltaTable) -> str:
    """A text that identifies a history: the table's id, and digests of its last commit and of its files."""
    files = sorted((f.path, f.size) for f in listing(table))
    return f"{table.metadata().id}:{_commit_digest(table, table.version())}:{_digest(json.dumps(files))}"


def is_continued(seen: Main, newest: DeltaTable) -> bool:
    """Whether the table's history still contains the version that was seen last, unchanged.

    False if that commit was cleaned from the log of a table that has newer versions: then nothing proves it.
    """
    if newest.version() < seen.delta_version:
        return False
    if newest.version() == seen.delta_version:
        return _is_same(newest, seen)
    table_id, commit, _ = (seen.fingerprint or "::").split(":")
    return str(newest.metadata().id) == table_id and _commit_digest(newest, seen.delta_version) == commit != ""


def _is_same(table: DeltaTable, seen: Main) -> bool:
    """Whether a version is the one that was seen, by its commit, or by its files if the commit was cleaned away."""
    table_id, commit, files = (seen.fingerprint or "::").split(":")
    if str(table.metadata().id) != table_id:
        return False
    found = _commit_digest(table, seen.delta_version)
    if found and commit:
        return found == commit
    return fingerprint(table).split(":")[2] == files


def _commit_digest(table: DeltaTable, version: int) -> str:
    commit = commit_text(table, version)
    return _digest(commit) if commit is not None else ""


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def commit_text(table: DeltaTable, version: int) -> str | None:
    path = root_of(table.table_uri) / "_delta_log" / f"{version:020d}.json"
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return None


def root_of(uri: str) -> Path:
    return Path(unquote(uri.removeprefix("file://"))) if uri.startswith("file://") else Path(uri)


def expired(location: str, version: int, cause: str) -> SnapshotExpired:
    return SnapshotExpired(
        f"Delta table {location} at version {version}", cause, "Read a newer version; its own writers removed this one."
    )


# -- the files of a version -------------------------------------------------------------------------


@dataclass(frozen=True)
class ListedFile:
    """A data file of a version: its path as in the log, its size and partition values."""

    path: str
    size: int
    values: PartitionValues


def listing(table: DeltaTable) -> list[ListedFile]:
    actions = pa.table(table.get_add_actions())
    partitions = actions.column("partition").to_pylist() if "partition" in actions.column_names else None
    entries = zip(actions.column("path").to_pylist(), actions.column("size_bytes").to_pylist(), strict=True)
    return [
        ListedFile(path, size, {n: _text(v) for n, v in partitions[i].items()} if partitions else {})
        for i, (path, size) in enumerate(entries)
    ]


def _text(value: object) -> str | None:
    """A partition value as a string that Spark and Arrow cast back to the value."""
    if value is None or isinstance(value, bytes):
        return value.decode() if isinstance(value, bytes) else None
    return str(value).lower() if isinstance(value, bool) else str(value)


def footer(root: Path, path: str) -> Any:
    try:
        return pq.read_metadata(root / unquote(path))
    except (OSError, pa.ArrowInvalid) as error:
        raise unreadable(root, path, error) from error


def unreadable(root: Path, path: str, error: Exception) -> SnapshotExpired:
    cause = "was vacuumed" if isinstance(error, FileNotFoundError) else "is damaged"
    return SnapshotExpired(
        f"Delta table {root}", f"data file {unquote(path)} {cause}", "Read a newer version, or restore the file."
    )
