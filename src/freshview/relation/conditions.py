"""Conditions on one column that a lookup answers: one of some values, or a comparison with one value.

Law: `met_by` is true for a row exactly if Spark's comparison is, for columns of the types in EXACT. There two values
are equal exactly if their bits are, and the order of strings is that of their bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from freshview.relation.delta import digest
from freshview.relation.types import INTEGERS, DataType

EXACT = (*INTEGERS, "string", "date")  # kinds of types
# Operators in the notation of SQL. Each is also the name of a function of Arrow.
OPERATORS: Mapping[str, str] = MappingProxyType(
    {"<": "less", "<=": "less_equal", ">": "greater", ">=": "greater_equal"}
)


def comparable(a: DataType, b: DataType, exact: Collection[str] = EXACT) -> bool:
    """May Spark's equality of two types be replaced by equality of values: among integers, or in one exact type?"""
    if a.kind in INTEGERS and b.kind in INTEGERS:
        return True
    return a == b and a.kind in exact


def distinct(values: pa.ChunkedArray, type_: DataType) -> pa.Array:
    """The distinct values but NULL, typed as the column that they are compared with.

    An integer that does not fit is cut to one that does: one value too many does no harm.
    """
    return pc.unique(pc.unique(values).cast(type_.arrow, safe=False)).drop_null()


@dataclass(frozen=True)
class Among:
    """The column holds one of these values or, with `nulls`, NULL."""

    values: pa.Array  # typed as the column, without NULL
    nulls: bool = False

    @cached_property
    def identity(self) -> Hashable:
        """Equal for conditions that are met by the same values."""
        ordered = self.values.take(pc.array_sort_indices(self.values))
        return self.nulls, digest(pa.table([ordered], names=["values"]))

    def is_met_within(self, low: Any, high: Any) -> bool:
        """May a value between these bounds meet the condition?"""
        if not len(self.values):
            return False
        ends = pc.min_max(self.values)
        return bool(ends["min"].as_py() <= high and ends["max"].as_py() >= low)

    def met_by(self, column: pa.ChunkedArray) -> pa.ChunkedArray:
        """Whether each value of a column meets the condition."""
        found = pc.is_in(column, value_set=self.values.cast(column.type))
        return pc.or_(found, pc.is_null(column)) if self.nulls else found


@dataclass(frozen=True)
class Compared:
    """The column's value compares with this one; NULL does not."""

    operator: str
    value: Any  # an Arrow scalar, typed as the column

    @property
    def identity(self) -> Hashable:
        """Equal for conditions that are met by the same values."""
        return self.operator, self.value.as_py()

    def is_met_within(self, low: Any, high: Any) -> bool:
        """May a value between these bounds meet the condition?"""
        best = low if self.operator in ("<", "<=") else high
        return bool(self.met_by(pa.chunked_array([[best]], self.value.type))[0].as_py())

    def met_by(self, column: pa.ChunkedArray) -> pa.ChunkedArray:
        """Whether each value of a column meets the condition."""
        return pc.fill_null(pc.call_function(OPERATORS[self.operator], [column, self.value.cast(column.type)]), False)


Condition = Among | Compared
Conditions = tuple[tuple[str, Condition], ...]  # each with the name of its column; all of them hold
