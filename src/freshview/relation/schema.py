"""Schemas of relations: columns, key, and the Arrow schema derived from them."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from freshview.errors import InvalidStatement, NotFound
from freshview.relation.fields import cast_column
from freshview.relation.types import DataType, fold, parse_type, refuse_key_type

__all__ = ["ACTION", "STMTSN", "Column", "Schema", "check_relation_name", "fold"]

STMTSN = "_stmtsn"
ACTION = "_action"
_RESERVED = (STMTSN, ACTION, "__live")
_RESERVED_PREFIX = "__fv_"  # of columns that statements and checkpoints add to intermediate rows
# Delta Lake and Parquet readers without column mapping refuse these in column names.
_FORBIDDEN = set(" ,;{}()\n\t=")


@dataclass(frozen=True)
class Column:
    """A named, typed column."""

    name: str
    type: DataType
    nullable: bool = True
    comment: str = ""


@dataclass(frozen=True)
class Schema:
    """The columns of a relation and its key (empty for a bag): no two rows agree on it. NULL may stand in the key of a
    view, not in the primary key of a table."""

    columns: tuple[Column, ...]
    key: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.columns:
            raise InvalidStatement("table definition", "it has no columns", "Name at least one column.")
        seen: set[str] = set()
        for column in self.columns:
            _check_column_name(column.name)
            if fold(column.name) in seen:
                raise InvalidStatement(
                    f"column {column.name}", "is named twice", "Names are case-insensitive; rename one."
                )
            seen.add(fold(column.name))
        for name in self.key:
            refuse_key_type(name, self.column(name).type)
        if len({fold(k) for k in self.key}) != len(self.key):
            raise InvalidStatement("primary key", "names a column twice", "Name each key column once.")

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(c.name for c in self.columns)

    @cached_property
    def key_positions(self) -> tuple[int, ...]:
        return tuple(self.position(k) for k in self.key)

    @cached_property
    def required(self) -> tuple[str, ...]:
        """Names of the columns that may not be NULL: NOT NULL columns and the key."""
        keys = {fold(k) for k in self.key}
        return tuple(c.name for c in self.columns if not c.nullable or fold(c.name) in keys)

    @cached_property
    def arrow(self) -> pa.Schema:
        """The Arrow schema of rows; all fields are nullable, since a delete-by-key row has the key alone."""
        return pa.schema([pa.field(c.name, c.type.arrow) for c in self.columns])

    @cached_property
    def segment_arrow(self) -> pa.Schema:
        """The Arrow schema of delta rows."""
        return self.arrow.append(pa.field(STMTSN, pa.int32())).append(pa.field(ACTION, pa.int8()))

    @cached_property
    def _positions(self) -> dict[str, int]:
        return {fold(c.name): i for i, c in enumerate(self.columns)}

    def position(self, name: str) -> int:
        try:
            return self._positions[fold(name)]
        except KeyError:
            raise NotFound(
                f"column {name}", f"not among {', '.join(c.name for c in self.columns)}", "Check the spelling."
            ) from None

    def column(self, name: str) -> Column:
        return self.columns[self.position(name)]

    def has(self, name: str) -> bool:
        return fold(name) in self._positions

    def with_columns(self, added: Iterable[Column]) -> Schema:
        return Schema(self.columns + tuple(added), self.key)

    def with_renamed(self, old: str, new: str) -> Schema:
        """The schema with one column renamed; a column's place is its identity."""
        at = self.position(old)
        columns = tuple(
            Column(new, c.type, c.nullable, c.comment) if i == at else c for i, c in enumerate(self.columns)
        )
        key = tuple(new if fold(k) == fold(old) else k for k in self.key)
        return Schema(columns, key)

    def to_json(self) -> str:
        columns = [[c.name, str(c.type), c.nullable, c.comment] for c in self.columns]
        return json.dumps({"columns": columns, "key": list(self.key)}, ensure_ascii=False)

    @staticmethod
    def from_json(text: str) -> Schema:
        data = json.loads(text)
        columns = tuple(Column(n, parse_type(t), nullable, comment) for n, t, nullable, comment in data["columns"])
        return Schema(columns, tuple(data["key"]))

    def widened(self, rows: pa.Table) -> pa.Table:
        """Rows that have some of the columns, by name, with NULL in all others."""
        given = {self.position(n): rows.column(i) for i, n in enumerate(rows.column_names)}
        arrays = [given.get(i, pa.nulls(rows.num_rows, c.type.arrow)) for i, c in enumerate(self.columns)]
        return pa.table(arrays, schema=self.arrow)

    def conform(self, table: pa.Table) -> pa.Table:
        """A table written under an earlier version of this schema, in the columns of this one.

        Columns are only ever appended or renamed, so their place identifies them. Fields inside a column are never
        renamed: FieldMismatch if they differ.
        """
        if table.schema.equals(self.arrow):
            return table
        arrays = []
        for i, field in enumerate(self.arrow):
            if i < table.num_columns:
                arrays.append(cast_column(table.column(i), field.type, f"column {field.name}"))
            else:
                arrays.append(pa.nulls(table.num_rows, field.type))
        return pa.table(arrays, schema=self.arrow)


def _check_column_name(name: str) -> None:
    bad = sorted(_FORBIDDEN & set(name))
    if not name or bad:
        refused = ", ".join(repr(c) for c in bad) or "the empty name"
        raise InvalidStatement(
            f"column {name!r}", f"{refused} cannot stand in a column name of a Delta table", "Choose another name."
        )
    if any(unicodedata.category(c) in ("Cc", "Cs") for c in name):
        raise InvalidStatement(f"column {name!r}", "control characters cannot stand in a name", "Choose another name.")
    if fold(name) in _RESERVED or fold(name).startswith(_RESERVED_PREFIX):
        raise InvalidStatement(f"column {name}", "is reserved for delta rows", "Choose another name.")


def require_text(name: object) -> None:
    """Raise InvalidStatement if a name of a table or view is not a string."""
    if not isinstance(name, str):
        raise InvalidStatement(f"name {name!r}", "is no text", "Give the name of a table or view as a string.")


def check_relation_name(name: str) -> None:
    """Raise InvalidStatement unless a name is printable; folders are named by relation id, so nothing else matters."""
    require_text(name)
    if not name or len(name) > 255 or not name.isprintable():
        raise InvalidStatement(f"table name {name!r}", "must be 1 to 255 printable characters", "Choose another name.")


def refuse_weight(schema: Schema) -> None:
    """Raise InvalidStatement if a column has the name under which deltas carry their weight."""
    for column in schema.columns:
        if fold(column.name) == "__w":
            raise InvalidStatement(
                f"column {column.name}", "is reserved for the weight of delta rows", "Choose another name."
            )
