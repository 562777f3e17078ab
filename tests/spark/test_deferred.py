"""Deferred views in a warehouse (DEFER): what a query sees, the statements, the policies, the invariants."""

from __future__ import annotations

import random
import threading
import time
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from tests.effort import seed_of
from tests.internals import internals
from tests.spark.sessions import on_a_quiet_machine, rows

import freshview
from freshview import Warehouse
from freshview.catalog import tables as t
from freshview.errors import InvalidStatement, NotMaintainable
from freshview.events import Event

SCENARIOS = ("base-log", "differential", "combined")
RETAIL = (
    "SELECT c.custId, c.name, c.score, s.itemNo, s.quantity FROM customer c, sales s "
    "WHERE c.custId = s.custId AND s.quantity != 0 AND c.score = 'High'"
)


def make(wh: Warehouse, name: str, query: str, scenario: str = "combined", **properties: str) -> None:
    given = {"maintenance": "deferred", "scenario": scenario, **properties}
    listed = ", ".join(f"'{k.replace('__', '.')}'='{v}'" for k, v in given.items())
    wh.sql(f"CREATE MATERIALIZED VIEW {name} TBLPROPERTIES ({listed}) AS {query}")


@pytest.fixture
def shop(swh: Warehouse) -> Warehouse:
    """The retail example of DEFER §1.1, with an aggregate that the paper would rather have had."""
    swh.sql("CREATE TABLE sales (custId INT, itemNo INT, quantity INT, salesPrice INT)")
    swh.sql("CREATE TABLE customer (custId INT PRIMARY KEY, name STRING, address STRING, score STRING)")
    swh.sql("INSERT INTO customer VALUES (1, 'Ann', 'x', 'High'), (2, 'Bob', 'y', 'Low')")
    swh.sql("INSERT INTO sales VALUES (1, 10, 2, 5), (1, 10, 2, 5), (2, 11, 1, 5)")
    return swh


# -- what a query sees -------------------------------------------------------------------------------


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_query_sees_the_last_refresh_unless_it_asks_for_more(shop: Warehouse, scenario: str) -> None:
    make(shop, "v", "SELECT custId, count(*) AS n FROM sales GROUP BY custId", scenario)
    then, now = [(1, 2), (2, 1)], [(1, 2), (2, 2), (3, 1)]
    shop.sql("INSERT INTO sales VALUES (2, 12, 1, 5), (3, 12, 1, 5)")
    csn = shop.status().csn
    assert rows(shop, "SELECT * FROM v") == then
    assert rows(shop, "SELECT * FROM v", freshness="any") == then
    assert rows(shop, "SELECT * FROM v", freshness=timedelta(hours=1)) == then
    assert rows(shop, "SELECT * FROM v", freshness="fresh") == now
    assert rows(shop, "SELECT * FROM v", freshness=timedelta(0)) == now
    assert rows(shop, "SELECT * FROM v", as_of=csn) == now
    assert rows(shop, f"SELECT * FROM v VERSION AS OF {csn}") == now
    assert rows(shop, "SELECT * FROM v") == then  # others are shown nothing of it
    (status,) = shop.status().views
    assert (status.frontier < csn) == (scenario == "base-log")  # which keeps no differentials
    shop.refresh("v")
    assert rows(shop, "SELECT * FROM v") == now
    assert shop.check("v", invariant=True).ok


def test_readers_are_not_kept_waiting_by_a_propagation(shop: Warehouse) -> None:
    make(shop, "v", RETAIL)
    shop.sql("INSERT INTO sales VALUES (1, 12, 1, 5)")
    computed, go_on = threading.Event(), threading.Event()

    def pause(event: Event) -> None:
        if event.name == "job.computed":
            computed.set()
            go_on.wait(60)

    shop.events.listen(pause)
    worker = threading.Thread(target=lambda: shop.propagate("v"))
    worker.start()
    try:
        assert computed.wait(60)
        assert len(rows(shop, "SELECT * FROM v")) == 2  # while the job waits
        assert shop.partial_refresh("v").rows == 0
    finally:
        go_on.set()
        worker.join()
    assert shop.partial_refresh("v").rows == 1
    assert len(rows(shop, "SELECT * FROM v")) == 3


