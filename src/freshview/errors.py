"""Every error a caller can meet: one root, one class per condition worth catching.

A message names the thing, then the cause, then what to do about it.
"""

from __future__ import annotations


class FreshviewError(Exception):
    """Root of all errors that Freshview raises on purpose."""

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


class WriteConflict(FreshviewError):
    """Another transaction that committed after our snapshot wrote the same rows."""


class DuplicateKey(FreshviewError):
    """A statement would leave two rows with one primary key."""


class NotNullViolation(FreshviewError):
    """A NULL was given for a column that is NOT NULL or part of a key."""


class NotFound(FreshviewError):
    """No relation, column or version of that name."""


class AlreadyExists(FreshviewError):
    """The name is taken."""


class InvalidStatement(FreshviewError):
    """A statement that cannot be understood or is not allowed here."""


class TypeMismatch(FreshviewError):
    """A value or a type that the column cannot hold exactly."""


class QueryFailed(FreshviewError):
    """Spark ran the query and the query itself failed (a cast, a division, a missing file)."""


class SparkFailed(QueryFailed):
    """Spark could not run the query (memory, disk, a lost executor); the same query may succeed later."""


class BroadcastTooLarge(SparkFailed):
    """A side of a join that was taken for small is not."""


class Cancelled(SparkFailed):
    """Somebody cancelled the query's jobs."""


class Crowded(FreshviewError):
    """Others kept maintaining the same view; the same call may succeed later."""


class NotMaintainable(FreshviewError):
    """A view definition that cannot be kept as asked."""


class ViewUnusable(FreshviewError):
    """A view that cannot be brought up to date until its data is corrected."""


class SnapshotExpired(FreshviewError):
    """The version asked for is no longer kept."""


class TransactionClosed(FreshviewError):
    """The transaction has already been committed or rolled back."""


class CorruptWarehouse(FreshviewError):
    """Stored data is missing or damaged."""


class CatalogUnavailable(FreshviewError):
    """The catalog database cannot be reached or stays locked."""


class StorageUnavailable(FreshviewError):
    """The warehouse folder cannot be read or written."""


class SparkUnavailable(FreshviewError):
    """Spark cannot be started: no Java, an old Java, or no memory."""
