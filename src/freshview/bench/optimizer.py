"""The optimiser: how long the search takes and how much memory, as views become more (MQO §7.2.3, Figure 6).

The paper's benchmark: relations R1, R2, … with columns p, sp and n; view i is a star of four of them, R1.sp joined with
p of R(2i), R(2i+1) and R(2i+2). Ten views read 22 relations. Everything changes by 1 %.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Mapping
from pathlib import Path

from freshview.algebra.nodes import Node
from freshview.bench.measure import Chart, Figure, Timing, seconds_of
from freshview.delta.forms import choose_form
from freshview.optimizer.choice import Choice, optimise
from freshview.optimizer.dag import Dag, View
from freshview.optimizer.rules import expand
from freshview.optimizer.statistics import Facts
from freshview.sql.lowering import lower

_COLUMNS = {"p": "bigint", "sp": "bigint", "n": "bigint"}
_GROWTH = (1, 2, 4, 6, 8, 10, 20, 50, 100)
_ROWS = 1e6


def stars(count: int) -> Choice:
    """The choice for so many star views: the DAG is built, expanded and searched."""
    relations = {f"R{i}": _COLUMNS for i in range(1, 2 * count + 3)}
    dag = Dag(relations)
    for i in range(1, count + 1):
        dag.add_view(_star(i, relations))
    expand(dag)
    facts = {r: Facts(_ROWS, {"p": _ROWS, "sp": _ROWS / 10}, inserted=_ROWS / 100) for r in relations}
    return optimise(dag, facts)


def _star(i: int, relations: Mapping[str, Mapping[str, str]]) -> View:
    others = [f"R{2 * i + k}" for k in range(3)]
    joins = " ".join(f"JOIN {r} ON R1.sp = {r}.p" for r in others)
    text = f"SELECT R1.p, {', '.join(f'{r}.n AS n{k}' for k, r in enumerate(others))} FROM R1 {joins}"
    lowered = lower(text, {r: tuple(c) for r, c in relations.items()})
    form = choose_form(lowered, tuple(n for _, n in lowered.outputs), _types)
    return View(f"v{i}", form, _types(form.tree))


def _types(node: Node) -> dict[str, str]:
    return dict.fromkeys(node.columns, "bigint")


def memory_of(count: int) -> int:
    """The peak of bytes that Python allocates while it optimises so many star views."""
    tracemalloc.start()
    try:
        stars(count)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def scalability(folder: Path, scale: float, repeat: int) -> list[Figure]:  # noqa: ARG001
    """Time the search for 1 to 100 star views, and measure its memory for ten."""
    stars(1)
    times = {n: Timing(tuple(seconds_of(lambda n=n: stars(n)) for _ in range(repeat))) for n in _GROWTH}  # type: ignore[misc]
    details = {f"{n} views over {2 * n + 2} relations": str(t) for n, t in times.items()}
    lines = {"search": {str(n): t.p50 for n, t in times.items()}}
    chart = Chart("figure6", "Figure 6: the search, by the number of views", {}, lines=lines, along="views")
    ten, hundred = times[10], times[100]
    return [
        Figure("10 star views over 22 relations", ten.p50, 1, "s", details, chart=chart, spread=(ten.best, ten.worst)),
        Figure("100 star views", hundred.p50, 30, "s", {}, spread=(hundred.best, hundred.worst)),
        Figure("memory for 10 star views", memory_of(10) / 1e6, 100, "MB", {}),
    ]


STEPS = (scalability,)
