"""A job that gives way keeps what it has computed, and the next one goes on from there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import freshview
from freshview import Warehouse
from freshview.delta.condense import Expected
from freshview.errors import Cancelled
from freshview.refresh import cost, execute, stages
from freshview.refresh.changing import Changing
from freshview.refresh.runner import Runner
from freshview.relation.delta import REPLACE
from freshview.spark.engine import SparkEngine
from freshview.storage import reader, segments

pytestmark = pytest.mark.spark


class Writes:
    """Counts the results that Spark writes to files of stages, and cancels one of them."""

    def __init__(self) -> None:
        self.count = 0
        self.cancelled = 0  # the number of the result that is cancelled; 0: none is


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> Writes:
    counted, write = Writes(), SparkEngine.write

    def counting(self: SparkEngine, frame: Any, relation_id: int, folder: str, what: str) -> Any:
        if "stage" in folder:
            counted.count += 1
            if counted.count == counted.cancelled:
                raise Cancelled("view v", "was cancelled to make way for other work", "Run it again.")
        return write(self, frame, relation_id, folder, what)

    monkeypatch.setattr(SparkEngine, "write", counting)
    return counted


@pytest.fixture
def large(tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[Warehouse]:
    """A warehouse whose changes stay in Spark, with a view that has one pending."""
    monkeypatch.setattr(cost, "DRIVER_CELLS", 0)
    monkeypatch.setattr(reader, "LOCAL_ROWS", 0)
    with freshview.connect(tmp_path / "w", spark=spark) as wh:
        wh.sql("CREATE TABLE t (k INT PRIMARY KEY, g INT, v INT)")
        wh.sql("CREATE TABLE u (g INT PRIMARY KEY, name STRING)")
        wh.sql("INSERT INTO t SELECT id, id % 7, id FROM range(100)")
        wh.sql("INSERT INTO u SELECT id, concat('n', id) FROM range(7)")
        wh.sql(
            "CREATE MATERIALIZED VIEW v TBLPROPERTIES ('refresh'='incremental') AS "
            "SELECT name, sum(v) AS s, count(*) AS n FROM t JOIN u ON t.g = u.g GROUP BY name"
        )
        wh.sql("UPDATE t SET v = v + 1, g = (g + 1) % 7 WHERE k < 40")
        yield wh


def _kept(wh: Warehouse) -> int:
    """Results that are kept now: folders with files."""
    return len({file.parent for file in wh.path.glob("**/stage*/*.parquet")})


def test_the_next_job_goes_on_from_the_results_of_the_one_that_gave_way(large: Warehouse, writes: Writes) -> None:
    writes.cancelled = 2
    with pytest.raises(Cancelled):
        large.maintain()
    assert (writes.count, _kept(large)) == (2, 1)
    large.maintain()
    assert writes.count == 3, "the first result was computed again"
    assert large.check("v").ok
    assert _kept(large) == 0
    assert [job.strategy for job in large.history("v") if job.error is None] == ["incremental"]


def test_it_ends_where_the_other_was_to_end_though_more_is_pending_now(large: Warehouse, writes: Writes) -> None:
    end, writes.cancelled = large.status().csn, 2
    with pytest.raises(Cancelled):
        large.maintain()
    last = large.sql("DELETE FROM t WHERE k = 99").csn
    large.maintain()
    assert [job.to_csn for job in large.history("v") if job.error is None] == [end, last]
    assert large.check("v").ok
    assert _kept(large) == 0


def test_a_job_that_gave_way_twice_in_the_same_place_begins_anew(large: Warehouse, writes: Writes) -> None:
    for writes.cancelled in (2, 3):
        with pytest.raises(Cancelled):
            large.maintain()
    assert _kept(large) == 0
    large.maintain()
    assert writes.count == 3 + 2
    assert large.check("v").ok


def test_a_recomputation_keeps_its_rows_while_they_are_compared(
    large: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execute, "OVERLAY_ROWS", 0)
    large.sql("CREATE MATERIALIZED VIEW w TBLPROPERTIES ('refresh'='full') AS SELECT k, v FROM t WHERE g < 3")
    large.sql("CREATE MATERIALIZED VIEW above AS SELECT sum(v) AS s FROM w")  # it takes the differences of w
    monkeypatch.setattr(Changing, "_storing", lambda _, plan, __: plan)
    large.sql("UPDATE t SET v = -1 WHERE k < 50")
    before, computed = _bulk(large), list[int]()
    compare, write = SparkEngine.signed, Runner.written

    def counting(self: Runner, frame: Any, view_id: int, action: int | None) -> Any:
        computed.extend([view_id] * (action == REPLACE))
        return write(self, frame, view_id, action)

    def cancelled(*_: Any) -> Any:
        raise Cancelled("view w", "was cancelled to make way for other work", "Run it again.")

    monkeypatch.setattr(Runner, "written", counting)
    monkeypatch.setattr(SparkEngine, "signed", cancelled)
    with pytest.raises(Cancelled):
        large.maintain(["w"])
    monkeypatch.setattr(SparkEngine, "signed", compare)
    (job,) = large.maintain(["w"])
    assert (job.strategy, job.replaced, len(computed)) == ("full", "", 1)
    large.maintain()
    assert all(large.check(view).ok for view in ("w", "above"))
    assert _bulk(large) <= before, "the computed rows went with the job"


def _bulk(wh: Warehouse) -> set[str]:
    """The folders that hold all rows of a relation."""
    return {str(path.parent) for path in wh.path.glob("**/bulk*/*.parquet")}


def test_results_of_another_job_are_not_used_and_go(large: Warehouse, writes: Writes) -> None:
    writes.cancelled = 2
    with pytest.raises(Cancelled):
        large.maintain()
    assert _kept(large) == 1
    large.sql("REFRESH MATERIALIZED VIEW v FULL")
    assert _kept(large) == 0
    large.sql("UPDATE t SET v = 0 WHERE k < 30")
    large.maintain()
    assert large.check("v").ok


def test_late_results_go_with_the_next_job_of_any_view(
    large: Warehouse, writes: Writes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stages, "LIFETIME", 0.0)
    writes.cancelled = 2
    with pytest.raises(Cancelled):
        large.maintain()
    assert _kept(large) == 1
    large.sql("CREATE MATERIALIZED VIEW w AS SELECT g, count(*) AS n FROM t GROUP BY g")
    large.sql("UPDATE t SET g = 0 WHERE k < 50")
    large.maintain(["w"])
    assert _kept(large) == 0


def test_results_go_when_the_warehouse_is_closed(large: Warehouse, writes: Writes) -> None:
    writes.cancelled = 2
    with pytest.raises(Cancelled):
        large.maintain()
    assert _kept(large) == 1
    large.close()
    assert _kept(large) == 0


@pytest.mark.parametrize("first", [True, False])
def test_what_is_kept_is_used_only_for_what_it_was_computed_as(
    large: Warehouse, monkeypatch: pytest.MonkeyPatch, first: bool
) -> None:
    """The condense steps are chosen anew by cost, so that the next job may ask for other results than the first."""
    large.maintain()
    monkeypatch.setattr(segments, "INLINE_BYTES", 0)
    large.sql("UPDATE t SET v = v + 1 WHERE k < 40")  # one statement with old and new images: no condense by key
    pays, gives_way, write = first, True, Runner.written

    def cancelled_once(self: Runner, frame: Any, view_id: int, action: int | None) -> Any:
        nonlocal gives_way
        if gives_way:
            gives_way = False
            raise Cancelled("view v", "was cancelled to make way for other work", "Run it again.")
        return write(self, frame, view_id, action)

    monkeypatch.setattr(Expected, "pays", property(lambda _: pays))
    monkeypatch.setattr(execute, "OVERLAY_ROWS", 0)  # the delta rows are written after the results are
    monkeypatch.setattr(Runner, "written", cancelled_once)
    with pytest.raises(Cancelled):
        large.maintain()
    kept = {path.parent for path in large.path.glob("**/stage*/*.parquet")}
    assert len(kept) == 1 + first  # the signed rows, and the change of t if it was condensed
    pays = not first
    large.maintain()
    assert large.check("v").ok
    assert _kept(large) == 0
