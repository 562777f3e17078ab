"""Conversion of values to stored types: exactly, or not at all.

Law: the value that is read back equals the one that was given. A fraction, a digit, a time zone or a field that the
column cannot hold is an error. A binary floating-point number stands for its shortest decimal text, and a Python float
is stored in FLOAT as the nearest single, since Python has no singles.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Mapping
from decimal import Context, Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from freshview.errors import TypeMismatch, first_line
from freshview.relation.types import INEXACT, INTEGERS, DataType, fold, from_arrow
from freshview.relation.values import numbered_values

_NONE = type(None)
# A column whose cells all have these classes is not checked value by value: Arrow checks the range.
_PLAIN: dict[str, set[type]] = {
    "boolean": {bool, _NONE},
    **{kind: {int, _NONE} for kind in INTEGERS},
    "double": {float, _NONE},
    **{kind: {str, _NONE} for kind in ("string", "char", "varchar")},
    "binary": {bytes, _NONE},
    "date": {datetime.date, _NONE},
}
_BITS = {"tinyint": 7, "smallint": 15, "int": 31, "bigint": 63}
_WIDE = Context(prec=80)
_LARGEST_SINGLE = float(np.finfo(np.float32).max)
_ARROW_ERRORS = (pa.ArrowException, OverflowError, TypeError, ValueError)


class Unfit(Exception):
    """A value that the type cannot hold; the text is the reason."""


def from_cells(cells: list[Any], type_: DataType) -> pa.Array:
    """Python values as an Arrow array of the stored type."""
    if set(map(type, cells)) <= _PLAIN.get(type_.kind, set()):
        try:
            return pa.array(cells, type_.arrow)
        except _ARROW_ERRORS:
            pass  # a value does not fit: the loop below finds it
    values = []
    for i, cell in enumerate(cells):
        try:
            values.append(value(cell, type_))
        except Unfit as reason:
            raise Unfit(f"row {i} has {cell!r:.60}, {reason}") from None
    try:
        return _with_distinct_keys(pa.array(values, type_.arrow))
    except _ARROW_ERRORS as error:
        raise Unfit(first_line(error)) from error


def value(given: Any, type_: DataType) -> Any:
    """A Python value in the form that Arrow takes for a stored type; Unfit if the type cannot hold it."""
    if given is None or type(given).__name__ in ("NAType", "NaTType"):  # pandas' missing values
        return None
    if isinstance(given, np.generic):
        given = _from_numpy(given)
    return _CONVERTERS[type_.kind](given, type_)


def _from_numpy(given: np.generic) -> Any:
    if isinstance(given, np.datetime64):
        micros = given.astype("datetime64[us]")
        if micros != given:
            raise Unfit("whose nanoseconds would be lost")
        return micros.item()
    return given.item()


def _boolean(given: Any, type_: DataType) -> bool:
    if isinstance(given, bool):
        return given
    raise Unfit(f"which is no {type_}")


def _integer(given: Any, type_: DataType) -> int:
    limit: int = 2 ** _BITS[type_.kind]
    if isinstance(given, bool) or not isinstance(given, int | float | Decimal):
        raise Unfit(f"which is no {type_}")
    if not isinstance(given, int) and not (math.isfinite(given) and given == int(given)):
        raise Unfit("which is no whole number")
    if not -limit <= given < limit:
        raise Unfit(f"which is out of the range of {type_}")
    return int(given)


def _float(given: Any, type_: DataType) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float | Decimal):
        raise Unfit(f"which is no {type_}")
    try:
        number = float(given)
    except OverflowError:
        raise Unfit(f"which is out of the range of {type_}") from None
    if type_.kind == "float" and _LARGEST_SINGLE < abs(number) < math.inf:
        raise Unfit(f"which is out of the range of {type_}")
    if isinstance(given, int) and (number if type_.kind == "double" else float(np.float32(number))) != given:
        raise Unfit(f"which {type_} cannot hold exactly")
    if isinstance(given, Decimal) and given.is_finite() and Decimal(repr(number)) != given:
        raise Unfit(f"which {type_} cannot hold exactly")
    return number


def _decimal(given: Any, type_: DataType) -> Decimal:
    if isinstance(given, bool) or not isinstance(given, int | float | Decimal):
        raise Unfit(f"which is no {type_}")
    number = Decimal(repr(given)) if isinstance(given, float) else Decimal(given)
    precision, scale = type_.params
    if not number.is_finite():
        raise Unfit(f"which is no {type_}")
    if number.copy_abs() >= Decimal(10) ** (precision - scale):
        raise Unfit(f"which is out of the range of {type_}")
    rounded = number.quantize(Decimal(1).scaleb(-scale), context=_WIDE)
    if rounded != number:
        raise Unfit(f"which has more digits than {type_}")
    return rounded


def _text(given: Any, type_: DataType) -> str:
    if not isinstance(given, str):
        raise Unfit(f"which is no {type_}")
    try:
        given.encode()
    except UnicodeEncodeError:
        raise Unfit("which is no valid Unicode") from None
    return given


def _binary(given: Any, type_: DataType) -> bytes:
    if isinstance(given, bytes | bytearray | memoryview):
        return bytes(given)
    raise Unfit(f"which is no {type_}")


def _date(given: Any, type_: DataType) -> datetime.date:
    if isinstance(given, datetime.datetime):
        nanoseconds: int = getattr(given, "nanosecond", 0)  # pandas has them
        if given.tzinfo is not None or given.time() != datetime.time() or nanoseconds:
            raise Unfit("whose time of day would be lost")
        return given.date()
    if isinstance(given, datetime.date):
        return given
    raise Unfit(f"which is no {type_}")


def _instant(given: Any, type_: DataType) -> datetime.datetime:
    if isinstance(given, datetime.date) and getattr(given, "tzinfo", None) is None:
        raise Unfit(_NO_ZONE)
    return _moment(given, type_)


def _wall_clock(given: Any, type_: DataType) -> datetime.datetime:
    if isinstance(given, datetime.datetime):
        if given.tzinfo is not None:
            raise Unfit(_ZONE_LOST)
    elif isinstance(given, datetime.date):
        return datetime.datetime.combine(given, datetime.time())
    return _moment(given, type_)


def _moment(given: Any, type_: DataType) -> datetime.datetime:
    if not isinstance(given, datetime.datetime):
        raise Unfit(f"which is no {type_}")
    if getattr(given, "nanosecond", 0):
        raise Unfit("whose nanoseconds would be lost")
    offset = given.utcoffset()
    if offset is not None and offset.microseconds:  # Arrow would take its whole seconds
        try:
            return given.astimezone(datetime.UTC)
        except OverflowError:
            raise Unfit("which is out of range in UTC") from None
    return given


_NO_ZONE = "a TIMESTAMP is an instant, and this has no time zone (give one, or declare TIMESTAMP_NTZ)"
_ZONE_LOST = "whose time zone would be lost (declare the column TIMESTAMP, or take the zone off)"


def _array(given: Any, type_: DataType) -> list[Any]:
    if not isinstance(given, list | tuple | np.ndarray):
        raise Unfit(f"which is no {type_}")
    return [value(v, type_.children[0]) for v in given]


def _map(given: Any, type_: DataType) -> list[tuple[Any, Any]]:
    pairs = list(given.items()) if isinstance(given, Mapping) else given
    if not isinstance(pairs, list | tuple) or not all(isinstance(p, tuple | list) and len(p) == 2 for p in pairs):
        raise Unfit(f"which is no {type_}")
    found = [(value(k, type_.children[0]), value(v, type_.children[1])) for k, v in pairs]
    if any(k is None for k, _ in found):
        raise Unfit("whose NULL key no map can hold")
    if len({repr(k) for k, _ in found}) < len(found):
        raise Unfit("in which a key occurs twice")
    return found


def _struct(given: Any, type_: DataType) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise Unfit(f"which is no {type_}")
    by_name = {fold(f.name): f for f in type_.fields}
    found: dict[str, Any] = {}
    for name, inner in given.items():
        field = by_name.get(fold(str(name)))
        if field is None:
            raise Unfit(f"whose field {name} is not in {type_}")
        if field.name in found:
            raise Unfit(f"whose field {name} is given twice")
        found[field.name] = value(inner, field.type)
    return found


_CONVERTERS: dict[str, Callable[[Any, DataType], Any]] = {
    "boolean": _boolean,
    **dict.fromkeys(INTEGERS, _integer),
    **dict.fromkeys(INEXACT, _float),
    "decimal": _decimal,
    **dict.fromkeys(("string", "char", "varchar"), _text),
    "binary": _binary,
    "date": _date,
    "timestamp": _instant,
    "timestamp_ntz": _wall_clock,
    "array": _array,
    "map": _map,
    "struct": _struct,
}


def from_arrays(source: pa.ChunkedArray, type_: DataType) -> pa.ChunkedArray:
    """An Arrow column of any type, converted to the stored type; Unfit if a value would change."""
    stored = _converted(source, type_)
    if any(inner.kind == "map" for inner in type_.walk()):
        for chunk in stored.chunks:
            _with_distinct_keys(chunk)
    return stored


def _converted(source: pa.ChunkedArray, type_: DataType) -> pa.ChunkedArray:
    if source.type == type_.arrow:
        return source
    if pa.types.is_null(source.type):
        return pa.chunked_array([pa.nulls(len(source), type_.arrow)])
    try:
        given = from_arrow(source.type)
    except TypeMismatch as error:
        raise Unfit(f"{error.what} {error.cause}") from None
    try:
        return _cast(source, given, type_)
    except _ARROW_ERRORS as error:
        raise Unfit(first_line(error)) from error


def _cast(source: pa.ChunkedArray, given: DataType, type_: DataType) -> pa.ChunkedArray:
    """Arrow's checked cast where it keeps the law, else value by value."""
    if _has_view(source.type):  # Arrow's cast to a list takes offsets for those of a list, and reads other elements
        return pa.chunked_array([from_cells(source.to_pylist(), type_)])
    if given == type_ or (given.is_text and type_.is_text):
        return source.cast(type_.arrow)
    if given.is_number and type_.is_number:
        return _cast_number(source, given, type_)
    if given.kind == "timestamp_ntz" and type_.kind == "date":
        dates = source.cast(type_.arrow)
        if not dates.cast(source.type).equals(source):
            raise Unfit("a time of day would be lost")
        return dates
    if given.kind == "date" and type_.kind == "timestamp_ntz":
        return source.cast(type_.arrow)
    if type_.kind == "timestamp" and given.kind in ("date", "timestamp_ntz"):
        raise Unfit(_NO_ZONE)
    if given.kind == "timestamp" and type_.kind in ("date", "timestamp_ntz"):
        raise Unfit(_ZONE_LOST)
    if given.is_nested and given.kind == type_.kind:
        return pa.chunked_array([from_cells(source.to_pylist(), type_)])
    raise Unfit(f"{given} is no {type_}")


