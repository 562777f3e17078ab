"""A frame whose parts are read by Spark's workers in parallel, each by a function of its number.

Workers run Python for this alone, so it may be missing there, or lack packages: `workers_have` asks before.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import BooleanType, StructField, StructType

from freshview.relation.schema import Schema
from freshview.spark.engine import SparkEngine
from freshview.spark.errors import spark_errors
from freshview.spark.types import spark_schema

_ROWS = 2**14  # of a batch that goes from Python to Spark
_lock = threading.Lock()


def workers_have(engine: SparkEngine, modules: Sequence[str]) -> bool:
    """Whether Spark's workers can run Python and import these modules; asked of one of them."""

    def imported(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for module in modules:
            import_module(module)
        yield from ()
        for _ in batches:
            pass

    answer = StructType([StructField("ok", BooleanType())])
    try:
        with _own_python(engine.session):
            engine.session.range(0, 1, 1, 1).mapInArrow(imported, answer).collect()
    except Exception:  # whatever is missing there, the driver can do it
        return False
    return True


def frame_of_parts(
    engine: SparkEngine, read: Callable[[int], pa.Table], parts: int, schema: Schema, what: str
) -> DataFrame:
    """The rows of all parts. A part is read where its task runs, and again if the task is repeated."""

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from read(number).to_batches(_ROWS)

    with spark_errors(what), _own_python(engine.session):
        return engine.session.range(0, parts, 1, parts).mapInArrow(rows, spark_schema(schema))


@contextmanager
def _own_python(session: SparkSession) -> Iterator[None]:
    """Workers of this machine run the Python of this process, whose packages are those of the driver.

    A frame takes the interpreter's name from the context when it is made.
    """
    context = session.sparkContext
    if not (context.master or "").startswith("local"):
        yield
        return
    with _lock:
        before = context.pythonExec
        context.pythonExec = sys.executable
        try:
            yield
        finally:
            context.pythonExec = before
