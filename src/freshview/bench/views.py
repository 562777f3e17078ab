"""Figures of views: an incremental refresh against recomputing, in one warm session."""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from freshview import Warehouse
from freshview.algebra.stages import staged
from freshview.bench.changes import (
    change_all,
    change_customers,
    change_few_orders,
    change_orders,
    changed_customers,
)
from freshview.bench.conformance import ReadingSeconds, in_spark, named_apart, queries_of
from freshview.bench.data import V1, tpch
from freshview.bench.measure import Figure, Timing, duration, is_trial, seconds_of, spread
from freshview.bench.tables import copied, load, new, prepared, tables
from freshview.delta.forms import delta_plan
from freshview.delta.semijoin import reduced
from freshview.errors import FreshviewError, QueryFailed
from freshview.sql.rendering import render

_FIVE = """SELECT n_name, c_name, o_orderdate, l_quantity, s_name FROM customer, orders, lineitem, supplier, nation
WHERE c_custkey = o_custkey AND o_orderkey = l_orderkey AND l_suppkey = s_suppkey AND n_nationkey = c_nationkey"""
_SOME = ("q1", "q3", "q4", "q13", "q15")  # for a trial: sums, a join, EXISTS, an outer join, a scalar subquery
_TWO, _ALL = "0.1 % of orders and lineitem", "0.1 % of all tables"
_MEDIAN, _WORST = "TPC-H views, {}: median of recompute / refresh", "TPC-H views, {}: worst of recompute / refresh"
# Limits by figure; a report judges by them what was measured while a limit was another one.
LIMITS = {_MEDIAN.format(_TWO): 5.0, _MEDIAN.format(_ALL): 4.0, _WORST.format(_TWO): 0.9, _WORST.format(_ALL): 0.9}


def refresh(folder: Path, scale: float, repeat: int) -> list[Figure]:
    """Time refreshes of V1 after changes of 100 customers, and of 0.1 % of orders and lineitem."""
    with copied(tables(folder, scale), folder / "views") as wh:
        wh.sql(f"CREATE MATERIALIZED VIEW v1 AS {V1}")
        draw = random.Random(1)
        small = _raced(wh, {"v1": V1}, lambda: change_customers(wh, draw, 100), repeat)["v1"]
        large = _raced(wh, {"v1": V1}, lambda: change_orders(wh, draw), repeat)["v1"]
        return [
            small.figure("V1, 100 customers: recompute / refresh", 5.0),
            large.figure("V1, 0.1 % of orders and lineitem: recompute / refresh", 4.0),
            creation(wh, repeat),
            exact(wh, ["v1"]),
        ]


def creation(wh: Warehouse, repeat: int) -> Figure:
    """Time CREATE of V1, and in it the proof of its reading: without that, CREATE would take as much less."""
    reading, with_proof, proofs = ReadingSeconds(wh), [], []
    for i in range(repeat + 1):
        reading.seconds = 0.0
        taken = seconds_of(lambda: wh.sql(f"CREATE MATERIALIZED VIEW v1_again AS {V1}"))
        wh.sql("DROP MATERIALIZED VIEW v1_again")
        if i:
            with_proof.append(taken)
            proofs.append(reading.seconds)
    proof, whole = Timing(tuple(proofs)), Timing(tuple(with_proof))
    without = Timing(tuple(w - p for w, p in zip(with_proof, proofs, strict=True)))
    details = {"CREATE": str(whole), "without the proof": str(without), "the proof": str(proof)}
    return Figure("V1, CREATE: what the proof of its reading adds", statistics.median(proofs), 3.0, "s", details)


def transactions(folder: Path, scale: float, repeat: int) -> list[Figure]:
    """Time a refresh after 1,000 small transactions (100 in a trial), and after one that changes the same rows."""
    count = 100 if is_trial(scale) else 1000
    with copied(tables(folder, scale), folder / "views") as wh:
        wh.sql(f"CREATE MATERIALIZED VIEW v1 AS {V1}")
        draw = random.Random(2)
        seconds: dict[str, list[float]] = {"one": [], "many": []}
        for i in range(repeat + 1):
            for way, times in seconds.items():
                rows = changed_customers(wh, draw, count)
                for part in [rows] if way == "one" else [rows.slice(n, 1) for n in range(rows.num_rows)]:
                    with wh.transaction() as tx:
                        tx.upsert("customer", part)
                begun = time.perf_counter()
                wh.maintain(["v1"])
                if i:
                    times.append(time.perf_counter() - begun)
        one, many = (Timing(tuple(s)) for s in seconds.values())
        details = {"after one transaction": str(one), f"after {count:,}": str(many)}
        name = f"refresh after {count:,} transactions / after one"
        return [Figure(name, many.p50 / one.p50, 1.3, "×", details, spread=spread(many, one))]


