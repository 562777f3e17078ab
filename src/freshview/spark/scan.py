"""A relation's state as a DataFrame: main ⊕ segments, by the cheapest way that is exact.

Small relations are folded on the driver. Small deltas are folded on the driver and laid over the Parquet files of main.
Large deltas are folded by Spark. Inside, columns are named by place (c0 …), so that no two names collide.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from cachetools import LRUCache
from pyspark.errors import PySparkTypeError
from pyspark.sql import Column, DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ByteType, IntegerType, StringType, StructType

from freshview.algebra.nodes import WEIGHT
from freshview.catalog.records import DataFile, RelationState, Segment
from freshview.errors import SnapshotExpired
from freshview.relation.delta import INSERT, Overlay, key_table, untag
from freshview.relation.names import backticked
from freshview.relation.schema import ACTION, STMTSN, Schema
from freshview.spark.session import shares_disk
from freshview.spark.types import from_spark, identity_sql, metadata, spark_schema, to_spark
from freshview.storage.external import PartitionValues, open_seen
from freshview.storage.external_files import CHANGE_TYPE, OLD_IMAGES, changed_groups, partition_groups
from freshview.storage.files import check_present
from freshview.storage.reader import LOCAL_ROWS, OVERLAY_ROWS
from freshview.storage.store import Storage

_CACHED_FRAMES = 64
_SHOWN = -2  # in the place of a segment's: the frame has no hidden rows and columns
ORDER = "__fv_order"  # of a segment among those of a state: several of one view may have one CSN


class Scanner:
    """Makes DataFrames of relation states."""

    def __init__(self, session: SparkSession, storage: Storage, home: SparkSession | None = None) -> None:
        """`home` is the user's session, if `session` is one of our own."""
        self._session = session
        self._home = home
        self._storage = storage
        self._frames: LRUCache[tuple[int, ...], DataFrame] = LRUCache(_CACHED_FRAMES)
        self._lock = threading.Lock()
        self._spool = Path(tempfile.mkdtemp(prefix="freshview-spool-"))
        self._clean = weakref.finalize(self, shutil.rmtree, self._spool, ignore_errors=True)
        self._shares_disk = shares_disk(session)
        self._spooled = 0

    def close(self) -> None:
        self._clean()

    def scan(self, state: RelationState) -> DataFrame:
        """The relation as a DataFrame with its own column names and types."""
        if state.relation.is_external or any(s.is_pending for s in state.segments):
            return self._scan(state)
        return self._known(state, (), lambda: self._scan(state))

    def shown(self, state: RelationState, columns: Sequence[str], member: str | None) -> DataFrame | None:
        """Some columns of a state's rows, or of those that the column `member` marks; None if the driver does not fold
        the state.

        Spark is given what queries see alone, not a plan that computes it of all rows.
        """
        if state.relation.is_external or not state.is_small(LOCAL_ROWS):
            return None
        if member is None and tuple(columns) == state.schema.names:
            return self.scan(state)

        def made() -> DataFrame:
            rows = self._storage.reader.contents(state)
            schema = Schema(tuple(map(state.schema.column, columns)))
            rows = rows.filter(rows.column(member)) if member is not None else rows
            return self.frame(rows.select(list(schema.names)), schema)

        if any(s.is_pending for s in state.segments):
            return made()
        return self._known(state, (_SHOWN,), made)

    def _known(self, state: RelationState, of: tuple[int, ...], make: Callable[[], DataFrame]) -> DataFrame:
        """The frame of a state, made once."""
        last = (state.segments[-1].csn, state.segments[-1].seq) if state.segments else ()  # a view may have seen a part
        base = state.main.delta_version if state.main else -1
        key = (state.relation.id, state.relation.schema_version, base, len(state.segments), *last, *of)
        with self._lock:
            known = self._frames.get(key)
        if known is not None:
            self._check_files(state)
            return known
        frame = make()
        with self._lock:
            self._frames[key] = frame
        return frame

    def has_scanned(self, relation_id: int) -> bool:
        """Was a state of a relation scanned lately?"""
        with self._lock:
            return any(key[0] == relation_id for key in self._frames)

    def _scan(self, state: RelationState) -> DataFrame:
        schema = state.schema
        if state.relation.is_external:
            return self._external(state)
        if state.is_small(LOCAL_ROWS):
            return self.frame(self._storage.reader.contents(state), schema)
        changed = sum(s.rows for s in state.segments)
        if changed == 0:
            return named(self._main(state), schema)
        if changed <= OVERLAY_ROWS:
            overlay = self._storage.reader.overlay(state)
            return named(self._overlaid(state, overlay), schema)
        return named(self._folded(state), schema)

    def _check_files(self, state: RelationState) -> None:
        """Raise if the files of a cached frame have been lost since it was made."""
        if state.relation.is_external or state.is_small(LOCAL_ROWS):
            return
        name = f"table {state.relation.name}"
        if state.main is not None:
            self._storage.mains.present_files(state.relation.id, state.main.delta_version, name)
        for segment in state.segments:
            check_present(segment.files, self._storage.layout.relation(state.relation.id), name)

    def frame(self, rows: pa.Table, schema: Schema) -> DataFrame:
        """A DataFrame of rows of the driver."""
        return self.local(rows, spark_schema(schema))

    def local(self, rows: pa.Table, struct: StructType) -> DataFrame:
        """A DataFrame of rows of the driver: part of the plan up to a limit, from a spooled file above.

        Executors on other machines do not see the driver's files, so rows are always sent to them.
        """
        if rows.num_rows == 0:
            return self._empty(struct)
        if rows.num_rows <= LOCAL_ROWS or not self._shares_disk:
            return self._created(_without_empty_batches(rows), struct)
        return parquet_reader(self._session, struct).parquet(as_uri(self._spool_file(rows)))

    def files(self, relation_id: int, files: Sequence[DataFile], struct: StructType) -> DataFrame:
        """The rows of files in a relation's folder."""
        if not files:
            return self._empty(struct)
        home = self._storage.layout.relation(relation_id)
        return parquet_reader(self._session, struct).parquet(*(as_uri(home / f.path) for f in files))

    def _empty(self, struct: StructType) -> DataFrame:
        """A frame without rows, which Spark's optimiser knows to have none: one of a list is read by Python workers."""
        types = [from_spark(field.dataType) for field in struct]
        if not types or None in types:
            return self._created([], struct)
        fields = [(f.name, t.arrow) for f, t in zip(struct, types, strict=True) if t is not None]
        batch = pa.RecordBatch.from_arrays([pa.array([], t) for _, t in fields], schema=pa.schema(fields))
        return self._created(pa.Table.from_batches([batch]), struct)  # PySpark fails on columns without chunks

    def _created(self, rows: Any, schema: StructType) -> DataFrame:
        """A frame of these rows. PySpark makes the session of a new frame active; the user's becomes active again."""
        frame = self._session.createDataFrame(rows, schema)
        if self._home is not None:
            _make_active(self._home, frame)
        return frame

    def _spool_file(self, rows: pa.Table) -> Path:
        with self._lock:
            self._spooled += 1
            path = self._spool / f"{self._spooled}.parquet"
        pq.write_table(rows, path)
        return path

    def _main(self, state: RelationState) -> DataFrame:
        """Main's rows in today's columns, by place."""
        if state.main is None or state.main_schema is None or state.main.rows == 0:
            return self._empty(spark_schema(state.schema)).toDF(*places_of(state.schema))
        files = self._storage.mains.present_files(
            state.relation.id, state.main.delta_version, f"table {state.relation.name}"
        )
        return self._files(files, self._storage.layout.relation(state.relation.id), state.main_schema, state.schema)

    def _files(self, files: tuple[DataFile, ...], folder: Path, stored: Schema, schema: Schema) -> DataFrame:
        frame = parquet_reader(self._session, spark_schema(stored)).parquet(*(as_uri(folder / f.path) for f in files))
        return _widened(frame.toDF(*places_of(stored)), len(stored.columns), schema)

    def _overlaid(self, state: RelationState, overlay: Overlay) -> DataFrame:
        """The rows of main ⊕ a small overlay."""
        schema = state.schema
        main = self._main(state)
        live = self.frame(overlay.live, schema).toDF(*places_of(schema))
        if schema.key:
            keys = key_table(untag(overlay.rows), schema)
            touched = self.frame(
                pa.table(keys.columns, schema=pa.schema([schema.arrow.field(p) for p in schema.key_positions])),
                Schema(tuple(schema.columns[p] for p in schema.key_positions)),
            ).toDF(*_key_places(schema))
            nulls = any(column.null_count for column in keys.columns)
            return _without(main, F.broadcast(touched), schema, nulls=nulls).unionAll(live)
        if overlay.removals.num_rows:
            removals = self.frame(overlay.removals, schema).toDF(*places_of(schema))
            main = _subtract(main, removals, schema)
        return main.unionAll(live)

    def _folded(self, state: RelationState) -> DataFrame:
        """The rows of main ⊕ deltas of any size, folded by Spark."""
        schema = state.schema
        main = self._main(state)
        if all(s.action == INSERT for s in state.segments) and _appends(state):
            added = [d.select(*places_of(schema)) for d in self.deltas(state, state.segments)]
            return reduce(DataFrame.unionAll, [main, *added])
        deltas = reduce(DataFrame.unionAll, self.deltas(state, state.segments))
        places = places_of(schema)
        if schema.key:
            names = _key_places(schema)
            last = deltas.groupBy(*names).agg(
                F.max_by(F.struct(*places, ACTION), F.struct(ORDER, STMTSN, ACTION)).alias("row")
            )
            live = last.where(F.col(f"row.{ACTION}") >= INSERT).select(*(F.col(f"row.{p}").alias(p) for p in places))
            return _without(main, last.select(*names), schema, nulls=True).unionAll(live)
        inserts = deltas.where(F.col(ACTION) >= INSERT).select(*places)
        deletes = deltas.where(F.col(ACTION) < INSERT).select(*places)
        return _subtract(main.unionAll(inserts), deletes, schema, small=False)

    def deltas(self, state: RelationState, segments: Sequence[Segment]) -> list[DataFrame]:
        """The rows of segments by place, with the segment's order, stmtsn and action: a frame per segment of files, one
        for all inline ones together."""
        frames = [self._segment(s, i, state) for i, s in enumerate(segments) if not s.is_inline]
        inline = [(i, s) for i, s in enumerate(segments) if s.is_inline]
        if inline:
            frames.append(self._inline(inline, state.schema))
        return frames

    def _inline(self, segments: list[tuple[int, Segment]], schema: Schema) -> DataFrame:
        tables = [s.table(schema) for _, s in segments]
        orders = np.repeat([i for i, _ in segments], [t.num_rows for t in tables])
        rows = pa.concat_tables(tables).append_column(ORDER, pa.array(orders, pa.int32()))
        struct = spark_schema(schema).add(STMTSN, IntegerType()).add(ACTION, ByteType()).add(ORDER, IntegerType())
        frame = self._created(_without_empty_batches(rows), struct).toDF(*places_of(schema), STMTSN, ACTION, ORDER)
        return frame.select(*places_of(schema), ORDER, STMTSN, ACTION)

    def _segment(self, segment: Segment, place: int, state: RelationState) -> DataFrame:
        """The delta rows of a segment of files by place, with the segment's order, stmtsn and action."""
        schema = state.schema
        order = F.lit(place).cast("int").alias(ORDER)
        folder = self._storage.layout.relation(segment.relation_id)
        check_present(segment.files, folder, f"table {state.relation.name}")
        paths = [str(folder / f.path) for f in segment.files]
        # Columns are appended or renamed, never moved: the file's own names in place order.
        stored = pq.read_schema(paths[0]).names
        width = len(stored) if segment.action is not None else len(stored) - 2
        width = min(width, len(schema.columns))  # the file may have columns that its reader does not know yet
        struct = spark_schema(Schema(schema.columns[:width]))
        for i, field in enumerate(struct.fields):
            field.name = stored[i]
        struct.names = [f.name for f in struct.fields]
        if segment.action is None:
            struct = struct.add(STMTSN, IntegerType()).add(ACTION, ByteType())
        frame = parquet_reader(self._session, struct).parquet(*map(as_uri, paths))
        tags = [STMTSN, ACTION] if segment.action is None else []
        frame = frame.toDF(*(f"c{i}" for i in range(width)), *tags)
        if segment.action is not None:
            frame = frame.withColumn(STMTSN, F.lit(segment.stmtsn)).withColumn(
                ACTION, F.lit(segment.action).cast("tinyint")
            )
        wide = [F.col(f"c{i}") for i in range(width)] + _nulls(width, schema)
        return frame.select(*wide, order, STMTSN, ACTION)

    def _external(self, state: RelationState) -> DataFrame:
        """A version of an external Delta table; partition values come from its log (law 11.16)."""
        relation, schema = state.relation, state.schema
        assert state.main is not None
        assert relation.location is not None
        table = open_seen(relation, state.main)
        groups = partition_groups(table, schema)
        parts = [self._foreign(paths, values, schema, fed=False) for values, paths in groups]
        if not parts:
            return self._empty(spark_schema(schema))
        return reduce(DataFrame.unionAll, parts).toDF(*schema.names)

    def foreign_changes(self, state: RelationState, segments: Sequence[Segment], *, grows: bool) -> DataFrame:
        """The rows that a run of references to versions of an external table adds and removes, by place, with a weight;
        rows that were only rewritten are in it with both signs. If the run `grows`, no rows may be removed."""
        schema = state.schema
        parts = []
        groups = changed_groups(state.relation, segments, state.main)
        if grows and any(group.weight <= 0 for group in groups):
            what, remedy = f"table {state.relation.name}", "Run the statement again."
            raise SnapshotExpired(what, "files of its change were vacuumed while it was read", remedy)
        for group in groups:
            frame = self._foreign(group.paths, group.values, schema, fed=group.weight == 0)
            is_old = F.col(CHANGE_TYPE).isin(*OLD_IMAGES) if group.weight == 0 else F.lit(group.weight < 0)
            parts.append(frame.withColumn(WEIGHT, F.when(is_old, -1).otherwise(1)).select(*places_of(schema), WEIGHT))
        empty = self._empty(spark_schema(schema)).toDF(*places_of(schema)).withColumn(WEIGHT, F.lit(1))
        return reduce(DataFrame.unionAll, parts or [empty])

    def _foreign(self, paths: Sequence[str], values: PartitionValues, schema: Schema, *, fed: bool) -> DataFrame:
        """The rows of files of an external table, by place; partition values come from its log (law 11.16)."""
        stored = [c for c in schema.columns if c.name not in values]
        struct = spark_schema(Schema(tuple(stored))) if stored else spark_schema(schema)
        struct = struct.add(CHANGE_TYPE, StringType()) if fed else struct
        read = parquet_reader(self._session, struct).parquet(*map(as_uri, paths))
        columns = [
            F.lit(values[c.name]).cast(to_spark(c.type)).alias(f"c{i}")
            if c.name in values
            else F.col(backticked(c.name)).cast(to_spark(c.type)).alias(f"c{i}")
            for i, c in enumerate(schema.columns)
        ]
        return read.select(*columns, *([CHANGE_TYPE] if fed else []))


