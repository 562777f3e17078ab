"""The parser: from a statement's text to its record; `dml_parser` has the statements that write rows.

The syntax is Spark's wherever Spark has one. Statements that only read are left to Spark, verbatim.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import sqlglot
from sqlglot import exp

from freshview.errors import InvalidStatement, TypeMismatch, first_line
from freshview.relation.schema import Column, Schema, fold
from freshview.relation.types import from_sqlglot
from freshview.sql.dml_parser import delete, insert, merge, truncate, update
from freshview.sql.flow_parser import (
    alter_source,
    create_flow,
    create_remote_table,
    create_source,
    drop_flow,
    explain_flow,
    quarantine,
    refresh_flow,
)
from freshview.sql.statements import (
    AddColumns,
    AlterView,
    Checkpoint,
    CreateTable,
    CreateView,
    Describe,
    Drop,
    DropRemoteTable,
    DropSource,
    DropTable,
    DropView,
    ExplainOptimize,
    ExplainRefresh,
    Query,
    RefreshView,
    RenameColumn,
    RenameTable,
    Show,
    Statement,
    Vacuum,
)
from freshview.sql.tokens import EXPLAIN_MODES, Cursor, is_word


def parse(text: str) -> Statement:
    """The record of a statement's text."""
    if not isinstance(text, str):
        raise InvalidStatement(f"statement {text!r}", "is no text", "Give one SQL statement as a string.")
    cursor = Cursor(text)
    for words, parser in _PARSERS:
        if cursor.accept(*words):
            return parser(cursor)
    if cursor.peek("WITH"):
        verb = cursor.find("SELECT", "INSERT", "UPDATE", "DELETE", "MERGE", "FROM", "VALUES")
        if verb < len(cursor.tokens) and is_word(cursor.tokens[verb], "INSERT", "UPDATE", "DELETE", "MERGE"):
            raise cursor.error("WITH stands before a writing statement; put it into the query after INSERT INTO t")
    if cursor.accept("EXPLAIN"):
        while any(map(cursor.accept, EXPLAIN_MODES)):
            pass
        if not cursor.starts_query(cursor.at):
            raise cursor.error("EXPLAIN explains queries; a query was expected")
    elif not cursor.starts_query(0) and not cursor.peek("MAP") and not cursor.peek("REDUCE"):
        raise cursor.error(f"{cursor.tokens[0].text!r} does not begin a statement that is known here")
    return Query(cursor.slice(0, len(cursor.tokens)))


def _refuse(cause: str) -> Callable[[Cursor], Statement]:
    """A parser that raises an error with this cause."""

    def parser(cursor: Cursor) -> Statement:
        raise cursor.error(cause)

    return parser


# -- tables ----------------------------------------------------------------------------------------


def _create_table(cursor: Cursor) -> CreateTable:
    if_not_exists = cursor.accept("IF", "NOT", "EXISTS")
    name = cursor.name("table name")
    tree = _tree(cursor.text, cursor)
    if not isinstance(tree, exp.Create):
        raise cursor.error("the definition cannot be understood")
    if tree.args.get("replace"):
        raise cursor.error("OR REPLACE is not supported for tables; drop the table first")
    columns, key = _definition(tree.this, cursor)
    location, file_format, properties = None, None, []
    for prop in tree.args["properties"].expressions if tree.args.get("properties") else ():
        match prop:
            case exp.LocationProperty():
                location = prop.this.name
            case exp.FileFormatProperty():
                file_format = prop.this.name.upper()
            case exp.PrimaryKey():
                if key:
                    raise cursor.error("a table has one primary key")
                key = tuple(_column_name(e) for e in prop.expressions)
            case exp.SchemaCommentProperty():
                properties.append(("comment", prop.this.name))
            case exp.Property() if type(prop) is exp.Property:
                properties.append((prop.this.name, prop.args["value"].name))
            case _:
                raise cursor.error(f"{prop.sql(dialect='spark')} is not supported for tables")
    if file_format not in (None, "DELTA"):
        raise cursor.error(f"USING {file_format} is not supported; tables are Delta tables")
    query = None
    if tree.expression is not None:
        cursor.at = cursor.find("AS") + 1
        query = cursor.rest()
    if location is not None:
        if not location.strip():
            raise cursor.error("LOCATION is empty, or a quote inside it is not written as \\'")
        if columns or query:
            raise cursor.error("a table with LOCATION is an existing Delta table; its columns come from there")
        if file_format != "DELTA":
            raise cursor.error("LOCATION names an existing Delta table and needs USING DELTA")
    elif query is None and not columns:
        raise cursor.error("it has no columns")
    elif query is not None and columns:
        raise cursor.error("CREATE TABLE … AS SELECT takes its columns from the query")
    schema = Schema(tuple(columns), key) if columns else None
    return CreateTable(name, schema, key, if_not_exists, location, query, tuple(properties))


