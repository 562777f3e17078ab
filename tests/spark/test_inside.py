"""Views inside transactions and commits, on Spark: own writes by their deltas, overlays kept, eager views."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import pytest
from deltalake import write_deltalake
from pyspark.sql import SparkSession
from tests.spark.sessions import Rows, rows
from tests.spark.test_materialized_views import _DEFINITIONS

import freshview
from freshview import Warehouse
from freshview.errors import FreshviewError, InvalidStatement, NotMaintainable, ViewUnusable

_KINDS = ("sums", "groups", "outer_join", "anti", "distinct_rows", "ranked", "scalar")


@pytest.fixture
def tables(swh: Warehouse) -> Warehouse:
    swh.sql("CREATE TABLE c (id INT, city STRING, PRIMARY KEY (id))")
    swh.sql("CREATE TABLE s (id INT, customer INT, amount DECIMAL(10,2), weight DOUBLE, PRIMARY KEY (id))")
    swh.sql("INSERT INTO c VALUES (1, 'A'), (2, 'B'), (3, NULL), (4, 'A')")
    swh.sql("INSERT INTO s VALUES (1, 1, 10, 0.1), (2, 1, 5.5, 0.2), (3, 2, NULL, 0.3), (4, 9, 1, 0.7)")
    return swh


def change(tx: Any, draw: random.Random) -> None:
    """A statement of some kind on one of the tables."""
    key = draw.randint(1, 8)
    kind = draw.choice(("upsert", "delete", "update", "move"))
    if kind == "upsert":
        tx.upsert(
            "s", [{"id": key, "customer": draw.choice((1, 2, None)), "amount": draw.randint(0, 9), "weight": 1.0}]
        )
    elif kind == "delete":
        tx.delete("s", [key])
    elif kind == "update":
        tx.sql(f"UPDATE s SET amount = amount + 1 WHERE customer = {draw.randint(1, 2)}")
    else:
        tx.upsert("c", [{"id": draw.randint(1, 4), "city": draw.choice("ABC")}])


def seen(tx: Any, view: str) -> Rows:
    return rows(tx, f"SELECT * FROM {view}")


@pytest.mark.parametrize("view", ["sums", "outer_join", "ranked", "scalar"])
def test_a_transaction_sees_its_writes_in_views_and_the_commit_keeps_them(tables: Warehouse, view: str) -> None:
    """Law: what it reads equals the definition over its own states; afterwards nothing is computed again."""
    definition = _DEFINITIONS[view]
    tables.sql(f"CREATE MATERIALIZED VIEW v AS {definition}")
    draw = random.Random(f"{view}")
    for _ in range(2):
        jobs = len(tables.history("v"))
        with tables.transaction() as tx:
            for _ in range(2):
                change(tx, draw)
                assert seen(tx, "v") == rows(tx, definition)
        assert tables.maintain() == []
        assert len(tables.history("v")) <= jobs + 1  # one for the commit, unless its statements changed nothing
        assert tables.check("v").ok


def test_statements_after_the_last_query_are_left_to_a_partial_task(tables: Warehouse) -> None:
    tables.sql("CREATE MATERIALIZED VIEW v AS SELECT customer, count(*) n FROM s GROUP BY customer")
    with tables.transaction() as tx:
        tx.sql("INSERT INTO s VALUES (10, 1, 1, 1)")
        assert (1, 3) in seen(tx, "v")
        tx.sql("INSERT INTO s VALUES (11, 1, 1, 1), (12, 7, 1, 1)")
        tx.sql("DELETE FROM s WHERE id = 10")
    (task,) = tables.sql("SHOW TASKS").collect()
    assert task["stmtsn"] == "1"  # the statement that the view has seen
    assert (1, 2) in rows(tables, "SELECT * FROM v", freshness="any")  # a commit seen in part is not shown
    assert (1, 3) in rows(tables, "SELECT * FROM v")
    assert rows(tables, "SHOW TASKS") == []
    assert tables.check("v").ok


def test_a_view_over_a_view_shows_own_writes(tables: Warehouse) -> None:
    tables.sql("CREATE MATERIALIZED VIEW low AS SELECT customer, count(*) n FROM s GROUP BY customer")
    tables.sql("CREATE MATERIALIZED VIEW high AS SELECT n, count(*) f FROM low GROUP BY n")
    with tables.transaction() as tx:
        tx.sql("INSERT INTO s VALUES (10, 2, 1, 1)")
        assert seen(tx, "high") == [(1, 1), (2, 2)]
    assert tables.maintain() == []
    assert all(tables.check(v).ok for v in ("low", "high"))


# -- eager -----------------------------------------------------------------------------------------


def test_eager_views_are_as_of_every_commit(tables: Warehouse) -> None:
    for name in _KINDS:
        tables.sql(f"CREATE MATERIALIZED VIEW {name} TBLPROPERTIES ('maintenance'='eager') AS {_DEFINITIONS[name]}")
    tables.sql(
        "CREATE MATERIALIZED VIEW above TBLPROPERTIES ('maintenance'='eager')"
        " AS SELECT n, count(*) f FROM sums GROUP BY n"
    )
    draw = random.Random(5)
    for _ in range(3):
        with tables.transaction() as tx:
            change(tx, draw)
            change(tx, draw)
        assert rows(tables, "SHOW TASKS") == []
    assert all(tables.check(v).ok for v in (*_KINDS, "above"))
    assert all((j.tasks, j.error) == (1, None) for j in tables.history())  # each in the commit that it belongs to
    assert "incremental" in {j.strategy for j in tables.history("sums")}


def test_a_row_that_an_eager_view_cannot_take_is_not_committed(tables: Warehouse) -> None:
    tables.sql("CREATE TABLE t (k INT PRIMARY KEY, v STRING)")
    tables.sql("CREATE MATERIALIZED VIEW v TBLPROPERTIES ('maintenance'='eager') AS SELECT k, CAST(v AS INT) n FROM t")
    tables.sql("INSERT INTO t VALUES (1, '1')")
    before = tables.status().csn
    with pytest.raises(ViewUnusable, match=r"eager view v.*CAST_INVALID_INPUT") as caught:
        tables.sql("INSERT INTO t VALUES (2, 'two')")
    assert "'maintenance'='lazy'" in caught.value.remedy
    assert tables.status().csn == before
    assert rows(tables, "SELECT * FROM v") == [(1, 1)]


def test_the_mode_can_be_changed_and_what_is_below_an_eager_view_is_eager(tables: Warehouse) -> None:
    tables.sql("CREATE MATERIALIZED VIEW low AS SELECT customer, count(*) n FROM s GROUP BY customer")
    with pytest.raises(NotMaintainable, match="it reads low, which is not eager"):
        tables.sql("CREATE MATERIALIZED VIEW high TBLPROPERTIES ('maintenance'='eager') AS SELECT sum(n) t FROM low")
    tables.sql("INSERT INTO s VALUES (10, 2, 1, 1)")
    tables.sql("ALTER MATERIALIZED VIEW low SET TBLPROPERTIES ('maintenance'='eager')")
    assert rows(tables, "SHOW TASKS") == []
    tables.sql("CREATE MATERIALIZED VIEW high TBLPROPERTIES ('maintenance'='eager') AS SELECT sum(n) t FROM low")
    tables.sql("INSERT INTO s VALUES (11, 2, 1, 1)")
    assert rows(tables, "SELECT t FROM high", freshness="any") == [(6,)]
    with pytest.raises(NotMaintainable, match="the eager view high reads it"):
        tables.sql("ALTER MATERIALIZED VIEW low SET TBLPROPERTIES ('maintenance'='lazy')")
    tables.sql("ALTER MATERIALIZED VIEW high SET TBLPROPERTIES ('maintenance'='lazy')")
    tables.sql("ALTER MATERIALIZED VIEW low SET TBLPROPERTIES ('maintenance'='lazy')")
    tables.sql("INSERT INTO s VALUES (12, 2, 1, 1)")
    assert len(rows(tables, "SHOW TASKS")) == 2
    assert rows(tables, "SELECT t FROM high") == [(7,)]
    with pytest.raises(InvalidStatement, match="is not among lazy, eager, deferred, auto"):
        tables.sql("ALTER MATERIALIZED VIEW low SET TBLPROPERTIES ('maintenance'='sometimes')")


def test_what_others_write_keeps_no_eager_view(tables: Warehouse, tmp_path: Path) -> None:
    import pyarrow as pa

    write_deltalake(tmp_path / "e", pa.table({"k": [1]}))
    tables.sql(f"CREATE TABLE e USING DELTA LOCATION '{tmp_path / 'e'}'")
    with pytest.raises(NotMaintainable, match="others write e"):
        tables.sql("CREATE MATERIALIZED VIEW v TBLPROPERTIES ('maintenance'='eager') AS SELECT k FROM e")


def test_writers_at_once_leave_an_eager_view_right(tmp_path: Path, spark: SparkSession) -> None:
    """Law 11.3, with threads: V = R ⋈ S, matching rows that come at once are in the view."""
    with freshview.connect(tmp_path / "wh", spark=spark) as wh:
        wh.sql("CREATE TABLE r (k INT PRIMARY KEY, v INT)")
        wh.sql("CREATE TABLE s (k INT PRIMARY KEY, w INT)")
        wh.sql(
            "CREATE MATERIALIZED VIEW v TBLPROPERTIES ('maintenance'='eager')"
            " AS SELECT r.k, v, w FROM r JOIN s USING (k)"
        )
        failed: list[FreshviewError] = []

        def write(table: str, column: str) -> None:
            for k in range(4):
                try:
                    with wh.transaction() as tx:
                        tx.upsert(table, [{"k": k, column: k}])
                except FreshviewError as error:
                    failed.append(error)

        threads = [threading.Thread(target=write, args=pair) for pair in (("r", "v"), ("s", "w"))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failed == []
        assert rows(wh, "SELECT * FROM v", freshness="any") == [(k, k, k) for k in range(4)]
        assert rows(wh, "SHOW TASKS") == []
