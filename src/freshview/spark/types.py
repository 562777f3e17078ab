"""Our types as Spark's types and back, and SQL that stores a value of one type as another."""

from __future__ import annotations

import re

from pyspark.sql import types as T

from freshview.errors import TypeMismatch
from freshview.relation.names import backticked
from freshview.relation.schema import Column, Schema
from freshview.relation.types import DataType, StructField, can_store, fold

_PLAIN: dict[str, type[T.DataType]] = {
    "boolean": T.BooleanType,
    "tinyint": T.ByteType,
    "smallint": T.ShortType,
    "int": T.IntegerType,
    "bigint": T.LongType,
    "float": T.FloatType,
    "double": T.DoubleType,
    "string": T.StringType,
    "char": T.StringType,
    "varchar": T.StringType,
    "binary": T.BinaryType,
    "date": T.DateType,
    "timestamp": T.TimestampType,
    "timestamp_ntz": T.TimestampNTZType,
}
_KINDS = {cls: kind for kind, cls in _PLAIN.items() if kind not in ("char", "varchar")}
# Spark compares CHAR columns with padding where it finds this on an attribute.
_CHAR_METADATA = "__CHAR_VARCHAR_TYPE_STRING"
_CHAR = re.compile(r"char\((\d+)\)")


def to_spark(type_: DataType) -> T.DataType:
    match type_.kind:
        case "decimal":
            return T.DecimalType(*type_.params)
        case "array":
            return T.ArrayType(to_spark(type_.children[0]))
        case "map":
            return T.MapType(to_spark(type_.children[0]), to_spark(type_.children[1]))
        case "struct":
            return T.StructType([T.StructField(f.name, to_spark(f.type)) for f in type_.fields])
    return _PLAIN[type_.kind]()


def from_spark(type_: T.DataType) -> DataType | None:
    """Our type of a Spark type; None for VOID; raise TypeMismatch for a type that cannot be stored."""
    if isinstance(type_, T.NullType):
        return None
    if isinstance(type_, T.StringType) and type(type_) is not T.StringType:
        return DataType("string")
    if isinstance(type_, T.DecimalType):
        return DataType("decimal", (type_.precision, type_.scale))
    if isinstance(type_, T.ArrayType):
        return DataType("array", children=(_inner(type_.elementType),))
    if isinstance(type_, T.MapType):
        return DataType("map", children=(_inner(type_.keyType), _inner(type_.valueType)))
    if isinstance(type_, T.StructType):
        return DataType("struct", fields=tuple(StructField(f.name, _inner(f.dataType)) for f in type_.fields))
    kind = _KINDS.get(type(type_))
    collation = getattr(type_, "collation", "UTF8_BINARY")
    if kind is None or collation != "UTF8_BINARY":
        raise TypeMismatch(f"type {type_.simpleString()}", "cannot be kept exactly in a table", "Cast it first.")
    return DataType(kind)


def _inner(type_: T.DataType) -> DataType:
    inner = from_spark(type_)
    return DataType("string") if inner is None else inner


def spark_schema(schema: Schema) -> T.StructType:
    return T.StructType([_field(c) for c in schema.columns])


def _field(column: Column) -> T.StructField:
    return T.StructField(column.name, to_spark(column.type), True, metadata(column))


def metadata(column: Column) -> dict[str, str]:
    return {_CHAR_METADATA: str(column.type)} if column.type.kind in ("char", "varchar") else {}


def assign(source: str, given: T.DataType, column: Column, table: str) -> str:
    """SQL for Spark's ANSI store assignment, whatever the session's settings: overflow is an error.

    `source` is a backticked column name. As text, it costs Spark one call instead of dozens.
    """
    target = column.type
    where = f"column {column.name} of {table}"
    typed = _without_void(given, target)
    kind = from_spark(typed)
    assert kind is not None
    if not can_store(kind, target):
        raise TypeMismatch(where, f"{kind} cannot be stored as {target}", "Add an explicit CAST.")
    if typed != given:
        source = f"CAST({source} AS {cast_type(kind)})"
    value = source if typed == to_spark(target) else _converted(source, kind, target, where)
    return _sized(value, column, where) if target.kind in ("char", "varchar") else value


def by_name(source: str, given: T.DataType, column: Column, table: str) -> tuple[str, T.DataType]:
    """SQL and the type of a value whose struct fields are put in the target's order, by name; TypeMismatch if a field
    is missing or unknown. Store assignment goes by place: it would swap fields in another order."""
    return _ordered(source, given, column.type, f"column {column.name} of {table}")


def _ordered(source: str, given: T.DataType, target: DataType, where: str, depth: int = 0) -> tuple[str, T.DataType]:
    x = f"x{depth}"
    match given, target.kind:
        case T.ArrayType(), "array":
            inner, type_ = _ordered(x, given.elementType, target.children[0], where, depth + 1)
            return (source, given) if inner == x else (f"transform({source}, {x} -> {inner})", T.ArrayType(type_))
        case T.MapType(), "map":
            parts, asked = (
                (f"{x}.key", f"{x}.value"),
                zip((given.keyType, given.valueType), target.children, strict=True),
            )
            (key, k), (value, v) = (
                _ordered(part, g, t, where, depth + 1) for part, (g, t) in zip(parts, asked, strict=True)
            )
            if (key, value) == parts:
                return source, given
            entries = f"transform(map_entries({source}), {x} -> struct({key}, {value}))"
            return f"map_from_entries({entries})", T.MapType(k, v)
        case T.StructType(), "struct":
            names, wanted = [fold(f.name) for f in given.fields], [fold(f.name) for f in target.fields]
            if sorted(names) != sorted(wanted):
                raise TypeMismatch(
                    where,
                    f"fields {', '.join(f.name for f in given.fields)} cannot be stored as {target}",
                    "Give the same fields.",
                )
            fields = [given.fields[names.index(name)] for name in wanted]
            plain = [f"{source}.{backticked(f.name)}" for f in fields]
            ordered = [
                _ordered(p, f.dataType, t.type, where, depth + 1)
                for p, f, t in zip(plain, fields, target.fields, strict=True)
            ]
            values = [value for value, _ in ordered]
            if names == wanted and values == plain:
                return source, given
            items = ", ".join(f"{_string(f.name)}, {v}" for f, v in zip(fields, values, strict=True))
            struct = T.StructType([T.StructField(f.name, t) for f, (_, t) in zip(fields, ordered, strict=True)])
            return f"IF({source} IS NULL, NULL, named_struct({items}))", struct
    return source, given


