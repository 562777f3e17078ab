"""External Delta tables, which other tools write: their versions, and the changes between them.

Law: the change between two versions is the sum of the changes of the commits between them. The change of a commit is
its change data feed if it wrote one, else the rows of added minus those of removed files. Rearrangements
(dataChange=false) change nothing. Rows that were only rewritten cancel.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from freshview.catalog.records import Main, Relation, Segment
from freshview.errors import InvalidStatement, NotFound, SnapshotExpired, TypeMismatch, first_line
from freshview.relation.delta import DELETE, INSERT, overlay, tag
from freshview.relation.fields import cast_column
from freshview.relation.schema import Column, Schema
from freshview.relation.types import DataType, from_arrow
from freshview.storage.files import check_location

# Reader features under which the rows of a version are still the rows of its files.
_READABLE = {"timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"}
_FEATURES = {"deletionVectors": "deletion vectors", "columnMapping": "column mapping"}
_FOLD_ROWS = 200_000  # rows that are read before equal ones cancel
CHANGE_TYPE = "_change_type"
OLD_IMAGES = ("delete", "update_preimage")
# What Spark notes in files with days and times of the hybrid calendar. It converts those before these ends, where the
# calendars differ or the offsets of time zones do, when it reads them. Old versions write all files so.
_VERSION = b"org.apache.spark.version"
_HYBRID = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")
_PLAIN_SINCE = (3, 1)
_DAYS_END, _MICROS_END = -141_427, -2_208_988_800_000_000  # 1582-10-15 and 1900-01-01
_ZONED = re.compile(r"(Z|[+-]\d\d:?\d\d)$")

PartitionValues = dict[str, str | None]


def open_external(location: str, version: int | None = None) -> DeltaTable:
    """The newest (or a given) version of an external table, if it can be read exactly; else an error."""
    what = f"Delta table {location}"
    root = _path(location)
    if "://" in location and not location.startswith("file://"):
        raise InvalidStatement(f"LOCATION {location}", "is not on a local file system", "Give a path.")
    check_location(root, f"LOCATION {location}")
    try:
        table = DeltaTable(str(root), version=version)
    except TableNotFoundError as error:
        raise NotFound(what, "there is none at that location", "Check LOCATION.") from error
    except (DeltaError, OSError, ValueError) as error:
        if version is not None and (root / "_delta_log").is_dir():
            raise _expired(location, version, "its log no longer has it") from error
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
        raise _expired(relation.location, seen.delta_version, "the table's history was rewritten since it was seen")
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
    root = _path(table.table_uri)
    return sum(_footer(root, f.path).num_rows for f in _listing(table))


# -- the same history ----------------------------------------------------------------------------------


def fingerprint(table: DeltaTable) -> str:
    """A text that identifies a history: the table's id, and digests of its last commit and of its files."""
    files = sorted((f.path, f.size) for f in _listing(table))
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
    commit = _commit_text(table, version)
    return _digest(commit) if commit is not None else ""


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _commit_text(table: DeltaTable, version: int) -> str | None:
    path = _path(table.table_uri) / "_delta_log" / f"{version:020d}.json"
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return None


def _path(uri: str) -> Path:
    return Path(unquote(uri.removeprefix("file://"))) if uri.startswith("file://") else Path(uri)


def _expired(location: str, version: int, cause: str) -> SnapshotExpired:
    return SnapshotExpired(
        f"Delta table {location} at version {version}", cause, "Read a newer version; its own writers removed this one."
    )


# -- files of a version, and between versions ----------------------------------------------------------


@dataclass(frozen=True)
class ListedFile:
    """A data file of a version: its path as in the log, its size and partition values."""

    path: str
    size: int
    values: PartitionValues


@dataclass(frozen=True)
class ChangedFile:
    """A file whose rows were added (+1) or removed (-1), or a change data feed file (0: each row has its own type)."""

    path: str
    values: PartitionValues
    weight: int
    rows: int | None = None  # None: the log does not list them


def _listing(table: DeltaTable) -> list[ListedFile]:
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


def partition_groups(table: DeltaTable, schema: Schema) -> Iterator[tuple[PartitionValues, list[str]]]:
    """Absolute paths of a version's files, grouped by partition values; SnapshotExpired if a file is missing."""
    root = _path(table.table_uri)
    groups: dict[tuple[tuple[str, str | None], ...], list[str]] = {}
    for file in _listing(table):
        path = root / unquote(file.path)
        if not path.is_file():
            raise _expired(str(root), table.version(), f"data file {path.name} was vacuumed")
        groups.setdefault(tuple(file.values.items()), []).append(str(path))
    for values, paths in groups.items():
        yield {schema.column(n).name: v for n, v in values}, paths