def test_a_transaction_sees_one_state_without_its_writes(shop: Warehouse) -> None:
    make(shop, "v", "SELECT custId, count(*) AS n FROM sales GROUP BY custId")
    with shop.transaction() as tx:
        before = sorted(tuple(r) for r in tx.sql("SELECT * FROM v").collect())
        shop.sql("INSERT INTO sales VALUES (7, 1, 1, 1)")
        shop.refresh("v")
        tx.sql("INSERT INTO sales VALUES (8, 1, 1, 1)")
        assert sorted(tuple(r) for r in tx.sql("SELECT * FROM v").collect()) == before
    assert len(rows(shop, "SELECT * FROM v")) == 3


def test_a_lazy_view_over_a_deferred_one_is_fresh(shop: Warehouse) -> None:
    make(shop, "v", "SELECT custId, count(*) AS n FROM sales GROUP BY custId")
    shop.sql("CREATE MATERIALIZED VIEW top AS SELECT max(n) AS n FROM v")
    shop.sql("INSERT INTO sales VALUES (1, 12, 1, 5)")
    assert rows(shop, "SELECT * FROM top") == [(3,)]
    assert (1, 2) in rows(shop, "SELECT * FROM v")
    assert shop.check("top").ok
    assert shop.check("v", invariant=True).ok


def test_differentials_of_a_keyed_view_hold_both_images(shop: Warehouse) -> None:
    """Composition and invariants cancel whole rows: they rely on both images, whatever key the view has."""
    make(shop, "v", "SELECT * FROM customer")
    assert internals(shop).relation("v").schema.key == ("custId",)
    before = rows(shop, "SELECT * FROM v")
    for score in ("Middle", "Lower", "Lowest"):
        shop.sql(f"UPDATE customer SET score = '{score}' WHERE custId = 2")
        shop.sql("REFRESH MATERIALIZED VIEW v PROPAGATE")
    assert rows(shop, "SELECT * FROM v") == before
    assert shop.check("v").ok
    assert shop.sql("REFRESH MATERIALIZED VIEW v PARTIAL").rows == 2  # one image each way: the others have cancelled
    assert sorted(rows(shop, "SELECT * FROM v")) == sorted(rows(shop, "SELECT * FROM customer"))


# -- statements ----------------------------------------------------------------------------------------


def test_the_statements_do_what_figure_3_says(shop: Warehouse) -> None:
    make(shop, "v", RETAIL)
    shop.sql("INSERT INTO sales VALUES (1, 12, 1, 5)")
    propagated = shop.sql("REFRESH MATERIALIZED VIEW v PROPAGATE")
    assert propagated.rows == 1
    assert len(rows(shop, "SELECT * FROM v")) == 2
    shop.sql("UPDATE customer SET score = 'High' WHERE custId = 2")
    shown = shop.sql("REFRESH MATERIALIZED VIEW v PARTIAL")
    assert (shown.rows, shown.csn) == (1, propagated.csn)
    assert len(rows(shop, "SELECT * FROM v")) == 3
    assert shop.sql("REFRESH MATERIALIZED VIEW v").csn == shop.status().csn
    assert len(rows(shop, "SELECT * FROM v")) == 4
    shop.sql("DELETE FROM sales WHERE custId = 1")
    shop.sql("REFRESH MATERIALIZED VIEW v FULL")
    assert rows(shop, "SELECT * FROM v") == [(2, "Bob", "High", 11, 1)]


