"""`freshview load`: insert the rows of files into a table, in one transaction."""

from __future__ import annotations

import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from freshview.cli.output import say, write_json
from freshview.cli.place import Command, JsonOption, Place, command
from freshview.cli.progress import WorkAmount, working
from freshview.display import counted
from freshview.errors import AlreadyExists, InvalidStatement, NotFound

if TYPE_CHECKING:
    from freshview.relation.schema import Schema
    from freshview.spark.loading import InputFiles
    from freshview.warehouse.warehouse import Warehouse


class Kind(StrEnum):
    csv = "csv"
    json = "json"
    parquet = "parquet"
    delta = "delta"


@command
def load(
    place: Place,
    table: Annotated[str, typer.Argument(help="The table to load into.")],
    files: Annotated[list[Path], typer.Argument(help="Files or folders: CSV, JSON, Parquet, Delta.")],
    format: Annotated[
        Kind | None, typer.Option("--format", help="The format, if the file names do not have it as their ending.")
    ] = None,
    create: Annotated[bool, typer.Option("--create", help="Create the table, with the columns of the files.")] = False,
    key: Annotated[str, typer.Option("--key", help="With --create: the primary key, such as id or a,b.")] = "",
    upsert: Annotated[bool, typer.Option("--upsert", help="Replace rows whose primary key exists.")] = False,
    delimiter: Annotated[str, typer.Option("--delimiter", help="The separator between fields of CSV.")] = ",",
    header: Annotated[
        bool,
        typer.Option("--header/--no-header", help="Whether the first line of CSV names the columns; else by place."),
    ] = True,
    null: Annotated[str, typer.Option("--null", help="The text that means NULL in CSV; default: an empty field.")] = "",
    json: JsonOption = False,
) -> None:
    """Load files into a table: all rows in one transaction, or none.

    Columns are matched by name. A column that the files lack becomes NULL; a column that the table lacks is an error,
    and so is a value that is not of its column's type. Fields of CSV become values by Spark's CAST.
    """
    _check_options(create, key, upsert)
    source = _source(files, format, delimiter, header, null)
    begun = time.monotonic()
    with place.connect() as warehouse:
        schema = _schema_of(warehouse, place, table, create)
        with working(f"Loading {table}", lambda: size_of(source)):
            rows, csn = _load(warehouse, source, table, schema, _names(key), upsert)
    seconds = time.monotonic() - begun
    if json:
        write_json({"table": table, "rows": rows, "csn": csn, "seconds": round(seconds, 3), "created": create})
    else:
        say(f"{counted(rows, 'row')} into {table}, CSN {csn}, in {seconds:.1f} s.")


def _check_options(create: bool, key: str, upsert: bool) -> None:
    if key and not create:
        raise InvalidStatement("--key", "the table's key is given when it is made", "Leave it out, or add --create.")
    if create and upsert:
        raise InvalidStatement("--upsert", "a new table has no rows to replace", "Leave it out.")


def _names(key: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in key.split(",") if name.strip())


def _source(files: list[Path], format: Kind | None, delimiter: str, header: bool, null: str) -> InputFiles:
    from freshview.spark.loading import FORMATS, InputFiles, format_of
    from freshview.storage.files import check_location

    paths = tuple(file.absolute() for file in files)
    for path in paths:
        if not path.exists():
            raise NotFound(f"file {path}", "is not there", "Check the path.")
        check_location(path, f"file {path}")
    formats = {format.value if format is not None else format_of(path) for path in paths}
    if len(formats) > 1:
        raise InvalidStatement("files", "are of several formats", "Load one format after the other.")
    (found,) = formats
    if found is None:
        raise InvalidStatement(f"file {paths[0]}", "its ending is unknown", f"Give --format: {', '.join(FORMATS)}.")
    return InputFiles(paths, found, delimiter, header, null)


def size_of(source: InputFiles) -> WorkAmount:
    """Return the size of the files: in rows where their metadata has them, else in bytes."""
    import pyarrow.parquet as pq

    from freshview.spark.loading import data_files
    from freshview.storage.external import describe, open_external

    if source.format == "delta":
        return WorkAmount(sum(describe(open_external(str(p))).rows for p in source.paths), "rows", is_estimate=True)
    files = [f for path in source.paths for f in data_files(path)]
    if source.format == "parquet":
        return WorkAmount(sum(pq.read_metadata(f).num_rows for f in files), "rows", is_estimate=True)
    return WorkAmount(sum(f.stat().st_size for f in files), "bytes", is_estimate=True)


def _schema_of(warehouse: Warehouse, place: Place, table: str, create: bool) -> Schema | None:
    """Return the columns of the table; None if it is to be created."""
    from freshview.relation.schema import fold

    exists = any(fold(t.name) == fold(table) for t in warehouse.status().tables)
    if create and exists:
        raise AlreadyExists(f"table {table}", "it exists", "Leave out --create to load into it.")
    if not create and not exists:
        raise NotFound(
            f"table {table}", "there is none", "Create it first, or give --create, with --key if it has one."
        )
    if create:
        return None
    with place.open_catalog() as catalog:
        return catalog.relation(table).schema


def _load(
    warehouse: Warehouse, source: InputFiles, table: str, schema: Schema | None, key: tuple[str, ...], upsert: bool
) -> tuple[int, int | None]:
    from freshview.relation.schema import Schema
    from freshview.spark.loading import read_input

    engine = warehouse.engine()
    with warehouse.transaction() as transaction:
        frame = read_input(engine, source, table, schema)
        if schema is None:
            columns = engine.schema_of(frame, ())
            named = tuple(columns.column(k).name for k in key)
            transaction.create(table, Schema(columns.columns, named), {})
        rows = (transaction.upsert if upsert else transaction.insert)(table, frame).rows
    return rows, transaction.csn


COMMANDS = (
    Command(
        load,
        "Work",
        (
            "freshview load orders new_orders.csv",
            "freshview load orders corrections.jsonl --upsert",
            "freshview load parts parts.parquet --create --key id",
        ),
    ),
)
