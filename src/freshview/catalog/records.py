"""The records that the catalog returns: frozen, without database handles."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from freshview.errors import CorruptWarehouse
from freshview.relation.delta import INSERT, REPLACE, conform_delta, decode, tag
from freshview.relation.schema import ACTION, STMTSN, Schema

REMOTE = "remote table"
DIMENSION = "dimension view"
FLOW = "flow"  # the fact that a table is what a flow remembers


@dataclass(frozen=True)
class Relation:
    """A table, external table or view, identified by id and epoch; its name may change.

    A remote table is a name for a table of a source: it stores no rows here. A dimension view is a view of remote
    tables: to everything above it, it is a table that the cycles of its source write.
    """

    id: int
    name: str
    kind: str  # "table" | "external" | "view" | REMOTE | DIMENSION
    epoch: int
    schema_version: int
    schema: Schema
    created_csn: int
    location: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)  # as the user gave them
    facts: Mapping[str, str] = field(default_factory=dict)  # what Freshview stores of a view, or of a flow's memory

    @property
    def is_external(self) -> bool:
        return self.kind == "external"


@dataclass(frozen=True)
class DataFile:
    """A Parquet file: path relative to the relation's folder, size in bytes, rows."""

    path: str
    size: int
    rows: int


PENDING = 2**62  # the CSN of a segment that is not committed yet: higher than every real one
_CHURN = 5  # changes per row that a small relation may have


@dataclass(frozen=True)
class Segment:
    """An immutable run of delta rows of one relation, made by one commit.

    Held inline (`payload`, Arrow IPC), in Parquet files, in memory (`rows_in_memory`, before
    commit), or as a reference to a version range of an external table. A segment with a constant
    `action` stores the plain rows, so that a checkpoint can adopt its files as they are; with the action REPLACE they
    are all rows of the relation, in place of those that were stored before.
    """

    relation_id: int
    csn: int
    seq: int
    rows: int
    size: int
    schema_version: int
    stmtsn: int | None = None
    action: int | None = None
    payload: bytes | None = field(default=None, repr=False)
    files: tuple[DataFile, ...] = ()
    versions: tuple[int, int] | None = None
    rows_in_memory: pa.Table | None = field(default=None, repr=False, compare=False)

    @property
    def is_pending(self) -> bool:
        return self.csn == PENDING

    @property
    def replaces(self) -> bool:
        return self.action == REPLACE

    @property
    def is_inline(self) -> bool:
        return self.payload is not None or self.rows_in_memory is not None

    def table(self, schema: Schema) -> pa.Table:
        """The delta rows of an inline segment, in the columns of `schema`."""
        if self.rows_in_memory is not None:
            return conform_delta(self.rows_in_memory, schema)
        assert self.payload is not None
        what = f"segment {self.relation_id}@{self.csn}"
        rows = decode(self.payload, what)
        if rows.num_rows != self.rows:
            raise CorruptWarehouse(
                what, f"it holds {rows.num_rows} rows instead of {self.rows}", "Restore the catalog."
            )
        return conform_delta(rows, schema)

    def tagged(self, plain: pa.Table, schema: Schema) -> pa.Table:
        """The delta rows for plain rows that were read from this segment's files."""
        if self.action is None:  # large statements are written in parts: put deletes first again
            ordered = plain.sort_by([(STMTSN, "ascending"), (ACTION, "ascending")])
            return conform_delta(ordered, schema)
        assert self.stmtsn is not None
        return tag(schema.conform(plain), schema, self.action, self.stmtsn)


def since_replaced(segments: Sequence[Segment]) -> tuple[Segment, ...] | None:
    """The segments of a relation from its last replacement on, as if its rows had been inserted into an empty relation;
    None if no segment replaces the rows."""
    places = [i for i, segment in enumerate(segments) if segment.replaces]
    if not places:
        return None
    first, *rest = segments[places[-1] :]
    return (replace(first, action=INSERT), *rest) if first.rows else tuple(rest)


