"""Spark's exceptions in our words: the condition and its message, never a JVM trace."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.errors import AnalysisException, ParseException, PySparkException

from freshview.errors import (
    CorruptWarehouse,
    FreshviewError,
    InvalidStatement,
    NotFound,
    QueryFailed,
    TypeMismatch,
)

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


@contextmanager
def spark_errors(what: str) -> Iterator[None]:
    """Turn what Spark raises into a FreshviewError."""
    try:
        yield
    except FreshviewError:
        raise
    except PySparkException as error:
        raise translated(error, what) from None
    except Exception as error:
        if type(error).__module__.startswith("py4j"):
            raise _plain(error, what) from None
        raise


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
    return QueryFailed(what, message, "Correct the data or the statement.")


def _message(error: PySparkException) -> str:
    """The first line of Spark's message: what follows is general advice, the plan or a trace."""
    lines = str(error.getMessage() or error).strip().splitlines() or [type(error).__name__]
    without_state = re.sub(r"\s*SQLSTATE: \w+$", "", lines[0].strip())
    return _OUR_NAMES.sub("", without_state)


def _plain(error: Exception, what: str) -> FreshviewError:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    causes = [n.split(": ", 2)[-1] for n in lines if n.startswith("Caused by:")]  # the last one tells most
    told = [n.lstrip(": ") for n in lines if not n.startswith("An error occurred while calling")]  # by Java, if at all
    first = (causes[-1:] or told or lines)[0]
    return QueryFailed(what, f"Spark failed ({first})", "Look into Spark's log.")