def _with_distinct_keys(array: pa.Array) -> pa.Array:
    """The array; Unfit if a key occurs twice in a map. As in Spark, 0.0 and -0.0 are one key."""
    if not isinstance(array, pa.MapArray | pa.ListArray | pa.StructArray):
        return array
    if isinstance(array, pa.StructArray):
        parts = array.flatten()
    elif not isinstance(array, pa.MapArray):
        parts = [array.flatten()]
    else:
        if not len(array):
            return array
        offsets = array.offsets.to_numpy()
        parts = [entries.slice(offsets[0], offsets[-1] - offsets[0]) for entries in (array.keys, array.items)]
        keys = parts[0]
        if pa.types.is_nested(keys.type):
            keys = pa.array([repr(key) for key in numbered_values(keys)], pa.string())
        elif pa.types.is_floating(keys.type):
            keys = pc.add(keys, pa.scalar(0.0, keys.type))
        pairs = pa.table({"map": np.repeat(np.arange(len(array)), np.diff(offsets)), "key": keys})
        if pairs.group_by(["map", "key"]).aggregate([]).num_rows < pairs.num_rows:
            raise Unfit("a key occurs twice in a map")
    for part in parts:
        _with_distinct_keys(part)
    return array


def _has_view(type_: pa.DataType) -> bool:
    """Is there a list in a type whose elements may lie in any order?"""
    if pa.types.is_list_view(type_):
        return True
    return any(_has_view(type_.field(i).type) for i in range(type_.num_fields))


def _cast_number(source: pa.ChunkedArray, given: DataType, type_: DataType) -> pa.ChunkedArray:
    if type_.kind == "decimal" and given.kind in INTEGERS:
        return source.cast(pa.decimal128(38, 0)).cast(type_.arrow)
    if "decimal" in (given.kind, type_.kind) and {given.kind, type_.kind} & set(INEXACT):
        return pa.chunked_array([from_cells(source.to_pylist(), type_)])
    cast = source.cast(type_.arrow)
    if type_.kind == "float" and pc.any(pc.and_(pc.is_inf(cast), pc.invert(pc.is_inf(source)))).as_py():
        raise Unfit(f"a value is out of the range of {type_}")
    return cast