def test_what_makes_no_sense_is_refused(shop: Warehouse) -> None:
    query = "SELECT custId FROM sales"
    for properties, why in (
        ({"scenario": "both"}, "'scenario'='both': is not among combined, base-log, differential"),
        ({"propagate": "hourly"}, "'propagate'='hourly': is no policy"),
        ({"propagate": "every 0 hours"}, "is no policy"),
        ({"propagate": "every 1 hour", "refresh__policy": "every 60 minutes"}, "propagated no more often than that"),
        ({"propagate": "on query"}, "is for refreshing"),
        ({"refresh__policy": "idle"}, "is for propagating"),
        ({"scenario": "base-log", "propagate": "idle"}, "has no differential tables"),
        ({"scenario": "base-log", "refresh__policy": "partial every 1 day"}, "has no differential tables"),
        ({"scenario": "differential", "propagate": "every 1 hour"}, "each commit propagates"),
        ({"maintenance": "lazy", "propagate": "idle"}, "only deferred views have it"),
    ):
        with pytest.raises(InvalidStatement, match=why):
            make(shop, "v", query, **{"scenario": "combined", **properties})
    shop.sql(f"CREATE MATERIALIZED VIEW lazy AS {query}")
    for statement in ("PROPAGATE", "PARTIAL"):
        with pytest.raises(InvalidStatement, match="view lazy: it is not deferred"):
            shop.sql(f"REFRESH MATERIALIZED VIEW lazy {statement}")
    with pytest.raises(InvalidStatement, match="only deferred views have it"):
        shop.sql("ALTER MATERIALIZED VIEW lazy SET TBLPROPERTIES ('propagate'='idle')")
    with pytest.raises(NotMaintainable, match="reads lazy, which is not eager"):
        make(shop, "v", "SELECT * FROM lazy", "differential")
    assert [v.name for v in shop.status().views] == ["lazy"]


def test_changing_mode_and_scenario_keeps_the_rows(shop: Warehouse) -> None:
    shop.sql(f"CREATE MATERIALIZED VIEW v AS {RETAIL}")
    was = len(shop.history("v"))
    sales = 2
    for given, deferred in (
        ("'maintenance'='deferred'", True),
        ("'scenario'='base-log'", True),
        ("'scenario'='differential'", True),
        ("'maintenance'='eager'", False),
        ("'maintenance'='deferred', 'scenario'='combined'", True),
        ("'maintenance'='lazy'", False),
    ):
        shop.sql(f"ALTER MATERIALIZED VIEW v SET TBLPROPERTIES ({given})")
        shown = len(rows(shop, "SELECT * FROM v"))
        shop.sql("INSERT INTO sales VALUES (1, 12, 1, 5)")
        sales += 1
        assert len(rows(shop, "SELECT * FROM v")) == (shown if deferred else sales), given
        assert shop.check("v", invariant=True).ok, given
    assert {j.strategy for j in shop.history("v")[was:]} <= {"incremental", "nothing", "shown"}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_examples_of_the_paper_in_every_scenario(swh: Warehouse, scenario: str) -> None:
    """DEFER §1.2: multiplicities, and a row that moves; and a table that occurs three times."""
    for statement in (
        "CREATE TABLE R (A STRING, B STRING)",
        "CREATE TABLE S (B STRING, C STRING)",
        "INSERT INTO R VALUES ('a1', 'b1')",
        "INSERT INTO S VALUES ('b1', 'c1'), ('b1', 'c2'), ('b2', 'c1')",
        "CREATE TABLE X (x STRING)",
        "CREATE TABLE Y (x STRING)",
        "INSERT INTO X VALUES ('a'), ('b'), ('c')",
        "INSERT INTO Y VALUES ('c'), ('d')",
    ):
        swh.sql(statement)
    by_deltas = {"refresh": "incremental"}
    make(swh, "U", "SELECT R.A FROM R, S WHERE R.B = S.B", scenario, **by_deltas)
    make(swh, "D", "SELECT x FROM X EXCEPT ALL SELECT x FROM Y", scenario, **by_deltas)
    make(swh, "T", "SELECT p.A FROM R p, R q, R r WHERE p.A = q.A AND q.A = r.A", scenario, **by_deltas)
    with swh.transaction() as tx:
        tx.sql("INSERT INTO R VALUES ('a1', 'b2')")
        tx.sql("INSERT INTO S VALUES ('b2', 'c2')")
        tx.sql("DELETE FROM X WHERE x = 'b'")
        tx.sql("INSERT INTO Y VALUES ('b')")
    before = {name: rows(swh, f"SELECT * FROM {name}") for name in "UDT"}
    assert before == {"U": [("a1",)] * 2, "D": [("a",), ("b",)], "T": [("a1",)]}
    for name in "UDT":
        swh.refresh(name)
    after = {name: rows(swh, f"SELECT * FROM {name}") for name in "UDT"}
    assert after == {"U": [("a1",)] * 4, "D": [("a",)], "T": [("a1",)] * 8}
    assert {j.strategy for j in swh.history()} <= {"incremental", "nothing", "shown"}


