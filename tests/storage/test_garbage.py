"""Garbage goes by itself: in rounds that are bounded, that give way, and that end where VACUUM ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
from tests.internals import internals

from freshview import Warehouse
from freshview.errors import SnapshotExpired
from freshview.schedule import garbage
from freshview.schedule.garbage import Garbage
from freshview.storage import segments
from freshview.storage.vacuum import RETENTION

Files = Callable[[Warehouse], set[Path]]
NOW = timedelta(0)


@dataclass
class Clock:
    """A clock that the test turns, and whether foreground work is going on."""

    now: float = 0.0
    free_for: int | None = None  # so many questions are answered by "not busy", then all by "busy"; None: never busy

    def is_busy(self) -> bool:
        if self.free_for is not None:
            self.free_for -= 1
        return self.free_for is not None and self.free_for < 0


def rewrite(wh: Warehouse, name: str, value: str) -> None:
    """All rows of a table anew, folded into a main of its own."""
    with wh.transaction() as tx:
        tx.upsert(name, [{"k": k, "v": value} for k in range(3)])
    internals(wh).checkpoint(name)


@pytest.fixture
def littered(wh: Warehouse, monkeypatch: pytest.MonkeyPatch) -> Warehouse:
    """Three tables and a dropped one, each with superseded files."""
    monkeypatch.setattr(segments, "INLINE_BYTES", 0)
    for name in "abcd":
        wh.sql(f"CREATE TABLE {name} (k INT, v STRING, PRIMARY KEY (k))")
        for value in "xyz":
            rewrite(wh, name, value)
    wh.sql("DROP TABLE d")
    return wh


def keeper(wh: Warehouse, clock: Clock, retention: timedelta = NOW) -> Garbage:
    here = internals(wh)
    return Garbage(here.catalog, here.storage, wh.events, clock.is_busy, retention=retention, clock=lambda: clock.now)


def test_a_pass_removes_what_vacuum_removes_in_bounded_rounds(
    littered: Warehouse, data_files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: no round removes more files than it may; the rounds of a pass together leave nothing to VACUUM."""
    monkeypatch.setattr(garbage, "ROUND_FILES", 2)
    monkeypatch.setattr(garbage, "ROUND_RELATIONS", 2)
    clock = Clock()
    rounds = keeper(littered, clock)
    assert rounds.turn() is None, "no pass is due yet"
    clock.now += garbage.PASS_SECONDS
    before = {name: internals(littered).rows(name) for name in "abc"}
    removed = [report.files for report in iter(rounds.turn, None) if report is not None]
    assert max(removed) == 2
    assert sum(removed) == 3 * 5 + 6  # of each table two mains and three segments; of the dropped one all
    assert littered.vacuum(NOW).rows == 0
    assert len(data_files(littered)) == 3
    assert {name: internals(littered).rows(name) for name in "abc"} == before
    assert internals(littered).catalog.dropped() == []
    clock.now += garbage.PASS_SECONDS - 1
    assert rounds.turn() is None, "the next pass is not due yet"


def test_a_round_gives_way_and_the_next_goes_on(littered: Warehouse, data_files: Files) -> None:
    """Law: foreground work stops a round before its next file; nothing is lost, and nothing is forgotten."""
    clock = Clock()
    rounds = keeper(littered, clock)
    clock.now += garbage.PASS_SECONDS
    files = len(data_files(littered))
    clock.free_for = 3
    report = rounds.turn()
    assert report is not None
    assert (report.files, len(data_files(littered))) == (2, files - 2)
    assert rounds.turn() is None, "the system is busy"
    clock.free_for = None
    assert sum(r.files for r in iter(rounds.turn, None) if r is not None) == 19
    assert littered.vacuum(NOW).rows == 0


def test_a_pass_that_was_put_off_for_an_hour_is_done_although_the_system_is_busy(littered: Warehouse) -> None:
    clock = Clock(free_for=0)
    rounds = keeper(littered, clock)
    clock.now += garbage.PASS_SECONDS + garbage.PATIENCE_SECONDS - 1
    assert rounds.turn() is None
    clock.now += 1
    assert sum(r.files for r in iter(rounds.turn, None) if r is not None) == 21


def test_the_retention_is_kept(littered: Warehouse, data_files: Files) -> None:
    """Law: versions of the last day stay readable, whoever vacuums."""
    clock = Clock()
    rounds = keeper(littered, clock, RETENTION)
    clock.now += garbage.PASS_SECONDS
    files = data_files(littered)
    assert [r.files for r in iter(rounds.turn, None) if r is not None] == [0]
    assert data_files(littered) == files


def test_what_a_reader_needs_stays(littered: Warehouse) -> None:
    """Law: a transaction that is open keeps its snapshot through any number of passes, and no longer."""
    clock = Clock()
    rounds = keeper(littered, clock)
    with littered.transaction() as tx:
        old = internals(littered).rows_in(tx, "a")
        rewrite(littered, "a", "new")
        for _ in range(2):
            clock.now += garbage.PASS_SECONDS
            list(iter(rounds.turn, None))
        assert internals(littered).rows_in(tx, "a") == old
        tx.rollback()
    at = internals(littered).newest_csn() - 1
    clock.now += garbage.PASS_SECONDS
    list(iter(rounds.turn, None))
    with pytest.raises(SnapshotExpired):
        internals(littered).rows("a", at)


def test_one_process_at_a_time(littered: Warehouse) -> None:
    """Law: while another process does a round, nothing is listed twice."""
    clock = Clock()
    rounds = keeper(littered, clock)
    clock.now += garbage.PASS_SECONDS
    catalog = internals(littered).catalog
    held = catalog.lease(-1, "vacuum", "vacuum")
    assert held is not None
    assert rounds.turn() is None
    catalog.drop_leases([held.id])
    assert rounds.turn() is None, "the other process has just done it"
    clock.now += garbage.PASS_SECONDS
    assert rounds.turn() is not None


def test_the_background_loop_removes_garbage(littered: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn of the background loop does a round when one is due."""
    told: list[str] = []
    littered.events.listen(lambda e: told.append(e.name) if e.name.startswith("vacuum") else None)
    monkeypatch.setattr(garbage, "PASS_SECONDS", 0.0)
    internals(littered).replace_garbage(keeper(littered, Clock()))
    internals(littered).step_of_upkeep()
    assert told[-1] == "vacuum.round"
