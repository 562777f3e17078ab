"""What Spark throws, in our words and classes: what may pass is told from what the data did."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException

from freshview.errors import BroadcastTooLarge, Cancelled, QueryFailed, SparkFailed
from freshview.interruption import Interruption
from freshview.spark.errors import spark_errors, translated


class JavaError(Exception):
    """An exception as py4j raises it for a Java exception that PySpark does not know."""


JavaError.__module__ = "py4j.protocol"

_JAVA = "An error occurred while calling o1.collectToPython.\n: "


@pytest.mark.parametrize(
    ("text", "kind", "cause"),
    [
        (
            "org.apache.spark.SparkException: [SCALAR_SUBQUERY_TOO_MANY_ROWS] More than one row. SQLSTATE: 21000",
            QueryFailed,
            "[SCALAR_SUBQUERY_TOO_MANY_ROWS] More than one row.",
        ),
        ("[CAST_INVALID_INPUT] The value 'cancel broadcast' …", QueryFailed, "[CAST_INVALID_INPUT] The value 'canc"),
        (
            "org.apache.spark.SparkException: [SPARK_JOB_CANCELLED] Job 3 cancelled",
            Cancelled,
            "[SPARK_JOB_CANCELLED] Job 3 cancelled",
        ),
        (
            "org.apache.spark.SparkException: Job aborted.\nCaused by: java.io.IOException: No space left on device",
            SparkFailed,
            "No space left on device",
        ),
        ("java.lang.OutOfMemoryError", SparkFailed, "OutOfMemoryError"),
        (
            "org.apache.spark.SparkException: Cannot broadcast the table that is larger than 8.0 GiB: 9 GiB.",
            BroadcastTooLarge,
            "Cannot broadcast the table that is larger than 8.0 GiB: 9 GiB.",
        ),
        ("java.lang.IllegalStateException: odd", SparkFailed, "Spark failed (odd)"),
    ],
)
def test_what_java_throws(text: str, kind: type[QueryFailed], cause: str) -> None:
    with pytest.raises(QueryFailed) as caught, spark_errors("query q"):
        raise JavaError(_JAVA + text)
    assert type(caught.value) is kind
    assert caught.value.cause.startswith(cause)
    assert "org.apache" not in str(caught.value)


class Known(PySparkException):
    """An exception as PySpark raises it for an error of Spark."""

    def getCondition(self) -> str:  # noqa: N802
        return str(self).removeprefix("[").split("]")[0]

    def getMessage(self) -> str:  # noqa: N802
        return str(self)

    def __str__(self) -> str:
        return str(self.args[0])


def test_what_pyspark_knows() -> None:
    cancelled = Known("[SPARK_JOB_CANCELLED] Job 3 cancelled part of cancelled job tag x SQLSTATE: XXKDA")
    assert type(translated(cancelled, "q")) is Cancelled
    data = Known("[DIVIDE_BY_ZERO] Division by zero. Use try_divide to cancel. SQLSTATE: 22012")
    assert type(translated(data, "q")) is QueryFailed


def test_work_that_was_asked_to_stop_was_cancelled_whatever_spark_says() -> None:
    interruption = Interruption()

    def fail_on_request() -> None:
        interruption.request()
        raise Known("[STAGE_MATERIALIZATION_MULTIPLE_FAILURES] Several failures.")

    with interruption.here(), pytest.raises(Cancelled), spark_errors("q"):
        fail_on_request()
    with interruption.here(), pytest.raises(Cancelled), spark_errors("q"):
        raise AssertionError("it asked Spark for more")
    with pytest.raises(QueryFailed) as caught, spark_errors("q"):
        raise Known("[DIVIDE_BY_ZERO] Division by zero.")
    assert type(caught.value) is QueryFailed
