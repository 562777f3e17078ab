"""Spark's exceptions as FreshviewErrors: the condition and its message, never a JVM trace."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.errors import AnalysisException, ParseException, PySparkException

from freshview.errors import (
    BroadcastTooLarge,
    Cancelled,
    CorruptWarehouse,
    FreshviewError,
    InvalidStatement,
    NotFound,
    QueryFailed,
    SparkFailed,
    TypeMismatch,
)
from freshview.interruption import cancelled, is_asked_to_stop, stop_if_asked
from freshview.sql.tokens import word_set

# PySpark logs every failed query as JSON to the screen, besides the error that we raise.
logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL + 1)

_NOT_FOUND = word_set("""
    TABLE_OR_VIEW_NOT_FOUND SCHEMA_NOT_FOUND FIELD_NOT_FOUND UNRESOLVED_COLUMN UNRESOLVED_ROUTINE UNRESOLVED_FIELD
""")
_OUR_NAMES = re.compile(r"(, )?`__fv_\w+`")  # Spark suggests any column, also those that we add
_FILE_TROUBLE = word_set("FAILED_READ_FILE CANNOT_READ_FILE_FOOTER PATH_NOT_FOUND FILE_NOT_EXIST")
_PASSING: tuple[tuple[str, type[QueryFailed], str], ...] = (
    (r"cancel", Cancelled, "Run it again."),
    (r"^INVALID_HANDLE", SparkFailed, "The Spark Connect server has forgotten the session: open the warehouse again."),
    (r"broadcast", BroadcastTooLarge, "Give Spark more memory."),
    (r"memory|OOM|heap space|no space left|executor ?lost", SparkFailed, "Give Spark more memory or disk."),
)


@contextmanager
def spark_errors(what: str) -> Iterator[None]:
    """Turn what Spark raises into a FreshviewError. A thread that was asked to stop stops here.

    Any error of Spark after such a request counts as the cancelling: a query that is broken off can raise anything.
    """
    stop_if_asked(what)
    try:
        yield
    except FreshviewError:
        raise
    except Exception as error:
        ours = _as_ours(error, what)
        if ours is None:
            raise
        raise (cancelled(what) if is_asked_to_stop() else ours) from None


def _as_ours(error: Exception, what: str) -> FreshviewError | None:
    """An error of Spark as a FreshviewError; None if the error does not come from Spark."""
    if isinstance(error, PySparkException):
        return translated(error, what)
    return _plain(error, what) if type(error).__module__.startswith(("py4j", "grpc")) else None


def translated(error: PySparkException, what: str) -> FreshviewError:
    """A PySpark exception as a FreshviewError, by its condition."""
    message = _message(error)
    ours = re.search(r"\[FRESHVIEW\] (.+?): (.+?)(?: SQLSTATE.*)?$", message, re.MULTILINE)
    if ours:
        return TypeMismatch(ours[1], ours[2], "Convert the value first.")
    condition = (error.getCondition() or "").split(".")[0]
    if condition in _NOT_FOUND:
        return NotFound(what, message, "Check the spelling; SHOW TABLES and DESCRIBE list what there is.")
    if condition in _FILE_TROUBLE:
        return CorruptWarehouse(what, message, "Restore the file from a backup.")
    if isinstance(error, ParseException | AnalysisException):
        return InvalidStatement(what, message, "Correct the statement.")
    return _failed(what, message)


def _message(error: PySparkException) -> str:
    """The first line of Spark's message: the others are general advice, the plan or a trace."""
    lines = str(error.getMessage() or error).strip().splitlines() or [type(error).__name__]
    return _cleaned(lines[0])


def _plain(error: Exception, what: str) -> FreshviewError:
    """The error for an exception of Java, or of a call to a server, that PySpark did not convert: by its last cause."""
    text = error.details() if hasattr(error, "details") else error  # of a call to a Spark Connect server
    lines = str(text).strip().splitlines() or [type(error).__name__]
    causes = [n.removeprefix("Caused by: ") for n in lines if n.startswith("Caused by: ")]
    first = [n.lstrip(": ") for n in lines if not n.startswith("An error occurred while calling")]
    return _failed(what, _cleaned((causes[-1:] or first or lines)[0]))


def _failed(what: str, message: str) -> QueryFailed:
    """The error of a query that failed on its data, or on which Spark failed: only the latter may pass.

    Spark's name of the condition decides where there is one: the message may quote data.
    """
    condition = re.match(r"\[([A-Z][A-Z_0-9.]+)\] ", message)
    decisive = condition[1] if condition else message
    for words, kind, remedy in _PASSING:
        if re.search(words, decisive, re.IGNORECASE):
            return kind(what, message, remedy)
    if condition:
        return QueryFailed(what, message, "Correct the data or the statement.")
    if decisive.startswith("StackOverflowError"):
        return QueryFailed(what, "it is nested too deeply for Spark", "Split it, or give Spark's Java a larger stack.")
    return SparkFailed(what, f"Spark failed ({message})", "Look into Spark's log.")


def _cleaned(line: str) -> str:
    """A line of Spark's message without class names, SQL states and names of ours."""
    plain = re.sub(r"^(?:(?:[a-z]\w*\.)+(\w+)(?:: |$))+", lambda m: "" if m.end() < len(line) else m[1], line.strip())
    return _OUR_NAMES.sub("", re.sub(r"\s*SQLSTATE: \w+$", "", plain))
