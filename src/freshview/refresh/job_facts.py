"""The facts by which the plan of a job is chosen, gathered from the job's input.

All reading that a choice needs ends here: rows are looked up, and parts of a query that the embedded engine does not
compute are computed by Spark, over few rows. `choose` takes the facts as data.

Only what may be used is read: the outward way is measured where the inward one has to read from files, and a query
is translated for the embedded engine where all of its rows are at hand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from freshview.algebra.nodes import Node, Scan
from freshview.algebra.traversal import scans
from freshview.local.plans import LocalPlan
from freshview.local.typed import Unproven
from freshview.refresh.embedded import embedded
from freshview.refresh.job_input import JobInput
from freshview.refresh.plan import JobFacts, ScanPlan, Way, possible
from freshview.spark.running import PlanRunner


def facts_of(given: JobInput, ways: Sequence[Way], runner: Callable[[], PlanRunner]) -> JobFacts:
    """The facts of one job. `runner` computes parts for the embedded engine that are not proven."""
    return gathered(given, ways, given.measured, lambda query: embedded(query, given, runner))


def gathered(
    given: JobInput,
    ways: Sequence[Way],
    measured: Callable[[Scan], ScanPlan],
    embed: Callable[[Node], LocalPlan] | None = None,
) -> JobFacts:
    """The facts of a job whose scans are measured by a function. `embed` returns a query for the embedded engine, or
    raises Unproven; None: the job is for Spark."""
    queries = [way.query for way in possible(ways) if way.query is not None]
    found: dict[Scan, ScanPlan] = {}
    for query in queries:
        for scan in scans(query):
            found[scan] = found.get(scan) or measured(scan)
            if found[scan].from_files and query is not queries[-1]:
                break  # the next way is measured instead
        else:
            break
    factors = given.calibration.factors() if given.full.rows else {}
    facts = JobFacts(found, given.full, factors)
    inward = next(iter(possible(ways)), None)
    if embed is None or inward is None or inward.query is None or not inward.is_small or not facts.is_at_hand(inward):
        return facts
    try:
        return JobFacts(found, given.full, factors, local=embed(inward.query))
    except Unproven as error:
        return JobFacts(found, given.full, factors, why_spark=str(error))
