"""Canal events: {"database", "table", "type", "data": [rows], "old": [changed columns]}, values as texts."""

from __future__ import annotations

import datetime
from typing import Any

from freshview.cdc.captures import LOG, Capture
from freshview.cdc.log_places import LogPlace
from freshview.cdc.net import LoggedChange, key_of
from freshview.cdc.texts import BadEvent, moment, typed, typed_row
from freshview.relation.schema import Schema
from freshview.relation.types import DataType


class Canal:
    """The format. Its events do not name their place in the log, so repeated files are not recognised as such."""

    @property
    def capture(self) -> Capture:
        return LOG

    def table(self, document: Any) -> str | None:
        if not isinstance(document, dict) or not document.get("table") or not document.get("database"):
            raise BadEvent("it names no database and table")
        return f"{document['database']}.{document['table']}"

    def log_place(self, _: Any) -> LogPlace | None:
        return None

    def at(self, document: Any) -> datetime.datetime | None:
        return moment(document.get("es"), 1000)

    def changes(self, document: Any, schema: Schema, place: str) -> list[LoggedChange]:
        kind, data = document.get("type"), document.get("data")
        if document.get("isDdl") or kind not in ("INSERT", "UPDATE", "DELETE"):
            raise BadEvent(f"its type {kind!r} is no change of rows (a changed schema is to be applied by hand)")
        if not isinstance(data, list):
            raise BadEvent("it has no data")
        olds = document.get("old") or [{}] * len(data)
        if len(olds) != len(data):
            raise BadEvent(f"it has {len(data)} rows and {len(olds)} old ones")
        return [_change(kind, row, old or {}, schema, place) for row, old in zip(data, olds, strict=True)]


def _change(kind: str, row: dict[str, Any], old: dict[str, Any], schema: Schema, place: str) -> LoggedChange:
    image = typed_row(row, schema, _convert)
    if kind == "DELETE":
        return LoggedChange(key_of(image, schema), True, None, image, place)
    if kind == "INSERT":
        return LoggedChange(key_of(image, schema), False, image, None, place)
    before = typed_row({**row, **old}, schema, _convert)
    return LoggedChange(key_of(before, schema), True, image, before, place)


def _convert(_: str, given: Any, type_: DataType) -> Any:
    return typed(given, type_, lambda text: text.encode("latin-1"))
