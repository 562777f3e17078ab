"""Run all tests in two halves side by side: those that share one Spark session, and all others.

Those that start processes of their own (tests/processes, tests/cluster) gain little from a session that is
warm, and go with the others; so do as many modules of tests/spark as make both halves equally long. Options of pytest
may be given.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
SHARED = "tests/spark"
MOVED = ["tests/spark/test_less_common_sql.py"]  # to the others, whose last tests need a session too


def main(options: list[str]) -> int:
    """The worse of the two exit codes; what the others printed comes after what the Spark tests did."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    others = [p for path in settings["testpaths"] for p in (MOVED if path == SHARED else [path])]
    shared = [SHARED, *(f"--ignore={path}" for path in MOVED)]
    with tempfile.TemporaryFile() as kept:
        beside = subprocess.Popen(command(others, "others", options), cwd=ROOT, stdout=kept, stderr=subprocess.STDOUT)
        try:
            first = subprocess.run(command(shared, "spark", options), cwd=ROOT, check=False).returncode
            second = beside.wait()
        finally:
            beside.kill()
        kept.seek(0)
        sys.stdout.write(kept.read().decode(errors="replace"))
    return max(first, second)


def command(paths: list[str], name: str, options: list[str]) -> list[str]:
    cache = ["-o", f"cache_dir=.pytest_cache/{name}"]
    return [sys.executable, "-m", "pytest", *cache, "--durations=15", *options, *paths]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
