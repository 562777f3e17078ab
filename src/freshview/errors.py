"""All errors that Freshview raises: one root class, and a class per condition that a caller may want to catch.

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
    """The first line of an error's message, or the name of its class, to be quoted in a message."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


class WriteConflict(FreshviewError):
    """Another transaction wrote the same rows, and committed after this one took its snapshot.

    Cause: The first to commit wins. Two transactions wrote one key, or deleted equal rows of a table without a key; or
    the table was altered, renamed or dropped meanwhile; or other transactions kept changing what an eager view reads.
    Nothing of the transaction was committed.

    Remedy: Run the whole transaction again, with its reads. A statement that commits by itself is tried five times
    before this error is raised.

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
    """No relation, column or version has that name.

    Cause: A wrong name, something that was dropped, or a version that is not committed yet.

    Remedy: SHOW TABLES, SHOW MATERIALIZED VIEWS and DESCRIBE list what there is; DESCRIBE HISTORY lists the versions.

    Example: table or view custmer: not found. …
    """


class AlreadyExists(FreshviewError):
    """Another table or view has the name.

    Cause: Tables and views share one set of names, which are case-insensitive.

    Remedy: Choose another name, drop the table or view that has it, or use IF NOT EXISTS.

    Example: table customer: exists already. Choose another name, drop it, or use IF NOT EXISTS.
    """


class InvalidStatement(FreshviewError):
    """A statement cannot be parsed, or is not allowed here.

    Cause: A mistake in the text, a construct that is not supported, a property or an option that is not known, or DDL
    inside a transaction.

    Remedy: The message names what was expected; the SQL reference lists what is supported.

    Example: statement DROP TABLE customer: it cannot run inside a transaction. Run it with wh.sql().
    """


class TypeMismatch(FreshviewError):
    """A column cannot hold a value or a type exactly.

    Cause: A value out of range, of another type, or too long; or a column type that cannot be kept exactly (VARIANT,
    TIME, INTERVAL, collated strings).

    Remedy: Convert the value first, or declare another type.

    Example: column id of customer: it cannot be stored as int: …. Convert it first.
    """


class FieldMismatch(FreshviewError):
    """Structs in rows have other fields than the column that is to hold them.

    Cause: A mistake in Freshview, or a data file of an external Delta table whose nested fields are spelled otherwise
    than the table's. Arrow would fill such fields with NULL; Freshview stores nothing instead. A query of such a view
    is answered from the view's definition.

    Remedy: Create the view again, and report the error with the definition; rewrite the file that the message names.

    Example: column who: it has the fields Name, age, where name, age were expected. Create the view again, and report
    this with its definition.
    """


class QueryFailed(FreshviewError):
    """Spark ran the query and the query itself failed (a cast, a division, a missing file).

    Cause: The data does not suit the query; the message quotes Spark's. Statements and the command line raise this
    error; a DataFrame that `wh.sql` returned fails with PySpark's own exceptions when it is read.

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
    """A side of a join was too large to be sent to all workers.

    Cause: Spark sends the small side of a join to all workers, and this one did not fit. A refresh recomputes the view
    instead.

    Remedy: Give Spark more memory, or remove the broadcast hint from the query.

    Example: query SELECT …: Cannot broadcast the table that is larger than 8.0 GiB: 9 GiB. Give Spark more memory.
    """


class Cancelled(SparkFailed):
    """The query's jobs were cancelled.

    Cause: Ctrl-C, a maintenance job that gave way to a statement, or a call from outside such as `cancelJobGroup`.

    Remedy: Run the query again. A maintenance job that was cancelled stays pending, and nothing is lost.

    Example: query SELECT …: [SPARK_JOB_CANCELLED] Job 3 cancelled …. Run it again.
    """


class Crowded(FreshviewError):
    """Other processes kept maintaining the same view; the same call may succeed later.

    Cause: Other processes finished jobs of the view again and again while this call ran.

    Remedy: Try again; let one process maintain the view (`freshview serve`).

    Example: view totals: others kept maintaining it at the same time. Try again.
    """


class NotMaintainable(FreshviewError):
    """A view definition cannot be maintained as requested.

    Cause: The definition is not determined by its tables (`rand()`, `now()`, LIMIT without ORDER BY); or `'refresh' =
    'incremental'` was requested and an operator has to be recomputed; or an eager view would read a view that is not
    eager, or an external table.

    Remedy: The message names the operator and a remedy.

    Example: RAND(): its value is not determined by the tables. Leave it out, or put the value into a table.
    """


class ViewUnusable(FreshviewError):
    """A view cannot be brought up to date until its data is corrected.

    Cause: A commit would leave an eager view without an answer, such as a division by zero in a row that is inserted:
    the commit does not happen. Or the view's rows were stored by another version of Freshview, in another form.

    Remedy: Correct the data, or make the view lazy; create the view again with CREATE OR REPLACE MATERIALIZED VIEW. A
    lazy view never raises this: a query shows the definition's own error, `freshness="any"` reads the last good state,
    and corrected data heals the view.

    Example: eager view shares: it cannot be maintained with this commit: …. Correct the data, or make the view lazy:
    ALTER MATERIALIZED VIEW … SET TBLPROPERTIES ('maintenance'='lazy').
    """


class CaptureFailed(FreshviewError):
    """Changes that a source delivers cannot be read, or contradict each other.

    Cause: A damaged or rewritten file, an event that names no key, a key that changed twice, a dump that is suddenly
    much smaller, a server or a replication slot that is gone, or a change that no delta can express (TRUNCATE). The
    message names the place. The position of the source has not moved beyond it.

    Remedy: Correct the place that the message names and poll again; or let the source set bad events aside
    (`'on error' 'quarantine'`).

    Example: changes of customer: key (id=1) is in the sets ins and up. Each key may change once: compute the net
    effect, and check that the key columns are unique.
    """


class SnapshotExpired(FreshviewError):
    """The requested version is no longer kept.

    Cause: VACUUM removed the version; or the transaction was paused for longer than its heartbeat lasts; or the
    warehouse was closed.

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

    Remedy: Open the warehouse again with `freshview.connect`.

    Example: catalog sqlite:////data/warehouse/catalog.db: the warehouse was closed. Open it again.
    """


class CorruptWarehouse(FreshviewError):
    """Stored data is missing or damaged.

    Cause: Another tool removed or changed files (as by its own VACUUM), the catalog was restored to another time than
    the folder, the folder belongs to another catalog, or the catalog was written by a newer Freshview.

    Remedy: Restore what the message names from a backup; open the folder with the catalog that it was made with;
    upgrade Freshview.

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

    Remedy: Free disk space, correct the rights or the mount, and run the statement again: nothing was committed.

    Example: warehouse …: Not a directory. Check that the folder exists, is writable and not full.
    """


class SparkUnavailable(FreshviewError):
    """Spark cannot be started: no Java, an old Java, or no memory.

    Cause: Spark needs Java 17 or newer.

    Remedy: Install Java or set JAVA_HOME; `freshview doctor` reports what it finds.

    Example: Java: not found (JAVA_HOME is …). Install Java 17 or newer, or set JAVA_HOME.
    """
