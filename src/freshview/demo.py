"""`freshview demo`: measure the same updates with eager and with lazy views on TPC-H."""

from __future__ import annotations

import argparse
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

import freshview
from freshview import Warehouse
from freshview.bench.data import V1, V2, tpch
from freshview.bench.lazy_world import set_mode, upsert
from freshview.bench.measure import seconds_of
from freshview.bench.tables import OF_VIEWS, load, replaced
from freshview.errors import AlreadyExists, FreshviewError, NotFound
from freshview.storage.main import plain

SCALE = 0.05
_SMALLEST = 0.01
_VIEWS = {"v1": V1, "v2": V2}
_MODES = ("eager", "lazy")
_INTERRUPTED = 130
_WARMUP, _ROUNDS = 1, 3  # rounds of each mode
_FEW, _UPDATES, _ROWS = 2, 5, 10  # updates in a warm-up round and in a counted one, customers in an update
_ASKED = (
    "SELECT n_name, sum(totalprice) AS price, sum(totalcnt) AS lines FROM v1 GROUP BY n_name",
    "SELECT c_mktsegment, count(*) AS lines, sum(l_extendedprice) AS price FROM v2 GROUP BY c_mktsegment",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo with the given options; an error is reported in one sentence."""
    parser = argparse.ArgumentParser(prog="freshview demo", description=__doc__)
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the warehouse in this folder")
    parser.add_argument("--scale", type=float, default=SCALE, help=f"TPC-H scale factor (default {SCALE})")
    given = parser.parse_args(argv)
    if given.scale < _SMALLEST:
        parser.error(f"--scale must be at least {_SMALLEST}: below it TPC-H itself repeats keys of partsupp")
    return run(given.keep, given.scale)


def run(keep: Path | None = None, scale: float = SCALE) -> int:
    """Run the demo; return 0 if both views equal their definitions at the end.

    The warehouse is in a temporary folder, which is removed afterwards, even after an error; with `keep` the warehouse
    is moved there at the end.
    """
    console = Console(highlight=False, emoji=False)
    begun = time.perf_counter()
    try:
        with _workplace(keep) as folder:
            is_fresh = _demo(console, folder, scale)
            if keep is not None:
                (folder / "warehouse").rename(keep)
    except FreshviewError as error:
        print(f"freshview demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("freshview demo: stopped; nothing is left behind.", file=sys.stderr)
        return _INTERRUPTED
    console.print(f"\nThis took {time.perf_counter() - begun:.0f} s. What to try next:")
    for line in next_steps(keep):
        console.print(f"  {line}", soft_wrap=True, markup=False)
    return 0 if is_fresh else 1


@contextmanager
def _workplace(keep: Path | None) -> Iterator[Path]:
    """Make a temporary folder, on the file system of the folder to keep; remove it at the end."""
    if keep is None:
        place = None
    else:
        place = keep.absolute().parent
        if keep.exists() and not (keep.is_dir() and not any(keep.iterdir())):
            raise AlreadyExists(f"{keep}", "is there already and not an empty folder", "Choose another folder.")
        if not place.is_dir():
            raise NotFound(f"{keep}", f"there is no folder {place} to put it in", "Make it first.")
    try:
        with tempfile.TemporaryDirectory(prefix=".freshview-demo-", dir=place, ignore_cleanup_errors=True) as folder:
            yield Path(folder)
    except OSError as error:
        raise freshview.errors.StorageUnavailable(
            "the demo's folder", error.strerror or str(error), "Check space and permissions."
        ) from error


def next_steps(keep: Path | None) -> list[str]:
    """Return commands to paste. They need a warehouse, so without a kept one the first command makes it."""
    script = Path(sys.executable).parent / "freshview"
    command = "freshview" if shutil.which("freshview") else _short(script)
    home = keep or Path("demo-warehouse")
    lines = [] if keep else [f"{command} demo --keep {home}    # the same again, and the warehouse stays"]
    return [
        *lines,
        f"{command} status -w {home}    # where each view stands, without Spark",
        f"{command} shell -w {home}     # SQL on these tables and views: SELECT * FROM v1;",
        "docs/tutorial.md in the repository: from an empty folder to views of your own, step by step",
    ]


def _short(path: Path) -> str:
    """Return a path relative to the current folder, if it lies below."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


# -- the story -------------------------------------------------------------------------------------


class _Printer:
    """Prints each step and, when it has ended, how long it took."""

    def __init__(self, console: Console) -> None:
        self.console = console
        columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
        self._bars = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)

    @contextmanager
    def doing(self, what: str, steps: int | None = None) -> Iterator[_Progress]:
        with self._bars:
            step = _Progress(self._bars, self._bars.add_task(what, total=steps))
            begun = time.perf_counter()
            yield step
            taken = time.perf_counter() - begun
            self._bars.remove_task(step.task)
        self.console.print(f"{what}: {step.result + ', ' if step.result else ''}{taken:.1f} s", soft_wrap=True)


