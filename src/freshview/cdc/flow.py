"""The plan of a flow: which columns go where, and what has to be remembered of the changes it took.

    target, SCD type 1   the chosen columns, keyed by KEYS
    target, SCD type 2   the chosen columns, __START_AT and __END_AT typed as the sequence, keyed by KEYS and __START_AT
    memory, type 1       with SEQUENCE BY: the sequence of the last change of each key, and whether it was a deletion;
                         with IGNORE NULL UPDATES also those that set each column, and that of the last deletion
    memory, type 2       the events that the target's rows do not show (`history`)

Law: a plan has no side effects; what cannot work is refused by its constructor, before anything is created.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from freshview.cdc.captures import Capture
from freshview.cdc.rows import ROWS
from freshview.errors import InvalidStatement, NotFound, TypeMismatch
from freshview.relation.ingest import store
from freshview.relation.schema import Column, Schema, fold
from freshview.relation.types import INEXACT, DataType, parse_type
from freshview.sql.dml import has_subquery
from freshview.sql.statements import ColumnChoice, CreateFlow
from freshview.sql.tokens import tokenize

START, END = "__START_AT", "__END_AT"
SEQUENCE, DELETED, AT = "__SEQUENCE", "__DELETED", "__AT"
FLOOR = "__FLOOR"
CHANGE_TYPE, CHANGE_TIME = "_change_type", "_change_time"
_TIMESTAMP = parse_type("TIMESTAMP")


def set_at(column: str) -> str:
    """The column of the memory that has the sequence of the change that set a column."""
    return f"{SEQUENCE}_{column}"


def to_spec(statement: CreateFlow, owner: str) -> dict[str, Any]:
    """A statement as data for the catalog, with the name under which its source knows the flow."""
    fields = {k: v for k, v in asdict(statement).items() if k not in ("columns", "if_not_exists")}
    columns = json.loads(Schema(statement.columns).to_json())["columns"] if statement.columns else []
    return {**fields, "columns": columns, "owner": owner}


def from_spec(spec: Mapping[str, Any]) -> CreateFlow:
    """The statement of a flow's record."""
    given = {k: v for k, v in spec.items() if k != "owner"}
    columns = tuple(Column(n, parse_type(t), nullable, comment) for n, t, nullable, comment in given["columns"])
    choices = {k: ColumnChoice(tuple(given[k]["names"]), given[k]["is_except"]) for k in ("chosen", "tracked")}
    return CreateFlow(**{**given, **choices, "columns": columns, "keys": tuple(given["keys"])})