def _without_empty_batches(rows: pa.Table) -> pa.Table:
    """Rows in batches none of which is empty: Spark takes an empty batch for the end of the rows."""
    return pa.Table.from_batches([b for b in rows.to_batches() if b.num_rows], rows.schema)


def parquet_reader(session: SparkSession, struct: StructType) -> DataFrameReader:
    """A reader of our own files: dates before 1582 are read as they are, whatever the session's settings."""
    return session.read.schema(struct).options(datetimeRebaseMode="CORRECTED", int96RebaseMode="CORRECTED")


def as_uri(path: Path | str) -> str:
    """The URI of a path: without a scheme, a cluster may look for the path in its default file system."""
    return f"file://{path}"


def _make_active(session: Any, frame: DataFrame) -> None:
    """Make a session active. PySpark has no call for that alone; it does so before it refuses to frame a frame."""
    with suppress(PySparkTypeError):
        session.createDataFrame(frame)


def named(frame: DataFrame, schema: Schema, *further: str) -> DataFrame:
    """The frame with columns named as in the schema instead of by place, and with Spark's metadata of CHAR; and its
    `further` columns."""
    columns = [
        F.col(f"c{i}").alias(c.name, metadata=metadata(c)) if metadata(c) else F.col(f"c{i}").alias(c.name)
        for i, c in enumerate(schema.columns)
    ]
    return frame.select(*columns, *further)


