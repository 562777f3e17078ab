"""What a warehouse does unasked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn, cast

import pytest
from tests.internals import internals

import freshview
from freshview import Warehouse
from freshview.catalog.activity import ActivityCatalog
from freshview.catalog.frontiers import Job
from freshview.catalog.records import DataFile, Relation, RelationState
from freshview.catalog.views import ViewCatalog
from freshview.cdc.notice import Watch
from freshview.errors import CatalogUnavailable, InvalidStatement, StorageUnavailable, WarehouseClosed
from freshview.interruption import Interruption, stop_if_asked
from freshview.schedule import upkeep
from freshview.schedule.garbage import Garbage
from freshview.storage import checkpoint
from freshview.storage.checkpoint import Checkpointer, CheckpointReport
from freshview.views.auxiliaries import Auxiliaries
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


class FoldingEngine:
    """An engine of the background that folds on the driver, and has something happen while it writes."""

    def __init__(self, wh: Warehouse, during: Callable[[], None]) -> None:
        self._storage, self._during = internals(wh).storage, during
        self.asked: list[Interruption] = []

    def background(self, interruption: Interruption) -> AbstractContextManager[None]:
        self.asked.append(interruption)
        return nullcontext()

    def scan(self, state: RelationState) -> FoldingEngine:
        self._rows = self._storage.reader.contents(state)
        return self

    def sort(self, _: str) -> FoldingEngine:
        return self

    def write(self, _: object, relation_id: int, folder: str, __: str) -> tuple[DataFile, ...]:
        files = self._storage.write_parquet(relation_id, folder, self._rows)
        self._during()
        return tuple(files)


@pytest.fixture
def due(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Warehouse]:
    """A warehouse with a table whose checkpoint is due and needs Spark, on an idle machine."""
    monkeypatch.setattr(upkeep, "DUE_SEGMENTS", 1)
    monkeypatch.setattr(upkeep, "machine_load", lambda: 0.0)
    monkeypatch.setattr(checkpoint, "LOCAL_REWRITE_ROWS", -1)
    monkeypatch.setattr(checkpoint, "choose", lambda state: "rewrite" if state.segments else "nothing")
    with freshview.connect(tmp_path / "due", background=False) as wh:
        with freshview.connect(tmp_path / "due", background=False) as other:  # whose statements are no work of ours
            other.sql("CREATE TABLE a (k INT, PRIMARY KEY (k))")
            other.sql("INSERT INTO a VALUES (1), (2)")
        yield wh


def unfolded(wh: Warehouse) -> int:
    return len(internals(wh).state("a").segments)


def test_a_checkpoint_of_the_background_is_broken_off_when_the_warehouse_is_closed(due: Warehouse) -> None:
    """Law: close() does not wait until Spark has rewritten a table that nobody asked to rewrite."""
    ended: list[bool] = []

    def close() -> None:
        internals(due).stop_upkeep()
        ended.append(engine.asked[0].requested)
        stop_if_asked("checkpoint")

    engine = FoldingEngine(due, close)
    internals(due).replace_engine(engine)
    internals(due).step_of_upkeep()
    assert (ended, unfolded(due)) == ([True], 1)
    internals(due).step_of_upkeep()
    assert len(engine.asked) == 1, "no other begins"


def test_a_checkpoint_gives_way_to_a_statement_and_is_taken_up_again(due: Warehouse) -> None:
    """Law: it stops at once, which is no failure, stays due, and leaves nothing but files that no version names."""
    told: list[str] = []
    due.events.listen(lambda e: told.append(e.name))
    before = internals(due).catalog.latest_main(internals(due).relation("a").id)

    def statement() -> None:
        internals(due).make_way()
        stop_if_asked("checkpoint")

    internals(due).replace_engine(FoldingEngine(due, statement))
    internals(due).step_of_upkeep()
    assert (unfolded(due), "checkpoint.failed" in told, "checkpoint.written" in told) == (1, False, False)
    assert internals(due).storage.mains.latest_version(internals(due).relation("a").id) is None
    assert internals(due).catalog.latest_main(internals(due).relation("a").id) == before
    internals(due).replace_engine(FoldingEngine(due, lambda: None))
    internals(due).step_of_upkeep()
    assert (unfolded(due), told.count("checkpoint.done"), "checkpoint.settling" in told) == (0, 1, False)
    assert internals(due).rows("a").num_rows == 2


def test_a_request_after_the_last_use_of_spark_does_not_part_the_two_commits_of_a_checkpoint(due: Warehouse) -> None:
    """Law (11.2): between the Delta commit and the catalog commit a checkpoint ends by a crash alone."""
    engine = FoldingEngine(due, lambda: internals(due).make_way())
    internals(due).replace_engine(engine)
    internals(due).step_of_upkeep()
    assert (engine.asked[0].requested, unfolded(due)) == (True, 0)


@pytest.mark.parametrize("strategy", ["rewrite", "merge"])
def test_a_checkpoint_on_the_driver_gives_way_before_its_delta_commit(
    due: Warehouse, monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    monkeypatch.setattr(checkpoint, "LOCAL_REWRITE_ROWS", 1000)
    internals(due).checkpoint("a")
    with freshview.connect(due.path, background=False) as other, other.transaction() as tx:
        tx.upsert("a", [{"k": 1}])
    version = partial(internals(due).storage.mains.latest_version, internals(due).relation("a").id)
    before, way = version(), [internals(due).make_way]
    monkeypatch.setattr(checkpoint, "choose", lambda _: strategy)
    due.events.listen(lambda e: way.pop()() if e.name == "checkpoint.begun" and way else None)
    internals(due).step_of_upkeep()
    assert (way, unfolded(due), version()) == ([], 1, before)
    internals(due).step_of_upkeep()
    assert unfolded(due) == 0


def test_a_checkpoint_beside_steady_foreground_work_is_protected_for_ten_seconds(
    due: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: none begins before it has been due for a minute; that one does not give way at once."""
    now = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    engine = FoldingEngine(due, lambda: internals(due).make_way())
    internals(due).replace_engine(engine)
    with internals(due).statement():
        for waited in (0.0, upkeep.PATIENCE - 1):
            now[0] = 1000.0 + waited
            internals(due).step_of_upkeep()
            assert engine.asked == []
        now[0] += 1
        internals(due).step_of_upkeep()
    assert ([i.requested for i in engine.asked], unfolded(due)) == ([False], 0)


