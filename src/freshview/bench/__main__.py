"""`make bench`: run suites, print ratios with the numbers behind them, keep them as JSON and as charts."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from freshview.bench import foundation, lazy, views
from freshview.bench.measure import Chart, Figure
from freshview.bench.report import write as write_documents
from freshview.errors import FreshviewError

Step = Callable[[Path, float, int], list[Figure]]
SUITES: dict[str, tuple[Step, ...]] = {"foundation": foundation.STEPS, "views": views.STEPS, "lazy": lazy.STEPS}


def main() -> int:
    parser = argparse.ArgumentParser(prog="freshview.bench", description=__doc__)
    parser.add_argument("suites", nargs="*", default=list(SUITES), help=f"any of: {', '.join(SUITES)}")
    parser.add_argument("--scale", type=float, default=1.0, help="TPC-H scale factor (default 1)")
    parser.add_argument("--repeat", type=int, default=3, help="repetitions of each measurement (default 3)")
    parser.add_argument("--folder", type=Path, default=Path(".bench"), help="where data is kept (default .bench)")
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks"), help="where the JSON goes")
    parser.add_argument("--step", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    for suite in arguments.suites:
        if suite not in SUITES:
            parser.error(f"unknown suite {suite!r}; there are: {', '.join(SUITES)}")
    arguments.folder.mkdir(parents=True, exist_ok=True)
    if arguments.step:
        return _child(arguments.suites[0], arguments.step, arguments.folder, arguments.scale, arguments.repeat)
    return max(_run(suite, arguments) for suite in arguments.suites)


def _run(suite: str, arguments: argparse.Namespace) -> int:
    """All steps of a suite, each in a process of its own."""
    figures: list[dict[str, object]] = []
    print(f"{suite}: TPC-H scale {arguments.scale:g}, {os.cpu_count()} cores", flush=True)
    for step in SUITES[suite]:
        with tempfile.NamedTemporaryFile(suffix=".json") as result:
            command = [
                sys.executable, "-m", "freshview.bench", suite, "--step", step.__name__, "--out", result.name,
                "--folder", str(arguments.folder), "--scale", str(arguments.scale), "--repeat", str(arguments.repeat),
            ]  # fmt: skip
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            print(f"  {step.__name__} failed", file=sys.stderr)
            return 1
        found = json.loads(done.stdout.strip().splitlines()[-1])
        for figure in found:
            _print(figure)
        figures += found
    arguments.out.mkdir(parents=True, exist_ok=True)
    report = {"suite": suite, "scale": arguments.scale, "machine": _machine(), "figures": figures}
    path = arguments.out / f"{suite}.json"
    path.write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n")
    print(f"written to {path}")
    _draw(figures, suite, arguments.out)
    write_documents(arguments.out)
    return 0


def _draw(figures: list[dict[str, object]], suite: str, out: Path) -> None:
    shown = [Chart(**f["chart"]) for f in figures if isinstance(f.get("chart"), dict)]  # type: ignore[arg-type]
    if shown:
        from freshview.bench.charts import draw  # matplotlib: not for those who only measure

        for chart in shown:
            print(f"drawn to {draw(chart, out / f'{suite}-{chart.name}.svg')}")


def _print(figure: dict[str, object]) -> None:
    mark = {True: "ok  ", False: "MISS", None: "    "}[figure["met"]]  # type: ignore[index]
    limit = f" (limit {figure['limit']:g})" if isinstance(figure["limit"], float) else ""
    print(f"  {mark} {figure['name']}: {figure['value']:.3g} {figure['unit']}{limit}", flush=True)
    details = figure["details"]
    assert isinstance(details, dict)
    for name, value in details.items():
        print(f"         {name}: {value}")


def _child(suite: str, name: str, folder: Path, scale: float, repeat: int) -> int:
    step = next(s for s in SUITES[suite] if s.__name__ == name)
    try:
        figures = step(folder, scale, repeat)
    except FreshviewError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 1
    print(json.dumps([f.as_json() for f in figures]))
    return 0


def _machine() -> dict[str, object]:
    packages = ("pyspark", "deltalake", "pyarrow", "sqlglot", "SQLAlchemy")
    return {
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        **{p: version(p) for p in packages},
    }


if __name__ == "__main__":
    sys.exit(main())
