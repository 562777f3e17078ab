"""Figures of views: an incremental refresh against recomputing, in one warm session."""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from freshview import Warehouse
from freshview.algebra.stages import staged
from freshview.bench.conformance import in_spark, named_apart, queries_of
from freshview.bench.data import KEYS, V1, tpch
from freshview.bench.measure import Figure, Timing, duration, is_trial, spread
from freshview.bench.tables import copied, load, new, replaced, tables
from freshview.delta.forms import delta_plan
from freshview.delta.semijoin import reduced
from freshview.errors import FreshviewError, QueryFailed
from freshview.sql.rendering import render

_FIVE = """SELECT n_name, c_name, o_orderdate, l_quantity, s_name FROM customer, orders, lineitem, supplier, nation
WHERE c_custkey = o_custkey AND o_orderkey = l_orderkey AND l_suppkey = s_suppkey AND n_nationkey = c_nationkey"""
_SOME = ("q1", "q3", "q4", "q13", "q15")  # for a trial: sums, a join, EXISTS, an outer join, a scalar subquery


def refresh(folder: Path, scale: float, repeat: int) -> list[Figure]:
    """Time refreshes of V1 after changes of 100 customers, and of 0.1 % of orders and lineitem."""
    with copied(tables(folder, scale), folder / "views") as wh:
        wh.sql(f"CREATE MATERIALIZED VIEW v1 AS {V1}")
        draw = random.Random(1)
        small = _raced(wh, {"v1": V1}, lambda: _change_customers(wh, draw, 100), repeat)["v1"]
        large = _raced(wh, {"v1": V1}, lambda: _change_orders(wh, draw), repeat)["v1"]
        return [
            small.figure("V1, 100 customers: recompute / refresh", 5.0),
            large.figure("V1, 0.1 % of orders and lineitem: recompute / refresh", 4.0),
            exact(wh, ["v1"]),
        ]


def transactions(folder: Path, scale: float, repeat: int) -> list[Figure]:
    """Time a refresh after 1,000 small transactions (100 in a trial), and after one that changes the same rows."""
    count = 100 if is_trial(scale) else 1000
    with copied(tables(folder, scale), folder / "views") as wh:
        wh.sql(f"CREATE MATERIALIZED VIEW v1 AS {V1}")
        draw = random.Random(2)
        seconds: dict[str, list[float]] = {"one": [], "many": []}
        for i in range(repeat + 1):
            for way, times in seconds.items():
                rows = _changed_customers(wh, draw, count)
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


def queries(folder: Path, scale: float, repeat: int) -> list[Figure]:
    """Time a refresh of every TPC-H query as a view, after changes of 0.1 % of orders and lineitem or of all tables."""
    texts = {f"q{n}": named_apart(in_spark(text)) for n, text in queries_of("tpch")}
    texts = {name: texts[name] for name in (_SOME if is_trial(scale) else texts)}
    with copied(tables(folder, scale), folder / "views") as wh:
        for name, text in texts.items():
            wh.sql(f"CREATE MATERIALIZED VIEW {name} AS {text}")
        draw = random.Random(3)
        touched = {n: t for n, t in texts.items() if "orders" in t.lower() or "lineitem" in t.lower()}
        two = _raced(wh, touched, lambda: _change_orders(wh, draw), repeat)
        every = _raced(wh, texts, lambda: _change_all(wh, draw), max(1, repeat - 1))
        return [
            _table("0.1 % of orders and lineitem", two, 2.0),
            _table("0.1 % of all tables", every, None),
            *_slowest([*two.items(), *every.items()]),
            *_recomputing([*two.values(), *every.values()]),
            exact(wh, list(texts)),
        ]


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


STEPS = (refresh, transactions, planning, queries)


# -- changes ---------------------------------------------------------------------------------------


def _changed_customers(wh: Warehouse, draw: random.Random, count: int) -> pa.Table:
    """Return random customers, each moved to another nation."""
    most = wh.sql("SELECT max(c_custkey) FROM customer").collect()[0][0]
    keys = ", ".join(map(str, draw.sample(range(1, most + 1), count)))
    rows = wh.sql(f"SELECT * FROM customer WHERE c_custkey IN ({keys})").toArrow()
    return replaced(rows, "c_nationkey", [(n + 1) % 25 for n in rows.column("c_nationkey").to_pylist()])


