"""Figures of the choice between delta rules and recomputing, and of the price of recomputing."""

from __future__ import annotations

import json
import random
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from freshview import Warehouse
from freshview.bench.changes import change_orders, change_share
from freshview.bench.data import V2
from freshview.bench.measure import Figure, duration, is_trial, seconds_of
from freshview.bench.tables import copied, prepared
from freshview.bench.views import exact, tpch_queries, tpch_views
from freshview.errors import FreshviewError

_SHARES = (0.0001, 0.001, 0.01, 0.05, 0.2)  # of orders and lineitem
_SOME = (0.001, 0.2)  # for a trial
WITHIN = 1.15  # the chosen way may take so much longer than the better one
FORCED = {"rules": "incremental", "anew": "full"}  # suffix of a view's name → its property 'refresh'
_WARM = 0.001  # the share of the first change, which is a warm-up
_LONGEST = 20 * 60.0  # seconds of one size of change; what is not measured by then is reported as such
_CHANGED = ("orders", "lineitem")


@dataclass(frozen=True)
class JudgedChoice:
    """A view at one size of change: the way that was chosen, and the seconds of both ways."""

    view: str
    share: float
    chosen: str
    seconds: dict[str, float]  # by strategy

    @property
    def regret(self) -> float:
        """The time of the chosen way over that of the better one; 1 if there was nothing to choose."""
        if self.chosen not in self.seconds or len(self.seconds) < 2:
            return 1.0
        return self.seconds[self.chosen] / min(self.seconds.values())

    @property
    def is_right(self) -> bool:
        return self.regret <= WITHIN

    def __str__(self) -> str:
        ways = ", ".join(f"{way} {duration(seconds)}" for way, seconds in self.seconds.items())
        return f"chose {self.chosen} ({ways})"


def _choosing(share: float) -> Callable[[Path, float, int], list[Figure]]:
    """Return the step that measures the choices at one size of change, and keeps them for `judgement`."""

    def choices(folder: Path, scale: float, _repeat: int) -> list[Figure]:
        if is_trial(scale) and share not in _SOME:
            return []
        return _choices(folder, scale, share)

    choices.__name__ = f"choices_{share * 100:g}".replace(".", "_")  # percent
    return choices


def _choices(folder: Path, scale: float, share: float) -> list[Figure]:
    """Measure both ways of every TPC-H view after a change of this size.

    Each query is three views: one that chooses, one that is always maintained by rules, one that is always recomputed.
    All get the same changes. Tables are checkpointed before each change; a first change of 0.1 % is a warm-up. What was
    measured is written view by view: a step that is ended leaves it for the judgement.
    """
    until, path = time.monotonic() + _LONGEST, _kept(folder, share)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    with copied(_thrice(folder, scale), folder / "strategy") as wh:
        draw, found, left_out = random.Random(14), list[JudgedChoice](), 0
        for turn, size in enumerate((_WARM, share)):
            for table in _CHANGED:
                wh.sql(f"CHECKPOINT {table}")
            rows = change_share(wh, draw, size)
            print(f"{size:.2%}: {rows:,} rows changed", file=sys.stderr, flush=True)
            for i, query in enumerate(tpch_queries(scale)):
                if time.monotonic() > until:
                    left_out += turn
                    continue
                choice = measured_choice(wh, query, size, first=i % 2)
                print(f"{size:.2%}, {query}: {choice}", file=sys.stderr, flush=True)
                if turn:
                    found.append(choice)
                    measured = {"scale": scale, "left_out": left_out, "choices": [asdict(c) for c in found]}
                    path.write_text(json.dumps(measured))
        return [exact(wh, list(tpch_queries(scale)))]


def _kept(folder: Path, share: float) -> Path:
    return folder / "choices" / f"{share:g}.json"


def judgement(folder: Path, scale: float, _repeat: int) -> list[Figure]:
    """Judge the choices that the other steps have measured at this scale. A choice is right if the forced view of the
    chosen strategy took at most 15 % longer than that of the other one."""
    kept = [json.loads(path.read_text()) for share in _SHARES if (path := _kept(folder, share)).exists()]
    kept = [one for one in kept if one["scale"] == scale]
    found = [JudgedChoice(**choice) for one in kept for choice in one["choices"]]
    if not found:
        raise FreshviewError("strategy", "no choice has been measured", "Run the other steps first.")
    return judged(found, sum(one["left_out"] for one in kept))


