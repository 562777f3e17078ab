"""Progress and interrupts: a bar on a screen, nothing elsewhere; Ctrl-C is heard wherever it hits."""

from __future__ import annotations

import os
import pty
import select
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from tests.cli.calls import call

import freshview
from freshview.cli.progress import steps, working
from freshview.errors import FreshviewError
from freshview.spark.interrupts import _after_cancelling, own_interrupts


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


def test_an_interrupt_that_python_dropped_still_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A finaliser swallows KeyboardInterrupt; the query that was cancelled for it then fails."""
    freshview.connect(tmp_path / "wh").close()

    def cancelled(*_: object) -> None:
        with suppress(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        raise FreshviewError("query", "was cancelled")

    monkeypatch.setattr("freshview.standing.standing", cancelled)
    before = signal.getsignal(signal.SIGINT)
    assert call("status", "-w", tmp_path / "wh", code=130).stderr.startswith("Interrupted: ")
    assert signal.getsignal(signal.SIGINT) is before


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
