"""Debezium events: {"before", "after", "op", "source"}, alone or as the payload beside their schema part.

A line is the value of a message, or {"key": …, "value": …}. A tombstone (null) and messages without a table
(transaction metadata, heartbeats, changes of schemas, notifications) change nothing; one that is none of these has no
operation, as the rows that a transformation unwraps, and is refused. Old images are used only if the source declares
them whole: with PostgreSQL's default replica identity, "before" has the key alone and looks like a row of NULLs.

A row of a snapshot may have been there before, since snapshots are repeated: it is in ups, which a log alone never has;
and in delk if it is deleted before the next poll, since its old image is not known.
"""

from __future__ import annotations

import base64
import datetime
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from freshview.cdc.captures import LOG, LOG_WITHOUT_OLD_IMAGES, Capture
from freshview.cdc.log_places import LogPlace, binlog_place, lsn_place
from freshview.cdc.net import LoggedChange, key_of
from freshview.cdc.texts import BadEvent, moment, typed, typed_key, typed_row
from freshview.relation.exact import Unfit
from freshview.relation.schema import Schema
from freshview.relation.types import INEXACT, INTEGERS, DataType

_NOT_SENT = "__debezium_unavailable_value"
_NOT_SENT_BYTES = _NOT_SENT.encode()
# A large value that the database did not send: as a text, as encoded bytes, or as an array.
_NOT_SENT_FORMS = (
    _NOT_SENT,
    base64.b64encode(_NOT_SENT_BYTES).decode(),
    _NOT_SENT_BYTES.hex(),
    [_NOT_SENT],
    list(_NOT_SENT_BYTES),
)
# Fields by which messages that change no row are recognised, one set each.
_NO_ROWS = ({"status", "id"}, {"ddl"}, {"tableChanges"}, {"aggregate_type", "type"})
_EPOCH = datetime.datetime(1970, 1, 1)
# Units of a second by logical type; these count from 1970, without a time zone.
_MOMENTS = {
    "io.debezium.time.Timestamp": 10**3,
    "io.debezium.time.MicroTimestamp": 10**6,
    "io.debezium.time.NanoTimestamp": 10**9,
    "org.apache.kafka.connect.data.Timestamp": 10**3,
}
_DATES = ("io.debezium.time.Date", "org.apache.kafka.connect.data.Date")


@dataclass(frozen=True)
class Debezium:
    """The format; `old_images` declares that "before" is the whole row (such as by REPLICA IDENTITY FULL)."""

    old_images: bool = False

    @property
    def capture(self) -> Capture:
        log = LOG if self.old_images else LOG_WITHOUT_OLD_IMAGES
        return replace(log, sets=log.sets | {"ups", "delk"})

    def table(self, document: Any) -> str | None:
        """The table of an event as schema.table (or database.table); None if the message is no change of a table."""
        event = _payload(document)
        if event is None or event.get("op") == "m":
            return None
        if "op" not in event:
            if event.keys() <= {"ts_ms", "ts_us", "ts_ns"} or any(fields <= event.keys() for fields in _NO_ROWS):
                return None
            raise BadEvent("it has no operation (was it unwrapped? Rows without one are read USING EVENTS)")
        source = event.get("source")
        if not isinstance(source, dict) or "table" not in source:
            raise BadEvent("its source names no table")
        return f"{source.get('schema') or source.get('db')}.{source['table']}"

    def log_place(self, document: Any) -> LogPlace | None:
        """The place of an event in the log of its database: an LSN, or binlog file, position and row.

        PostgreSQL's events have the LSN of the last commit before their transaction in `sequence`, a JSON array as a
        text: ["last commit", "LSN"], either of which may be null.
        """
        source = (_payload(document) or {})["source"]
        if source.get("lsn") is not None:
            return lsn_place(source["lsn"], _last_commit(source.get("sequence")))
        if source.get("file") is not None and source.get("pos") is not None:
            return binlog_place(source["file"], source["pos"], source.get("row") or 0, source.get("server_id"))
        return None

    def at(self, document: Any) -> datetime.datetime | None:
        return moment((_payload(document) or {})["source"].get("ts_ms"), 1000)

    def changes(self, document: Any, schema: Schema, place: str) -> list[LoggedChange]:
        event = _payload(document) or {}
        convert = _converter(document)
        op, before, after = event["op"], event.get("before"), event.get("after")
        if op == "t":
            raise BadEvent("the table was truncated, which no change of rows can express")
        if op not in ("c", "r", "u", "d"):
            raise BadEvent(f"its operation {op!r} is not known")
        new = None if op == "d" else typed_row(_image(after, "after"), schema, convert)
        if op in ("c", "r"):
            assert new is not None
            return [LoggedChange(key_of(new, schema), False if op == "c" else None, new, None, place)]
        old = typed_row(_image(before, "before"), schema, convert) if self.old_images else None
        if old is not None:
            key = key_of(old, schema)
        elif before is not None or new is None:
            key = typed_key({**_key(document), **(before or {})}, schema, convert)
        else:
            key = key_of(new, schema)  # the key did not change: Debezium sends "before" if it did
        return [LoggedChange(key, True, new, old, place)]


