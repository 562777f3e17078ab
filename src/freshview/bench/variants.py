"""Variants of the search (MQO §7.2.1) over the workload at scale 1: what each expects a refresh to cost, and how long
it searches. Nothing is executed.

Lookups read files here, as in the paper: with an index in memory little is left to choose (`index in memory`).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from freshview.algebra.nodes import Node
from freshview.bench.measure import Figure, Timing, seconds_of
from freshview.bench.workload import DISTINCT, ROWS, TYPES, VIEWS
from freshview.delta.forms import choose_form
from freshview.optimizer.choice import Choice, optimise
from freshview.optimizer.dag import Dag, View
from freshview.optimizer.greedy import Limits
from freshview.optimizer.prices import Prices
from freshview.optimizer.rules import expand
from freshview.optimizer.statistics import Facts
from freshview.sql.lowering import lower

_CHANGED = 0.01
_IN_FILES = Prices(index_memory=0.0)
_VARIANTS = {
    "all": Limits(),
    "no differentials": Limits(differentials=False),
    "differentials one by one": Limits(one_by_one=True),
    "only transient": Limits(permanent=False),
    "only permanent": Limits(transient=False),
}


def chosen(limits: Limits, prices: Prices = _IN_FILES) -> Choice:
    """The choice for the workload after 1 % of all tables were inserted."""
    dag = Dag(TYPES)
    for name, text in VIEWS.items():
        lowered = lower(text, {table: tuple(columns) for table, columns in TYPES.items()})
        form = choose_form(lowered, tuple(n for _, n in lowered.outputs), _types)
        dag.add_view(View(name, form, _types(form.tree)))
    expand(dag)
    facts = {
        table: Facts(rows, {c: DISTINCT[c] for c in TYPES[table] if c in DISTINCT}, inserted=max(rows * _CHANGED, 1))
        for table, rows in ROWS.items()
    }
    return optimise(dag, facts, prices, limits)


def _types(node: Node) -> dict[str, str]:
    return dict.fromkeys(node.columns, "bigint")


def variants(folder: Path, scale: float, repeat: int) -> list[Figure]:  # noqa: ARG001
    """Search the plans of the workload under the limits of each variant; return the variants against the whole."""
    costs: dict[str, float] = {}
    times: dict[str, Timing] = {}
    for name, limits in _VARIANTS.items():
        times[name] = Timing(tuple(seconds_of(lambda limits=limits: chosen(limits)) for _ in range(repeat)))  # type: ignore[misc]
        choice = chosen(limits)
        costs |= {name: choice.after, "none": choice.before}
    details = {name: f"{cost:.2f} s expected" for name, cost in costs.items()}
    indexed = chosen(Limits(), Prices())
    details["index in memory"] = f"{indexed.after:.2f} s expected, none {indexed.before:.2f} s"
    details |= {f"{name}, search": str(timing) for name, timing in times.items()}
    one, each = "all", "differentials one by one"
    ratios = {
        "workload of MQO §7.1, 1 % inserted, expected: chosen / none": (costs[one], costs["none"]),
        "expected: without shared differentials / with them": (costs["no differentials"], costs[one]),
        "expected: differentials one by one / as one unit": (costs[each], costs[one]),
        "search: differentials one by one / as one unit": (times[each].p50, times[one].p50),
    }
    found = [Figure(name, over / under, None, "×", {}) for name, (over, under) in ratios.items()]
    return [replace(found[0], details=details), *found[1:]]
