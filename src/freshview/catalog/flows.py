"""Sources and flows in the catalog: what they are, when flows were last polled, and the events that they set aside."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from freshview.catalog import tables as t
from freshview.catalog.records import REMOTE, Relation
from freshview.catalog.writer import Catalog
from freshview.errors import AlreadyExists, InvalidStatement, NotFound, WriteConflict
from freshview.relation.schema import check_relation_name, fold


@dataclass(frozen=True)
class SourceRecord:
    """A system that others own: `kind` is how it is read, such as POSTGRES or DEBEZIUM."""

    id: int
    name: str
    kind: str
    options: Mapping[str, str]


@dataclass(frozen=True)
class FlowRecord:
    """A flow from a table of a source into a table here; `spec` is the statement that created it, as data.

    Times are in µs on the catalog's clock; `error` is that of the last poll, if it failed.
    """

    id: int
    name: str
    relation_id: int
    source_id: int
    spec: Mapping[str, Any]
    memory_id: int | None = None
    polled_at: int | None = None
    failed_at: int | None = None
    error: str | None = None


@dataclass(frozen=True)
class SetAside:
    """An event that a flow could not read: where it stands, why, its text, and when it was set aside."""

    id: int
    flow_id: int
    place: str
    cause: str
    text: str
    at: int


@dataclass(frozen=True)
class FlowCatalog:
    """Reads and writes the records of sources and flows."""

    catalog: Catalog

    # -- sources -------------------------------------------------------------------------------

    def create_source(self, name: str, kind: str, options: Mapping[str, str]) -> SourceRecord:
        """Store a source; AlreadyExists if one has the name."""
        check_relation_name(name)
        with self.catalog.database.write() as c:
            self.catalog.database.lock_clock(c)
            if _by_name(c, t.sources, name) is not None:
                raise AlreadyExists(f"source {name}", "exists already", "Choose another name, or use IF NOT EXISTS.")
            values = {"name": name, "folded": fold(name), "kind": kind, "options": json.dumps(dict(options))}
            number = int(c.execute(t.sources.insert().values(**values)).inserted_primary_key[0])  # type: ignore[index]
        return SourceRecord(number, name, kind, dict(options))

    def source(self, name: str) -> SourceRecord:
        """The source of that name; NotFound if there is none."""
        found = self.find_source(name)
        if found is None:
            raise NotFound(f"source {name}", "not found", "SHOW SOURCES lists what there is.")
        return found

    def find_source(self, name: str) -> SourceRecord | None:
        with self.catalog.database.read() as c:
            row = _by_name(c, t.sources, name)
            return None if row is None else _source(row)

    def sources(self) -> list[SourceRecord]:
        with self.catalog.database.read() as c:
            return [_source(row) for row in c.execute(sa.select(t.sources).order_by(t.sources.c.folded))]

    def has_sources(self) -> bool:
        """Whether there is a source: without one there are neither flows nor remote tables."""
        with self.catalog.database.read() as c:
            return c.execute(sa.select(t.sources.c.id).limit(1)).first() is not None

    def alter_source(self, record: SourceRecord, options: Mapping[str, str], readers: int) -> None:
        """Give a source other options; WriteConflict if its options changed meanwhile, or other flows and remote tables
        read it than the `readers` for which the options were checked."""
        with self.catalog.database.write() as c:
            self.catalog.database.lock_clock(c)
            row = c.execute(sa.select(t.sources).where(t.sources.c.id == record.id)).one_or_none()
            if row is None:
                raise NotFound(f"source {record.name}", "it was dropped meanwhile", "SHOW SOURCES lists what there is.")
            flows = c.execute(sa.select(t.flows.c.id).where(t.flows.c.source_id == record.id)).all()
            now = len(flows) + len(self._remote_tables(c, record))
            if _source(row) != record or now != readers:
                raise WriteConflict(
                    f"source {record.name}", "another statement changed it, or what reads it, meanwhile", "Try again."
                )
            values = {"options": json.dumps(dict(options))}
            c.execute(t.sources.update().where(t.sources.c.id == record.id).values(**values))

    def drop_source(self, record: SourceRecord) -> None:
        """Remove a source that nothing uses."""
        with self.catalog.database.write() as c:
            self.catalog.database.lock_clock(c)
            users = c.execute(sa.select(t.flows.c.name).where(t.flows.c.source_id == record.id)).scalars().all()
            if users:
                raise InvalidStatement(
                    f"source {record.name}", f"flow {users[0]} reads it", "Drop that first, or use CASCADE."
                )
            if remote := self._remote_tables(c, record):
                raise InvalidStatement(
                    f"source {record.name}",
                    f"remote table {remote[0].name} is a table of it",
                    "Drop that first, or use CASCADE.",
                )
            c.execute(t.sources.delete().where(t.sources.c.id == record.id))

    def remote_tables(self, record: SourceRecord) -> list[Relation]:
        """The remote tables of a source."""
        with self.catalog.database.read() as c:
            return self._remote_tables(c, record)

    def _remote_tables(self, c: Connection, record: SourceRecord) -> list[Relation]:
        return [r for r in self.catalog.relations_in(c, kind=REMOTE) if r.facts["source"] == record.name]

    # -- flows ---------------------------------------------------------------------------------

    def create_flow(
        self, name: str, relation_id: int, source_id: int, spec: Mapping[str, Any], memory_id: int | None
    ) -> FlowRecord:
        """Store a flow; AlreadyExists if one has the name or feeds the table."""
        check_relation_name(name)
        f = t.flows.c
        with self.catalog.database.write() as c:
            self.catalog.database.lock_clock(c)
            if _by_name(c, t.flows, name) is not None:
                raise AlreadyExists(f"flow {name}", "exists already", "Choose another name, or use IF NOT EXISTS.")
            other = c.execute(sa.select(f.name).where(f.relation_id == relation_id)).scalar()
            if other is not None:
                raise AlreadyExists(f"flow {other}", "feeds that table already", "A table is fed by one flow.")
            if c.execute(sa.select(t.sources.c.id).where(t.sources.c.id == source_id)).first() is None:
                raise NotFound("source", "it was dropped meanwhile", "SHOW SOURCES lists what there is.")
            values = {"name": name, "folded": fold(name), "relation_id": relation_id, "source_id": source_id}
            stored = t.flows.insert().values(**values, spec=json.dumps(dict(spec)), memory_id=memory_id)
            number = int(c.execute(stored).inserted_primary_key[0])  # type: ignore[index]
        return FlowRecord(number, name, relation_id, source_id, dict(spec), memory_id)

    def flow(self, name: str) -> FlowRecord:
        """The flow of that name; NotFound if there is none."""
        found = self.find_flow(name)
        if found is None:
            raise NotFound(f"flow {name}", "not found", "SHOW FLOWS lists what there is.")
        return found

    def find_flow(self, name: str) -> FlowRecord | None:
        with self.catalog.database.read() as c:
            row = _by_name(c, t.flows, name)
            return None if row is None else _flow(row)

    def flows(self) -> list[FlowRecord]:
        with self.catalog.database.read() as c:
            return [_flow(row) for row in c.execute(sa.select(t.flows).order_by(t.flows.c.folded))]

    def drop_flow(self, flow_id: int) -> None:
        """Remove a flow, its position and the events that it set aside; the rows that it brought stay."""
        with self.catalog.database.write() as c:
            self.catalog.database.lock_clock(c)
            f = t.flows.c
            relation_id = c.execute(sa.select(f.relation_id).where(f.id == flow_id)).scalar()
            c.execute(t.positions.delete().where(t.positions.c.relation_id == relation_id))
            c.execute(t.quarantine.delete().where(t.quarantine.c.flow_id == flow_id))
            c.execute(t.flows.delete().where(f.id == flow_id))

    def failed(self, flow_id: int, error: str) -> None:
        """Note that a poll failed, for those who ask for the state of flows."""
        with self.catalog.database.write(durable=False) as c:
            values = {"failed_at": self.catalog.database.now(c), "error": error}
            c.execute(t.flows.update().where(t.flows.c.id == flow_id).values(**values))

    def set_aside(self, flow_id: int | None = None) -> list[SetAside]:
        """The events that a flow, or all flows, set aside, oldest first."""
        q = t.quarantine.c
        query = sa.select(t.quarantine).order_by(q.id)
        with self.catalog.database.read() as c:
            rows = c.execute(query if flow_id is None else query.where(q.flow_id == flow_id))
            return [SetAside(r.id, r.flow_id, r.place, r.cause, r.text, r.at) for r in rows]

    def discard(self, ids: Sequence[int]) -> None:
        """Forget events that were set aside."""
        with self.catalog.database.write() as c:
            c.execute(t.quarantine.delete().where(t.quarantine.c.id.in_(list(ids))))


def _by_name(c: Connection, table: sa.Table, name: str) -> Row[Any] | None:
    return c.execute(sa.select(table).where(table.c.folded == fold(name))).one_or_none()


def _source(row: Row[Any]) -> SourceRecord:
    return SourceRecord(row.id, row.name, row.kind, json.loads(row.options))


def _flow(row: Row[Any]) -> FlowRecord:
    times = (row.polled_at, row.failed_at, row.error)
    return FlowRecord(row.id, row.name, row.relation_id, row.source_id, json.loads(row.spec), row.memory_id, *times)
