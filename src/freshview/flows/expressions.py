"""The expressions of a flow: Spark evaluates them over rows of the driver, without a job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from freshview.cdc.arrivals import Evaluate, described_schema
from freshview.cdc.flow import Plan
from freshview.relation.schema import Schema
from freshview.relation.types import DataType
from freshview.sql.dml import ROW_ID, RowQuery, one_value

if TYPE_CHECKING:
    from freshview.spark.engine import SparkEngine

_AT_ONCE = 50_000  # rows over which Spark evaluates expressions at once


def evaluation(engine: Callable[[], SparkEngine], plan: Plan) -> Evaluate:
    """Return how Spark evaluates expressions over rows of the driver, without a job."""

    def values(rows: pa.Table, schema: Schema, expressions: Sequence[str]) -> list[pa.ChunkedArray]:
        spark, what = engine(), f"flow {plan.flow.name}"
        items = (ROW_ID, *(f"{one_value(text)} AS __fv_c{i}" for i, text in enumerate(expressions)))
        parts: list[pa.Table] = []
        for start in range(0, max(rows.num_rows, 1), _AT_ONCE):
            frame = spark.numbered(rows.slice(start, _AT_ONCE), schema, ROW_ID)
            frame = spark.evaluated(frame, RowQuery(_qualifier(plan), "", items), what)
            parts.append(spark.collect(frame, spark.arrow_fields(frame), what).sort_by(ROW_ID))
        found = pa.concat_tables(parts)
        return [found.column(i + 1) for i in range(len(expressions))]

    return values


def sequence_type(engine: Callable[[], SparkEngine], plan: Plan) -> DataType | None:
    """Return the type of SEQUENCE BY; Spark is asked if it is more than a column."""
    if not plan.flow.sequence:
        return None
    plain = plan.plain_sequence
    if plain is not None:
        return plan.source.column(plain).type
    spark, schema = engine(), described_schema(plan.source)
    frame = spark.numbered(schema.arrow.empty_table(), schema, ROW_ID)
    query = RowQuery(_qualifier(plan), "", (f"{one_value(plan.flow.sequence)} AS sequence",))
    what = f"SEQUENCE BY of flow {plan.flow.name}"
    return spark.schema_of(spark.evaluated(frame, query, what), ()).columns[0].type


def check_conditions(engine: Callable[[], SparkEngine], plan: Plan) -> None:
    """Have Spark analyse the conditions, so that a wrong name is an error of CREATE FLOW."""
    asked = [text for text in (plan.flow.delete_when, plan.flow.truncate_when) if text]
    if asked:
        schema = described_schema(plan.source)
        evaluation(engine, plan)(schema.arrow.empty_table(), schema, asked)


def _qualifier(plan: Plan) -> str:
    """Return the name by which expressions may qualify columns."""
    return plan.flow.table.rpartition(".")[2]
