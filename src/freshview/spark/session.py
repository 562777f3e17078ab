"""The Spark session: found, or started on this machine, quietly; and a sentence if it cannot be."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException, PySparkRuntimeError
from pyspark.sql import SparkSession

from freshview.errors import SparkUnavailable
from freshview.spark.background import POOLS
from freshview.spark.interrupts import own_interrupts
from freshview.spark.java import check_java

_start_lock = threading.Lock()

# Values of our own session. A session that the user brings keeps its own.
_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.shuffle.partitions": "8",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.scheduler.mode": "FAIR",
    "spark.scheduler.allocation.file": f"file://{POOLS}",
}
_LOG_SETTINGS = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{yyyy-MM-dd HH:mm:ss} %p %c{1}: %m%n
"""


def obtain_session() -> SparkSession:
    """The active session, or the default one (a thread may have none active), or a new one on this machine."""
    with _start_lock:
        with suppress(PySparkRuntimeError):
            return SparkSession.active()
        if os.environ.get("SPARK_REMOTE"):
            return SparkSession.builder.getOrCreate()
        check_java()
        return _start_quietly()


def _start_quietly() -> SparkSession:
    """Start the JVM with its error stream in a file: it warns of things no user can change.

    With FRESHVIEW_VERBOSE set, its warnings are shown.
    """
    is_loud = bool(os.environ.get("FRESHVIEW_VERBOSE"))
    folder = Path(tempfile.mkdtemp(prefix="freshview-spark-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    log_settings = folder / "log4j2.properties"
    log_settings.write_text(_LOG_SETTINGS.replace("level = error", "level = warn") if is_loud else _LOG_SETTINGS)
    builder: Any = SparkSession.builder.appName("freshview").master(os.environ.get("SPARK_MASTER", "local[*]"))
    settings = {
        **_SETTINGS,
        "spark.driver.memory": _driver_memory(),
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile=file:{log_settings} -Dderby.system.home={folder}",
    }
    for key, value in settings.items():
        builder = builder.config(key, value)
    sys.stderr.flush()
    log = folder / "spark.log"
    saved = os.dup(2)
    try:
        with log.open("wb") as target:
            if not is_loud:
                os.dup2(target.fileno(), 2)
        with own_interrupts():
            session: SparkSession = builder.getOrCreate()
    except (PySparkException, OSError, RuntimeError) as error:
        tail = log.read_text(errors="replace").strip().splitlines()[-1:] or [str(error).splitlines()[0]]
        raise SparkUnavailable(
            "Spark", f"did not start ({tail[0]})", "Check memory, Java and SPARK_* settings."
        ) from error
    finally:
        os.dup2(saved, 2)
        os.close(saved)
    return session


def _driver_memory() -> str:
    """A third of the machine's memory, between 1 and 8 GiB, unless the user has said."""
    if "SPARK_DRIVER_MEMORY" in os.environ:
        return os.environ["SPARK_DRIVER_MEMORY"]
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return f"{min(max(total // 3 // 2**20, 1024), 8192)}m"
