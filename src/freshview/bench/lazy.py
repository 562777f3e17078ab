"""Figures of lazy maintenance: the experiments of LAZY §5 on the same views, eager and lazy in one run."""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from unittest.mock import patch

from freshview import Job, Warehouse
from freshview.bench.foreground import await_job, foreground
from freshview.bench.lazy_ways import both_ways, choice_figure, way_bars
from freshview.bench.lazy_world import ONE, TEN, TWO, VIEWS, Customers, opened, set_mode, upsert, world
from freshview.bench.measure import Bars, Chart, Figure, Timing, alternated, duration, is_trial, seconds_of, spread
from freshview.bench.serving import served, side_by_side
from freshview.bench.strategy import FORCED
from freshview.bench.views import exact
from freshview.errors import QueryFailed
from freshview.schedule import upkeep

_QUERY = "SELECT n_name, sum(totalprice) AS price, sum(totalcnt) AS lines FROM v1 GROUP BY n_name"
_SMALL_QUERY = "SELECT * FROM v1 WHERE n_name = 'FRANCE'"  # without a Spark job, whose time would hide the difference
_SIZES = (1, 10, 100)
_LONG = 0.2  # seconds after a job
_MODES = ("eager", "lazy")
_LABELS = {ONE: "V1", TWO: "V1 and V2"}


def prepare(folder: Path, scale: float, _repeat: int) -> list[Figure]:
    """Prepare the warehouses; all further steps work on copies of them."""
    taken = seconds_of(lambda: world(folder, scale, TEN))
    return [Figure("views created, and tables loaded unless another suite has", taken, None, "s", {})]


def updates(folder: Path, scale: float, repeat: int) -> list[Figure]:
    """Figures 5 and 6: time updates of 1, 10 and 100 customers with V1, and with V1 and V2.

    UPDATE, the form of the paper, comes first; beside it the upsert, which reads none of the rows that it changes.
    """
    figures: list[Figure] = []
    races: dict[str, dict[int, _EagerRace]] = {}
    for which, rounds in ((ONE, 2 * repeat), (TWO, repeat)):
        customers = Customers(folder, scale, seed=5)
        with opened(folder, scale, which) as wh:
            for way in _WAYS:
                title = f"{_LABELS[which]}, {_WAYS[way]}"
                races[title] = _raced(wh, VIEWS[which], way(wh, customers), _SIZES, rounds)
            wh.maintain()
            figures.append(exact(wh, list(VIEWS[which])))
    panels = list(races.items())
    responses = [race.response(title, rows) for title, found in panels for rows, race in found.items()]
    totals = [race.total(title, rows, 1.15) for title, found in panels for rows, race in found.items()]
    five = Chart("figure5", "Figure 5: response time of an update", _panels(races, _response_bars), log=True)
    six = Chart("figure6", "Figure 6: total work of an update", _panels(races, _total_bars))
    return [_with(responses[0], five), *responses[1:], _with(totals[0], six), *totals[1:], *figures]


def commits(folder: Path, scale: float, repeat: int) -> list[Figure]:
    """Time a lazy update of 100 customers with one view, two and ten; the three take turns."""
    customers = Customers(folder, scale, seed=50)
    keys = customers.some(100)
    with opened(folder, scale, ONE) as one, opened(folder, scale, TWO) as two, opened(folder, scale, TEN) as ten:
        worlds = {"1 view": one, "2 views": two, "10 views": ten}
        actions = {name: partial(upsert, wh) for name, wh in worlds.items()}
        times = alternated(actions, 100 * repeat, warmup=20, given=lambda _: customers.moved(keys))
        ten.maintain()
        return [_dearer(times, "2 views", 1.1), _dearer(times, "10 views", 1.2), exact(ten, list(VIEWS[TEN]))]


