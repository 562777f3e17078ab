"""One refresh of several views on both engines: what they have in common is computed once, and each is right."""

from __future__ import annotations

import random
import time
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.effort import IS_SOAK
from tests.internals import internals

import freshview
from freshview import Warehouse
from freshview.catalog.records import DataFile, Frontier, Relation, Task
from freshview.catalog.statistics import StatisticsCatalog
from freshview.catalog.views import ViewCatalog
from freshview.errors import FreshviewError, SparkFailed
from freshview.refresh import cost, embedded, group, together
from freshview.refresh.changing import Changing
from freshview.refresh.job_input import GroupInput
from freshview.refresh.plan import RefreshPlan
from freshview.spark.engine import SparkEngine
from freshview.storage import reader

pytestmark = pytest.mark.spark

# Like TPC-H: the joins of customers, orders and lines in several views, with and without aggregates.
_VIEWS = {
    "revenue": (
        "SELECT nation, sum(price * (1 - discount)) AS revenue FROM customer, orders, line"
        " WHERE c = o_c AND o = l_o GROUP BY nation"
    ),
    "segments": (
        "SELECT segment, nation, count(*) AS n, max(price) AS top FROM customer, orders, line"
        " WHERE c = o_c AND o = l_o GROUP BY segment, nation"
    ),
    "lines": "SELECT c, o, l, day, price FROM customer, orders, line WHERE c = o_c AND o = l_o AND segment = 'A'",
    "late": "SELECT o, day FROM orders WHERE EXISTS (SELECT 1 FROM line WHERE l_o = o AND shipped > day)",
    "idle": "SELECT c, nation FROM customer LEFT JOIN orders ON c = o_c WHERE o IS NULL",
    "biggest": "SELECT o, sum(price) AS t FROM orders, line WHERE o = l_o GROUP BY o ORDER BY t DESC, o LIMIT 3",
    "days": "SELECT day, count(*) AS n, avg(price) AS mean FROM orders, line WHERE o = l_o GROUP BY day",
    "big": "SELECT o FROM line, orders WHERE o = l_o GROUP BY o HAVING sum(price) > 50",
    "above": "SELECT nation, count(*) AS n FROM lines JOIN customer ON lines.c = customer.c GROUP BY nation",
    "top_nations": "SELECT nation, revenue FROM revenue WHERE revenue > 100",
}


def _tables(wh: Warehouse) -> None:
    wh.sql("CREATE TABLE customer (c INT PRIMARY KEY, nation STRING, segment STRING, note STRING)")
    wh.sql("CREATE TABLE orders (o INT PRIMARY KEY, o_c INT, day DATE, comment STRING)")
    wh.sql(
        "CREATE TABLE line (l_o INT, l INT, price DECIMAL(15,2), discount DECIMAL(15,2), shipped DATE,"
        " PRIMARY KEY (l_o, l))"
    )
    first, tenth = date(2024, 1, 1), Decimal("0.1")
    customers = [{"c": i, "nation": f"n{i % 4}", "segment": "ABC"[i % 3], "note": ""} for i in range(30)]
    orders = [{"o": i, "o_c": i % 25, "day": first + timedelta(i % 9), "comment": ""} for i in range(60)]
    lines = [
        {"l_o": i % 60, "l": i, "price": i % 17, "discount": tenth, "shipped": first + timedelta(1 + i % 11)}
        for i in range(200)
    ]
    with wh.transaction() as tx:
        for name, data in (("customer", customers), ("orders", orders), ("line", lines)):
            tx.insert(name, data)


def _statement(draw: random.Random) -> str:
    key = draw.randrange(60)
    return draw.choice(
        [
            f"UPDATE customer SET nation = 'n{key % 5}' WHERE c = {key % 30}",
            f"UPDATE customer SET note = 'x{key}' WHERE c IN ({key % 30}, {(key + 1) % 30})",
            f"UPDATE customer SET segment = 'A', note = 'y' WHERE c = {key % 30}",
            f"DELETE FROM orders WHERE o = {key}",
            f"INSERT INTO orders VALUES ({1000 + draw.randrange(10**6)}, {key % 30}, DATE'2024-01-05', NULL)",
            f"UPDATE orders SET o_c = {key % 30} WHERE o BETWEEN {key} AND {key + 2}",
            f"UPDATE orders SET comment = 'z' WHERE o = {key}",
            f"DELETE FROM line WHERE l_o = {key}",
            f"INSERT INTO line VALUES ({key}, {1000 + draw.randrange(10**6)}, 9.99, 0.05, DATE'2024-02-01')",
            f"UPDATE line SET price = price + 1 WHERE l_o = {key}",
        ]
    )


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[RefreshPlan]:
    """The plans of refreshes of several views."""
    plans: list[RefreshPlan] = []
    made = Changing.plan_together

    def noted(self: Changing, given: GroupInput) -> RefreshPlan:
        plans.append(made(self, given))
        return plans[-1]

    monkeypatch.setattr(Changing, "plan_together", noted)
    return plans


