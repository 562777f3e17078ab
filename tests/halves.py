"""Run all tests in two halves side by side: those that share one Spark session, and all others.

Those that start processes of their own (tests/processes, tests/cluster) gain little from a session that is
warm, and go with the others. Options of pytest may be given.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
SHARED = "tests/spark"


def main(options: list[str]) -> int:
    """The worse of the two exit codes; what the others printed comes after what the Spark tests did."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    others = [path for path in settings["testpaths"] if path != SHARED]
    with tempfile.TemporaryFile() as kept:
        beside = subprocess.Popen(command(others, "others", options), cwd=ROOT, stdout=kept, stderr=subprocess.STDOUT)
        try:
            first = subprocess.run(command([SHARED], "spark", options), cwd=ROOT, check=False).returncode
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
