"""What the rest of the system asks of Spark: run a query, evaluate a statement, write its rows."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from datetime import timedelta, timezone, tzinfo
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from freshview.catalog.records import DataFile, RelationState
from freshview.errors import InvalidStatement
from freshview.relation.schema import Column, Schema
from freshview.spark.errors import spark_errors
from freshview.spark.scan import Scanner
from freshview.spark.types import as_schema, assign, from_spark, spark_schema, to_spark
from freshview.storage.store import Storage

_TIMESTAMPS = "spark.sql.parquet.outputTimestampType"


class SparkEngine:
    """A Spark session at the service of one warehouse."""

    def __init__(self, session: SparkSession, storage: Storage) -> None:
        self.session = session
        self._storage = storage
        self._scanner = Scanner(session, storage)
        self._conf_lock = threading.Lock()

    def close(self) -> None:
        self._scanner.close()

    def scan(self, state: RelationState) -> DataFrame:
        with spark_errors(f"table {state.relation.name}"):
            return self._scanner.scan(state)

    def frame(self, rows: pa.Table, schema: Schema) -> DataFrame:
        with spark_errors("rows"):
            return self._scanner.frame(rows, schema)

    def query(self, text: str, frames: Mapping[str, DataFrame], original: str) -> DataFrame:
        """A query whose {placeholders} stand for these frames; errors show the original text."""
        with spark_errors(f"query {_short(original)}"):
            return self.session.sql(text, None, **frames)

    def time_zone(self) -> tzinfo:
        name = str(self.session.conf.get("spark.sql.session.timeZone"))
        try:
            return ZoneInfo(name)
        except (ZoneInfoNotFoundError, ValueError):
            sign, _, rest = name.partition(":")
            hours = int(sign.removeprefix("UTC").removeprefix("GMT") or 0)
            return timezone(timedelta(hours=hours, minutes=int(rest or 0) * (-1 if hours < 0 else 1)))

    # -- statements --------------------------------------------------------------------------------

    def stored(
        self, frame: DataFrame, targets: Sequence[tuple[str, Column]], table: str, keep: Sequence[str] = ()
    ) -> DataFrame:
        """The frame's columns assigned to table columns: (source name, target) pairs, others kept."""
        with spark_errors(f"table {table}"):
            types = {f.name: f.dataType for f in frame.schema.fields}
            values = {n: assign(_quoted(n), types[n], target, table) for n, target in targets}
            if all(value == _quoted(n) for n, value in values.items()):
                return frame
            return frame.selectExpr(*map(_quoted, keep), *(f"{v} AS {_quoted(n)}" for n, v in values.items()))

    def assigned(self, frame: DataFrame, columns: Sequence[Column], schema: Schema, table: str) -> DataFrame:
        """A query's result as rows of a table: by place into `columns`, the others NULL."""
        given = frame.columns
        if len(given) != len(columns):
            raise InvalidStatement(
                f"INSERT INTO {table}",
                f"the query gives {len(given)} columns, {len(columns)} are wanted",
                "Name the columns, or select as many.",
            )
        with spark_errors(f"table {table}"):
            placed = frame.toDF(*(f"n{i}" for i in range(len(given))))
            by_name = {c.name: i for i, c in enumerate(columns)}
            types = [f.dataType for f in frame.schema.fields]
            out = []
            for column in schema.columns:
                if column.name in by_name:
                    i = by_name[column.name]
                    out.append(f"{assign(f'n{i}', types[i], column, table)} AS {_quoted(column.name)}")
                else:
                    out.append(f"CAST(NULL AS {to_spark(column.type).simpleString()}) AS {_quoted(column.name)}")
            return placed.selectExpr(*out)

    def collect(self, frame: DataFrame, types: Sequence[pa.Field], what: str) -> pa.Table:
        """A small result on the driver, exactly; without a Spark job where the frame is local."""
        schema = pa.schema(list(types))
        with spark_errors(what):
            if any(pa.types.is_nested(f.type) for f in schema):
                return frame.toArrow().rename_columns(schema.names).cast(schema)
            instants = [pa.types.is_timestamp(f.type) and f.type.tz for f in schema]
            if any(instants):  # Python's times would be local and ambiguous
                names = [_quoted(n) for n in frame.columns]
                exact = [f"unix_micros({n}) AS {n}" if i else n for n, i in zip(names, instants, strict=True)]
                frame = frame.selectExpr(*exact)
            rows = frame.collect()
        columns: list[list[Any]] = [list(c) for c in zip(*rows, strict=True)] if rows else [[] for _ in schema]
        arrays = []
        for values, field in zip(columns, schema, strict=True):
            if pa.types.is_timestamp(field.type) and field.type.tz:
                arrays.append(pa.array(values, pa.int64()).cast(field.type))
            else:
                arrays.append(pa.array(values, field.type))
        return pa.table(arrays, schema=schema)

    def write(self, frame: DataFrame, relation_id: int, folder: str, what: str) -> tuple[DataFile, ...]:
        """Write a result to a leased folder, in parallel, not through the driver."""
        target = self._storage.layout.relation(relation_id) / folder
        with spark_errors(what), self._conf_lock:
            # INT96, Spark's default, cannot be read exactly by others; the setting is the session's.
            conf = frame.sparkSession.conf
            before = conf.get(_TIMESTAMPS, None)
            conf.set(_TIMESTAMPS, "TIMESTAMP_MICROS")
            try:
                frame.write.mode("overwrite").parquet(_uri(target))
            finally:
                if before is None:
                    conf.unset(_TIMESTAMPS)
                else:
                    conf.set(_TIMESTAMPS, before)
        return self._storage.collect(relation_id, folder)

    def schema_of(self, frame: DataFrame, key: tuple[str, ...]) -> Schema:
        return as_schema(frame.schema, key)

    def frame_schema_names(self, frame: DataFrame) -> list[str]:
        return list(frame.columns)

    def repeated_key(self, frames: Sequence[DataFrame], schema: Schema) -> dict[str, Any] | None:
        """A key that occurs more than once in all frames together, if there is one."""
        names = [f"k{i}" for i in range(len(schema.key))]
        with spark_errors("key check"):
            keys = [
                f.select(*(F.col(_quoted(k)).alias(n) for k, n in zip(schema.key, names, strict=True))) for f in frames
            ]
            union = keys[0]
            for other in keys[1:]:
                union = union.unionAll(other)
            twice = union.groupBy(*names).count().where("count > 1").limit(1).collect()
        return dict(zip(schema.key, twice[0], strict=False)) if twice else None

    def read_files(self, relation_id: int, files: Sequence[DataFile], schema: Schema) -> DataFrame:
        home = self._storage.layout.relation(relation_id)
        return self.session.read.schema(spark_schema(schema)).parquet(*(str(home / f.path) for f in files))

    def arrow_fields(self, frame: DataFrame) -> list[pa.Field]:
        """The Arrow types in which a result is held."""
        fields = []
        for field in frame.schema.fields:
            type_ = from_spark(field.dataType)
            fields.append(pa.field(field.name, pa.null() if type_ is None else type_.arrow))
        return fields


def _uri(path: Path) -> str:
    return str(path)


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def _short(text: str) -> str:
    return f"{' '.join(text.split()):.80}"
