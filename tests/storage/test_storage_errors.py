"""What the file system does to us: durable before visible, and damage told in a sentence, state unchanged."""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.internals import internals

import freshview
from freshview import Warehouse
from freshview.catalog.commits import CommitRequest, OpenCommit
from freshview.errors import CorruptWarehouse, FreshviewError, InvalidStatement, StorageUnavailable
from freshview.storage import segments

Bag = Counter[tuple[Any, ...]]
Contents = Callable[..., Bag]


def fold(wh: Warehouse, name: str = "t") -> str:
    return internals(wh).checkpoint(name).strategy


def upsert(wh: Warehouse, n: int, value: str) -> None:
    with wh.transaction() as tx:
        tx.upsert("t", [{"k": k, "v": value} for k in range(n)])


@pytest.fixture
def table(wh: Warehouse, monkeypatch: pytest.MonkeyPatch) -> Warehouse:
    """A table of a hundred rows in main and a segment in a file."""
    wh.sql("CREATE TABLE t (k INT, v STRING, PRIMARY KEY (k))")
    with wh.transaction() as tx:
        tx.insert("t", [{"k": k, "v": "a"} for k in range(100)])
    fold(wh)
    monkeypatch.setattr(segments, "INLINE_BYTES", 0)
    upsert(wh, 5, "b")
    return wh


def files_of(wh: Warehouse, kind: str) -> list[Path]:
    return sorted(p for p in internals(wh).folder("t").rglob("*.parquet") if p.parent.name.startswith(kind))


def assert_a_sentence(error: FreshviewError) -> None:
    text = str(error)
    assert "\n" not in text
    assert error.what
    assert error.cause
    assert error.remedy
    assert "Traceback" not in text


# -- durable before visible ----------------------------------------------------------------------------------


class Watch:
    """Which files were flushed, by inode, and whether that was so when the catalog came to know them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.flushed: set[int] = set()
        self.checked = 0
        real = os.fsync

        def fsync(handle: int) -> None:
            real(handle)
            self.flushed.add(os.fstat(handle).st_ino)

        monkeypatch.setattr(os, "fsync", fsync)

    def require(self, paths: list[Path]) -> None:
        for path in paths:
            assert path.stat().st_ino in self.flushed, f"{path} was not flushed"
            assert path.parent.stat().st_ino in self.flushed, f"{path.parent} was not flushed"
            self.checked += 1


def test_segment_files_are_durable_before_the_commit(table: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """Law: every file that a commit refers to, and its folder, were flushed before the catalog commit."""
    watch = Watch(monkeypatch)
    home = internals(table).folder("t")
    real = internals(table).catalog.committing

    def committing(request: CommitRequest) -> AbstractContextManager[OpenCommit]:
        watch.require([home / f.path for s in request.segments for f in s.files])
        assert home.stat().st_ino in watch.flushed
        return real(request)

    monkeypatch.setattr(internals(table).catalog, "committing", committing)
    upsert(table, 3, "c")
    assert watch.checked == 1


@pytest.mark.parametrize("way", ["merge", "rewrite", "adopt", "recovered"])
def test_main_is_durable_before_the_catalog_tells_of_it(
    table: Warehouse, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Law: data files, log entry and folders of a new main were flushed before the catalog commit."""
    monkeypatch.setattr(segments, "INLINE_BYTES", 1 << 20)
    match way:
        case "rewrite":
            upsert(table, 60, "c")
        case "adopt":
            fold(table)
            with table.transaction() as tx:
                tx.insert("t", [{"k": 1000, "v": "n"}])
    real = internals(table).catalog.record_main
    if way == "recovered":  # the process died between Delta commit and flush
        monkeypatch.setattr(internals(table).catalog, "record_main", lambda *_: False)
        fold(table)
        monkeypatch.setattr(internals(table).catalog, "record_main", real)
    watch = Watch(monkeypatch)
    home = internals(table).folder("t")

    def record_main(relation: Any, seen: Any, new: Any, lease: Any = None) -> bool:
        files = internals(table).storage.mains.unknown_files(1, new.delta_version)
        watch.require([home / f.path for f in files])
        watch.require([home / "_delta_log" / f"{new.delta_version:020d}.json"])
        return real(relation, seen, new, lease)

    monkeypatch.setattr(internals(table).catalog, "record_main", record_main)
    assert fold(table) == ("nothing" if way == "recovered" else way)
    assert watch.checked >= 2


