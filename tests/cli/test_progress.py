"""Progress and interrupts: a bar on a screen, nothing elsewhere; Ctrl-C is heard wherever it hits."""

from __future__ import annotations

import os
import pty
import select
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer
from pyspark.errors import PySparkNotImplementedError
from tests.cli.calls import call

import freshview
from freshview.cli.place import remembered_interrupts
from freshview.cli.progress import steps, working
from freshview.cli.serve import Report, _maintain_all, until_told
from freshview.errors import FreshviewError
from freshview.spark.interrupts import _after_cancelling, own_interrupts


@dataclass
class Named:
    name: str


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


def test_steps_are_drawn_on_a_screen() -> None:
    with on_a_screen() as screen:
        with steps("Maintaining", 2) as bar:
            for name in ("first", "second"):
                bar.now(f"Maintaining {name}")
                bar.done()
        drawn = screen.text()
    assert "Maintaining second" in drawn
    assert "2/2" in drawn
    assert "0:00:0" in drawn


def test_work_of_unknown_length_is_drawn_too() -> None:
    with on_a_screen() as screen:
        with working("Loading"):
            pass
        assert "Loading" in screen.text()


def test_nothing_is_drawn_elsewhere(capfd: pytest.CaptureFixture[str]) -> None:
    with steps("Maintaining", 1) as bar, working("Loading"):
        bar.now("x")
        bar.done()
    assert capfd.readouterr() == ("", "")


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
    """As py4j does, if one of its connections is closed already."""
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
    monkeypatch.setattr("freshview.standing.standing", lambda *_: hit())
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
    """Also where the exception got lost, and a view seems to have failed."""

    class Views:
        views = (Named("a"), Named("b"))

    tried: list[str] = []

    class Fake:
        def status(self) -> Views:
            return Views()

        def maintain(self, names: list[str], *, show: bool) -> None:
            assert not show
            tried.extend(names)
            _dropped_by_a_finaliser()

    with remembered_interrupts(), until_told():
        _maintain_all(Fake(), Report())  # type: ignore[arg-type]
    assert tried == ["a"]
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
