"""The choice between delta rules and recomputing: rows that Spark reads and operators it plans, once per use."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from freshview.algebra.nodes import Node, Project, Scan, Table, Union, column
from freshview.catalog.records import DataFile, Main, Relation, RelationState, Segment
from freshview.local.plans import LocalPlan
from freshview.optimizer.prices import Prices
from freshview.refresh.cost import (
    DEFAULT,
    Calibration,
    Rates,
    estimate,
    in_process,
    on_spark,
    takes_on_driver,
)
from freshview.refresh.deltas import fits_driver
from freshview.refresh.lookups import pairs
from freshview.refresh.plan import FULL, INCREMENTAL, JobPlan
from freshview.relation.schema import Column, Schema
from freshview.relation.types import DataType
from freshview.storage.reader import LOCAL_ROWS, rows_in_files

_SCAN = Scan(Table("t"), (("a", "a1"),))


def _rows(scan: Scan) -> int:
    return {"t": 1_000_000, "u": 10}[scan.relation]


def test_a_part_counts_once_per_use() -> None:
    once = Project(_SCAN, (("b", column("a1")),))
    twice = Union((once, once), ("b",))
    assert estimate(once, _rows).rows == 1_000_000
    assert estimate(twice, _rows).rows == 2_000_000
    assert estimate(twice, _rows).operators == 2 * estimate(once, _rows).operators + 1


def test_more_rows_and_more_operators_cost_more() -> None:
    few, many = estimate(Scan(Table("u"), (("a", "a1"),)), _rows), estimate(_SCAN, _rows)
    assert few.seconds < many.seconds
    deep: Node = _SCAN
    for i in range(20):
        deep = Project(deep, ((f"c{i}", column(deep.columns[0])),))
    assert estimate(deep, _rows).seconds > many.seconds


def test_a_shared_part_of_a_large_plan_is_a_stage_that_is_paid_once() -> None:
    """A plan that would grow with every level is estimated as it runs: in stages."""
    node = Project(Scan(Table("u"), (("a", "a1"),), "delta"), (("c0", column("a1")),))
    for i in range(1, 12):
        node = Project(Union((node, node), (f"c{i}",)), ((f"d{i}", column(f"c{i}")),))
    assert estimate(node, _rows).operators < 500


def test_the_prices_of_estimates_are_those_of_the_optimiser() -> None:
    """By default 2.5 million rows a second; a machine that reads half as fast makes all that is read dearer."""
    assert pytest.approx(4e-7) == DEFAULT.row
    assert (DEFAULT.operator, DEFAULT.in_process) == (0.012, 0.0005)
    prices = Prices.of({"spark": {"scan": 4e-7, "row": 2e-7, "operator": 0.012}, "embedded": {"operator": 0.001}})
    slow = estimate(_SCAN, _rows, Rates.of(prices))
    usual = estimate(_SCAN, _rows)
    assert slow.seconds - usual.seconds == pytest.approx(0.4)
    assert in_process(slow).seconds - in_process(usual).seconds == pytest.approx(0.4 + 0.0005)
    assert on_spark(in_process(slow, 10, 2)) == slow


def test_a_state_that_the_driver_folds_is_not_read_from_files() -> None:
    """A table of as many rows as the driver folds stays one after changes of it, as when it is scanned."""
    relation = Relation(1, "t", "table", 1, 1, Schema((Column("k", DataType("int")),), ("k",)), 1)
    upsert = Segment(1, 2, 1, 1, 100, 1, stmtsn=1, action=2, payload=b"")
    for rows, changes, read in ((LOCAL_ROWS, 1, 0), (LOCAL_ROWS + 1, 0, LOCAL_ROWS + 1), (5, 10_000_000, 10_000_005)):
        segments = (replace(upsert, rows=changes),) if changes else ()
        state = RelationState(relation, 2, Main(1, 0, 1, rows, 1), relation.schema, segments)
        assert rows_in_files(state) == read
        assert (read == 0) is state.is_small(LOCAL_ROWS)


def test_a_change_is_read_on_the_driver_by_its_values_and_its_bytes() -> None:
    """A few rows of large documents are left to Spark as many rows of numbers are."""
    assert takes_on_driver(100_000, 40, 1 << 20)
    assert not takes_on_driver(100_001, 40, 1 << 20)
    assert not takes_on_driver(1000, 2, (64 << 20) + 1)


def test_a_change_of_large_rows_does_not_fit_the_driver() -> None:
    relation = Relation(1, "t", "table", 1, 1, Schema((Column("k", DataType("int")),), ("k",)), 1)
    segments = [Segment(1, csn, 1, 10, 20 << 20, 1, files=(DataFile("f", 20 << 20, 10),)) for csn in range(4)]
    assert fits_driver(relation, segments[:3])
    assert not fits_driver(relation, segments)


def test_rows_on_the_driver_have_a_price() -> None:
    """100,000 of them take 0.4 s; on Spark they are part of its plan."""
    few, many = (in_process(estimate(_SCAN, lambda _: 0), rows) for rows in (0, 100_000))
    assert many.seconds - few.seconds == pytest.approx(0.4)
    assert on_spark(many) == on_spark(few)


def test_what_jobs_took_corrects_the_estimate() -> None:
    learnt = Calibration()
    assert learnt.factor("spark") == 1.0
    learnt = learnt.after("spark", estimated=1.0, actual=4.0)
    assert learnt.factor("spark") == 4.0
    assert learnt.factor("full") == 4.0  # nothing is known of it: the machine may be slow as a whole
    learnt = learnt.after("full", estimated=2.0, actual=2.0)
    assert learnt.factor("full") == 1.0
    assert 1.0 < learnt.factor("spark") < 4.0


def test_a_job_in_the_embedded_engine_takes_time_whatever_it_computes() -> None:
    """It asks for its tasks, makes a plan and stores a segment: of a small change, that is most of its time."""
    nothing = in_process(estimate(_SCAN, lambda _: 0))
    assert nothing.seconds == pytest.approx(DEFAULT.job + DEFAULT.in_process)
    assert DEFAULT.job == Prices().result + Prices().embedded.query
    assert on_spark(nothing).seconds == pytest.approx(DEFAULT.operator)


def test_the_beginning_of_a_small_job_does_not_rule_its_way_out_for_large_ones() -> None:
    """The first job reads files that stay in memory afterwards; what it learns multiplies estimates of a second."""
    assert Calibration().after("embedded", estimated=0.02, actual=0.45).factor("embedded") == 1.0
    assert Calibration().after("embedded", estimated=0.02, actual=1.5).factor("embedded") == 3.0
    assert Calibration().after("embedded", estimated=0.4, actual=0.1).factor("embedded") == 0.25  # it took less
    assert Calibration().after("embedded", estimated=0.6, actual=6.0).factor("embedded") == 10.0


def test_a_share_of_a_refresh_of_several_views_teaches_nothing_of_jobs_of_one() -> None:
    """What is read for all of them is most of the time of a small query."""
    alone = JobPlan(INCREMENTAL, local=LocalPlan("SELECT 1", (), ()))
    shared = replace(alone, is_shared=True)
    assert (alone.way, shared.way) == ("embedded", "together")
    assert {replace(p, local=None).way for p in (alone, shared)} == {"spark"}
    assert {replace(p, strategy=FULL).way for p in (alone, shared)} == {"full"}
    learnt = Calibration().after(alone.way, 1.0, 2.0).after(shared.way, 1.0, 0.5)
    assert learnt.factor("together") == 0.5
    assert learnt.factor("embedded") > 1.8


def test_each_engine_has_a_factor_of_its_own() -> None:
    learnt = Calibration().after("spark", 1.0, 4.0).after("embedded", 1.0, 0.5)
    assert learnt.factor("embedded") == 0.5
    assert learnt.factor("spark") > 3.0
    assert learnt.factors() == {"embedded": 0.5, "together": 0.5, "spark": learnt.factor("spark"), "full": 0.5}


def test_a_way_that_is_not_taken_is_tried_again() -> None:
    learnt = Calibration().after("spark", 1.0, 20.0)
    for _ in range(40):
        learnt = learnt.after("full", 1.0, 1.0)
    assert learnt.factor("spark") < 1.5


def test_an_absurd_measurement_counts_for_little() -> None:
    assert Calibration().after("full", 0.0, 1e9).factor("full") <= 20.0


def test_pairs_of_rows_that_a_join_makes_are_counted() -> None:
    one, other = pa.chunked_array([[1, 1, None], [2, 3]]), pa.chunked_array([[1, 1, 1, 2, 4, None]], pa.int32())
    assert pairs(one, other) == pairs(other, one) == 2 * 3 + 1
    assert pairs(one, other.slice(0, 0)) == 0
    many = pa.chunked_array([pa.array([5] * 300_000)])
    assert pairs(many, many) == 300_000**2