def tpch_queries(scale: float) -> dict[str, str]:
    """Return the TPC-H queries as they are, ORDER BY and LIMIT included, by view name; some of them for a trial."""
    texts = {f"q{n}": named_apart(in_spark(text)) for n, text in queries_of("tpch")}
    return {name: texts[name] for name in (_SOME if is_trial(scale) else texts)}


def tpch_views(folder: Path, scale: float) -> Path:
    """Prepare a warehouse with all tables, and with every TPC-H query as a view."""

    def create(wh: Warehouse) -> None:
        for name, text in tpch_queries(scale).items():
            wh.sql(f"CREATE MATERIALIZED VIEW {name} AS {text}")

    return prepared(folder, "tpch_views", create, on=tables(folder, scale))


def queries(folder: Path, scale: float, repeat: int) -> list[Figure]:
    """Time a refresh of every TPC-H query as a view, after changes of 0.1 % of orders and lineitem or of all tables."""
    texts = tpch_queries(scale)
    with copied(tpch_views(folder, scale), folder / "views") as wh:
        draw = random.Random(3)
        touched = {n: t for n, t in texts.items() if "orders" in t.lower() or "lineitem" in t.lower()}
        two = _raced(wh, touched, lambda: change_orders(wh, draw), repeat)
        every = _raced(wh, texts, lambda: change_all(wh, draw), max(1, repeat - 1))
        return [
            *_table(_TWO, two),
            *_table(_ALL, every),
            *_slowest([*two.items(), *every.items()]),
            *_recomputing([*two.values(), *every.values()]),
            exact(wh, list(texts)),
        ]


def all_asked(folder: Path, scale: float, repeat: int) -> list[Figure]:
    """Time the maintenance of all TPC-H views after one change of 10 orders: together, and one view at a time."""
    views = list(tpch_queries(scale))
    with copied(tpch_views(folder, scale), folder / "views") as wh:
        draw = random.Random(4)
        seconds: dict[str, list[float]] = {"together": [], "one by one": []}
        for i in range(repeat + 1):
            for way, times in seconds.items():
                change_few_orders(wh, draw, 10)
                begun = time.perf_counter()
                for names in [None] if way == "together" else [[view] for view in views]:
                    wh.maintain(names)
                if i:
                    times.append(time.perf_counter() - begun)
                print(f"{way}: {duration(time.perf_counter() - begun)}", file=sys.stderr, flush=True)
        together, single = (Timing(tuple(s)) for s in seconds.values())
        details = {"together": str(together), "sum of one by one": str(single), "views": str(len(views))}
        name = "one change of 10 orders, all TPC-H views asked: total / sum of one by one"
        between = spread(together, single)
        return [Figure(name, together.p50 / single.p50, 0.5, "×", details, spread=between), exact(wh, views)]


def planning(folder: Path, scale: float, repeat: int) -> list[Figure]:
    """Time the planning of a refresh of a join of five tables that have all changed."""
    of_join = ("customer", "orders", "lineitem", "nation", "supplier")
    with new(folder / "views") as wh:
        load(wh, tpch(folder, scale, of_join), of_join, most=10)
        wh.sql(f"CREATE MATERIALIZED VIEW v5 AS {_FIVE}")
        definition = wh._views.definitions.of(wh._catalog.relation("v5"))
        assert definition.form is not None
        assert definition.lowered is not None
        seconds = []
        for _ in range(20 * repeat):
            begun = time.perf_counter()
            plan = delta_plan(definition.form, definition.lowered, set(definition.sources), definition.types)
            assert plan is not None
            stages, rest = staged(reduced(plan))
            for piece in (*(s.part for s in stages), rest):
                render(piece, lambda s: s.relation)
            seconds.append(time.perf_counter() - begun)
        timing = Timing(tuple(seconds))
        details = {"planning": str(timing)}
        return [Figure("planning a refresh of a join of five tables", timing.p50 * 1000, 50.0, "ms", details)]


STEPS = (refresh, transactions, planning, queries, all_asked)


# -- measuring -------------------------------------------------------------------------------------


