"""What a warehouse does unasked."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.internals import internals

import freshview
from freshview.catalog.records import Relation
from freshview.errors import InvalidStatement, StorageUnavailable
from freshview.schedule import upkeep
from freshview.storage.checkpoint import Checkpointer, CheckpointReport


def test_a_checkpoint_that_fails_does_not_keep_others_from_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: the rest of the upkeep goes on, and the failure is told."""
    monkeypatch.setattr(upkeep, "DUE_SEGMENTS", 1)
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
