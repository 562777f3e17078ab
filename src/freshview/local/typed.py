"""Texts of the embedded engine with Spark's types, and what all rules of translation share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sqlglot import exp

from freshview.relation.types import INTEGERS, DataType

BOOLEAN, INT, BIGINT, DOUBLE = (DataType(kind) for kind in ("boolean", "int", "bigint", "double"))
STRING, DATE = DataType("string"), DataType("date")
WIDEST = 38  # digits of a decimal, in both engines
_KEPT_SCALE = 6  # that Spark leaves to a product or sum that needs more digits than there are
DIGITS = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 20}  # of an integer as a decimal, in Spark
COMPARED = frozenset({*INTEGERS, "boolean", "decimal", "string", "date", "timestamp", "timestamp_ntz", "binary"})
_OTHER_NAMES = {"timestamp": "TIMESTAMPTZ", "timestamp_ntz": "TIMESTAMP", "char": "VARCHAR", "string": "VARCHAR"}


class Unproven(Exception):
    """A construct whose result is not known to be Spark's."""

    def __init__(self, what: exp.Expr | str, why: str = "") -> None:
        text = what if isinstance(what, str) else what.sql(dialect="spark")
        super().__init__(f"{text}: {why}" if why else text)


@dataclass(frozen=True)
class Typed:
    """A text of the embedded engine with Spark's type for it; no type: NULL. `digits`: of an integer literal."""

    sql: str
    type: DataType | None
    digits: int = 0


ByName = Mapping[str, Typed]
TypeRule = Callable[["Expressions", exp.Expr], Typed]


@dataclass(frozen=True)
class Expressions:
    """Translates expressions over columns whose texts and types are given."""

    columns: ByName
    rules: Mapping[type[exp.Expr], tuple[TypeRule, frozenset[str]]]  # each with the arguments that it reads
    suffix: str = ""  # what follows the aggregate call that is translated: FILTER, OVER

    def typed(self, node: exp.Expr) -> Typed:
        """The text and type of an expression."""
        rule, read = self.rules.get(type(node), (None, frozenset()))
        if rule is None:
            raise Unproven(node, f"{type(node).__name__} is not proven")
        if more := [name for name, value in node.args.items() if value and name not in read]:
            raise Unproven(node, f"{type(node).__name__} with {more[0]} is not proven")
        return rule(self, node)

    def condition(self, node: exp.Expr) -> str:
        """The text of an expression that is true, false or NULL."""
        found = self.typed(node)
        if found.type not in (BOOLEAN, None):
            raise Unproven(node, "not a condition")
        return cast(found, BOOLEAN)

    def values(self, nodes: Sequence[exp.Expr]) -> list[Typed]:
        """Operands that are compared or computed with."""
        found = [self.typed(n) for n in nodes]
        for node, value in zip(nodes, found, strict=True):
            if value.type is not None and value.type.kind not in COMPARED:
                raise Unproven(node, f"{value.type} is handed on only")
        return found


def duck_type(type_: DataType) -> str:
    """The embedded engine's name of a type."""
    if type_.kind == "decimal":
        return f"DECIMAL({type_.params[0]}, {type_.params[1]})"
    if type_.is_nested:
        raise Unproven(str(type_), "a nested type")
    return _OTHER_NAMES.get(type_.kind, type_.kind.upper())


def cast(value: Typed, type_: DataType) -> str:
    """A value in a common type."""
    return value.sql if value.type == type_ and not value.digits else f"CAST({value.sql} AS {duck_type(type_)})"


def quoted(text: str) -> str:
    """A string literal."""
    if "\0" in text:
        raise Unproven("a string with a NUL character")
    return "'" + text.replace("'", "''") + "'"


def common(values: Sequence[Typed], what: exp.Expr) -> DataType:
    """The type that Spark gives to a choice among values."""
    types = list(dict.fromkeys(v.type for v in values if v.type is not None))
    if len(types) == 1:
        return types[0]
    if types and all(t.kind in DIGITS for t in types):
        return max(types, key=lambda t: INTEGERS.index(t.kind))
    if types and all(t.kind in DIGITS or t.kind == "decimal" for t in types):
        return _wider([as_decimal(t) for t in types], what, is_plain=not any(v.digits for v in values))
    raise Unproven(what, f"a choice among {', '.join(map(str, types)) or 'NULLs'}")


def _wider(decimals: Sequence[DataType], what: exp.Expr, *, is_plain: bool) -> DataType:
    """The type that holds all values of some; where there is none, Spark rounds to keep the digits before the point.

    Spark widens by pairs, in their order, and counts the digits of integer literals: these are not rounded here.
    """
    scale = max(d.params[1] for d in decimals)
    precision = max(d.params[0] - d.params[1] for d in decimals) + scale
    if precision > WIDEST and (len(decimals) > 2 or not is_plain):
        raise Unproven(what, f"Spark rounds DECIMAL({precision}, {scale})")
    return DataType("decimal", (min(precision, WIDEST), max(0, scale - max(0, precision - WIDEST))))


def as_decimal(type_: DataType) -> DataType:
    return type_ if type_.kind == "decimal" else DataType("decimal", (DIGITS[type_.kind], 0))


def bounded(precision: int, scale: int) -> DataType:
    """Spark's type for a result that needs so many digits: where there are too few, it keeps those before the point."""
    if precision > WIDEST:
        scale = max(WIDEST - (precision - scale), min(scale, _KEPT_SCALE))
    return DataType("decimal", (min(precision, WIDEST), scale))


def decimal(precision: int, scale: int, what: exp.Expr) -> DataType:
    """Spark's type for an exact result of so many digits. One that Spark would round is not proven."""
    type_ = bounded(precision, scale)
    if type_.params[1] != scale:
        raise Unproven(what, f"Spark rounds DECIMAL({precision}, {scale})")
    return type_


def guarded(condition: str, sql: str, type_: DataType, what: exp.Expr, *null_if: str) -> Typed:
    """A text that holds under a condition only; NULL if one of the others is; else an error when it runs."""
    nothing = " OR ".join(f"({n}) IS NULL" for n in null_if)
    name = duck_type(type_)
    failure = f"CAST(error({quoted(f'{type(what).__name__}: a value that is not proven')}) AS {name})"
    return Typed(f"CASE WHEN {nothing} THEN NULL WHEN {condition} THEN {sql} ELSE {failure} END", type_)
