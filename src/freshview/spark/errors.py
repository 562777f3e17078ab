"""Spark's exceptions in our words: the condition and its message, never a JVM trace."""

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

# PySpark logs every failed query as JSON to the screen; the error that we raise says it better.
logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL + 1)

_NOT_FOUND = {
    "TABLE_OR_VIEW_NOT_FOUND",
    "UNRESOLVED_COLUMN",
    "UNRESOLVED_ROUTINE",
    "UNRESOLVED_FIELD",
    "FIELD_NOT_FOUND",
    "SCHEMA_NOT_FOUND",
}
_OUR_NAMES = re.compile(r"(, )?`__fv_\w+`")  # Spark suggests any column, also those that we add
_FILE_TROUBLE = {"FAILED_READ_FILE", "CANNOT_READ_FILE_FOOTER", "PATH_NOT_FOUND", "FILE_NOT_EXIST"}
_PASSING: tuple[tuple[str, type[QueryFailed], str], ...] = (
    (r"cancel", Cancelled, "Run it again."),
    (r"^INVALID_HANDLE", SparkFailed, "The Spark Connect server has forgotten the session: open the warehouse again."),
    (r"broadcast", BroadcastTooLarge, "Give Spark more memory."),
    (r"memory|OOM|heap space|no space left|executor ?lost", SparkFailed, "Give Spark more memory or disk."),
)


@contextmanager
def spark_errors(what: str) -> Iterator[None]:
    """Turn what Spark raises into a FreshviewError. A thread that was asked to stop stops here.

    Whatever Spark raises then is taken for the cancelling: what it breaks off can look like anything.
    """
    stop_if_asked(what)
    try:
        yield
    except FreshviewError:
        raise
    except Exception as error:
        told = _in_our_words(error, what)
        if told is None:
            raise
        raise (cancelled(what) if is_asked_to_stop() else told) from None


def _in_our_words(error: Exception, what: str) -> FreshviewError | None:
    """None if it does not come from Spark."""
    if isinstance(error, PySparkException):
        return translated(error, what)
    return _plain(error, what) if type(error).__module__.startswith(("py4j", "grpc")) else None


def translated(error: PySparkException, what: str) -> FreshviewError:
    message = _message(error)
    ours = re.search(r"\[FRESHVIEW\] (.+?): (.+?)(?: SQLSTATE.*)?$", message, re.MULTILINE)
    if ours:
        return TypeMismatch(ours[1], ours[2], "Convert the value first.")
    condition = (error.getCondition() or "").split(".")[0]
    if condition in _NOT_FOUND:
        return NotFound(what, message, "Check the spelling; SHOW TABLES and DESCRIBE tell what there is.")
    if condition in _FILE_TROUBLE:
        return CorruptWarehouse(what, message, "Restore the file from a backup.")
    if isinstance(error, ParseException | AnalysisException):
        return InvalidStatement(what, message, "Correct the statement.")
    return _failed(what, message)


def _message(error: PySparkException) -> str:
    """The first line of Spark's message: what follows is general advice, the plan or a trace."""
    lines = str(error.getMessage() or error).strip().splitlines() or [type(error).__name__]
    return _told(lines[0])


def _plain(error: Exception, what: str) -> FreshviewError:
    """What Java or the call to a server threw and PySpark did not take for Spark's: the last cause tells most."""
    told = error.details() if hasattr(error, "details") else error  # a call to a Spark Connect server tells it there
    lines = str(told).strip().splitlines() or [type(error).__name__]
    causes = [n.removeprefix("Caused by: ") for n in lines if n.startswith("Caused by: ")]
    first = [n.lstrip(": ") for n in lines if not n.startswith("An error occurred while calling")]
    return _failed(what, _told((causes[-1:] or first or lines)[0]))


def _failed(what: str, told: str) -> QueryFailed:
    """The query failed on its data, or Spark on the query: only the latter may pass.

    Spark's name of the condition decides where there is one: the message may quote data.
    """
    condition = re.match(r"\[([A-Z][A-Z_0-9.]+)\] ", told)
    telling = condition[1] if condition else told
    for words, kind, remedy in _PASSING:
        if re.search(words, telling, re.IGNORECASE):
            return kind(what, told, remedy)
    if condition:
        return QueryFailed(what, told, "Correct the data or the statement.")
    if telling.startswith("StackOverflowError"):
        return QueryFailed(what, "it is nested too deeply for Spark", "Split it, or give Spark's Java a larger stack.")
    return SparkFailed(what, f"Spark failed ({told})", "Look into Spark's log.")


def _told(line: str) -> str:
    """A line of Spark's as we pass it on: without class names, states and names of ours."""
    plain = re.sub(r"^(?:(?:[a-z]\w*\.)+(\w+)(?:: |$))+", lambda m: "" if m.end() < len(line) else m[1], line.strip())
    return _OUR_NAMES.sub("", re.sub(r"\s*SQLSTATE: \w+$", "", plain))
