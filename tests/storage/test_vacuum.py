"""Vacuum: removes what nobody needs, and nothing that anybody needs."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.effort import examples
from tests.internals import apply_in, internals

import freshview
from freshview import Warehouse
from freshview.catalog import tables as t
from freshview.errors import CorruptWarehouse, FreshviewError, SnapshotExpired, StorageUnavailable
from freshview.events import Event
from freshview.relation.schema import Column, Schema
from freshview.relation.types import parse_type
from freshview.storage import segments

Bag = Counter[tuple[Any, ...]]
Contents = Callable[..., Bag]
Files = Callable[[Warehouse], set[Path]]
NOW = timedelta(0)


def upsert(wh: Warehouse, *rows: dict[str, Any]) -> int:
    with wh.transaction() as tx:
        tx.upsert("t", list(rows))
    assert tx.csn is not None
    return tx.csn


def fold(wh: Warehouse, name: str = "t") -> str:
    return internals(wh).checkpoint(name).strategy


def expire_leases(wh: Warehouse) -> None:
    """Expire all leases and pins, as two minutes without a heartbeat would."""
    with internals(wh).writing_database() as c:
        c.execute(t.leases.update().values(expires_at=0))
        c.execute(t.snapshots.update().values(expires_at=0))


@pytest.fixture
def table(wh: Warehouse, monkeypatch: pytest.MonkeyPatch) -> Warehouse:
    """A keyed table whose segments are all files."""
    monkeypatch.setattr(segments, "INLINE_BYTES", 0)
    wh.sql("CREATE TABLE t (k INT, v STRING, PRIMARY KEY (k))")
    return wh


def rewritten(wh: Warehouse, value: str, n: int = 5) -> int:
    """All rows anew, folded by a rewrite; the CSN."""
    csn = upsert(wh, *({"k": k, "v": value} for k in range(n)))
    assert fold(wh) == "rewrite"
    return csn


def test_superseded_mains_and_folded_segments_go(table: Warehouse, contents: Contents, data_files: Files) -> None:
    """Law: without retention only the newest main remains, in catalog and folder."""
    for value in "abc":
        last = rewritten(table, value)
    before = contents(table, "t")
    assert len(data_files(table)) == 6  # three segments, three mains
    report = table.vacuum(NOW)
    assert report.rows == 5
    assert report.csn == last
    assert len(data_files(table)) == 1
    assert contents(table, "t") == before
    assert internals(table).segments("t") == []
    assert table.vacuum(NOW).rows == 0


def test_reading_below_the_horizon_has_expired(table: Warehouse, contents: Contents) -> None:
    """Law: what vacuum took is said to be gone; nothing wrong is read."""
    first = rewritten(table, "a")
    last = rewritten(table, "b")
    table.vacuum(NOW)
    with pytest.raises(SnapshotExpired, match=f"versions before CSN {last} have been vacuumed"):
        contents(table, "t", first)
    assert table.status().horizon == last


def test_retention_keeps_versions_and_their_files(table: Warehouse, contents: Contents, data_files: Files) -> None:
    """Law: within retention every CSN reads as before and no file goes (a DataFrame may still read it)."""
    csns = [rewritten(table, value) for value in "abc"]
    before = {csn: contents(table, "t", csn) for csn in csns}
    files = data_files(table)
    assert table.vacuum().rows == 0
    assert table.sql("VACUUM").rows == 0
    assert data_files(table) == files
    assert {csn: contents(table, "t", csn) for csn in csns} == before


def test_a_superseded_main_is_kept_for_the_retention_after_it_was_superseded(
    table: Warehouse, data_files: Files
) -> None:
    """Law: a returned DataFrame reads main's files; they go only when their successor is old enough."""
    rewritten(table, "a")
    main = {p for p in data_files(table) if p.parent.name.startswith("main")}
    day = 86_400 * 1_000_000
    with internals(table).writing_database() as c:  # all of that was two days ago
        for column, source in ((t.commits.c.committed_at, t.commits), (t.mains.c.created_at, t.mains)):
            c.execute(source.update().values({column.name: column - 2 * day}))
        c.execute(t.clock.update().values(committed_at=t.clock.c.committed_at - 2 * day))
    rewritten(table, "b")
    table.vacuum()
    assert main <= data_files(table)
    with internals(table).writing_database() as c:
        c.execute(t.mains.update().values(created_at=t.mains.c.created_at - 2 * day))
        c.execute(t.commits.update().values(committed_at=t.commits.c.committed_at - 2 * day))
    table.vacuum()
    assert not main & data_files(table)


def test_open_transactions_keep_their_snapshot(table: Warehouse, contents: Contents) -> None:
    """Law: what an open transaction can read is kept; when it ends it goes."""
    old = rewritten(table, "a")
    before = contents(table, "t")
    transaction = table.transaction()
    rewritten(table, "b")
    rewritten(table, "c")
    assert table.vacuum(NOW).csn == old
    found = internals(table).rows_in(transaction, "t")
    assert Counter(tuple(map(repr, r.values())) for r in found.to_pylist()) == before
    transaction.rollback()
    reached = table.vacuum(NOW).csn
    assert reached is not None
    assert reached > old


