"""The data files of a version of an external Delta table, and those with the changes between two versions.

Law: the change between two versions is the sum of the changes of the commits between them. The change of a commit is
its change data feed if it wrote one, else the rows of added minus those of removed files. Rearrangements
(dataChange=false) change nothing.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from deltalake import DeltaTable

from freshview.catalog.records import Main, Relation, Segment
from freshview.errors import SnapshotExpired
from freshview.relation.schema import Schema
from freshview.relation.types import DataType
from freshview.storage.external import (
    PartitionValues,
    commit_text,
    expired,
    footer,
    listing,
    open_external,
    open_seen,
    root_of,
)

CHANGE_TYPE = "_change_type"  # a column of the change data feed
OLD_IMAGES = ("delete", "update_preimage")
_ZONED = re.compile(r"(Z|[+-]\d\d:?\d\d)$")


@dataclass(frozen=True)
class ChangedFile:
    """A file whose rows were added (+1) or removed (-1), or a change data feed file (0: each row has its own type)."""

    path: str
    values: PartitionValues
    weight: int
    rows: int | None = None  # None: the log does not list them


def partition_groups(table: DeltaTable, schema: Schema) -> Iterator[tuple[PartitionValues, list[str]]]:
    """Absolute paths of a version's files, grouped by partition values; SnapshotExpired if a file is missing."""
    root = root_of(table.table_uri)
    groups: dict[tuple[tuple[str, str | None], ...], list[str]] = {}
    for file in listing(table):
        path = root / unquote(file.path)
        if not path.is_file():
            raise expired(str(root), table.version(), f"data file {path.name} was vacuumed")
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
    root, count = root_of(table.table_uri), 0
    for file in files:
        with suppress(SnapshotExpired):
            count += file.rows if file.rows is not None else footer(root, file.path).num_rows
    return count


def changed_files(table: DeltaTable, after: int, upto: int) -> list[ChangedFile]:
    """The files with the changes of the commits (after, upto]; a file that was added and removed is left out."""
    partitioned = bool(table.metadata().partition_columns)
    weights: Counter[str] = Counter()
    values: dict[str, PartitionValues] = {}
    rows: dict[str, int | None] = {}
    feed: list[ChangedFile] = []
    for version in range(after + 1, upto + 1):
        commit = commit_text(table, version)
        if commit is None:
            raise expired(table.table_uri, version, "its commit is gone from the log")
        actions = [json.loads(line) for line in commit.splitlines() if line.strip()]
        fed = [a["cdc"] for a in actions if "cdc" in a]
        if not fed and any((a.get(kind) or {}).get("deletionVector") for a in actions for kind in ("add", "remove")):
            raise expired(table.table_uri, version, "it used deletion vectors: the files do not show what it deleted")
        feed += [ChangedFile(c["path"], c.get("partitionValues") or {}, 0) for c in fed]
        for name, weight in (("add", 1), ("remove", -1)):
            for action in (a[name] for a in actions if name in a and not fed):
                if not action.get("dataChange", True):
                    continue
                if partitioned and not action.get("partitionValues"):  # optional in removes
                    return between_file_sets(table, after, upto)
                weights[action["path"]] += weight
                values[action["path"]] = action.get("partitionValues") or {}
                rows[action["path"]] = json.loads(action.get("stats") or "{}").get("numRecords")
    return feed + [ChangedFile(p, values[p], w, rows[p]) for p, w in weights.items() if w]


def between_file_sets(table: DeltaTable, after: int, upto: int) -> list[ChangedFile]:
    """All files that two versions do not share: needs no commit in between, but more rows are read."""
    location = str(root_of(table.table_uri))
    old = {f.path: f for f in listing(open_external(location, after))}
    new = {f.path: f for f in listing(open_external(location, upto))}
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
    root = root_of(table.table_uri)

    def present(files: list[ChangedFile]) -> list[ChangedFile]:
        for file in files:
            footer(root, file.path)
        return files

    try:
        files = present(changed_files(table, after, upto))
    except SnapshotExpired:  # a file or commit in between is gone; the two versions may still be there
        files = present(between_file_sets(table, after, upto))
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
