"""Progress and interrupts: a bar on a screen, nothing elsewhere; Ctrl-C is heard wherever it hits."""

from __future__ import annotations

import io
import os
import pty
import select
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer
from deltalake import write_deltalake
from pyspark.errors import PySparkNotImplementedError
from rich.console import Console
from rich.progress import Progress
from tests.cli.calls import call
from tests.internals import internals

import freshview
from freshview import Warehouse
from freshview.catalog.frontiers import Job
from freshview.catalog.views import ViewCatalog
from freshview.cli.load import size_of
from freshview.cli.place import remembered_interrupts
from freshview.cli.progress import Bar, StageBar, WorkAmount, steps, working
from freshview.cli.query import _show_step
from freshview.cli.serve import Report, _maintain_all, until_signal
from freshview.cli.upkeep import _each, _maintained
from freshview.errors import FreshviewError, SparkUnavailable
from freshview.events import Event, Events
from freshview.spark.interrupts import _after_cancelling, own_interrupts
from freshview.spark.loading import InputFiles


class Screen:
    """A terminal that remembers what was written to it."""

    def __init__(self) -> None:
        self._master, slave = pty.openpty()
        self.stream = os.fdopen(slave, "w")

    def text(self) -> str:
        found = b""
        while select.select([self._master], [], [], 0.2)[0]:
            found += os.read(self._master, 65536)
        return found.decode()

    def close(self) -> None:
        self.stream.close()
        os.close(self._master)


@contextmanager
def on_a_screen() -> Iterator[Screen]:
    made = Screen()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TERM", "xterm")
        patch.setattr(sys, "stderr", made.stream)
        yield made
    made.close()


def test_rows_are_drawn_on_a_screen() -> None:
    with on_a_screen() as screen:
        with steps("Maintaining", WorkAmount(12_000_000)) as bar:
            for name in ("first", f"second_{'x' * 100}"):
                bar.now(f"Maintaining {name}")
                bar.add(6_000_000)
        drawn = screen.text()
    assert "Maintaining second" in drawn
    assert "12,000,000/12,000,000 rows" in drawn, "what is too long is cut, not the figures"
    assert "0:00:0" in drawn


def test_the_time_left_follows_from_the_pace_since_the_beginning() -> None:
    """The time left stays sound after a slow first piece of work, and if the work done turns out to be less."""
    now = [0.0]
    progress = Progress(console=Console(file=io.StringIO()), get_time=lambda: now[0], speed_estimate_period=1e9)
    bar = Bar(progress, "Maintaining", WorkAmount(100))
    (task,) = progress.tasks
    now[0] = 1000.0
    bar.add(50)
    assert (task.speed, task.time_remaining) == (0.05, 1000)
    now[0] = 2000.0
    bar.reached(0.25, WorkAmount(100))
    assert (task.completed, task.speed, task.time_remaining) == (25, 0.0125, 6000)


def test_the_share_of_tasks_tells_how_many_rows_are_done() -> None:
    """Tasks alone are counted as such; a size that is found later takes their place."""
    progress = Progress(console=Console(file=io.StringIO()))
    bar = Bar(progress, "Loading", None)
    (task,) = progress.tasks
    assert (task.total, task.fields["amount"]) == (None, "")
    bar.reached(0.5, WorkAmount(8, "tasks"))
    assert (task.completed, task.total, task.fields["amount"]) == (4, 8, "4/8 tasks")
    bar.reached(0.75, WorkAmount(6_000_000, is_estimate=True))
    assert (task.completed, task.fields["amount"]) == (4_500_000, "~4,500,000/6,000,000 rows")
    bar.reached(0.5, WorkAmount(3_000_000, "bytes", is_estimate=True))
    assert (task.completed, task.fields["amount"]) == (1_500_000, "~1.5/3.0 MB")


@dataclass
class Stage:
    numCompletedTasks: int  # noqa: N815
    numTasks: int  # noqa: N815


class Tracker:
    """What Spark tells of the stages that run now."""

    def __init__(self, **stages: Stage) -> None:
        self._stages = {int(name[1:]): stage for name, stage in stages.items()}

    def getActiveStageIds(self) -> list[int]:  # noqa: N802
        return [*self._stages, 99]

    def getStageInfo(self, number: int) -> Stage | None:  # noqa: N802
        return self._stages.get(number)


