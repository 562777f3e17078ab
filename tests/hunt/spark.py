"""The Spark session of a hunt: many small queries, so that nothing is compiled, and nothing is logged."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

import pytest
from tests import java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SETTINGS = {
    "spark.master": "local[1]",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.ui.explainMode": "simple",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.leafNodeDefaultParallelism": "1",
    "spark.cleaner.periodicGC.interval": "10min",
}


def start() -> SparkSession:
    """A session for this process alone."""
    from freshview.spark import session as sessions

    os.environ["SPARK_SUBMIT_OPTS"] = f"{java.DRIVER} -Xmn768m -XX:MetaspaceSize=400m"
    os.environ["SPARK_MASTER"] = "local[1]"
    os.environ.setdefault("SPARK_DRIVER_MEMORY", "3g")
    sessions._LOCAL_SETTINGS.update(_SETTINGS)
    be_quiet()
    java.remember_names(pytest.MonkeyPatch())  # until the process ends
    return sessions.obtain_session()


def be_quiet() -> None:
    """Errors of definitions that Spark refuses are expected: PySpark need not log them."""
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        logging.getLogger(name).disabled = True
