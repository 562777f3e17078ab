"""Starting Spark: a clear sentence where it cannot, and silence where it can."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_ASK = """
import sys, freshview
from freshview.errors import SparkUnavailable
wh = freshview.connect(sys.argv[1])
wh.sql("CREATE TABLE t (k INT PRIMARY KEY, v STRING)")
wh.sql("INSERT INTO t VALUES (1, 'a')")
try:
    wh.sql("SELECT * FROM t")
except SparkUnavailable as error:
    print(error)
wh.sql("INSERT INTO t VALUES (2, 'b')")
wh.close()
"""


def _run(script: str, folder: Path, **environment: str | None) -> subprocess.CompletedProcess[str]:
    variables = {k: v for k, v in {**os.environ, **environment}.items() if v is not None}
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", script, str(folder)],
        capture_output=True,
        text=True,
        timeout=180,
        env=variables,
        check=False,
    )


def _fake_java(folder: Path, says: str, code: int = 0) -> Path:
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho '{says}' >&2\nexit {code}\n")
    java.chmod(0o755)
    return folder


@pytest.mark.parametrize("case", ["none", "old", "ancient", "wrong home", "no java at all"])
def test_java_that_will_not_do_is_told_in_one_sentence(tmp_path: Path, case: str) -> None:
    """Missing or old: what, why and what to do; work without Spark goes on; nothing else is printed."""
    home: str | None = None
    path = str(tmp_path / "empty")
    match case:
        case "old":
            home = str(_fake_java(tmp_path / "jdk", 'openjdk version "11.0.2" 2019-01-15'))
        case "ancient":
            home = str(_fake_java(tmp_path / "jdk", 'java version "1.8.0_292"'))
        case "wrong home":
            home = str(tmp_path / "nowhere")
        case "no java at all":
            home = str(_fake_java(tmp_path / "jdk", "this is not java", 1))
    done = _run(_ASK, tmp_path / "w", JAVA_HOME=home, PATH=path, SPARK_REMOTE=None)
    assert done.stderr == ""
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) == 1
    assert done.stdout.startswith("Java: ")
    assert "Install Java 17 or newer" in done.stdout
    expected = {"old": "version 11 is too old", "ancient": "version 8 is too old"}.get(case, "not found")
    assert expected in done.stdout


def test_a_session_makes_no_noise(tmp_path: Path) -> None:
    """Connect, write, query, fail, close: nothing but our own output."""
    script = """
import sys, freshview
with freshview.connect(sys.argv[1]) as wh:
    wh.sql("CREATE TABLE t (k INT PRIMARY KEY, v STRING)")
    wh.sql("INSERT INTO t SELECT CAST(id AS INT), uuid() FROM range(3)")
    wh.sql("UPDATE t SET v = concat(v, k) WHERE k > 0")
    try:
        wh.sql("UPDATE t SET v = CAST(v AS INT)")
    except freshview.errors.QueryFailed:
        pass
    wh.sql("CHECKPOINT t")
    print(wh.sql("SELECT count(*) FROM t").collect()[0][0])
"""
    done = _run(script, tmp_path / "w")
    assert (done.stdout, done.stderr, done.returncode) == ("3\n", "", 0)
