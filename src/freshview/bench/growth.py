"""Growth: the fresh answer of V1 after a change of 100 customers, at a tenth of the scale, at the scale, and at ten
times it; each system as far as it gets.

The systems are loaded and measured one after the other, so that each has the machine to itself. All get equal changes,
and their answers are compared.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from freshview.bench.data import tpch
from freshview.bench.measure import Chart, Figure, Timing, duration, is_trial
from freshview.bench.peers import (
    DUCKDB,
    OURS,
    TABLES,
    WARMUP,
    Maker,
    Missing,
    Row,
    TableChange,
    TableChanges,
    canonical,
    timed,
)
from freshview.errors import FreshviewError, QueryFailed

_TIMES = {"tenth": 0.1, "same": 1.0, "tenfold": 10.0}
_LONGEST = 15 * 60.0  # seconds that the rounds of one system may take; what was measured by then counts
_SLOW_FROM = 10.0  # a system whose answer takes longer is asked once after the warm-up

Answers = dict[str, Timing]  # by system


def tenth(folder: Path, scale: float, repeat: int) -> list[Figure]:
    """Time all systems at a tenth of the scale."""
    return _at("tenth", folder, scale, repeat)


def same(folder: Path, scale: float, repeat: int) -> list[Figure]:
    """Time all systems at the scale."""
    return _at("same", folder, scale, repeat)


def tenfold(folder: Path, scale: float, repeat: int) -> list[Figure]:
    """Time all systems at ten times the scale."""
    return _at("tenfold", folder, scale, repeat)


def growth(folder: Path, scale: float, _repeat: int) -> list[Figure]:
    """Compare what the other steps have measured at this scale."""
    found = {}
    for step in _TIMES:
        path = _kept(folder, step)
        kept = json.loads(path.read_text()) if path.exists() else {}
        if kept.get("scale") == scale:
            found[step] = {name: Timing(tuple(seconds)) for name, seconds in kept["seconds"].items()}
    return compared(found, scale)


STEPS = (tenth, same, tenfold, growth)


def _kept(folder: Path, step: str) -> Path:
    return folder / "growth" / f"{step}.json"


def _at(step: str, folder: Path, scale: float, repeat: int) -> list[Figure]:
    """Time all systems at one scale, one after the other; keep their times for the comparison."""
    from freshview.bench.peers_systems import MAKERS  # imports packages that listing the suites does not need

    kept = _kept(folder, step)
    kept.parent.mkdir(exist_ok=True)
    kept.unlink(missing_ok=True)

    def keep(answers: Answers) -> None:
        seconds = {name: timing.seconds for name, timing in answers.items()}
        kept.write_text(json.dumps({"scale": scale, "seconds": seconds}))

    answers, absent, answered = measured(folder, scale * _TIMES[step], repeat, MAKERS, keep)
    details = {name: str(timing) for name, timing in answers.items()} | absent
    title = f"V1, 100 customers, fresh answer, scale {scale * _TIMES[step]:g}"
    return [
        Figure(title, answers[OURS].p50, None, "s", details),
        Figure("answers that equal those of Freshview", answered, answered, "", {}, at_least=True, always=True),
    ]


def measured(
    folder: Path, scale: float, repeat: int, makers: dict[str, Maker], keep: Callable[[Answers], None]
) -> tuple[Answers, dict[str, str], int]:
    """Return the times of each system, why others do not take part, and the number of compared answers.

    `keep` is called with the times so far after each system: a step that is ended leaves them.
    """
    data, home = tpch(folder, scale, TABLES), folder / "peers"
    changes = TableChanges(folder, scale, seed=12)
    warmup = 2 if is_trial(scale) else WARMUP
    rounds = [changes.customers() for _ in range(repeat + warmup)]
    answers: Answers = {}
    absent: dict[str, str] = {}
    expected: list[list[Row]] = []
    compared = 0
    for name, make in makers.items():
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        try:
            seconds, rows = _rounds(make, home, data, rounds, warmup)
        except (Missing, MemoryError) as reason:
            absent[name] = str(reason) or "there was not enough memory"
            print(f"{name}: {absent[name]}", file=sys.stderr, flush=True)
            continue
        expected = expected or rows
        for theirs, ours in zip(rows, expected, strict=False):
            if theirs != ours:
                raise QueryFailed(f"V1 at scale {scale:g}", f"{name} and {next(iter(answers))} differ", "")
            compared += 1
        answers[name] = Timing(tuple(seconds))
        keep(answers)
    shutil.rmtree(home, ignore_errors=True)
    return answers, absent, compared


def _rounds(
    make: Maker, home: Path, data: Path, changes: Sequence[TableChange], warmup: int
) -> tuple[list[float], list[list[Row]]]:
    """Load a system; return the seconds of its fresh answers after the warm-up, and all answers."""
    until = time.monotonic() + _LONGEST
    begun = time.perf_counter()
    system = make(home, data)
    try:
        line = f"{system.name}: loaded in {duration(time.perf_counter() - begun)}"
        print(line, file=sys.stderr, flush=True)
        seconds: list[float] = []
        rows: list[list[Row]] = []
        for i, change in enumerate(changes):
            _, answered, found = timed(system, change)
            print(f"{system.name}: fresh answer {duration(answered)}", file=sys.stderr, flush=True)
            rows.append(canonical(found))
            seconds.append(answered)
            if (i and answered > _SLOW_FROM) or time.monotonic() > until:
                break
        return seconds[min(warmup, len(seconds) - 1) :], rows
    finally:
        system.close()


def compared(found: dict[str, Answers], scale: float) -> list[Figure]:
    """Return the growth from one scale to ten times it, the lead over DuckDB there, and the chart."""
    if len(found) < 2:
        raise FreshviewError("growth", "fewer than two scales have been measured", "Run the other steps first.")
    names = list(dict.fromkeys(name for answers in found.values() for name in answers))
    lines = {
        name: {f"{scale * _TIMES[step]:g}": answers[name].p50 for step, answers in found.items() if name in answers}
        for name in names
    }
    details = {
        name: ", ".join(f"scale {at}: {duration(seconds)}" for at, seconds in line.items())
        for name, line in lines.items()
    }
    chart = Chart("growth", "V1: fresh answer after 100 customers have moved", {}, lines=lines)
    (_, small), (step, large) = list(found.items())[-2:]
    tenfold = _TIMES[step] * scale
    name = f"V1, 100 customers, fresh answer: scale {tenfold:g} / scale {tenfold / 10:g}"
    figures = [Figure(name, large[OURS].p50 / small[OURS].p50, 3.0, "×", details, chart=chart)]
    if DUCKDB in large:
        ahead = large[DUCKDB].p50 / large[OURS].p50
        name = f"V1, 100 customers, scale {tenfold:g}, fresh answer: {DUCKDB} / {OURS}"
        both = {DUCKDB: str(large[DUCKDB]), OURS: str(large[OURS])}
        figures.append(Figure(name, ahead, 10.0, "×", both, at_least=True))
    return figures
