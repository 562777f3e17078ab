"""Threads and processes on one warehouse: no lost update, no gap, no commit time out of order."""

from __future__ import annotations

import itertools
import random
import sys
import threading
from collections.abc import Callable
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest
from tests.catalog.helpers import contents, seen_by
from tests.forks import forks, unflushed
from tests.internals import internals

import freshview
from freshview import Warehouse
from freshview.errors import FreshviewError, WriteConflict

THREADS, INCREMENTS, KEYS = 8, 6, 3


def increment(wh: Warehouse, key: int, *, blind: bool) -> None:
    """Read, add one, write; again on a newer snapshot if somebody was faster."""
    while True:
        tx = wh.transaction()
        (row,) = [r for r in seen_by(wh, tx, "counters") if r["k"] == key]
        try:
            if blind:
                tx.upsert("counters", [{"k": key, "n": row["n"] + 1}])
            else:
                tx.sql(f"UPDATE counters SET n = {row['n'] + 1} WHERE k = {key}")
            tx.insert("log", [{"k": key}])
            tx.commit()
            return
        except WriteConflict:
            continue


def make_counters(wh: Warehouse) -> None:
    wh.sql("CREATE TABLE counters (k INT, n INT, PRIMARY KEY (k))")
    wh.sql("CREATE TABLE log (k INT)")
    with wh.transaction() as tx:
        tx.insert("counters", [{"k": k, "n": 0} for k in range(KEYS)])


def check_counters(wh: Warehouse, expected: int) -> None:
    rows = contents(wh, "counters")
    assert sum(r["n"] for r in rows) == expected
    logged = contents(wh, "log")
    assert {r["k"]: r["n"] for r in rows} == {k: sum(r["k"] == k for r in logged) for k in range(KEYS)}
    commits = sorted({(c.csn, c.committed_at) for c in internals(wh).commits()})
    assert [csn for csn, _ in commits] == list(range(1, wh.status().csn + 1))
    assert all(a[1] < b[1] for a, b in itertools.pairwise(commits))


def test_no_update_is_lost_between_threads(open_warehouse: Callable[[], Warehouse]) -> None:
    """Half of the threads share one opening, half have another; every version adds up, too."""
    first, second = open_warehouse(), open_warehouse()
    make_counters(first)
    failures: list[BaseException] = []

    def work(number: int) -> None:
        dice = random.Random(number)
        try:
            for i in range(INCREMENTS):
                increment((first, second)[number % 2], dice.randrange(KEYS), blind=bool(i % 2))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    check_counters(first, THREADS * INCREMENTS)
    start = internals(first).commits()[-1].csn - THREADS * INCREMENTS
    for done, csn in enumerate(range(start, first.status().csn + 1)):
        assert sum(r["n"] for r in contents(second, "counters", csn)) == done
        assert len(contents(second, "log", csn)) == done


def _increment_ten_times(folder: Path, catalog_url: str | None, seed: int, start: Barrier) -> None:
    unflushed()
    dice = random.Random(seed)
    with freshview.connect(folder, catalog=catalog_url) as wh:
        start.wait(60)
        for i in range(10):
            increment(wh, dice.randrange(KEYS), blind=bool(i % 2))
    assert "pyspark" not in sys.modules


def test_no_update_is_lost_between_processes(
    open_warehouse: Callable[[], Warehouse], tmp_path: Path, catalog_url: str | None
) -> None:
    wh = open_warehouse()
    make_counters(wh)
    processes = forks()
    start = processes.Barrier(2)
    workers = [
        processes.Process(
            target=_increment_ten_times, args=(tmp_path / "warehouse", catalog_url, seed, start), daemon=True
        )
        for seed in range(2)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [w.exitcode for w in workers] == [0, 0]
    check_counters(wh, 20)


def test_first_openings_at_once_make_one_warehouse(tmp_path: Path, catalog_url: str | None) -> None:
    """All of them work, on the same catalog; none is told that the warehouse is damaged."""
    opened: list[Warehouse] = []
    failures: list[FreshviewError] = []
    start = threading.Barrier(4)

    def work() -> None:
        start.wait()
        try:
            opened.append(freshview.connect(tmp_path / "warehouse", catalog=catalog_url))
        except FreshviewError as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    try:
        assert not failures
        opened[0].sql("CREATE TABLE t (a INT)")
        assert [[t.name for t in wh.status().tables] for wh in opened] == [["t"]] * 4
    finally:
        for wh in opened:
            wh.close()


def test_one_name_is_created_once(open_warehouse: Callable[[], Warehouse]) -> None:
    warehouses = [open_warehouse() for _ in range(4)]
    outcomes: list[str] = []
    start = threading.Barrier(4)

    def work(wh: Warehouse) -> None:
        start.wait()
        try:
            wh.sql("CREATE TABLE t (a INT)")
            outcomes.append("created")
        except freshview.errors.AlreadyExists:
            outcomes.append("exists")

    threads = [threading.Thread(target=work, args=(wh,)) for wh in warehouses]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["created", "exists", "exists", "exists"]


def test_racing_inserts_of_one_key_leave_one_row(open_warehouse: Callable[[], Warehouse]) -> None:
    wh = open_warehouse()
    wh.sql("CREATE TABLE t (k INT, v INT, PRIMARY KEY (k))")
    one, two = wh.transaction(), wh.transaction()
    one.insert("t", [{"k": 1, "v": 1}])
    two.insert("t", [{"k": 1, "v": 2}])
    two.commit()
    with pytest.raises(WriteConflict, match=r"table t: key \(1\) was written"):
        one.commit()
    assert contents(wh, "t") == [{"k": 1, "v": 2}]