@pytest.mark.parametrize(("engine", "loosened"), [("auto", 0), ("auto", 1), ("spark", 0)])
def test_views_refreshed_together_are_right_after_every_change(
    tmp_path: Path,
    spark: SparkSession,
    engine: str,
    loosened: int,
    monkeypatch: pytest.MonkeyPatch,
    seen: list[RefreshPlan],
) -> None:
    """Also where selections stand above the joins, whatever that costs."""
    monkeypatch.setattr(embedded, "ENGINE", engine)
    monkeypatch.setattr(together, "_cheaper", lambda found, _: found[loosened])
    draw = random.Random(7)
    with freshview.connect(tmp_path / "w", spark=spark) as wh:
        _tables(wh)
        for name, text in _VIEWS.items():
            wh.sql(f"CREATE MATERIALIZED VIEW {name} AS {text}")
        rounds = (50 if IS_SOAK else 3) if engine == "auto" else 1
        for turn in range(1, rounds + 1):
            with wh.transaction() as tx:
                for _ in range(draw.randint(1, 3)):
                    tx.sql(_statement(draw))
            wh.maintain()
            if IS_SOAK or turn == rounds:  # rows that are wrong after the others stay so
                assert [name for name in _VIEWS if not wh.check(name).ok] == []
        if engine == "auto":
            assert any(plan.parts for plan in seen)
            shared = [job for job in wh.history() if "shared" in job.phases]
            assert {job.view for job in shared} >= set(_VIEWS) - {"above", "top_nations"}
            assert {job.engine for job in shared} <= {"embedded", ""}
            assert all(job.seconds >= job.phases["shared"] > 0 for job in shared)


def test_bad_data_of_one_view_does_not_hold_up_the_others(tmp_path: Path, spark: SparkSession) -> None:
    with freshview.connect(tmp_path / "w", spark=spark) as wh:
        wh.sql("CREATE TABLE t (k INT PRIMARY KEY, v INT, s STRING)")
        wh.sql("INSERT INTO t VALUES (1, 1, '1'), (2, 2, '2')")
        wh.sql("CREATE MATERIALIZED VIEW sums AS SELECT v, count(*) AS n FROM t GROUP BY v")
        wh.sql("CREATE MATERIALIZED VIEW bad AS SELECT v, sum(CAST(s AS INT)) AS n FROM t GROUP BY v")
        wh.sql("CREATE MATERIALIZED VIEW copies AS SELECT k, v FROM t WHERE v > 0")
        wh.sql("INSERT INTO t VALUES (3, 3, 'three')")
        with pytest.raises(FreshviewError):
            wh.maintain()
        frontier = {view.name: view.pending_tasks for view in wh.status().views}
        assert frontier == {"sums": 0, "bad": 1, "copies": 0}
        assert wh.check("sums").ok
        assert wh.check("copies").ok
        assert [job.error is None for job in wh.history("sums")] == [True]
        assert [job.error is None for job in wh.history("bad")][-1] is False
        wh.sql("UPDATE t SET s = '3' WHERE k = 3")
        wh.maintain()
        assert all(wh.check(name).ok for name in ("sums", "bad", "copies"))


