"""Views with keys on Spark: laid over, folded and merged by key, they hold what their definitions give."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.effort import IS_SOAK
from tests.internals import internals
from tests.spark.sessions import rows

import freshview
from freshview import Warehouse
from freshview.definition import analysis
from freshview.definition.verdict import FACT, Verdict
from freshview.spark import scan
from freshview.storage import checkpoint, reader

pytestmark = pytest.mark.spark

_VIEWS = {
    "by_city": ("SELECT city, count(*) n, sum(amount) t FROM c LEFT JOIN s ON c.id = s.customer GROUP BY city", "city"),
    "hidden": ("SELECT count(*) n, max(amount) top FROM s GROUP BY customer, day HAVING count(*) > 0", "__key0 __key1"),
    "distinct_in": ("SELECT day, count(DISTINCT customer) k FROM s GROUP BY day", "day"),
    "joined": ("SELECT s.id, s.customer, city, amount FROM s LEFT JOIN c ON c.id = s.customer", "id"),
    "doubles": ("SELECT weight, count(*) n FROM s GROUP BY weight", ""),
    "sizes": ("SELECT n, count(*) k FROM by_city GROUP BY n", "n"),
    "above": ("SELECT j.id, b.t FROM joined j JOIN by_city b ON j.city = b.city", "id"),
}
_WAYS = {"on the driver": (10_000, 200_000), "laid over": (0, 200_000), "by Spark": (0, 0)}


def _tables(wh: Warehouse) -> None:
    wh.sql("CREATE TABLE c (id INT, city STRING, PRIMARY KEY (id))")
    wh.sql("CREATE TABLE s (id INT, customer INT, day DATE, amount DECIMAL(10,2), weight DOUBLE, PRIMARY KEY (id))")
    wh.sql("INSERT INTO c VALUES (1, 'A'), (2, 'B'), (3, NULL), (4, 'A'), (5, '')")
    days = [*(date(2020, 1, day) for day in (1, 2, 3)), None]
    sold = [
        {"id": i, "customer": i % 6 or None, "day": days[i % 4], "amount": (Decimal(i) / 3).quantize(Decimal("0.01"))}
        for i in range(1, 25)
    ]
    with wh.transaction() as tx:
        tx.insert("s", [row | {"weight": float(i % 2)} for i, row in enumerate(sold, 1)])


_STATEMENTS = (
    "UPDATE s SET customer = 3 WHERE customer = 1",  # rows move into the group of NULL
    "DELETE FROM s WHERE day = DATE'2020-01-02'",  # a group dies
    "UPDATE c SET city = NULL WHERE id = 2",  # another
    "INSERT INTO s VALUES (1, 1, DATE'2020-01-02', 7, 0.5), (90, NULL, NULL, NULL, NULL)",  # and comes back
    "UPDATE c SET city = 'B' WHERE id = 3",
    "UPDATE s SET amount = amount + 1 WHERE customer IS NULL OR day IS NULL",
)


def test_keyed_views_hold_what_their_definitions_give_however_they_are_read(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "_MERGE_SHARE", 50.0)
    folder = tmp_path / "w"
    seen: dict[int, dict[str, list[object]]] = {}
    with freshview.connect(folder, spark=spark) as wh:
        _tables(wh)
        for name, (text, key) in _VIEWS.items():
            wh.sql(f"CREATE MATERIALIZED VIEW {name} AS {text}")
            assert " ".join(internals(wh).relation(name).schema.key) == key
            wh.sql(f"CHECKPOINT {name}")
        for number, statement in enumerate(_STATEMENTS):
            wh.sql(statement)
            if IS_SOAK or number % 2:  # rows that are wrong after the others stay so
                now = {name: rows(wh, f"SELECT * FROM {name}") for name in _VIEWS}
                assert now == {name: rows(wh, text) for name, (text, _) in _VIEWS.items()}, statement
                seen[internals(wh).newest_csn()] = now  # type: ignore[assignment]
            else:
                wh.maintain()
            if number == 1:
                assert internals(wh).checkpoint("by_city").strategy == "merge"
                assert internals(wh).checkpoint("hidden").strategy == "merge"
        with wh.transaction() as tx:  # two segments of one view at one CSN; of the last, a delete
            tx.sql("INSERT INTO s VALUES (91, 2, DATE'2021-01-01', 1, 1)")
            assert len(rows(tx, "SELECT * FROM joined")) == len(now["joined"]) + 1
            tx.sql("DELETE FROM s WHERE id = 91 OR id = 90")
            seen_inside = {name: rows(tx, f"SELECT * FROM {name}") for name in ("joined", "distinct_in")}
        assert seen_inside == {name: rows(wh, _VIEWS[name][0]) for name in seen_inside}
        meant = {view: rows(wh, text) for view, (text, _) in _VIEWS.items()}
    for name, (local, overlay) in _WAYS.items():
        with pytest.MonkeyPatch.context() as patch, freshview.connect(folder, spark=spark) as wh:
            patch.setattr(scan, "LOCAL_ROWS", local)
            patch.setattr(scan, "OVERLAY_ROWS", overlay)
            patch.setattr(reader, "OVERLAY_ROWS", overlay)
            for view, expected in meant.items():
                assert rows(wh, f"SELECT * FROM {view}") == expected, (name, view)
            csn, then = list(seen.items())[1]
            assert rows(wh, f"SELECT * FROM hidden VERSION AS OF {csn}") == then["hidden"], name
    with freshview.connect(folder, spark=spark) as wh:
        for view in _VIEWS:
            internals(wh).checkpoint(view)
            assert wh.check(view).ok, view


def test_a_view_without_a_key_from_an_earlier_version_stays_a_bag_until_it_is_replaced(
    swh: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    _tables(swh)
    text = _VIEWS["by_city"][0]
    with monkeypatch.context() as patch:
        patch.setattr(analysis, "_key", lambda *_: ())
        swh.sql(f"CREATE MATERIALIZED VIEW v AS {text}")
    internals(swh).views.definitions.forget()
    swh.sql("UPDATE s SET customer = 3 WHERE customer = 1")
    assert rows(swh, "SELECT * FROM v") == rows(swh, text)
    swh.sql("REFRESH MATERIALIZED VIEW v FULL")
    assert (internals(swh).relation("v").schema.key, swh.check("v").ok) == ((), True)
    assert "by key" not in swh.explain("v")
    swh.sql(f"CREATE OR REPLACE MATERIALIZED VIEW v AS {text}")
    assert internals(swh).relation("v").schema.key == ("city",)
    assert "stored as: sums by key (city)" in swh.explain("v")
    swh.sql("UPDATE s SET customer = 4 WHERE customer = 3")
    assert rows(swh, "SELECT * FROM v") == rows(swh, text)
    assert "full, Δv by key (city), before it is applied" in swh.explain("v")


def test_a_key_that_does_not_hold_is_found(swh: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a key were derived wrongly: `check` finds the rows that it hides, and a job that sees two rows of it fails."""
    _tables(swh)
    monkeypatch.setattr(analysis, "_key", lambda *_: ("customer",))
    swh.sql("CREATE MATERIALIZED VIEW v AS SELECT id, customer FROM s WHERE id < 10")
    report = swh.check("v")
    assert (report.ok, report.missing_rows) == (False, 3)
    swh.sql("INSERT INTO s (id, customer) VALUES (-1, 77), (-2, 77)")
    assert (-1, 77) in rows(swh, "SELECT * FROM v")  # the definition answers
    assert "two of its rows have the key (customer=77)" in str(swh.history("v")[-1].error)