def _payload(document: Any) -> dict[str, Any] | None:
    if isinstance(document, dict) and "value" in document and "op" not in document:
        document = document["value"]
    if isinstance(document, dict) and "payload" in document:
        document = document["payload"]
    if document is not None and not isinstance(document, dict):
        raise BadEvent("it is no JSON object")
    return document


def _last_commit(sequence: Any) -> Any:
    """The first part of PostgreSQL's `sequence`; None if the event has none, as those of earlier connectors."""
    if sequence is None:
        return None
    parts = json.loads(sequence)
    if not isinstance(parts, list) or len(parts) != 2:
        raise BadEvent(f"its place in the log is odd: the sequence {sequence!r:.60} is no pair of LSNs")
    return parts[0]


def _key(document: Any) -> dict[str, Any]:
    key = document.get("key") if isinstance(document, dict) and "value" in document else None
    if isinstance(key, dict) and "payload" in key:
        key = key["payload"]
    return key if isinstance(key, dict) else {}


def _image(image: Any, which: str) -> Mapping[str, Any]:
    if not isinstance(image, dict):
        raise BadEvent(f"it has no image {which!r}")
    return image


def _converter(document: Any) -> Callable[[str, Any, DataType], Any]:
    """Conversion by the schema part, where there is one."""
    value = document["value"] if isinstance(document, dict) and "value" in document else document
    parts = (value.get("schema") or {}).get("fields", []) if isinstance(value, dict) else []
    fields = {f["field"]: f for p in parts if p.get("field") in ("before", "after") for f in p.get("fields", [])}

    def convert(name: str, given: Any, type_: DataType) -> Any:
        if given in _NOT_SENT_FORMS:
            raise Unfit("which the database did not send (set REPLICA IDENTITY FULL)")
        return typed(_decoded(given, fields.get(name, {}), type_), type_, _bytes)

    return convert


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _decoded(given: Any, field: Mapping[str, Any], type_: DataType) -> Any:
    """A value by its logical type, if the column's type asks for more than the plain JSON value."""
    logical, kind = field.get("name"), type_.kind
    if given is None:
        return None
    if logical == "org.apache.kafka.connect.data.Decimal":
        return _as(type_, _unscaled(given, int(field["parameters"]["scale"])))
    if logical == "io.debezium.data.VariableScaleDecimal":
        return _as(type_, _unscaled(given["value"], given["scale"]))
    if isinstance(given, str) and not field and _may_be_encoded(given, kind):
        raise Unfit("which may be a number or encoded bytes (keep the schema part, or send decimals as double)")
    if kind == "date" and isinstance(given, int) and (logical in _DATES or not field):
        return (_EPOCH + datetime.timedelta(days=given)).date()
    if kind in ("timestamp", "timestamp_ntz") and isinstance(given, int):
        if logical not in _MOMENTS:
            raise Unfit("whose unit is not known (keep the schema part)")
        micros, rest = divmod(given * 10**6, _MOMENTS[logical])
        if rest:
            raise Unfit("whose nanoseconds would be lost")
        return _EPOCH + datetime.timedelta(microseconds=micros)
    return given


def _may_be_encoded(text: str, kind: str) -> bool:
    """Whether the digits of a number, as a column of this kind reads them, may be those of encoded bytes."""
    if kind == "decimal":
        return not set(text) & set(".-")
    return kind in (*INTEGERS, *INEXACT) and text.isalnum() and text[0].isdigit() and len(text) % 4 == 0


def _unscaled(text: str, scale: int) -> Decimal:
    number = int.from_bytes(base64.b64decode(text, validate=True), "big", signed=True)
    return Decimal((number < 0, tuple(map(int, str(abs(number)))), -scale))  # every digit, whatever the precision


def _as(type_: DataType, number: Decimal) -> Decimal | str:
    """A decimal for a column: its digits for a text, which else would be the encoded bytes."""
    return format(number, "f") if type_.is_text else number