def test_maintaining_all_views_shows_nothing_of_a_deferred_one_unless_it_is_named(shop: Warehouse) -> None:
    for scenario in SCENARIOS:
        make(shop, scenario.replace("-", "_"), "SELECT custId FROM sales", scenario)
    names = ["base_log", "differential", "combined"]
    newest = shop.sql("INSERT INTO sales VALUES (1, 12, 1, 5)").csn
    shop.maintain()
    assert [len(rows(shop, f"SELECT * FROM {v}")) for v in names] == [3, 3, 3]
    assert {v.name: v.frontier == newest for v in shop.status().views} == {
        "base_log": False,
        "differential": True,
        "combined": True,
    }
    assert [j.view for j in shop.maintain(names)] == ["base_log"]
    assert [len(rows(shop, f"SELECT * FROM {v}")) for v in names] == [4, 4, 4]


# -- invariants ------------------------------------------------------------------------------------------


def test_a_broken_invariant_is_found(shop: Warehouse) -> None:
    """Each check can fail: rows are taken from the differentials and put where they do not belong."""
    make(shop, "v", RETAIL)
    shop.sql("INSERT INTO sales VALUES (1, 12, 1, 5)")
    shop.sql("DELETE FROM sales WHERE itemNo = 10")
    shop.propagate("v")
    sound = shop.check("v", invariant=True)
    assert sound.ok
    assert {i.name for i in sound.invariants} == {"INV_C", "weak minimality", "strong minimality"}
    view = internals(shop).relation("v")
    with internals(shop).writing_database() as c:  # as if the differentials were applied twice
        c.execute(t.frontiers.update().where(t.frontiers.c.view_id == view.id).values(shown=t.frontiers.c.csn))
        newest = c.execute(sa.select(t.segments).where(t.segments.c.relation_id == view.id)).all()[-1]
        later = {**newest._mapping, "csn": newest.csn + 1}
        c.execute(t.segments.insert().values(**later))
        c.execute(t.clock.update().values(csn=t.clock.c.csn + 1))
        c.execute(t.frontiers.update().where(t.frontiers.c.view_id == view.id).values(csn=t.frontiers.c.csn + 1))
    broken = shop.check("v", invariant=True)
    assert not broken.ok
    told = {i.says: i.ok for i in broken.invariants}
    assert not told["PAST(L, Q) ≡ (MV ∸ ∇MV) ⊎ ΔMV"]
    assert not told["∇MV ⊆ MV"]
    assert any("rows are missing" in str(i) for i in broken.invariants)


