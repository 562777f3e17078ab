"""Files of other programs as DataFrames: CSV, JSON, Parquet and Delta, for a table that exists or one to be made.

Law: nothing is lost silently. A value that is not of its column's type, a row of another length, and a field that the
table lacks are errors.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StringType, StructField, StructType

from freshview.catalog.records import Relation, RelationState
from freshview.errors import InvalidStatement, NotFound
from freshview.relation.names import backticked
from freshview.relation.schema import Column, Schema, fold
from freshview.spark.engine import SparkEngine
from freshview.spark.errors import spark_errors
from freshview.spark.types import as_schema, cast_type, to_spark
from freshview.storage.external import describe, external_schema, open_external

FORMATS = ("csv", "json", "parquet", "delta")
_ENDINGS = {"csv": "csv", "json": "json", "jsonl": "json", "ndjson": "json", "parquet": "parquet", "pq": "parquet"}
_COMPRESSED = (".gz", ".bz2", ".zst", ".snappy", ".lz4", ".deflate")


@dataclass(frozen=True)
class InputFiles:
    """Files of one format to be loaded, and the notation of CSV."""

    paths: tuple[Path, ...]
    format: str
    delimiter: str = ","
    header: bool = True
    null: str = ""

    @property
    def uris(self) -> list[str]:
        return [f"file://{path}" for path in self.paths]

    def __str__(self) -> str:
        return f"{self.paths[0]}" + (f" and {len(self.paths) - 1} more" if len(self.paths) > 1 else "")


def format_of(path: Path) -> str | None:
    """The format of a file by its name, or of a folder by its files; None if it is not known."""
    if (path / "_delta_log").is_dir():
        return "delta"
    if path.is_dir():
        return next((f for f in map(format_of, data_files(path)) if f is not None), None)
    name = path.name.lower()
    for ending in _COMPRESSED:
        name = name.removesuffix(ending)
    return _ENDINGS.get(name.rpartition(".")[2])


def data_files(path: Path) -> list[Path]:
    """The file, or the files of a folder that hold data: names that begin with a dot or an underscore do not."""
    if path.is_file():
        return [path]
    return [p for p in sorted(path.rglob("*")) if p.is_file() and not p.name.startswith((".", "_"))]


def read_input(engine: SparkEngine, source: InputFiles, table: str, schema: Schema | None) -> DataFrame:
    """The rows of the files, by name, in the types of a table's columns; as Spark infers them if there is no table."""
    with spark_errors(f"file {source}"):
        match source.format:
            case "csv":
                return _csv(engine.session, source, table, schema)
            case "json":
                return _json(engine.session, source, table, schema)
            case "parquet":
                frame = engine.session.read.parquet(*source.uris)
                _columns(frame.columns, table, schema)
                return frame
        return reduce(DataFrame.unionByName, [_delta(engine, path) for path in source.paths])


def _csv(session: SparkSession, source: InputFiles, table: str, schema: Schema | None) -> DataFrame:
    """The rows of CSV files (RFC 4180: quotes are doubled, and may hold line ends); the first line has the names."""
    reader = session.read.options(quote='"', escape='"', multiLine=True, mode="FAILFAST")
    reader = reader.options(sep=source.delimiter, header=source.header, nullValue=source.null)
    if schema is None:
        schema = as_schema(reader.options(inferSchema=True).csv(source.uris).schema)
    names = reader.options(inferSchema=False).csv(source.uris[0]).columns if source.header else list(schema.names)
    columns = _columns(names, table, schema)
    texts = StructType([StructField(name, StringType()) for name in names])
    empty = uuid.uuid4().hex  # stands for "", which Spark would take for NULL
    reader = reader.options(enforceSchema=False, emptyValue=empty)  # each file has to have these columns
    frame = reader.schema(texts).csv(source.uris)
    return frame.selectExpr(*(_of_csv(n, c, table, empty) for n, c in zip(names, columns, strict=True)))


def _of_csv(name: str, column: Column, table: str, empty: str) -> str:
    """SQL for a field of CSV: empty quotes are an empty text, but NULL as a number, date or the like."""
    value = backticked(name)
    if column.type.is_text:
        return f"if({value} = '{empty}', '', {value}) AS {backticked(column.name)}"
    return _typed(f"nullif({value}, '{empty}')", column, table)


def _typed(value: str, column: Column, table: str) -> str:
    """SQL for a text as a value of its column, as CAST does it; a text that is none raises, whatever the settings."""
    type_ = cast_type(column.type)
    where = f"[FRESHVIEW] column {column.name} of {table}: ".replace("\\", "\\\\").replace("'", "\\'")
    error = f"raise_error(concat('{where}', {value}, ' is not a value of type {type_}'))"
    cast = f"coalesce(try_cast({value} AS {type_}), {error})"
    return f"CASE WHEN {value} IS NOT NULL THEN {cast} END AS {backticked(column.name)}"


def _json(session: SparkSession, source: InputFiles, table: str, schema: Schema | None) -> DataFrame:
    """The rows of JSON files: one object per line, or a list of objects."""
    reader = session.read.options(multiLine=_is_list(source.paths[0]), mode="FAILFAST")
    if schema is None:
        return reader.json(source.uris)
    names = reader.options(primitivesAsString=True).json(source.uris).columns
    columns = _columns(names, table, schema)
    found = list(zip(names, columns, strict=True))
    struct = StructType([StructField(n, to_spark(c.type) if _is_nested(c) else StringType()) for n, c in found])
    frame = reader.schema(struct).json(source.uris)
    return frame.selectExpr(*(_of_json(backticked(name), column, table) for name, column in found))


def _of_json(value: str, column: Column, table: str) -> str:
    is_read = _is_nested(column) or column.type.is_text
    return f"{value} AS {backticked(column.name)}" if is_read else _typed(value, column, table)


def _is_nested(column: Column) -> bool:
    """Does Spark read the column in its own type? All others are read as text, digit by digit, and cast."""
    return column.type.kind in ("array", "map", "struct", "binary")


def _is_list(path: Path) -> bool:
    """Does a JSON file begin with a bracket? Then it is one list; compressed files and folders have lines."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(4096).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"[")


def _delta(engine: SparkEngine, path: Path) -> DataFrame:
    """The rows of the newest version of a Delta table, read as external tables are."""
    found = open_external(str(path))
    schema, main = external_schema(found, ()), describe(found)
    relation = Relation(0, path.name, "external", 0, 1, schema, 0, str(path))
    return engine.scan(RelationState(relation, 0, main, schema, ()))


def _columns(names: Sequence[str], table: str, schema: Schema | None) -> list[Column]:
    """The table's columns of these names; raise if the table lacks one, or one comes twice."""
    if schema is None:
        return []
    known = {fold(c.name): c for c in schema.columns}
    unknown = [n for n in names if fold(n) not in known]
    if unknown:
        has = f"It has {', '.join(schema.names)}."
        raise NotFound(f"column {unknown[0]}", f"table {table} has none of that name", has)
    found = [known[fold(n)] for n in names]
    if len(set(found)) < len(found):
        raise InvalidStatement(f"table {table}", "the file names a column twice", "Rename one.")
    return found
