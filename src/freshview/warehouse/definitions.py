"""CREATE, ALTER and DROP of tables and views."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from freshview.catalog.records import Relation
from freshview.catalog.views import is_auxiliary
from freshview.catalog.writer import Catalog
from freshview.errors import AlreadyExists, InvalidStatement
from freshview.relation.schema import Schema
from freshview.sql.binding import bind
from freshview.sql.statements import (
    AddColumns,
    AlterView,
    CreateTable,
    CreateView,
    DropTable,
    DropView,
    RenameColumn,
    RenameTable,
    Statement,
)
from freshview.storage.external import describe, external_schema, open_external
from freshview.transactions.transaction import Outcome
from freshview.views.views import Views
from freshview.warehouse.transaction import UserTransaction

if TYPE_CHECKING:
    from freshview.spark.engine import SparkEngine


class DataDefinition:
    """Runs the statements that create, alter and drop tables and views."""

    def __init__(
        self,
        catalog: Catalog,
        views: Views,
        engine: Callable[[], SparkEngine],
        transaction: Callable[[], UserTransaction],
        make_way: Callable[[Iterable[str]], None],
        adopt: Callable[[Iterable[Relation]], None],
    ) -> None:
        """`adopt` is called with relations whose rows were written in bulk."""
        self._catalog = catalog
        self._views = views
        self._engine = engine
        self._transaction = transaction
        self._make_way = make_way
        self._adopt = adopt

    def run(self, statement: Statement) -> Outcome:
        match statement:
            case CreateTable() | CreateView():
                return self._create(statement)
            case AlterView():
                view = self._catalog.view(statement.name)
                _require_users(view)
                return Outcome(0, self._views.modes.set_properties(view, dict(statement.properties)))
            case DropTable() | DropView():
                return self._drop(statement)
            case RenameTable():
                _require_users(self._catalog.relation(statement.name))
                return Outcome(0, self._catalog.rename(statement.name, statement.new_name))
            case AddColumns():
                self._require_own(statement.name)
                return Outcome(0, self._catalog.alter(statement.name, lambda s: s.with_columns(statement.columns)))
            case RenameColumn():
                self._views.lifecycle.require_unused(self._require_own(statement.name))
                old, new = statement.old, statement.new
                return Outcome(0, self._catalog.alter(statement.name, lambda s: s.with_renamed(old, new)))
        raise InvalidStatement(f"statement {statement}", "cannot run here", "See the SQL reference.")

    def _create(self, statement: CreateTable | CreateView) -> Outcome:
        try:
            return self._create_view(statement) if isinstance(statement, CreateView) else self._create_table(statement)
        except AlreadyExists:
            if statement.if_not_exists:
                return Outcome(0, self._catalog.snapshot())
            raise

    def _create_view(self, statement: CreateView) -> Outcome:
        self._make_way(_names_in(statement.query))
        rows, csn = self._views.lifecycle.create(statement)
        self._adopt([self._catalog.view(statement.name)])
        return Outcome(rows, csn)

    def _create_table(self, statement: CreateTable) -> Outcome:
        if statement.location is not None:
            return self._create_external(statement, statement.location)
        if statement.query is not None:
            return self._create_from_query(statement, statement.query)
        assert statement.schema is not None
        _, csn = self._catalog.create(statement.name, "table", statement.schema, properties=dict(statement.properties))
        return Outcome(0, csn)

    def _create_external(self, statement: CreateTable, location: str) -> Outcome:
        place = location if "://" in location else str(Path(location).absolute())
        table = open_external(place)
        schema, properties = _keyed(external_schema(table, statement.key), statement), dict(statement.properties)
        _, csn = self._catalog.create(
            statement.name, "external", schema, location=place, properties=properties, main=describe(table)
        )
        return Outcome(0, csn)

    def _create_from_query(self, statement: CreateTable, query: str) -> Outcome:
        """CREATE TABLE … AS SELECT: one transaction makes the table and its rows visible together."""
        self._catalog.require_free(statement.name)
        with self._transaction() as transaction:
            frame = transaction.sql(query)
            schema = self._engine().schema_of(frame, ())
            transaction.create(statement.name, _keyed(schema, statement), dict(statement.properties))
            rows = transaction.insert(statement.name, frame).rows
        return Outcome(rows, transaction.csn)

    def _drop(self, statement: DropTable | DropView) -> Outcome:
        if statement.if_exists and self._catalog.find(statement.name) is None:
            return Outcome(0, self._catalog.snapshot())
        if isinstance(statement, DropView):
            return Outcome(0, self._views.lifecycle.drop(statement.name, cascade=statement.cascade))
        relation = self._catalog.relation(statement.name)
        if relation.kind == "view":
            raise InvalidStatement(f"view {relation.name}", "is not a table", "Use DROP MATERIALIZED VIEW.")
        self._views.lifecycle.require_unused(relation, cascade=statement.cascade)
        return Outcome(0, self._catalog.drop(statement.name))

    def _require_own(self, name: str) -> Relation:
        relation = self._catalog.relation(name)
        if relation.kind != "table":
            raise InvalidStatement(
                f"{relation.kind} {relation.name}", "its columns cannot be changed here", "Change its source."
            )
        return relation


def _require_users(relation: Relation) -> None:
    """Raise if a relation is an auxiliary view."""
    if is_auxiliary(relation):
        cause = "it is an auxiliary view: the optimiser decides about it"
        raise InvalidStatement(f"view {relation.name}", cause, "Drop it, or leave it as it is.")


def _keyed(schema: Schema, statement: CreateTable) -> Schema:
    """Return the schema with the key that a statement declares, spelled as its columns are."""
    return Schema(schema.columns, tuple(schema.column(k).name for k in statement.key))


def _names_in(query: str) -> Iterator[str]:
    """Yield the names of the relations that a query reads."""
    for ref in bind(query, lambda _: True).tables.values():
        yield ref.name
