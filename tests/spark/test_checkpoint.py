"""Checkpoints that Spark writes, and that Spark reads what the driver folded."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame
from tests.internals import internals

from freshview import Warehouse
from freshview.catalog.records import RelationState
from freshview.schedule import upkeep
from freshview.spark import scan as scan_module
from freshview.spark.background import POOL
from freshview.spark.engine import SparkEngine
from freshview.storage import checkpoint as checkpoint_module

pytestmark = pytest.mark.spark


def answer(wh: Warehouse, csn: int | None = None) -> list[tuple[object, ...]]:
    frame = wh.sql("SELECT * FROM t", as_of=csn)
    return sorted(tuple(map(repr, r)) for r in frame.collect())


@pytest.mark.parametrize("keyed", [True, False])
def test_answers_at_every_csn_survive_every_checkpoint(
    swh: Warehouse, monkeypatch: pytest.MonkeyPatch, keyed: bool
) -> None:
    """Law: what Spark answers at a CSN is what the driver read then, whatever was folded since, by whichever way."""
    monkeypatch.setattr(scan_module, "LOCAL_ROWS", 0)  # no table is too small for Spark
    swh.sql(f"CREATE TABLE t (k INT, v STRING{', PRIMARY KEY (k)' if keyed else ''})")
    steps = [
        "INSERT INTO t VALUES (1, 'a'), (2, 'b'), (3, NULL), (4, 'd'), (5, 'e'), (6, 'f')",
        "CHECKPOINT t",
        "ALTER TABLE t ADD COLUMN n INT",
        "INSERT INTO t VALUES (10, 'n', 1)",
        "CHECKPOINT t",
        "DELETE FROM t WHERE k = 1",
        "ALTER TABLE t RENAME COLUMN v TO value",
        "spark checkpoint",
        "INSERT INTO t VALUES (11, 'n', 1)",
    ]
    at: dict[int, list[tuple[str, ...]]] = {}
    for step in steps:
        if step == "spark checkpoint":
            monkeypatch.setattr(checkpoint_module, "LOCAL_REWRITE_ROWS", 0)
            swh.sql("CHECKPOINT t")
        else:
            swh.sql(step)
        csn = internals(swh).newest_csn()
        rows = internals(swh).rows("t").to_pylist()
        at.setdefault(csn, sorted(tuple(map(repr, r.values())) for r in rows))
    for csn, expected in at.items():
        assert answer(swh, csn) == expected, csn


def test_a_checkpoint_written_by_spark_opens_with_deltalake(
    swh: Warehouse, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Law: main written by Spark is a Delta table like any other."""
    monkeypatch.setattr(checkpoint_module, "LOCAL_REWRITE_ROWS", 0)
    swh.sql("CREATE TABLE t (k INT, s TIMESTAMP, PRIMARY KEY (k))")
    swh.sql("INSERT INTO t VALUES (1, TIMESTAMP '2020-01-01 00:00:00.000001')")
    swh.sql("UPDATE t SET k = 2 WHERE k = 1")
    before = answer(swh)
    report = internals(swh).checkpoint("t")
    assert report.strategy == "rewrite"
    assert answer(swh) == before
    table = DeltaTable(str(tmp_path / "warehouse" / "tables" / "00000001"))
    assert table.to_pyarrow_dataset().to_table().num_rows == 1


def test_a_checkpoint_that_nobody_waits_for_has_low_priority(swh: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """Law: a due checkpoint runs in the pool of low weight, one that was asked for in the pool of statements."""
    monkeypatch.setattr(checkpoint_module, "LOCAL_REWRITE_ROWS", 0)
    monkeypatch.setattr(upkeep, "DUE_SEGMENTS", 1)
    monkeypatch.setattr(upkeep, "PATIENCE", 0.0)
    pools: list[str | None] = []
    scan = SparkEngine.scan

    def seen(engine: SparkEngine, state: RelationState) -> DataFrame:
        pools.append(engine.session.sparkContext.getLocalProperty("spark.scheduler.pool"))
        return scan(engine, state)

    monkeypatch.setattr(SparkEngine, "scan", seen)
    swh.sql("CREATE TABLE t (k INT, PRIMARY KEY (k))")
    swh.sql("INSERT INTO t VALUES (1)")
    in_background = internals(swh).step_of_upkeep
    for fold in (in_background, lambda: swh.sql("CHECKPOINT t")):
        swh.sql("UPDATE t SET k = k + 1")
        pools.clear()
        fold()
        assert swh.status().tables[0].pending_segments == 0
        assert pools, "nothing was scanned"
        assert set(pools) == ({POOL} if fold == in_background else {None})
