"""The facts by which the optimiser orders plans: sizes of relations, distinct values, and changes per refresh.

    rows        as they were counted; else at most, from the catalog: the rows of main and all delta rows since
    distinct    counted by Spark's sketches (`approx_count_distinct`) when first needed, kept and aged by the catalog
    changes     "usual": the delta rows that a refresh found lately, what is pending if there was no refresh;
                "pending": exactly what is pending; a number: each table changes by this share of its rows

Wrong facts make plans slow, never wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from freshview.catalog.records import Relation
from freshview.catalog.statistics import Churn, Counts, StatisticsCatalog
from freshview.optimizer.statistics import Facts
from freshview.refresh.workload import Workload

USUAL, PENDING = "usual", "pending"
ExpectedChanges = str | float
Count = Callable[[Relation, int, list[str]], tuple[int, dict[str, int]]]  # relation, CSN, columns → rows, distinct

_ASSUMED = 0.001  # the share of each table that is taken to change where nothing is known


@dataclass(frozen=True)
class Findings:
    """Facts of the relations of a workload, and how they were come by."""

    facts: Mapping[str, Facts]
    notes: tuple[str, ...]


def found(
    statistics: StatisticsCatalog, over: Workload, changes: ExpectedChanges = USUAL, count: Count | None = None
) -> Findings:
    """The facts of a workload's relations. `count` counts what is not known yet; None: nothing is counted."""
    leaves = over.relations
    counts = _counted(statistics, over, count) if count is not None else statistics.counts()
    at_most = statistics.rows()
    rows = {name: _rows(counts.get(leaf.id), at_most.get(leaf.id, 0)) for name, leaf in leaves.items()}
    per_refresh, notes = _changes(statistics, over, rows, changes)
    facts = {}
    for name, leaf in leaves.items():
        changed, deletes = per_refresh[name]
        distinct = counts.get(leaf.id, Counts()).distinct
        facts[name] = Facts(rows[name], distinct, changed * (1 - deletes), changed * deletes)
    return Findings(facts, tuple(notes))


def _rows(counted: Counts | None, at_most: int) -> float:
    return float(counted.rows if counted is not None and counted.rows is not None else at_most)


def _counted(statistics: StatisticsCatalog, over: Workload, count: Count) -> dict[int, Counts]:
    """The counts of a workload's relations, those that are missing or aged taken now."""
    known = statistics.counts()
    for name, columns in over.compared().items():
        leaf = over.relations[name]
        have = known.get(leaf.id, Counts())
        missing = sorted(columns - have.distinct.keys())
        if missing or have.rows is None:
            csn = statistics.catalog.snapshot()
            rows, distinct = count(leaf, csn, missing)
            statistics.keep(leaf.id, csn, rows, distinct)
            known[leaf.id] = Counts(rows, {**have.distinct, **distinct})
    return known


# -- changes ---------------------------------------------------------------------------------------


def _changes(
    statistics: StatisticsCatalog, over: Workload, rows: Mapping[str, float], changes: ExpectedChanges
) -> tuple[dict[str, tuple[float, float]], list[str]]:
    """For each leaf, its delta rows per refresh and the share that deletes; and remarks on where they are from."""
    tables = {name: leaf for name, leaf in over.relations.items() if leaf.kind != "view"}
    churn = statistics.churn([leaf.id for leaf in tables.values()])
    if isinstance(changes, float):
        shares = {name: (changes * rows[name], churn[leaf.id].deletes) for name, leaf in tables.items()}
        notes = [f"each table is taken to change by {changes:.3g} of its rows in a refresh, as asked for"]
    else:
        shares = {name: _expected(churn[leaf.id], changes) for name, leaf in tables.items()}
        notes = [f"changes: {_source(churn.values(), changes)}"]
        if not any(changed for changed, _ in shares.values()) and changes == USUAL:
            shares = {name: (_ASSUMED * rows[name], 0.0) for name in tables}
            notes = [f"no table has changed since its views were created: each is taken to change by {_ASSUMED:.1%}"]
    usual = statistics.changes_of_views()
    for name, leaf in over.relations.items():
        if leaf.kind == "view":
            shares[name] = (_of_view(name, usual.get(leaf.id), over, shares, rows), 0.5)
    return shares, notes


def _expected(one: Churn, changes: ExpectedChanges) -> tuple[float, float]:
    return float(one.pending) if changes == PENDING else one.per_refresh, one.deletes


def _source(churn: Iterable[Churn], changes: ExpectedChanges) -> str:
    if changes == PENDING:
        return "what is pending now"
    known = any(f.refreshes and f.written for f in churn)
    return "per refresh, of the last day" if known else "what is pending now: there was no refresh in the last day"


def _of_view(
    name: str,
    usual: float | None,
    over: Workload,
    shares: Mapping[str, tuple[float, float]],
    rows: Mapping[str, float],
) -> float:
    """The delta rows of a view that another one reads: what its jobs changed, else what its sources change, at most
    all of its rows, deleted and inserted again."""
    if usual is not None:
        return usual
    below = sum(shares.get(source, (0.0, 0.0))[0] for source in over.reads.get(name, ()))
    return min(below, 2 * rows[name])
