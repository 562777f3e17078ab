"""A transaction as the user holds it: SQL and data in, one commit at the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import TYPE_CHECKING, Any

from freshview.errors import InvalidStatement
from freshview.relation.ingest import Data
from freshview.relation.schema import Schema
from freshview.sql.parser import parse
from freshview.sql.statements import Delete, Describe, Insert, Merge, Query, Show, Statement, Update
from freshview.transactions.dml import Statements
from freshview.transactions.transaction import Outcome, Transaction

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class UserTransaction:
    """Statements that become visible together, or not at all.

    Leaving a `with` block commits; an exception rolls back.
    """

    def __init__(
        self,
        core: Transaction,
        statements: Statements,
        read: Callable[[Statement, Transaction], DataFrame],
        committed: Callable[[Transaction], None],
        working: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """`working` is entered while a statement runs."""
        self._core = core
        self._statements = statements
        self._read = read
        self._committed = committed
        self._working = working

    @property
    def txsn(self) -> int:
        """The transaction's sequence number."""
        return self._core.txsn

    @property
    def csn(self) -> int | None:
        """The commit's sequence number, once committed."""
        return self._core.csn

    def sql(self, text: str) -> Any:
        """Run a statement: SELECT, SHOW and DESCRIBE give a DataFrame, DML an Outcome."""
        return self.run(parse(text), text)

    def run(self, statement: Statement, text: str = "") -> Any:
        """Run a statement that has been parsed."""
        with self._working():
            if isinstance(statement, Insert | Update | Delete | Merge):
                return Outcome(self._statements.run(statement))
            if isinstance(statement, Query | Show | Describe):
                return self._read(statement, self._core)
        raise InvalidStatement(
            f"statement {' '.join(text.split()):.60}",
            "it cannot run inside a transaction",
            "Run it with wh.sql().",
        )

    def create(self, table: str, schema: Schema, properties: Mapping[str, str]) -> None:
        """A table that appears with this transaction's commit."""
        self._core.create(table, schema, properties)

    def insert(self, table: str, data: Data) -> Outcome:
        """Add rows: an Arrow table, a pandas or Spark DataFrame, or a list of dicts."""
        if is_spark_frame(data):
            with self._working():
                return Outcome(self._statements.insert_frame(table, data))
        return Outcome(self._core.insert_rows(table, data))

    def upsert(self, table: str, data: Data) -> Outcome:
        """Put rows in place by primary key, whether they exist or not."""
        if is_spark_frame(data):
            with self._working():
                return Outcome(self._statements.upsert_frame(table, data))
        return Outcome(self._core.upsert_rows(table, data))

    def delete(self, table: str, keys: Data) -> Outcome:
        """Take rows away by primary key: rows with the key columns, or bare values of a single one."""
        if is_spark_frame(keys):
            with self._working():
                return Outcome(self._statements.delete_frame(table, keys))
        return Outcome(self._core.delete_keys(table, keys))

    def commit(self) -> int:
        """Make all statements visible; the CSN."""
        with self._working():
            csn = self._core.commit()
            self._committed(self._core)
        return csn

    def rollback(self) -> None:
        """Forget all statements."""
        self._core.rollback()

    def __enter__(self) -> UserTransaction:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.rollback()
        elif self._core.is_open:
            self.commit()


def is_spark_frame(data: object) -> bool:
    return type(data).__module__.startswith("pyspark.sql")