def _tree(text: str, cursor: Cursor) -> exp.Expr:
    try:
        return sqlglot.parse_one(text, read="spark")
    except sqlglot.errors.SqlglotError as error:
        raise cursor.error(first_line(error)) from error
    except RecursionError as error:
        raise cursor.error("it is nested too deeply") from error


def _definition(node: exp.Expr, cursor: Cursor) -> tuple[list[Column], tuple[str, ...]]:
    """The columns and the primary key in the brackets of CREATE TABLE."""
    columns: list[Column] = []
    keys: list[tuple[str, ...]] = []
    for part in node.expressions if isinstance(node, exp.Schema) else ():
        if isinstance(part, exp.ColumnDef):
            column, is_key = _column(part, cursor)
            columns.append(column)
            keys += [(column.name,)] if is_key else []
        elif isinstance(part, exp.PrimaryKey):
            keys.append(tuple(_column_name(e) for e in part.expressions))
        elif isinstance(part, exp.Constraint) and isinstance(part.expressions[0], exp.PrimaryKey):
            keys.append(tuple(_column_name(e) for e in part.expressions[0].expressions))
        else:
            raise cursor.error(f"{part.sql(dialect='spark')} is not supported in a table definition")
    if len(keys) > 1:
        raise cursor.error("a table has one primary key; write PRIMARY KEY (a, b) for several columns")
    by_name = {fold(c.name): c.name for c in columns}
    return columns, tuple(by_name.get(fold(k), k) for k in keys[0]) if keys else ()


def _defined(text: str, cursor: Cursor) -> tuple[list[Column], tuple[str, ...]]:
    """The columns and the primary key of definitions in brackets."""
    return _definition(_tree(f"CREATE TABLE t {text}", cursor).this, cursor)


def _column_name(node: exp.Expr) -> str:
    return node.this.name if isinstance(node, exp.Ordered) else node.name


def _column(node: exp.ColumnDef, cursor: Cursor) -> tuple[Column, bool]:
    """A column, and whether it is declared as the primary key."""
    if not isinstance(node.kind, exp.DataType):
        raise TypeMismatch(f"column {node.name}", "it has no type", "Write name TYPE.")
    if node.args.get("position") is not None:
        raise cursor.error(f"column {node.name}: FIRST and AFTER are not supported; columns are added at the end")
    if _depth(node.kind) > _MOST_NESTED:  # what is stored has to be read again, also far down the stack
        raise TypeMismatch(f"column {node.name}", f"its type is nested more than {_MOST_NESTED} deep", "Flatten it.")
    nullable, comment, is_key = True, "", False
    for constraint in node.constraints:
        match constraint.kind:
            case exp.NotNullColumnConstraint() as c:
                nullable = bool(c.args.get("allow_null"))
            case exp.PrimaryKeyColumnConstraint():
                is_key = True
            case exp.CommentColumnConstraint() as c:
                comment = c.this.name
            case exp.CollateColumnConstraint():
                raise TypeMismatch(
                    f"column {node.name}", "collated strings cannot be compared exactly", "Leave COLLATE out."
                )
            case other:
                raise cursor.error(f"column {node.name}: {other.sql(dialect='spark')} is not supported")
    return Column(node.name, from_sqlglot(node.kind), nullable, comment), is_key


_MOST_NESTED = 50  # types inside one another


def _depth(node: exp.Expr) -> int:
    """How many types stand inside one another in a type."""
    level: list[exp.Expr] = [node]
    depth = 0
    while level:
        depth += 1
        level = [t for outer in level for e in outer.expressions for t in (e.find(exp.DataType),) if t is not None]
    return depth


