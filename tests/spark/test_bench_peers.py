"""The peers suite on Spark: our lazy view, plain recomputation and DuckDB give the same answers to the same changes."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from freshview.bench.peers import OURS, Maker, TableChanges, canonical, gathered, raced
from freshview.bench.peers_systems import Duck, Freshview, PlainSpark


def test_our_view_plain_spark_and_duckdb_answer_alike(tmp_path: Path, spark: SparkSession) -> None:
    makers: dict[str, Maker] = {OURS: Freshview, PlainSpark.name: PlainSpark, Duck.name: Duck}
    with gathered(tmp_path, 0.001, makers) as found:
        assert not found.missing
        systems = found.systems
        before = canonical(systems[0].answer())
        _, compared = raced(systems, TableChanges(tmp_path, 0.001, seed=6), repeat=1, warmup=0)
        assert compared == 6
        assert canonical(systems[0].answer()) != before
        ours = systems[0]
        assert isinstance(ours, Freshview)
        jobs = ours._wh.history("v1")
        assert [job.tasks for job in jobs] == [1, 1]  # lazy: each query made the job it needed, and no other
        assert ours._wh.check("v1").ok
    assert not spark.catalog.tableExists("customer")  # the plain session's names are its own
