"""Rows that several jobs look up are read once while the jobs run together, and are right for each of them."""

from __future__ import annotations

import threading
from typing import Any

import pyarrow as pa
import pytest
from tests.internals import internals

from freshview import Warehouse
from freshview.catalog.records import RelationState
from freshview.relation.conditions import Among, Compared
from freshview.relation.schema import Column, Schema
from freshview.relation.types import parse_type
from freshview.storage.sharing import SharedRows


@pytest.fixture
def asked(wh: Warehouse, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A table t with 100 rows in main, which is never kept in memory; the queries that are put to its files."""
    wh.sql("CREATE TABLE t (k INT, a STRING, b INT, c DATE, PRIMARY KEY (k))")
    with wh.transaction() as tx:
        tx.insert("t", [{"k": k, "a": f"a{k}", "b": k % 10} for k in range(100)])
    wh.sql("CHECKPOINT t")
    internals(wh).keep_in_memory(0)
    queries: list[str] = []
    query = internals(wh).storage.mains.query

    def counted(relation_id: int, version: int, sql: str) -> pa.Table:
        queries.append(sql)
        return query(relation_id, version, sql)

    monkeypatch.setattr(internals(wh).storage.mains, "query", counted)
    return queries


def near(wh: Warehouse, state: RelationState, values: list[int], *columns: str, limit: int = 50) -> list[Any] | None:
    condition = ("b", Among(pa.array(values, pa.int32())))
    rows = internals(wh).reader.matching(state, (condition,), columns=columns, limit=limit)
    if rows is None:
        return None
    assert rows.column_names == list(columns)
    return sorted(tuple(r.values()) for r in rows.to_pylist())


def by_key(wh: Warehouse, state: RelationState, keys: list[int], *columns: str) -> list[Any]:
    rows = internals(wh).reader.lookup(state, pa.table({"k": pa.array(keys, pa.int32())}), columns=columns)
    return sorted(tuple(r.values()) for r in rows.to_pylist())


def test_equal_questions_are_read_once_and_other_columns_once_more(wh: Warehouse, asked: list[str]) -> None:
    """The first reader reads its own columns; a second that needs others reads those of all."""
    state = internals(wh).state("t")
    expected = [(k, f"a{k}") for k in range(100) if k % 10 in (1, 2)]
    with internals(wh).reader.together({state.relation.id: ["k", "a"]}):
        assert near(wh, state, [1, 2], "k") == [(k,) for k, _ in expected]
        assert near(wh, state, [2, 1], "k") == [(k,) for k, _ in expected]
        assert len(asked) == 1
        assert '"a"' not in asked[0]
        assert near(wh, state, [1, 2], "c", "b") == sorted((None, k % 10) for k, _ in expected)
        assert near(wh, state, [1, 2], "k", "a") == expected
        assert near(wh, state, [1, 2], "b", "k") is not None
        assert len(asked) == 2
        assert near(wh, state, [1, 3], "k", "a") != expected
        assert len(asked) == 3
    assert near(wh, state, [1, 2], "k", "a") == expected
    assert len(asked) == 4  # nothing is kept beyond the block


def test_keys_are_looked_up_once(wh: Warehouse, asked: list[str]) -> None:
    state = internals(wh).state("t")
    with internals(wh).reader.together({}):
        assert by_key(wh, state, [5, 7, 500], "b") == [(5, None, 5, None), (7, None, 7, None)]
        assert by_key(wh, state, [5, 7, 500]) == [(5, None, None, None), (7, None, None, None)]
        assert len(asked) == 1
        assert by_key(wh, state, [5, 7, 500], "a") == [(5, "a5", None, None), (7, "a7", None, None)]
        assert by_key(wh, state, [5, 7, 500], "a", "b") == [(5, "a5", 5, None), (7, "a7", 7, None)]
        assert len(asked) == 2
        assert by_key(wh, state, [5, 7], "a", "b") == [(5, "a5", 5, None), (7, "a7", 7, None)]
        assert len(asked) == 3


@pytest.mark.usefixtures("asked")
def test_other_states_are_other_rows(wh: Warehouse) -> None:
    """A commit, a checkpoint, and rows that are not committed: each has an answer of its own."""
    old = internals(wh).state("t")
    with internals(wh).reader.together({}):
        assert near(wh, old, [3], "k") == [(k,) for k in range(3, 100, 10)]
        wh.sql("DELETE FROM t WHERE k = 13")
        new = internals(wh).state("t")
        assert near(wh, new, [3], "k") == [(k,) for k in range(3, 100, 10) if k != 13]
        wh.sql("CHECKPOINT t")
        assert near(wh, internals(wh).state("t"), [3], "k") == near(wh, new, [3], "k")
        assert near(wh, old, [3], "k") == [(k,) for k in range(3, 100, 10)]
        with wh.transaction() as tx:
            for gone, count in ((23, 8), (33, 7)):
                tx.sql(f"DELETE FROM t WHERE k = {gone}")
                found = internals(wh).rows_in(tx, "t")
                assert found.num_rows == 99 - (9 - count)
                assert tx.sql("UPDATE t SET a = 'x' WHERE b = 3").rows == count
            tx.rollback()
        assert near(wh, new, [3], "k", limit=8) is None
        assert near(wh, new, [3], "k", limit=10) is not None


def test_conditions_that_differ_are_not_taken_for_each_other() -> None:
    conditions: list[Among | Compared] = [
        Among(pa.array([1, 2], pa.int32())),
        Among(pa.array([1, 2], pa.int64())),
        Among(pa.array([1, 2], pa.int32()), nulls=True),
        Among(pa.array([1], pa.int32())),
        Among(pa.array(["1"])),
        Compared("<", pa.scalar(1)),
        Compared("<=", pa.scalar(1)),
        Compared("<", pa.scalar(2)),
    ]
    assert len({c.identity for c in conditions}) == len(conditions)
    assert Among(pa.array([2, 1], pa.int32())).identity == conditions[0].identity


ONE = Schema((Column("n", parse_type("BIGINT")), Column("m", parse_type("BIGINT"))))


def test_rows_beyond_the_budget_are_not_kept() -> None:
    shared, fetched = SharedRows(budget=1000), []

    def read(size: int) -> None:
        def fetch(columns: object) -> pa.Table:
            fetched.append(columns)
            return pa.table({"n": pa.array(range(size), pa.int64())})

        shared.read(lambda: size, 1, ONE, ["n"], fetch)

    with shared.together({}):
        for size in (100, 100, 200, 200, 100):  # 800 and 1600 bytes
            read(size)
        assert len(fetched) == 3
        read(90)
        read(100)
        assert len(fetched) == 5


def test_blocks_of_several_threads_end_one_by_one() -> None:
    """Rows go when the last block ends, and not before."""
    shared, fetched, both = SharedRows(), [], threading.Barrier(2)

    def fetch(_: object) -> pa.Table:
        fetched.append(1)
        return pa.table({"n": [1]})

    def other() -> None:
        with shared.together({1: ["n"]}):
            both.wait()
            both.wait()

    thread = threading.Thread(target=other)
    thread.start()
    both.wait()
    with shared.together({1: ["n"]}):
        shared.read(lambda: "x", 1, ONE, ["n"], fetch)
    shared.read(lambda: "x", 1, ONE, ["n"], fetch)
    assert len(fetched) == 1
    both.wait()
    thread.join()
    shared.read(lambda: "x", 1, ONE, ["n"], fetch)
    assert len(fetched) == 2
    with shared.together({}):
        shared.read(lambda: "x", 1, ONE, ["n"], fetch)
        assert shared.read(lambda: None, 1, ONE, ["n"], fetch) is not None
    assert len(fetched) == 4


def test_who_asks_for_rows_that_are_being_read_waits_for_them() -> None:
    shared, fetched, begun, go = SharedRows(), [], threading.Event(), threading.Event()

    def fetch(_: object) -> pa.Table:
        fetched.append(1)
        begun.set()
        go.wait(60)
        return pa.table({"n": [1]})

    found: list[Any] = []
    threads = [
        threading.Thread(target=lambda: found.append(shared.read(lambda: "x", 1, ONE, ["n"], fetch))) for _ in range(3)
    ]
    with shared.together({}):
        for thread in threads:
            thread.start()
        assert begun.wait(60)
        other = shared.read(lambda: "y", 1, ONE, ["n"], lambda _: pa.table({"n": [2]}))  # other rows do not wait
        go.set()
        for thread in threads:
            thread.join()
    assert other is not None
    assert len(fetched) == 1
    assert [r.to_pylist() for r in found] == [[{"n": 1}]] * 3
