"""CREATE, ALTER and DROP of tables and views."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from freshview.catalog.lineage import is_auxiliary
from freshview.catalog.records import DIMENSION, REMOTE, Relation
from freshview.catalog.writer import Catalog
from freshview.errors import AlreadyExists, InvalidStatement
from freshview.relation.schema import Schema
from freshview.sql.binding import bind
from freshview.sql.statements import (
    AddColumns,
    AlterView,
    CreateRemoteTable,
    CreateTable,
    CreateView,
    DropRemoteTable,
    DropTable,
    DropView,
    RenameColumn,
    RenameTable,
    Statement,
)
from freshview.storage.external import describe, external_schema, open_external
from freshview.transactions.transaction import Outcome
from freshview.transactions.user_transaction import UserTransaction
from freshview.views.dimensions import DimensionViews
from freshview.views.views import Views

if TYPE_CHECKING:
    from freshview.spark.engine import SparkEngine


class DataDefinition:
    """Runs the statements that create, alter and drop tables and views."""

    def __init__(
        self,
        catalog: Catalog,
        views: Views,
        dimensions: DimensionViews,
        engine: Callable[[], SparkEngine],
        transaction: Callable[[], UserTransaction],
        make_way: Callable[[Iterable[str]], None],
        adopt: Callable[[Iterable[Relation]], None],
    ) -> None:
        """`adopt` is called with relations whose rows were written in bulk."""
        self._catalog = catalog
        self._views = views
        self._dimensions = dimensions
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
            case RenameTable() if self._catalog.relation(statement.name).kind == REMOTE:
                what = f"remote table {statement.name}"
                raise InvalidStatement(what, "views know it by its name", "Create another one, and views of that.")
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
            case CreateRemoteTable() | DropRemoteTable():
                return self._remote_table(statement)
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
        named = map(self._catalog.find, _names_in(statement.query))
        if any(r is not None and r.kind == REMOTE for r in named):
            return self._dimensions.create(statement)
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
        if isinstance(statement, DropView) and self._catalog.relation(statement.name).kind == DIMENSION:
            return self._drop_dimension(self._catalog.relation(statement.name), statement.cascade)
        if isinstance(statement, DropView):
            return Outcome(0, self._views.lifecycle.drop(statement.name, cascade=statement.cascade))
        relation = self._catalog.relation(statement.name)
        if relation.kind in ("view", DIMENSION):
            raise InvalidStatement(f"{relation.kind} {relation.name}", "is no table", "Use DROP MATERIALIZED VIEW.")
        if relation.kind == REMOTE:
            raise InvalidStatement(f"{relation.kind} {relation.name}", "is no table here", "Use DROP REMOTE TABLE.")
        self._views.lifecycle.require_unused(relation, cascade=statement.cascade)
        return Outcome(0, self._catalog.drop(statement.name))

    def _drop_dimension(self, view: Relation, cascade: bool) -> Outcome:
        self._views.lifecycle.require_unused(view, cascade=cascade)
        return Outcome(0, self._dimensions.drop(view))

    def _remote_table(self, statement: CreateRemoteTable | DropRemoteTable) -> Outcome:
        """CREATE REMOTE TABLE and DROP REMOTE TABLE."""
        known = self._catalog.find(statement.name)
        if isinstance(statement, CreateRemoteTable):
            if known is not None and statement.if_not_exists:
                return Outcome(0, self._catalog.snapshot())
            self._catalog.require_free(statement.name)
            given = (statement.name, statement.source, statement.table, statement.keys)
            return Outcome(0, self._dimensions.create_table(*given))
        if known is None and statement.if_exists:
            return Outcome(0, self._catalog.snapshot())
        relation = self._catalog.relation(statement.name)
        if relation.kind != REMOTE:
            raise InvalidStatement(f"{relation.kind} {relation.name}", "is no remote table", "See SHOW TABLES.")
        above = self._views.catalog.dependents(relation)
        if above and not statement.cascade:
            names = ", ".join(v.name for v in above)
            raise InvalidStatement(
                f"remote table {relation.name}", f"is used by {names}", "Drop those first, or say CASCADE."
            )
        for view in above:
            self._drop_dimension(view, cascade=True)
        return Outcome(0, self._catalog.drop(relation.name))

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
