"""Run tests again and again, and count the green runs: the parts without Spark, or all tests as `make test` has them.

`python -m tests.repeat` runs the first 20 times, `python -m tests.repeat --whole` the second 3 times; --times N says
otherwise. What a run that is not green printed is printed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence

from tests.runs import ROOT, paths_of_tests

WITH_SPARK = ("tests/spark", "tests/processes", "tests/cluster")


def main() -> int:
    """0 if all runs were green."""
    options = argparse.ArgumentParser(description="Run tests again and again, and count the green runs.")
    options.add_argument("--whole", action="store_true", help="all tests, in three runs side by side")
    options.add_argument("--times", type=int, help="how often (20; 3 with --whole)")
    given = options.parse_args()
    times = given.times or (3 if given.whole else 20)
    without = [path for path in paths_of_tests() if path not in WITH_SPARK]
    command = ["tests/runs.py"] if given.whole else ["-m", "pytest", "-q", *without]
    green = green_runs([sys.executable, *command], times)
    print(f"{green} of {times} runs were green: {'all tests' if given.whole else ' '.join(without)}")
    return int(green < times)


def green_runs(command: Sequence[str], times: int) -> int:
    """Run a command so often, and return how often it ended well."""
    green = 0
    for turn in range(1, times + 1):
        start = time.monotonic()
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        if done.returncode:
            print(done.stdout.decode(errors="replace"))
        green += not done.returncode
        print(f"run {turn} of {times}: {'red' if done.returncode else 'green'}, {time.monotonic() - start:.0f} s")
    return green


if __name__ == "__main__":
    sys.exit(main())