_Dropped = TypeVar("_Dropped", bound=Drop)


def _drop(kind: type[_Dropped], what: str, *others: str) -> Callable[[Cursor], _Dropped]:
    """The parser of a DROP: [IF EXISTS] name [CASCADE], or one of the `others`, which are the default."""

    def parser(cursor: Cursor) -> _Dropped:
        if_exists = cursor.accept("IF", "EXISTS")
        name = cursor.name(f"{what} name")
        cascade = cursor.accept("CASCADE")
        if not cascade:
            any(cursor.accept(other) for other in others)
        cursor.end()
        return kind(name, if_exists, cascade)

    return parser


def _alter(cursor: Cursor) -> AddColumns | RenameTable | RenameColumn:
    name = cursor.name("table name")
    if cursor.accept("RENAME", "TO"):
        new_name = cursor.name("new name")
        cursor.end()
        return RenameTable(name, new_name)
    if cursor.accept("RENAME", "COLUMN"):
        old = cursor.name("column name")
        cursor.expect("TO")
        new = cursor.name("new name")
        cursor.end()
        return RenameColumn(name, old, new)
    if cursor.accept("ADD", "COLUMNS") or cursor.accept("ADD", "COLUMN"):
        text = cursor.rest().strip()
        columns, key = _defined(text if text.startswith("(") else f"({text})", cursor)
        if key or not columns:
            raise cursor.error("a key cannot be added to a table")
        for column in columns:
            if not column.nullable:
                raise InvalidStatement(
                    f"column {column.name}", "rows that exist would have NULL in it", "Add it without NOT NULL."
                )
        return AddColumns(name, tuple(columns))
    raise cursor.error("ALTER TABLE knows ADD COLUMN, RENAME COLUMN … TO and RENAME TO")


# -- views -----------------------------------------------------------------------------------------


def _create_view(cursor: Cursor, or_replace: bool = False) -> CreateView:
    if_not_exists = cursor.accept("IF", "NOT", "EXISTS")
    name = cursor.name("view name")
    properties = _properties(cursor) if cursor.accept("TBLPROPERTIES") else ()
    cursor.expect("AS")
    query = cursor.rest()
    if not query:
        raise cursor.error("a query was expected after AS")
    return CreateView(name, query, or_replace, if_not_exists, properties)


def _replace_view(cursor: Cursor) -> CreateView:
    return _create_view(cursor, or_replace=True)


def _properties(cursor: Cursor) -> tuple[tuple[str, str], ...]:
    """('key' = 'value', …)"""
    cursor.expect("(")
    found = []
    while True:
        key = cursor.string("a property name")
        cursor.expect("=")
        found.append((key, cursor.string("a property value")))
        if not cursor.accept(","):
            break
    cursor.expect(")")
    return tuple(found)


def _alter_view(cursor: Cursor) -> AlterView:
    name = cursor.name("view name")
    cursor.expect("SET", "TBLPROPERTIES")
    properties = _properties(cursor)
    cursor.end()
    return AlterView(name, properties)


def _refresh_view(cursor: Cursor) -> RefreshView:
    name = cursor.name("view name")
    how = next((word for word in ("FULL", "PROPAGATE", "PARTIAL") if cursor.accept(word)), "")
    cursor.end()
    return RefreshView(name, how.lower())


def _explain_refresh(cursor: Cursor) -> ExplainRefresh:
    name = cursor.name("view name")
    cursor.end()
    return ExplainRefresh(name)


def _explain_optimize(cursor: Cursor) -> ExplainOptimize:
    extended = cursor.accept("EXTENDED")
    cursor.end()
    return ExplainOptimize(extended)


def _source_columns(text: str, cursor: Cursor) -> tuple[Column, ...]:
    columns, key = _defined(text, cursor)
    if key or not columns:
        raise cursor.error("the columns of a source have names and types; the key is named by KEYS")
    return tuple(columns)


# -- the rest --------------------------------------------------------------------------------------


def _show(what: str) -> Callable[[Cursor], Show]:
    def parser(cursor: Cursor) -> Show:
        name = ""
        if what == "columns":
            if not cursor.accept("IN"):
                cursor.expect("FROM")
            name = cursor.name("table name")
        cursor.accept("LIKE")
        pattern = "" if cursor.done else cursor.string("a pattern")
        cursor.end()
        return Show(what, pattern, name)

    return parser


