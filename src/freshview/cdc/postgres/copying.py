"""Reading many rows of a server at once: COPY sends texts, which become columns without a loop over rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.csv

from freshview.cdc.columns import NotColumns
from freshview.cdc.postgres.server import Snapshot

_AT_ONCE = 16 * 2**20  # bytes that are parsed at once; a row must fit


def copied(snapshot: Snapshot, query: str, parameters: Sequence[Any], width: int) -> list[pa.ChunkedArray]:
    """The columns of a query as texts, `width` of them; NotColumns if a row cannot be parsed.

    In the CSV of COPY, NULL is nothing and an empty text is a pair of quotes.
    """
    with snapshot.server.reported(), snapshot.connection.cursor() as cursor:  # snapshots of several servers may be open
        command = f"COPY ({query}) TO STDOUT (FORMAT csv, ENCODING 'UTF8')"
        if not parameters:
            command = command.replace("%%", "%")  # the driver leaves a command without parameters as it is
        with cursor.copy(command.encode(), parameters or None) as rows:
            content = b"".join(rows)
    names = [str(i) for i in range(width)]
    if not content:
        return [pa.chunked_array([], pa.string()) for _ in names]
    try:
        table = pyarrow.csv.read_csv(
            pa.BufferReader(content),
            read_options=pyarrow.csv.ReadOptions(column_names=names, block_size=_AT_ONCE, use_threads=False),
            parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
            convert_options=pyarrow.csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()),
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
    except pa.ArrowException as error:
        raise NotColumns from error
    return list(table.columns)