def queries(folder: Path, scale: float, repeat: int) -> list[Figure]:
    """Figure 7: time a query of V1 at once, soon and long after an update of 100 customers.

    The background manager maintains V1, as soon as it finds the update. The load of other programs does not pause it.
    """
    customers = Customers(folder, scale, seed=7)
    with (
        patch.object(upkeep, "SECONDS", 0.1),
        opened(folder, scale, ONE, background=True, busy_load=math.inf) as wh,
        opened(folder, scale, ONE, name="untouched") as untouched,
    ):
        cases: dict[str, Callable[[], _AnswerTimes]] = {
            "eager": lambda: _asked_eager(wh, customers),
            "lazy, no delay": lambda: _asked(wh, customers, lambda: None),
            "lazy, small delay": lambda: _asked(wh, customers, lambda: await_job(wh, 0.5 * _last_seconds(wh))),
            "lazy, maintained": lambda: _asked(wh, customers, lambda: _await_long(wh)),
            "never touched": lambda: _AnswerTimes(0.0, 0.0, seconds_of(lambda: untouched.sql(_QUERY).collect())),
        }
        answers: dict[str, list[_AnswerTimes]] = {name: [] for name in cases}
        for i in range((2 if is_trial(scale) else 5) * repeat + 2):
            for name, case in cases.items():
                answer = case()
                _await_long(wh)
                if i >= 2:
                    answers[name].append(answer)
        # The compared queries take a tenth of a second, no longer than a busy moment of the machine: many more rounds.
        for _ in range(0 if is_trial(scale) else 10 * repeat):
            for name in ("lazy, maintained", "never touched"):
                answers[name].append(cases[name]())
        bars = {name: _median_answer(found).bar for name, found in answers.items() if name != "never touched"}
        asked = {name: Timing(tuple(a.query for a in found)) for name, found in answers.items()}
        details = {f"query, {name}": str(timing) for name, timing in asked.items()}
        chart = Chart("figure7", "Figure 7: a query of V1 after an update of 100 customers", {"": bars})
        ratio = asked["lazy, maintained"].p50 / asked["never touched"].p50
        between = spread(asked["lazy, maintained"], asked["never touched"])
        name = "query after maintenance / of a view never touched"
        return [
            Figure(name, ratio, 1.1, "×", details, chart=chart, spread=between),
            exact(wh, ["v1"]),
        ]


def transactions(folder: Path, scale: float, repeat: int) -> list[Figure]:
    """Figure 8: time 100 transactions of 1 to 10 customers, maintained eagerly, one by one, and combined."""
    customers = Customers(folder, scale, seed=8)
    count = 10 if is_trial(scale) else 100
    figures: list[Figure] = []
    panels: dict[str, Bars] = {}
    with opened(folder, scale, ONE) as wh:

        def together(runs: list[range], times: int) -> list[UpdateTimes]:
            return [_many(wh, customers, runs, "lazy") for _ in range(times)]

        for scenario, among in (("random", customers.count), ("skewed", 100)):
            runs = customers.runs(count, among)
            for mode in _MODES:  # warm-up of each mode
                _many(wh, customers, runs[:3], mode, each=True)
            together(runs, 1)
            # Combined maintenance takes a second: it runs before, between and after the long ones, so that a busy
            # moment of the machine does not decide.
            combined = together(runs, repeat)
            eager = _many(wh, customers, runs, "eager")
            combined += together(runs, repeat)
            single = _many(wh, customers, runs, "lazy", each=True)
            combined += together(runs, repeat)
            figures += _combining(f"{count} transactions, {scenario}", eager, single, combined, wh)
            median = UpdateTimes(*(statistics.median(part) for part in zip(*(c.parts for c in combined), strict=True)))
            apart = UpdateTimes(single.update, eager.update - single.update)
            panels[scenario] = {"eager": apart.bar, "lazy, one by one": single.bar, "lazy, combined": median.bar}
        chart = Chart("figure8", f"Figure 8: {count} transactions of 1 to 10 customers, V1", panels)
        return [_with(figures[0], chart), *figures[1:], exact(wh, ["v1"])]


