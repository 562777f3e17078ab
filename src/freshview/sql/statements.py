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
class Drop:
    """A statement that drops what has a name; each kind is a class of its own."""

    name: str
    if_exists: bool = False
    cascade: bool = False


class DropTable(Drop):
    pass


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
    what: str  # "tables" | "views" | "tasks" | "columns" | "sources" | "flows" | "quarantine"
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


class DropView(Drop):
    pass


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


@dataclass(frozen=True)
class CreateRemoteTable:
    name: str
    source: str
    table: str  # as the source knows it, such as public.customer
    keys: tuple[str, ...] = ()
    if_not_exists: bool = False


class DropRemoteTable(Drop):
    pass


@dataclass(frozen=True)
class CreateSource:
    name: str
    kind: str  # in capitals, such as POSTGRES
    options: tuple[tuple[str, str], ...] = ()  # names in small letters
    if_not_exists: bool = False


@dataclass(frozen=True)
class AlterSource:
    """ALTER SOURCE … SET OPTIONS: options that are not named stay as they are."""

    name: str
    options: tuple[tuple[str, str], ...]  # names in small letters


class DropSource(Drop):
    pass


@dataclass(frozen=True)
class ColumnChoice:
    """A choice of columns: those named or, if `is_except`, all but those named."""

    names: tuple[str, ...] = ()
    is_except: bool = True


@dataclass(frozen=True)
class CreateFlow:
    """CREATE FLOW … AS AUTO CDC INTO. Expressions are texts that Spark evaluates over rows of the source."""

    name: str
    target: str
    source: str
    table: str  # as the source knows it, such as public.customer
    columns: tuple[Column, ...]  # of the source's rows; empty: as the source or the target has them
    keys: tuple[str, ...]
    sequence: str = ""
    delete_when: str = ""
    truncate_when: str = ""
    chosen: ColumnChoice = ColumnChoice()
    ignore_null_updates: bool = False
    scd_type: int = 1
    tracked: ColumnChoice = ColumnChoice()
    if_not_exists: bool = False


@dataclass(frozen=True)
class DropFlow:
    name: str
    if_exists: bool = False
    force: bool = False


@dataclass(frozen=True)
class RefreshFlow:
    name: str
    full: bool = False
    confirmed: tuple[str, ...] = ()  # names of dumps that are right although they are small


@dataclass(frozen=True)
class ExplainFlow:
    name: str


@dataclass(frozen=True)
class Quarantine:
    """REPLAY QUARANTINE and CLEAR QUARANTINE of a flow."""

    flow: str
    what: str  # "replay" | "clear"


@dataclass(frozen=True)
class ExplainOptimize:
    extended: bool = False  # with the search space


Dml = Insert | Update | Delete | Merge
Ddl = CreateView | DropView | AlterView | CreateTable | DropTable | RenameTable | AddColumns | RenameColumn
Remotes = CreateRemoteTable | DropRemoteTable
FlowStatement = CreateSource | AlterSource | DropSource | CreateFlow | DropFlow | RefreshFlow | Quarantine
Statement = (
    Query
    | Dml
    | Ddl
    | FlowStatement
    | Remotes
    | Show
    | Describe
    | Checkpoint
    | Vacuum
    | RefreshView
    | ExplainRefresh
    | ExplainFlow
    | ExplainOptimize
)
