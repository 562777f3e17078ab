"""One Spark session as the other rooms use it: run a query, evaluate a statement, write its rows."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import timedelta, timezone, tzinfo
from string import Formatter
from typing import Any
from weakref import WeakKeyDictionary
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, ByteType, IntegerType, MapType, NullType, StructField, StructType

from freshview.algebra.nodes import WEIGHT
from freshview.catalog.records import DataFile, Relation, RelationState, Segment
from freshview.delta.condense import Condense
from freshview.delta.signed import with_weight
from freshview.errors import InvalidStatement, StorageUnavailable
from freshview.interruption import Interruption
from freshview.relation.delta import DELETE, INSERT
from freshview.relation.fields import cast_table
from freshview.relation.names import backticked
from freshview.relation.schema import ACTION, STMTSN, Column, Schema, fold
from freshview.spark.background import Sessions
from freshview.spark.errors import spark_errors
from freshview.spark.scan import Scanner, as_uri
from freshview.spark.session import new_session, shares_disk
from freshview.spark.settings import Defaults, adopt, kept_by_views
from freshview.spark.signed import cancelled, changes, one_by_one
from freshview.spark.types import as_schema, assign, by_name, cast_type, from_spark, spark_schema
from freshview.sql.dml import RowQuery
from freshview.storage.store import Storage

_OFFSET = re.compile(r"(?:Z|(?:UTC|GMT|UT)?(?:([+-])(\d{1,2})(?::?(\d{2}))?(?::?(\d{2}))?)?)")
# Files that every reader reads alike, whatever the session's settings: others do not read INT96, Spark's default,
# exactly; dates before 1582 are written as they are.
_WRITING = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
}
_WRITTEN = "__fv_written"
_ALL = ("*",)
_OFFENDING = 10  # rows that a check reports of each kind

# For small jobs: one partition and a plan that is final, or fixed costs outweigh the work.
_SMALL_JOBS = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.leafNodeDefaultParallelism": "1",
}


@dataclass
class _Writers:
    """The threads that write files in a session of the user, and the settings that it had before the first."""

    before: dict[str, str | None]
    count: int = 0


_users_sessions: WeakKeyDictionary[SparkSession, _Writers] = WeakKeyDictionary()  # those in which a thread writes
_users_sessions_guard = threading.Lock()


class SparkEngine:
    """A Spark session of one warehouse."""

    def __init__(
        self,
        session: SparkSession,
        storage: Storage,
        sessions: Sessions | None = None,
        home: SparkSession | None = None,
        defaults: Defaults | None = None,
    ) -> None:
        """An engine shares `sessions` and `defaults` with its siblings; `home` is the user's session."""
        self.session = session
        self._sessions = sessions or Sessions(session)
        self._storage = storage
        self._home = home or session
        self._scanner = Scanner(session, storage, home)
        self._defaults = {} if defaults is None else defaults

    def close(self) -> None:
        self._scanner.close()
        self._sessions.drop(self.session)

    def settings(self) -> dict[str, str]:
        """The session's settings that bear on what a query means."""
        with spark_errors("session"):
            return kept_by_views(self.session, self._defaults)

    def sibling(self, settings: Mapping[str, str], *, small: bool) -> SparkEngine:
        """An engine on the same Spark with a session of its own, under other settings."""
        with spark_errors("session"):
            session = new_session(self.session)
            adopt(session, {**settings, **(_SMALL_JOBS if small else {})}, self._defaults)
            for key, value in _WRITING.items():
                session.conf.set(key, value)
        self._sessions.add(session)
        return SparkEngine(session, self._storage, self._sessions, self._home, self._defaults)

    def background(self, interruption: Interruption) -> AbstractContextManager[None]:
        """Give Spark jobs of this thread in the block, on siblings too, low priority, and let them be interrupted."""
        return self._sessions.background(interruption)

    def interruptible(self, interruption: Interruption) -> AbstractContextManager[None]:
        """Let Spark jobs of this thread in the block, on siblings too, be interrupted."""
        return self._sessions.interruptible(interruption)

    def scan(self, state: RelationState) -> DataFrame:
        with spark_errors(f"table {state.relation.name}"):
            return self._scanner.scan(state)

    def shown(self, state: RelationState, columns: Sequence[str], member: str | None) -> DataFrame | None:
        """Some columns of all rows, or of those that a column marks, as a local frame; None if the state is too large
        for that."""
        with spark_errors(f"table {state.relation.name}"):
            return self._scanner.shown(state, columns, member)

    def has_scanned(self, relation: Relation) -> bool:
        """Was a state of a relation scanned lately?"""
        return self._scanner.has_scanned(relation.id)

    def changes(
        self,
        relation: Relation,
        states: tuple[RelationState, RelationState],
        segments: Sequence[Segment],
        columns: Sequence[str],
        member: str | None = None,
        *,
        condense: Condense,
        grows: bool = False,
    ) -> DataFrame:
        """The signed delta of a relation between two states (`spark/signed.changes`), never on the driver."""
        with spark_errors(f"table {relation.name}"):
            return changes(self._scanner, relation, states, segments, columns, member, condense=condense, grows=grows)

    def numbered(self, rows: pa.Table, schema: Schema, number: str) -> DataFrame:
        """A frame of rows of the driver, with a column that numbers them."""
        places = pa.array(range(rows.num_rows), pa.int32())
        struct = spark_schema(schema).add(number, IntegerType())
        with spark_errors("rows"):
            return self._scanner.local(rows.append_column(number, places), struct)

    def frame(self, rows: pa.Table, schema: Schema) -> DataFrame:
        """A frame of rows of the driver."""
        with spark_errors("rows"):
            return self._scanner.frame(rows, schema)

    def computed(self, frame: DataFrame, what: str) -> DataFrame:
        """A frame of the rows of a frame, computed now: queries over it do not plan them again."""
        if not self.fits_files(frame):
            return frame
        with spark_errors(what):
            return self._scanner.local(frame.toArrow(), frame.schema)

    def fits_files(self, frame: DataFrame) -> bool:
        """Can the rows be kept in Parquet files? They cannot hold a column without a type."""
        return not any(isinstance(f.dataType, NullType) for f in frame.schema.fields)

    def reread(self, files: Sequence[DataFile], like: DataFrame) -> DataFrame:
        """The rows of a frame from files that hold them in columns named by place."""
        fields = like.schema.fields
        struct = StructType([StructField(f"c{i}", f.dataType, True, f.metadata) for i, f in enumerate(fields)])
        rows = self._scanner.files(0, files, struct)
        return rows.select(*(F.col(f"c{i}").alias(f.name, metadata=f.metadata) for i, f in enumerate(fields)))

    def evaluated(self, frame: DataFrame, query: RowQuery, what: str) -> DataFrame:
        """The result of a query over one frame, which gets no name in the session: much cheaper."""
        with spark_errors(_short(what)):
            named = frame.alias(query.qualifier) if query.is_qualified else frame
            chosen = named.where(query.where) if query.where else named
            return chosen if query.items == _ALL else chosen.selectExpr(*query.items)  # each step is analysed anew

    def query(self, text: str, frames: Mapping[str, DataFrame], what: str) -> DataFrame:
        """The result of a query whose {placeholders} stand for these frames; errors name `what`."""
        with spark_errors(_short(what)):
            return self.session.sql(text, None, **frames)

    # -- questions to Spark that run no query ------------------------------------------------------

    def opaque(self, name: str, schema: Schema) -> DataFrame:
        """A frame that stands for a table in plans: its name is part of the plan, Spark knows nothing of its rows."""

        def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            yield from batches

        rows.__name__ = "".join(c if c.isalnum() else "_" for c in name)
        with spark_errors(f"table {name}"):
            return self.session.range(1).mapInArrow(rows, spark_schema(schema))

    def means_the_same(self, one: DataFrame, other: DataFrame) -> bool:
        """Are the analysed plans of two frames equal for Spark? Names of result columns do not count."""
        with spark_errors("comparison"):
            return bool(one.sameSemantics(other))

    def explained(self, text: str, frames: Mapping[str, DataFrame]) -> str:
        """The output of EXPLAIN EXTENDED for a query whose {placeholders} stand for these frames."""
        with spark_errors("plan"):
            return str(self.session.sql(f"EXPLAIN EXTENDED {text}", None, **frames).collect()[0][0])

    def columns_of(self, frame: DataFrame) -> list[tuple[str, str]]:
        """Names and types of a frame's columns, names inside types to the letter."""
        with spark_errors("columns"):
            return [(f.name, f.dataType.simpleString()) for f in frame.schema.fields]

    def users_functions(self) -> set[str]:
        """The names of functions that are not Spark's own, in the current database or in the session."""
        with spark_errors("functions"):
            found = self.session.sql("SHOW `USER` FUNCTIONS").collect()
        return {fold(str(row[0]).rpartition(".")[2]) for row in found}

    def counted(self, frame: DataFrame, columns: Sequence[str]) -> tuple[int, dict[str, int]]:
        """The rows of a frame and, by sketches, the distinct values of columns; of some types they are not counted."""
        types = {f.name: f.dataType for f in frame.schema.fields}
        asked = [c for c in columns if not isinstance(types[c], ArrayType | MapType | StructType)]
        counts = [F.approx_count_distinct(F.col(backticked(c))).alias(f"n{i}") for i, c in enumerate(asked)]
        with spark_errors("statistics"):
            row = frame.agg(F.count(F.lit(1)).alias("n"), *counts).collect()[0]
        return int(row[0]), {c: int(row[i + 1]) for i, c in enumerate(asked)}

    def time_zone(self) -> tzinfo:
        """The session's time zone: a region, or an offset in one of the notations that Spark accepts."""
        name = str(self.session.conf.get("spark.sql.session.timeZone"))
        offset = _OFFSET.fullmatch(name)
        if offset is None:
            try:
                return ZoneInfo(name)
            except (ZoneInfoNotFoundError, ValueError):
                remedy = "Set spark.sql.session.timeZone to a region or an offset."
                raise InvalidStatement(f"time zone {name}", "is not known here", remedy) from None
        sign, hours, minutes, seconds = offset.groups()
        span = timedelta(hours=int(hours or 0), minutes=int(minutes or 0), seconds=int(seconds or 0))
        return timezone(-span if sign == "-" else span)

    # -- statements --------------------------------------------------------------------------------

    def stored(
        self, frame: DataFrame, targets: Sequence[tuple[str, Column]], table: str, keep: Sequence[str] = ()
    ) -> DataFrame:
        """The frame with columns cast to those of a table: (name, target) pairs, struct fields by name as in Spark's
        UPDATE and MERGE; columns in `keep` stay as they are."""
        with spark_errors(f"table {table}"):
            types = {f.name: f.dataType for f in frame.schema.fields}
            values = {
                n: assign(*by_name(backticked(n), types[n], target, table), target, table) for n, target in targets
            }
            if all(value == backticked(n) for n, value in values.items()):
                return frame
            return frame.selectExpr(*map(backticked, keep), *(f"{v} AS {backticked(n)}" for n, v in values.items()))

    def assigned(
        self, frame: DataFrame, columns: Sequence[Column], schema: Schema, table: str, *, named: bool = False
    ) -> DataFrame:
        """A query's result as rows of a table: by place into `columns`, the others NULL; fields of structs by name if
        the columns were found by it (`named`)."""
        given = frame.columns
        if len(given) != len(columns):
            cause = f"the query gives {len(given)} columns, {len(columns)} are wanted"
            raise InvalidStatement(f"INSERT INTO {table}", cause, "Name the columns, or select as many.")
        with spark_errors(f"table {table}"):
            placed = frame.toDF(*(f"n{i}" for i in range(len(given))))
            places = {c.name: i for i, c in enumerate(columns)}
            types = [f.dataType for f in frame.schema.fields]
            out = []
            for column in schema.columns:
                if column.name in places:
                    i = places[column.name]
                    value, type_ = f"n{i}", types[i]
                    if named:
                        value, type_ = by_name(value, type_, column, table)
                    out.append(f"{assign(value, type_, column, table)} AS {backticked(column.name)}")
                else:
                    out.append(f"CAST(NULL AS {cast_type(column.type)}) AS {backticked(column.name)}")
            return placed.selectExpr(*out)

    def collect(self, frame: DataFrame, types: Sequence[pa.Field], what: str) -> pa.Table:
        """A small result on the driver, exactly; without a Spark job where the frame is local."""
        schema = pa.schema(list(types))
        with spark_errors(what):
            if any(pa.types.is_nested(f.type) for f in schema):
                return cast_table(frame.toArrow(), schema, what)
            instants = [pa.types.is_timestamp(f.type) and f.type.tz for f in schema]
            if any(instants):  # Python's times would be local and ambiguous
                names = [backticked(n) for n in frame.columns]
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

    def arrow(self, frame: DataFrame, what: str) -> pa.Table:
        """A result on the driver, as Arrow."""
        with spark_errors(what):
            return frame.toArrow()

    def answers(self, queries: Sequence[tuple[str, Mapping[str, DataFrame]]], what: str) -> list[pa.Table]:
        """The answers to several queries with equal columns, which Spark plans and runs as one."""
        placed: dict[int, tuple[str, DataFrame]] = {}
        texts = []
        for number, (text, frames) in enumerate(queries):
            for frame in frames.values():
                placed.setdefault(id(frame), (f"q{len(placed)}", frame))
            names = {place: placed[id(frame)][0] for place, frame in frames.items()}
            texts.append(f"SELECT {number} AS `\1`, * FROM (\n{_renamed(text, names)}\n)")
        rows = self.arrow(self.query("\nUNION ALL\n".join(texts), dict(placed.values()), what), what)
        numbers, rest = rows.column(0), rows.remove_column(0)
        return [rest.filter(pc.equal(numbers, number)) for number in range(len(queries))]

    def difference(self, new: DataFrame, old: DataFrame, schema: Schema) -> DataFrame:
        """Rows of new minus rows of old, as bags by bit identity, with a weight; equal rows cancel."""
        with spark_errors("difference"):
            return cancelled(self.signed(new, old), schema)

    def signed(self, new: DataFrame, old: DataFrame) -> DataFrame:
        """Rows of new with a weight of 1 and rows of old with one of -1."""
        return new.withColumn(WEIGHT, F.lit(1)).unionAll(old.withColumn(WEIGHT, F.lit(-1)))

    def delta_rows(self, signed: DataFrame, schema: Schema, *, condensed: bool = False) -> DataFrame:
        """Signed rows as delta rows of a relation, equal rows cancelled (`delta/signed.net`); `condensed`: none can."""
        with spark_errors("view"):
            rows = one_by_one(signed.toDF(*schema.names, WEIGHT) if condensed else cancelled(signed, schema))
            action = F.when(F.col(WEIGHT) > 0, INSERT).otherwise(DELETE).cast("tinyint")
            return rows.select(*map(backticked, schema.names), F.lit(1).alias(STMTSN), action.alias(ACTION))

    def undone(self, after: DataFrame, delta: pa.Table, schema: Schema) -> DataFrame:
        """The rows before a change, from the rows after it (`delta/signed.undone`)."""
        with spark_errors("view"):
            back = self.frame(delta, with_weight(schema)).withColumn(WEIGHT, -F.col(WEIGHT))
            signed = after.select(*map(backticked, schema.names)).withColumn(WEIGHT, F.lit(1)).unionAll(back)
            rows = one_by_one(cancelled(signed, schema))
            sound = F.expr(f"assert_true({WEIGHT} > 0, 'rows that a change has added are gone') IS NULL")
            return rows.where(sound).drop(WEIGHT)

    def among(self, rows: DataFrame, some: DataFrame, schema: Schema) -> DataFrame:
        """The rows that Spark finds equal to one of some others: all that are identical to one, and maybe a few more
        (-0.0 for 0.0)."""
        places = [f"c{i}" for i in range(len(schema.columns))]
        plain = [p for p, c in zip(places, schema.columns, strict=True) if not c.type.is_nested]
        if not plain:
            return rows
        others = F.broadcast(some.toDF(*(f"o_{p}" for p in places)))
        same = F.expr(" AND ".join(f"{p} <=> o_{p}" for p in plain))
        with spark_errors("difference"):
            return rows.toDF(*places).join(others, same, "left_semi").toDF(*schema.names)

    def write(self, frame: DataFrame, relation_id: int, folder: str, what: str) -> tuple[DataFile, ...]:
        """Write a result to a leased folder, in parallel, not through the driver; return the files.

        Where workers may have other disks, the rows that Spark wrote are compared with those that arrived: a worker
        that does not share the folder would write to its own disk, and its rows would be lost without an error.
        """
        target = self._storage.layout.relation(relation_id) / folder
        counted = None if shares_disk(self.session) else Observation()
        if counted is not None:
            frame = frame.observe(counted, F.count(F.lit(1)).alias(_WRITTEN))
        with spark_errors(what), self._writing(frame.sparkSession):
            frame.write.mode("overwrite").parquet(as_uri(target))
        files = self._storage.collect(relation_id, folder)
        if counted is not None:
            with spark_errors(what):
                _require_all(files, counted.get.get(_WRITTEN, 0), f"folder {target}")
        return files

    @contextmanager
    def _writing(self, session: SparkSession) -> Iterator[None]:
        """Have a session write files that every reader reads alike, in the block. Several threads may be in a block: no
        write waits for another one. A session of our own always writes so; the user's gets its settings back when the
        last block is left."""
        if session is self.session and session is not self._home:
            yield
            return
        with _users_sessions_guard:
            writers = _users_sessions.get(session) or _Writers({k: session.conf.get(k, None) for k in _WRITING})
            _users_sessions[session] = writers
            writers.count += 1
        try:
            for key, value in _WRITING.items():
                session.conf.set(key, value)
            yield
        finally:
            with _users_sessions_guard:
                writers.count -= 1
                if not writers.count:
                    del _users_sessions[session]
                    for key, old in writers.before.items():
                        session.conf.unset(key) if old is None else session.conf.set(key, old)

    def schema_of(self, frame: DataFrame, key: tuple[str, ...]) -> Schema:
        return as_schema(frame.schema, key)

    def frame_schema_names(self, frame: DataFrame) -> list[str]:
        return list(frame.columns)

    def repeated_key(self, frames: Sequence[DataFrame], schema: Schema) -> dict[str, Any] | None:
        """A key that occurs more than once in all frames together; None if there is none."""
        names = [f"k{i}" for i in range(len(schema.key))]
        with spark_errors("key check"):
            columns = [F.col(backticked(k)).alias(n) for k, n in zip(schema.key, names, strict=True)]
            keys = [frame.select(*columns) for frame in frames]
            union = keys[0]
            for other in keys[1:]:
                union = union.unionAll(other)
            twice = union.groupBy(*names).count().where("count > 1").limit(1).collect()
        return dict(zip(schema.key, twice[0], strict=False)) if twice else None

    def repeated_image(self, segment: Segment, schema: Schema) -> dict[str, Any] | None:
        """A key of which a segment of delta rows deletes or inserts more than one image; None if there is none."""
        struct = spark_schema(schema).add(STMTSN, IntegerType()).add(ACTION, ByteType())
        rows = self._scanner.files(segment.relation_id, segment.files, struct)
        parts = [rows.where(F.col(ACTION) >= INSERT), rows.where(F.col(ACTION) < INSERT)]
        return next((found for p in parts if (found := self.repeated_key([p], schema)) is not None), None)

    def offending(self, frame: DataFrame, schema: Schema, what: str) -> list[dict[str, Any]]:
        """Rows with a NULL in a required column, and keys that occur more than once, with their count."""
        found: list[dict[str, Any]] = []
        nulls = " OR ".join(f"{backticked(c)} IS NULL" for c in schema.required)
        with spark_errors(what):
            if nulls:
                found += [row.asDict(recursive=True) for row in frame.where(nulls).limit(_OFFENDING).collect()]
            if schema.key:
                counts = frame.groupBy(*map(backticked, schema.key)).agg(F.count(F.lit(1)).alias("__fv_count"))
                for row in counts.where("__fv_count > 1").limit(_OFFENDING).collect():
                    *key, count = row
                    found.append({"count": count, **dict(zip(schema.key, key, strict=True))})
        return found

    def read_files(self, relation_id: int, files: Sequence[DataFile], schema: Schema) -> DataFrame:
        return self._scanner.files(relation_id, files, spark_schema(schema))

    def arrow_fields(self, frame: DataFrame) -> list[pa.Field]:
        """The Arrow fields of a result."""
        fields = []
        for field in frame.schema.fields:
            type_ = from_spark(field.dataType)
            fields.append(pa.field(field.name, pa.null() if type_ is None else type_.arrow))
        return fields


def _require_all(files: Sequence[DataFile], written: int, what: str) -> None:
    """Raise if fewer or more rows have arrived than were written."""
    arrived = sum(f.rows for f in files)
    if arrived != written:
        cause = f"Spark wrote {written} rows, {arrived} are here: its workers do not write to the same folder"
        remedy = "Mount the warehouse folder at the same path on the driver and on all workers."
        raise StorageUnavailable(what, cause, remedy)


def _short(text: str) -> str:
    return f"{' '.join(text.split()):.100}"


def _renamed(text: str, names: Mapping[str, str]) -> str:
    """A text with other names in its {placeholders}."""
    parts = []
    for words, place, _, _ in Formatter().parse(text):
        parts.append(words.replace("{", "{{").replace("}", "}}"))
        if place is not None:
            parts.append(f"{{{names[place]}}}")
    return "".join(parts)
