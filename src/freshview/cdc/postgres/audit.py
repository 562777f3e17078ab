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
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from freshview.cdc.captures import ONE_AUDIT_COLUMN, THREE_AUDIT_COLUMNS, TWO_AUDIT_COLUMNS, Capture
from freshview.cdc.model import PartialDelta, partial_delta
from freshview.cdc.postgres.server import Server, Snapshot, qualified, quoted
from freshview.cdc.postgres.tables import PostgresTable
from freshview.errors import CaptureFailed

_EVER = -(2**62)  # before all times


@dataclass(frozen=True)
class AuditColumns:
    """The columns (timestamptz) of the last change, the insertion and the deletion, as far as the table has them.

    `never` lists the kinds of change that the owner declares never to happen, such as deletions.
    """

    changed: str
    inserted: str | None = None
    deleted: str | None = None
    never: frozenset[str] = frozenset()


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
        sets: dict[str, list[Any]] = {name: [] for name in ("ins", "deleted", "up", "ups", "delk")}
        ahead: dict[str, list[Any]] = {}
        for key, stamps, row in self._stamped(snapshot, given["since"]):
            before = given["ahead"].get(key)
            is_ahead = max(s for s in stamps if s is not None) >= until
            now: list[Any] = [*stamps, None]
            if is_ahead or before is not None:  # other rows are never compared
                now[-1] = hashlib.sha256(repr(row).encode()).hexdigest()
            if is_ahead:
                ahead[key] = now
            if before != now:
                name = self._set(now, before, given["since"])
                sets[name or "ins"].extend([row] if name else [])
        delk = [[row[i] for i in self.schema.key_positions] for row in sets.pop("delk")]
        full = {name: self.table(rows) for name, rows in sets.items()}
        delta = partial_delta(self.name, self.schema, **full, delk=self.table(delk, self.schema.key))
        return delta, {"since": until, "ahead": ahead}

    def _set(self, now: list[Any], before: list[Any] | None, since: int) -> str | None:
        """The set of a row by its times and checksum: since the position, or since it was delivered ahead of it."""
        changed, inserted, deleted, checksum = now
        existed = inserted < since if before is None else before[2] is None
        was_changed = changed >= since if before is None else checksum != before[-1]
        if deleted is None:
            return "ups" if not self._columns.inserted else "up" if existed else "ins"
        if not existed:
            may_have = before is None and since > _EVER  # the key may have been there, before it came back
            return "delk" if may_have else None
        return "delk" if was_changed else "deleted"  # the image of a changed row is not the old one

    def _stamped(self, snapshot: Snapshot, since: int) -> list[tuple[str, list[int | None], list[Any]]]:
        """Rows with a time since the position: key as text, times of change, insertion and deletion, and the row."""
        columns = self._columns
        changed = _micros(f"t.{quoted(columns.changed)}")
        inserted = _micros(f"t.{quoted(columns.inserted)}") if columns.inserted else changed
        deleted = _micros(f"t.{quoted(columns.deleted)}") if columns.deleted else "NULL::bigint"
        key = ", ".join(f"t.{quoted(k)}::text" for k in self.schema.key)
        found = snapshot.fetch(
            f"SELECT ARRAY[{key}], {changed}, {inserted}, {deleted}, {self.expressions('t')} "
            f"FROM {qualified(self.name)} t WHERE greatest({changed}, {inserted}, {deleted}) >= %s "
            f"OR {changed} IS NULL OR {inserted} IS NULL",
            (since,),
        )
        for key_texts, changed_at, inserted_at, *_ in found:
            if changed_at is None or inserted_at is None:
                raise CaptureFailed(
                    f"table {self.name}",
                    f"the row ({', '.join(key_texts)}) has no time in an audit column",
                    "Give the columns a default, and make them NOT NULL.",
                )
        return [(json.dumps(key_texts), list(stamps), row) for key_texts, *stamps, row in map(_grouped, found)]

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


def _grouped(found: tuple[Any, ...]) -> tuple[Any, ...]:
    return (*found[:4], list(found[4:]))