def test_rows_that_are_not_proven_are_computed_by_spark_once_for_all_views(tmp_path: Path, spark: SparkSession) -> None:
    """Expressions on a scan that are Spark's; views of other settings share nothing."""
    with freshview.connect(tmp_path / "w", spark=spark) as wh:
        wh.sql("CREATE TABLE t (k INT PRIMARY KEY, v INT, s STRING, d DOUBLE)")
        wh.sql("INSERT INTO t SELECT id, id % 3, concat('a-', id % 2), id / 3 FROM range(20)")
        wh.sql("CREATE MATERIALIZED VIEW one AS SELECT soundex(s) AS x, count(*) AS n FROM t GROUP BY soundex(s)")
        wh.sql("CREATE MATERIALIZED VIEW two AS SELECT soundex(s) AS x, sum(v) AS n FROM t GROUP BY soundex(s)")
        wh.sql("CREATE MATERIALIZED VIEW odd AS SELECT v, d, count(*) AS n FROM t GROUP BY v, d")
        for statement in ("UPDATE t SET s = 'zz' WHERE k = 3", "DELETE FROM t WHERE v = 1", "UPDATE t SET d = -0.0"):
            wh.sql(statement)
            wh.maintain()
        assert all(wh.check(name).ok for name in ("one", "two", "odd"))


def test_views_that_know_other_schemas_of_a_table_are_right(tmp_path: Path, spark: SparkSession) -> None:
    with freshview.connect(tmp_path / "w", spark=spark) as wh:
        wh.sql("CREATE TABLE t (k INT PRIMARY KEY, v INT)")
        wh.sql("INSERT INTO t VALUES (1, 1), (2, 2)")
        wh.sql("CREATE MATERIALIZED VIEW one AS SELECT v, count(*) AS n FROM t GROUP BY v")
        wh.sql("CREATE MATERIALIZED VIEW two AS SELECT k, v FROM t WHERE v > 1")
        wh.sql("ALTER TABLE t ADD COLUMN w INT")
        wh.sql("CREATE MATERIALIZED VIEW three AS SELECT w, count(*) AS n FROM t GROUP BY w")
        for statement in (
            "INSERT INTO t VALUES (3, 3, 3)",
            "UPDATE t SET w = 4 WHERE k = 1",
            "DELETE FROM t WHERE k = 2",
        ):
            wh.sql(statement)
            wh.maintain()
        assert all(wh.check(name).ok for name in ("one", "two", "three"))
        wh.sql("DELETE FROM t")
        wh.maintain()
        assert all(not wh.sql(f"SELECT * FROM {name}", freshness="any").collect() for name in ("one", "two", "three"))


def test_sharing_can_be_switched_off(tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group, "TOGETHER", False)
    with freshview.connect(tmp_path / "w", spark=spark) as wh:
        _tables(wh)
        for name in ("revenue", "days"):
            wh.sql(f"CREATE MATERIALIZED VIEW {name} AS {_VIEWS[name]}")
        wh.sql("DELETE FROM line WHERE l_o = 3")
        assert ["shared" in job.phases for job in wh.maintain()] == [False, False]


