"""Recomputing: by the view's own words, compared on the driver or by Spark."""

from __future__ import annotations

from typing import Any

import pytest
from tests.internals import internals

from freshview import Warehouse
from freshview.catalog.statistics import StatisticsCatalog
from freshview.refresh import execute
from freshview.refresh.changing import Changing
from freshview.refresh.cost import Calibration
from freshview.refresh.runner import Runner


def _filled(wh: Warehouse, rows: int) -> None:
    wh.sql("CREATE TABLE t (id BIGINT, g INT, PRIMARY KEY (id))")
    wh.sql(f"INSERT INTO t SELECT id, CAST(id % 3 AS INT) FROM range({rows})")


@pytest.mark.parametrize("most", [200_000, 0], ids=["on the driver", "by Spark"])
def test_only_what_differs_is_written_wherever_it_is_compared(
    swh: Warehouse, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(execute, "OVERLAY_ROWS", most)
    _filled(swh, 30)
    swh.sql("CREATE MATERIALIZED VIEW v TBLPROPERTIES ('refresh'='full') AS SELECT id, g FROM t WHERE g < 2")
    monkeypatch.setattr(Changing, "_storing", lambda _, plan, __: plan)  # else it is replaced: no view reads it
    swh.sql("UPDATE t SET g = 2 WHERE id = 0")
    (job,) = swh.maintain(["v"])
    assert (job.strategy, job.view_rows) == ("full", 1)
    assert swh.sql("REFRESH MATERIALIZED VIEW v FULL").rows == 0
    assert swh.check("v").ok


@pytest.mark.parametrize(
    ("definition", "own"),
    [
        ("SELECT id, g FROM t WHERE g IN (SELECT max(g) FROM t)", True),
        ("SELECT g, count(*) n FROM t GROUP BY g", False),  # what is stored has more columns
        ("SELECT id, g FROM t ORDER BY g LIMIT 2", False),  # ties are broken
        ("SELECT id, row_number() OVER (PARTITION BY g ORDER BY g) r FROM t", False),
    ],
)
def test_a_view_is_recomputed_by_its_own_words_where_they_give_what_is_stored(
    swh: Warehouse, monkeypatch: pytest.MonkeyPatch, definition: str, own: bool
) -> None:
    _filled(swh, 30)
    swh.sql(f"CREATE MATERIALIZED VIEW v AS {definition}")
    asked: list[str] = []
    real = Runner.original

    def noted(runner: Runner, text: str, frames: Any) -> Any:
        asked.append(text)
        return real(runner, text, frames)

    monkeypatch.setattr(Runner, "original", noted)
    swh.sql("REFRESH MATERIALIZED VIEW v FULL")
    assert (asked == [definition]) is own


def test_columns_that_come_later_change_nothing_in_a_views_own_words(swh: Warehouse) -> None:
    """A NATURAL JOIN and a star mean the columns of the day on which the view was created."""
    _filled(swh, 30)
    swh.sql("CREATE TABLE u (id BIGINT, w INT, PRIMARY KEY (id))")
    swh.sql("INSERT INTO u VALUES (1, 1), (2, 2)")
    swh.sql("CREATE MATERIALIZED VIEW v AS SELECT * FROM t NATURAL JOIN u")
    for table in ("t", "u"):
        swh.sql(f"ALTER TABLE {table} ADD COLUMN more INT")
    swh.sql("UPDATE t SET more = 7 WHERE id = 1")
    swh.sql("REFRESH MATERIALIZED VIEW v FULL")
    assert sorted(map(tuple, swh.sql("SELECT * FROM v").collect())) == [(1, 1, 1), (2, 2, 2)]


def test_what_jobs_took_decides_between_the_ways(swh: Warehouse) -> None:
    """The measured times of past jobs turn the choice, for tables that Spark reads from files."""
    _filled(swh, 20_000)
    swh.sql("CHECKPOINT t")
    swh.sql("CREATE MATERIALIZED VIEW v TBLPROPERTIES ('engine'='spark') AS SELECT g, count(*) n FROM t GROUP BY g")

    def strategy() -> str:
        swh.sql("UPDATE t SET g = g + 1 WHERE id < 3")
        return swh.maintain(["v"])[0].strategy

    internals(swh).set_calibration("v", Calibration({"spark": 20.0, "full": 0.05}))
    assert strategy() == "full"
    internals(swh).set_calibration("v", Calibration({"spark": 0.05, "full": 20.0}))
    assert strategy() == "incremental"
    assert swh.check("v").ok
    full, rules = swh.history("v")
    assert full.expected < full.otherwise
    assert 0 < rules.expected < rules.otherwise
    text = swh.explain("v")
    assert "learnt, of what was estimated: delta rules on Spark " in text
    assert "past choices: 2 jobs; " in text
    internals(swh).set_calibration("v", Calibration())
    prices = StatisticsCatalog(internals(swh).catalog)
    prices.set_prices({"spark": {"operator": 10.0}})  # what `calibrate` stores counts, whatever it says
    assert strategy() == "full"  # it has fewer operators
    assert swh.check("v").ok
