"""Values that arrive as texts or JSON, converted to the types of columns: exactly, or not at all."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

from freshview.cdc.net import Row
from freshview.relation.exact import Unfit, value
from freshview.relation.schema import Schema, fold
from freshview.relation.types import INEXACT, INTEGERS, DataType

_BOOLEANS = {"t": True, "true": True, "1": True, "f": False, "false": False, "0": False}
_NANOSECONDS = re.compile(r"\.\d{6}\d*[1-9]")


class BadEvent(Exception):
    """An event that cannot be read; the text is the reason."""


def typed(given: Any, type_: DataType, binary: Callable[[str], bytes] = bytes.fromhex) -> Any:
    """A JSON value or a text as a value of a column type; Unfit if the type cannot hold it.

    Bytes have no form of their own in JSON: `binary` reads the source's.
    """
    if isinstance(given, str) and not type_.is_text:
        given = _from_text(given, type_, binary)
    elif type_.kind == "boolean" and given in (0, 1):
        given = bool(given)
    return value(given, type_)


def _from_text(text: str, type_: DataType, binary: Callable[[str], bytes]) -> Any:
    try:
        if type_.kind in INTEGERS:
            return int(text)
        if type_.kind == "decimal":
            return Decimal(text)
        if type_.kind in INEXACT:
            return float(text)
        if type_.kind == "boolean":
            return _BOOLEANS[text.lower()]
        if type_.kind == "binary":
            return binary(text)
        if type_.kind == "date":
            return datetime.date.fromisoformat(text)
        if type_.kind in ("timestamp", "timestamp_ntz"):
            if _NANOSECONDS.search(text):
                raise Unfit("whose nanoseconds would be lost")
            return datetime.datetime.fromisoformat(text)
    except (ValueError, KeyError, InvalidOperation):
        raise Unfit(f"which is no {type_}") from None
    return text


def typed_row(given: Mapping[str, Any], schema: Schema, convert: Callable[[str, Any, DataType], Any]) -> Row:
    """A row of a relation from values by column name; BadEvent if a column is missing, unknown or does not fit.

    `convert` takes the name as the event spells it, the value and the column's type.
    """
    by_name = {fold(name): name for name in given}
    unknown = [name for name in given if not schema.has(name)]
    if unknown:
        raise BadEvent(f"it has the column {unknown[0]}, which the table does not have (was it added at the source?)")
    row = []
    for column in schema.columns:
        name = by_name.get(fold(column.name))
        if name is None:
            raise BadEvent(f"it lacks the column {column.name} (was it dropped at the source?)")
        row.append(converted(name, given[name], column.type, convert))
    return tuple(row)


def converted(name: str, given: Any, type_: DataType, convert: Callable[[str, Any, DataType], Any]) -> Any:
    """One value, or BadEvent."""
    try:
        return convert(name, given, type_)
    except Unfit as reason:
        raise BadEvent(f"its column {name} has {given!r:.60}, {reason}") from None


def typed_key(given: Mapping[str, Any], schema: Schema, convert: Callable[[str, Any, DataType], Any]) -> Row:
    """The key of a row of which other columns may be missing."""
    by_name = {fold(name): name for name in given}
    missing = [k for k in schema.key if given.get(by_name.get(fold(k), "")) is None]
    if missing:
        raise BadEvent(f"it names no row: neither an image nor the key column {missing[0]} is there")
    return tuple(
        converted(by_name[fold(k)], given[by_name[fold(k)]], schema.column(k).type, convert) for k in schema.key
    )


def moment(number: Any, per_second: int) -> datetime.datetime | None:
    """A number of units since 1970 as a time; None if it is no number."""
    if isinstance(number, bool) or not isinstance(number, int):
        return None
    try:
        return datetime.datetime.fromtimestamp(0, datetime.UTC) + datetime.timedelta(
            microseconds=number * 10**6 // per_second
        )
    except OverflowError:
        return None
