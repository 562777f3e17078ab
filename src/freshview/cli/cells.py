"""Values as text with all their digits: for tables, CSV and JSON."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any


def cell_text(value: Any) -> str:
    """Return a value as the text of a table's cell."""
    return "NULL" if value is None else plain(value)


def plain(value: Any) -> str:
    """Return the text of a value that is not NULL, in Spark's notation where Spark has one."""
    match value:
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case Decimal():
            return format(value, "f")
        case bytes() | bytearray():
            return bytes(value).hex().upper()
        case datetime():
            return value.isoformat(sep=" ")
        case date():
            return value.isoformat()
        case timedelta():
            return str(value)
        case Mapping():
            return "{" + ", ".join(f"{cell_text(k)} -> {cell_text(v)}" for k, v in value.items()) + "}"
        case tuple():
            return "{" + ", ".join(map(cell_text, value)) + "}"
        case list():
            return "[" + ", ".join(map(cell_text, value)) + "]"
    return str(value)


def csv_line(cells: Iterable[Any]) -> str:
    """Return a line of CSV (RFC 4180): NULL is an empty field, an empty string a pair of quotes."""
    return ",".join("" if cell is None else _csv_cell(_structured(cell)) for cell in cells)


def _structured(cell: Any) -> str:
    return json_text(cell) if isinstance(cell, Mapping | tuple | list) else plain(cell)


def _csv_cell(text: str) -> str:
    if text and not any(c in text for c in ',"\r\n'):
        return text
    return '"' + text.replace('"', '""') + '"'


def json_text(value: Any) -> str:
    """Return a value as JSON on one line: decimals with all their digits, times in ISO 8601, bytes in base 64."""
    match value:
        case None | bool() | str() | int():
            return json.dumps(value, ensure_ascii=False)
        case float():
            return json.dumps(value if math.isfinite(value) else str(value))
        case Decimal():
            return format(value, "f")
        case bytes() | bytearray():
            return json.dumps(base64.b64encode(bytes(value)).decode())
        case date():  # datetime too
            return json.dumps(value.isoformat())
        case timedelta():
            return json.dumps(value.total_seconds())
        case Path():
            return json.dumps(str(value))
        case Mapping():
            return json_object(value.items())
        case tuple() if hasattr(value, "asDict"):  # a Spark row
            return json_object(value.asDict().items())
        case list() | tuple() | set() | frozenset():
            return "[" + ", ".join(map(json_text, value)) + "]"
    return json.dumps(str(value))


def json_object(items: Iterable[tuple[Any, Any]]) -> str:
    """Return a JSON object; a key that is not a string becomes its cell text."""
    return "{" + ", ".join(f"{json.dumps(cell_text(k), ensure_ascii=False)}: {json_text(v)}" for k, v in items) + "}"


def aligned_right(rows: Sequence[Sequence[Any]]) -> list[int]:
    """Return the places of the columns that hold numbers only."""
    width = len(rows[0]) if rows else 0
    return [i for i in range(width) if all(_is_number(r[i]) for r in rows) and any(r[i] is not None for r in rows)]


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float | Decimal) and not isinstance(value, bool))
