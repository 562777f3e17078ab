"""`make bench`: run suites, print ratios with the numbers behind them, write them as JSON and charts.

What a step has measured is written when the step ends: a run that is ended keeps it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from freshview.bench import (
    cdc,
    deferred,
    foundation,
    growth,
    large,
    lazy,
    optimizer,
    peers,
    profile,
    quick,
    strategy,
    views,
)
from freshview.bench.measure import Chart, Figure
from freshview.bench.report import write as write_documents
from freshview.bench.tables import forget, is_kept
from freshview.errors import FreshviewError

SuiteStep = Callable[[Path, float, int], list[Figure]]
SUITES: dict[str, tuple[SuiteStep, ...]] = {
    "foundation": foundation.STEPS,
    "views": views.STEPS,
    "strategy": strategy.STEPS,
    "large": large.STEPS,
    "lazy": lazy.STEPS,
    "deferred": deferred.STEPS,
    "optimizer": optimizer.STEPS,
    "cdc": cdc.STEPS,
    "peers": peers.STEPS,
    "growth": growth.STEPS,
    "profile": profile.STEPS,
}
_DOCUMENTS = Path("docs/benchmarks")
_PACKAGES = ("freshview", "pyspark", "deltalake", "pyarrow", "sqlglot", "SQLAlchemy", "duckdb")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the named suites, or all; return 1 if a step failed or an answer was wrong."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    for suite in arguments.suites:
        if suite not in SUITES:
            parser.error(f"unknown suite {suite!r}; there are: {', '.join(SUITES)}")
    if arguments.scale is None:
        arguments.scale = quick.SCALE if arguments.quick else 1.0
    if arguments.repeat is None:
        arguments.repeat = quick.REPEAT if arguments.quick else 3
    names = {step.__name__ for suite in arguments.suites for step in SUITES[suite]}
    for name in set(arguments.only) - names:
        parser.error(f"unknown step {name!r}; there are: {', '.join(sorted(names))}")
    if arguments.scale <= 0 or arguments.repeat < 1:
        parser.error("--scale must be above 0 and --repeat at least 1")
    if arguments.out is None:
        arguments.out = quick.out_folder(arguments.folder) if arguments.quick else _DOCUMENTS
    if arguments.quick and quick.is_of_documents(arguments.out):
        parser.error(f"--quick does not write to {arguments.out}: the documentation shows full runs only")
    arguments.folder.mkdir(parents=True, exist_ok=True)
    if arguments.step:
        return _child(arguments)
    if not arguments.keep:
        forget(arguments.folder, arguments.scale)
    elif not is_kept(arguments.folder, arguments.scale):
        parser.error(f"--keep: {arguments.folder} has no tables of scale {arguments.scale:g}; run once without it")
    begun = time.monotonic()
    code = max(_run(suite, arguments) for suite in arguments.suites)
    trial = "; a trial, whose numbers are no results" if arguments.quick else ""
    print(f"took {(time.monotonic() - begun) / 60:.1f} min{trial}")
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="freshview bench", description=__doc__)
    parser.add_argument("suites", nargs="*", default=list(SUITES), help=f"any of: {', '.join(SUITES)} (default: all)")
    parser.add_argument(
        "--quick", action="store_true", help=f"a trial in minutes: scale {quick.SCALE:g}, {quick.REPEAT} repetition"
    )
    parser.add_argument("--scale", type=float, help="TPC-H scale factor (default 1)")
    parser.add_argument("--repeat", type=int, help="repetitions of each measurement (default 3)")
    parser.add_argument("--folder", type=Path, default=Path(".bench"), help="where data is kept (default .bench)")
    parser.add_argument("--out", type=Path, help=f"where JSON and charts go (default {_DOCUMENTS}; quick: in --folder)")
    parser.add_argument("--only", nargs="+", default=[], metavar="STEP", help="some steps; figures of others stay")
    parser.add_argument(
        "--keep", action="store_true", help="use tables and views that an earlier run has loaded, maybe with other code"
    )
    parser.add_argument("--step", help=argparse.SUPPRESS)
    return parser


def _run(suite: str, arguments: argparse.Namespace) -> int:
    """Run all steps of a suite, each in a process of its own; steps of a quick run share one."""
    kept = _earlier(suite, arguments)
    report: dict[str, Any] = {"suite": suite, "scale": arguments.scale, "machine": {}, "steps": [], "figures": []}
    begun = time.monotonic()
    kind = "QUICK, a trial and no result: " if arguments.quick else ""
    print(f"{suite}: {kind}TPC-H scale {arguments.scale:g}, {os.cpu_count()} cores", flush=True)
    names = [step.__name__ for step in SUITES[suite]]
    for place, name in enumerate(names):
        if arguments.only and name not in arguments.only:
            _put(report, kept, [name])
            continue
        found, taken = _step(suite, name, arguments)
        report["steps"].append(taken)
        for figure in found or ():
            _print(figure)
            report["figures"].append({**figure, "step": name})
        so_far = {key: list(report[key]) for key in ("steps", "figures")}
        _write({**report, **_put(so_far, kept, names[place + 1 :])}, kept, arguments)
    failed = [step["name"] for step in report["steps"] if step["failed"]]
    if failed:
        print(f"  failed: {', '.join(failed)}", file=sys.stderr)
    if not report["figures"]:
        return 1  # what an earlier run has measured stays
    _write(report, kept, arguments)
    print(f"{suite} took {time.monotonic() - begun:.0f} s", flush=True)
    return 1 if failed or any(f.get("always") and not f["met"] for f in report["figures"]) else 0


def _put(report: dict[str, Any], kept: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Add what an earlier run has measured in some steps to a report; return the report."""
    report["steps"] += [s for s in kept["steps"] if s["name"] in names]
    report["figures"] += [f for f in kept["figures"] if f.get("step") in names]
    return report


