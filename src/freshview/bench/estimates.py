"""Estimated against actual time, over all jobs of the optimiser's suite (MQO §7: estimates within 10 %).

Each step of the suite keeps, per job, what was expected when it was planned and what it took.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path

from freshview import Warehouse
from freshview.bench.measure import Figure
from freshview.errors import FreshviewError
from freshview.refresh.accuracy import computing

_MEDIAN, _MOST = 1.3, 2.0  # how far the median, and nine of ten jobs, may be off, either way


def keep_estimates(folder: Path, scale: float, step: str, wh: Warehouse, since: int = 0) -> None:
    """Keep the expected and actual seconds of the finished jobs of a warehouse, from a CSN on, under the name of a
    step and of its scale."""
    jobs = [job for job in wh.history() if job.error is None and job.expected and job.from_csn >= since]
    path = folder / "estimates" / f"{step}.json"
    path.parent.mkdir(exist_ok=True)
    times = [[job.strategy, job.engine, job.expected, computing(job)] for job in jobs]
    path.write_text(json.dumps({"scale": scale, "jobs": times}))


def estimated(folder: Path, scale: float, _repeat: int) -> list[Figure]:
    """Compare estimated and actual times of all jobs that other steps have kept at this scale."""
    kept = [json.loads(path.read_text()) for path in sorted((folder / "estimates").glob("*.json"))]
    found = [tuple(job) for one in kept if one["scale"] == scale for job in one["jobs"]]
    if not found:
        raise FreshviewError("estimates", "no jobs have been kept", "Run the other steps first.")
    ratios = [expected / max(took, 1e-3) for _, _, expected, took in found]
    off = [max(ratio, 1 / ratio) for ratio in ratios]
    details = {
        "jobs": str(len(found)),
        "estimated / actual, median": f"{statistics.median(ratios):.2f}",
        "off either way, median": f"{statistics.median(off):.2f}",
    }
    for way in sorted({f"{strategy}, {engine}" for strategy, engine, _, _ in found}):
        some = [r for r, (strategy, engine, _, _) in zip(ratios, found, strict=True) if f"{strategy}, {engine}" == way]
        details[way] = f"{len(some)} jobs, median {statistics.median(some):.2f}"
    ninety = sorted(off)[min(round(0.9 * len(off)), len(off) - 1)]
    median = statistics.median(ratios)
    return [
        Figure("estimated / actual time, median over all jobs", max(median, 1 / median), _MEDIAN, "×", details),
        Figure("estimated / actual time, off by at most, 9 of 10 jobs", ninety, _MOST, "×", {}),
    ]
