"""What a commit stores, shows and counts, without Spark."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.catalog.helpers import contents, seen_by
from tests.forks import run_in_fork
from tests.internals import internals

import freshview
from freshview import Warehouse
from freshview.catalog import tables as t
from freshview.catalog.commits import CommitRequest, OpenCommit
from freshview.catalog.records import Task
from freshview.catalog.views import ViewCatalog
from freshview.catalog.writer import Catalog
from freshview.errors import (
    CatalogUnavailable,
    DuplicateKey,
    InvalidStatement,
    NotFound,
    NotNullViolation,
    TransactionClosed,
    TypeMismatch,
    WriteConflict,
)
from freshview.storage import segments
from freshview.storage.segments import INLINE_BYTES

Open = Callable[[], Warehouse]


@pytest.fixture
def db(open_warehouse: Open) -> Warehouse:
    """A warehouse on either catalog with a keyed table and a bag."""
    wh = open_warehouse()
    wh.sql("CREATE TABLE t (k INT, v STRING NOT NULL, n INT, PRIMARY KEY (k))")
    wh.sql("CREATE TABLE bag (a DOUBLE)")
    with wh.transaction() as tx:
        tx.insert("t", [{"k": 1, "v": "one"}, {"k": 2, "v": "two"}])
        tx.insert("bag", [{"a": 0.0}, {"a": -0.0}, {"a": float("nan")}])
    return wh


def _unreachable(*_: Any) -> Any:
    raise CatalogUnavailable("catalog", "connection lost", "Try again.")


def _keys(rows: list[dict[str, Any]]) -> list[int]:
    return [r["k"] for r in rows]


# -- statements ------------------------------------------------------------------------------------


@pytest.mark.parametrize("checkpointed", [False, True])
def test_a_blind_upsert_and_then_a_delete_takes_the_row_away(db: Warehouse, checkpointed: bool) -> None:
    """Law 11.1, in one transaction and over two."""
    if checkpointed:
        db.sql("CHECKPOINT t")
    with db.transaction() as tx:
        tx.upsert("t", [{"k": 1, "v": "new"}, {"k": 9, "v": "nine"}])
        tx.delete("t", [1, 9])
        assert _keys(seen_by(db, tx, "t")) == [2]
    with db.transaction() as tx:
        tx.upsert("t", [{"k": 2, "v": "new"}])
    with db.transaction() as tx:
        tx.delete("t", [2])
    assert contents(db, "t") == []
    db.sql("CHECKPOINT t")
    assert contents(db, "t") == []


def test_two_statements_on_one_key_apply_in_order(db: Warehouse) -> None:
    with db.transaction() as tx:
        tx.delete("t", [1])
        tx.insert("t", [{"k": 1, "v": "again"}])
        tx.sql("UPDATE t SET n = 7 WHERE k = 1")
        with pytest.raises(DuplicateKey, match=r"k=1"):
            tx.insert("t", [{"k": 1, "v": "twice"}])
        tx.upsert("t", [{"k": 1, "v": "last", "n": 8}])
    assert contents(db, "t")[0] == {"k": 1, "v": "last", "n": 8}


def test_a_failed_statement_leaves_the_earlier_ones(db: Warehouse) -> None:
    with db.transaction() as tx:
        tx.insert("t", [{"k": 3, "v": "three"}])
        for data, error in (
            ([{"k": 4, "v": None}], NotNullViolation),
            ([{"k": None, "v": "x"}], NotNullViolation),
            ([{"k": 4, "v": "x"}, {"k": 4, "v": "y"}], DuplicateKey),
            ([{"k": 4, "v": 5}], TypeMismatch),
            ([{"k": 4, "v": "x", "zzz": 1}], NotFound),
        ):
            with pytest.raises(error):
                tx.insert("t", data)
            with pytest.raises(error):
                tx.upsert("t", data)
        with pytest.raises(NotNullViolation):
            tx.delete("t", [None])
    assert _keys(contents(db, "t")) == [1, 2, 3]


def test_keys_are_deleted_by_value_or_row_in_any_container(db: Warehouse) -> None:
    for keys in ([1], (1,), {1}, range(1, 2), [{"k": 1}], pa.table({"K": [1]})):
        tx = db.transaction()
        tx.delete("t", keys)
        assert _keys(seen_by(db, tx, "t")) == [2]
        tx.rollback()
    with db.transaction() as tx:
        tx.delete("t", [1, 1, 77])
    assert _keys(contents(db, "t")) == [2]


def test_bags_have_no_keys_to_write_by(db: Warehouse) -> None:
    with db.transaction() as tx:
        for write in (tx.upsert, tx.delete):
            with pytest.raises(InvalidStatement, match="no primary key"):
                write("bag", [{"a": 1.0}])


def test_literal_statements_run_on_key_lookups(db: Warehouse) -> None:
    assert db.sql("INSERT INTO t VALUES (3, 'it', NULL), (4, 'x', -1)").rows == 2
    assert db.sql("UPDATE t SET v = 'y', n = 5 WHERE k IN (3, 4, 99)").rows == 2
    assert db.sql("DELETE FROM t WHERE k = 99").rows == 0
    assert db.sql("DELETE FROM t WHERE 1 = k").rows == 1
    with pytest.raises(DuplicateKey, match="k=3"):
        db.sql("UPDATE t SET k = 3 WHERE k = 4")
    with pytest.raises(DuplicateKey, match="occurs twice"):
        db.sql("UPDATE t SET k = 9 WHERE k IN (3, 4)")
    assert db.sql("UPDATE t SET k = 9 WHERE k = 4").rows == 1
    assert contents(db, "t") == [
        {"k": 2, "v": "two", "n": None},
        {"k": 3, "v": "y", "n": 5},
        {"k": 9, "v": "y", "n": 5},
    ]


# -- conflicts -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mine", "theirs", "conflict"),
    [
        ("UPDATE t SET v = 'x' WHERE k = 1", "UPDATE t SET v = 'y' WHERE k = 1", True),
        ("UPDATE t SET v = 'x' WHERE k = 1", "UPDATE t SET v = 'y' WHERE k = 2", False),
        ("UPDATE t SET k = 5 WHERE k = 1", "UPDATE t SET v = 'y' WHERE k = 1", True),
        ("UPDATE t SET v = 'y' WHERE k = 1", "UPDATE t SET k = 5 WHERE k = 1", True),
        ("UPDATE t SET k = 5 WHERE k = 1", "INSERT INTO t VALUES (5, 'y', 0)", True),
        ("UPDATE t SET k = 5 WHERE k = 1", "UPDATE t SET k = 5 WHERE k = 2", True),
        ("UPDATE t SET k = 5 WHERE k = 1", "UPDATE t SET k = 6 WHERE k = 2", False),
        ("DELETE FROM t WHERE k = 1", "DELETE FROM t WHERE k = 1", True),
        ("DELETE FROM t WHERE k = 1", "UPDATE t SET k = 1 WHERE k = 2", None),
        ("INSERT INTO t VALUES (5, 'x', 0)", "INSERT INTO t VALUES (6, 'x', 0)", False),
    ],
)
def test_first_committer_wins_on_old_and_new_keys(db: Warehouse, mine: str, theirs: str, conflict: bool | None) -> None:
    """Two writers conflict in either order; None: the statement itself is refused, since its snapshot has the key."""
    for first, second in ((mine, theirs), (theirs, mine)):
        before = contents(db, "t")
        one, two = db.transaction(), db.transaction()
        if conflict is None:
            with pytest.raises(DuplicateKey):
                two.sql(theirs)
            one.rollback()
            two.rollback()
            continue
        one.sql(first)
        two.sql(second)
        one.commit()
        if conflict:
            with pytest.raises(WriteConflict, match="key"):
                two.commit()
        else:
            two.commit()
        with db.transaction() as tx:  # back to where we were
            tx.delete("t", [1, 2, 5, 6])
            tx.insert("t", before)


def test_conflicts_are_found_in_large_segments_too(db: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """On either side the write set may lie in a Parquet file."""
    monkeypatch.setattr(segments, "INLINE_BYTES", 4_000)
    big = pa.table({"k": pa.array(range(10_000), pa.int32()), "v": pa.array(["x"] * 10_000)})
    small = [{"k": 9_999, "v": "y"}]
    for mine, theirs in ((big, small), (small, big)):
        one, two = db.transaction(), db.transaction()
        one.upsert("t", mine)
        two.upsert("t", theirs)
        one.commit()
        assert any(s.files for s in _segments(db, one.csn)) == (mine is big)
        with pytest.raises(WriteConflict, match="9999"):
            two.commit()


def test_conflicts_that_come_while_a_commit_is_prepared_are_found_under_the_lock(db: Warehouse) -> None:
    one, two = db.transaction(), db.transaction()
    one.upsert("t", [{"k": 1, "v": "mine"}])
    two.upsert("t", [{"k": 1, "v": "theirs"}])
    waiting = [two]

    def slip_in(event: Any) -> None:
        if event.name == "commit.prepared" and waiting:
            waiting.pop().commit()

    db.events.listen(slip_in)
    with pytest.raises(WriteConflict):
        one.commit()
    assert contents(db, "t")[0]["v"] == "theirs"


def test_many_tables_commit_together_or_not_at_all(db: Warehouse) -> None:
    one, two = db.transaction(), db.transaction()
    one.insert("bag", [{"a": 5.0}])
    one.upsert("t", [{"k": 1, "v": "mine"}])
    two.upsert("t", [{"k": 1, "v": "theirs"}])
    two.commit()
    with pytest.raises(WriteConflict):
        one.commit()
    assert {"a": 5.0} not in contents(db, "bag")
    with db.transaction() as tx:
        tx.insert("bag", [{"a": 5.0}])
        tx.delete("t", [1])
    assert [c.relation_id for c in internals(db).commits() if c.csn == tx.csn] == [1, 2]


def test_an_exception_rolls_back_and_a_closed_transaction_stays_closed(db: Warehouse) -> None:
    before = (db.status(), contents(db, "t"))
    tx = db.transaction()

    def work() -> None:
        with tx:
            tx.delete("t", [1])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    for action in (tx.commit, lambda: tx.insert("t", []), lambda: tx.sql("DELETE FROM t WHERE k = 1")):
        with pytest.raises(TransactionClosed, match="rolled back"):
            action()
    tx.rollback()
    with db.transaction() as done:
        pass
    with pytest.raises(TransactionClosed, match="committed"):
        done.commit()
    assert (db.status(), contents(db, "t")) == before


def test_definitions_inside_a_transaction_are_refused(db: Warehouse) -> None:
    tx = db.transaction()
    for text in ("CREATE TABLE u (a INT)", "DROP TABLE t", "ALTER TABLE t ADD COLUMN z INT", "CHECKPOINT t", "VACUUM"):
        with pytest.raises(InvalidStatement, match="inside a transaction"):
            tx.sql(text)
    tx.rollback()
    assert [x.name for x in db.status().tables] == ["bag", "t"]


def test_transactions_are_numbered_and_know_their_commit(db: Warehouse) -> None:
    one, two = db.transaction(), db.transaction()
    assert one.txsn < two.txsn
    assert one.csn is None
    two.insert("bag", [{"a": 1.0}])
    one.insert("bag", [{"a": 2.0}])
    assert two.commit() + 1 == one.commit() == one.csn


# -- segments --------------------------------------------------------------------------------------


def _segments(wh: Warehouse, csn: int | None) -> list[Any]:
    assert csn is not None
    return internals(wh).segments("t", "bag", after=csn - 1, upto=csn)


def test_small_statements_stay_inline_and_large_ones_become_parquet(db: Warehouse) -> None:
    with db.transaction() as tx:
        tx.upsert("t", [{"k": 1, "v": "small"}])
        tx.delete("t", [2])
    (small,) = _segments(db, tx.csn)
    assert small.is_inline
    assert small.rows == 2
    text = "x" * 1000
    with db.transaction() as tx:
        tx.upsert("t", [{"k": 1, "v": "before"}])
        tx.insert("t", [{"k": 10 + i, "v": text} for i in range(INLINE_BYTES // 1000 + 50)])
        tx.upsert("t", [{"k": 10, "v": "after"}])
    parts = _segments(db, tx.csn)
    assert [bool(s.files) for s in parts] == [False, True, False]
    assert {r["k"]: r["v"] for r in contents(db, "t") if r["k"] in (1, 10, 11)} == {1: "before", 10: "after", 11: text}


def test_many_small_statements_together_become_parquet_too(db: Warehouse) -> None:
    """Blobs in the catalog stay small, whatever a transaction is made of."""
    text = "x" * 1000
    with db.transaction() as tx:
        for i in range(0, 1500, 300):
            tx.insert("t", [{"k": 10 + i + j, "v": text} for j in range(300)])
        tx.delete("t", [10])
        tx.upsert("t", [{"k": 11, "v": "last"}])
        seen = seen_by(db, tx, "t")
    assert all(not s.is_inline for s in _segments(db, tx.csn))
    assert contents(db, "t") == seen
    assert len(seen) == 2 + 1500 - 1


def test_large_values_come_back_exactly(db: Warehouse) -> None:
    values = [0.0, -0.0, float("inf"), float("nan"), None] * 40_000
    with db.transaction() as tx:
        tx.insert("bag", pa.table({"a": pa.array(values, pa.float64())}))
    (segment,) = _segments(db, tx.csn)
    assert segment.files
    rows = internals(db).segment_rows(segment, "bag").column("a")
    assert [repr(v) for v in rows.to_pylist()] == [repr(v) for v in values]


def test_files_that_were_not_committed_are_gone_at_once(db: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "INLINE_BYTES", 0)
    big = pa.table({"k": pa.array(range(10, 200), pa.int32()), "v": pa.array(["x"] * 190)})
    tx = db.transaction()
    tx.insert("t", big)
    assert list(db.path.rglob("*.parquet"))
    tx.rollback()
    assert not list(db.path.rglob("*.parquet"))


def test_a_commit_whose_answer_was_lost_is_a_commit(db: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server committed, the connection broke: nothing is run twice and no file is removed."""
    real = Catalog.committing

    @contextmanager
    def commit_and_break(self: Catalog, request: CommitRequest) -> Iterator[OpenCommit]:
        with real(self, request) as commit:
            yield commit
        raise CatalogUnavailable("catalog", "connection lost", "Try again.")

    monkeypatch.setattr(segments, "INLINE_BYTES", 0)
    big = pa.table({"k": pa.array(range(10, 100), pa.int32()), "v": pa.array(["x"] * 90)})
    tx = db.transaction()
    tx.insert("t", big)
    monkeypatch.setattr(Catalog, "committing", commit_and_break)
    assert tx.commit() == tx.csn == db.status().csn
    assert list(db.path.rglob("*.parquet"))
    assert len(contents(db, "t")) == 2 + 90


