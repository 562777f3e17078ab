"""Column types: Spark's DDL types, their Arrow form, and which type may be stored into which.

The catalog holds Spark's DDL text; everything else is derived from it. Types that cannot be stored exactly (VARIANT,
TIME, INTERVAL, collated strings) are refused here, before they get anywhere else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import pyarrow as pa
import sqlglot
from sqlglot import exp

from freshview.errors import InvalidStatement, TypeMismatch
from freshview.relation.names import backticked

_PLAIN: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "char": pa.string(),
    "varchar": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
INTEGERS = ("tinyint", "smallint", "int", "bigint")
_NUMBERS = (*INTEGERS, "float", "double", "decimal")
_TEXTS = ("string", "char", "varchar")
_TIMES = ("date", "timestamp", "timestamp_ntz")
_NESTED = ("array", "map", "struct")
INEXACT = ("float", "double")
NEGATED = 34  # digits that -x keeps of a decimal in Spark


@dataclass(frozen=True)
class StructField:
    """One field of a struct type."""

    name: str
    type: DataType


@dataclass(frozen=True)
class DataType:
    """A Spark SQL type; `str()` returns its DDL text."""

    kind: str
    params: tuple[int, ...] = ()
    children: tuple[DataType, ...] = ()
    fields: tuple[StructField, ...] = ()

    def __str__(self) -> str:
        if self.kind == "struct":
            inner = ",".join(f"{quote(f.name)}:{f.type}" for f in self.fields)
            return f"struct<{inner}>"
        if self.children:
            return f"{self.kind}<{','.join(map(str, self.children))}>"
        if self.params:
            return f"{self.kind}({','.join(map(str, self.params))})"
        return self.kind

    @cached_property
    def arrow(self) -> pa.DataType:
        """The Arrow type of values of this type, in memory and in segments."""
        match self.kind:
            case "decimal":
                return pa.decimal128(*self.params)
            case "array":
                return pa.list_(pa.field("element", self.children[0].arrow))
            case "map":
                return pa.map_(self.children[0].arrow, self.children[1].arrow)
            case "struct":
                return pa.struct([pa.field(f.name, f.type.arrow) for f in self.fields])
        return _PLAIN[self.kind]

    @property
    def is_nested(self) -> bool:
        return self.kind in _NESTED

    @property
    def is_number(self) -> bool:
        return self.kind in _NUMBERS

    @property
    def is_text(self) -> bool:
        return self.kind in _TEXTS

    def walk(self) -> Iterator[DataType]:
        """The type and all types inside it."""
        yield self
        for child in (*self.children, *(f.type for f in self.fields)):
            yield from child.walk()


def fold(name: str) -> str:
    """The form in which names are compared: names are case-insensitive as in Spark, character by character.

    'ß' and 'ss' are two names; 'ſ' and 's' are one, and so are 'İ' and 'i'.
    """
    return name.lower() if name.isascii() else "".join(map(_fold_character, name))


@lru_cache(maxsize=4096)
def _fold_character(character: str) -> str:
    upper = character.upper()
    return (upper if len(upper) == 1 else character).lower()[0]


@lru_cache(maxsize=4096)
def quote(name: str) -> str:
    """A name as a Spark SQL identifier; backticks only where they are needed."""
    if name.isidentifier() and name.isascii():
        tokens = sqlglot.tokenize(name, read="spark")
        if len(tokens) == 1 and tokens[0].token_type.name == "VAR":
            return name
    return backticked(name)


@lru_cache(maxsize=4096)
def parse_type(text: str) -> DataType:
    """The type of a Spark DDL text."""
    try:
        node = sqlglot.parse_one(text, into=exp.DataType, read="spark")
    except sqlglot.errors.SqlglotError as error:
        raise TypeMismatch(f"type {text!r}", "cannot be parsed", "Use a Spark SQL type.") from error
    if not isinstance(node, exp.DataType):
        raise TypeMismatch(f"type {text!r}", "is not a type", "Use a Spark SQL type.")
    return from_sqlglot(node)


_FROM_SQLGLOT = {
    exp.DType.BOOLEAN: "boolean",
    exp.DType.TINYINT: "tinyint",
    exp.DType.SMALLINT: "smallint",
    exp.DType.INT: "int",
    exp.DType.BIGINT: "bigint",
    exp.DType.FLOAT: "float",
    exp.DType.DOUBLE: "double",
    exp.DType.TEXT: "string",
    exp.DType.BINARY: "binary",
    exp.DType.VARBINARY: "binary",
    exp.DType.DATE: "date",
    exp.DType.TIMESTAMP: "timestamp",
    exp.DType.TIMESTAMPTZ: "timestamp",
    exp.DType.TIMESTAMPLTZ: "timestamp",
    exp.DType.TIMESTAMPNTZ: "timestamp_ntz",
}


def from_sqlglot(node: exp.DataType) -> DataType:
    """The type of a parsed column definition; TypeMismatch if its values cannot be stored exactly."""
    kind = node.this
    if node.args.get("collate") is not None:
        raise TypeMismatch("type STRING COLLATE", "collated strings cannot be compared exactly", "Leave COLLATE out.")
    if kind in _FROM_SQLGLOT and not node.expressions:
        return DataType(_FROM_SQLGLOT[kind])
    match kind:
        case exp.DType.DECIMAL:
            return _decimal([int(p.name) for p in node.expressions])
        case exp.DType.CHAR | exp.DType.NCHAR | exp.DType.VARCHAR | exp.DType.NVARCHAR:
            name = "char" if kind in (exp.DType.CHAR, exp.DType.NCHAR) else "varchar"
            return _sized(name, [int(p.name) for p in node.expressions])
        case exp.DType.ARRAY | exp.DType.LIST if len(node.expressions) == 1:
            return DataType("array", children=(_child(node.expressions[0]),))
        case exp.DType.MAP if len(node.expressions) == 2:
            key, value = (_child(e) for e in node.expressions)
            return DataType("map", children=(key, value))
        case exp.DType.STRUCT if node.expressions:
            return _struct([_struct_field(e) for e in node.expressions])
    if kind in _FROM_SQLGLOT:
        raise TypeMismatch(f"type {_FROM_SQLGLOT[kind].upper()}", "takes no parameters", "Leave the brackets out.")
    raise TypeMismatch(
        f"type {kind.value if isinstance(kind, exp.DType) else node.sql(dialect='spark')}",
        "cannot be kept exactly in a table",
        "Use STRING, BINARY, a number, DATE, TIMESTAMP, TIMESTAMP_NTZ, BOOLEAN, CHAR(n), VARCHAR(n), "
        "ARRAY, MAP or STRUCT.",
    )


def _child(node: exp.Expr) -> DataType:
    if not isinstance(node, exp.DataType):
        raise TypeMismatch(f"type {node.sql(dialect='spark')}", "is not a type", "Use a Spark SQL type.")
    inner = from_sqlglot(node)
    if inner.kind in ("char", "varchar"):
        raise TypeMismatch(f"type {inner}", "is allowed for columns only, not inside another type", "Use STRING.")
    return inner


def _struct_field(node: exp.Expr) -> StructField:
    if not isinstance(node, exp.ColumnDef) or not isinstance(node.kind, exp.DataType):
        raise TypeMismatch(f"struct field {node.sql(dialect='spark')}", "has no type", "Write name: TYPE.")
    if any(isinstance(c.kind, exp.NotNullColumnConstraint) for c in node.constraints):
        raise TypeMismatch(
            f"struct field {node.name}",
            "NOT NULL inside a struct is not enforced",
            "Leave NOT NULL out, or make the field a column of its own.",
        )
    if node.constraints and any(not isinstance(c.kind, exp.CommentColumnConstraint) for c in node.constraints):
        raise TypeMismatch(f"struct field {node.name}", "constraints inside a struct are not kept", "Leave them out.")
    return StructField(node.name, _child(node.kind))


def _struct(fields: Sequence[StructField]) -> DataType:
    names = [fold(f.name) for f in fields]
    for field in fields:
        if names.count(fold(field.name)) > 1:
            raise TypeMismatch(
                f"struct field {field.name}", "is named twice", "Names are case-insensitive; rename one."
            )
    return DataType("struct", fields=tuple(fields))


def _decimal(params: list[int]) -> DataType:
    if len(params) > 2:
        raise TypeMismatch("type DECIMAL", f"has {len(params)} parameters", "Write DECIMAL(precision, scale).")
    precision, scale = (*params, 0)[:2] if params else (10, 0)
    if not (1 <= precision <= 38 and 0 <= scale <= precision):
        raise TypeMismatch(
            f"type DECIMAL({precision},{scale})", "is out of range", "Use 1 <= precision <= 38, scale <= precision."
        )
    return DataType("decimal", (precision, scale))


def _sized(name: str, params: list[int]) -> DataType:
    if len(params) != 1 or params[0] < 1:
        raise TypeMismatch(f"type {name.upper()}", "needs a length of at least 1", f"Write {name.upper()}(n).")
    return DataType(name, (params[0],))


def from_arrow(type_: pa.DataType) -> DataType:
    """The Spark type of an Arrow type, as Spark itself would read it."""
    t = pa.types
    for kind, arrow in _PLAIN.items():
        if type_ == arrow:
            return DataType(kind)
    if t.is_large_string(type_) or t.is_string_view(type_):
        return DataType("string")
    if t.is_large_binary(type_) or t.is_binary_view(type_) or t.is_fixed_size_binary(type_):
        return DataType("binary")
    if t.is_decimal(type_):
        return _decimal([type_.precision, type_.scale])
    if t.is_timestamp(type_):
        return DataType("timestamp" if type_.tz else "timestamp_ntz")
    if t.is_date(type_):
        return DataType("date")
    if t.is_uint8(type_):
        return DataType("smallint")
    if t.is_uint16(type_):
        return DataType("int")
    if t.is_uint32(type_):
        return DataType("bigint")
    if t.is_uint64(type_):
        return DataType("decimal", (20, 0))
    if t.is_float16(type_):
        return DataType("float")
    if t.is_dictionary(type_):
        return from_arrow(type_.value_type)
    if t.is_map(type_):
        return DataType("map", children=(from_arrow(type_.key_type), from_arrow(type_.item_type)))
    if t.is_list(type_) or t.is_large_list(type_) or t.is_fixed_size_list(type_) or t.is_list_view(type_):
        return DataType("array", children=(from_arrow(type_.value_type),))
    if t.is_struct(type_):
        fields = (type_.field(i) for i in range(type_.num_fields))
        return _struct([StructField(f.name, from_arrow(f.type)) for f in fields])
    raise TypeMismatch(
        f"Arrow type {type_}", "has no Spark SQL type that keeps it exactly", "Convert the column first."
    )


def can_store(source: DataType, target: DataType) -> bool:
    """Whether Spark's ANSI store assignment writes values of one type into a column of another."""
    if source == target or (source.is_number and target.is_number):
        return True
    if target.is_text:
        return not source.is_nested
    if source.kind in _TIMES and target.kind in _TIMES:
        return True
    if source.kind != target.kind:
        return False
    if source.kind == "struct":
        return len(source.fields) == len(target.fields) and all(
            can_store(s.type, t.type) for s, t in zip(source.fields, target.fields, strict=True)
        )
    return source.is_nested and all(can_store(s, t) for s, t in zip(source.children, target.children, strict=True))


def can_be_key(type_: DataType) -> bool:
    """Has a type exact equality? Keys compare by identity."""
    return type_.kind not in INEXACT and not type_.is_nested


def refuse_key_type(column: str, type_: DataType) -> None:
    """Raise InvalidStatement for a key column whose type has no exact equality."""
    if not can_be_key(type_):
        raise InvalidStatement(
            f"primary key column {column}",
            f"{type_} has no exact equality",
            "Use an integer, DECIMAL, STRING, DATE, TIMESTAMP, BOOLEAN or BINARY column as key.",
        )