def test_stages_that_have_ended_have_done_their_tasks() -> None:
    stages = StageBar()
    assert stages.look(Tracker()) == (0, 0)
    assert stages.look(Tracker(s1=Stage(3, 8))) == (3, 8)
    assert stages.look(Tracker(s2=Stage(0, 2))) == (8, 10)
    assert stages.look(Tracker()) == (10, 10)


def test_files_tell_their_rows_or_bytes(tmp_path: Path) -> None:
    many = tmp_path / "many"
    (many / "day=1").mkdir(parents=True)
    for place in (tmp_path / "one.parquet", many / "day=1" / "a.parquet"):
        pq.write_table(pa.table({"id": range(10)}), place)
    (many / "_SUCCESS").write_text("no data")
    write_deltalake(tmp_path / "delta", pa.table({"id": range(7)}))
    (tmp_path / "a.csv").write_text("id\n1\n")

    def size(kind: str, *names: str) -> tuple[int, str]:
        found = size_of(InputFiles(tuple(tmp_path / name for name in names), kind))
        assert found.is_estimate, "of what is done of it Spark's tasks tell the share only"
        return found.total, found.unit

    assert size("parquet", "one.parquet", "many") == (20, "rows")
    assert size("delta", "delta") == (7, "rows")
    assert size("csv", "a.csv", "a.csv") == (10, "bytes")


def test_the_steps_of_reading_a_view_are_drawn() -> None:
    """A self-test takes seconds: who waits sees what for."""
    named: list[str] = []

    class Named(Bar):
        def now(self, what: str) -> None:
            named.append(what)

    for step in ("text", "tree", "self-test", "read"):
        _show_step(Event("view.reading", {"view": "v", "step": step}), Named(None, "", None), "CREATE …")
    _show_step(Event("commit.done", {"csn": 1}), Named(None, "", None), "CREATE …")
    assert named == [
        "View v: how Spark reads its text",
        "View v: comparing plans",
        "View v: testing on small tables",
        "CREATE …",
    ]


def test_work_of_unknown_length_is_drawn_too() -> None:
    with on_a_screen() as screen:
        with working("Loading"):
            pass
        assert "Loading" in screen.text()


def test_nothing_is_drawn_elsewhere(capfd: pytest.CaptureFixture[str]) -> None:
    def never() -> WorkAmount:
        raise AssertionError("nobody sees it")

    with steps("Maintaining", WorkAmount(1)) as bar, working("Loading", never):
        bar.now("x")
        bar.add(1)
    assert capfd.readouterr() == ("", "")


def test_jobs_take_the_rows_of_their_views_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Law: what is counted never exceeds what was pending, in whatever order jobs come, and ends with all of it."""
    counted: list[int] = []
    events = Events()

    class Counting(Bar):
        def add(self, amount: int) -> None:
            counted.append(amount)

    @contextmanager
    def drawn(_: str, size: WorkAmount) -> Iterator[Bar]:
        assert size == WorkAmount(130)
        yield Counting(None, "", size)

    def maintain(name: str) -> None:
        if name == "upper":
            events.emit("job.done", view="lower", from_csn=1, to_csn=2, rows=90)
            events.emit("job.done", view="elsewhere", from_csn=1, to_csn=2, rows=5)
            raise FreshviewError("view upper", "failed")
        events.emit("job.done", view="lower", from_csn=2, to_csn=3, rows=90)

    monkeypatch.setattr("freshview.cli.upkeep.steps", drawn)
    assert _each("Maintaining", {"upper": 30, "lower": 100}, maintain, events) == ["upper"]
    assert [n for n in counted if n] == [90, 30, 10]


def test_maintain_hears_of_views_that_are_maintained_side_by_side(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Law: all views go to one call. Jobs are listed by view, not as they end; a view above one that failed failed."""
    counted: list[int] = []

    class Counting(Bar):
        def add(self, amount: int) -> None:
            counted.append(amount)

    @contextmanager
    def drawn(_: str, size: WorkAmount) -> Iterator[Bar]:
        yield Counting(None, "", size)

    class Fake:
        events = Events()

        def maintain(self, names: list[str], *, show: bool) -> None:
            assert (names, show) == (["above", "bad", "first", "second"], False)
            for name in ("second", "first"):
                self.events.emit("job.done", view=name, from_csn=1, to_csn=2, rows=3)
                job = Job(view_id=1, view=name, from_csn=1, to_csn=2, strategy="nothing", seconds=0)
                self.events.emit("maintain.done", view=name, jobs=[job])
            self.events.emit("maintain.failed", view="bad", error="view bad: is bad")
            raise FreshviewError("view bad", "is bad")

    monkeypatch.setattr("freshview.cli.upkeep.steps", drawn)
    rows = {"above": 1, "bad": 2, "first": 3, "second": 4}
    jobs, failed = _maintained(Fake(), rows, show=False)  # type: ignore[arg-type]
    assert [job.view for job in jobs] == ["first", "second"]
    assert failed == ["above", "bad"]
    assert [n for n in counted if n] == [3, 1, 3]
    told = capfd.readouterr().err.splitlines()
    assert told == ["above: was not maintained: a view below it failed", "view bad: is bad"]


