"""The transaction that users hold: SQL and data in, one commit at the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from freshview.catalog.positions import Move
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
    """Statements that become visible together, or not at all. `Warehouse.transaction` begins one.

    A transaction reads the snapshot on which it began, and its own statements. Leaving a `with` block commits; an
    exception rolls back. Use a transaction from one thread at a time.

    >>> wh = freshview.connect(folder)
    >>> table = wh.sql("CREATE TABLE orders (id INT PRIMARY KEY, amount INT)")
    >>> with wh.transaction() as tx:
    ...     tx.insert("orders", [{"id": 1, "amount": 10}])
    ...     raise ValueError("changed my mind")
    Traceback (most recent call last):
        ...
    ValueError: changed my mind
    >>> wh.status().csn == table.csn
    True
    """

    def __init__(
        self,
        core: Transaction,
        statements: Statements,
        read: Callable[[Statement], DataFrame],
        committed: Callable[[], None],
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
        """The transaction's sequence number; SHOW TASKS lists it with each task."""
        return self._core.txsn

    @property
    def csn(self) -> int | None:
        """The commit's sequence number, once committed."""
        return self._core.csn

    def sql(self, text: str) -> Any:
        """Run a statement: SELECT, SHOW and DESCRIBE return a DataFrame, DML an Outcome.

        A statement that fails changes nothing, and the transaction goes on. DDL is refused here.

        >>> wh = freshview.connect(folder)
        >>> table = wh.sql("CREATE TABLE orders (id INT PRIMARY KEY, amount INT)")
        >>> with wh.transaction() as tx:
        ...     tx.sql("INSERT INTO orders VALUES (1, 10), (2, 20)")
        ...     tx.sql("DELETE FROM orders WHERE id = 2")
        ...     tx.sql("SELECT * FROM orders").collect()
        Outcome(rows=2, csn=None)
        Outcome(rows=1, csn=None)
        [Row(id=1, amount=10)]
        """
        return self.run(parse(text), text)

    def run(self, statement: Statement, text: str = "") -> Any:
        """Run a statement that has been parsed."""
        with self._working():
            if isinstance(statement, Insert | Update | Delete | Merge):
                return Outcome(self._statements.run(statement))
            if isinstance(statement, Query | Show | Describe):
                return self._read(statement)
        raise InvalidStatement(
            f"statement {' '.join(text.split()):.60}",
            "it cannot run inside a transaction",
            "Run it with wh.sql().",
        )

    def create(
        self, table: str, schema: Schema, properties: Mapping[str, str], facts: Mapping[str, str] | None = None
    ) -> None:
        """Create a table that becomes visible with this transaction's commit."""
        self._core.create(table, schema, properties, facts=facts)

    def write_for(self, flow: str) -> None:
        """Let this transaction write what a flow remembers, which no other may."""
        self._core.flow = flow

    def insert(self, table: str, data: Data) -> Outcome:
        """Add rows: an Arrow table, a pandas or Spark DataFrame, or a list of dicts.

        Columns are matched by name; columns that are left out are NULL. A key that exists is an error: see `upsert`.

        >>> wh = freshview.connect(folder)
        >>> table = wh.sql("CREATE TABLE orders (id INT PRIMARY KEY, amount INT)")
        >>> with wh.transaction() as tx:
        ...     tx.insert("orders", [{"id": 1, "amount": 10}, {"id": 2}])
        ...     tx.insert("orders", pa.table({"id": [3], "amount": [30]}))
        Outcome(rows=2, csn=None)
        Outcome(rows=1, csn=None)
        >>> with wh.transaction() as tx:
        ...     tx.insert("orders", [{"id": 1, "amount": 11}])
        Traceback (most recent call last):
            ...
        freshview.errors.DuplicateKey: table orders: key (id=1) exists already. ...
        """
        if is_spark_frame(data):
            with self._working():
                return Outcome(self._statements.insert_frame(table, data))
        return Outcome(self._core.insert_rows(table, data))

    def upsert(self, table: str, data: Data) -> Outcome:
        """Insert rows, or replace those with the same primary key. The old rows are not read.

        >>> wh = freshview.connect(folder)
        >>> table = wh.sql("CREATE TABLE orders (id INT PRIMARY KEY, amount INT)")
        >>> with wh.transaction() as tx:
        ...     tx.upsert("orders", [{"id": 1, "amount": 10}])
        ...     tx.upsert("orders", [{"id": 1, "amount": 11}, {"id": 2, "amount": 20}])
        Outcome(rows=1, csn=None)
        Outcome(rows=2, csn=None)
        >>> wh.sql("SELECT * FROM orders ORDER BY id").collect()
        [Row(id=1, amount=11), Row(id=2, amount=20)]
        """
        if is_spark_frame(data):
            with self._working():
                return Outcome(self._statements.upsert_frame(table, data))
        return Outcome(self._core.upsert_rows(table, data))

    def delete(self, table: str, keys: Data) -> Outcome:
        """Delete rows by primary key, given as rows of the key columns, or as bare values of a single key column.

        The old rows are not read, so keys that do not exist are no error.

        >>> wh = freshview.connect(folder)
        >>> table = wh.sql("CREATE TABLE orders (id INT PRIMARY KEY, amount INT)")
        >>> insert = wh.sql("INSERT INTO orders VALUES (1, 10), (2, 20), (3, 30)")
        >>> with wh.transaction() as tx:
        ...     tx.delete("orders", [1])
        ...     tx.delete("orders", [{"id": 2}])
        Outcome(rows=1, csn=None)
        Outcome(rows=1, csn=None)
        >>> wh.sql("SELECT id FROM orders").collect()
        [Row(id=3)]
        """
        if is_spark_frame(keys):
            with self._working():
                return Outcome(self._statements.delete_frame(table, keys))
        return Outcome(self._core.delete_keys(table, keys))

    def lookup(self, table: str, keys: pa.Table) -> pa.Table:
        """Return the rows of a table that have one of these keys, or parts of keys, as this transaction sees them."""
        return self._statements.storage.reader.lookup(self._core.state(self._core.relation(table)), keys)

    def contents(self, table: str) -> pa.Table:
        """Return all rows of a table, as this transaction sees them."""
        return self._statements.storage.reader.contents(self._core.state(self._core.relation(table)))

    def move(self, to: Move) -> None:
        """Store a source's position with the commit."""
        self._core.move_position(to)

    def commit(self) -> int:
        """Make all statements visible and return the CSN.

        The first to commit wins: WriteConflict is raised if another one has written the same keys since this one began.

        >>> wh = freshview.connect(folder)
        >>> table = wh.sql("CREATE TABLE orders (id INT PRIMARY KEY, amount INT)")
        >>> mine, theirs = wh.transaction(), wh.transaction()
        >>> rows = mine.upsert("orders", [{"id": 1, "amount": 10}]), theirs.upsert("orders", [{"id": 1, "amount": 20}])
        >>> mine.commit()
        2
        >>> theirs.commit()
        Traceback (most recent call last):
            ...
        freshview.errors.WriteConflict: table orders: key (1) was written by a transaction that committed at CSN 2. ...
        """
        with self._working():
            csn = self._core.commit()
            self._committed()
        return csn

    def rollback(self) -> None:
        """Discard all statements. Nothing happens if the transaction has ended already.

        >>> wh = freshview.connect(folder)
        >>> table = wh.sql("CREATE TABLE orders (id INT PRIMARY KEY, amount INT)")
        >>> tx = wh.transaction()
        >>> rows = tx.insert("orders", [{"id": 1, "amount": 10}])
        >>> tx.rollback()
        >>> tx.commit()
        Traceback (most recent call last):
            ...
        freshview.errors.TransactionClosed: transaction ...: it was rolled back. Begin a new one.
        >>> wh.sql("SELECT count(*) AS n FROM orders").collect()
        [Row(n=0)]
        """
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
