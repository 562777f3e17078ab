"""Statements as frozen records: `parser` makes them, the warehouse executes them."""

from __future__ import annotations

from dataclasses import dataclass

from freshview.relation.schema import Column, Schema


@dataclass(frozen=True)
class Query:
    """SELECT and everything else that only reads."""

    text: str


@dataclass(frozen=True)
class CreateTable:
    name: str
    schema: Schema | None  # None: taken from the Delta table at `location`, or from `query`
    key: tuple[str, ...] = ()
    if_not_exists: bool = False
    location: str | None = None
    query: str | None = None
    properties: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class DropTable:
    name: str
    if_exists: bool = False
    cascade: bool = False


@dataclass(frozen=True)
class RenameTable:
    name: str
    new_name: str


@dataclass(frozen=True)
class AddColumns:
    name: str
    columns: tuple[Column, ...]


@dataclass(frozen=True)
class RenameColumn:
    name: str
    old: str
    new: str


@dataclass(frozen=True)
class Insert:
    table: str
    columns: tuple[str, ...]  # empty: all, in order
    query: str
    by_name: bool = False


@dataclass(frozen=True)
class Assignment:
    column: str
    expression: str


@dataclass(frozen=True)
class Update:
    table: str
    alias: str
    assignments: tuple[Assignment, ...]
    where: str


@dataclass(frozen=True)
class Delete:
    table: str
    alias: str
    where: str


@dataclass(frozen=True)
class MergeClause:
    """WHEN [NOT] MATCHED [BY SOURCE] [AND condition] THEN action."""

    matched: bool
    by_source: bool
    condition: str
    action: str  # "update" | "delete" | "insert"
    assignments: tuple[Assignment, ...] = ()  # empty for UPDATE SET * and INSERT *


@dataclass(frozen=True)
class Merge:
    table: str
    alias: str
    source: str
    source_alias: str
    condition: str
    clauses: tuple[MergeClause, ...]


@dataclass(frozen=True)
class Show:
    what: str  # "tables" | "views" | "tasks" | "columns"
    pattern: str = ""
    name: str = ""


@dataclass(frozen=True)
class Describe:
    name: str
    extended: bool = False
    history: bool = False


@dataclass(frozen=True)
class Checkpoint:
    name: str


@dataclass(frozen=True)
class Vacuum:
    retain_hours: float | None = None


@dataclass(frozen=True)
class CreateView:
    name: str
    query: str
    or_replace: bool = False
    if_not_exists: bool = False
    properties: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class DropView:
    name: str
    if_exists: bool = False
    cascade: bool = False


@dataclass(frozen=True)
class AlterView:
    name: str
    properties: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class RefreshView:
    name: str
    how: str = ""  # "" (bring the view up to date) | "full" | "propagate" | "partial"


@dataclass(frozen=True)
class ExplainRefresh:
    name: str


Dml = Insert | Update | Delete | Merge
Ddl = CreateView | DropView | AlterView | CreateTable | DropTable | RenameTable | AddColumns | RenameColumn
Statement = Query | Dml | Ddl | Show | Describe | Checkpoint | Vacuum | RefreshView | ExplainRefresh