def changed_since(seen: Main, newest: DeltaTable) -> list[ChangedFile] | None:
    """The files with changes since the version seen last; None if the log no longer lists them."""
    try:
        return changed_files(newest, seen.delta_version, newest.version())
    except SnapshotExpired:
        return None


def rows_in(table: DeltaTable, files: Iterable[ChangedFile]) -> int:
    """The rows of files with changes, also those that were only rewritten; files that are gone do not count."""
    root, count = _path(table.table_uri), 0
    for file in files:
        with suppress(SnapshotExpired):
            count += file.rows if file.rows is not None else _footer(root, file.path).num_rows
    return count


def changed_files(table: DeltaTable, after: int, upto: int) -> list[ChangedFile]:
    """The files with the changes of the commits (after, upto]; a file that was added and removed is left out."""
    partitioned = bool(table.metadata().partition_columns)
    weights: Counter[str] = Counter()
    values: dict[str, PartitionValues] = {}
    rows: dict[str, int | None] = {}
    feed: list[ChangedFile] = []
    for version in range(after + 1, upto + 1):
        commit = _commit_text(table, version)
        if commit is None:
            raise _expired(table.table_uri, version, "its commit is gone from the log")
        actions = [json.loads(line) for line in commit.splitlines() if line.strip()]
        fed = [a["cdc"] for a in actions if "cdc" in a]
        if not fed and any((a.get(kind) or {}).get("deletionVector") for a in actions for kind in ("add", "remove")):
            raise _expired(table.table_uri, version, "it used deletion vectors: the files do not show what it deleted")
        feed += [ChangedFile(c["path"], c.get("partitionValues") or {}, 0) for c in fed]
        for name, weight in (("add", 1), ("remove", -1)):
            for action in (a[name] for a in actions if name in a and not fed):
                if not action.get("dataChange", True):
                    continue
                if partitioned and not action.get("partitionValues"):  # optional in removes
                    return _by_file_sets(table, after, upto)
                weights[action["path"]] += weight
                values[action["path"]] = action.get("partitionValues") or {}
                rows[action["path"]] = json.loads(action.get("stats") or "{}").get("numRecords")
    return feed + [ChangedFile(p, values[p], w, rows[p]) for p, w in weights.items() if w]


def _by_file_sets(table: DeltaTable, after: int, upto: int) -> list[ChangedFile]:
    """All files that two versions do not share: needs no commit in between, but more rows are read."""
    location = str(_path(table.table_uri))
    old = {f.path: f for f in _listing(open_external(location, after))}
    new = {f.path: f for f in _listing(open_external(location, upto))}
    gone = [ChangedFile(p, f.values, -1) for p, f in old.items() if p not in new]
    return gone + [ChangedFile(p, f.values, 1) for p, f in new.items() if p not in old]


@dataclass(frozen=True)
class ChangedGroup:
    """Files with changes that share their partition values and their weight (as of `ChangedFile`); absolute paths."""

    paths: tuple[str, ...]
    values: PartitionValues
    weight: int


def changed_groups(relation: Relation, segments: Sequence[Segment], seen: Main | None) -> list[ChangedGroup]:
    """The files with the changes that a run of references leads over, for a reader that takes them as a whole.

    `seen` is the newest version of the table that was noticed at the end of the run. SnapshotExpired if neither the
    commits nor the two versions can be read any more.
    """
    table, after, upto = _run(relation, segments, seen)
    root = _path(table.table_uri)

    def present(files: list[ChangedFile]) -> list[ChangedFile]:
        for file in files:
            _footer(root, file.path)
        return files

    try:
        files = present(changed_files(table, after, upto))
    except SnapshotExpired:  # a file or commit in between is gone; the two versions may still be there
        files = present(_by_file_sets(table, after, upto))
    groups: dict[tuple[str, int], list[ChangedFile]] = {}
    for file in files:
        groups.setdefault((json.dumps(file.values, sort_keys=True), file.weight), []).append(file)
    return [_group(root, same, relation.schema) for same in groups.values()]


