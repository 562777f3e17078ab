"""Power cuts: SQLite forgets the newest transactions that were not synced; what is left is a warehouse with right rows.

Small results of jobs are published without a sync. A power cut is played by a copy of the catalog as it was after the
last transaction that was synced, with the files of tables as they are.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from tests.catalog.view_world import Process, World

from freshview.catalog.engine import Database
from freshview.catalog.records import Relation
from freshview.events import Event
from freshview.storage import segments
from freshview.storage.checkpoint import Checkpointer

_LOG = "catalog.db-wal"


@dataclass
class Disk:
    """The bytes of a catalog that a power cut would leave."""

    folder: Path
    synced: dict[str, bytes] = field(default_factory=dict)

    def log(self) -> bytes:
        path = self.folder / _LOG
        return path.read_bytes() if path.exists() else b""

    def sync(self) -> None:
        self.synced = {"catalog.db": (self.folder / "catalog.db").read_bytes(), _LOG: self.log()}

    def after_a_power_cut(self, target: Path) -> Path:
        """A copy of the warehouse as the machine would find it again now."""
        shutil.copytree(self.folder, target, ignore=shutil.ignore_patterns("catalog.db*"))
        for name, content in self.synced.items():
            (target / name).write_bytes(content)
        return target


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    """The disk of a warehouse, as durable transactions leave it; one that writes nothing syncs nothing."""
    made, write = Disk(tmp_path / "before"), Database.write
    made.folder.mkdir()

    @contextmanager
    def noted(database: Database, *, durable: bool = True) -> Iterator[sa.Connection]:
        log = made.log()
        with write(database, durable=durable) as c:
            yield c
        if durable and made.log() != log:
            made.sync()

    monkeypatch.setattr(Database, "write", noted)
    return made


def _process(folder: Path) -> Process:
    return World(folder).process()


def _checkpoint(process: Process, view: Relation) -> None:
    def engine() -> Any:
        raise AssertionError("small checkpoints need no Spark")

    Checkpointer(process.catalog, process.storage, process.events, engine).run(view)


def _found_again(folder: Path) -> tuple[Process, Relation]:
    process = _process(folder)
    return process, process.catalog.relation("v")


def _bag(process: Process) -> Relation:
    return process.view("v", process.table("t"), process.table("u"))


def test_a_job_whose_result_a_power_cut_took_runs_again(disk: Disk, tmp_path: Path) -> None:
    before = _process(disk.folder)
    view = _bag(before)
    csn = before.put({"t": {1: 1}, "u": {1: 1}})
    before.jobs.bring(view, csn)
    process, view = _found_again(disk.after_a_power_cut(tmp_path / "after"))
    assert process.catalog.snapshot() == csn  # the commit itself is there
    assert process.shown(view, csn) == process.defined(view, csn)
    assert [job[0] for job in process.ran] == ["v"]


def test_a_result_in_files_outlives_a_power_cut(disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "INLINE_BYTES", 0)
    before = _process(disk.folder)
    view = _bag(before)
    csn = before.put({"t": {1: 1}, "u": {1: 1}})
    before.jobs.bring(view, csn)
    process, view = _found_again(disk.after_a_power_cut(tmp_path / "after"))
    assert process.shown(view, csn) == process.defined(view, csn)
    assert not process.ran


def test_a_commit_keeps_the_results_before_it(disk: Disk, tmp_path: Path) -> None:
    before = _process(disk.folder)
    view = _bag(before)
    before.jobs.bring(view, before.put({"t": {1: 1}, "u": {1: 1}}))
    csn = before.put({"t": {2: 2}})
    process, view = _found_again(disk.after_a_power_cut(tmp_path / "after"))
    assert process.shown(view, csn) == process.defined(view, csn)
    assert [(job[1], job[2]) for job in process.ran] == [(csn - 1, csn)]


def test_a_checkpoint_holds_no_rows_that_the_catalog_forgets(disk: Disk, tmp_path: Path) -> None:
    """Law: the catalog knows all rows of a Delta version, else a job would lay its result over rows that have it."""
    before = _process(disk.folder)
    view = _bag(before)
    before.jobs.bring(view, before.put({"t": {1: 1}, "u": {1: 1}}))
    _checkpoint(before, view)
    before.jobs.bring(view, before.put({"t": {2: 2}}))

    def cut(event: Event) -> None:
        if event.name == "checkpoint.written":
            disk.after_a_power_cut(tmp_path / "after")

    before.events.listen(cut)
    _checkpoint(before, view)
    process, view = _found_again(tmp_path / "after")
    csn = process.put({"t": {3: 3}})
    assert process.shown(view, csn) == process.defined(view, csn)
    _checkpoint(process, view)
    assert process.stored(view, csn) == process.defined(view, csn)


def test_a_version_of_a_view_ahead_of_a_restored_catalog_is_undone(disk: Disk, tmp_path: Path) -> None:
    """The catalog of a backup knows the commit of that CSN, and not what the view had stored for it since."""
    before = _process(disk.folder)
    view = _bag(before)
    before.jobs.bring(view, before.put({"t": {1: 1}, "u": {1: 1}}))
    _checkpoint(before, view)
    before.put({"t": {2: 2}})
    backup = dict(disk.synced)
    before.jobs.bring(view, before.catalog.snapshot())
    _checkpoint(before, view)
    disk.synced = backup
    process, view = _found_again(disk.after_a_power_cut(tmp_path / "after"))
    csn = process.put({"t": {3: 3}})
    assert process.shown(view, csn) == process.defined(view, csn)
    _checkpoint(process, view)
    assert process.stored(view, csn) == process.defined(view, csn)