@dataclass
class _Progress:
    bars: Progress
    task: TaskID
    result: str = ""

    def done(self) -> None:
        self.bars.advance(self.task)


def _demo(console: Console, folder: Path, scale: float) -> bool:
    """Run all steps; return whether both views equal their definitions at the end."""
    printer = _Printer(console)
    with printer.doing(f"TPC-H, scale {scale:g}, generated"):
        data = tpch(folder, scale, OF_VIEWS)
    with freshview.connect(folder / "warehouse") as wh:
        with printer.doing("Spark started"):
            wh.engine()
        with printer.doing("Tables loaded", len(OF_VIEWS)) as step:
            step.result = f"{load(wh, data, OF_VIEWS, done=step.done):,} rows"
        with printer.doing("Views V1 (4 tables joined, grouped) and V2 (5 tables joined) created", len(_VIEWS)) as step:
            rows = []
            for name, text in _VIEWS.items():
                rows.append(wh.sql(f"CREATE MATERIALIZED VIEW {name} AS {text}").rows)
                step.done()
            step.result = f"{rows[0]:,} and {rows[1]:,} rows"
        customers = Movers(data)
        with printer.doing("A short round to warm up, not counted", _WARMUP * len(_MODES) * (_FEW + 2)) as step:
            _raced(wh, customers, _WARMUP, _FEW, step)
        what = f"{_ROUNDS} rounds: {_UPDATES} updates of {_ROWS} customers, then queries; eager and lazy in turn"
        with printer.doing(what, _ROUNDS * len(_MODES) * (_UPDATES + 2)) as step:
            spent = _raced(wh, customers, _ROUNDS, _UPDATES, step)
        console.print()
        console.print(_table(spent))
        console.print(
            "Medians, with the fastest and the slowest. Refreshing is part of each update when views are eager, and of "
            "the first query after the updates when they are lazy: here queries come at once, so nothing is hidden in "
            "idle time. The total is all that writer and reader waited for.\n"
        )
        return _proved(wh, customers, printer)


class Movers:
    """Customers that move to another nation: equal ones for every mode."""

    def __init__(self, data: Path) -> None:
        self._rows = plain(pq.read_table(data / "customer.parquet"))
        self._moves = 0

    def moved(self, number: int) -> pa.Table:
        """Return the customers of an update, scattered over the table, in another nation than before the update."""
        self._moves += 1
        rows = self._rows.take(sorted(random.Random(number).sample(range(self._rows.num_rows), _ROWS)))
        away = 1 + self._moves % 24  # of 25 nations, so never the same: an update that changes nothing costs nothing
        return replaced(rows, "c_nationkey", [(n + away) % 25 for n in rows.column("c_nationkey").to_pylist()])


@dataclass
class Spent:
    """Seconds of one mode."""

    updates: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)  # queries right after the updates
    again: list[float] = field(default_factory=list)
    refresh: float = 0.0  # in jobs, wherever they ran
    jobs: int = 0

    @property
    def total(self) -> float:
        return sum(self.updates) + sum(self.first) + sum(self.again)