@dataclass(frozen=True)
class Plan:
    """A flow from a table with these columns and capture; `sequence_type` is that of SEQUENCE BY, None without one."""

    flow: CreateFlow
    source: Schema
    capture: Capture
    sequence_type: DataType | None = None

    def __post_init__(self) -> None:
        flow, name = self.flow, f"flow {self.flow.name}"
        missing = [k for k in flow.keys if not any(fold(k) == fold(c.name) for c in self.values)]
        if missing:
            raise InvalidStatement(name, f"its key {missing[0]} is not among its columns", "Choose it in COLUMNS.")
        for text in (flow.delete_when, flow.truncate_when, flow.sequence):
            if has_subquery(text):
                raise InvalidStatement(name, f"({text}) reads other rows", "Use columns of the source's row alone.")
        if not flow.sequence:
            if flow.scd_type == 2 or flow.truncate_when:
                clause = "SCD TYPE 2" if flow.scd_type == 2 else "APPLY AS TRUNCATE WHEN"
                raise InvalidStatement(name, f"{clause} needs an order of changes", "Add SEQUENCE BY.")
            if self.is_feed or self.capture == ROWS:
                raise InvalidStatement(name, "its rows are events without an order of their own", "Add SEQUENCE BY.")
        elif flow.scd_type == 2 and self.sequence_type is not None:
            if self.sequence_type.is_nested or self.sequence_type.kind in INEXACT:
                raise InvalidStatement(
                    name, f"{START} would be part of a key as {self.sequence_type}", "SEQUENCE BY one exact value."
                )

    @property
    def is_feed(self) -> bool:
        """Whether the rows of the source are events: KEYS is not the key of the source's table."""
        return set(map(fold, self.flow.keys)) != set(map(fold, self.source.key))

    @property
    def is_plain(self) -> bool:
        """Whether the net effect of changes is all that counts, as the source orders them."""
        flow = self.flow
        return not (flow.sequence or flow.delete_when or flow.ignore_null_updates)

    @cached_property
    def values(self) -> tuple[Column, ...]:
        """The chosen columns of the source."""
        return _chosen(self.flow.chosen, self.source.columns, f"flow {self.flow.name}")

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """The key, as the source spells it."""
        return tuple(self.source.column(k).name for k in self.flow.keys)

    @cached_property
    def tracked(self) -> tuple[int, ...]:
        """The places among the chosen columns whose changes begin a row of a history; the key never changes."""
        keys = set(map(fold, self.keys))
        tracked = _chosen(self.flow.tracked, self.values, f"TRACK HISTORY ON of flow {self.flow.name}")
        names = {fold(c.name) for c in tracked} - keys
        return tuple(i for i, c in enumerate(self.values) if fold(c.name) in names)

    @cached_property
    def target(self) -> Schema:
        """The columns and key of the target."""
        if self.flow.scd_type == 1:
            return Schema(self.values, self.keys)
        assert self.sequence_type is not None
        ends = (Column(START, self.sequence_type, nullable=False), Column(END, self.sequence_type))
        return Schema((*self.values, *ends), (*self.keys, START))

    @cached_property
    def memory(self) -> Schema | None:
        """The columns and key of the table of what is remembered; None if nothing is."""
        if self.sequence_type is None:
            return None
        keys = tuple(self.source.column(k) for k in self.keys)
        state = (Column(DELETED, parse_type("BOOLEAN")), Column(AT, _TIMESTAMP))
        if self.flow.scd_type == 1:
            more = (FLOOR, *(set_at(n) for n in self.others)) if self.flow.ignore_null_updates else ()
            known = (Column(name, self.sequence_type) for name in more)
            return Schema((*keys, Column(SEQUENCE, self.sequence_type), *state, *known), self.keys)
        rest = tuple(Column(c.name, c.type) for c in self.values if c.name not in self.keys)
        return Schema((*keys, Column(SEQUENCE, self.sequence_type, False), *state, *rest), (*self.keys, SEQUENCE))

    @property
    def others(self) -> tuple[str, ...]:
        """The names of the chosen columns that are not of the key."""
        return tuple(c.name for c in self.values if c.name not in self.keys)

    @property
    def plain_sequence(self) -> str | None:
        """The source's column that SEQUENCE BY names, if it is no more than a name."""
        text = self.flow.sequence
        tokens = tokenize(text) if text else ()
        return self.source.column(tokens[0].text).name if len(tokens) == 1 and self.source.has(tokens[0].text) else None

    @property
    def ends_by_time(self) -> bool:
        """Whether a deletion that the source reports without a sequence may take the time of the change."""
        return self.sequence_type == _TIMESTAMP

    def check_target(self, schema: Schema, table: str) -> None:
        """Raise InvalidStatement if a table cannot be the target: it needs the same columns and key."""
        wanted = self.target
        if set(map(fold, schema.key)) != set(map(fold, wanted.key)):
            keys = [", ".join(s.key) or "none" for s in (schema, wanted)]
            raise InvalidStatement(
                f"table {table}", f"its primary key is ({keys[0]}), and the flow needs ({keys[1]})", _AS_FLOW
            )
        for owner, some, others in (("the flow", schema, wanted), ("the table", wanted, schema)):
            lacks = [c.name for c in some.columns if not others.has(c.name)]
            if lacks:
                raise InvalidStatement(f"table {table}", f"{owner} has no column {', '.join(lacks)}", _AS_FLOW)
        for column in self.values:
            _check_type(column, schema.column(column.name), table)
        for name in (START, END) if self.flow.scd_type == 2 else ():
            if schema.column(name).type != wanted.column(name).type:
                raise InvalidStatement(
                    f"table {table}",
                    f"{name} is {schema.column(name).type}, and the sequence is {wanted.column(name).type}",
                    _AS_FLOW,
                )


_AS_FLOW = "Create the table with the columns of the flow (COLUMNS chooses them), or let CREATE FLOW create it."


def _check_type(column: Column, stored: Column, table: str) -> None:
    """Raise InvalidStatement if no value of a column can be stored: values of such types are never converted."""
    try:
        store(pa.chunked_array([], column.type.arrow), stored, table)
    except TypeMismatch as error:
        cause = f"its column {stored.name} is {stored.type}, which cannot hold the flow's {column.type}"
        raise InvalidStatement(f"table {table}", cause, _AS_FLOW) from error


def _chosen(choice: ColumnChoice, columns: Iterable[Column], what: str) -> tuple[Column, ...]:
    """The columns of a choice; NotFound if it names others."""
    by_name = {fold(c.name): c for c in columns}
    for name in choice.names:
        if fold(name) not in by_name:
            raise NotFound(f"column {name} of {what}", f"not among {', '.join(c.name for c in by_name.values())}")
    named = [by_name[fold(name)] for name in choice.names]
    return tuple(c for c in by_name.values() if c not in named) if choice.is_except else tuple(named)
