"""Spark servers as processes of their own, on loopback and free ports: a standalone cluster, a Connect server."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pyspark
from tests.conftest import INTERPRETED
from tests.effort import IS_SOAK
from tests.java import DRIVER, SHORT

SPARK = Path(pyspark.__file__).parent
_STARTS = 60.0  # seconds within which a server has to be there
_ENVIRONMENT = {
    "SPARK_HOME": str(SPARK),
    "SPARK_LOCAL_IP": "127.0.0.1",
    "SPARK_SUBMIT_OPTS": DRIVER,
    "SPARK_DAEMON_JAVA_OPTS": SHORT,
}
_PR_SET_PDEATHSIG = 1
_ENDS = 10.0  # seconds within which a process that was asked to end has to be gone

# No code is generated for a few rows, but for those of a soak.
_CODE = {} if IS_SOAK else INTERPRETED
_CODE_LINES = "".join(f"{key} {value}\n" for key, value in _CODE.items())

# Of every application: executors of a core each, so that several fit on the cluster at a time.
_DEFAULTS = f"""\
spark.executor.cores 1
spark.executor.memory 512m
spark.executor.extraJavaOptions {SHORT}
spark.ui.enabled false
spark.ui.showConsoleProgress false
spark.sql.shuffle.partitions 2
{_CODE_LINES}"""


class Processes:
    """Processes that end with the test, whatever becomes of it; each has a log, and a group with all that it starts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, name: str, command: list[str], **environment: str) -> subprocess.Popen[bytes]:
        known = {k: v for k, v in os.environ.items() if not k.startswith(("SPARK_", "PYSPARK_"))}
        with self.log(name).open("wb") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                env={**known, **_ENVIRONMENT, **environment},
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )
        self._started.append(process)
        return process

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def tail(self, name: str) -> str:
        return self.log(name).read_text(errors="replace")[-4000:]

    def wait_until(self, is_there: Callable[[], bool], name: str, process: subprocess.Popen[bytes]) -> None:
        until = time.monotonic() + _STARTS
        while not is_there():
            assert process.poll() is None, f"{name} ended:\n{self.tail(name)}"
            assert time.monotonic() < until, f"{name} did not start:\n{self.tail(name)}"
            time.sleep(0.1)

    def stop(self) -> None:
        """End all, the last one first, with their children: asked to, then made to."""
        running = [p for p in reversed(self._started) if p.returncode is None]
        for process in running:
            os.killpg(process.pid, signal.SIGTERM)
        for process in running:
            _wait_for_end(process.pid)
            os.killpg(process.pid, signal.SIGKILL)  # what it started may be there yet
            process.wait()
        self._started.clear()


def _end_with_parent() -> None:
    """On Linux a process is asked to end when the test's own is killed; executors end with their worker."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _wait_for_end(pid: int) -> None:
    """Some seconds at most. The process is not forgotten, so its number, which is its group's, is not given away."""
    until = time.monotonic() + _ENDS
    while time.monotonic() < until and os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
        time.sleep(0.05)


def start_cluster(processes: Processes, **executors: int) -> dict[str, dict[str, str]]:
    """A master and two workers; the environments of applications that have so many executors there, by their names."""
    port, page = free_port(), free_port()
    url = f"spark://127.0.0.1:{port}"
    small = {"SPARK_DAEMON_MEMORY": "256m"}
    place = ["--host", "127.0.0.1"]
    command = [*_class("org.apache.spark.deploy.master.Master"), *place, "--port", str(port), "--webui-port", str(page)]
    master = processes.start("master", command, **small)
    for number in (1, 2):
        options = ["--cores", "2", "--memory", "1100m", "--webui-port", "0"]
        work = ["--work-dir", str(processes.folder / f"work{number}")]
        command = [*_class("org.apache.spark.deploy.worker.Worker"), *place, *options, *work, url]
        processes.start(f"worker{number}", command, **small)
    processes.wait_until(lambda: _workers(page) == 2, "master", master)
    environments = {}
    for name, count in executors.items():
        settings = processes.folder / f"conf-{name}"
        settings.mkdir()
        (settings / "spark-defaults.conf").write_text(f"{_DEFAULTS}spark.cores.max {count}\n")
        environments[name] = {"SPARK_MASTER": url, "SPARK_CONF_DIR": str(settings), "SPARK_DRIVER_MEMORY": "1g"}
    return environments


def start_connect_server(processes: Processes) -> dict[str, str]:
    """A Spark Connect server that asks for a token; the environment of its clients."""
    port, token = free_port(), os.urandom(16).hex()
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(processes.folder / "spark-warehouse"),
        **_CODE,
    }
    command = [str(SPARK / "bin" / "spark-submit"), "--master", "local[2]", "--driver-memory", "1g"]
    for key, value in settings.items():
        command += ["--conf", f"{key}={value}"]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
    secret = {"SPARK_CONNECT_AUTHENTICATE_TOKEN": token}
    server = processes.start("connect", command, **secret)
    processes.wait_until(lambda: _answers(port), "connect", server)
    return {"SPARK_REMOTE": f"sc://localhost:{port}", **secret}


def start_script(processes: Processes, name: str, role: str, *arguments: str, **environment: str) -> Script:
    """A script of this folder in a fresh Python, which finds the tests' own modules."""
    path = Path(__file__).with_name("exercise.py")
    command = [sys.executable, "-W", "error", str(path), role, *arguments]
    found = {"PYTHONPATH": str(path.parents[2])}
    return Script(processes, name, processes.start(name, command, **found, **environment))


class Script:
    """A script that runs."""

    def __init__(self, processes: Processes, name: str, process: subprocess.Popen[bytes]) -> None:
        self._processes = processes
        self._name = name
        self._process = process

    def has_ended(self) -> bool:
        """Whether the script has ended; an exit code other than 0 fails the test."""
        code = self._process.poll()
        assert not code, f"{self._name} failed:\n{self.told()}"
        return code == 0

    def told(self) -> str:
        """What it printed, without the traces of Java."""
        lines = self._processes.log(self._name).read_text(errors="replace").splitlines()
        return "\n".join(line for line in lines if not line.startswith("\tat "))[-4000:]


def finish(*scripts: Script, seconds: float) -> list[str]:
    """Wait until all have ended, or one has failed; the last line that each printed."""
    until = time.monotonic() + seconds
    while [script for script in scripts if not script.has_ended()]:
        assert time.monotonic() < until, "they do not end:\n" + "\n".join(script.told() for script in scripts)
        time.sleep(0.1)
    return [script.told().rpartition("\n")[2] for script in scripts]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _class(name: str) -> list[str]:
    return [str(SPARK / "bin" / "spark-class"), name]


def _workers(page: int) -> int:
    """How many workers the master knows."""
    plain = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with plain.open(f"http://127.0.0.1:{page}/json/", timeout=5) as answer:
            return int(json.load(answer)["aliveworkers"])
    except (OSError, ValueError):
        return 0


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 5).close()
    except OSError:
        return False
    return True
