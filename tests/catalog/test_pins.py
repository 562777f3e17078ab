"""Pins and leases: they live by a heartbeat on the catalog's clock, and without them a commit fails."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest
import sqlalchemy as sa

from freshview.catalog import tables as t
from freshview.catalog.engine import Database, sqlite_url
from freshview.catalog.migrations import migrate
from freshview.catalog.writer import LIFETIME, Catalog
from freshview.errors import NotFound, SnapshotExpired, StorageUnavailable
from freshview.events import Events
from freshview.relation.schema import Column, Schema
from freshview.relation.types import parse_type
from freshview.storage import segments
from freshview.storage.store import Storage
from freshview.transactions.transaction import Transaction

SCHEMA = Schema((Column("k", parse_type("INT")), Column("v", parse_type("INT"))), ("k",))
HOUR = 3_600_000_000


@dataclass
class World:
    """A catalog on a clock that the test turns."""

    folder: Path
    now: int = 1_000_000
    catalogs: list[Catalog] = field(default_factory=list)

    def catalog(self) -> Catalog:
        database = Database(sqlite_url(self.folder / "catalog.db"), clock=lambda: self.now)
        migrate(database)
        self.catalogs.append(Catalog(database))
        return self.catalogs[-1]

    def transaction(self, catalog: Catalog) -> Transaction:
        return Transaction(catalog, Storage(self.folder), Events())


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    for catalog in world.catalogs:
        catalog.database.close()


def _pins(catalog: Catalog) -> int:
    with catalog.database.read() as c:
        return int(c.execute(sa.select(sa.func.count()).select_from(t.snapshots)).scalar_one())


def _leases(catalog: Catalog) -> int:
    with catalog.database.read() as c:
        return int(c.execute(sa.select(sa.func.count()).select_from(t.leases)).scalar_one())


def test_a_pin_without_heartbeat_expires_and_its_commit_fails(world: World) -> None:
    ours, theirs = world.catalog(), world.catalog()
    ours.create("t", "table", SCHEMA)
    tx = world.transaction(ours)
    tx.upsert_rows("t", [{"k": 1}])
    world.now += LIFETIME + 1
    theirs.expire(HOUR)
    assert _pins(ours) == 0
    before = theirs.snapshot()
    with pytest.raises(SnapshotExpired, match=f"transaction {tx.txsn}"):
        tx.commit()
    assert theirs.snapshot() == before
    assert not tx.is_open


def test_a_heartbeat_prolongs_pins_and_leases_of_its_process_only(world: World) -> None:
    ours, theirs = world.catalog(), world.catalog()
    relation, _ = ours.create("t", "table", SCHEMA)
    kept, lost = world.transaction(ours), world.transaction(theirs)
    kept.upsert_rows("t", [{"k": 1}])
    kept.lease_folder(relation, "delta")
    for _ in range(3):
        world.now += LIFETIME - 1
        ours.heartbeat()
        theirs.expire(HOUR)
    assert _pins(ours) == 1
    assert _leases(ours) == 1
    assert kept.commit() == 2
    lost.upsert_rows("t", [{"k": 2}])
    with pytest.raises(SnapshotExpired):
        lost.commit()


def test_a_pin_that_expired_but_was_not_taken_is_still_good(world: World) -> None:
    """Expiry alone removes nothing: only who removes the pin may remove what it protects."""
    catalog = world.catalog()
    catalog.create("t", "table", SCHEMA)
    tx = world.transaction(catalog)
    tx.upsert_rows("t", [{"k": 1}])
    world.now += 10 * LIFETIME
    assert tx.commit() == 2


def test_a_commit_whose_lease_is_gone_fails_and_removes_its_files_no_more(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "INLINE_BYTES", 0)
    catalog = world.catalog()
    catalog.create("t", "table", SCHEMA)
    tx = world.transaction(catalog)
    tx.upsert_rows("t", pa.table({"k": pa.array(range(200), pa.int32())}))
    assert _leases(catalog) == 1
    with catalog.database.write() as c:
        c.execute(t.leases.delete())
    with pytest.raises(StorageUnavailable, match="lease"):
        tx.commit()
    assert catalog.snapshot() == 1
    assert list(world.folder.rglob("*.parquet"))  # whoever took the lease removes the files


def test_rollback_gives_up_pins_leases_and_files(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "INLINE_BYTES", 0)
    catalog = world.catalog()
    catalog.create("t", "table", SCHEMA)
    tx = world.transaction(catalog)
    tx.upsert_rows("t", pa.table({"k": pa.array(range(200), pa.int32())}))
    assert list(world.folder.rglob("*.parquet"))
    tx.rollback()
    tx.rollback()
    assert (_pins(catalog), _leases(catalog), list(world.folder.rglob("*.parquet"))) == (0, 0, [])
    assert catalog.snapshot() == 1


def test_pins_hold_the_horizon(world: World) -> None:
    catalog = world.catalog()
    catalog.create("t", "table", SCHEMA)
    pin = catalog.begin()
    for k in range(3):
        tx = world.transaction(catalog)
        tx.upsert_rows("t", [{"k": k}])
        tx.commit()
    assert catalog.expire(0)[0] == pin.csn == 1
    catalog.release(pin)
    assert catalog.expire(0)[0] == 4
    relation = catalog.relation("t")
    with pytest.raises(SnapshotExpired, match="before CSN 4"):
        catalog.state(relation, 3)


def test_frontiers_of_views_hold_the_horizon(world: World) -> None:
    catalog = world.catalog()
    relation, _ = catalog.create("t", "table", SCHEMA)
    with catalog.database.write() as c:
        c.execute(t.frontiers.insert().values(view_id=99, epoch=1, csn=1, stmtsn=0))
    tx = world.transaction(catalog)
    tx.upsert_rows("t", [{"k": 1}])
    tx.commit()
    assert catalog.expire(0)[0] == 1
    assert catalog.state(relation, 1).segments == ()


def test_a_named_lease_is_exclusive_until_it_expires(world: World) -> None:
    ours, theirs = world.catalog(), world.catalog()
    assert ours.lease(1, "", "checkpoint-1") is not None
    assert theirs.lease(1, "", "checkpoint-1") is None
    world.now += LIFETIME + 1
    assert theirs.lease(1, "", "checkpoint-1") is not None
    assert ours.lease(1, "", "checkpoint-1") is None


def test_leaving_gives_up_all_of_ones_own(world: World) -> None:
    ours, theirs = world.catalog(), world.catalog()
    ours.begin()
    theirs.begin()
    ours.lease(1, "x")
    ours.leave()
    assert (_pins(ours), _leases(ours)) == (1, 0)


def test_commit_times_increase_even_if_the_clock_goes_back(world: World) -> None:
    catalog = world.catalog()
    catalog.create("t", "table", SCHEMA)
    world.now = 5
    for k in range(3):
        tx = world.transaction(catalog)
        tx.upsert_rows("t", [{"k": k}])
        tx.commit()
    times = [c.committed_at for c in catalog.commits()]
    assert times == sorted(set(times))


def test_the_csn_at_a_time_is_the_last_one_committed_by_then(world: World) -> None:
    catalog = world.catalog()
    world.now = 100
    catalog.create("a", "table", SCHEMA)
    world.now = 200
    catalog.create("b", "table", SCHEMA)
    assert [catalog.csn_at(m) for m in (100, 199, 200, 10**18)] == [1, 1, 2, 2]
    for early in (-5, 99):
        with pytest.raises(NotFound, match=r"time 19\d\d-.* is before the oldest commit .* at 1970-"):
            catalog.csn_at(early)


@pytest.mark.parametrize("csn", [-1, 5, 10**30])
def test_snapshots_that_never_were_cannot_be_pinned(world: World, csn: int) -> None:
    catalog = world.catalog()
    with pytest.raises(NotFound, match=str(csn)):
        catalog.begin(at=csn)
    assert _pins(catalog) == 0


def test_the_pins_of_queries_leave_the_log_to_the_heartbeat(world: World) -> None:
    """Law: no query writes the database file; the log is folded by heartbeats, and does not grow for ever."""
    catalog = world.catalog()
    catalog.create("t", "table", SCHEMA)
    catalog.heartbeat()
    file, log = world.folder / "catalog.db", world.folder / "catalog.db-wal"
    before, sizes = file.read_bytes(), []
    for _ in range(3):
        for _ in range(250):
            catalog.release(catalog.begin("query"))
        assert file.read_bytes() == before
        sizes.append(log.stat().st_size)
        catalog.heartbeat()
        assert file.read_bytes() != before
        before = file.read_bytes()
    assert sizes[0] > 1000 * 4096, "SQLite would have folded the log by itself"
    assert max(sizes[1:]) <= sizes[0] * 1.1
