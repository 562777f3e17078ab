"""Every error a caller can meet: one root, one class per condition worth catching.

A message names the thing, then the cause, then what to do about it. The docstrings are the error reference:
`python -m freshview.cli.errors_reference` writes docs/errors.md from them.

>>> wh = freshview.connect(folder)
>>> try:
...     wh.sql("INSERT INTO orders VALUES (1)")
... except freshview.errors.NotFound as error:
...     error.what, error.cause
('table or view orders', 'not found at CSN 0')
"""

from __future__ import annotations


class FreshviewError(Exception):
    """Root of all errors that Freshview raises on purpose; `what`, `cause` and `remedy` are parts of its message."""

    def __init__(self, what: str, cause: str = "", remedy: str = "") -> None:
        self.what = what
        self.cause = cause
        self.remedy = remedy
        message = f"{what}: {cause}" if cause else what
        if remedy:
            message = f"{message.rstrip('.')}. {remedy}"
        super().__init__(message)

    def __reduce__(self) -> tuple[type[FreshviewError], tuple[str, str, str]]:
        return type(self), (self.what, self.cause, self.remedy)


def first_line(error: BaseException | str) -> str:
    """The first line of an error's words, or the name of its class: what stands in a message of ours."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


class WriteConflict(FreshviewError):
    """Another transaction that committed after our snapshot wrote the same rows.

    Cause: The first to commit wins. Two transactions wrote one key, or deleted equal rows of a table without a key; or
    the table was altered, renamed or dropped meanwhile; or others kept changing what an eager view reads. Nothing of
    the transaction was committed.

    Remedy: Run the whole transaction again, with its reads. A statement that commits by itself is tried five times
    before you see this.

    Example: table customer: … was written by a transaction that committed at CSN 3. Run the transaction again.
    """


class DuplicateKey(FreshviewError):
    """A statement would leave two rows with one primary key.

    Cause: INSERT gave a key that exists, or one statement gave a key twice.

    Remedy: Replace rows with `upsert` or MERGE, or give another key.

    Example: table customer: key (id=1) exists already. Use upsert or MERGE to replace rows, or another key.
    """


class NotNullViolation(FreshviewError):
    """A NULL was given for a column that is NOT NULL or part of a key.

    Cause: The row has NULL there, or leaves the column out.

    Remedy: Give a value.

    Example: column name of customer: row 0 has NULL. The column is NOT NULL; give a value.
    """


class NotFound(FreshviewError):
    """No relation, column or version of that name.

    Cause: A wrong name, something that was dropped, or a version that is not committed yet.

    Remedy: SHOW TABLES, SHOW MATERIALIZED VIEWS and DESCRIBE tell what there is; DESCRIBE HISTORY tells the versions.

    Example: table or view custmer: not found. …
    """


class AlreadyExists(FreshviewError):
    """The name is taken.

    Cause: Tables and views share their names, whatever the case.

    Remedy: Choose another name, drop what has it, or say IF NOT EXISTS.

    Example: table customer: exists already. Choose another name, drop it, or say IF NOT EXISTS.
    """


class InvalidStatement(FreshviewError):
    """A statement that cannot be understood or is not allowed here.

    Cause: A mistake in the text, a construct that is not supported, a property or an option that is not known, or DDL
    inside a transaction.

    Remedy: The message says what was expected; the SQL reference says what there is.

    Example: statement DROP TABLE customer: it cannot run inside a transaction. Run it with wh.sql().
    """


class TypeMismatch(FreshviewError):
    """A value or a type that the column cannot hold exactly.

    Cause: A value out of range, of another type, or too long; or a column type that cannot be kept exactly (VARIANT,
    TIME, INTERVAL, collated strings).

    Remedy: Convert the value first, or declare another type.

    Example: column id of customer: it cannot be stored as int: …. Convert it first.
    """


class FieldMismatch(FreshviewError):
    """Rows whose structs have other fields than the column that is to hold them.

    Cause: A mistake in Freshview, or a data file of an external Delta table whose nested fields are spelled otherwise
    than the table's. Arrow would fill such fields with NULL; nothing is stored instead. A query of a view that meets
    this is answered from the view's definition.

    Remedy: Create the view again, and report this with its definition; rewrite the file that the message names.

    Example: column who: it has the fields Name, age, where name, age were expected. Create the view again, and report
    this with its definition.
    """


class QueryFailed(FreshviewError):
    """Spark ran the query and the query itself failed (a cast, a division, a missing file).

    Cause: The data does not suit the query, as Spark's message says. This comes from statements and from the command
    line; a DataFrame that `wh.sql` returned fails with PySpark's own exceptions when it is read.

    Remedy: Correct the data or the statement (`try_divide`, `try_cast`).

    Example: query SELECT 1 / (id - 1) FROM customer: [DIVIDE_BY_ZERO] …. Correct the data or the statement.
    """


class SparkFailed(QueryFailed):
    """Spark could not run the query (memory, disk, a lost executor); the same query may succeed later.

    Cause: Too little memory or disk, a worker that was lost, or a Spark Connect server that was started anew.

    Remedy: Try again; give Spark more memory or disk; open the warehouse again after the server was restarted. The
    manager tries again by itself.

    Example: query SELECT …: No space left on device. Give Spark more memory or disk.
    """


class BroadcastTooLarge(SparkFailed):
    """A side of a join that was taken for small is not.

    Cause: Spark sends the small side of a join to all workers, and this one did not fit. A refresh that meets this
    recomputes the view instead.

    Remedy: Give Spark more memory, or take the hint out of your query.

    Example: query SELECT …: Cannot broadcast the table that is larger than 8.0 GiB: 9 GiB. Give Spark more memory.
    """


class Cancelled(SparkFailed):
    """Somebody cancelled the query's jobs.

    Cause: Ctrl-C, a job that gave way to a statement, or `cancelJobGroup` and its like from outside.

    Remedy: Run it again. A maintenance job that was cancelled stays pending, and nothing is lost.

    Example: query SELECT …: [SPARK_JOB_CANCELLED] Job 3 cancelled …. Run it again.
    """


class Crowded(FreshviewError):
    """Others kept maintaining the same view; the same call may succeed later.

    Cause: Other processes finished jobs of the view again and again while this call was at work.

    Remedy: Try again; let one process maintain the view (`freshview serve`).

    Example: view totals: others kept maintaining it at the same time. Try again.
    """


class NotMaintainable(FreshviewError):
    """A view definition that cannot be kept as asked.

    Cause: The definition is not determined by its tables (`rand()`, `now()`, LIMIT without ORDER BY); or `'refresh' =
    'incremental'` was asked for and an operator has to be recomputed; or an eager view would read what is not eager or
    what others write.

    Remedy: The message names the operator and a way out.

    Example: RAND(): its value is not determined by the tables. Leave it out, or put the value into a table.
    """


class ViewUnusable(FreshviewError):
    """A view that cannot be brought up to date until its data is corrected.

    Cause: A commit would leave an eager view without an answer, such as a division by zero in a row that is inserted:
    the commit does not happen. Or the view's rows were stored by another version of Freshview, in another form.

    Remedy: Correct the data, or make the view lazy; create the view again with CREATE OR REPLACE MATERIALIZED VIEW. A
    lazy view never raises this: a query shows the definition's own error, `freshness="any"` reads the last good state,
    and corrected data heals the view.

    Example: eager view shares: it cannot be maintained with this commit: …. Correct the data, or make the view lazy:
    ALTER MATERIALIZED VIEW … SET TBLPROPERTIES ('maintenance'='lazy').
    """


class SnapshotExpired(FreshviewError):
    """The version asked for is no longer kept.

    Cause: VACUUM removed it; or the transaction was paused for longer than its heartbeat lasts; or the warehouse was
    closed.

    Remedy: Read a newer version, vacuum with a longer retention, or run the transaction again.

    Example: customer at CSN 1: versions before CSN 3 have been vacuumed. Read a newer version, or vacuum with a longer
    retention.
    """


class TransactionClosed(FreshviewError):
    """The transaction has already been committed or rolled back.

    Cause: A statement came after COMMIT, ROLLBACK or the end of the `with` block.

    Remedy: Begin a new transaction.

    Example: transaction 2: it was committed. Begin a new one.
    """


class WarehouseClosed(FreshviewError):
    """The warehouse has been closed.

    Cause: A call came after `close()`, or after the end of the `with` block that opened the warehouse.

    Remedy: Open it again with `freshview.connect`.

    Example: catalog sqlite:////data/warehouse/catalog.db: the warehouse was closed. Open it again.
    """


class CorruptWarehouse(FreshviewError):
    """Stored data is missing or damaged.

    Cause: Files were removed or changed by something else (another tool's VACUUM), the catalog was restored to another
    time than the folder, the folder belongs to another catalog, or the catalog was written by a newer Freshview.

    Remedy: Restore what the message names from a backup; open the folder with the catalog it was made with; upgrade
    Freshview.

    Example: warehouse …: it belongs to another catalog. Open it with the catalog it was made with, or choose another
    folder.
    """


class CatalogUnavailable(FreshviewError):
    """The catalog database cannot be reached or stays locked.

    Cause: The server is down, the address or password is wrong, a right is missing, the driver is not installed, or
    another process held SQLite's lock for too long.

    Remedy: Check the server, the URL and the rights; several machines need PostgreSQL.

    Example: catalog mysql://…: is neither SQLite nor PostgreSQL. Use sqlite:///… or postgresql://…
    """


class StorageUnavailable(FreshviewError):
    """The warehouse folder cannot be read or written.

    Cause: The folder is missing, read-only or full; or a worker of the cluster has another disk in its place; or the
    lease on written files expired before their commit.

    Remedy: Make room, correct the rights or the mount, and run the statement again: nothing of it was committed.

    Example: warehouse …: Not a directory. Check that the folder exists, is writable and not full.
    """


class SparkUnavailable(FreshviewError):
    """Spark cannot be started: no Java, an old Java, or no memory.

    Cause: Spark needs Java 17 or newer.

    Remedy: Install it or set JAVA_HOME; `freshview doctor` tells what it finds.

    Example: Java: not found (JAVA_HOME is …). Install Java 17 or newer, or set JAVA_HOME.
    """
