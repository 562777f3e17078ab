"""Remote tables: tables of a source that are not copied here. Their new state can be queried, their old state cannot.

Law: the changes and the new states of all tables of one server are read in one snapshot of it (`read`), so that no
change is seen in one of them only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from freshview.catalog.flows import FlowCatalog, SourceRecord
from freshview.catalog.records import REMOTE, Relation
from freshview.catalog.writer import Catalog
from freshview.cdc.opening import Installed, open_table
from freshview.cdc.postgres.server import Server, Snapshot
from freshview.cdc.postgres.tables import PostgresTable
from freshview.cdc.source import Poll
from freshview.errors import CaptureFailed, InvalidStatement, NotFound
from freshview.relation.schema import Schema, fold
from freshview.relation.types import DataType


@dataclass(frozen=True)
class RemoteTable:
    """A remote table that was opened."""

    relation: Relation
    record: SourceRecord
    table: PostgresTable

    @property
    def server(self) -> frozenset[tuple[str, str]]:
        """The connection, by which tables of one server are recognised: these are read in one snapshot."""
        return self.table.server.identity

    @property
    def label(self) -> str:
        """The name of the table at its source."""
        return f"{self.record.name}.{self.table.name}"

    def poll_in(self, snapshot: Snapshot, position: str | None) -> Poll:
        """The changes up to a snapshot; CaptureFailed if the table no longer has the columns that it had here."""
        poll = self.table.poll_in(snapshot, position)
        if _shape(poll.delta.schema) != _shape(self.relation.schema):
            raise CaptureFailed(
                f"remote table {self.relation.name}",
                f"columns of it, or its key, have changed at {self.label}",
                "Drop the views of the table and the remote table, and create them anew.",
            )
        return poll

    def rows(self, snapshot: Snapshot) -> pa.Table:
        """All rows of the table in a snapshot."""
        return self.table.rows(snapshot, self.table.live)


class States:
    """The new states of remote tables in one snapshot (`rules.States`); counts what is fetched."""

    def __init__(self, snapshot: Snapshot, tables: Sequence[RemoteTable]) -> None:
        self._snapshot = snapshot
        self._tables = {t.relation.name: t.table for t in tables}
        self.fetched_rows = 0
        self.fetched_bytes = 0

    def rows(self, name: str, columns: tuple[str, ...], values: pa.Table) -> pa.Table:
        found = self._tables[name].lookup(self._snapshot, columns, values)
        self.count(found)
        return found

    def count(self, fetched: pa.Table) -> None:
        self.fetched_rows += fetched.num_rows
        self.fetched_bytes += fetched.nbytes


class RemoteTables:
    """Opens the remote tables of one warehouse; each once."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._sources = FlowCatalog(catalog)
        self._open: dict[tuple[int, int], RemoteTable] = {}

    @cached_property
    def _warehouse(self) -> str:
        return self._catalog.warehouse_id()[:8]

    def relations(self) -> list[Relation]:
        """All remote tables."""
        with self._catalog.database.read() as c:
            return self._catalog.relations_in(c, kind=REMOTE)

    def source(self, name: str, table: str) -> tuple[SourceRecord, PostgresTable]:
        """A source, and a table of it as it is there; raise if the table cannot be queried."""
        record = self._sources.source(name)
        if record.kind != "POSTGRES":
            raise InvalidStatement(
                f"remote table {name}.{table}",
                f"a source USING {record.kind} delivers changes and cannot be queried for rows",
                "Take its changes into a table of the warehouse: CREATE FLOW.",
            )
        found = open_table(record, table)
        assert isinstance(found, PostgresTable)
        return record, found

    def record(self, relation: Relation) -> SourceRecord:
        """The source of a remote table."""
        return self._sources.source(relation.facts["source"])

    def server(self, relation: Relation) -> frozenset[tuple[str, str]]:
        """The server of a remote table, from its options: the server is not asked."""
        return Server(self.record(relation).options["url"]).identity

    def open(self, relation: Relation) -> RemoteTable:
        """A remote table, opened; NotFound if its source is gone."""
        key = (relation.id, relation.epoch)
        if key not in self._open or self._open[key].relation != relation:
            if relation.kind != REMOTE:
                raise NotFound(f"remote table {relation.name}", "it was dropped meanwhile", "See SHOW TABLES.")
            record = self.record(relation)
            table = open_table(record, relation.facts["table"], relation.schema, self._owner(relation))
            assert isinstance(table, PostgresTable)
            self._open[key] = RemoteTable(relation, record, table)
        return self._open[key]

    def forget(self, relations: Iterable[Relation]) -> None:
        """Have tables opened anew, as they are at their servers then."""
        for relation in relations:
            self._open.pop((relation.id, relation.epoch), None)

    def install(self, table: RemoteTable) -> None:
        """Set up the capture of a table at its server: for the first view that reads it, or in place of a lost one."""
        if isinstance(table.table, Installed):
            table.table.drop()  # what a process that died may have left
            table.table.install()

    def uninstall(self, table: RemoteTable) -> None:
        """Remove what the capture of a table keeps at its server, which would grow with nobody to read it."""
        if isinstance(table.table, Installed):
            table.table.drop()

    def _owner(self, relation: Relation) -> str:
        return f"{self._warehouse}_{relation.id}"


def _shape(schema: Schema) -> tuple[list[tuple[str, DataType]], set[str]]:
    """What has to stay of a table: its columns and the columns of its key."""
    return [(fold(c.name), c.type) for c in schema.columns], set(map(fold, schema.key))


@contextmanager
def one_snapshot(tables: Sequence[RemoteTable]) -> Iterator[Snapshot]:
    """One snapshot of the server of these tables."""
    assert len({t.server for t in tables}) == 1
    with tables[0].table.server.snapshot() as snapshot:
        yield snapshot


def by_server(tables: Sequence[RemoteTable]) -> list[list[RemoteTable]]:
    """Tables, grouped by their servers."""
    found: dict[frozenset[tuple[str, str]], list[RemoteTable]] = {}
    for table in tables:
        found.setdefault(table.server, []).append(table)
    return list(found.values())


def whole_states(tables: Sequence[RemoteTable], snapshot: Snapshot) -> Mapping[str, pa.Table]:
    """All rows of tables in one snapshot, by the names that the tables have here."""
    return {t.relation.name: t.rows(snapshot) for t in tables}
