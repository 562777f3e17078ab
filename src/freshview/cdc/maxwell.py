"""Maxwell events: {"database", "table", "type", "data", "old"}; "old" has the changed columns only.

A bootstrap sends the rows of a table as they are at its time. It may be repeated, and the table may have been fed
before: such a row is in ups, and in delk if it is deleted before the next poll, since its old image is not known.
"""

from __future__ import annotations

import base64
import datetime
from dataclasses import replace
from typing import Any

from freshview.cdc.captures import LOG, Capture
from freshview.cdc.log_places import LogPlace, binlog_place
from freshview.cdc.net import LoggedChange, key_of
from freshview.cdc.texts import BadEvent, moment, typed, typed_row
from freshview.relation.schema import Schema
from freshview.relation.types import DataType

_ROWS = ("insert", "bootstrap-insert", "update", "delete")
_NO_ROWS = ("bootstrap-start", "bootstrap-complete")
_LAST = 2**63  # the last row of a transaction has "commit" in place of its number


class Maxwell:
    """The format. Old images are whole: the new image with the columns of "old" in place."""

    @property
    def capture(self) -> Capture:
        return replace(LOG, sets=LOG.sets | {"ups", "delk"})

    def table(self, document: Any) -> str | None:
        if not isinstance(document, dict) or "table" not in document or "database" not in document:
            raise BadEvent("it names no database and table")
        if document.get("type") in _NO_ROWS:
            return None
        return f"{document['database']}.{document['table']}"

    def log_place(self, document: Any) -> LogPlace | None:
        """Binlog file, position and row of the transaction, if Maxwell is configured to send them."""
        position = document.get("position")
        if not isinstance(position, str) or ("xoffset" not in document and not document.get("commit")):
            return None
        file, _, at = position.rpartition(":")
        return binlog_place(file, at, document.get("xoffset", _LAST), document.get("server_id"))

    def at(self, document: Any) -> datetime.datetime | None:
        return moment(document.get("ts"), 1)

    def changes(self, document: Any, schema: Schema, place: str) -> list[LoggedChange]:
        kind = document.get("type")
        if kind not in _ROWS:
            raise BadEvent(f"its type {kind!r} is no change of rows (a changed schema is to be applied by hand)")
        data = document.get("data")
        if not isinstance(data, dict):
            raise BadEvent("it has no data")
        image = typed_row(data, schema, _convert)
        if kind == "delete":
            return [LoggedChange(key_of(image, schema), True, None, image, place)]
        if kind != "update":
            existed = None if kind == "bootstrap-insert" else False
            return [LoggedChange(key_of(image, schema), existed, image, None, place)]
        old = typed_row({**data, **(document.get("old") or {})}, schema, _convert)
        return [LoggedChange(key_of(old, schema), True, image, old, place)]


def _convert(_: str, given: Any, type_: DataType) -> Any:
    return typed(given, type_, base64.b64decode)