def _run(relation: Relation, segments: Sequence[Segment], seen: Main | None) -> tuple[DeltaTable, int, int]:
    """The table at the end of a run of references, and the versions between which the run leads."""
    assert relation.location is not None
    ranges = [s.versions for s in segments if s.versions is not None]
    after, upto = ranges[0][0], ranges[-1][1]
    is_seen = seen is not None and seen.delta_version == upto  # a rearrangement may have moved it on
    table = open_seen(relation, seen) if seen is not None and is_seen else open_external(relation.location, upto)
    return table, after, upto


def _group(root: Path, files: Sequence[ChangedFile], schema: Schema) -> ChangedGroup:
    paths = tuple(str(root / unquote(f.path)) for f in files)
    values = {schema.column(n).name: _for_spark(v, schema.column(n).type) for n, v in files[0].values.items()}
    return ChangedGroup(paths, values, files[0].weight)


def _for_spark(text: str | None, type_: DataType) -> str | None:
    """A partition value of the log as a text that Spark casts to the value (see `_constant`)."""
    if text is None or text == "":
        return None
    return f"{text}Z" if type_.kind == "timestamp" and not _ZONED.search(text) else text


def only_adds(relation: Relation, segments: Sequence[Segment], seen: Main | None) -> bool:
    """Do the changes that a run of references leads over only add rows? False if the log no longer lists them."""
    table, after, upto = _run(relation, segments, seen)
    try:
        return all(file.weight > 0 for file in changed_files(table, after, upto))
    except SnapshotExpired:
        return False


# -- all rows ------------------------------------------------------------------------------------------


def contents(relation: Relation, seen: Main) -> pa.Table:
    """All rows of a version that was seen, in the relation's columns. They are held in memory: it is to be small."""
    table, bag = open_seen(relation, seen), Schema(relation.schema.columns)
    root = _path(table.table_uri)
    rows = [_conformed(_stored(root, file.path), file.values, bag) for file in _listing(table)]
    return pa.concat_tables([bag.arrow.empty_table(), *rows])


def column_parts(table: DeltaTable, columns: Schema) -> Iterator[pa.Table]:
    """The rows of a version in these of its columns alone, a file at a time."""
    root = _path(table.table_uri)
    for file in _listing(table):
        try:
            with pq.ParquetFile(root / unquote(file.path), coerce_int96_timestamp_unit="us") as data:
                stored = data.read(columns=[n for n in data.schema_arrow.names if columns.has(n)])
                marks = data.metadata.metadata
        except (OSError, pa.ArrowInvalid) as error:
            raise _unreadable(root, file.path, error) from error
        _leave_to_spark(root, file.path, stored, marks)
        yield _conformed(stored, file.values, columns)


# -- rows that changed ---------------------------------------------------------------------------------


def changes(relation: Relation, after: int, upto: int, seen: Main | None = None) -> pa.Table:
    """The delta rows between two versions, exact as bags, in the relation's columns.

    With `seen`, version `upto` must still be the one that was seen. SnapshotExpired if neither the commits nor the two
    versions can be read any more. The changed rows of one partition and the net rows are held in memory, not all files.
    """
    assert relation.location is not None
    table = open_external(relation.location, upto) if seen is None else open_seen(relation, seen)
    bag = Schema(relation.schema.columns)
    try:
        return _net(_signed(table, changed_files(table, after, upto), bag), bag)
    except SnapshotExpired:  # a file or commit in between is gone; the two versions may still be there
        return _net(_signed(table, _by_file_sets(table, after, upto), bag), bag)


def _net(parts: Iterable[pa.Table], bag: Schema) -> pa.Table:
    """The sum of delta rows; equal rows cancel part by part, so that rewritten files do not fill the memory."""
    net = bag.segment_arrow.empty_table()
    waiting: list[pa.Table] = []
    for part in parts:
        waiting.append(part)
        if sum(w.num_rows for w in waiting) > max(_FOLD_ROWS, net.num_rows):
            net, waiting = overlay([net, *waiting], bag).rows, []
    return overlay([net, *waiting], bag).rows