def sizes(folder: Path, scale: float, repeat: int) -> list[Figure]:
    """Figure 9: time one statement over 0.1 %, 1 %, 10 % and all of the customers.

    Beside the strategy that was chosen at each size stands what both of them take.
    """
    customers = Customers(folder, scale, seed=9)
    counts = [max(1, customers.count // share) for share in (1000, 100, 10, 1)]
    with opened(folder, scale, ONE) as wh:
        update = _by_range(wh, customers)
        _raced(wh, VIEWS[ONE], update, counts[1:2], 1)  # warm-up
        races = _raced(wh, VIEWS[ONE], update, counts, repeat, warmup=0)
        figures = [
            replace(figure, details=figure.details | {"strategy": races[n].how, "estimates": races[n].estimates})
            for n in races
            for figure in [races[n].total("V1, UPDATE", n, 1.2 if n == counts[-1] else None)]
        ]
        bars = {
            f"{_rows(n)}, {mode} ({race.strategies(mode)})": _total_bars(race, mode)
            for n, race in races.items()
            for mode in _MODES
        }
        some, warmup = (counts[::3], 0) if is_trial(scale) else (counts, 1)
        ways = both_ways(wh, update, some, customers.count, repeat, warmup=warmup)
        choices = [choice_figure(f"V1, UPDATE of {_rows(n)}, maintenance", found) for n, found in ways.items()]
        forced = {name: bar for n, found in ways.items() for name, bar in way_bars(_rows(n), found).items()}
        panels = {"eager and lazy": bars, "lazy maintenance, each way": forced}
        chart = Chart("figure9", "Figure 9: total work of large updates, V1", panels)
        views = ["v1", *(f"v1_{suffix}" for suffix in FORCED)]
        return [*figures[:-1], _with(figures[-1], chart), *choices, exact(wh, views)]


def fresh_check(folder: Path, scale: float, repeat: int) -> list[Figure]:
    """Time the check that a view is fresh, as part of a query."""
    with opened(folder, scale, ONE) as wh:
        actions: dict[str, Callable[[int], object]] = {
            "fresh": lambda _: wh.sql(_SMALL_QUERY).collect(),
            "any": lambda _: wh.sql(_SMALL_QUERY, freshness="any").collect(),
        }
        times = alternated(actions, 100 * repeat, warmup=20)
        added = (times["fresh"].p50 - times["any"].p50) * 1000
        details = {f"freshness {name}": str(timing) for name, timing in times.items()}
        return [Figure("what checking freshness adds to a query", added, 5.0, "ms", details)]


STEPS = (prepare, updates, commits, queries, transactions, sizes, fresh_check, foreground, served, side_by_side)


# -- ways to update --------------------------------------------------------------------------------

PreparedUpdate = Callable[[int], Callable[[], object]]  # prepares an update of that many customers


def _by_upsert(wh: Warehouse, customers: Customers) -> PreparedUpdate:
    def prepared(count: int) -> Callable[[], object]:
        rows = customers.moved(customers.some(count))
        return lambda: upsert(wh, rows)

    return prepared


def _by_statement(wh: Warehouse, customers: Customers) -> PreparedUpdate:
    """Update by a statement, which has to read the rows that it changes."""

    def prepared(count: int) -> Callable[[], object]:
        keys = ", ".join(map(str, customers.some(count)))
        nation = customers.draw.randrange(25)
        return lambda: wh.sql(f"UPDATE customer SET c_nationkey = {nation} WHERE c_custkey IN ({keys})")

    return prepared


def _by_range(wh: Warehouse, customers: Customers) -> PreparedUpdate:
    def prepared(count: int) -> Callable[[], object]:
        step = customers.draw.randint(1, 24)
        moved = f"SET c_nationkey = (c_nationkey + {step}) % 25"
        return lambda: wh.sql(f"UPDATE customer {moved} WHERE c_custkey <= {count}")

    return prepared


_WAYS = {_by_statement: "UPDATE", _by_upsert: "upsert"}
_RESPONSE_LIMITS = {("V1, upsert", 100): 100.0, ("V1, UPDATE", 100): 15.0}


# -- eager against lazy ----------------------------------------------------------------------------


@dataclass(frozen=True)
class UpdateTimes:
    """Seconds of an update, and of the maintenance after it."""

    update: float
    maintenance: float = 0.0

    @property
    def parts(self) -> tuple[float, float]:
        return self.update, self.maintenance

    @property
    def total(self) -> float:
        return self.update + self.maintenance

    @property
    def bar(self) -> dict[str, float]:
        return {"update": self.update, "maintenance": self.maintenance}


@dataclass
class _EagerRace:
    """Seconds of equal updates with eager and with lazy views, in turn."""

    spent: dict[str, list[UpdateTimes]] = field(default_factory=lambda: {mode: [] for mode in _MODES})
    ran: dict[str, set[str]] = field(default_factory=lambda: {mode: set() for mode in _MODES})  # strategies
    last: dict[str, Job] = field(default_factory=dict)  # by mode: the last job of the last view

    def strategies(self, mode: str) -> str:
        return ", ".join(sorted(self.ran[mode]))

    @property
    def how(self) -> str:
        return "; ".join(f"{mode}: {self.strategies(mode)}" for mode in _MODES)

    @property
    def estimates(self) -> str:
        """What the chosen way was expected to take in the last job of each mode, and what the best other way."""
        return "; ".join(f"{mode}: {_estimated(job)}" for mode, job in self.last.items())

    def updated(self, mode: str) -> Timing:
        return Timing(tuple(s.update for s in self.spent[mode]))

    def worked(self, mode: str) -> Timing:
        return Timing(tuple(s.total for s in self.spent[mode]))

    def response(self, title: str, rows: int) -> Figure:
        """Return the ratio of the response times of an update: eager / lazy."""
        eager, lazy = (self.updated(mode) for mode in _MODES)
        details = {"eager": str(eager), "lazy": str(lazy)}
        limit = _RESPONSE_LIMITS.get((title, rows))
        name = f"{title} of {_rows(rows)}, response: eager / lazy"
        return Figure(name, eager.p50 / lazy.p50, limit, "×", details, at_least=True, spread=spread(eager, lazy))

    def total(self, title: str, rows: int, limit: float | None) -> Figure:
        """Return the ratio of the total work, lazy / eager: a median of rounds, so that both meet the same load."""
        eager, lazy = (self.worked(mode) for mode in _MODES)
        ratio = statistics.median(b / a for a, b in zip(eager.seconds, lazy.seconds, strict=True))
        details = {"eager": str(eager), "lazy": str(lazy), "of it the update": str(self.updated("lazy"))}
        name = f"{title} of {_rows(rows)}, total work: lazy / eager"
        return Figure(name, ratio, limit, "×", details, spread=spread(lazy, eager))


def _raced(
    wh: Warehouse, views: Sequence[str], change: PreparedUpdate, counts: Sequence[int], repeat: int, *, warmup: int = 1
) -> dict[int, _EagerRace]:
    """Time updates of each size under both modes in turn; the mode that goes first alternates."""
    races = {count: _EagerRace() for count in counts}
    for i in range(warmup + repeat):
        for count, race in races.items():
            for mode in _MODES if i % 2 else reversed(_MODES):
                set_mode(wh, views, mode)
                spent = _spent(wh, views, change(count), mode)
                line = f"{_rows(count)}, {mode}: {duration(spent.update)}, maintenance {duration(spent.maintenance)}"
                print(line, file=sys.stderr, flush=True)
                if i >= warmup:
                    race.spent[mode].append(spent)
                    jobs = [wh.history(view)[-1] for view in views]
                    race.ran[mode] |= {job.strategy for job in jobs}
                    race.last[mode] = jobs[-1]
    return races


def _estimated(job: Job) -> str:
    if not job.otherwise:
        return f"{job.strategy}, no other way was estimated"
    chosen, rejected = duration(job.expected), duration(job.otherwise)
    return f"{job.strategy} was expected to take {chosen}, the best other way {rejected}"


def _spent(wh: Warehouse, views: Sequence[str], update: Callable[[], object], mode: str) -> UpdateTimes:
    updated = seconds_of(update)
    return UpdateTimes(updated, seconds_of(lambda: wh.maintain(list(views))) if mode == "lazy" else 0.0)


def _panels(
    races: dict[str, dict[int, _EagerRace]], bar: Callable[[_EagerRace, str], dict[str, float]]
) -> dict[str, Bars]:
    return {
        title: {f"{_rows(n)}, {mode}": bar(race, mode) for n, race in found.items() for mode in _MODES}
        for title, found in races.items()
    }


def _rows(count: int) -> str:
    return f"{count:,} row{'s' if count > 1 else ''}"


def _response_bars(race: _EagerRace, mode: str) -> dict[str, float]:
    return {"update": race.updated(mode).p50}


def _total_bars(race: _EagerRace, mode: str) -> dict[str, float]:
    """Return the parts of an update: what an eager update takes longer than a lazy one is maintenance."""
    update = race.updated("lazy").p50
    return UpdateTimes(update, max(race.worked(mode).p50 - update, 0.0)).bar


def _with(figure: Figure, chart: Chart) -> Figure:
    return replace(figure, chart=chart)


# -- commits with more and more views --------------------------------------------------------------


def _dearer(times: dict[str, Timing], more: str, limit: float) -> Figure:
    """Return the ratio of commits with more views and with one: by medians or by the fastest tenths, the larger.

    On a busy machine a commit waits for whole slices of the scheduler, longer than the commit itself: medians fall on
    the same number of slices and hide the difference.
    """
    one, others = times["1 view"], times[more]
    ratio = max(others.p50 / one.p50, others.p10 / one.p10)
    details = {name: f"{timing}, fastest tenth {duration(timing.p10)}" for name, timing in times.items()}
    return Figure(f"lazy upsert of 100 customers, {more} / 1 view", ratio, limit, "×", details)


# -- queries after updates -------------------------------------------------------------------------


@dataclass(frozen=True)
class _AnswerTimes:
    """Seconds from an update to the answer of a query."""

    update: float
    interval: float
    query: float

    @property
    def bar(self) -> dict[str, float]:
        return {"update": self.update, "interval": self.interval, "query": self.query}


def _asked_eager(wh: Warehouse, customers: Customers) -> _AnswerTimes:
    set_mode(wh, ["v1"], "eager")
    updated = seconds_of(_by_upsert(wh, customers)(100))
    answered = seconds_of(lambda: wh.sql(_QUERY).collect())
    set_mode(wh, ["v1"], "lazy")
    return _AnswerTimes(updated, 0.0, answered)


def _asked(wh: Warehouse, customers: Customers, wait: Callable[[], object]) -> _AnswerTimes:
    """Time a query after an update and a wait, in which the manager may maintain the view."""
    updated = seconds_of(_by_upsert(wh, customers)(100))
    waited = seconds_of(wait)
    return _AnswerTimes(updated, waited, seconds_of(lambda: wh.sql(_QUERY).collect()))


def _await_fresh(wh: Warehouse, patience: float = 60.0) -> None:
    """Wait until the manager has maintained V1; what is asked of the catalog is no statement that it gives way to."""
    until = time.monotonic() + patience
    views = wh._views.catalog
    while views.backlogs():
        if time.monotonic() > until:
            raise QueryFailed("V1", f"the manager has not maintained it within {patience:.0f} s", "")
        time.sleep(0.01)


def _await_long(wh: Warehouse) -> None:
    """Wait until the manager has maintained V1, and a moment more: a job has some work left when its rows are there."""
    _await_fresh(wh)
    time.sleep(_LONG)


def _last_seconds(wh: Warehouse) -> float:
    return wh.history("v1")[-1].seconds


def _median_answer(answers: list[_AnswerTimes]) -> _AnswerTimes:
    return _AnswerTimes(
        *(statistics.median(getattr(a, part) for a in answers) for part in ("update", "interval", "query"))
    )


# -- many transactions -----------------------------------------------------------------------------


def _many(wh: Warehouse, customers: Customers, runs: Sequence[range], mode: str, *, each: bool = False) -> UpdateTimes:
    """Time a transaction for each run of keys; lazy views are maintained after each, or once at the end."""
    for relation in ("customer", "v1"):  # so that all runs begin alike
        wh.sql(f"CHECKPOINT {relation}")
    set_mode(wh, ["v1"], mode)
    moved = [customers.moved(keys) for keys in runs]
    update = maintenance = 0.0
    for i, rows in enumerate(moved):
        update += seconds_of(lambda rows=rows: upsert(wh, rows))  # type: ignore[misc]
        if mode == "lazy" and (each or i == len(moved) - 1):
            maintenance += seconds_of(lambda: wh.maintain(["v1"]))
    return UpdateTimes(update, maintenance)


def _combining(
    what: str, eager: UpdateTimes, single: UpdateTimes, combined: list[UpdateTimes], wh: Warehouse
) -> list[Figure]:
    """Compare maintenance times; that of eager views is the difference of their updates to those of lazy ones."""
    together = Timing(tuple(c.maintenance for c in combined))
    job = wh.history("v1")[-1]
    details = {
        "eager": f"{duration(eager.update - single.update)} (updates of {duration(eager.update)})",
        "one by one": f"{duration(single.maintenance)} (and updates of {duration(single.update)})",
        "combined": f"{together} (and updates of {duration(statistics.median(c.update for c in combined))})",
        "combined job": f"{job.tasks} tasks, {job.rows_in} rows in, {job.condensed} condensed away, "
        f"{job.delta_rows} delta rows joined, {job.strategy}",
    }
    by_eager = (eager.update - single.update) / together.p50
    by_single = single.maintenance / together.p50
    name = f"{what}, maintenance"
    limit = 40.0 if what.endswith("skewed") else None
    return [
        Figure(f"{name}: eager / lazy combined", by_eager, limit, "×", details, at_least=True),
        Figure(f"{name}: one by one / combined", by_single, 50.0, "×", details, at_least=True),
    ]