def _without_void(given: T.DataType, target: DataType) -> T.DataType:
    """The type with VOID, the type of a bare NULL or of array(), replaced by the target's type."""
    match given, target.kind:
        case T.NullType(), _:
            return to_spark(target)
        case T.ArrayType(), "array":
            return T.ArrayType(_without_void(given.elementType, target.children[0]))
        case T.MapType(), "map":
            key, value = target.children
            return T.MapType(_without_void(given.keyType, key), _without_void(given.valueType, value))
        case T.StructType(), "struct" if len(given.fields) == len(target.fields):
            pairs = zip(given.fields, target.fields, strict=True)
            return T.StructType([T.StructField(f.name, _without_void(f.dataType, t.type)) for f, t in pairs])
    return given


def _converted(source: str, given: DataType, target: DataType, where: str, depth: int = 0) -> str:
    """SQL for a value as another type, inner values one by one: try_cast would turn an inner misfit into NULL."""
    if given == target or (given.is_text and target.is_text):
        return source
    x = f"x{depth}"
    match target.kind:
        case "array":
            inner = _converted(x, given.children[0], target.children[0], where, depth + 1)
            return f"transform({source}, {x} -> {inner})"
        case "map":
            key, value = (
                _converted(f"{x}.{part}", g, t, where, depth + 1)
                for part, g, t in zip(("key", "value"), given.children, target.children, strict=True)
            )
            return f"map_from_entries(transform(map_entries({source}), {x} -> struct({key}, {value})))"
        case "struct":
            fields = ", ".join(
                f"{_string(t.name)}, {_converted(f'{source}.{backticked(g.name)}', g.type, t.type, where, depth + 1)}"
                for g, t in zip(given.fields, target.fields, strict=True)
            )
            return f"IF({source} IS NULL, NULL, named_struct({fields}))"
    cast = f"try_cast({source} AS {cast_type(target)})"
    value = "'a value'" if given.kind == "binary" else f"CAST({source} AS STRING)"
    message = f"concat({_string(f'[FRESHVIEW] {where}: ')}, {value}, {_string(f' does not fit {target}')})"
    return f"IF({source} IS NOT NULL AND {cast} IS NULL, raise_error({message}), {cast})"


def cast_type(type_: DataType) -> str:
    """The type's name in CAST."""
    return "STRING" if type_.is_text else str(type_)


def _string(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _sized(value: str, column: Column, where: str) -> str:
    """SQL for a CHAR or VARCHAR value: CHAR pads; both drop surplus trailing spaces and refuse more, as in Spark."""
    limit = column.type.params[0]
    message = f"concat({_string(f'[FRESHVIEW] {where}: ')}, {value}, {_string(f' is longer than {column.type}')})"
    fitted = (
        f"CASE WHEN length({value}) <= {limit} THEN {value} "
        f"WHEN length(rtrim({value})) > {limit} THEN raise_error({message}) "
        f"ELSE substring({value}, 1, {limit}) END"
    )
    return f"rpad({fitted}, {limit}, ' ')" if column.type.kind == "char" else fitted


def identity_sql(expression: str, type_: DataType, depth: int = 0) -> str:
    """SQL that is equal exactly for bit-identical values, and has equality for every type (law 11.4)."""
    if type_.kind in ("float", "double"):
        return f"CAST({expression} AS STRING)"
    if not type_.is_nested or not any(t.kind in ("float", "double", "map") for t in type_.walk()):
        return expression
    x = f"x{depth}"
    if type_.kind == "array":
        return f"transform({expression}, {x} -> {identity_sql(x, type_.children[0], depth + 1)})"
    if type_.kind == "map":
        key = identity_sql(f"{x}.key", type_.children[0], depth + 1)
        value = identity_sql(f"{x}.value", type_.children[1], depth + 1)
        return f"transform(map_entries({expression}), {x} -> named_struct('k', {key}, 'v', {value}))"
    fields = ", ".join(
        f"'{i}', {identity_sql(f'{expression}.{backticked(f.name)}', f.type, depth + 1)}"
        for i, f in enumerate(type_.fields)
    )
    return f"IF({expression} IS NULL, NULL, named_struct({fields}))"


def as_schema(struct: T.StructType, key: tuple[str, ...] = ()) -> Schema:
    """The schema of a table for a query's result. A column that Spark compares as CHAR stays CHAR."""
    columns = []
    for field in struct.fields:
        char = _CHAR.fullmatch(field.metadata.get(_CHAR_METADATA, ""))
        type_ = from_spark(field.dataType) if char is None else DataType("char", (int(char[1]),))
        if type_ is None:
            raise TypeMismatch(f"column {field.name}", "has type VOID", "Cast it to the type it should have.")
        columns.append(Column(field.name, type_))
    return Schema(tuple(columns), key)
