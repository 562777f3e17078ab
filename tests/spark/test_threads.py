"""One warehouse, one session, several threads: every thread gets its own answers and no write is lost."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from pyspark.sql import SparkSession

from freshview import Warehouse
from freshview.errors import WriteConflict
from freshview.spark.session import obtain_session


def _together(*acts: Callable[[], None]) -> None:
    """All at once; the first failure is raised."""
    start = threading.Barrier(len(acts))

    def run(act: Callable[[], None]) -> None:
        start.wait(60)
        act()

    with ThreadPoolExecutor(len(acts)) as pool:
        for done in [pool.submit(run, act) for act in acts]:
            done.result(300)


def test_threads_share_a_warehouse(swh: Warehouse) -> None:
    """Transfers between accounts, by key and by scan; readers always see the same total."""
    swh.sql("CREATE TABLE account (id INT PRIMARY KEY, money BIGINT)")
    swh.sql("CREATE TABLE log (thread INT, step INT, note STRING)")
    swh.sql("INSERT INTO account VALUES (0, 100), (1, 100), (2, 100), (3, 100)")
    steps, totals = 4, []

    def writer(me: int) -> Callable[[], None]:
        def act() -> None:
            for step in range(steps):
                while True:
                    try:
                        with swh.transaction() as tx:
                            other = (me + 1 + step) % 4
                            tx.sql(f"UPDATE account SET money = money - 1 WHERE id = {me}")
                            tx.sql(f"UPDATE account SET money = money + 1 WHERE id IN ({other}) AND money IS NOT NULL")
                            tx.sql(f"INSERT INTO log SELECT {me}, {step}, concat('n', max(money)) FROM account")
                        break
                    except WriteConflict:
                        continue

        return act

    def reader() -> None:
        for _ in range(8):
            row = swh.sql("SELECT sum(money), (SELECT count(*) FROM log) FROM account").collect()[0]
            totals.append(row[0])

    def keeper() -> None:
        for _ in range(4):
            swh.sql("CHECKPOINT account")
            swh.sql("CHECKPOINT log")

    _together(writer(0), writer(1), writer(2), reader, keeper)
    assert set(totals) == {400}
    assert swh.sql("SELECT sum(money) FROM account").collect()[0][0] == 400
    found = sorted(tuple(r) for r in swh.sql("SELECT thread, step FROM log").collect())
    assert found == [(t, s) for t in range(3) for s in range(steps)]


def test_single_statements_that_lose_a_race_run_again(swh: Warehouse) -> None:
    """Increments of one row by several threads all count."""
    swh.sql("CREATE TABLE c (k INT PRIMARY KEY, n INT)")
    swh.sql("INSERT INTO c VALUES (1, 0)")

    def act() -> None:
        for _ in range(3):
            while True:
                try:
                    swh.sql("UPDATE c SET n = n + 1 WHERE k = 1")
                    break
                except WriteConflict:
                    continue

    _together(act, act, act)
    assert [tuple(r) for r in swh.sql("SELECT n FROM c").collect()] == [(9,)]


def test_a_new_thread_finds_the_session_and_its_settings(spark: SparkSession) -> None:
    """A session that is active in another thread only is found, and its settings stay."""
    before = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", "3")
    found: list[SparkSession] = []
    try:
        thread = threading.Thread(target=lambda: found.append(obtain_session()))
        thread.start()
        thread.join()
        assert found[0].sparkContext is spark.sparkContext
        assert found[0].conf.get("spark.sql.shuffle.partitions") == "3"
        assert spark.conf.get("spark.sql.shuffle.partitions") == "3"
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", str(before))
