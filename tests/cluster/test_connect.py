"""A warehouse over Spark Connect: a server in a process of its own, which asks for a token."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cluster.servers import Processes, finish, free_port, start_connect_server, start_script
from tests.conftest import PostgresServer
from tests.effort import IS_SOAK

from freshview.errors import SparkFailed
from freshview.spark.errors import spark_errors

_SECONDS = 300.0  # for all scripts, on a busy machine


@pytest.fixture(scope="module")
def server(processes: Processes) -> dict[str, str]:
    """The environment of a client."""
    for package in ("grpc", "grpc_status", "google.rpc", "zstandard", "pandas"):
        pytest.importorskip(package, reason=f"Spark Connect needs {package}: pip install 'freshview[connect]'")
    return start_connect_server(processes)


@pytest.mark.spark
def test_a_warehouse_over_connect_answers_like_plain_spark(
    tmp_path: Path, processes: Processes, server: dict[str, str]
) -> None:
    """Loads, transactions, views, upkeep, the manager, and a second client that queries meanwhile: all is exact.

    The second client names no session: `freshview.connect()` takes the server that SPARK_REMOTE names.
    """
    folder = str(tmp_path / "warehouse")
    builder = start_script(processes, "build", "build", folder, "-", **server)
    alone = start_script(processes, "found", "found", str(tmp_path / "alone"), "-", **server)
    watcher = start_script(processes, "watch", "watch", folder, "-", **server)
    ended = finish(alone, watcher, builder, seconds=_SECONDS)
    assert ended == ["3 pyspark.sql.connect.session", "done", "done"]


@pytest.mark.spark
@pytest.mark.postgres
def test_less_common_sql_over_connect_with_a_catalog_in_postgresql(
    tmp_path: Path, processes: Processes, server: dict[str, str], postgres: PostgresServer
) -> None:
    """The cases of tests/spark/test_less_common_sql.py: every twelfth one, in a soak all."""
    script = start_script(processes, "cases", "cases", str(tmp_path / "warehouse"), postgres.new_database(), **server)
    (told,) = finish(script, seconds=_SECONDS * (10 if IS_SOAK else 1))
    assert told.endswith(" definitions")
    assert int(told.split()[0]) > 5


def test_what_a_server_answers_is_told_in_our_words() -> None:
    """A session that the server has forgotten is no fault of the data: what failed for it is tried again."""

    class Refused(Exception):
        def details(self) -> str:
            return "[INVALID_HANDLE.SESSION_NOT_FOUND] The handle 1 is invalid. SQLSTATE: HY000"

    Refused.__module__ = "grpc._channel"
    told = r"^view v: \[INVALID_HANDLE.SESSION_NOT_FOUND\] .* open the warehouse again"
    with pytest.raises(SparkFailed, match=told), spark_errors("view v"):
        raise Refused


def test_a_server_that_is_not_there_is_told_in_one_sentence(tmp_path: Path) -> None:
    """What, where, and what to do; not after PySpark's ten minutes, and without a trace."""
    script = """
import sys, freshview
with freshview.connect(sys.argv[1]) as wh:
    try:
        wh.sql("SELECT 1")
    except freshview.errors.SparkUnavailable as error:
        print(error)
"""
    port = free_port()
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script, str(tmp_path / "w")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "SPARK_REMOTE": f"sc://localhost:{port}"},
    )
    assert (done.stderr, done.returncode) == ("", 0)
    assert len(done.stdout.splitlines()) == 1
    assert done.stdout.startswith(f"Spark Connect at localhost:{port}: does not answer")
    assert "SPARK_REMOTE" in done.stdout