def _raced(wh: Warehouse, customers: Movers, rounds: int, updates: int, step: _Progress) -> dict[str, Spent]:
    """Time equal updates and queries under each mode in turn, so that both meet the same load of the machine."""
    spent = {mode: Spent() for mode in _MODES}
    for round_ in range(rounds):
        for mode in _MODES if round_ % 2 else reversed(_MODES):
            set_mode(wh, tuple(_VIEWS), mode)
            _round(wh, customers, range(round_ * updates, (round_ + 1) * updates), spent[mode], step)
    return spent


def _round(wh: Warehouse, customers: Movers, updates: range, spent: Spent, step: _Progress) -> None:
    before = len(wh.history())
    for number in updates:
        rows = customers.moved(number)
        spent.updates.append(seconds_of(lambda rows=rows: upsert(wh, rows)))  # type: ignore[misc]
        step.done()
    for times in (spent.first, spent.again):
        times.append(seconds_of(lambda: _ask(wh)))
        step.done()
    jobs = wh.history()[before:]
    spent.jobs += len(jobs)
    spent.refresh += sum(job.seconds for job in jobs)


def _ask(wh: Warehouse) -> None:
    for query in _ASKED:
        wh.sql(query).collect()


def _table(spent: dict[str, Spent]) -> Table:
    """Return a table of both modes side by side, with the ratios eager / lazy."""
    table = Table(title="What was waited for", title_justify="left", show_lines=True)
    for column in ("", *_MODES, "eager / lazy"):
        table.add_column(column, no_wrap=True)
    eager, lazy = (spent[mode] for mode in _MODES)
    _compare(table, f"update of {_ROWS} customers,\nresponse", eager.updates, lazy.updates)
    refreshes = [f"{_brief(s.refresh)}\n{s.jobs} jobs" for s in (eager, lazy)]
    table.add_row("refresh of both views,\nall jobs", *refreshes, _factor(eager.refresh, lazy.refresh))
    _compare(table, f"query of both views\nright after {_UPDATES} updates", eager.first, lazy.first)
    _compare(table, "the same query again", eager.again, lazy.again)
    table.add_row("total waited", _brief(eager.total), _brief(lazy.total), _factor(eager.total, lazy.total))
    return table


def _compare(table: Table, name: str, eager: Sequence[float], lazy: Sequence[float]) -> None:
    cells = [f"{_brief(statistics.median(t))}\n{_brief(min(t))}–{_brief(max(t))}" for t in (eager, lazy)]
    table.add_row(name, *cells, _factor(statistics.median(eager), statistics.median(lazy)))


def _factor(eager: float, lazy: float) -> str:
    return f"{eager / lazy:.3g} ×"


def _brief(seconds: float) -> str:
    """Return a duration as a short text, for a table that fits an ordinary terminal."""
    if seconds >= 1:
        return f"{seconds:.1f} s"
    return f"{seconds * 1000:.0f} ms" if seconds >= 0.1 else f"{seconds * 1000:.1f} ms"


def _proved(wh: Warehouse, customers: Movers, printer: _Printer) -> bool:
    """Run one more update and queries, then compare both views with their definitions, recomputed by Spark."""
    set_mode(wh, tuple(_VIEWS), "lazy")
    upsert(wh, customers.moved(0))
    waiting = ", ".join(f"{v.name} has {v.pending_tasks} pending task" for v in wh.status().views)
    printer.console.print(f"One more update. Before anybody asks: {waiting}.")
    _ask(wh)
    behind = [v.name for v in wh.status().views if v.pending_tasks]
    reports = []
    with printer.doing("Both views asked, then compared with their definitions, row by row", len(_VIEWS)) as step:
        for view in _VIEWS:
            reports.append(wh.check(view))
            step.done()
    for report in reports:
        wrong = f"WRONG: {report.missing_rows} rows missing, {report.extra_rows} too many"
        outcome = "NOT FRESH" if report.name in behind else "fresh, equal to its definition" if report.ok else wrong
        printer.console.print(f"  {report.name}: {outcome}")
    return not behind and all(report.ok for report in reports)


if __name__ == "__main__":
    sys.exit(main())