def test_a_checkpoint_gives_way_to_a_statement_of_another_process(due: Warehouse, tmp_path: Path) -> None:
    """Law: at its process's next look for others, which comes four times a second."""
    with freshview.connect(tmp_path / "due", background=False) as other:

        def statement() -> None:
            ActivityCatalog(internals(other).catalog).busy()
            assert not engine.asked[0].requested
            internals(due).listen()
            stop_if_asked("checkpoint")

        engine = FoldingEngine(due, statement)
        internals(due).replace_engine(engine)
        internals(due).step_of_upkeep()
        assert (engine.asked[0].requested, unfolded(due)) == (True, 1)


def test_the_making_of_auxiliary_views_gives_way(due: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """Law: what gave way is no failure, and is tried again a minute later."""
    now, tries, told = [1000.0], list[bool](), list[str]()
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    monkeypatch.setattr(upkeep, "leaves_auxiliaries", lambda _: True)
    monkeypatch.setattr(upkeep, "DUE_SEGMENTS", 1000)
    due.events.listen(lambda e: told.append(e.name))

    def keep(_: Auxiliaries, __: object) -> None:
        tries.append(True)
        internals(due).make_way()
        stop_if_asked("auxiliary views")

    monkeypatch.setattr(Auxiliaries, "keep", keep)
    internals(due).replace_engine(FoldingEngine(due, lambda: None))
    table = internals(due).relation("a")
    monkeypatch.setattr(internals(due).catalog, "relations", lambda: [replace(table, name="v", kind="view")])
    counts = []
    for seconds in (0, 0, upkeep.PATIENCE - 1, 1):
        now[0] += seconds
        if not tries:
            internals(due).auxiliaries_are_due()
        internals(due).step_of_upkeep()
        counts.append(len(tries))
    assert counts == [1, 1, 1, 2]
    assert not {"auxiliary.failed", "background.failed"} & {*told}
