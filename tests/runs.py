"""Run all tests in three runs side by side: two with a Spark session each, and one with all other tests first.

Every module is run by the run that comes to it first. Of tests/spark one run takes them from the start, one from the
middle, and the others, when they are done, from the end; the first two go on with the slowest of the others. So all
take equally long. Two runs leave a fifth of two cores idle, since Python waits for Java, and tests wait for processes.
Options of pytest may be given.
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


def main(options: list[str]) -> int:
    """The worst of the exit codes; what the first run prints is seen at once, the rest when all have ended."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    shared = sorted(str(path.relative_to(ROOT)) for path in (ROOT / SHARED).glob("test_*.py"))
    middle = len(shared) // 2
    runs = {
        "spark": [*shared, *SLOW],
        "middle": [*shared[middle:], *shared[:middle], *SLOW],
        "others": [*(path for path in settings["testpaths"] if path != SHARED), *reversed(shared)],
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


def command(paths: list[str], name: str, options: list[str]) -> list[str]:
    cache = ["-o", f"cache_dir=.pytest_cache/{name}"]
    return [sys.executable, "-m", "pytest", "-p", "tests.claims", *cache, "--durations=15", *options, *paths]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