def widened(frame: DataFrame, stored: Schema, schema: Schema) -> DataFrame:
    """A frame of a relation's columns as they were, in the places that they have now."""
    return _widened(frame.toDF(*places_of(stored)), len(stored.columns), schema)


def places_of(schema: Schema) -> list[str]:
    """The names by place of a schema's columns."""
    return [f"c{i}" for i in range(len(schema.columns))]


def _nulls(width: int, schema: Schema) -> list[Column]:
    return [F.lit(None).cast(to_spark(c.type)).alias(f"c{i}") for i, c in enumerate(schema.columns) if i >= width]


def _widened(frame: DataFrame, width: int, schema: Schema) -> DataFrame:
    """The frame with columns that were added to the table later: they are NULL in rows stored before."""
    if width == len(schema.columns):
        return frame
    return frame.select(*(F.col(f"c{i}") for i in range(width)), *_nulls(width, schema))


def _appends(state: RelationState) -> bool:
    """Do inserts replace no rows? So it is in a bag, and for a single load into an empty keyed table."""
    return not state.schema.key or (len(state.segments) == 1 and (state.main is None or state.main.rows == 0))


def _key_places(schema: Schema) -> list[str]:
    return [f"c{p}" for p in schema.key_positions]


def _without(main: DataFrame, keys: DataFrame, schema: Schema, *, nulls: bool) -> DataFrame:
    """Main's rows that have none of these keys, with columns in their places: a join by names puts the key first.

    `nulls`: NULL may stand in the keys. Without NULLs there, equality finds the same rows, and sooner.
    """
    names = _key_places(schema)
    if not nulls:
        return main.join(keys, on=names, how="left_anti").select(*places_of(schema))
    others = keys.toDF(*(f"k{i}" for i in range(len(names))))
    same = F.expr(" AND ".join(f"{name} <=> k{i}" for i, name in enumerate(names)))
    return main.join(others, same, "left_anti")


