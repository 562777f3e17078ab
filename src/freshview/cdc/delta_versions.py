"""Delta tables of others as a source: the changes between two of their versions.

Law: a position is a version and its fingerprint; at every position the keys are unique, so the net rows between two
versions are the sets ins, del and un/uo of the difference. The rows come from the change data feed where commits have
one, else from the added and removed files (`storage/external`). What a key has once in the net rows and would have
twice in the version is found in the version's key columns: only a new key can be one that was there already.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake import Schema as DeltaSchema

from freshview.catalog.records import Main, Relation
from freshview.cdc.captures import DELTA_VERSIONS, Capture
from freshview.cdc.dumps import difference
from freshview.cdc.model import PartialDelta, key_schema, keys_of, partial_delta
from freshview.cdc.source import Poll
from freshview.errors import CaptureFailed, FreshviewError, SnapshotExpired
from freshview.relation.delta import describe_key, first_duplicate, is_live, key_table, positions_in, untag
from freshview.relation.schema import Schema
from freshview.relation.types import from_arrow
from freshview.storage.external import external_schema, fingerprint, is_continued, open_external
from freshview.storage.external_rows import changes, column_parts, contents

_ColumnTypes = tuple[tuple[str, str], ...]  # names and types


@dataclass(frozen=True)
class _VersionPosition:
    """A version, what identifies it, its columns, and the columns by which it is partitioned."""

    version: int
    fingerprint: str
    columns: _ColumnTypes
    partitions: tuple[str, ...]

    def text(self) -> str:
        return json.dumps(vars(self))

    @staticmethod
    def of(text: str) -> _VersionPosition:
        data = json.loads(text)
        columns = tuple((name, type_) for name, type_ in data["columns"])
        return _VersionPosition(data["version"], data["fingerprint"], columns, tuple(data["partitions"]))

    @property
    def main(self) -> Main:
        """The version as the readers of external tables know it."""
        return Main(0, self.version, 1, 0, 0, self.fingerprint)


class DeltaVersions:
    """A source: a Delta table that other programs write, with the columns that identify its rows."""

    def __init__(
        self,
        location: Path,
        name: str,
        keys: Sequence[str],
        *,
        each: bool = False,
        adds_columns: bool = True,
        reader: str = "",
        position: str | None = None,
    ) -> None:
        """`each`: versions are taken one after the other, not their net effect. `adds_columns`: columns that appear at
        the end are taken too. `reader` is the flow that errors name, and `position` is where it is."""
        self.name = name
        self._location, self._each, self._adds_columns = location, each, adds_columns
        self._anew = f"read the table anew (REFRESH FLOW {reader} FULL)" if reader else "load the table anew"
        try:
            self.schema = external_schema(self._open(), tuple(keys))
            self.schema = Schema(self.schema.columns, tuple(self.schema.column(k).name for k in keys))
        except FreshviewError as error:
            raise self._failed(error, None if position is None else _VersionPosition.of(position)) from error

    @property
    def capture(self) -> Capture:
        return DELTA_VERSIONS

    def confirm(self, position: str) -> None:
        """Nothing is kept for readers: the table's own writers remove old versions."""

    def adds_columns_since(self, position: str) -> bool:
        """Whether the table is that of a position but for columns that were added at its end."""
        then, now = _VersionPosition.of(position).columns, self._columns
        return len(now) > len(then) and now[: len(then)] == then

    def poll(self, position: str | None) -> Poll:
        start = None if position is None else _VersionPosition.of(position)
        try:
            return self._first() if start is None else self._since(start)
        except FreshviewError as error:
            raise self._failed(error, start) from error

    # -- polls -------------------------------------------------------------------------------------

    def _first(self) -> Poll:
        newest = self._open()
        self._require_opened(newest)
        end = self._position(newest)
        rows = contents(self._relation, end.main)
        self._require_unique(rows, end.version)
        return Poll(self.capture, partial_delta(self.name, self.schema, ins=rows), end.text(), at=self._moment(end))

    def _since(self, start: _VersionPosition) -> Poll:
        newest = self._open()
        self._require_opened(newest)
        if not is_continued(start.main, newest):
            raise CaptureFailed(
                f"Delta table {self.name}",
                f"its history (now at version {newest.version()}) does not have version {start.version} as it was: the "
                "table was created anew, set back by hand, or its log was cleaned",
                f"The way on is to {self._anew}.",
            )
        if self._columns != start.columns and not (self._adds_columns and self.adds_columns_since(start.text())):
            raise CaptureFailed(
                f"Delta table {self.name}",
                f"it had ({_shown(start.columns)}) at version {start.version}, and has ({_shown(self._columns)})",
                f"Change the target in the same way, and {self._anew}.",
            )
        if newest.version() == start.version:
            return Poll(self.capture, partial_delta(self.name, self.schema), start.text())
        found = partial_delta(self.name, self.schema)
        for table in self._steps(start.version, newest):
            end = self._position(table)
            found = self._between(start, end, table)
            if found.num_changes:
                break
            start = end
        return Poll(self.capture, found, end.text(), at=self._moment(end), more=end.version < newest.version())

    def _steps(self, after: int, newest: DeltaTable) -> Iterator[DeltaTable]:
        """The versions to which a poll may lead: the newest one or, if each change counts, each one."""
        if self._each:
            for version in range(after + 1, newest.version()):
                yield self._open(version)
        yield newest

    def _between(self, start: _VersionPosition, end: _VersionPosition, table: DeltaTable) -> PartialDelta:
        """The changes from one version to another."""
        if _is_plain(self._location, start, end):
            net = changes(self._relation, start.version, end.version, end.main)
            live = is_live(net)
            new, old = untag(net.filter(live)), untag(net.filter(pc.invert(live)))
        else:  # files of the versions in between may mean something else than those of the two
            old, new = (contents(self._relation, at.main) for at in (start, end))
        self._require_unique(old, start.version)
        self._require_unique(new, end.version)
        delta = difference(self.name, self.schema, old, new)
        if delta.ins.num_rows:
            self._require_new(keys_of(delta.ins, self.schema), table)
        return delta

    def _require_unique(self, rows: pa.Table, version: int) -> None:
        twice = first_duplicate(key_table(rows, self.schema))
        if twice is not None:
            raise self._repeated(rows, twice, version, self.schema)

    def _require_new(self, keys: pa.Table, table: DeltaTable) -> None:
        """Raise if the version has a row more of one of these keys, which rows without a change may have."""
        schema = key_schema(self.schema)
        wanted = key_table(keys, schema)
        parts = column_parts(table, schema)
        found = (part.take(positions_in(key_table(part, schema), wanted)) for part in parts)
        rows = pa.concat_tables([schema.arrow.empty_table(), *found])
        twice = first_duplicate(key_table(rows, schema))
        if twice is not None:
            raise self._repeated(rows, twice, table.version(), schema)

    def _repeated(self, rows: pa.Table, at: int, version: int, schema: Schema) -> CaptureFailed:
        key = describe_key(rows, schema, at)
        remedy = "Remove one of the rows there, or choose KEYS that are unique."
        remedy += f" Since the versions are taken one after the other, then {self._anew}." if self._each else ""
        return CaptureFailed(
            f"Delta table {self.name}", f"the key {key} has more than one row at version {version}", remedy
        )

    # -- the table ---------------------------------------------------------------------------------

    @property
    def _relation(self) -> Relation:
        """The table as the readers of external tables know it."""
        return Relation(0, self.name, "external", 0, 1, self.schema, 0, str(self._location))

    @property
    def _columns(self) -> _ColumnTypes:
        return tuple((c.name, str(c.type)) for c in self.schema.columns)

    def _open(self, version: int | None = None) -> DeltaTable:
        return open_external(str(self._location), version)

    def _require_opened(self, newest: DeltaTable) -> None:
        """Raise if the table has other columns than when it was opened."""
        if _columns_of(newest.schema()) != self._columns:
            raise CaptureFailed(f"Delta table {self.name}", "its columns changed while it was polled", "Poll again.")

    def _position(self, table: DeltaTable) -> _VersionPosition:
        partitions = tuple(table.metadata().partition_columns)
        return _VersionPosition(table.version(), fingerprint(table), self._columns, partitions)

    def _moment(self, at: _VersionPosition) -> datetime | None:
        return _moment(self._location, at.version)

    def _failed(self, error: FreshviewError, start: _VersionPosition | None) -> CaptureFailed:
        """An error with the position, and what to do then."""
        advice = error.remedy.replace("Check LOCATION", "Check the path of the source")
        if isinstance(error, SnapshotExpired):
            advice = f"The way on is to {self._anew}."
        if start is not None:
            advice = f"No change was taken since version {start.version}. {advice}"
        return CaptureFailed(error.what, error.cause, advice)


