"""Views in status(), SHOW and EXPLAIN, and the advice on their mode, followed where it was asked for."""

from __future__ import annotations

from datetime import timedelta

import pytest
from tests.internals import internals

from freshview import Warehouse
from freshview.catalog import tables as t
from freshview.catalog.views import ViewCatalog
from freshview.events import Event

SECOND = 1_000_000
HOUR = 3600 * SECOND


@pytest.fixture
def views(swh: Warehouse) -> Warehouse:
    swh.sql("CREATE TABLE t (k INT, v INT, PRIMARY KEY (k))")
    swh.sql(
        "CREATE MATERIALIZED VIEW low TBLPROPERTIES ('maintenance'='auto') AS SELECT v, count(*) n FROM t GROUP BY v"
    )
    swh.sql("CREATE MATERIALIZED VIEW high AS SELECT sum(n) n FROM low")
    return swh


def put(wh: Warehouse, k: int) -> None:
    with wh.transaction() as tx:
        tx.upsert("t", [{"k": k, "v": k % 3}])


def test_status_show_and_explain_tell_of_views(views: Warehouse) -> None:
    start = {v.name: v for v in views.status().views}
    assert [(v.name, v.mode, v.eager, v.pending_tasks) for v in start.values()] == [
        ("high", "lazy", False, 0),
        ("low", "auto", False, 0),
    ]
    put(views, 1)
    put(views, 2)
    status = views.status()
    low = status.views[1]
    assert (low.pending_tasks, low.pending_rows, low.frontier) == (2, 2, start["low"].frontier)
    assert low.age > timedelta(0)
    assert not low.in_progress
    assert low.advice == "lazy, since not enough is known (2 updates, 10 are needed)"
    assert [h.name for h in status.holders if h.kind == "view"] == ["low", "high"]
    shown = views.sql("SHOW MATERIALIZED VIEWS").collect()
    assert [(r["name"], r["mode"], r["tasks"], r["status"]) for r in shown] == [
        ("high", "lazy", "2", "pending"),
        ("low", "auto (lazy now)", "2", "pending"),
    ]
    lines = [r["plan"] for r in views.sql("EXPLAIN REFRESH MATERIALIZED VIEW low").collect()]
    assert "  mode: auto (lazy now); advice: lazy, since not enough is known (2 updates, 10 are needed)" in lines
    assert "\n  mode: lazy; advice: " in views.explain("high")
    assert views.sql("SELECT n FROM high").collect()[0]["n"] == 2
    assert [(v.pending_tasks, v.age) for v in views.status().views] == [(0, timedelta(0))] * 2
    assert [h for h in views.status().holders if h.kind == "view"] == []


def test_a_failed_job_is_told_until_the_next_one(swh: Warehouse) -> None:
    swh.sql("CREATE TABLE t (k INT, v STRING, PRIMARY KEY (k))")
    swh.sql("CREATE MATERIALIZED VIEW n AS SELECT k, CAST(v AS INT) AS v FROM t")
    swh.sql("INSERT INTO t VALUES (1, 'x')")
    with pytest.raises(Exception, match="cast"):
        swh.maintain(["n"])
    (view,) = swh.status().views
    assert "CAST_INVALID_INPUT" in (view.last_error or "")
    assert swh.sql("SHOW MATERIALIZED VIEWS").collect()[0]["status"].startswith("failed: ")
    swh.sql("UPDATE t SET v = '1' WHERE k = 1")
    swh.maintain(["n"])
    assert [v.last_error for v in swh.status().views] == [None]


def used_at_once(wh: Warehouse, name: str) -> None:
    """Make a view look watched for ten hours: rare updates, queries all the time, quick jobs."""
    catalog, view = internals(wh).catalog, internals(wh).relation(name)
    for k in range(12):
        put(wh, k)
        wh.maintain([name])
    now = catalog.now()
    ViewCatalog(catalog).note_uses({view.id: (1, now - 1000 * SECOND)})
    ViewCatalog(catalog).note_uses({view.id: (100, now)})
    commits, jobs = t.commits.c, t.jobs.c
    with catalog.database.write() as c:
        old = t.commits.update().where(commits.csn <= view.created_csn)
        c.execute(old.values(committed_at=commits.committed_at - 10 * HOUR))
        c.execute(t.jobs.update().values(started_at=jobs.finished_at - SECOND // 5))


def test_advice_is_followed_where_it_was_asked_for(views: Warehouse) -> None:
    """Law: 'auto' becomes eager when that is clearly better, and then no commit leaves it a task; others stay lazy."""
    heard: list[Event] = []
    views.events.listen(heard.append)
    used_at_once(views, "low")
    assert (
        views.status().views[1].advice.startswith("eager, since updates are few and small, and queries follow at once")
    )
    internals(views).follow_advice()
    assert not views.status().views[1].eager  # it is not due
    internals(views).follow_advice(is_due=True)
    assert [e.details["view"] for e in heard if e.name == "advice.applied"] == ["low"]
    high, low = views.status().views
    assert ((high.mode, high.eager), (low.mode, low.eager)) == (("lazy", False), ("auto", True))
    assert "mode: auto (eager now); advice: eager" in views.explain("low")
    put(views, 100)
    high, low = views.status().views
    assert (high.pending_tasks > 0, low.pending_tasks) == (True, 0)
    assert views.check("low").ok