def test_a_commit_that_never_reached_the_server_leaves_nothing(db: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "INLINE_BYTES", 0)
    before = (db.status(), contents(db, "t"))
    tx = db.transaction()
    tx.insert("t", pa.table({"k": pa.array(range(10, 100), pa.int32()), "v": pa.array(["x"] * 90)}))
    assert list(db.path.rglob("*.parquet"))
    monkeypatch.setattr(Catalog, "committing", _unreachable)
    with pytest.raises(CatalogUnavailable, match="connection lost"):
        tx.commit()
    assert (db.status(), contents(db, "t")) == before
    assert not list(db.path.rglob("*.parquet"))


def test_rolling_back_without_a_catalog_keeps_the_first_error(db: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    def work() -> None:
        with db.transaction() as tx:
            tx.insert("bag", [{"a": 1.0}])
            monkeypatch.setattr(Catalog, "release", _unreachable)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    assert not [r for r in contents(db, "bag") if r["a"] == 1.0]


# -- versions --------------------------------------------------------------------------------------


def test_versions_outside_the_history_are_not_found(db: Warehouse) -> None:
    last = db.status().csn
    with pytest.raises(NotFound, match=f"last commit is CSN {last}"):
        internals(db).state("t", last + 1)
    with pytest.raises(NotFound, match="created at CSN 1"):
        internals(db).state("t", 0)
    with pytest.raises(NotFound, match="CSN"):
        db.sql("SELECT * FROM t", as_of=10**30)
    with pytest.raises(NotFound, match="t"):
        db.sql("SELECT * FROM t", as_of=datetime(2000, 1, 1, tzinfo=UTC))


def test_readers_at_old_and_new_versions_do_not_disturb_each_other(db: Warehouse) -> None:
    """The cache of folded segments answers for the version asked for, whatever was asked before."""
    versions = {db.status().csn: contents(db, "t")}
    for i in range(5):
        with db.transaction() as tx:
            tx.upsert("t", [{"k": 1, "v": str(i)}, {"k": 10 + i, "v": "x"}])
        assert tx.csn is not None
        versions[tx.csn] = contents(db, "t")
        if i == 2:
            db.sql("CHECKPOINT t")
    order = [*versions, *reversed(versions), *list(versions)[::2], *list(versions)[1::2]]
    for csn in order:
        assert contents(db, "t", csn) == versions[csn]


# -- tasks -----------------------------------------------------------------------------------------


def test_tasks_are_the_commits_beyond_a_frontier(db: Warehouse) -> None:
    """A view's tasks are commits to the tables it reads, also a commit of which it has seen some statements only."""
    with internals(db).writing_database() as c:
        c.execute(t.frontiers.insert().values(view_id=70, epoch=1, csn=db.status().csn, stmtsn=0))
        c.execute(t.frontiers.insert().values(view_id=71, epoch=1, csn=0, stmtsn=0))
        c.execute(t.inputs.insert(), [{"view_id": 70, "relation_id": 1}, {"view_id": 71, "relation_id": 2}])
    views = ViewCatalog(internals(db).catalog)
    assert [k for k in views.tasks() if k.view_id == 70] == []
    with db.transaction() as one:
        one.upsert("t", [{"k": 1, "v": "x"}])
    with db.transaction() as two:
        two.insert("bag", [{"a": 1.0}])
    with db.transaction() as both:
        both.insert("bag", [{"a": 1.0}])
        both.delete("t", [1])
    assert one.csn is not None
    assert both.csn is not None
    times = {c.csn: c.committed_at for c in internals(db).commits()}
    mine = [k for k in views.tasks() if k.view_id == 70]
    assert mine == [
        Task(70, one.txsn, one.csn, 0, times[one.csn], (1,), 1),
        Task(70, both.txsn, both.csn, 0, times[both.csn], (1,), 1),
    ]
    assert [k.csn for k in views.tasks() if k.view_id == 71 and k.csn > 3] == [two.csn, both.csn]
    with internals(db).writing_database() as c:
        c.execute(t.frontiers.update().where(t.frontiers.c.view_id == 70).values(csn=both.csn, stmtsn=1))
    mine = [k for k in views.tasks() if k.view_id == 70]
    assert mine == [Task(70, both.txsn, both.csn, 1, times[both.csn], (1,), 1)]


# -- no Spark --------------------------------------------------------------------------------------


def _use_the_catalog(folder: Path) -> None:
    wh = freshview.connect(folder)
    wh.sql("CREATE TABLE t (k INT, v STRING, PRIMARY KEY (k))")
    with wh.transaction() as tx:
        tx.insert("t", [{"k": k, "v": "x"} for k in range(100)])
        tx.upsert("t", [{"k": 1, "v": "y"}])
        tx.delete("t", [2])
    wh.sql("INSERT INTO t VALUES (200, 'z')")
    wh.sql("UPDATE t SET v = 'w' WHERE k IN (3, 4)")
    wh.sql("DELETE FROM t WHERE k = 5")
    wh.sql("CHECKPOINT t")
    wh.sql("UPDATE t SET v = 'w' WHERE k IN (6, 7)")
    wh.sql("ALTER TABLE t ADD COLUMN n INT")
    wh.vacuum()
    assert str(wh.status())
    wh.close()
    loaded = {m.split(".")[0] for m in sys.modules} & {"pyspark", "py4j", "psycopg"}
    assert not loaded, loaded


def test_what_needs_only_the_catalog_loads_no_spark(tmp_path: Path) -> None:
    run_in_fork(_use_the_catalog, tmp_path / "w")
