"""Recomputing: by the view's own words, compared on the driver or by Spark."""

from __future__ import annotations

from typing import Any

import pytest
from tests.internals import internals

from freshview import Warehouse
from freshview.catalog.statistics import StatisticsCatalog
from freshview.refresh import changing, execute, job_facts
from freshview.refresh.changing import Changing
from freshview.refresh.cost import Calibration
from freshview.refresh.runner import Runner
from freshview.relation.delta import REPLACE


def _filled(wh: Warehouse, rows: int) -> None:
    wh.sql("CREATE TABLE t (id BIGINT, g INT, PRIMARY KEY (id))")
    wh.sql(f"INSERT INTO t SELECT id, CAST(id % 3 AS INT) FROM range({rows})")


@pytest.mark.parametrize(
    ("most", "few", "size", "written"),
    [
        (200_000, 10_000, 1 << 20, 0),
        (200_000, 0, 1 << 20, 2),
        (200_000, 10_000, 1, 2),
        (30, 10_000, 1 << 20, 2),
        (0, 0, 0, 2),
    ],
    ids=["fetched", "files", "files, as rows are wide", "fetched in vain", "by Spark"],
)
def test_only_what_differs_is_written_wherever_it_is_compared(
    swh: Warehouse, monkeypatch: pytest.MonkeyPatch, most: int, few: int, size: int, written: int
) -> None:
    monkeypatch.setattr(execute, "OVERLAY_ROWS", most)
    monkeypatch.setattr(execute, "LOCAL_ROWS", few)
    monkeypatch.setattr(execute, "DRIVER_BYTES", size)
    _filled(swh, 30)
    swh.sql("CREATE MATERIALIZED VIEW v TBLPROPERTIES ('refresh'='full') AS SELECT id, g FROM t WHERE g < 2")
    monkeypatch.setattr(Changing, "_storing", lambda _, plan, __: plan)  # else it is replaced: no view reads it
    computed, write = list[int](), Runner.written

    def counting(runner: Runner, frame: Any, view_id: int, action: int | None) -> Any:
        computed.extend([view_id] * (action == REPLACE))
        return write(runner, frame, view_id, action)

    monkeypatch.setattr(Runner, "written", counting)
    swh.sql("UPDATE t SET g = 2 WHERE id = 0")
    (job,) = swh.maintain(["v"])
    assert (job.strategy, job.view_rows) == ("full", 1)
    assert swh.sql("REFRESH MATERIALIZED VIEW v FULL").rows == 0
    assert len(computed) == written, "files of all rows"
    assert swh.check("v").ok


def test_a_view_that_has_few_rows_no_longer_is_recomputed_by_files(
    swh: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execute, "OVERLAY_ROWS", 60)
    _filled(swh, 30)
    swh.sql("CREATE MATERIALIZED VIEW v TBLPROPERTIES ('refresh'='full') AS SELECT id, g FROM t WHERE g < 2")
    for more in (10, 30, 90):
        swh.sql(f"INSERT INTO t SELECT {more}00 + id, 0 FROM range({more})")
        (job,) = swh.maintain(["v"])
        assert (job.strategy, bool(job.replaced)) == ("full", more > 10)
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


def test_frames_of_the_columns_that_a_text_means_are_read_as_they_are(
    swh: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    _filled(swh, 30)
    swh.sql("CREATE MATERIALIZED VIEW v AS SELECT id, g FROM t WHERE g IN (SELECT max(g) FROM t)")
    read: list[tuple[Any, Any]] = []
    recomputed, original = Runner.recomputed, Runner.original

    def asked(runner: Runner, definition: Any, frames: Any) -> Any:
        read.append((frames["t"], None))
        return recomputed(runner, definition, frames)

    def noted(runner: Runner, text: str, frames: Any) -> Any:
        read[-1] = (read[-1][0], frames["t"])
        return original(runner, text, frames)

    monkeypatch.setattr(Runner, "recomputed", asked)
    monkeypatch.setattr(Runner, "original", noted)
    swh.sql("REFRESH MATERIALIZED VIEW v FULL")
    swh.sql("ALTER TABLE t ADD COLUMN more INT")
    swh.sql("REFRESH MATERIALIZED VIEW v FULL")
    assert [given is taken for given, taken in read] == [True, False]
    assert read[1][1].columns == ["id", "g"]


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


def test_rows_that_were_looked_up_in_vain_are_not_looked_up_for_every_job(
    swh: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    _filled(swh, 20_000)
    swh.sql("CHECKPOINT t")
    swh.sql("CREATE MATERIALIZED VIEW v TBLPROPERTIES ('engine'='spark') AS SELECT g, count(*) n FROM t GROUP BY g")
    gathered: list[object] = []

    def counting(*given: Any) -> Any:
        gathered.append(given)
        return job_facts.facts_of(*given)

    monkeypatch.setattr(changing, "facts_of", counting)

    def job(factors: dict[str, float]) -> tuple[str, int]:
        internals(swh).set_calibration("v", Calibration(factors))
        swh.sql("UPDATE t SET g = g + 1 WHERE id < 3")
        gathered.clear()
        return swh.maintain(["v"])[0].strategy, len(gathered)

    loses, wins = {"spark": 20.0, "full": 0.05}, {"spark": 0.05, "full": 20.0}
    assert job(loses) == ("full", 1)
    assert job(loses) == ("full", 0)
    assert "by what an earlier job found" not in swh.explain("v")  # nothing is pending
    swh.sql("UPDATE t SET g = g + 1 WHERE id < 3")
    assert "by what an earlier job found" in swh.explain("v")
    assert job(wins) == ("incremental", 1)
    assert job(loses) == ("full", 1)
    assert swh.check("v").ok
