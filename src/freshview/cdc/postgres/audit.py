"""Capture by audit columns: times of the last change, of the insertion and of the (logical) deletion of a row.

One column delivers ups, two deliver ins and up, three also deletions. Deletions that remove the row are not seen.

A time is taken when a transaction writes and becomes visible when it commits, so rows with earlier times may appear
later. The position therefore holds a time before which no more rows appear, and the rows with later times that were
delivered already (`ahead`), with a checksum: applications may write times in whole seconds, so that a row changes twice
with the same time. Times in larger steps are not supported, since they may lie before the position.

Columns hold one time each, so a key that is deleted and inserted again between two polls looks like an insertion, which
delta rules therefore take for an upsert (`Capture.for_views`). One that is deleted once more looks as if it was never
there: it is in delk, which may find no row. A key may come back after the deletion was delivered, if the time of its
insertion is set anew.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from freshview.cdc.captures import ONE_AUDIT_COLUMN, THREE_AUDIT_COLUMNS, TWO_AUDIT_COLUMNS, Capture
from freshview.cdc.columns import NotColumns, table_of_texts
from freshview.cdc.model import PartialDelta, partial_delta
from freshview.cdc.postgres.copying import copied
from freshview.cdc.postgres.server import Server, Snapshot, qualified, quoted
from freshview.cdc.postgres.tables import PostgresTable
from freshview.errors import CaptureFailed

_EVER = -(2**62)  # before all times
_NEVER = -(2**63)  # the time of a deletion that did not happen
_NONE = ""  # no set: the row is as it was delivered, or was never delivered


@dataclass(frozen=True)
class AuditColumns:
    """The columns (timestamptz) of the last change, the insertion and the deletion, as far as the table has them.

    `never` lists the kinds of change that the owner declares never to happen, such as deletions.
    """

    changed: str
    inserted: str | None = None
    deleted: str | None = None
    never: frozenset[str] = frozenset()

    def set_of(self, now: Sequence[Any], before: Sequence[Any] | None, since: int) -> str:
        """The set of a row by its times and checksum: since the position, or since it was delivered ahead of it."""
        changed, inserted, deleted, checksum = now
        existed = inserted < since if before is None else before[2] is None
        was_changed = changed >= since if before is None else checksum != before[-1]
        if deleted is None:
            return "ups" if not self.inserted else "up" if existed else "ins"
        if not existed:
            may_have = before is None and since > _EVER  # the key may have been there, before it came back
            return "delk" if may_have else _NONE
        return "delk" if was_changed else "deleted"  # the image of a changed row is not the old one

    def sets(self, changed: np.ndarray, inserted: np.ndarray, deleted: np.ndarray, since: int) -> np.ndarray:
        """The set of each row by its times since the position: `set_of` rows that were not delivered ahead of it."""
        existed = inserted < since
        live: Any = np.where(existed, "up", "ins") if self.inserted else "ups"
        gone = np.where(existed, np.where(changed >= since, "delk", "deleted"), "delk" if since > _EVER else _NONE)
        return np.where(deleted == _NEVER, live, gone).astype("<U7")


@dataclass(frozen=True)
class _Stamped:
    """Rows with a time since a position: their keys as texts and their times, of which that of the deletion may be
    `_NEVER`. `rows` gives some columns of the rows at some places, and `checksums` the checksums of these rows."""

    keys: pa.Table
    changed: np.ndarray
    inserted: np.ndarray
    deleted: np.ndarray
    rows: Callable[[np.ndarray, Sequence[str]], pa.Table]
    checksums: Callable[[np.ndarray], list[str]]

    @cached_property
    def names(self) -> list[str]:
        """The keys of the rows, as positions name them."""
        texts = (column.to_pylist() for column in self.keys.columns)
        return [json.dumps(key) for key in zip(*texts, strict=True)]

    def among(self, names: Collection[str]) -> np.ndarray:
        """Which rows have one of these keys."""
        if not names:
            return np.zeros(self.keys.num_rows, dtype=bool)
        return np.array([name in names for name in self.names], dtype=bool)

    def times(self, place: int) -> list[int | None]:
        """The times of a row: of its change, its insertion and its deletion."""
        found = (int(times[place]) for times in (self.changed, self.inserted, self.deleted))
        return [None if time == _NEVER else time for time in found]


class Audit(PostgresTable):
    """A table with audit columns that its applications or triggers keep."""

    def __init__(self, server: Server, name: str, times: AuditColumns, columns: Sequence[str] | None = None) -> None:
        self._columns = times
        self.hidden = (times.deleted,) if times.deleted else ()  # of rows of the relation it is always NULL
        super().__init__(server, name, columns)
        if times.deleted and not times.inserted:
            raise CaptureFailed(f"table {name}", "a time of deletion needs a time of insertion", "Name both columns.")
        for column in filter(None, (times.changed, times.inserted)):
            if self.layout.types.get(column) != "timestamp with time zone":
                raise CaptureFailed(
                    f"table {name}", f"its audit column {column} is no timestamptz", "Use a column of that type."
                )

    @property
    def capture(self) -> Capture:
        columns = self._columns
        kind = THREE_AUDIT_COLUMNS if columns.deleted else TWO_AUDIT_COLUMNS if columns.inserted else ONE_AUDIT_COLUMN
        return kind.without(*columns.never)

    @property
    def live(self) -> str:
        return f"t.{quoted(self._columns.deleted)} IS NULL" if self._columns.deleted else "true"

    def confirm(self, position: str) -> None:
        """The server keeps nothing for readers."""

    def changes(self, snapshot: Snapshot, position: dict[str, Any] | None) -> tuple[PartialDelta, dict[str, Any]]:
        given = position or {"since": _EVER, "ahead": {}}
        until = self._settled(snapshot, given["since"])
        try:
            return self._changes(self._copied(snapshot, given["since"]), given, until)
        except NotColumns:  # an error then names the value
            return self._changes(self._fetched(snapshot, given["since"]), given, until)

    def _changes(self, found: _Stamped, given: Mapping[str, Any], until: int) -> tuple[PartialDelta, dict[str, Any]]:
        """The changes that rows with a time since the position tell, and the position after them."""
        sets, since = self._columns.sets(found.changed, found.inserted, found.deleted, given["since"]), given["since"]
        is_ahead = np.maximum.reduce([found.changed, found.inserted, found.deleted]) >= until
        compared = np.flatnonzero(is_ahead | found.among(given["ahead"]))  # other rows are never compared
        ahead: dict[str, list[Any]] = {}
        for i, checksum in zip(compared.tolist(), found.checksums(compared), strict=True):
            key = found.names[i]
            before, now = given["ahead"].get(key), [*found.times(i), checksum]
            if is_ahead[i]:
                ahead[key] = now
            sets[i] = self._columns.set_of(now, before, since) if before != now else _NONE
        rows = {n: found.rows(np.flatnonzero(sets == n), self.schema.names) for n in ("ins", "deleted", "up", "ups")}
        delk = found.rows(np.flatnonzero(sets == "delk"), self.schema.key)
        return partial_delta(self.name, self.schema, **rows, delk=delk), {"since": until, "ahead": ahead}

    def _query(self) -> str:
        """Rows with a time since the position: the key, the times of change, insertion and deletion, and the row."""
        columns = self._columns
        changed = _micros(f"t.{quoted(columns.changed)}")
        inserted = _micros(f"t.{quoted(columns.inserted)}") if columns.inserted else changed
        deleted = _micros(f"t.{quoted(columns.deleted)}") if columns.deleted else "NULL::bigint"
        key = ", ".join(f"t.{quoted(k)}::text" for k in self.schema.key)
        return (
            f"SELECT {key}, {changed}::text, {inserted}::text, {deleted}::text, {self.expressions('t')} "
            f"FROM {qualified(self.name)} t WHERE greatest({changed}, {inserted}, {deleted}) >= %s "
            f"OR {changed} IS NULL OR {inserted} IS NULL"
        )

    def _copied(self, snapshot: Snapshot, since: int) -> _Stamped:
        """The rows as columns of texts."""
        width, names = len(self.schema.key), self.schema.names
        found = copied(snapshot, self._query(), (since,), width + 3 + len(names))
        by_name = dict(zip(names, found[width + 3 :], strict=True))

        def rows(places: np.ndarray, wanted: Sequence[str]) -> pa.Table:
            return table_of_texts([by_name[n].take(pa.array(places)) for n in wanted], self.schema, wanted, self.name)

        def checksums(places: np.ndarray) -> list[str]:
            texts = (column.take(pa.array(places)).to_pylist() for column in by_name.values())
            return [_checksum(row) for row in zip(*texts, strict=True)]

        return self._stamped(found[: width + 3], rows, checksums)

    def _fetched(self, snapshot: Snapshot, since: int) -> _Stamped:
        """The rows one by one."""
        width, names = len(self.schema.key) + 3, self.schema.names
        found = snapshot.fetch(self._query(), (since,))
        texts = [pa.chunked_array([pa.array([row[i] for row in found], pa.string())]) for i in range(width)]

        def rows(places: np.ndarray, wanted: Sequence[str]) -> pa.Table:
            at = [width + names.index(n) for n in wanted]
            return self.table([[found[place][i] for i in at] for place in places.tolist()], wanted)

        def checksums(places: np.ndarray) -> list[str]:
            return [_checksum(found[place][width:]) for place in places.tolist()]

        return self._stamped(texts, rows, checksums)

    def _stamped(
        self,
        texts: Sequence[pa.ChunkedArray],
        rows: Callable[[np.ndarray, Sequence[str]], pa.Table],
        checksums: Callable[[np.ndarray], list[str]],
    ) -> _Stamped:
        """Rows by the texts of their keys and times; CaptureFailed if one of them has no time."""
        keys = pa.table(list(texts[:-3]), names=[f"k{i}" for i in range(len(texts) - 3)])
        times = [column.cast(pa.int64()) for column in texts[-3:]]
        for column in times[:2]:
            if column.null_count:
                at = pc.index(pc.is_null(column), True).as_py()
                key = ", ".join(c[at].as_py() for c in keys.columns)
                raise CaptureFailed(
                    f"table {self.name}",
                    f"the row ({key}) has no time in an audit column",
                    "Give the columns a default, and make them NOT NULL.",
                )
        changed, inserted, deleted = (pc.fill_null(column, _NEVER).to_numpy() for column in times)
        return _Stamped(keys, changed, inserted, deleted, rows, checksums)

    def _settled(self, snapshot: Snapshot, since: int) -> int:
        """The time before which no more rows appear; that of the position while prepared transactions hide it."""
        if not snapshot.may_know:
            raise CaptureFailed(
                f"table {self.name}",
                "the user may not see when other transactions began, so rows might be missed",
                "GRANT pg_read_all_stats TO the user.",
            )
        return since if snapshot.settled is None else max(snapshot.settled, since)


def _micros(column: str) -> str:
    """A timestamptz in microseconds since 1970."""
    return f"(extract(epoch FROM {column}) * 1000000)::bigint"


def _checksum(row: Sequence[Any]) -> str:
    return hashlib.sha256(repr(list(row)).encode()).hexdigest()