def test_a_transaction_of_a_dead_process_keeps_nothing_for_ever(table: Warehouse) -> None:
    """Law: a pin without a heartbeat expires, and its transaction cannot commit any more."""
    rewritten(table, "a")
    transaction = table.transaction()
    transaction.upsert("t", [{"k": 1, "v": "late"}])
    last = rewritten(table, "b")
    expire_leases(table)
    assert table.vacuum(NOW).csn == last
    with pytest.raises(FreshviewError, match="Run the transaction again"):
        transaction.commit()


def test_frontiers_of_views_keep_their_inputs(table: Warehouse, contents: Contents) -> None:
    """Law: every input at the frontier of a view is kept, and the segments after it."""
    csns = [rewritten(table, value) for value in "abcd"]
    with internals(table).writing_database() as c:
        c.execute(t.frontiers.insert().values(view_id=77, epoch=1, csn=csns[1], stmtsn=0))
        c.execute(t.inputs.insert().values(view_id=77, relation_id=1))
    before = {csn: contents(table, "t", csn) for csn in csns[1:]}
    assert table.vacuum(NOW).csn == csns[1]
    assert {csn: contents(table, "t", csn) for csn in csns[1:]} == before
    assert [s.csn for s in internals(table).segments("t", after=csns[1])] == csns[2:]
    for segment in internals(table).segments("t", after=csns[1]):
        internals(table).segment_rows(segment, "t")
    with pytest.raises(SnapshotExpired):
        contents(table, "t", csns[0])


def test_orphans_of_crashed_writers_go_when_their_lease_expired(table: Warehouse, data_files: Files) -> None:
    """Law: files without a catalog row are kept under a lease, and removed with it."""
    rewritten(table, "a")
    table.vacuum(NOW)
    kept = data_files(table)
    transaction = table.transaction()
    transaction.upsert("t", [{"k": 9, "v": "x"}])
    orphan = data_files(table) - kept
    assert len(orphan) == 1
    table.vacuum(NOW)
    assert orphan <= data_files(table)
    expire_leases(table)
    table.vacuum(NOW)
    assert data_files(table) == kept
    assert not next(iter(orphan)).parent.exists()


def test_a_writer_whose_lease_was_removed_fails_at_commit(table: Warehouse, contents: Contents) -> None:
    """Law: a commit whose files vacuum may have taken fails and leaves nothing."""
    rewritten(table, "a")
    before = contents(table, "t")
    transaction = table.transaction()
    transaction.upsert("t", [{"k": 9, "v": "x"}])
    with internals(table).writing_database() as c:
        c.execute(t.leases.update().values(expires_at=0))
    table.vacuum(NOW)
    with pytest.raises(StorageUnavailable, match="lease on written files expired"):
        transaction.commit()
    assert contents(table, "t") == before


def test_a_checkpointer_whose_lease_was_removed_fails(table: Warehouse, contents: Contents) -> None:
    """Law: a checkpoint whose files vacuum took is never shown; the next one works."""
    rewritten(table, "a")
    upsert(table, *({"k": k, "v": "b"} for k in range(5)))
    before, main = contents(table, "t"), internals(table).main("t")
    with freshview.connect(table.path) as other:

        def loses(event: Event) -> None:
            if event.name == "files.written" and "main" in event.details["folder"] and not removed:
                expire_leases(other)
                removed.append(other.vacuum(NOW).rows)

        removed: list[int] = []
        table.events.listen(loses)
        with pytest.raises(FreshviewError):
            fold(table)
        assert removed[0] >= 1
        assert internals(table).main("t") == main
        assert contents(other, "t") == before
        assert fold(other) == "rewrite"
        assert contents(other, "t") == before


def test_rolled_back_files_are_gone_at_once(table: Warehouse, data_files: Files) -> None:
    transaction = table.transaction()
    transaction.upsert("t", [{"k": 9, "v": "x"}])
    assert data_files(table)
    transaction.rollback()
    assert not data_files(table)


def test_dropped_tables_go_after_retention(table: Warehouse) -> None:
    """Law: a dropped table's folder stays within retention and goes after, with its catalog rows."""
    rewritten(table, "a")
    folder = internals(table).folder("t")
    table.sql("DROP TABLE t")
    table.vacuum()
    assert folder.is_dir()
    table.vacuum(NOW)
    assert not folder.exists()
    assert internals(table).catalog.dropped() == []
    for source in (t.schemas, t.segments, t.mains, t.relations):
        with internals(table).reading_database() as c:
            assert c.execute(source.select()).all() == []


def test_a_transaction_older_than_the_drop_still_reads(table: Warehouse, contents: Contents) -> None:
    """Law: a dropped table is kept for the snapshots that see it."""
    rewritten(table, "a")
    before = contents(table, "t")
    transaction = table.transaction()
    table.sql("DROP TABLE t")
    table.vacuum(NOW)
    found = internals(table).rows_in(transaction, "t")
    assert Counter(tuple(map(repr, r.values())) for r in found.to_pylist()) == before
    transaction.rollback()


