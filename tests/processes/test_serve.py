"""`freshview serve`: as a process of its own, and in this one where it is told by the same code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from pyspark.sql import SparkSession
from tests.cli.calls import COMMAND, call
from tests.internals import internals

import freshview
from freshview import Warehouse
from freshview.catalog import tables as t
from freshview.cli import serve as serve_command

Serve = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Starts `freshview serve` on a folder."""
    started: list[subprocess.Popen[str]] = []
    log = tmp_path / "serve.log"

    def start(folder: Path, *options: str) -> subprocess.Popen[str]:
        with log.open("w") as out:
            started.append(
                subprocess.Popen(
                    [*COMMAND, "serve", str(folder), *options],
                    stdout=out,
                    stderr=subprocess.PIPE,
                    text=True,
                    env={**os.environ, "SPARK_DRIVER_MEMORY": "1g"},
                )
            )
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture
def folder(tmp_path: Path, spark: SparkSession) -> Path:
    """A warehouse with a view that has seen everything."""
    with freshview.connect(tmp_path / "warehouse", spark=spark) as wh:
        wh.sql("CREATE TABLE s (id INT, customer INT, PRIMARY KEY (id))")
        wh.sql("CREATE MATERIALIZED VIEW v AS SELECT customer, count(*) n FROM s GROUP BY customer")
        wh.sql("CREATE MATERIALIZED VIEW bad AS SELECT id, 1 / (customer - 7) q FROM s")
    return tmp_path / "warehouse"


def _commit(folder: Path, customer: int) -> int:
    with freshview.connect(folder) as wh:
        with wh.transaction() as tx:
            tx.upsert("s", [{"id": i, "customer": customer} for i in range(3)])
        assert tx.csn is not None
        return tx.csn


def _frontier(wh: Warehouse, view: str) -> int:
    return internals(wh).frontier(view)


def _wait_for_frontier(folder: Path, csn: int, is_serving: Callable[[], bool]) -> None:
    until = time.monotonic() + 180
    with freshview.connect(folder) as wh:
        while _frontier(wh, "v") < csn:
            assert is_serving(), "it ended"
            assert time.monotonic() < until, "the view did not become fresh"
            time.sleep(0.2)


def _priorities(pid: int) -> set[int]:
    """How nice the threads of a process and of those that it started are."""
    threads = [int(t.name) for t in Path(f"/proc/{pid}/task").iterdir()]
    started = [int(child) for t in threads for child in Path(f"/proc/{pid}/task/{t}/children").read_text().split()]
    own = {os.getpriority(os.PRIO_PROCESS, thread) for thread in threads}
    return own.union(*map(_priorities, started))


def _left_behind(folder: Path) -> list[int]:
    """Pins and leases, of anybody."""
    with freshview.connect(folder) as wh, internals(wh).reading_database() as c:
        return [c.execute(sa.select(sa.func.count()).select_from(x)).scalar_one() for x in (t.snapshots, t.leases)]


def test_it_keeps_views_fresh_and_stops_when_told(
    folder: Path, tmp_path: Path, spark: SparkSession, serve: Serve
) -> None:
    """By Ctrl-C, which Spark, started meanwhile, would like to hear too."""
    process = serve(folder, "--busy-load", "1000")  # other tests run beside it
    for customer in (5, 7):
        _wait_for_frontier(folder, _commit(folder, customer), lambda: process.poll() is None)
    if sys.platform == "linux":
        assert _priorities(process.pid) == {min(os.nice(0) + serve_command.NICE, 19)}
    process.send_signal(signal.SIGINT)
    _, complaints = process.communicate(timeout=120)
    assert (process.returncode, complaints) == (0, "")
    assert _left_behind(folder) == [0, 0]
    lines = (tmp_path / "serve.log").read_text().splitlines()
    assert lines[0].startswith("Serving ")
    assert lines[-1] == "Stopped."
    assert sum(" v: done, CSN " in line for line in lines) == 2
    assert [" bad: failed: " in line for line in lines].count(True) <= 1
    with freshview.connect(folder, spark=spark) as wh:
        assert wh.sql("SELECT * FROM v", freshness="any").collect() == [(7, 3)]
        assert wh.check("v").ok