def _press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


class Finalised:
    """Ctrl-C hits while it is taken away: Python drops the exception, and would print a trace."""

    def __del__(self) -> None:
        _press()


def _dropped_by_a_finaliser(*_: object) -> None:
    Finalised()
    raise FreshviewError("query", "was cancelled")


def _replaced(*_: object) -> None:
    """Raise the interrupt as another error, as py4j does if one of its connections is closed already."""
    try:
        _press()
    except KeyboardInterrupt:
        raise OSError(9, "Bad file descriptor")  # noqa: B904


def _taken_for_a_failure(*_: object) -> None:
    with suppress(KeyboardInterrupt):
        _press()
    raise typer.Exit(1)


@pytest.mark.parametrize("hit", [_press, _dropped_by_a_finaliser, _replaced, _taken_for_a_failure])
def test_ctrl_c_is_ctrl_c_whatever_becomes_of_the_exception(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hit: Callable[..., None]
) -> None:
    """Law: code 130 and one line; and all is as it was for the next command."""
    freshview.connect(tmp_path / "wh").close()
    monkeypatch.setattr("freshview.warehouse.status.status_of", lambda *_: hit())
    before = signal.getsignal(signal.SIGINT), sys.unraisablehook
    lines = call("status", "-w", tmp_path / "wh", code=130).stderr.splitlines()
    assert lines == ["Interrupted: what was committed stays, the rest was rolled back."]
    assert (signal.getsignal(signal.SIGINT), sys.unraisablehook) == before
    monkeypatch.undo()
    call("status", "-w", tmp_path / "wh")


@pytest.mark.parametrize("hit", [_press, _dropped_by_a_finaliser])
def test_ctrl_c_is_no_failure_of_one_view_of_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hit: Callable[..., None]
) -> None:
    """Law: what goes on past a failure stops at Ctrl-C."""
    with freshview.connect(tmp_path / "wh") as wh:
        for name in ("a", "b"):
            wh.sql(f"CREATE TABLE {name} (id INT PRIMARY KEY)")
            wh.sql(f"INSERT INTO {name} VALUES (1)")
    tried: list[str] = []

    def checked(_: object, name: str, **__: object) -> None:
        tried.append(name)
        hit()

    monkeypatch.setattr(freshview.Warehouse, "check", checked)
    assert call("check", "-w", tmp_path / "wh", code=130).stderr.startswith("Interrupted: ")
    assert tried == ["a"]


def test_ctrl_c_while_maintaining_once_stops_it_all(capfd: pytest.CaptureFixture[str]) -> None:
    """Ctrl-C ends the run also where the exception got lost and a view seems to have failed."""

    class Fake:
        def maintain(self, *, show: bool) -> None:
            assert not show
            report.failures.append("a")
            _dropped_by_a_finaliser()

    report, went_on = Report(), []
    with remembered_interrupts(), until_signal():
        _maintain_all(Fake(), report)  # type: ignore[arg-type]
        went_on.append("nothing was raised")
    assert went_on == []
    assert capfd.readouterr() == ("Stopped.\n", "")


