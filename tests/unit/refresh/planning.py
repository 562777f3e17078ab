"""Facts of jobs, made up for tests of plans."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from freshview.algebra.nodes import Scan
from freshview.algebra.traversal import scans
from freshview.refresh.cost import Estimate
from freshview.refresh.plan import JobFacts, ScanPlan, ViewSpan, Way
from freshview.refresh.points import Point


def facts(
    ways: Sequence[Way], reads: Callable[[Scan], int], full: Estimate, factors: Mapping[str, float] | None = None
) -> JobFacts:
    """Facts in which each scan of the ways reads so many rows from files."""
    every = [scan for way in ways if way.query is not None for scan in scans(way.query)]
    return JobFacts({scan: ScanPlan(scan, reads(scan)) for scan in every}, full, factors or {})


def taking(view: str, start: int, end: int) -> ViewSpan:
    """A view that a job takes from one CSN to another."""
    return ViewSpan(view, Point(start), Point(end))
