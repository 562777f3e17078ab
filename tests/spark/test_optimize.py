"""What the optimiser proposes for the views of a warehouse: `optimize`, EXPLAIN OPTIMIZE and `calibrate`."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from tests.internals import internals

from freshview import Warehouse
from freshview.catalog.statistics import StatisticsCatalog
from freshview.errors import InvalidStatement, NotFound
from freshview.optimizer.prices import Prices
from freshview.refresh import calibration
from freshview.spark.engine import SparkEngine

SUMS = "SELECT c.seg, sum(o.amount) AS total FROM c JOIN o ON c.id = o.cid GROUP BY c.seg HAVING sum(o.amount) > 3"
LIST = "SELECT c.id, c.seg, o.amount FROM c JOIN o ON c.id = o.cid WHERE o.amount > 5"


def _filled(wh: Warehouse, orders: int = 20_000) -> None:
    wh.sql("CREATE TABLE c (id INT PRIMARY KEY, seg STRING)")
    wh.sql("CREATE TABLE o (id INT PRIMARY KEY, cid INT, amount INT)")
    wh.sql("INSERT INTO c SELECT CAST(id AS INT), concat('s', id % 5) FROM range(1000)")
    wh.sql(f"INSERT INTO o SELECT CAST(id AS INT), CAST(id % 1000 AS INT), CAST(id AS INT) FROM range({orders})")
    wh.sql(f"CREATE MATERIALIZED VIEW sums AS {SUMS}")
    wh.sql(f"CREATE MATERIALIZED VIEW list AS {LIST}")
    wh.sql("CREATE MATERIALIZED VIEW above AS SELECT count(*) AS n FROM sums")


def _kept(wh: Warehouse) -> StatisticsCatalog:
    return StatisticsCatalog(internals(wh).catalog)


def test_a_proposal_has_the_facts_of_the_warehouse_and_changes_nothing(
    swh: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    _filled(swh)
    csn, before = swh.status().csn, [(r.name, r.kind) for r in internals(swh).catalog.relations()]
    report = swh.optimize(changed=0.01)
    facts = report.proposal.findings.facts
    assert (facts["c"].rows, facts["o"].rows, facts["sums"].rows) == (1000, 20_000, 5)
    assert facts["o"].changed == pytest.approx(200)
    assert facts["c"].distinct["seg"] == 5
    assert facts["o"].distinct["cid"] == pytest.approx(1000, rel=0.1)  # a sketch
    assert {v.name for v in report.proposal.choice.views} == {"sums", "list", "above"}
    assert report.after <= report.before
    assert swh.status().csn == csn
    assert [(r.name, r.kind) for r in internals(swh).catalog.relations()] == before
    asked: list[tuple[str, ...]] = []
    real = SparkEngine.counted

    def noted(engine: SparkEngine, frame: Any, columns: Sequence[str]) -> tuple[int, dict[str, int]]:
        asked.append(tuple(columns))
        return real(engine, frame, columns)

    monkeypatch.setattr(SparkEngine, "counted", noted)
    assert swh.optimize(changed=0.01).proposal.findings.facts == facts
    assert asked == []  # what was counted is kept
    swh.sql("INSERT INTO o SELECT CAST(id AS INT), 1, 1 FROM range(20000, 25000)")
    assert swh.optimize(changed=0.01).proposal.findings.facts["o"].rows == 25_000
    assert asked == [("amount", "cid")]  # a quarter of the rows is new


def test_the_report_says_what_the_estimates_are_worth_and_where_changes_are_from(swh: Warehouse) -> None:
    _filled(swh)
    assert "no table has changed since its views were created" in str(swh.optimize())
    for i in range(3):
        swh.sql(f"UPDATE o SET amount = {i} WHERE id < 4")
        swh.maintain()
    swh.sql("SELECT * FROM sums").collect()
    report = swh.optimize()
    text = str(report)
    assert "changes: per refresh, of the last day" in text
    assert report.proposal.findings.facts["o"].inserted == pytest.approx(4)
    assert report.proposal.findings.facts["o"].deleted == pytest.approx(4)
    assert "default prices, not calibrated" in text
    compared = {c.view: c for c in report.proposal.compared}
    assert compared["sums"].jobs == 3
    assert "ratio" in text
    assert report.proposal.prices.incremental != 1.0  # corrected by what these jobs took
    assert report.proposal.rounds == 90  # three refreshes a day, for a month
    ET.fromstring(report.svg)
    assert "e0 " in report.dag


def test_explain_optimize_prints_the_report_and_extended_the_search_space(swh: Warehouse) -> None:
    _filled(swh, 50)
    plain = [r.plan for r in swh.sql("EXPLAIN OPTIMIZE").collect()]
    extended = [r.plan for r in swh.sql("EXPLAIN OPTIMIZE EXTENDED").collect()]
    assert plain[0].startswith("views: 3, queries: 0; ")
    assert "search space" not in plain
    nodes = extended[extended.index("search space") + 1 :]
    assert any(line.startswith("e0 ") for line in nodes)
    assert any("| 50 rows" in line for line in nodes)


def test_a_view_without_a_tree_is_left_out_and_others_are_not(swh: Warehouse) -> None:
    _filled(swh, 50)
    swh.sql("CREATE MATERIALIZED VIEW odd AS SELECT * FROM o PIVOT (sum(amount) FOR cid IN (1, 2))")
    report = swh.optimize()
    assert [name for name, _ in report.proposal.left_out] == ["odd"]
    assert "left out\n  odd: it is recomputed from its text" in str(report)
    assert {v.name for v in report.proposal.choice.views} == {"sums", "list", "above"}


def test_a_renamed_table_is_read_under_its_new_name(swh: Warehouse) -> None:
    swh.sql("CREATE TABLE t (id INT PRIMARY KEY, a INT)")
    swh.sql("CREATE MATERIALIZED VIEW v AS SELECT a, count(*) AS n FROM t GROUP BY a")
    swh.sql("ALTER TABLE t RENAME TO u")
    report = swh.optimize()
    assert set(report.proposal.findings.facts) == {"u"}
    (plan,) = report.proposal.choice.views
    assert plan.reads == ("u",)


def test_queries_are_answered_from_views_and_have_results_proposed_for_them(swh: Warehouse) -> None:
    _filled(swh)
    other = "SELECT cid, max(amount) AS m FROM o GROUP BY cid"
    unlike = "SELECT id, id FROM c"  # no view has two columns of one name
    report = swh.optimize(queries={LIST: 3.0, other: 1000.0, unlike: 1.0}, changed=0.001)
    assert report.proposal.left_out[0][0] == f"query 3 ({unlike})"
    first, second = report.proposal.choice.queries[:2]
    assert (first.name, first.rate, first.reads) == (f"query 1 ({LIST[:60]})", 3.0, ("list",))
    assert second.rate == 1000.0
    assert "times per refresh" in str(report)
    assert report.after < report.before
    with pytest.raises(InvalidStatement, match="is no query that runs so often"):
        swh.optimize(queries={"DROP TABLE c": 1.0})
    with pytest.raises(InvalidStatement, match="is no query that runs so often"):
        swh.optimize(queries={LIST: 0.0})
    with pytest.raises(NotFound, match="nowhere"):
        swh.optimize(queries={"SELECT * FROM nowhere": 1.0})


def test_the_queries_that_ran_are_considered_as_often_as_they_did(swh: Warehouse) -> None:
    """Law: a text may have secrets in literals; the catalog and the report have it, and no event."""
    _filled(swh)
    assert swh.optimize().history == ()
    seen: list[str] = []
    swh.events.listen(lambda event: seen.append(f"{event.name} {event.details}"))
    swh.sql("CREATE TABLE gone (k INT PRIMARY KEY)")
    swh.sql("CREATE TABLE changed (k INT PRIMARY KEY, a INT)")
    for text in ("SELECT *\nFROM sums", "SELECT k FROM gone", "SELECT a FROM changed", LIST, f"{LIST} -- again", LIST):
        swh.sql(text)
    swh.sql("SELECT id FROM o WHERE amount > 77123").collect()
    swh.sql("SELECT id FROM c", freshness="any")
    swh.sql("SELECT id FROM c", as_of=swh.status().csn)
    with swh.transaction() as tx:
        tx.sql("SELECT id FROM c")
    with pytest.raises(NotFound):
        swh.sql("SELECT nothing FROM c")
    for name in ("gone", "changed"):
        swh.sql(f"DROP TABLE {name}")
    swh.sql("CREATE TABLE changed (k INT PRIMARY KEY)")
    report = swh.optimize(changed=0.01)
    first, *others = report.proposal.choice.queries
    assert (first.name, first.rate, first.reads) == (f"query 1 ({LIST[:60]})", 3.0, ("list",))
    assert [(q.name, q.rate) for q in others] == [
        ("query 2 (SELECT id FROM o WHERE amount > 77123)", 1.0),
        ("query 3 (SELECT * FROM sums)", 1.0),
    ]
    assert report.proposal.left_out == ()
    assert "queries: 3 of 5 texts that ran since 20" in str(report)
    ET.fromstring(report.svg)
    assert "e0 " in report.dag
    lines = [r.plan for r in swh.sql("EXPLAIN OPTIMIZE").collect()]
    assert lines[0].startswith("views: 3, queries: 3; ")
    assert any(line.startswith("  queries: 3 of 5 texts that ran since 20") for line in lines)
    assert swh.optimize(queries={}).proposal.choice.queries == ()
    assert "77123" not in " ".join(seen)


def test_a_space_of_nothing_stores_nothing_and_bad_options_are_refused(swh: Warehouse) -> None:
    _filled(swh, 50)
    assert swh.optimize(space=0, changed=0.5).proposal.choice.auxiliaries == ()
    with pytest.raises(InvalidStatement, match="is no share of a table"):
        swh.optimize(changed=2.0)
    with pytest.raises(InvalidStatement, match="is not a number of bytes"):
        swh.optimize(space=-1)


def test_an_empty_warehouse_has_nothing_to_optimise(swh: Warehouse) -> None:
    report = swh.optimize()
    assert (report.before, report.after) == (0, 0)
    ET.fromstring(report.svg)


def test_calibration_measures_every_price_stores_them_and_leaves_no_files(
    swh: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibration, "SMALL", 100)
    monkeypatch.setattr(calibration, "LARGE", 5000)
    seen: list[str] = []
    swh.events.listen(lambda e: seen.append(e.details["step"]) if e.name == "calibrate.step" else None)
    prices = swh.calibrate()
    assert len(seen) == 7
    assert not prices.is_default
    assert prices.spark.query > prices.embedded.query > 0
    assert swh.optimize().proposal.prices == prices
    assert "calibrated prices" in str(swh.optimize())
    home = internals(swh).storage.layout.relation(0)
    assert not home.is_dir() or list(home.iterdir()) == []
    assert _kept(swh).prices() == prices.to_dict()


def test_proposals_know_the_memory_for_lookups_of_this_process_not_of_the_one_that_calibrated(swh: Warehouse) -> None:
    stored = Prices(index_memory=1e15, is_default=False)
    _kept(swh).set_prices(stored.to_dict())
    budget = internals(swh).storage.reader.columns.budget
    assert swh.optimize().proposal.prices == replace(stored, index_memory=float(budget))
    assert 0 < budget < 1e15


def test_a_calibration_that_fails_leaves_the_old_prices_and_no_files(
    swh: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibration, "LARGE", 5000)
    monkeypatch.setattr(calibration._Bench, "_spark_fixed", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        swh.calibrate()
    home = internals(swh).storage.layout.relation(0)
    assert not home.is_dir() or list(home.iterdir()) == []
    assert swh.optimize().proposal.prices.is_default
