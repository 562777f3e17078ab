"""The optimiser over all views (MQO §7): what it shares and stores, the adaptive strategy, and the search itself.

The paper gives estimated costs; here times are measured, over the workload of §7.1 (`workload.py`): what sharing and
stored results save (`stored.py`), V1 of LAZY with what is chosen for it (`stored_v1.py`), and how far the estimates of
all these jobs were off (`estimates.py`).

`variants` (§7.2.1) are of the search alone, over the workload at scale 1: without shared differentials, with each
differential as a unit of its own, without transient or without permanent results.

`scalability` (§7.2.3, Figure 6) is of the paper's benchmark: relations R1, R2, … with columns p, sp and n; view i is a
star of four of them, R1.sp joined with p of R(2i), R(2i+1) and R(2i+2). Ten views read 22 relations. Everything changes
by 1 %.
"""

from __future__ import annotations

import random
import sys
import tracemalloc
from collections.abc import Mapping
from pathlib import Path

from freshview.algebra.nodes import Node
from freshview.bench.data import KEYS
from freshview.bench.estimates import estimated, keep_estimates
from freshview.bench.measure import Chart, Figure, Timing, duration, is_trial, seconds_of
from freshview.bench.stored import separately, together, workload
from freshview.bench.stored_v1 import chosen_for_v1, v1_tenfold
from freshview.bench.tables import copied
from freshview.bench.variants import variants
from freshview.bench.views import exact
from freshview.bench.workload import VIEWS, grow
from freshview.definition.properties import REFRESH
from freshview.delta.forms import choose_form
from freshview.optimizer.choice import Choice, optimise
from freshview.optimizer.dag import Dag, View
from freshview.optimizer.rules import expand
from freshview.optimizer.statistics import Facts
from freshview.sql.lowering import lower

_COLUMNS = {"p": "bigint", "sp": "bigint", "n": "bigint"}
_GROWTH = (1, 2, 4, 6, 8, 10, 20, 50, 100)
_ROWS = 1e6
_COPIES = {"incremental": "incremental", "full": "full", "first": "incremental"}  # suffix of a view → its strategy
_SHARES = (0.001, 0.01, 0.05, 0.1, 0.2, 0.4, 0.8)  # of all tables, inserted


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


def adaptive(folder: Path, scale: float, _repeat: int) -> list[Figure]:
    """Time the ten views as they choose their strategy, all incremental, and all recomputed (§7.2.2, Figure 5).

    Each view is there three times, and gets the same inserts; a first round is a warm-up. Each view is there a fourth
    time, incremental and not timed, and goes first in each round: columns of new files are read into memory by whoever
    looks rows up first, which would be the chosen or the forced strategy, by their turn. At scale 1 about ten minutes.
    """
    draw = random.Random(19)
    lines: dict[str, dict[str, float]] = {way: {} for way in REFRESH}
    with copied(workload(folder, scale), folder / "optimizer") as wh:
        for suffix, way in _COPIES.items():
            for view, text in VIEWS.items():
                wh.sql(f"CREATE MATERIALIZED VIEW {view}_{suffix} TBLPROPERTIES ('refresh' = '{way}') AS {text}")
        for turn, share in enumerate((0.001, *((0.001, 0.2) if is_trial(scale) else _SHARES))):
            grow(wh, draw, share)
            for view in VIEWS:
                wh.maintain([f"{view}_first"])
            for way in REFRESH[turn % 3 :] + REFRESH[: turn % 3]:
                names = [view if way == "auto" else f"{view}_{way}" for view in VIEWS]
                taken = sum(seconds_of(lambda name=name: wh.maintain([name])) for name in names)  # type: ignore[misc]
                print(f"{share:.1%}, {way}: {duration(taken)}", file=sys.stderr, flush=True)
                if turn:
                    lines[way][f"{100 * share:g}"] = taken
            for table in KEYS:
                wh.sql(f"CHECKPOINT {table}")
        keep_estimates(folder, scale, "adaptive", wh)
        return [*_adapted(lines), exact(wh, list(VIEWS))]


def _adapted(lines: dict[str, dict[str, float]]) -> list[Figure]:
    """Return the worst ratio of the chosen strategies to the better of the forced ones, over all shares."""
    ratios = {at: taken / min(lines[way][at] for way in REFRESH[1:]) for at, taken in lines["auto"].items()}
    details = {
        f"{at} %": f"{ratio:.2f}× ({', '.join(f'{way} {duration(lines[way][at])}' for way in REFRESH)})"
        for at, ratio in ratios.items()
    }
    chart = Chart("figure5", "Figure 5: adaptive maintenance", {}, lines=lines, along="inserted, % of all tables")
    name = "workload of MQO §7.1: chosen strategies / better of incremental and recomputed, worst share"
    return [Figure(name, max(ratios.values()), 1.1, "×", details, chart=chart)]


STEPS = (together, separately, adaptive, chosen_for_v1, v1_tenfold, variants, scalability, estimated)
