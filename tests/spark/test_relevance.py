"""A query skips maintenance when pending deltas cannot matter to it (LAZY §3.5): no job runs, the answer is right."""

from __future__ import annotations

import random
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.internals import internals
from tests.spark.sessions import jobs_run, rows, setting

from freshview import Warehouse
from freshview.errors import FreshviewError
from freshview.events import Event
from freshview.refresh import relevance
from freshview.refresh.times import Times

_BY_CITY = "SELECT city, count(*) n, sum(amount) total FROM c JOIN s ON c.id = s.customer GROUP BY city"


class Watched:
    """A warehouse, and what its queries skipped."""

    def __init__(self, wh: Warehouse) -> None:
        self.wh = wh
        self.skipped: list[dict[str, Any]] = []
        self.in_part: list[dict[str, Any]] = []
        wh.events.listen(self._note)

    def _note(self, event: Event) -> None:
        if event.name == "view.skipped":
            self.skipped.append(event.details)
        if event.name == "view.part":
            self.in_part.append(event.details)

    def skips(self, query: str, **options: Any) -> bool:
        """Was a query answered without maintenance? Then no job ran; else one did. Either way it is right."""
        jobs, before, parts = len(self.wh.history()), len(self.skipped), len(self.in_part)
        found = rows(self.wh, query, **options)
        assert found == rows(self.wh, _from_definitions(self.wh, query), **options), query
        skipped = len(self.skipped) > before
        assert not ((skipped or len(self.in_part) > parts) and len(self.wh.history()) > jobs), query
        return skipped


def _from_definitions(wh: Warehouse, query: str) -> str:
    """The query over the definitions of all views, instead of what is stored."""
    views = [r for r in internals(wh).relations() if r.kind == "view"]
    lower_first = sorted(views, key=lambda r: r.id)
    named = ", ".join(f"{r.name} AS ({r.facts['definition']})" for r in lower_first)
    return f"WITH {named}, {query[5:]}" if query.startswith("WITH ") else f"WITH {named} {query}"


@pytest.fixture
def watched(swh: Warehouse) -> Watched:
    swh.sql("CREATE TABLE c (id INT, city STRING, PRIMARY KEY (id))")
    swh.sql("CREATE TABLE s (id INT, customer INT, amount DECIMAL(10,2), weight DOUBLE, note STRING, PRIMARY KEY (id))")
    swh.sql("INSERT INTO c VALUES (1, 'A'), (2, 'B'), (3, NULL), (4, 'A')")
    given = "(1, 1, 10, 0.1, '1'), (2, 1, 5.5, 0.2, '2'), (3, 2, NULL, 0.3, '3'), (4, 3, 1, 0.7, 'x')"
    swh.sql(f"INSERT INTO s VALUES {given}")
    return Watched(swh)


def test_a_query_that_no_delta_touches_runs_no_job(watched: Watched, spark: SparkSession) -> None:
    wh = watched.wh
    wh.sql(f"CREATE MATERIALIZED VIEW v AS {_BY_CITY}")
    first = wh.sql("UPDATE c SET city = 'C' WHERE id = 2").csn
    last = wh.sql("INSERT INTO c VALUES (9, 'B')").csn
    found: list[Any] = []
    assert jobs_run(spark, lambda: found.extend(wh.sql("SELECT * FROM v WHERE city = 'A'").collect())) == 0
    assert [tuple(r)[:2] for r in found] == [("A", 2)]
    assert wh.history() == []
    (event,) = watched.skipped
    assert (event["view"], event["to_csn"]) == ("v", last)
    assert event["from_csn"] < first
    for query in (
        "SELECT sum(total) FROM v WHERE city IN ('A', 'Z') AND n > 0",
        "SELECT * FROM s JOIN v ON v.city = 'A' AND v.n = s.id",
        "SELECT * FROM c WHERE EXISTS (SELECT 1 FROM v WHERE v.city = 'A' AND v.n = c.id)",
        "WITH q AS (SELECT * FROM v WHERE city < 'B') SELECT * FROM q JOIN q p ON q.n = p.n",
    ):
        assert watched.skips(query), query
    assert wh.history() == []