def _write(report: dict[str, Any], kept: dict[str, Any], arguments: argparse.Namespace) -> None:
    """Write a report, if it has figures, and the documents. A run of some steps keeps the figures of earlier reports
    that did not list their steps, except those that it has measured by their names."""
    if not report["figures"]:
        return
    if arguments.only:
        measured = {f["name"] for f in report["figures"] if not f.get("always")}
        unlabelled = [f for f in kept["figures"] if "step" not in f and f["name"] not in measured]
        report = {**report, "figures": [*unlabelled, *report["figures"]]}
    _keep({**report, "machine": machine()} | ({"quick": True} if arguments.quick else {}), arguments.out)
    if not arguments.quick:
        write_documents(arguments.out)


def _earlier(suite: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the report of an earlier run of a suite at this scale, whose figures stay until their steps are run."""
    path = arguments.out / f"{suite}.json"
    found = json.loads(path.read_text()) if path.exists() else {}
    is_alike = found.get("scale") == arguments.scale and quick.is_quick(found) == arguments.quick
    return {"steps": [], "figures": [], **(found if is_alike else {})}


def _step(suite: str, name: str, arguments: argparse.Namespace) -> tuple[list[dict[str, Any]] | None, dict[str, Any]]:
    """Run a step; return its figures (None if it failed), and its time with the load average before and after."""
    begun, before = time.monotonic(), os.getloadavg()[0]
    is_apart = not arguments.quick or quick.is_apart(suite, name)
    found = (_apart if is_apart else _here)(suite, name, arguments)
    seconds, loads = round(time.monotonic() - begun), [round(before, 1), round(os.getloadavg()[0], 1)]
    print(f"  {name}: {seconds} s, load average {loads[0]} before, {loads[1]} after", flush=True)
    taken = {"name": name, "seconds": seconds, "load_average": loads, "failed": found is None}
    return quick.marked({"figures": found})["figures"] if found is not None and arguments.quick else found, taken


def _apart(suite: str, name: str, arguments: argparse.Namespace) -> list[dict[str, Any]] | None:
    """Run a step in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="freshview-bench-") as elsewhere:
        options = {"step": name, "out": elsewhere, **{o: getattr(arguments, o) for o in ("folder", "scale", "repeat")}}
        words = [word for option, value in options.items() for word in (f"--{option}", str(value))]
        command = [sys.executable, "-m", "freshview.bench", suite, *words]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    return json.loads(done.stdout.strip().splitlines()[-1]) if done.returncode == 0 else None


def _here(suite: str, name: str, arguments: argparse.Namespace) -> list[dict[str, Any]] | None:
    """Run a step in this process; an unexpected error is printed with its traceback, and other suites go on."""
    step = next(step for step in SUITES[suite] if step.__name__ == name)
    try:
        return [f.as_json() for f in step(arguments.folder, arguments.scale, arguments.repeat)]
    except FreshviewError as error:
        print(f"{name}: {error}", file=sys.stderr)
    except Exception:
        traceback.print_exc()
    return None


def _keep(report: dict[str, Any], out: Path) -> None:
    """Write the numbers as JSON and as charts."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{report['suite']}.json"
    path.write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n")
    print(f"written to {path}")
    charts = [Chart(**f["chart"]) for f in report["figures"] if f.get("chart")]
    if charts:
        from freshview.bench.charts import draw  # imports matplotlib, which measuring does not need

        for chart in charts:
            drawn = draw(chart, path.with_name(f"{path.stem}-{chart.name}.svg"))
            print(f"drawn to {drawn}")


def _print(figure: dict[str, Any]) -> None:
    mark = {True: "ok  ", False: "MISS", None: "    "}[figure["met"]]
    between = f" ({figure['spread'][0]:.3g} to {figure['spread'][1]:.3g})" if figure.get("spread") else ""
    limit = f" (limit {figure['limit']:g})" if figure["limit"] is not None else ""
    print(f"  {mark} {figure['name']}: {figure['value']:.3g} {figure['unit']}{between}{limit}", flush=True)
    for name, value in figure["details"].items():
        print(f"         {name}: {value}")


def _child(arguments: argparse.Namespace) -> int:
    """Run a step in this process; print its figures as the last line of standard output."""
    figures = _here(arguments.suites[0], arguments.step, arguments)
    if figures is None:
        return 1
    print(json.dumps(figures))
    return 0


def machine() -> dict[str, object]:
    """Return the machine and the versions that the figures were measured with."""
    from freshview.spark.java import java_version  # not at the top: a step measures whether Spark was loaded

    return {
        "cores": os.cpu_count(),
        "processor": _processor(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "java": java_version(),
        "load_average": round(os.getloadavg()[2], 1),  # of the last quarter of an hour: other programs raise it
        **{p: found for p in _PACKAGES if (found := _version(p))},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    """Return the processor's model name, if the system has it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown"
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


if __name__ == "__main__":
    sys.exit(main())