class FakeSession:
    """A session as Spark Connect has it: no context, but operations that can be interrupted."""

    def __init__(self, interrupted: list[str], name: str, fails: bool = False) -> None:
        self._interrupted, self._name, self._fails = interrupted, name, fails

    @property
    def sparkContext(self) -> None:  # noqa: N802
        raise PySparkNotImplementedError("no context")

    def interruptAll(self) -> list[str]:  # noqa: N802
        self._interrupted.append(self._name)
        if self._fails:
            raise OSError("gone")
        return []


def test_over_spark_connect_all_sessions_of_ours_are_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that does not answer keeps none of the others from it; and it is done before the interrupt goes on."""
    found: list[str] = []
    first, bad, last = (FakeSession(found, n, fails=n == "bad") for n in ("first", "bad", "last"))
    monkeypatch.setattr("freshview.spark.interrupts.SparkSession.active", lambda: first)
    monkeypatch.setattr("freshview.spark.interrupts.clones", lambda: [bad, last])
    answer = _after_cancelling(lambda *_: found.append("asked"))
    assert callable(answer)
    answer(signal.SIGINT, None)
    assert found == ["first", "bad", "last", "asked"]


def test_on_a_context_all_jobs_are_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[str] = []

    class Context:
        def cancelAllJobs(self) -> None:  # noqa: N802
            found.append("cancelled")

    class Classic:
        sparkContext = Context()  # noqa: N815

    monkeypatch.setattr("freshview.spark.interrupts.SparkSession.active", Classic)
    answer = _after_cancelling(signal.default_int_handler)
    assert callable(answer)
    with pytest.raises(KeyboardInterrupt):
        answer(signal.SIGINT, None)
    assert found == ["cancelled"]


def test_a_context_that_starts_keeps_the_answer_to_ctrl_c() -> None:
    """Law: whoever had an answer before is asked, after the jobs were cancelled; ignoring stays ignoring."""
    heard: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: heard.append(number))
    try:
        with own_interrupts():
            signal.signal(signal.SIGINT, signal.default_int_handler)  # as PySpark would
        os.kill(os.getpid(), signal.SIGINT)
        assert heard == [signal.SIGINT]
    finally:
        signal.signal(signal.SIGINT, before)
    assert _after_cancelling(signal.SIG_IGN) is signal.SIG_IGN
    raising = _after_cancelling(signal.SIG_DFL)
    assert callable(raising)
    with pytest.raises(KeyboardInterrupt):
        raising(signal.SIGINT, None)


@pytest.mark.parametrize("name", ["checkpoint.failed", "schedule.failed"])
def test_serve_reports_what_fails_in_the_background(name: str) -> None:
    class Kept(Report):
        def failure(self, what: str, error: str) -> None:
            self.failures.append(f"{what}: {error}")

    report = Kept()
    report(Event(name, {"relation": "v", "error": "no"}))
    report(Event("flow.failed", {"flow": "f", "error": "not there"}))
    assert report.failures == ["v: no", "flow f: not there"]


@pytest.mark.parametrize("has_view", [True, False])
def test_serve_starts_spark_at_once_if_there_are_views(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_view: bool
) -> None:
    """Law: the first job need not wait for it; without Java the command says so in a sentence, and ends."""
    with freshview.connect(tmp_path) as wh:
        wh.sql("CREATE TABLE a (k INT, PRIMARY KEY (k))")
        catalog = internals(wh).catalog
        if has_view:
            facts, sources = {"sources": "{}", "columns": "[]"}, [catalog.relation("a")]
            schema, csn = catalog.relation("a").schema, catalog.snapshot()
            ViewCatalog(catalog).create(catalog.reserve_id(), "v", schema, {}, facts, sources, [], [], csn)

    def no_java(_: Warehouse) -> None:
        raise SparkUnavailable("Java", "not found", "Install it.")

    monkeypatch.setattr(Warehouse, "engine", no_java)
    monkeypatch.setattr("freshview.cli.serve.is_asked_to_stop", lambda: True)
    result = call("serve", tmp_path, code=1 if has_view else 0)
    assert result.stdout.startswith("Serving ")
    assert result.stderr == ("Java: not found. Install it.\n" if has_view else "")