def _subtract(base: DataFrame, removals: DataFrame, schema: Schema, *, small: bool = True) -> DataFrame:
    """The bag difference by bit identity: only rows that have an equal among the removals are counted."""
    places = places_of(schema)
    parts = ", ".join(identity_sql(p, c.type) for p, c in zip(places, schema.columns, strict=True))
    identity = F.expr(f"struct({parts})")
    marked = base.withColumn("__id", identity)
    counts = removals.withColumn("__id", identity).groupBy("__id").agg(F.count(F.lit(1)).alias("__gone"))
    counts = counts.withColumnRenamed("__id", "__gone_id")
    counts = F.broadcast(counts) if small else counts
    same = F.col("__id").eqNullSafe(F.col("__gone_id"))
    rest = marked.join(counts, same, "left_anti").select(*places)
    matched = (
        marked.join(counts, same, "inner")
        .groupBy("__id", "__gone")
        .agg(F.count(F.lit(1)).alias("__have"), F.first(F.struct(*places)).alias("__row"))
        .where(F.col("__have") > F.col("__gone"))
        .select("__row", F.explode(F.sequence(F.lit(1), (F.col("__have") - F.col("__gone")).cast("int"))))
        .select(*(F.col(f"__row.{p}").alias(p) for p in places))
    )
    return rest.unionAll(matched)
