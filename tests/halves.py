"""Run all tests in two halves side by side: those that share one Spark session, and all others.

Those that start processes of their own (tests/processes, tests/cluster) gain little from a session that is
warm, and go with the others. When the others are done, they take modules of tests/spark from the end, until the halves
meet: so both take equally long. Options of pytest may be given.
"""

from __future__ import annotations

import os
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
    shared = sorted(str(path.relative_to(ROOT)) for path in (ROOT / SHARED).glob("test_*.py"))
    others = [*(path for path in settings["testpaths"] if path != SHARED), *reversed(shared)]
    with tempfile.TemporaryFile() as kept, tempfile.TemporaryDirectory() as claims:
        environment = {**os.environ, "FRESHVIEW_CLAIMS": claims}
        beside = subprocess.Popen(
            command(others, "others", options), cwd=ROOT, env=environment, stdout=kept, stderr=subprocess.STDOUT
        )
        try:
            spark = command(shared, "spark", options)
            first = subprocess.run(spark, cwd=ROOT, env=environment, check=False).returncode
            second = beside.wait()
        finally:
            beside.kill()
        kept.seek(0)
        sys.stdout.write(kept.read().decode(errors="replace"))
    return max(first, second)


def command(paths: list[str], name: str, options: list[str]) -> list[str]:
    cache = ["-o", f"cache_dir=.pytest_cache/{name}"]
    return [sys.executable, "-m", "pytest", "-p", "tests.claims", *cache, "--durations=15", *options, *paths]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