def _groups_sessions() -> bool:
    setting = Path("/proc/sys/kernel/sched_autogroup_enabled")
    return setting.exists() and setting.read_text().strip() == "1"


def _group_nice(process: str) -> int | None:
    """How nice the scheduling group of a process is; None for a process in no session's group."""
    words = Path(f"/proc/{process}/autogroup").read_text().split()
    return int(words[-1]) if words else None


@pytest.mark.skipif(not _groups_sessions(), reason="the kernel does not group processes by session")
@pytest.mark.parametrize("leads", [True, False])
def test_it_is_nice_to_other_sessions_if_it_leads_its_own(tmp_path: Path, leads: bool) -> None:
    """Law: where the scheduler groups processes by session, the group of `serve` has its priority too, but never that
    of the shell from which it was started."""
    freshview.connect(tmp_path / "wh").close()
    before = _group_nice("self")
    with subprocess.Popen(
        [*COMMAND, "serve", str(tmp_path / "wh")], stdout=subprocess.PIPE, text=True, start_new_session=leads
    ) as process:
        try:
            assert process.stdout is not None
            assert "Serving" in process.stdout.readline()
            found = _group_nice(str(process.pid))
        finally:
            process.terminate()
    assert found == (min(os.nice(0) + serve_command.NICE, 19) if leads else before)
    assert _group_nice("self") == before


def test_sigterm_stops_it_as_ctrl_c_does(folder: Path) -> None:
    csn, before = _commit(folder, 5), signal.getsignal(signal.SIGTERM)

    def is_serving() -> bool:
        return signal.getsignal(signal.SIGTERM) is not before

    def stop() -> None:
        _wait_for_frontier(folder, csn, lambda: True)
        if is_serving():  # else the signal would end all tests
            os.kill(os.getpid(), signal.SIGTERM)

    stopping = threading.Thread(target=stop, daemon=True)
    stopping.start()
    result = call("serve", folder, "--busy-load", "1000", "--nice", "0")  # the process of the tests keeps its priority
    stopping.join()
    assert not is_serving()
    assert result.stderr == ""
    lines = result.stdout.splitlines()
    assert (lines[0].startswith("Serving "), lines[-1]) == (True, "Stopped.")
    assert sum(" v: done, CSN " in line for line in lines) == 1
    assert _left_behind(folder) == [0, 0]


def test_once_does_what_is_pending_and_tells_what_failed(folder: Path) -> None:
    """Law: a view that cannot be maintained does not stop the others."""
    csn = _commit(folder, 7)
    result = call("serve", folder, "--once", code=1)
    lines = result.stdout.splitlines()
    assert result.stderr == ""
    assert sum(" v: done, CSN " in line for line in lines) == 1
    assert sum(" bad: failed: " in line for line in lines) == 1
    with freshview.connect(folder) as wh:
        assert _frontier(wh, "v") == csn
    _commit(folder, 8)
    call("serve", folder, "--once", "--policy", "size")
    assert _left_behind(folder) == [0, 0]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["nowhere"], "warehouse nowhere: there is none in this folder. Check the path, or make one: "),
        (["wh", "--policy", "newest"], "policy 'newest': is not known. Use one of oldest, use, size."),
        (["wh", "--catalog", "sqlite:///other.db"], "it belongs to another catalog"),
    ],
)
def test_what_is_wrong_is_told_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], sentence: str
) -> None:
    freshview.connect(tmp_path / "wh").close()
    monkeypatch.chdir(tmp_path)
    result = call("serve", *options, code=1)
    assert result.stdout == ""
    assert sentence in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not (tmp_path / "nowhere").exists()


def test_help_starts_nothing() -> None:
    """Law: neither Spark nor PySpark is loaded to tell what there is."""
    script = (
        "import sys\nfrom typer.testing import CliRunner\nfrom freshview.cli.main import app\n"
        "result = CliRunner().invoke(app, ['serve', '--help'])\n"
        "assert result.exit_code == 0 and '--policy' in result.stdout, result\n"
        "assert 'pyspark' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60, env={**os.environ, "NO_COLOR": "1"})