def files_to_json(files: tuple[DataFile, ...]) -> str | None:
    return json.dumps([[f.path, f.size, f.rows] for f in files]) if files else None


def files_from_json(text: str | None) -> tuple[DataFile, ...]:
    return tuple(DataFile(*entry) for entry in json.loads(text)) if text else ()


@dataclass(frozen=True)
class Main:
    """A Delta version that is complete up to a CSN."""

    csn: int
    delta_version: int
    schema_version: int
    rows: int
    size: int
    fingerprint: str | None = None


@dataclass(frozen=True)
class RelationState:
    """The parts of a relation at one CSN: main ⊕ segments, in commit order."""

    relation: Relation
    csn: int
    main: Main | None
    main_schema: Schema | None
    segments: tuple[Segment, ...]

    @property
    def schema(self) -> Schema:
        return self.relation.schema

    @property
    def rows_at_most(self) -> int:
        """An upper bound on the rows to read for this state."""
        return self._main_rows + sum(s.rows for s in self.segments)

    def is_small(self, most: int) -> bool:
        """Whether the driver folds the state faster than Spark; many changes of few rows leave few rows."""
        return self._main_rows <= most and self.rows_at_most <= _CHURN * most

    @property
    def _main_rows(self) -> int:
        return self.main.rows if self.main else 0


@dataclass(frozen=True)
class Commit:
    """One commit of one relation, as the history lists it."""

    relation_id: int
    csn: int
    txsn: int
    committed_at: int
    kind: str
    rows: int


@dataclass(frozen=True)
class Task:
    """A transaction beyond a view's frontier: one unit of pending maintenance (LAZY §2.2, §3.1)."""

    view_id: int
    txsn: int
    csn: int
    stmtsn: int  # 0: a full task; else a partial one: the view has seen the statements up to this number
    committed_at: int
    tables: tuple[int, ...]  # ids of the updated base tables
    rows: int  # delta rows in their segments
    reset: bool = False  # a table's history was rewritten: no delta leads across


@dataclass(frozen=True)
class Frontier:
    """What a view has seen: all commits up to a CSN; of the commit at that CSN perhaps only the first statements."""

    csn: int
    stmtsn: int = 0  # 0: all statements

    @property
    def readable(self) -> int:
        """The CSN at which the stored rows can be read: a commit seen in part does not count."""
        return self.csn - 1 if self.stmtsn else self.csn


@dataclass(frozen=True)
class Deferral:
    """The two CSNs of a deferred view (DEFER §3): the one that it shows, and the one up to which it was propagated.

    The view's segments in between are its differential tables; commits beyond are the log.
    """

    shown: int
    propagated: int
    propagated_at: int  # µs on the catalog's clock: when the log was last propagated
    refreshed_at: int  # µs on the catalog's clock: when `shown` was last moved to `propagated`


@dataclass(frozen=True)
class Backlog:
    """The number, rows and age of all tasks of one view."""

    view_id: int
    tasks: int
    rows: int
    oldest_at: int  # commit time of the oldest task
    newest_csn: int
    oldest_csn: int


@dataclass(frozen=True)
class Pin:
    """A registered snapshot: vacuum removes nothing that the snapshot may read."""

    id: str
    csn: int
    txsn: int


@dataclass(frozen=True)
class Lease:
    """A writer's claim on a folder of files that no catalog row names yet."""

    id: str
    relation_id: int
    path: str


def segment_values(segment: Segment, csn: int, seq: int) -> dict[str, object]:
    """The column values of a segment's catalog row."""
    first, last = segment.versions or (None, None)
    return {
        "relation_id": segment.relation_id,
        "csn": csn,
        "seq": seq,
        "rows": segment.rows,
        "bytes": segment.size,
        "schema_version": segment.schema_version,
        "stmtsn": segment.stmtsn,
        "action": segment.action,
        "payload": segment.payload,
        "files": files_to_json(segment.files),
        "first_version": first,
        "last_version": last,
    }
