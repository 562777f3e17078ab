"""Run all tests in three runs side by side: two with a Spark session each, and one with all other tests first.

Every module is run by the run that comes to it first. Of tests/spark all come to the slowest modules first, so that no
run begins a slow one when the others end, and all end at about the same time. Two runs leave a fifth of two cores
idle, since Python waits for Java, and tests wait for processes. Options of pytest may be given.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import tomllib
from contextlib import ExitStack
from pathlib import Path
from typing import IO

ROOT = Path(__file__).parents[1]
SHARED = "tests/spark"
SLOW = ("tests/cluster", "tests/processes", "tests/cdc")  # they wait for servers and processes
# Modules of tests/spark that take more than fifteen seconds of a core, the slowest first; a name too few costs time.
SLOWEST = (
    "less_common_sql auxiliary_views large_changes verdicts values_as_in_spark local_engine materialized_views"
    " refresh_together hunt_slice aggregate_state background conformance_sample answers_of_selftests deferred"
    " keyed_views bench_steps top scan_laws"
).split()


def main(options: list[str]) -> int:
    """The worst of the exit codes; what the first run prints is seen at once, the rest when all have ended."""
    slowest = [f"{SHARED}/test_{name}.py" for name in SLOWEST]
    rest = sorted(str(path.relative_to(ROOT)) for path in (ROOT / SHARED).glob("test_*.py"))
    shared = list(dict.fromkeys([*slowest, *rest]))
    runs = {
        "spark": [*shared, *SLOW],
        "second": [*shared, *SLOW],
        "others": [*(path for path in paths_of_tests() if path != SHARED), *shared],
    }
    with ExitStack() as ends:
        claims = ends.enter_context(tempfile.TemporaryDirectory())
        environment = {**os.environ, "FRESHVIEW_CLAIMS": claims}
        started: list[tuple[subprocess.Popen[bytes], IO[bytes] | None]] = []
        for name, paths in runs.items():
            printed: IO[bytes] | None = ends.enter_context(tempfile.TemporaryFile()) if started else None
            process = subprocess.Popen(
                command(paths, name, options), cwd=ROOT, env=environment, stdout=printed, stderr=subprocess.STDOUT
            )
            ends.callback(process.kill)
            started.append((process, printed))
        codes = [process.wait() for process, _ in started]
        for _, printed in started:
            if printed is not None:
                printed.seek(0)
                sys.stdout.write(printed.read().decode(errors="replace"))
    return max(map(abs, codes))  # a run that was killed has a negative one


def paths_of_tests() -> list[str]:
    """The folders of all tests."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    return list(settings["testpaths"])


def command(paths: list[str], name: str, options: list[str]) -> list[str]:
    cache = ["-o", f"cache_dir=.pytest_cache/{name}"]
    plugins = ["-p", "tests.claims", "-p", "tests.costs"]
    return [sys.executable, "-m", "pytest", *plugins, *cache, "--durations=15", *options, *paths]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