@pytest.mark.parametrize("dies", [False, True], ids=["at once", "after a crash"])
def test_a_key_that_is_given_up_leaves_each_row_once(
    swh: Warehouse, monkeypatch: pytest.MonkeyPatch, dies: bool
) -> None:
    """Rows that a wrong key has hidden come back once, also if the program dies before it recomputes the view."""
    _tables(swh)
    with monkeypatch.context() as patch:
        patch.setattr(analysis, "_key", lambda *_: ("customer",))
        swh.sql("CREATE MATERIALIZED VIEW v AS SELECT id, customer FROM s WHERE id < 10")
    parts = internals(swh).views
    parts.catalog.note(internals(swh).relation("v"), FACT, Verdict("plan", version="earlier").to_json())
    parts.definitions.forget()
    if dies:
        with monkeypatch.context() as patch:
            patch.setattr(type(parts.maintenance), "refresh", _killed)
            with pytest.raises(KeyboardInterrupt):
                swh.sql("SELECT * FROM v")
        parts.definitions.forget()
    wanted = sorted(rows(swh, "SELECT id, customer FROM s WHERE id < 10"))
    assert sorted(rows(swh, "SELECT * FROM v")) == wanted
    assert swh.check("v").ok
    assert not internals(swh).relation("v").schema.key


def _killed(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.selftest
def test_the_self_test_tries_the_key(swh: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    _tables(swh)
    monkeypatch.setattr(analysis, "_key", lambda *_: ("customer",))
    text = "SELECT id, customer FROM s WHERE EXISTS (SELECT 1 FROM c WHERE c.id = s.customer)"
    swh.sql(f"CREATE MATERIALIZED VIEW v AS {text}")
    assert not internals(swh).relation("v").schema.key
    assert "by recomputation" in swh.explain("v")
    assert swh.check("v").ok