def test_a_version_that_waits_to_be_adopted_is_kept(table: Warehouse, contents: Contents) -> None:
    """Law 11.2: vacuum after a crash between Delta commit and catalog commit removes no file of either."""
    rewritten(table, "a")
    upsert(table, *({"k": k, "v": "b"} for k in range(5)))
    before = contents(table, "t")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(internals(table).catalog, "record_main", lambda *_: False)
        fold(table)
    table.vacuum(NOW)
    assert contents(table, "t") == before
    fold(table)
    table.vacuum(NOW)
    assert contents(table, "t") == before


def test_a_damaged_table_does_not_keep_others_from_being_vacuumed(table: Warehouse, data_files: Files) -> None:
    """Law: the rest is cleaned, then the damage is told by name."""
    for value in "ab":
        rewritten(table, value)
    table.sql("CREATE TABLE u (k INT, v STRING, PRIMARY KEY (k))")
    with table.transaction() as tx:
        tx.insert("u", [{"k": 1, "v": "x"}])
    for entry in (internals(table).folder("u") / "_delta_log").glob("*.json"):
        entry.write_text("nonsense")
    with freshview.connect(table.path) as other, pytest.raises(CorruptWarehouse, match="00000002"):
        other.vacuum(NOW)
    assert len([p for p in data_files(table) if "00000001" in p.parts]) == 1


def test_vacuum_races_writers_and_checkpoints_without_harm(table: Warehouse, contents: Contents) -> None:
    """Law: no file that a CSN at or above the horizon needs is removed, whoever runs at the same time."""
    failures: list[BaseException] = []
    done = threading.Event()

    def repeatedly(step: Callable[[Warehouse], object]) -> None:
        try:
            with freshview.connect(table.path) as other:
                while not done.is_set():
                    step(other)
        except BaseException as error:
            failures.append(error)

    def read_all(other: Warehouse) -> None:
        pin = internals(other).catalog.begin()
        try:
            rows = internals(other).rows("t", pin.csn)
            assert len(set(rows.column("v").to_pylist())) <= 1, "a transaction was seen in part"
        finally:
            internals(other).catalog.release(pin)

    steps: list[Callable[[Warehouse], object]] = [lambda w: w.vacuum(NOW), lambda w: w.vacuum(NOW), fold, read_all]
    threads = [threading.Thread(target=repeatedly, args=(s,)) for s in steps]
    for thread in threads:
        thread.start()
    models: dict[int, Bag] = {}
    pins = []
    try:
        for i in range(30):
            csn = upsert(table, *({"k": k, "v": str(i)} for k in range(4)))
            models[csn] = Counter({(repr(k), repr(str(i))): 1 for k in range(4)})
            if i % 10 == 5:
                pins.append(internals(table).catalog.begin())
            if i % 7 == 3:  # a bulk load, adopted at once
                with table.transaction() as tx:
                    apply_in(tx, "t", None, pa.table({"k": pa.array([], pa.int32()), "v": []}))
        done.set()
        for thread in threads:
            thread.join()
        assert failures == []
        horizon = internals(table).horizon()
        readable = [csn for csn in models if csn >= horizon]
        assert len(readable) >= 25  # the first pin was taken at the sixth commit
        for csn in readable:
            assert contents(table, "t", csn) == models[csn]
    finally:
        done.set()
        for pin in pins:
            internals(table).catalog.release(pin)


def test_vacuum_races_bulk_loads_without_harm(table: Warehouse, contents: Contents) -> None:
    """Law: files of a load are kept from the moment they are written to the moment main holds them."""
    table.sql("CREATE TABLE b (k INT)")
    failures: list[BaseException] = []
    done = threading.Event()

    def clean() -> None:
        try:
            with freshview.connect(table.path) as other:
                while not done.is_set():
                    other.vacuum(NOW)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=clean)
    thread.start()
    loads = examples(12)
    for i in range(loads):
        with table.transaction() as tx:
            tx.insert("b", [{"k": i}, {"k": i}])
    done.set()
    thread.join()
    assert failures == []
    assert contents(table, "b") == Counter({(repr(i),): 2 for i in range(loads)})


def test_a_table_that_appears_while_vacuum_runs_is_kept(wh: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """Law: what was claimed when the folders were listed is not an orphan, even if its lease is gone since."""
    monkeypatch.setattr(segments, "INLINE_BYTES", 0)
    done: list[int] = []

    def create(event: Event) -> None:
        if event.name == "vacuum.relation" and not done:
            done.append(1)
            assert pending.commit()

    with wh.transaction() as first:  # a table whose folder comes before
        first.create("early", Schema((Column("k", parse_type("int")),), ()), {})
        first.insert("early", pa.table({"k": pa.array(range(400), pa.int32())}))
    pending = wh.transaction()
    pending.create("late", Schema((Column("k", parse_type("int")),), ()), {})
    pending.insert("late", pa.table({"k": pa.array(range(400), pa.int32())}))
    assert list(wh.path.rglob("*.parquet"))
    wh.events.listen(create)
    wh.vacuum(timedelta(0))
    assert done
    assert internals(wh).rows("late").num_rows == 400