def _signed(table: DeltaTable, files: Iterable[ChangedFile], bag: Schema) -> Iterator[pa.Table]:
    """The rows of each file as delta rows."""
    root = _path(table.table_uri)
    by_partition = sorted(files, key=lambda f: json.dumps(f.values, sort_keys=True))  # so that equal rows cancel soon
    for file in by_partition:
        stored = _stored(root, file.path)
        rows = _conformed(stored, file.values, bag)
        if file.weight:
            yield tag(rows, bag, INSERT if file.weight > 0 else DELETE, 1)
            continue
        old = pc.is_in(stored.column(CHANGE_TYPE), value_set=pa.array(OLD_IMAGES))
        yield tag(rows.filter(old), bag, DELETE, 1)
        yield tag(rows.filter(pc.invert(old)), bag, INSERT, 1)


def _stored(root: Path, path: str) -> pa.Table:
    try:
        with pq.ParquetFile(root / unquote(path), coerce_int96_timestamp_unit="us") as file:
            stored, marks = file.read(), file.metadata.metadata
    except (OSError, pa.ArrowInvalid) as error:
        raise _unreadable(root, path, error) from error
    _leave_to_spark(root, path, stored, marks)
    return stored


def _leave_to_spark(root: Path, path: str, stored: pa.Table, marks: Mapping[bytes, bytes] | None) -> None:
    """Raise SnapshotExpired if a file has days or times that only Spark reads as they were meant."""
    version = (marks or {}).get(_VERSION)
    if marks is None or version is None:
        return
    number = tuple(int(part) for part in re.findall(rb"\d+", version)[:2])
    is_hybrid = number < _PLAIN_SINCE or any(mark in marks for mark in _HYBRID)
    if is_hybrid and any(map(_may_be_converted, stored.columns)):
        raise SnapshotExpired(
            f"Delta table {root}",
            f"data file {unquote(path)} has early days or times in the calendar of Spark 2, which only Spark converts",
            "Rewrite the table with spark.sql.parquet.datetimeRebaseModeInWrite=CORRECTED.",
        )


def _may_be_converted(column: pa.ChunkedArray) -> bool:
    """Has a column days or times for which the hybrid calendar may count differently? Nested ones are not looked at."""
    if pa.types.is_date(column.type):
        least = pc.min(column.cast(pa.int32())).as_py()
        return least is not None and least < _DAYS_END
    if pa.types.is_timestamp(column.type):
        least = pc.min(column.cast(pa.timestamp("us", column.type.tz), safe=False).cast(pa.int64())).as_py()
        return least is not None and least < _MICROS_END
    return bool(pa.types.is_nested(column.type)) and _has_times(column.type)


def _has_times(type_: pa.DataType) -> bool:
    if pa.types.is_nested(type_):
        return any(_has_times(type_.field(i).type) for i in range(type_.num_fields))
    return bool(pa.types.is_temporal(type_))


def _footer(root: Path, path: str) -> Any:
    try:
        return pq.read_metadata(root / unquote(path))
    except (OSError, pa.ArrowInvalid) as error:
        raise _unreadable(root, path, error) from error


def _unreadable(root: Path, path: str, error: Exception) -> SnapshotExpired:
    cause = "was vacuumed" if isinstance(error, FileNotFoundError) else "is damaged"
    return SnapshotExpired(
        f"Delta table {root}", f"data file {unquote(path)} {cause}", "Read a newer version, or restore the file."
    )


def _conformed(stored: pa.Table, values: PartitionValues, bag: Schema) -> pa.Table:
    """A file's rows in the relation's columns: partition values from the log, later columns NULL."""
    arrays = []
    for column in bag.columns:
        if column.name in values:
            arrays.append(_constant(values[column.name], column.type, stored.num_rows))
        elif column.name in stored.column_names:
            # Delta tables can gain fields inside structs: older files lack them.
            held, what = stored.column(column.name), f"column {column.name} of a data file"
            arrays.append(cast_column(held, column.type.arrow, what, may_lack=True))
        else:
            arrays.append(pa.nulls(stored.num_rows, column.type.arrow))
    return pa.table(arrays, schema=bag.arrow)


def _constant(text: str | None, type_: DataType, length: int) -> pa.Array:
    """A column of one partition value. Delta also writes NULL as ''; times without a zone are UTC."""
    if text is None or text == "":
        return pa.nulls(length, type_.arrow)
    value = pa.scalar(text, pa.string())
    if type_.kind == "timestamp":
        naive = pc.cast(pc.replace_substring_regex(value, "(Z|[+]00:?00)$", ""), pa.timestamp("us"))
        value = pc.cast(naive, type_.arrow)
    return pa.repeat(pc.cast(value, type_.arrow), length)
