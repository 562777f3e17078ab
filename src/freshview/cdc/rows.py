"""Rows as events: each JSON line is one row of a table's change feed, such as one with an operation and a number.

What a row means, and in which order rows count, is the flow's to say (APPLY AS DELETE WHEN, SEQUENCE BY).
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from freshview.cdc.captures import Capture
from freshview.cdc.log_places import LogPlace
from freshview.cdc.net import LoggedChange, key_of
from freshview.cdc.texts import BadEvent, typed, typed_row
from freshview.relation.schema import Schema
from freshview.relation.types import DataType

ROWS = Capture("rows as events", frozenset({"ups"}))


@dataclass(frozen=True)
class RowEvents:
    """The format; all lines are of one table. A column that a line leaves out is NULL."""

    name: str

    @property
    def capture(self) -> Capture:
        return ROWS

    def table(self, _: Any) -> str | None:
        return self.name

    def log_place(self, _: Any) -> LogPlace | None:
        return None

    def at(self, _: Any) -> datetime | None:
        return None

    def changes(self, document: Any, schema: Schema, place: str) -> list[LoggedChange]:
        if not isinstance(document, dict):
            raise BadEvent("it is no JSON object")
        given = {**dict.fromkeys(n for n in schema.names if n not in document), **document}
        row = typed_row(given, schema, _convert)
        key = key_of(row, schema)
        if any(part is None for part in key):
            raise BadEvent(f"it names no row: its key ({', '.join(schema.key)}) has NULL")
        return [LoggedChange(key, None, row, None, place)]


def _convert(_: str, given: Any, type_: DataType) -> Any:
    return typed(given, type_, base64.b64decode)