@dataclass
class Race:
    """Seconds of refreshing and of recomputing, in turn."""

    refreshed: list[float] = field(default_factory=list)
    recomputed: list[float] = field(default_factory=list)
    rounds: list[str] = field(default_factory=list)  # the strategy of each round

    @property
    def ratio(self) -> float:
        return statistics.median(self.recomputed) / statistics.median(self.refreshed)

    @property
    def strategy(self) -> str:
        return ", ".join(sorted(set(self.rounds)))

    @property
    def incremental(self) -> Race:
        """The rounds that were maintained by delta rules: a view may be recomputed in one round and not in the next."""
        chosen = [i for i, strategy in enumerate(self.rounds) if strategy == "incremental"]
        return Race([self.refreshed[i] for i in chosen], [self.recomputed[i] for i in chosen])

    def figure(self, name: str, limit: float | None) -> Figure:
        refresh, recompute = Timing(tuple(self.refreshed)), Timing(tuple(self.recomputed))
        details = {"refresh": str(refresh), "recompute": str(recompute), "strategy": self.strategy}
        return Figure(name, self.ratio, limit, "×", details, at_least=True, spread=spread(recompute, refresh))


def _raced(wh: Warehouse, texts: dict[str, str], change: Callable[[], None], repeat: int) -> dict[str, Race]:
    """Change the tables, then time a refresh of each view and a run of its query; the first round is a warm-up."""
    races = {name: Race() for name in texts}
    for i in range(repeat + 1):
        change()
        for name, text in texts.items():
            begun = time.perf_counter()
            try:
                jobs = wh.maintain([name])
            except FreshviewError as error:
                raise QueryFailed(f"refresh of {name}", f"{error} ({error.__cause__!s:.500})", "") from error
            middle = time.perf_counter()
            wh.sql(text).write.format("noop").mode("overwrite").save()
            refreshed, recomputed = middle - begun, time.perf_counter() - middle
            print(f"{name}: {duration(refreshed)}, recomputed {duration(recomputed)}", file=sys.stderr, flush=True)
            if i:
                race = races[name]
                race.refreshed.append(refreshed)
                race.recomputed.append(recomputed)
                race.rounds.append(", ".join(sorted({j.strategy for j in jobs})))
    return races


def _table(what: str, races: dict[str, Race]) -> list[Figure]:
    """Return the median over all queries, with each query in the details, and the worst."""
    details = {
        name: f"{race.ratio:.2f}× ({duration(statistics.median(race.recomputed))} / "
        f"{duration(statistics.median(race.refreshed))}, {race.strategy})"
        for name, race in races.items()
    }
    median = statistics.median(r.ratio for r in races.values())
    worst = min(races, key=lambda name: races[name].ratio)
    found = {_MEDIAN: (median, details), _WORST: (races[worst].ratio, {worst: details[worst]})}
    titled = {kind.format(what): both for kind, both in found.items()}
    return [
        Figure(title, value, LIMITS[title], "×", behind, at_least=True) for title, (value, behind) in titled.items()
    ]


def _slowest(races: list[tuple[str, Race]]) -> list[Figure]:
    """Return the worst ratio of the rounds that Freshview chose to maintain incrementally.

    A trial may have no such round, since its tables are small.
    """
    chosen = [(race.incremental.ratio, name) for name, race in races if "incremental" in race.rounds]
    if not chosen:
        return []
    ratio, name = min(chosen)
    return [Figure("slowest view chosen incremental", ratio, 1 / 1.2, "×", {"view": name}, at_least=True)]


def _recomputing(races: list[Race]) -> list[Figure]:
    """Return the cost of recomputing where Freshview chose it: a comparison with the stored rows comes on top."""
    rounds = [r for race in races for r in zip(race.refreshed, race.recomputed, race.rounds, strict=True)]
    ratios = [refreshed / recomputed for refreshed, recomputed, strategy in rounds if strategy == "full"]
    if not ratios:
        return []
    name, between = "a view recomputed / its query alone", (min(ratios), max(ratios))
    return [Figure(name, statistics.median(ratios), None, "×", {"jobs": str(len(ratios))}, spread=between)]


def exact(wh: Warehouse, views: list[str]) -> Figure:
    """Compare views with their definitions."""
    wrong = [v for v in views if not wh.check(v).ok]
    details = {"wrong": ", ".join(wrong) or "none"}
    right = len(views) - len(wrong)
    name = "views that equal their definition afterwards"
    return Figure(name, right, len(views), "", details, at_least=True, always=True)
