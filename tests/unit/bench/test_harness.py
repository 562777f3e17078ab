"""The harness: quick results stay away from the documents, wrong answers are failures, spreads are of rounds."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from freshview import Warehouse
from freshview.bench import __main__ as harness
from freshview.bench import quick
from freshview.bench.data import tpch
from freshview.bench.measure import Chart, Figure, Timing, alternated, meanwhile, spread
from freshview.bench.report import document, reports, unmeasured
from freshview.bench.tables import copied, forget, is_kept, new, prepared
from freshview.bench.views import Race, _recomputing, _slowest
from freshview.errors import NotFound, StorageUnavailable

_CHART = Chart("c", "A chart", {"": {"bar": {"update": 1.0}}})
_SLOW = Figure("slow / fast", 9.0, 2.0, "×", {"slow": "9 s"}, chart=_CHART, spread=(8.0, 10.0))
_WRONG = Figure("views that equal their definition", 1, 2, "", {}, at_least=True, always=True)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Figure]:
    """What the only step of the only suite gives; all is run in an empty folder."""
    found = [_SLOW]

    def ran(*_: Any) -> list[dict[str, Any]]:
        return [f.as_json() for f in found]

    monkeypatch.setattr(harness, "_apart", ran)
    monkeypatch.setattr(harness, "_here", ran)
    monkeypatch.setattr(harness, "SUITES", {"trial": (lambda *_: [],)})
    monkeypatch.chdir(tmp_path)
    return found


@pytest.mark.usefixtures("steps")
def test_quick_results_say_so_and_are_never_in_the_documents(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert harness.main(["trial", "--quick"]) == 0
    told = capsys.readouterr().out
    assert "QUICK, a trial and no result" in told
    assert "min; a trial, whose numbers are no results" in told
    assert "slow / fast: 9 × (8 to 10)" in told
    assert "MISS" not in told  # the limit is meant for larger data
    report = json.loads((tmp_path / ".bench" / "quick" / "trial.json").read_text())
    assert report["quick"]
    assert report["scale"] == quick.SCALE
    assert report["figures"][0]["met"] is None
    assert "A chart (quick)</" in (tmp_path / ".bench" / "quick" / "trial-c.svg").read_text()
    assert not (tmp_path / "docs").exists()
    assert reports(tmp_path / ".bench" / "quick") == []
    assert "slow" not in document(tmp_path / ".bench" / "quick")


@pytest.mark.usefixtures("steps")
def test_quick_results_are_refused_where_the_documents_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "benchmarks.md").write_text("")
    for out in ("docs/benchmarks", "other/numbers"):
        with pytest.raises(SystemExit) as ended:
            harness.main(["trial", "--quick", "--out", out])
        assert ended.value.code == 2
        assert f"--quick does not write to {out}" in capsys.readouterr().err
        assert not (tmp_path / out).exists()


@pytest.mark.usefixtures("steps")
def test_a_full_run_writes_numbers_charts_and_documents(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert harness.main(["trial"]) == 0  # a limit of time that is missed is told, and no failure
    assert "MISS slow / fast: 9 × (8 to 10) (limit 2)" in capsys.readouterr().out
    report = json.loads((tmp_path / "docs" / "benchmarks" / "trial.json").read_text())
    assert "quick" not in report
    assert report["figures"][0]["spread"] == [8.0, 10.0]
    assert {"cores", "memory_gib", "java", "pyspark", "freshview"} <= set(report["machine"])
    assert (tmp_path / "docs" / "benchmarks" / "trial-c.svg").exists()
    assert "| slow / fast | 9 × (8 to 10) | ≤ 2 | **no** | slow: 9 s |" in (tmp_path / "docs/benchmarks.md").read_text()


@pytest.mark.parametrize("options", [[], ["--quick"]])
def test_a_wrong_answer_is_a_failure_at_every_scale(
    steps: list[Figure], options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    steps.append(_WRONG)
    assert harness.main(["trial", *options]) == 1
    assert "MISS views that equal" in capsys.readouterr().out


def test_a_step_that_fails_does_not_hold_up_the_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def ran(_suite: str, name: str, _arguments: Any) -> list[dict[str, Any]] | None:
        return [_SLOW.as_json()] if name == "lookup" else None

    monkeypatch.setattr(harness, "_apart", ran)
    monkeypatch.setattr(harness, "SUITES", {"trial": (_load, _lookup), "all_fail": (_load,)})
    monkeypatch.chdir(tmp_path)
    assert harness.main(["trial"]) == 1
    report = json.loads((tmp_path / "docs" / "benchmarks" / "trial.json").read_text())
    assert [(s["name"], s["failed"]) for s in report["steps"]] == [("load", True), ("lookup", False)]
    assert all(len(s["load_average"]) == 2 for s in report["steps"])
    assert [f["name"] for f in report["figures"]] == ["slow / fast"]
    assert harness.main(["all_fail"]) == 1
    assert not (tmp_path / "docs" / "benchmarks" / "all_fail.json").exists()


def test_figures_of_steps_that_are_not_run_stay(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rounds = iter(range(10))

    def ran(_suite: str, name: str, _arguments: Any) -> list[dict[str, Any]]:
        return [Figure(name, next(rounds), None, "", {}).as_json()]

    monkeypatch.setattr(harness, "_apart", ran)
    monkeypatch.setattr(harness, "SUITES", {"trial": (_load, _lookup)})
    monkeypatch.chdir(tmp_path)

    def values(*options: str) -> dict[str, float]:
        assert harness.main(["trial", *options]) == 0
        report = json.loads((tmp_path / "docs" / "benchmarks" / "trial.json").read_text())
        return {f["name"]: f["value"] for f in report["figures"]}

    assert values() == {"load": 0, "lookup": 1}
    assert values("--only", "load") == {"load": 2, "lookup": 1}
    assert values("--only", "lookup", "--scale", "0.5") == {"lookup": 3}  # other data: nothing to compare with


def test_figures_that_name_no_step_stay_until_all_steps_are_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Law: a report of an earlier version loses nothing by a run of some steps but what that has measured anew."""

    def ran(_suite: str, name: str, _arguments: Any) -> list[dict[str, Any]]:
        return [Figure(name, 7, None, "", {}).as_json()]

    monkeypatch.setattr(harness, "_apart", ran)
    monkeypatch.setattr(harness, "SUITES", {"trial": (_load, _lookup)})
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "docs" / "benchmarks" / "trial.json"
    path.parent.mkdir(parents=True)
    earlier = [{**Figure(name, 1, None, "", {}).as_json(), "always": True} for name in ("exact", "exact")]
    earlier += [Figure(name, 1, None, "", {}).as_json() for name in ("load", "lookup")]
    path.write_text(json.dumps({"suite": "trial", "scale": 1.0, "machine": {}, "figures": earlier}))

    def values(*options: str) -> list[tuple[str, float]]:
        assert harness.main(["trial", *options]) == 0
        return [(f["name"], f["value"]) for f in json.loads(path.read_text())["figures"]]

    for _ in range(2):
        assert values("--only", "lookup") == [("exact", 1), ("exact", 1), ("load", 1), ("lookup", 7)]
    assert unmeasured(reports(path.parent), {"trial": ["load", "lookup"]}) == []
    assert values() == [("load", 7), ("lookup", 7)]