def test_a_query_that_a_delta_touches_maintains(watched: Watched) -> None:
    wh = watched.wh
    wh.sql(f"CREATE MATERIALIZED VIEW v AS {_BY_CITY}")
    for number, query in enumerate(
        [
            "SELECT * FROM v WHERE city = 'B'",
            "SELECT * FROM v WHERE n > 0",
            "SELECT * FROM v",
            "SELECT * FROM v WHERE upper(city) = 'A'",
            "SELECT * FROM v WHERE city = 'A' OR n = 7",
            "SELECT * FROM v JOIN v w ON v.n = w.n WHERE v.city = 'A' AND w.city = 'A'",
            "SELECT * FROM c LEFT JOIN v ON c.city = v.city WHERE v.city IS NULL",
        ]
    ):
        wh.sql(f"UPDATE s SET amount = {number} WHERE id = 3")
        assert not watched.skips(query), query
        assert len(wh.history()) == number + 1
    assert watched.skipped == []


def test_a_query_without_conditions_asks_spark_for_no_settings(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of its text is evaluated over pending rows, so that no two sessions have to agree on it."""
    wh = watched.wh
    wh.sql(f"CREATE MATERIALIZED VIEW v AS {_BY_CITY}")
    wh.sql("UPDATE c SET city = 'C' WHERE id = 2")
    asked: list[object] = []
    agree = relevance._agree

    def counted(*given: Any) -> bool:
        asked.append(given)
        return agree(*given)

    monkeypatch.setattr(relevance, "_agree", counted)
    assert watched.skips("SELECT * FROM v WHERE city = 'A'")
    assert len(asked) == 1
    assert not watched.skips("SELECT * FROM v")
    assert len(asked) == 1


def test_after_a_skip_everybody_else_is_fresh(watched: Watched) -> None:
    wh = watched.wh
    wh.sql(f"CREATE MATERIALIZED VIEW v AS {_BY_CITY}")
    wh.sql("UPDATE c SET city = 'C' WHERE id = 2")
    assert watched.skips("SELECT * FROM v WHERE city = 'A'")
    assert len(wh.sql("SHOW TASKS").collect()) == 1
    assert not watched.skips("SELECT * FROM v")
    assert [j.strategy for j in wh.history()] != []
    assert not watched.skips("SELECT * FROM v WHERE city = 'A'")  # nothing is pending: nothing to skip
    assert wh.check("v").ok


def test_an_old_image_counts_too(watched: Watched) -> None:
    """A blind upsert takes a row out of the group A: it says only what the row will be."""
    wh = watched.wh
    wh.sql(f"CREATE MATERIALIZED VIEW v AS {_BY_CITY}")
    with wh.transaction() as tx:
        tx.upsert("c", [{"id": 1, "city": "B"}])
    assert not watched.skips("SELECT * FROM v WHERE city = 'A'")
    with wh.transaction() as tx:
        tx.delete("c", [2])
    assert watched.skips("SELECT * FROM v WHERE city = 'A'")
    assert not watched.skips("SELECT * FROM v WHERE city = 'B'")


def test_null_meets_only_what_asks_for_it(watched: Watched) -> None:
    wh = watched.wh
    wh.sql(f"CREATE MATERIALIZED VIEW v AS {_BY_CITY}")
    wh.sql("INSERT INTO s VALUES (9, 9, 100, 0, NULL)")
    wh.maintain()
    wh.sql("INSERT INTO c VALUES (9, NULL)")
    for query in ("city = 'A'", "city <> 'A'", "city NOT IN ('A', NULL)", "NOT (city = 'A')", "city IS NOT NULL"):
        assert watched.skips(f"SELECT * FROM v WHERE {query}"), query
    for number, query in enumerate(("city IS NULL", "city <=> NULL", "NOT (city IS NOT NULL)", "(city = 'A') IS NULL")):
        assert not watched.skips(f"SELECT * FROM v WHERE {query}"), query
        wh.sql("DELETE FROM c WHERE id = 9" if number % 2 == 0 else "INSERT INTO c VALUES (9, NULL)")


def test_a_predicate_that_fails_on_the_delta_maintains(watched: Watched) -> None:
    """What the test cannot evaluate is not skipped; the query tells of the error itself."""
    wh = watched.wh
    wh.sql("CREATE MATERIALIZED VIEW v AS SELECT id, note FROM s WHERE id < 4")
    query = "SELECT * FROM v WHERE CAST(note AS INT) = 1"
    wh.sql("UPDATE s SET note = '7' WHERE id = 3")
    assert watched.skips(query)
    wh.sql("UPDATE s SET note = 'seven' WHERE id = 3")
    with pytest.raises(Exception, match="CAST_INVALID_INPUT"):
        wh.sql(query).collect()
    assert len(wh.history("v")) == 1
    wh.sql("UPDATE s SET note = 'eight' WHERE id = 4")  # the view's own filter: such rows are not looked at
    assert watched.skips("SELECT * FROM v WHERE note = '1'")


def test_a_view_over_views_looks_down_to_the_tables(watched: Watched) -> None:
    wh = watched.wh
    wh.sql("CREATE MATERIALIZED VIEW low AS SELECT c.city, s.customer, s.amount FROM c JOIN s ON c.id = s.customer")
    wh.sql("CREATE MATERIALIZED VIEW high AS SELECT city, sum(amount) total FROM low WHERE amount > 2 GROUP BY city")
    recomputed = (
        "SELECT city, sum(amount) total FROM (SELECT c.city, s.amount FROM c JOIN s ON c.id = s.customer)"
        " WHERE amount > 2 GROUP BY city HAVING city = 'A'"
    )
    wh.sql("UPDATE c SET city = 'C' WHERE id = 2")
    assert rows(watched.wh, "SELECT * FROM high WHERE city = 'A'") == rows(watched.wh, recomputed)
    wh.sql("INSERT INTO s VALUES (9, 1, 1, 0, NULL)")  # of A, but too small an amount
    assert rows(watched.wh, "SELECT * FROM high WHERE city = 'A'") == rows(watched.wh, recomputed)
    assert [e["view"] for e in watched.skipped] == ["high", "high"]
    assert wh.history() == []
    wh.sql("INSERT INTO s VALUES (10, 4, 50, 0, NULL)")
    assert rows(watched.wh, "SELECT * FROM high WHERE city = 'A'") == rows(watched.wh, recomputed)
    assert {j.view for j in wh.history()} == {"low", "high"}


def test_other_settings_than_the_views_skip_nothing(watched: Watched, spark: SparkSession) -> None:
    wh = watched.wh
    wh.sql(f"CREATE MATERIALIZED VIEW v AS {_BY_CITY}")
    zone = spark.conf.get("spark.sql.session.timeZone")
    for settings in (
        {"spark__sql__session__timeZone": "Asia/Tokyo" if zone != "Asia/Tokyo" else "UTC"},
        {"spark__sql__timestampType": "TIMESTAMP_NTZ"},
    ):
        wh.sql("UPDATE c SET city = concat(city, 'C') WHERE id = 2")
        with setting(spark, **settings):
            assert not watched.skips("SELECT * FROM v WHERE city = 'A'"), settings


def test_a_snapshot_of_the_past_and_a_transaction_skip_by_their_own_deltas(watched: Watched) -> None:
    wh = watched.wh
    wh.sql(f"CREATE MATERIALIZED VIEW v AS {_BY_CITY}")
    harmless = wh.sql("UPDATE c SET city = 'C' WHERE id = 2").csn
    with wh.transaction() as tx:
        wh.sql("UPDATE s SET amount = 70 WHERE id = 1")
        assert watched.skips("SELECT * FROM v WHERE city = 'A'", as_of=harmless)
        before = [tuple(r) for r in tx.sql("SELECT * FROM v WHERE city = 'A'").collect()]
        assert len(watched.skipped) == 2
        assert before == rows(watched.wh, "SELECT * FROM v WHERE city = 'A'", as_of=harmless)
        tx.sql("INSERT INTO s VALUES (20, 4, 4, 4, NULL)")
        inside = [tuple(r) for r in tx.sql("SELECT * FROM v WHERE city = 'A'").collect()]
        assert inside[0][1] == before[0][1] + 1
    assert not watched.skips("SELECT * FROM v WHERE city = 'A'")


def test_equal_keys_of_two_types_are_two_things(swh: Warehouse) -> None:
    """Law: '01' = 1, but the predicate on the text says nothing about the number."""
    watched = Watched(swh)
    swh.sql("CREATE TABLE t (k INT, x INT)")
    swh.sql("CREATE TABLE u (k STRING, y INT)")
    swh.sql("INSERT INTO u VALUES ('01', 1), ('2', 2)")
    swh.sql("CREATE MATERIALIZED VIEW v AS SELECT u.k, t.x FROM t JOIN u ON t.k = u.k")
    swh.sql("INSERT INTO t VALUES (1, 1)")
    assert not watched.skips("SELECT * FROM v WHERE k = '01' AND CAST(k AS STRING) = '01'")
    swh.sql("CREATE MATERIALIZED VIEW w AS SELECT b.k, a.x FROM t a JOIN t b ON a.k = b.k AND a.x <= b.x")
    swh.sql("INSERT INTO t VALUES (2, 2)")
    assert watched.skips("SELECT * FROM w WHERE k = 1")


def test_zeros_of_either_sign_are_one_group(watched: Watched) -> None:
    wh = watched.wh
    wh.sql("INSERT INTO s VALUES (5, 1, 1, 0.0, NULL)")
    wh.sql("CREATE MATERIALIZED VIEW v AS SELECT weight, count(*) n FROM s GROUP BY weight")
    with wh.transaction() as tx:
        tx.upsert("s", [{"id": 6, "customer": 1, "weight": -0.0}])
    # (Over the definition itself Spark asks this of the rows below the groups, and loses one of them.)
    assert rows(watched.wh, "SELECT * FROM v WHERE CAST(weight AS STRING) = '0.0'") == [(0.0, 2)]
    assert watched.skipped == []


def test_padded_strings_are_left_to_maintenance(swh: Warehouse) -> None:
    """CHAR columns compare with padding, and what a view makes of them may not."""
    watched = Watched(swh)
    swh.sql("CREATE TABLE t (k CHAR(3), x INT)")
    swh.sql("INSERT INTO t VALUES ('a', 1)")
    swh.sql("CREATE MATERIALIZED VIEW v AS SELECT k, x FROM t")
    for number, query in enumerate(("k = 'a'", "k <> 'a'", "k = 'b'", "x = 1")):
        swh.sql(f"INSERT INTO t VALUES ('b', {number + 5})")
        swh.sql(f"SELECT * FROM v WHERE {query}").collect()
        assert watched.skipped == []


def test_a_table_that_gets_another_column(watched: Watched) -> None:
    wh = watched.wh
    wh.sql(f"CREATE MATERIALIZED VIEW v AS {_BY_CITY}")
    wh.sql("UPDATE c SET city = 'C' WHERE id = 2")
    assert watched.skips("SELECT * FROM v WHERE city = 'A'")
    wh.sql("ALTER TABLE c ADD COLUMN more STRING")
    wh.sql("INSERT INTO c VALUES (9, 'B', 'more')")
    assert watched.skips("SELECT * FROM v WHERE city = 'A'")
    wh.sql("INSERT INTO c VALUES (10, 'A', 'more')")
    assert not watched.skips("SELECT * FROM v WHERE city = 'A'")


def test_many_pending_rows_are_not_looked_through(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    wh = watched.wh
    wh.sql(f"CREATE MATERIALIZED VIEW v AS {_BY_CITY}")
    wh.sql("UPDATE c SET city = 'C' WHERE id = 2")
    monkeypatch.setattr(relevance, "LOCAL_ROWS", 1)  # an update is two rows
    assert not watched.skips("SELECT * FROM v WHERE city = 'A'")


_VIEWS = {
    "sums": _BY_CITY,
    "rows_": "SELECT c.id, c.city, s.amount, s.note FROM c JOIN s ON c.id = s.customer",
    "filtered": "SELECT customer, max(amount) top FROM s WHERE note IS NOT NULL GROUP BY customer HAVING count(*) < 5",
    "outer_": "SELECT c.id, c.city, s.amount FROM c LEFT JOIN s ON c.id = s.customer",
    "ranked": "SELECT customer, id, rank() OVER (PARTITION BY customer ORDER BY amount) r FROM s",
    "tagged": "SELECT 'c' AS t, id FROM c UNION ALL SELECT 's' AS t, customer FROM s",
    "cubed": "SELECT city, customer, count(*) n FROM c JOIN s ON c.id = s.customer GROUP BY CUBE (city, customer)",
    "first": "SELECT id, amount FROM s ORDER BY amount DESC, id LIMIT 3",
    "recomputed": "SELECT id, amount FROM s ORDER BY amount DESC, id OFFSET 2",
    "above": "SELECT city, count(*) n FROM rows_ WHERE amount > 1 GROUP BY city",
}
_PREDICATES = {
    "city": ("city = 'A'", "city IS NULL", "city > 'A'", "city <> 'B'"),
    "customer": ("customer = 1", "customer > 2", "customer IS NULL", "customer + 1 = 3"),
    "id": ("id = 1", "id BETWEEN 2 AND 4", "id NOT IN (1, 2)"),
    "amount": ("amount > 5", "amount IS NULL", "amount / 2 = 2.75"),
    "note": ("note = '1'", "note IS NULL"),
    "t": ("t = 'c'", "t = 's'"),
    "n": ("n = 1",),
    "r": ("r = 1",),
    "top": ("top > 1",),
    "total": ("total > 1",),
}


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a query has to see of a change is computed for it alone."""
    monkeypatch.setattr(relevance.Relevance, "_saves", lambda *_: True)
    monkeypatch.setattr(relevance, "_FEW", 0.95)


@pytest.mark.usefixtures("parts")
def test_a_query_refreshes_only_the_part_of_a_view_that_it_needs(watched: Watched) -> None:
    """Law (DEFER §7): the query sees all commits, in rows that its conditions let through; the view stays stale, no
    job is recorded, and the next query without conditions maintains it."""
    wh = watched.wh
    wh.sql(f"CREATE MATERIALIZED VIEW v AS {_BY_CITY}")
    wh.sql("CREATE MATERIALIZED VIEW w AS SELECT c.id, c.city, s.amount FROM c LEFT JOIN s ON c.id = s.customer")
    with wh.transaction() as tx:
        tx.upsert("c", [{"id": 1, "city": "B"}, {"id": 2, "city": "A"}, {"id": 7, "city": "Z"}])
        tx.sql("UPDATE s SET amount = amount + 1")
        tx.sql("INSERT INTO s VALUES (8, 7, 1, 0.5, NULL), (9, 4, 2, 0.5, NULL)")
    for query in (
        "SELECT * FROM v WHERE city = 'A'",
        "SELECT * FROM v WHERE city = 'Z'",
        "SELECT max(total) FROM v WHERE city IN ('B', 'Y') AND n > 0",
        "SELECT * FROM v WHERE city IS NULL",
    ):
        assert not watched.skips(query), query
    seen = [(e["view"], e["rows"] < e["pending"]) for e in watched.in_part]
    assert seen == [("v", True)] * 4
    assert wh.history() == []
    assert len(wh.sql("SHOW TASKS").collect()) == 2
    watched.skips("SELECT * FROM v")
    assert {job.view for job in wh.history()} == {"v"}
    assert all(wh.check(view).ok for view in ("v", "w"))


def test_a_part_is_taken_if_past_jobs_say_that_it_saves_time(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    wh = watched.wh
    wh.sql(f"CREATE MATERIALIZED VIEW v AS {_BY_CITY}")
    wh.sql(_customers(100, 300))
    monkeypatch.setattr(relevance, "times_of", lambda _: Times(1, 0.1, 0.01))
    assert not watched.skips("SELECT * FROM v WHERE city = 'A'")
    assert [e["rows"] for e in watched.in_part] == [4]
    assert wh.history() == []
    assert not watched.skips("SELECT * FROM v WHERE city <> 'A'")  # most of the rows: no small part
    assert len(wh.history()) == 1
    wh.sql(_customers(300, 500))
    monkeypatch.setattr(relevance, "times_of", lambda _: Times(1, 0.1, 0.0001))
    assert not watched.skips("SELECT * FROM v WHERE city = 'A'")
    assert (len(watched.in_part), len(wh.history())) == (1, 2)


def _customers(first: int, last: int) -> str:
    rows = ", ".join(f"({i}, '{'M' if i % 50 else 'A'}')" for i in range(first, last))
    return f"INSERT INTO c VALUES {rows}"


@pytest.mark.parametrize("in_part", [False, True])
def test_every_answer_equals_the_recomputation(watched: Watched, request: pytest.FixtureRequest, in_part: bool) -> None:
    """Law: whatever the view, the predicate and the change, a query gives what the definition gives; some skip, and
    some maintain a part."""
    if in_part:
        request.getfixturevalue("parts")
    wh = watched.wh
    draw = random.Random(20261116)
    for name, text in _VIEWS.items():
        wh.sql(f"CREATE MATERIALIZED VIEW {name} AS {text}")
    columns = {n: wh.sql(f"SELECT * FROM {n}").columns for n in _VIEWS}
    rounds = skipped = 0
    while rounds < 4 or (skipped < 3 and rounds < 20):
        rounds += 1
        with wh.transaction() as tx:
            key, customer = draw.randint(1, 8), draw.choice([None, 1, 2, 3, 4])
            match draw.randint(0, 3):
                case 0:
                    row = {"id": key, "customer": customer, "amount": draw.choice([None, 1, 5.5]), "note": "1"}
                    tx.upsert("s", [row])
                case 1:
                    tx.delete("s", [key])
                case 2:
                    tx.upsert("c", [{"id": draw.randint(1, 5), "city": draw.choice([None, "A", "B"])}])
                case 3:
                    tx.sql(f"UPDATE s SET amount = 7 WHERE id = {key}")
        for name in draw.sample(sorted(_VIEWS), 4):
            some = draw.sample(columns[name], min(2, len(columns[name])))
            where = " AND ".join(draw.choice(_PREDICATES[c]) for c in some[: draw.randint(1, 2)])
            skipped += watched.skips(f"SELECT * FROM {name} WHERE {where}")
    assert skipped >= 3
    assert bool(watched.in_part) is in_part
    assert all(j.error is None for j in wh.history())


def test_a_failing_test_is_no_error_of_the_query(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    wh = watched.wh
    wh.sql(f"CREATE MATERIALIZED VIEW v AS {_BY_CITY}")
    wh.sql("UPDATE c SET city = 'C' WHERE id = 2")

    def fail(*_: object) -> None:
        raise FreshviewError("test")

    monkeypatch.setattr(relevance, "changes", fail)
    assert not watched.skips("SELECT * FROM v WHERE city = 'A'")
    assert len(wh.history()) == 1