def _describe(cursor: Cursor) -> Statement:
    if cursor.peek("SELECT") or cursor.peek("WITH") or cursor.peek("QUERY") or cursor.peek("FUNCTION"):
        return Query(cursor.slice(0, len(cursor.tokens)))
    history = cursor.accept("HISTORY")
    cursor.accept("TABLE")
    extended = cursor.accept("EXTENDED")
    name = cursor.name("table name")
    cursor.end()
    return Describe(name, extended, history)


def _checkpoint(cursor: Cursor) -> Checkpoint:
    cursor.accept("TABLE")
    name = cursor.name("table name")
    cursor.end()
    return Checkpoint(name)


def _vacuum(cursor: Cursor) -> Vacuum:
    hours = None
    if cursor.accept("RETAIN"):
        hours = cursor.number("a number of hours")
        cursor.expect("HOURS")
    cursor.end()
    return Vacuum(hours)


_USE_API = "transactions are begun with wh.transaction()"
_PARSERS: tuple[tuple[tuple[str, ...], Callable[[Cursor], Statement]], ...] = (
    (("CREATE", "TABLE"), _create_table),
    (("CREATE", "MATERIALIZED", "VIEW"), _create_view),
    (("CREATE", "OR", "REPLACE", "MATERIALIZED", "VIEW"), _replace_view),
    (("DROP", "MATERIALIZED", "VIEW"), _drop(DropView, "view", "RESTRICT")),
    (("ALTER", "MATERIALIZED", "VIEW"), _alter_view),
    (("REFRESH", "MATERIALIZED", "VIEW"), _refresh_view),
    (("EXPLAIN", "REFRESH", "MATERIALIZED", "VIEW"), _explain_refresh),
    (("EXPLAIN", "OPTIMIZE"), _explain_optimize),
    (("CREATE", "SOURCE"), create_source),
    (("ALTER", "SOURCE"), alter_source),
    (("DROP", "SOURCE"), _drop(DropSource, "source")),
    (("CREATE", "FLOW"), create_flow(_source_columns)),
    (("DROP", "FLOW"), drop_flow),
    (("REFRESH", "FLOW"), refresh_flow),
    (("EXPLAIN", "FLOW"), explain_flow),
    (("REPLAY", "QUARANTINE"), quarantine("replay")),
    (("CLEAR", "QUARANTINE"), quarantine("clear")),
    (("CREATE", "REMOTE", "TABLE"), create_remote_table),
    (("DROP", "REMOTE", "TABLE"), _drop(DropRemoteTable, "table")),
    (("CREATE", "OR", "REPLACE", "TABLE"), _refuse("OR REPLACE is not supported for tables; drop the table first")),
    (("DROP", "TABLE"), _drop(DropTable, "table", "RESTRICT", "PURGE")),
    (("ALTER", "TABLE"), _alter),
    (("INSERT", "INTO"), insert),
    (("INSERT", "OVERWRITE"), _refuse("INSERT OVERWRITE is not supported; DELETE and INSERT in one transaction")),
    (("UPDATE",), update),
    (("DELETE", "FROM"), delete),
    (("TRUNCATE", "TABLE"), truncate),
    (("MERGE", "INTO"), merge),
    (("SHOW", "TABLES"), _show("tables")),
    (("SHOW", "MATERIALIZED", "VIEWS"), _show("views")),
    (("SHOW", "TASKS"), _show("tasks")),
    (("SHOW", "COLUMNS"), _show("columns")),
    (("SHOW", "SOURCES"), _show("sources")),
    (("SHOW", "FLOWS"), _show("flows")),
    (("SHOW", "QUARANTINE"), _show("quarantine")),
    (("DESCRIBE",), _describe),
    (("DESC",), _describe),
    (("CHECKPOINT",), _checkpoint),
    (("VACUUM",), _vacuum),
    (("BEGIN",), _refuse(_USE_API)),
    (("START", "TRANSACTION"), _refuse(_USE_API)),
    (("COMMIT",), _refuse(_USE_API)),
    (("ROLLBACK",), _refuse(_USE_API)),
)