def test_a_query_of_several_stale_views_refreshes_them_together(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those whose change it can see; a view whose rows it does not take stays as it is. Each is asked about once."""
    asked: list[str] = []
    real = ViewCatalog.pending

    def pending(self: ViewCatalog, view: Relation, csn: int) -> tuple[Frontier, list[Task]]:
        asked.append(view.name)
        return real(self, view, csn)

    with freshview.connect(tmp_path / "w", spark=spark) as wh:
        _tables(wh)
        for name in ("revenue", "days", "segments", "lines"):
            wh.sql(f"CREATE MATERIALIZED VIEW {name} AS {_VIEWS[name]}")
        wh.sql("UPDATE line SET price = price + 1 WHERE l_o = 7")
        ahead = str(wh.explain("revenue"))
        assert "  refreshed together with days, segments, lines\n" in ahead
        assert "computed once for revenue, segments" in ahead
        assert "FROM shared" in ahead.split("    in this refresh it runs:\n")[1]
        text = (
            "SELECT (SELECT sum(revenue) FROM revenue) AS r, (SELECT sum(n) FROM days) AS n,"
            " (SELECT count(*) FROM lines WHERE o = 1000) AS none"
        )
        plain = {name: f"({text_})" for name, text_ in _VIEWS.items()}
        expected = text
        for name in ("revenue", "days", "lines"):
            expected = expected.replace(f"FROM {name}", f"FROM {plain[name]}")
        with monkeypatch.context() as patch:
            patch.setattr(ViewCatalog, "pending", pending)
            rows = wh.sql(text).collect()
        assert sorted(asked) == ["days", "lines", "revenue"]
        assert rows == wh.sql(expected).collect()
        jobs = {job.view: job for job in wh.history()}
        assert {name for name, job in jobs.items() if "shared" in job.phases} == {"revenue", "days"}
        assert "lines" not in jobs
        assert "segments" not in jobs


def test_the_manager_refreshes_views_that_wait_for_the_same_change_together(
    tmp_path: Path, spark: SparkSession
) -> None:
    with freshview.connect(tmp_path / "w", spark=spark, background=True, busy_load=1e9) as wh:
        _tables(wh)
        for name in ("revenue", "days", "segments"):
            wh.sql(f"CREATE MATERIALIZED VIEW {name} AS {_VIEWS[name]}")
        with wh.transaction() as tx:
            tx.sql("UPDATE line SET price = price + 1 WHERE l_o = 7")
            tx.sql("UPDATE orders SET o_c = 3 WHERE o = 9")
        deadline = time.monotonic() + 60
        while any(view.pending_tasks for view in wh.status().views) and time.monotonic() < deadline:
            time.sleep(0.2)
        done = [job for job in wh.history() if job.error is None]
        assert sum("shared" in job.phases for job in done) >= 2
        assert all(wh.check(name).ok for name in ("revenue", "days", "segments"))


def test_large_changes_share_parts_on_spark_which_leave_no_files(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, seen: list[RefreshPlan]
) -> None:
    """A change that stays in Spark, joined with tables that are read from files, is joined once for all views."""
    monkeypatch.setattr(cost, "DRIVER_CELLS", 0)
    monkeypatch.setattr(reader, "LOCAL_ROWS", 0)
    with freshview.connect(tmp_path / "w", spark=spark) as wh:
        StatisticsCatalog(internals(wh).catalog).set_prices({"spark": {"query": 0.0, "keep": 0.0}})
        _tables(wh)
        names = ("revenue", "segments", "lines", "days")
        for name in names:
            wh.sql(f"CREATE MATERIALIZED VIEW {name} TBLPROPERTIES ('refresh'='incremental') AS {_VIEWS[name]}")
        for statement in (
            "INSERT INTO line SELECT l_o, l + 1000, price, discount, shipped FROM line",
            "UPDATE line SET price = price + 1 WHERE l_o < 20",
            "UPDATE customer SET segment = 'A', note = 'x' WHERE c < 9",
        ):
            wh.sql(statement)
            wh.maintain()
        assert [name for name in names if not wh.check(name).ok] == []
        parts = [part for plan in seen for part in plan.parts]
        assert any(part.local is None and len(part.users) > 1 for part in parts)
        assert any({"revenue", "lines"} <= {*part.users} for part in parts)  # one of them selects a segment
        shared = [job for job in wh.history() if "shared" in job.phases]
        assert any(job.engine.startswith("spark") for job in shared)
        assert not list((tmp_path / "w").glob("**/stage*/*.parquet"))


def test_a_shared_part_that_fails_on_spark_leaves_no_files(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its views are refreshed all the same, each by a job of its own."""
    real, failed = SparkEngine.write, list[Path]()

    def fail_once(self: SparkEngine, frame: Any, relation_id: int, folder: str, what: str) -> tuple[DataFile, ...]:
        files = real(self, frame, relation_id, folder, what)
        if folder.startswith("stage") and not failed:
            failed.extend((tmp_path / "w").glob("**/stage*/*.parquet"))
            raise SparkFailed("no space is left")
        return files

    monkeypatch.setattr(cost, "DRIVER_CELLS", 0)
    monkeypatch.setattr(reader, "LOCAL_ROWS", 0)
    monkeypatch.setattr(SparkEngine, "write", fail_once)
    with freshview.connect(tmp_path / "w", spark=spark) as wh:
        StatisticsCatalog(internals(wh).catalog).set_prices({"spark": {"query": 0.0, "keep": 0.0}})
        _tables(wh)
        for name in ("revenue", "days"):
            wh.sql(f"CREATE MATERIALIZED VIEW {name} TBLPROPERTIES ('refresh'='incremental') AS {_VIEWS[name]}")
        wh.sql("INSERT INTO line SELECT l_o, l + 1000, price, discount, shipped FROM line")
        assert not any("shared" in job.phases for job in wh.maintain())
        assert failed
        assert not list((tmp_path / "w").glob("**/stage*/*.parquet"))
        assert all(wh.check(name).ok for name in ("revenue", "days"))
