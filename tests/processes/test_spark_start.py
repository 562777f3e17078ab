"""Starting Spark: a clear sentence where it cannot, and silence where it can."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

_ASK = """
import json, os, sys, freshview
from freshview.errors import SparkUnavailable
for number, variables in enumerate(json.loads(sys.argv[2])):
    os.environ.pop("JAVA_HOME", None)
    os.environ.update(variables)
    wh = freshview.connect(f"{sys.argv[1]}{number}")
    wh.sql("CREATE TABLE t (k INT PRIMARY KEY, v STRING)")
    wh.sql("INSERT INTO t VALUES (1, 'a')")
    try:
        wh.sql("SELECT * FROM t")
    except SparkUnavailable as error:
        print(error)
    wh.sql("INSERT INTO t VALUES (2, 'b')")
    wh.close()
"""


def _run(script: str, folder: Path, *more: str, **environment: str | None) -> subprocess.CompletedProcess[str]:
    variables = {k: v for k, v in {**os.environ, **environment}.items() if v is not None}
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", script, str(folder), *more],
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


def test_java_that_will_not_do_is_told_in_one_sentence(tmp_path: Path) -> None:
    """Missing or old: what, why and what to do; work without Spark goes on; nothing else is printed."""
    cases = {
        "not found (no java on the PATH)": None,
        "version 11 is too old": _fake_java(tmp_path / "jdk 11", 'openjdk version "11.0.2" 2019-01-15'),
        "version 8 is too old": _fake_java(tmp_path / "jdk 8", 'java version "1.8.0_292"'),
        f"not found (JAVA_HOME is {tmp_path / 'nowhere'})": tmp_path / "nowhere",
        f"not found (JAVA_HOME is {tmp_path / 'broken'})": _fake_java(tmp_path / "broken", "this is not java", 1),
    }
    homes = json.dumps([{"JAVA_HOME": str(home)} if home else {} for home in cases.values()])
    done = _run(_ASK, tmp_path / "w", homes, PATH=str(tmp_path / "empty"), SPARK_REMOTE=None)
    assert done.stderr == ""
    assert done.returncode == 0
    for told, expected in zip(done.stdout.splitlines(), cases, strict=True):
        assert told.startswith("Java: ")
        assert "Install Java 17 or newer" in told
        assert expected in told


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