def _is_plain(location: Path, start: _VersionPosition, end: _VersionPosition) -> bool:
    """Whether the files of all commits between two versions have whole rows in the columns of the versions.

    A commit in between may have used deletion vectors, another partitioning, or columns of other types. Commits that
    are gone from the log are left to the readers, which compare the files of the two versions then.
    """
    columns = start.columns
    for version in range(start.version + 1, end.version + 1):
        for action in _actions(location, version) or ():
            if any((action.get(kind) or {}).get("deletionVector") for kind in ("add", "remove")):
                return False
            if "metaData" in action:
                then = _described(action["metaData"])
                if then is None or then[1] != start.partitions or then[0][: len(columns)] != columns:
                    return False
                columns = then[0]
    return end.partitions == start.partitions


def _described(metadata: dict[str, Any]) -> tuple[_ColumnTypes, tuple[str, ...]] | None:
    """The columns and partition columns of an action; None if the names in files are others."""
    if (metadata.get("configuration") or {}).get("delta.columnMapping.mode", "none") != "none":
        return None
    try:
        columns = _columns_of(DeltaSchema.from_json(metadata["schemaString"]))
    except (FreshviewError, ValueError, TypeError):  # of a type that is not known here
        return None
    return columns, tuple(metadata.get("partitionColumns") or ())


def _columns_of(schema: DeltaSchema) -> _ColumnTypes:
    return tuple((f.name, str(from_arrow(f.type))) for f in pa.schema(schema))


def _shown(columns: _ColumnTypes) -> str:
    return ", ".join(f"{name} {type_}" for name, type_ in columns)


def _moment(location: Path, version: int) -> datetime | None:
    """When a version was committed, if its log has it."""
    for action in _actions(location, version) or ():
        info = action.get("commitInfo") or {}
        millis = info.get("inCommitTimestamp", info.get("timestamp"))
        if isinstance(millis, int):
            return datetime.fromtimestamp(millis / 1000, UTC)
    return None


def _actions(location: Path, version: int) -> list[dict[str, Any]] | None:
    """The actions of a commit; None if it is gone from the log."""
    try:
        text = (location / "_delta_log" / f"{version:020d}.json").read_text(encoding="utf-8")
    except OSError:
        return None
    return [json.loads(line) for line in text.splitlines() if line.strip()]
