"""The Spark session: found, or started on this machine without noise; an error of one sentence if it does not start."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from pyspark.errors import PySparkException, PySparkRuntimeError
from pyspark.sql import SparkSession

from freshview.errors import SparkUnavailable, first_line
from freshview.spark.background import POOLS, context_of
from freshview.spark.interrupts import own_interrupts
from freshview.spark.java import check_java

_CONNECT_PORT = 15002  # where a Spark Connect server listens if its URL names no port
_CONNECT_SECONDS = 10.0  # within which a server has to answer; PySpark itself tries for ten minutes
_start_lock = threading.Lock()

# Settings of a session that we start. A session that the user brings keeps its own.
_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Compiled stages of queries: of Spark's 100, the queries of some ten views leave none to be used again.
    "spark.sql.codegen.cache.maxEntries": "1000",
    # Stages of adaptive plans change their numbers with the order in which they end: their code must not have them.
    "spark.sql.codegen.useIdInClassName": "false",
    "spark.scheduler.mode": "FAIR",
    "spark.scheduler.allocation.file": f"file://{POOLS}",
}
# Settings for one machine only: the workers of a cluster have to reach the driver, and are many.
_LOCAL_SETTINGS = {
    "spark.sql.shuffle.partitions": "8",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.connect.grpc.binding.address": "127.0.0.1",
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
    """The active session, or the default one (a thread may have no active one), or a new one on this machine."""
    with _start_lock:
        with suppress(PySparkRuntimeError):
            return SparkSession.active()
        remote = os.environ.get("SPARK_REMOTE", "")
        if remote.startswith("sc://"):
            return _connect_to(remote)
        check_java()
        return _start_quietly(remote)


def is_local(master: str | None) -> bool:
    """Does all of Spark run on this machine, in one process?"""
    return re.fullmatch(r"local(\[.*\])?", master or "") is not None


def shares_disk(session: SparkSession) -> bool:
    """Do all executors run on this machine, so that they see all our files?"""
    context = context_of(session)
    return context is not None and is_local(context.master)


def new_session(session: SparkSession) -> SparkSession:
    """A session on the same Spark without any settings and temporary functions.

    Spark Connect has no newSession(): there the session is a clone, from which the user's settings and functions are
    removed. Temporary views may stay: our queries never name them.
    """
    if context_of(session) is not None:
        return session.newSession()
    session.conf.get("spark.sql.session.timeZone")  # a server knows a session only after its first request
    clone: Any = session
    clone = clone.cloneSession()
    clone.sql("RESET")
    clone.catalog.setCurrentCatalog("spark_catalog")
    clone.catalog.setCurrentDatabase("default")
    for (name,) in clone.sql("SHOW USER FUNCTIONS").collect():
        if "." not in name:  # a function with a database is not temporary
            clone.sql(f"DROP TEMPORARY FUNCTION IF EXISTS `{name}`")
    fresh: SparkSession = clone
    return fresh


def _connect_to(remote: str) -> SparkSession:
    """A session of a Spark Connect server; raise at once if the server does not answer."""
    server = urlsplit(remote)
    host, port = server.hostname or "localhost", server.port or _CONNECT_PORT
    if not getproxies() or proxy_bypass(host):
        try:
            socket.create_connection((host, port), _CONNECT_SECONDS).close()
        except OSError as error:
            where, remedy = f"Spark Connect at {host}:{port}", "Start the server or set SPARK_REMOTE."
            raise SparkUnavailable(where, f"does not answer ({error})", remedy) from error
    with _connect_errors(), own_interrupts():
        return SparkSession.builder.getOrCreate()


@contextmanager
def _connect_errors() -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        cause = f"a package is missing ({error})"
        raise SparkUnavailable("Spark Connect", cause, "pip install 'freshview[connect]'.") from error
    except PySparkException as error:
        cause = f"did not start ({first_line(error)})"
        raise SparkUnavailable("Spark Connect", cause, "Check SPARK_REMOTE.") from error


def _start_quietly(remote: str = "") -> SparkSession:
    """Start Spark with the JVM's error stream in a file: the JVM warns of things that no user can change.

    With FRESHVIEW_VERBOSE set, the stream goes to the screen.
    """
    is_loud = bool(os.environ.get("FRESHVIEW_VERBOSE"))
    folder = Path(tempfile.mkdtemp(prefix="freshview-spark-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    log_settings = folder / "log4j2.properties"
    log_settings.write_text(_LOG_SETTINGS.replace("level = error", "level = warn") if is_loud else _LOG_SETTINGS)
    builder: Any = SparkSession.builder.appName("freshview")
    master = remote or os.environ.get("SPARK_MASTER", "local[*]")
    builder = builder.remote(remote) if remote else builder.master(master)
    settings = {
        **_SETTINGS,
        **(_LOCAL_SETTINGS if is_local(master) else {}),
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
        tail = log.read_text(errors="replace").strip().splitlines()[-1:] or [first_line(error)]
        cause = f"did not start ({tail[0]})"
        raise SparkUnavailable("Spark", cause, "Check memory, Java and SPARK_* settings.") from error
    finally:
        os.dup2(saved, 2)
        os.close(saved)
    return session


def _driver_memory() -> str:
    """SPARK_DRIVER_MEMORY, or else a third of the machine's memory, between 1 and 8 GiB."""
    if "SPARK_DRIVER_MEMORY" in os.environ:
        return os.environ["SPARK_DRIVER_MEMORY"]
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return f"{min(max(total // 3 // 2**20, 1024), 8192)}m"
