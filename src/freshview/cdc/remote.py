"""Remote tables: tables of a source that are not copied here. Their new state can be queried, their old state cannot.

Law: the changes and the new states of all tables of one server are read in one snapshot of it (`snapshots`), so that no
change is seen in one of them only. Of several servers one snapshot each is open from the first poll to the last lookup:
what a poll has not delivered, no lookup sees, and what it has delivered, every lookup sees.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from types import MappingProxyType

import pyarrow as pa

from freshview.catalog.flows import FlowCatalog, SourceRecord
from freshview.catalog.records import REMOTE, Relation
from freshview.catalog.writer import Catalog
from freshview.cdc.captures import Capture
from freshview.cdc.model import upserted
from freshview.cdc.opening import Installed, open_table
from freshview.cdc.postgres.server import Server, Snapshot, quoted
from freshview.cdc.postgres.tables import PostgresTable, is_text_form
from freshview.cdc.source import Poll
from freshview.errors import CaptureFailed, InvalidStatement, NotFound
from freshview.relation.conditions import Among, Conditions
from freshview.relation.schema import Schema, fold
from freshview.relation.types import DataType

Identity = frozenset[tuple[str, str]]  # of a server: what its connection string says
_PATIENCE = 30  # seconds for a lock while another server's tables are locked, which no server can find to be a deadlock


@dataclass(frozen=True)
class RemoteTable:
    """A remote table that was opened."""

    relation: Relation
    record: SourceRecord
    table: PostgresTable

    @property
    def server(self) -> Identity:
        """The connection, by which tables of one server are recognised: these are read in one snapshot."""
        return self.table.server.identity

    @property
    def label(self) -> str:
        """The name of the table at its source."""
        return f"{self.record.name}.{self.table.name}"

    @property
    def capture(self) -> Capture:
        """What polls of the table deliver to delta rules."""
        return self.table.capture.for_views

    def poll_in(self, snapshots: Snapshots, position: str | None) -> Poll:
        """The changes up to a snapshot, in the sets of `capture`; CaptureFailed if the table no longer has the columns
        that it had here."""
        poll = self.table.poll_in(snapshots[self.server], position)
        if _shape(poll.delta.schema) != _shape(self.relation.schema):
            raise CaptureFailed(
                f"remote table {self.relation.name}",
                f"columns of it, or its key, have changed at {self.label}",
                "Drop the views of the table and the remote table, and create them anew.",
            )
        delta = poll.delta if "ins" in self.capture.sets else upserted(poll.delta)
        return replace(poll, capture=self.capture, delta=delta)


Snapshots = Mapping[Identity, Snapshot]


@contextmanager
def snapshots(tables: Iterable[RemoteTable]) -> Iterator[Snapshots]:
    """One snapshot of each server of these tables, all open together."""
    found: dict[Identity, list[PostgresTable]] = {}
    for table in tables:
        found.setdefault(table.server, []).append(table.table)
    with ExitStack() as stack:
        connections = {i: stack.enter_context(group[0].server.connect()) for i, group in found.items()}
        patience = _PATIENCE if len(found) > 1 else 0
        opened = {}
        for identity, group in found.items():
            names = [table.name for table in group]
            opened[identity] = stack.enter_context(group[0].server.snapshot_on(connections[identity], names, patience))
        yield opened


@contextmanager
def installing(tables: Iterable[RemoteTable], patience: int = 0) -> Iterator[None]:
    """Hold off other processes that install captures of these tables, until their positions are committed; wait for
    such processes for some seconds (0: without end)."""
    with ExitStack() as held:
        for table in sorted(tables, key=lambda t: (sorted(t.server), t.table.installed)):  # so none wait in a circle
            held.enter_context(table.table.installing(patience))
        yield


class FetchedStates:
    """The new states of remote tables in one snapshot of each server (`rules.States`); counts what is fetched."""

    def __init__(self, snapshots: Snapshots, tables: Sequence[RemoteTable]) -> None:
        self._snapshots = snapshots
        self._tables = {t.relation.name: t for t in tables}
        self.fetched_rows = 0
        self.fetched_bytes = 0

    def rows(self, name: str, columns: tuple[str, ...], values: pa.Table) -> pa.Table:
        table = self._tables[name]
        found = table.table.lookup(self._snapshots[table.server], columns, values)
        self.count(found)
        return found

    def count(self, fetched: pa.Table) -> None:
        self.fetched_rows += fetched.num_rows
        self.fetched_bytes += fetched.nbytes


def whole_states(
    tables: Iterable[RemoteTable], snapshots: Snapshots, asked: Mapping[str, Conditions] = MappingProxyType({})
) -> dict[str, pa.Table]:
    """The rows of tables, by the names that the tables have here: all of them, but where `asked` has conditions on the
    rows of a table, at least those that meet these."""
    return {t.relation.name: _rows(t.table, snapshots[t.server], asked.get(t.relation.name, ())) for t in tables}


def _rows(table: PostgresTable, snapshot: Snapshot, conditions: Conditions) -> pa.Table:
    """The rows of a table that meet conditions, as far as the server can check them, and maybe others.

    Law: the server finds a value equal wherever Spark does. So it is for integers, dates and texts (under a collation
    that is not deterministic it finds more); other types are left to Spark.
    """
    tests, values = [table.live], []
    for name, condition in conditions:
        type_ = table.layout.types.get(name)
        if isinstance(condition, Among) and not condition.nulls and type_ and not is_text_form(type_):
            tests.append(f"t.{quoted(name)} = ANY (%s::{type_}[])")
            values.append(condition.values.to_pylist())
    return table.rows(snapshot, " AND ".join(tests), values)


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

    def servers(self, relations: Iterable[Relation]) -> dict[int, Identity]:
        """The servers of remote tables by the ids of these, from the options of the sources: no server is asked."""
        urls = {record.name: record.options.get("url") for record in self._sources.sources()}
        return {r.id: _identity(url) for r in relations if (url := urls.get(r.facts["source"]))}

    def open(self, relation: Relation) -> RemoteTable:
        """A remote table, opened; NotFound if its source is gone."""
        key = (relation.id, relation.epoch)
        if relation.kind != REMOTE:
            raise NotFound(f"remote table {relation.name}", "it was dropped meanwhile", "See SHOW TABLES.")
        record = self.record(relation)  # its options may have been altered, by another process too
        known = self._open.get(key)
        if known is None or known.relation != relation or known.record != record:
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


@lru_cache(maxsize=256)
def _identity(url: str) -> Identity:
    return Server(url).identity


def _shape(schema: Schema) -> tuple[list[tuple[str, DataType]], set[str]]:
    """What has to stay of a table: its columns and the columns of its key."""
    return [(fold(c.name), c.type) for c in schema.columns], set(map(fold, schema.key))