def test_invariants_hold_after_every_step(shop: Warehouse) -> None:
    """Random steps over views of every scenario: joins, sums, outer joins and differences."""
    seed = seed_of(1)
    print(f"seed {seed}")
    draw = random.Random(seed)
    queries = (
        RETAIL,
        "SELECT score, count(*) AS n, sum(quantity) AS q FROM customer JOIN sales USING (custId) GROUP BY score",
        "SELECT c.custId, s.itemNo FROM customer c LEFT JOIN sales s ON c.custId = s.custId AND quantity > 1",
        "SELECT custId FROM sales EXCEPT ALL SELECT custId FROM customer",
    )
    for i, scenario in enumerate(SCENARIOS):
        make(shop, f"v{i}", queries[draw.randrange(len(queries))], scenario)
    shown = {f"v{i}": rows(shop, f"SELECT * FROM v{i}") for i in range(3)}
    for _ in range(10):
        name = f"v{draw.randrange(3)}"
        match draw.choice(("write", "write", "propagate", "partial", "refresh", "fold")):
            case "write":
                customer, score = draw.randint(1, 3), draw.choice(("High", "Low"))
                with shop.transaction() as tx:
                    tx.insert(
                        "sales", [{"custId": customer, "itemNo": 1, "quantity": draw.randint(0, 3), "salesPrice": 1}]
                    )
                    tx.upsert("customer", [{"custId": customer, "name": "N", "address": "x", "score": score}])
            case "propagate" if name != "v0":
                shop.propagate(name)
            case "partial" if name != "v0":
                shop.partial_refresh(name)
                shown[name] = rows(shop, f"SELECT * FROM {name}")
            case "refresh":
                shop.refresh(name)
                shown[name] = rows(shop, f"SELECT * FROM {name}", freshness="fresh")
            case "fold":
                shop.sql(f"CHECKPOINT {name}")
        for view, expected in shown.items():
            assert rows(shop, f"SELECT * FROM {view}") == expected
        report = shop.check(name, invariant=True)
        assert report.ok, [str(i) for i in report.invariants]


# -- policies --------------------------------------------------------------------------------------------


def test_on_query_a_view_is_refreshed_as_its_policy_says(shop: Warehouse) -> None:
    query = "SELECT custId FROM sales"
    make(shop, "whole", query, refresh__policy="on query")
    make(shop, "partly", query, refresh__policy="partial on query")
    shop.sql("INSERT INTO sales VALUES (1, 12, 1, 5)")
    assert [len(rows(shop, f"SELECT * FROM {v}")) for v in ("whole", "partly")] == [4, 3]
    shop.propagate("partly")
    assert len(rows(shop, "SELECT * FROM partly", freshness="any")) == 3
    assert len(rows(shop, "SELECT * FROM partly")) == 4


def test_the_manager_keeps_to_the_policies(shop: Warehouse, monkeypatch: pytest.MonkeyPatch, spark: Any) -> None:
    query = "SELECT custId FROM sales"
    make(shop, "idle", query, refresh__policy="partial every 1 second")
    make(shop, "often", query, propagate="every 1 second", refresh__policy="every 2 seconds")
    make(shop, "logged", query, "base-log", refresh__policy="every 1 second")
    make(shop, "never", query, propagate="on demand")
    listed = {r.name: r for r in shop.sql("SHOW MATERIALIZED VIEWS").collect()}
    assert listed["idle"].mode == "deferred (combined)"
    assert listed["idle"].next.startswith("propagate when idle, partial refresh at 20")
    assert listed["often"].next.startswith("propagate at 20")
    assert listed["never"].next == ""
    assert "mode: deferred (base-log); shows CSN" in shop.explain("logged")
    newest = shop.sql("INSERT INTO sales VALUES (1, 12, 1, 5)").csn
    on_a_quiet_machine(monkeypatch, 0.1)
    with freshview.connect(shop.path, spark=spark, background=True) as served:
        until = time.monotonic() + 60
        names = {"idle", "often", "logged"}
        while time.monotonic() < until and not names <= _showing(served, newest):
            time.sleep(0.2)
    assert {name: len(rows(shop, f"SELECT * FROM {name}")) for name in (*names, "never")} == {
        "idle": 4,
        "often": 4,
        "logged": 4,
        "never": 3,
    }


def _showing(wh: Warehouse, csn: int) -> set[str]:
    """Deferred views that show a commit; asking this is no foreground work, which would hold the manager back."""
    return {v.name for v in wh.status().views if v.shown is not None and v.shown >= csn}
