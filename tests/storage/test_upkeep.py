"""What a warehouse does unasked."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn, cast

import pytest
from tests.internals import internals

import freshview
from freshview.catalog.frontiers import Job
from freshview.catalog.records import Relation
from freshview.catalog.views import ViewCatalog
from freshview.cdc.notice import Watch
from freshview.errors import CatalogUnavailable, InvalidStatement, StorageUnavailable, WarehouseClosed
from freshview.interruption import Interruption
from freshview.schedule import upkeep
from freshview.schedule.garbage import Garbage
from freshview.storage.checkpoint import Checkpointer, CheckpointReport
from freshview.views.deferred import Deferred
from freshview.views.maintenance import Maintenance


def test_a_checkpoint_that_fails_does_not_keep_others_from_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: the rest of the upkeep goes on, and the failure is told."""
    monkeypatch.setattr(upkeep, "DUE_SEGMENTS", 1)
    monkeypatch.setattr(upkeep, "PATIENCE", 0.0)
    run = Checkpointer.run

    def fails_for_a(checkpointer: Checkpointer, table: Relation) -> CheckpointReport:
        if table.name == "a":
            raise StorageUnavailable("table a", "its folder is gone", "Restore it.")
        return run(checkpointer, table)

    monkeypatch.setattr(Checkpointer, "run", fails_for_a)
    with freshview.connect(tmp_path / "own") as wh:
        told: list[str] = []
        wh.events.listen(lambda e: told.append(e.details["relation"]) if e.name == "checkpoint.failed" else None)
        for name in ("a", "b"):
            wh.sql(f"CREATE TABLE {name} (k INT, PRIMARY KEY (k))")
            wh.sql(f"INSERT INTO {name} VALUES (1)")
        internals(wh).step_of_upkeep()
        assert told == ["a"]
        assert {s.name: s.rows_in_main for s in wh.status().tables} == {"a": 0, "b": 1}


def test_a_part_of_the_upkeep_that_fails_keeps_no_other_from_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: whatever the error; it is reported. A catalog that cannot be reached ends the turn: all parts ask it."""
    errors: list[Exception] = [RuntimeError("a defect"), CatalogUnavailable("catalog", "restarts", "Try again.")]
    done: list[str] = []

    def fails(_: Watch) -> NoReturn:
        raise errors[0]

    with freshview.connect(tmp_path / "own") as wh:
        told: list[str] = []
        wh.events.listen(lambda e: told.append(e.details["error"]) if e.name == "background.failed" else None)
        internals(wh).replace_garbage(cast("Garbage", SimpleNamespace(turn=lambda: done.append("garbage"))))
        monkeypatch.setattr(Watch, "look", fails)
        monkeypatch.setattr(Deferred, "keep_schedule", lambda _: done.append("schedule"))
        internals(wh).step_of_upkeep()
        assert (told, done) == (["a defect"], ["schedule", "garbage"])
        errors.pop(0)
        with pytest.raises(CatalogUnavailable):
            internals(wh).step_of_upkeep()
        assert done == ["schedule", "garbage"]


def test_a_checkpoint_waits_for_idle_time_but_not_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Law: it does not begin while the system is busy, unless it has been due for a minute."""
    load, now = 9.0, 0.0
    monkeypatch.setattr(upkeep, "DUE_SEGMENTS", 1)
    monkeypatch.setattr(upkeep, "machine_load", lambda: load)
    monkeypatch.setattr("time.monotonic", lambda: now)
    with freshview.connect(tmp_path) as wh, freshview.connect(tmp_path) as other:
        other.sql("CREATE TABLE a (k INT, PRIMARY KEY (k))")

        def folded() -> bool:
            internals(wh).step_of_upkeep()
            return wh.status().tables[0].pending_segments == 0

        other.sql("INSERT INTO a VALUES (1)")
        assert not folded()
        now += upkeep.PATIENCE - 1
        assert not folded()
        now += 1
        assert folded()
        other.sql("INSERT INTO a VALUES (2)")
        now += upkeep.PATIENCE
        assert not folded(), "it is due only since now"
        load = 0.0
        assert folded()


@pytest.mark.parametrize(("load", "busy"), [(1.4, False), (1.6, True)])
def test_the_manager_sleeps_while_others_want_the_processors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, load: float, busy: bool
) -> None:
    """The background waits above the load that connect() was given, and while a statement runs."""
    monkeypatch.setattr(upkeep, "machine_load", lambda: load)
    with freshview.connect(tmp_path, busy_load=1.5) as wh:
        assert internals(wh).is_busy() == busy
        with internals(wh).statement():
            assert internals(wh).is_busy()


def test_there_is_at_least_one_worker(tmp_path: Path) -> None:
    with pytest.raises(InvalidStatement, match="workers 0: views are maintained by one at least"):
        freshview.connect(tmp_path, workers=0)


def test_a_catalog_that_fails_at_the_end_does_not_keep_a_warehouse_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: close() gives up pins and leases and closes the catalog, though the last uses could not be noted."""

    def fails(*_: object) -> None:
        raise CatalogUnavailable("catalog", "the server restarts", "Try again.")

    wh = freshview.connect(tmp_path, background=False)
    left: list[bool] = []
    monkeypatch.setattr(internals(wh).catalog, "leave", lambda: left.append(True))
    internals(wh).used(1)
    monkeypatch.setattr(ViewCatalog, "note_uses", fails)
    wh.close()
    assert left == [True]
    with pytest.raises(WarehouseClosed):
        internals(wh).newest_csn()


def test_a_view_that_is_dropped_while_all_are_maintained_is_not_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: its own maintenance finds that it is gone, and raises NotFound."""
    with freshview.connect(tmp_path, background=False) as wh:
        wh.sql("CREATE TABLE a (k INT, PRIMARY KEY (k))")
        view = replace(internals(wh).relation("a"), id=99, name="v", kind="view")  # as read before it was dropped
        asked: list[Relation] = []

        def maintain(_: Maintenance, view: Relation, csn: int, *, named: bool) -> list[Job]:  # noqa: ARG001
            asked.append(view)
            return []

        monkeypatch.setattr(Maintenance, "maintain", maintain)
        assert internals(wh).maintain([view]) == []
        assert asked == [view]


def test_a_checkpoint_of_the_background_is_broken_off_when_the_warehouse_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: close() does not wait until Spark has rewritten a table that nobody asked to rewrite."""
    monkeypatch.setattr(upkeep, "DUE_SEGMENTS", 1)
    monkeypatch.setattr(upkeep, "PATIENCE", 0.0)
    asked: list[Interruption] = []

    class Engine:
        def background(self, interruption: Interruption) -> AbstractContextManager[None]:
            asked.append(interruption)
            return nullcontext()

    def run(checkpointer: Checkpointer, relation: Relation) -> None:  # noqa: ARG001
        checkpointer.engine()

    monkeypatch.setattr(Checkpointer, "run", run)
    with freshview.connect(tmp_path, background=False) as wh:
        internals(wh).replace_engine(Engine())
        wh.sql("CREATE TABLE a (k INT, PRIMARY KEY (k))")
        wh.sql("INSERT INTO a VALUES (1)")
        internals(wh).step_of_upkeep()
        assert [interruption.requested for interruption in asked] == [False]
    assert asked[0].requested