def judged(found: Sequence[JudgedChoice], left_out: int = 0) -> list[Figure]:
    """Return the share of right choices at the sizes that were measured, with the wrong ones in the details, and what
    the choices cost in all."""
    right = sum(c.is_right for c in found)
    details = {"choices": str(len(found))} | ({"not measured in time": str(left_out)} if left_out else {})
    for share in dict.fromkeys(c.share for c in found):
        at = [c for c in found if c.share == share]
        ways = ", ".join(
            f"{n} {way}" for way in sorted({c.chosen for c in at}) if (n := sum(c.chosen == way for c in at))
        )
        details[f"{share:.2%}"] = f"{sum(c.is_right for c in at)} of {len(at)} right; {ways}"
    details |= {f"wrong: {c.view} at {c.share:.2%}": str(c) for c in found if not c.is_right}
    chosen = sum(c.seconds.get(c.chosen, 0.0) for c in found)
    best = sum(min(c.seconds.values()) for c in found)
    always = {way: sum(c.seconds.get(way, min(c.seconds.values())) for c in found) for way in FORCED.values()}
    shares = sorted({c.share for c in found})
    sizes = "five sizes" if len(shares) == len(_SHARES) else " and ".join(f"{s * 100:g} %" for s in shares)
    totals = {"the better of both": duration(best), **{f"always {way}": duration(s) for way, s in always.items()}}
    return [
        Figure(
            f"right strategy, 22 TPC-H views at {sizes}", 100 * right / len(found), 95.0, "%", details, at_least=True
        ),
        Figure("time of the chosen strategies / of the better of both", chosen / best, None, "×", totals),
    ]


def _thrice(folder: Path, scale: float) -> Path:
    """Prepare a warehouse with each TPC-H query as three views; one without rules has no view that forces them."""

    def create(wh: Warehouse) -> None:
        for query, text in tpch_queries(scale).items():
            for suffix, refresh in FORCED.items():
                forced = f"TBLPROPERTIES ('refresh' = '{refresh}')"
                try:
                    wh.sql(f"CREATE MATERIALIZED VIEW {query}_{suffix} {forced} AS {text}")
                except FreshviewError as error:
                    print(f"{query}: not {refresh} ({error})", file=sys.stderr, flush=True)

    return prepared(folder, "strategies", create, on=tpch_views(folder, scale))


def measured_choice(wh: Warehouse, query: str, share: float, first: int) -> JudgedChoice:
    """Maintain the views of a query; which of the forced ones comes first alternates."""
    jobs = wh.maintain([query])
    chosen = jobs[-1].strategy if jobs else "nothing"
    there = {view.name for view in wh.status().views}
    seconds = {}
    for suffix, strategy in list(FORCED.items())[:: 1 if first else -1]:
        name = f"{query}_{suffix}"
        if name in there:
            begun = time.perf_counter()
            forced = wh.maintain([name])
            if all(j.strategy in (strategy, "nothing") for j in forced):  # rules may find that they cannot be used
                seconds[strategy] = time.perf_counter() - begun
    return JudgedChoice(query, share, chosen, seconds)


def refresh_full(folder: Path, scale: float, repeat: int) -> list[Figure]:
    """Time REFRESH … FULL of every TPC-H view and of V2 against Spark's write of the same query as a new table.

    The tables are changed by 0.1 % before each round, and checkpointed, so that both read plain files.
    """
    texts = tpch_queries(scale) | {"v2": V2}
    ratios: dict[str, list[float]] = {name: [] for name in texts}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in texts}
    with copied(tpch_views(folder, scale), folder / "strategy") as wh:
        wh.sql(f"CREATE MATERIALIZED VIEW v2 AS {V2}")
        draw, target = random.Random(15), folder / "plain"
        for i in range(repeat + 1):
            change_orders(wh, draw)
            for table in _CHANGED:
                wh.sql(f"CHECKPOINT {table}")
            for name, text in texts.items():
                ways = {
                    "ours": lambda name=name: wh.sql(f"REFRESH MATERIALIZED VIEW {name} FULL"),
                    "plain": lambda text=text: wh.sql(text).write.mode("overwrite").parquet(str(target)),
                }
                taken = {way: seconds_of(ways[way]) for way in (sorted(ways) if i % 2 else sorted(ways, reverse=True))}
                line = f"{name}: full {duration(taken['ours'])}, plain {duration(taken['plain'])}"
                print(line, file=sys.stderr, flush=True)
                if i:
                    times[name].append((taken["ours"], taken["plain"]))
                    ratios[name].append(taken["ours"] / taken["plain"])
        shutil.rmtree(target, ignore_errors=True)
        return [*_of_full(ratios, times), exact(wh, list(texts))]


def _of_full(ratios: dict[str, list[float]], times: dict[str, list[tuple[float, float]]]) -> list[Figure]:
    typical = {name: statistics.median(found) for name, found in ratios.items()}
    details = {
        name: f"{ratio:.2f}× ({' / '.join(duration(statistics.median(t)) for t in zip(*times[name], strict=True))})"
        for name, ratio in typical.items()
    }
    worst = max(typical, key=lambda name: typical[name])
    title = "REFRESH FULL / plain write of the query in Spark, TPC-H views and V2"
    return [
        Figure(f"{title}: median", statistics.median(typical.values()), 1.15, "×", details),
        Figure(f"{title}: worst", typical[worst], 1.3, "×", {worst: details[worst]}),
    ]


STEPS = (*map(_choosing, _SHARES), judgement, refresh_full)