def _change_customers(wh: Warehouse, draw: random.Random, count: int) -> None:
    with wh.transaction() as tx:
        tx.upsert("customer", _changed_customers(wh, draw, count))


def _change_orders(wh: Warehouse, draw: random.Random) -> None:
    """Delete 0.05 % of the orders with their lines, scattered over the table, and insert as many."""
    seed = draw.randrange(1_000_000)
    some = wh.sql(f"SELECT o_orderkey FROM orders WHERE pmod(hash(o_orderkey, {seed}), 1000) = 0")
    keys = [row[0] for row in some.collect()]
    old, new = keys[::2], keys[1::2]
    offset = 10_000_000 + draw.randrange(1_000_000_000)
    with wh.transaction() as tx:
        for table, column in (("orders", "o_orderkey"), ("lineitem", "l_orderkey")):
            listed = ", ".join(map(str, new))
            rows = wh.sql(f"SELECT * FROM {table} WHERE {column} IN ({listed})").toArrow()
            place = rows.schema.get_field_index(column)
            fresh = pc.add(rows.column(place), pa.scalar(offset, rows.schema.field(place).type))
            tx.sql(f"DELETE FROM {table} WHERE {column} IN ({', '.join(map(str, old))})")
            tx.insert(table, rows.set_column(place, rows.schema.field(place), fresh))


def _change_all(wh: Warehouse, draw: random.Random) -> None:
    """Change orders and lineitem; in other tables exchange a column's values among 0.1 % of the rows (at least two)."""
    _change_orders(wh, draw)
    for table in (t for t in KEYS if t not in ("orders", "lineitem")):
        keys = KEYS[table].split(", ")
        order = f"ORDER BY hash({keys[0]}, {draw.randrange(1_000_000)})"
        count = max(2, wh.sql(f"SELECT count(*) FROM {table}").collect()[0][0] // 1000)
        rows = wh.sql(f"SELECT * FROM {table} {order} LIMIT {count}").toArrow()
        place = draw.choice([i for i, n in enumerate(rows.column_names) if n not in keys])
        column = rows.column(place)
        turned = pa.concat_arrays([column.slice(1).combine_chunks(), column.slice(0, 1).combine_chunks()])
        with wh.transaction() as tx:
            tx.upsert(table, rows.set_column(place, rows.schema.field(place), turned))


# -- measuring -------------------------------------------------------------------------------------


@dataclass
class _Race:
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
    def incremental(self) -> _Race:
        """The rounds that were maintained by delta rules: a view may be recomputed in one round and not in the next."""
        chosen = [i for i, strategy in enumerate(self.rounds) if strategy == "incremental"]
        return _Race([self.refreshed[i] for i in chosen], [self.recomputed[i] for i in chosen])

    def figure(self, name: str, limit: float | None) -> Figure:
        refresh, recompute = Timing(tuple(self.refreshed)), Timing(tuple(self.recomputed))
        details = {"refresh": str(refresh), "recompute": str(recompute), "strategy": self.strategy}
        return Figure(name, self.ratio, limit, "×", details, at_least=True, spread=spread(recompute, refresh))


def _raced(wh: Warehouse, texts: dict[str, str], change: Callable[[], None], repeat: int) -> dict[str, _Race]:
    """Change the tables, then time a refresh of each view and a run of its query; the first round is a warm-up."""
    races = {name: _Race() for name in texts}
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


def _table(what: str, races: dict[str, _Race], limit: float | None) -> Figure:
    """Return the median over all queries, with each query in the details."""
    details = {
        name: f"{race.ratio:.2f}× ({duration(statistics.median(race.recomputed))} / "
        f"{duration(statistics.median(race.refreshed))}, {race.strategy})"
        for name, race in races.items()
    }
    median = statistics.median(r.ratio for r in races.values())
    return Figure(f"TPC-H views, {what}: median of recompute / refresh", median, limit, "×", details, at_least=True)


def _slowest(races: list[tuple[str, _Race]]) -> list[Figure]:
    """Return the worst ratio of the rounds that Freshview chose to maintain incrementally.

    A trial may have no such round, since its tables are small.
    """
    chosen = [(race.incremental.ratio, name) for name, race in races if "incremental" in race.rounds]
    if not chosen:
        return []
    ratio, name = min(chosen)
    return [Figure("slowest view chosen incremental", ratio, 1 / 1.2, "×", {"view": name}, at_least=True)]


def _recomputing(races: list[_Race]) -> list[Figure]:
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