# -- damage --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["main", "segment"])
@pytest.mark.parametrize("damage", ["missing", "truncated", "garbage"])
def test_damaged_files_are_named(table: Warehouse, kind: str, damage: str) -> None:
    """Law: a missing, truncated or overwritten data file is a CorruptWarehouse that says so, on every way to it."""
    home = internals(table).folder("t")
    main = internals(table).main("t")
    assert main is not None
    if kind == "main":
        path = home / internals(table).main_files("t")[0].path
    else:
        path = home / internals(table).segments("t", after=main.csn)[0].files[0].path
    size = path.stat().st_size
    match damage:
        case "missing":
            path.unlink()
        case "truncated":
            os.truncate(path, size // 2)
        case "garbage":
            path.write_bytes(b"\0" * size)
    with freshview.connect(table.path) as wh:
        state = internals(wh).state("t")
        few = pa.table({"k": pa.array([50, 2], pa.int32())})
        many = pa.table({"k": pa.array(range(5000), pa.int32())})
        reader = internals(wh).reader
        ways: list[Callable[[], object]] = [
            lambda: reader.contents(state),
            lambda: reader.lookup(state, few),
            lambda: reader.lookup(state, many),
        ]
        for way in ways:
            with pytest.raises(CorruptWarehouse) as raised:
                way()
            assert_a_sentence(raised.value)
            if damage != "garbage":
                assert path.name in str(raised.value)


def test_a_damaged_file_does_not_get_folded(table: Warehouse) -> None:
    """Law: a checkpoint that meets damage fails with a sentence and changes nothing."""
    files_of(table, "delta")[0].unlink()
    before = internals(table).main("t")
    with freshview.connect(table.path) as wh:
        with pytest.raises(CorruptWarehouse) as raised:
            fold(wh)
        assert_a_sentence(raised.value)
        assert internals(wh).main("t") == before
        assert internals(wh).leased_paths("t") == []


def test_a_missing_delta_log_is_told(table: Warehouse) -> None:
    for entry in (internals(table).folder("t") / "_delta_log").glob("*"):
        entry.unlink()
    with freshview.connect(table.path) as wh:
        for way in (lambda: internals(wh).rows("t"), lambda: fold(wh)):
            with pytest.raises(CorruptWarehouse) as raised:
                way()
            assert_a_sentence(raised.value)


# -- full disks and closed folders -----------------------------------------------------------------------------


def full(*_: Any, **__: Any) -> Any:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_fails_the_statement_and_nothing_else(
    table: Warehouse, contents: Contents, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: no space left is a StorageUnavailable; the transaction leaves nothing, the next one works."""
    before, csn = contents(table, "t"), internals(table).newest_csn()
    with monkeypatch.context() as patch:
        patch.setattr(pq, "write_table", full)
        with pytest.raises(StorageUnavailable, match="No space left on device") as raised:
            upsert(table, 3, "c")
        assert_a_sentence(raised.value)
    assert (contents(table, "t"), internals(table).newest_csn()) == (before, csn)
    assert internals(table).leased_paths("t") == []
    upsert(table, 3, "c")


def test_a_full_disk_fails_the_checkpoint_and_nothing_else(
    table: Warehouse, contents: Contents, monkeypatch: pytest.MonkeyPatch
) -> None:
    upsert(table, 60, "c")
    before, main = contents(table, "t"), internals(table).main("t")
    for target, name in ((pq, "write_table"), (os, "fsync")):
        with monkeypatch.context() as patch:
            patch.setattr(target, name, full)
            with pytest.raises(StorageUnavailable, match="No space left on device") as raised:
                fold(table)
            assert_a_sentence(raised.value)
        assert (contents(table, "t"), internals(table).main("t")) == (before, main)
    assert fold(table) == "rewrite"
    assert contents(table, "t") == before


def test_upkeep_after_a_commit_does_not_make_it_look_failed(
    table: Warehouse, contents: Contents, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: a bulk load that committed is acknowledged, even if adopting its files fails afterwards."""
    table.sql("CREATE TABLE u (k INT)")
    tried = []

    def fails(*_: Any) -> Any:
        tried.append(1)
        raise StorageUnavailable("folder", "is full", "Make room.")

    monkeypatch.setattr(internals(table).storage.mains, "replace", fails)  # as main is adopted for the first time
    with table.transaction() as tx:
        tx.insert("u", [{"k": 1}])
    assert tried
    assert tx.csn == internals(table).newest_csn()
    assert contents(table, "u") == Counter({("1",): 1})


def test_a_blocked_folder_is_told(table: Warehouse, contents: Contents) -> None:
    """Law: a folder that cannot be made (here: a file is in its way) is told, and state is unchanged."""
    table.sql("CREATE TABLE u (k INT)")
    internals(table).folder("u").write_text("in the way")
    with pytest.raises(StorageUnavailable) as raised, table.transaction() as tx:
        tx.insert("u", [{"k": 1}])
    assert_a_sentence(raised.value)
    assert contents(table, "u") == Counter()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_is_told(table: Warehouse, contents: Contents) -> None:
    folder = internals(table).folder("t")
    before = contents(table, "t")
    folder.chmod(0o500)
    try:
        with pytest.raises(StorageUnavailable) as raised:
            upsert(table, 3, "c")
        assert_a_sentence(raised.value)
    finally:
        folder.chmod(0o755)
    assert contents(table, "t") == before


@pytest.mark.parametrize("name", ["a[b]", "a{b}", "50%20"])
def test_a_warehouse_folder_that_would_be_misread_is_refused(tmp_path: Path, name: str) -> None:
    """Law: names that delta-rs or Spark take for something else are refused in a sentence, not by a panic."""
    with pytest.raises(InvalidStatement, match="cannot stand in its path") as raised:
        freshview.connect(tmp_path / name)
    assert_a_sentence(raised.value)


@pytest.mark.parametrize("name", ["a b", "ü日本", "50%", "it's"])
def test_a_warehouse_folder_may_have_spaces_and_unicode(tmp_path: Path, contents: Contents, name: str) -> None:
    with freshview.connect(tmp_path / name) as wh:
        wh.sql("CREATE TABLE t (k INT, v STRING, PRIMARY KEY (k))")
        upsert(wh, 100, "a")
        fold(wh)
        upsert(wh, 2, "b")
        assert fold(wh) == "merge"
        assert sum(contents(wh, "t").values()) == 100
