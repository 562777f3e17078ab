"""The code that Spark generates for queries of a session that Freshview started is compiled once."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession
from tests.spark.sessions import setting

_STAGES = 150  # each has code of its own; Spark itself keeps 100
_COMPILING = {"spark__sql__codegen__wholeStage": "true", "spark__sql__codegen__factoryMode": "FALLBACK"}


def _compiled(spark: SparkSession) -> int:
    """How often code was compiled so far."""
    jvm: Any = spark._jvm
    return int(jvm.org.apache.spark.metrics.source.CodegenMetrics.METRIC_COMPILATION_TIME().getCount())


def test_the_code_of_many_stages_stays_compiled(spark: SparkSession) -> None:
    """As many as views and their queries have: after a round over all of them, the next one compiles nothing."""
    parts = " UNION ALL ".join(f"SELECT id * {n} AS s FROM range(1) WHERE id < {n}" for n in range(1, _STAGES + 1))
    with setting(spark, **_COMPILING):
        before = _compiled(spark)
        assert spark.sql(parts).count() == _STAGES
        first = _compiled(spark)
        assert first - before >= _STAGES
        assert spark.sql(parts).count() == _STAGES
        assert _compiled(spark) == first


def test_a_stage_is_compiled_once_wherever_it_is_in_a_query(spark: SparkSession) -> None:
    one, other = (f"SELECT id + {n} AS s FROM range(1) WHERE id < {n}" for n in (1234, 4321))
    with setting(spark, **_COMPILING):
        for text in (one, other):
            assert spark.sql(text).count() == 1
            assert len(spark.sql(text).collect()) == 1
        before = _compiled(spark)
        assert len(spark.sql(f"{other} UNION ALL {one}").collect()) == 2
        assert _compiled(spark) == before