def test_a_run_that_is_ended_keeps_what_it_has_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Also in the documents; figures of steps that it has not reached stay those of the run before."""
    rounds, ends = iter(range(10)), [False]

    def ran(_suite: str, name: str, _arguments: Any) -> list[dict[str, Any]]:
        if name == "lookup" and ends[0]:
            raise KeyboardInterrupt
        return [Figure(name, next(rounds), None, "", {}).as_json()]

    monkeypatch.setattr(harness, "_apart", ran)
    monkeypatch.setattr(harness, "SUITES", {"trial": (_load, _lookup)})
    monkeypatch.chdir(tmp_path)
    assert harness.main(["trial"]) == 0
    ends[0] = True
    with pytest.raises(KeyboardInterrupt):
        harness.main(["trial"])
    report = json.loads((tmp_path / "docs" / "benchmarks" / "trial.json").read_text())
    assert {f["name"]: f["value"] for f in report["figures"]} == {"load": 2, "lookup": 1}
    assert [s["name"] for s in report["steps"]] == ["load", "lookup"]
    assert "| load | 2 |" in (tmp_path / "docs" / "benchmarks.md").read_text()


@pytest.mark.usefixtures("steps")
def test_a_run_can_use_what_an_earlier_one_has_loaded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        harness.main(["trial", "--keep"])
    assert "--keep: .bench has no tables of scale 1; run once without it" in capsys.readouterr().err
    assert harness.main(["trial"]) == 0
    loaded = tmp_path / ".bench" / "prepared" / "tables"
    loaded.mkdir()
    assert harness.main(["trial", "--keep"]) == 0
    assert loaded.exists()
    with pytest.raises(SystemExit):
        harness.main(["trial", "--keep", "--scale", "0.5"])
    assert harness.main(["trial"]) == 0
    assert not loaded.exists()


@pytest.mark.usefixtures("steps")
@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["trial", "--only", "nosuch"], "unknown step 'nosuch'"),
        (["nosuch"], "unknown suite 'nosuch'; there are: trial"),
        (["--repeat", "0"], "at least 1"),
        (["--scale", "-1"], "above 0"),
    ],
)
def test_bad_options_are_named(given: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        harness.main(given)
    assert told in capsys.readouterr().err


def test_quick_steps_share_a_process_but_where_the_process_is_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def processes(suite: str, *options: str) -> list[float]:
        """Return the processes that the steps of a suite ran in."""
        monkeypatch.setattr(harness, "SUITES", {suite: (_load, _lookup)})
        assert harness.main([suite, "--folder", str(tmp_path), "--out", str(tmp_path / "out"), *options]) == 0
        report = json.loads((tmp_path / "out" / f"{suite}.json").read_text())
        return [figure["value"] for figure in report["figures"]]

    def apart(_suite: str, _name: str, _arguments: Any) -> list[dict[str, Any]]:
        return [Figure("process", 0, None, "", {}).as_json()]

    monkeypatch.setattr(harness, "_apart", apart)
    monkeypatch.chdir(tmp_path)
    assert processes("foundation", "--quick") == [0, os.getpid()]
    assert processes("views", "--quick") == [os.getpid(), os.getpid()]
    assert processes("views") == [0, 0]


def _load(*_: object) -> list[Figure]:
    return [Figure("process", os.getpid(), None, "", {})]


def _lookup(*_: object) -> list[Figure]:
    return _load()


_load.__name__, _lookup.__name__ = "load", "lookup"  # as in the foundation suite


def test_a_step_of_a_process_gives_its_figures_or_fails_by_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def one(_folder: Path, scale: float, repeat: int) -> list[Figure]:
        return [Figure("one", scale * repeat, None, "", {}), Figure("two", 2, None, "", {})]

    def broken(*_: object) -> list[Figure]:
        raise NotFound("table t", "is not there", "")

    def wrong(*_: object) -> list[Figure]:
        raise ZeroDivisionError("in the middle")

    monkeypatch.setattr(harness, "SUITES", {"trial": (one, broken, wrong)})
    options = ["trial", "--folder", str(tmp_path), "--scale", "0.5", "--repeat", "4", "--step"]
    assert harness.main([*options, "one"]) == 0
    assert [(f["name"], f["value"]) for f in json.loads(capsys.readouterr().out)] == [("one", 2.0), ("two", 2)]
    assert harness.main([*options, "broken"]) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert "broken: table t: is not there" in told.err
    assert harness.main([*options, "wrong"]) == 1
    assert "ZeroDivisionError: in the middle" in capsys.readouterr().err


def test_a_run_uses_nothing_that_another_has_prepared_but_generated_data(tmp_path: Path) -> None:
    made: list[str] = []

    def fill(wh: Warehouse) -> None:
        made.append("filled")
        wh.sql("CREATE TABLE t (k INT PRIMARY KEY)")

    data = tmp_path / "tpch-1"
    data.mkdir()
    home = prepared(tmp_path, "one", fill)
    assert prepared(tmp_path, "one", fill) == home
    assert made == ["filled"]
    with copied(home, tmp_path / "copy") as copy, new(tmp_path / "empty") as empty:
        assert [t.name for t in copy.status().tables] == ["t"]
        assert not empty.status().tables
    forget(tmp_path, 1.0)
    assert is_kept(tmp_path, 1.0)
    assert not is_kept(tmp_path, 0.5)
    assert data.exists()
    prepared(tmp_path, "one", fill)
    assert len(made) == 2


def test_a_warehouse_that_was_not_filled_is_not_taken_for_one_that_was(tmp_path: Path) -> None:
    def fails(_: Warehouse) -> None:
        raise NotFound("table t", "is not there", "")

    with pytest.raises(NotFound):
        prepared(tmp_path, "one", fails)
    home = prepared(tmp_path, "one", lambda wh: wh.sql("CREATE TABLE t (k INT PRIMARY KEY)"))
    with copied(home, tmp_path / "copy") as wh:
        assert [t.name for t in wh.status().tables] == ["t"]


def test_what_goes_on_meanwhile_ends_with_the_block_and_fails_it() -> None:
    done: list[int] = []
    with meanwhile(lambda: done.append(1)):
        while len(done) < 3:
            time.sleep(0.001)
    ended = len(done)
    time.sleep(0.01)
    assert len(done) == ended
    begun = threading.Event()

    def fail() -> None:
        begun.set()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), meanwhile(fail):
        assert begun.wait(60)  # on a busy machine the block could end before the thread begins


def test_actions_take_turns_to_begin_and_what_they_are_given_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0]
    seen: list[tuple[str, str]] = []

    def given(i: int) -> str:
        clock[0] += 100
        return f"turn {i}"

    def a(what: str) -> None:
        clock[0] += 1
        seen.append(("a", what))

    def b(what: str) -> None:
        clock[0] += 2
        seen.append(("b", what))

    with monkeypatch.context() as patched:
        patched.setattr("freshview.bench.measure.time.perf_counter", lambda: clock[0])
        times = alternated({"a": a, "b": b}, repeat=2, warmup=1, given=given)
    assert seen == [
        ("a", "turn 0"),
        ("b", "turn 0"),
        ("b", "turn 1"),
        ("a", "turn 1"),
        ("a", "turn 2"),
        ("b", "turn 2"),
    ]
    assert times == {"a": Timing((1, 1)), "b": Timing((2, 2))}


def test_recomputing_is_compared_with_the_query_where_it_was_chosen() -> None:
    races = [Race([3.0, 0.1], [2.0, 2.0], ["full", "incremental"]), Race([2.0], [1.0], ["full"])]
    (figure,) = _recomputing(races)
    (slowest,) = _slowest([("a", races[0]), ("b", races[1])])
    assert (slowest.value, slowest.details) == (20.0, {"view": "a"})
    assert _slowest([("b", races[1])]) == []
    assert (figure.value, figure.spread) == (1.75, (1.5, 2.0))
    assert _recomputing([Race([0.1], [1.0], ["incremental"])]) == []


def test_a_spread_is_of_rounds_and_leaves_out_the_ends_of_many() -> None:
    assert spread(Timing((2.0, 6.0)), Timing((1.0, 2.0))) == (2.0, 3.0)
    over, under = Timing(tuple(float(n) for n in range(1, 101))), Timing((1.0,) * 100)
    assert spread(over, under) == (11.0, 90.0)


def test_data_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A generator that fails in the middle, or is not there, leaves nothing that the next run would take for data."""
    tool = tmp_path / "tool"
    tool.write_text(
        "#!/bin/sh\nfor a; do case $a in --output-dir=*) echo half > ${a#*=}/nation.parquet;; esac; done\n"
        "echo no space left >&2; exit 1\n"
    )
    tool.chmod(0o755)
    monkeypatch.setattr("freshview.bench.data.shutil.which", lambda *_, **__: str(tool))
    with pytest.raises(StorageUnavailable, match="no space left"):
        tpch(tmp_path, 0.001, ("nation",))
    assert list((tmp_path / "tpch-0.001").iterdir()) == []
    monkeypatch.setattr("freshview.bench.data.shutil.which", lambda *_, **__: None)
    with pytest.raises(NotFound, match="pip install tpchgen-cli"):
        tpch(tmp_path, 0.001, ("nation",))
    monkeypatch.undo()
    assert (tpch(tmp_path, 0.001, ("nation",)) / "nation.parquet").stat().st_size > 1000
