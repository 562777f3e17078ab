"""The parser: from a statement's text to its record.

Spark's own conventions wherever Spark has one. What only reads is left to Spark, word for word.
"""

from __future__ import annotations

from collections.abc import Callable

import sqlglot
from sqlglot import exp
from sqlglot.tokenizer_core import TokenType

from freshview.errors import InvalidStatement, TypeMismatch, first_line
from freshview.relation.schema import Column, Schema, fold
from freshview.relation.types import from_sqlglot
from freshview.sql.statements import (
    AddColumns,
    AlterView,
    Assignment,
    Checkpoint,
    CreateTable,
    CreateView,
    Delete,
    Describe,
    DropTable,
    DropView,
    ExplainRefresh,
    Insert,
    Merge,
    MergeClause,
    Query,
    RefreshView,
    RenameColumn,
    RenameTable,
    Show,
    Statement,
    Update,
    Vacuum,
)
from freshview.sql.tokens import Cursor, is_word


def parse(text: str) -> Statement:
    """The statement that a text says."""
    cursor = Cursor(text)
    for words, parser in _PARSERS:
        if cursor.accept(*words):
            return parser(cursor)
    if cursor.peek("WITH"):
        verb = cursor.find("SELECT", "INSERT", "UPDATE", "DELETE", "MERGE", "FROM", "VALUES")
        if verb < len(cursor.tokens) and is_word(cursor.tokens[verb], "INSERT", "UPDATE", "DELETE", "MERGE"):
            raise cursor.error("WITH stands before a writing statement; put it into the query after INSERT INTO t")
    if cursor.accept("EXPLAIN"):
        while not cursor.done and is_word(cursor.tokens[cursor.at], "EXTENDED", "CODEGEN", "COST", "FORMATTED"):
            cursor.at += 1
        if not _starts_query(cursor, cursor.at):
            raise cursor.error("EXPLAIN explains queries; a query was expected")
    elif not _is_query(cursor):
        raise cursor.error(f"{cursor.tokens[0].text!r} does not begin a statement that is known here")
    return Query(cursor.slice(0, len(cursor.tokens)))


def _is_query(cursor: Cursor) -> bool:
    return cursor.tokens[0].token_type == TokenType.L_PAREN or is_word(
        cursor.tokens[0], "SELECT", "WITH", "VALUES", "TABLE", "FROM", "MAP", "REDUCE"
    )


def _refuse(cause: str) -> Callable[[Cursor], Statement]:
    def parser(cursor: Cursor) -> Statement:
        raise cursor.error(cause)

    return parser


# -- definitions -----------------------------------------------------------------------------------


def _create_table(cursor: Cursor) -> CreateTable:
    if_not_exists = cursor.accept("IF", "NOT", "EXISTS")
    name = cursor.name("table name")
    try:
        tree = sqlglot.parse_one(cursor.text, read="spark")
    except sqlglot.errors.SqlglotError as error:
        raise cursor.error(first_line(error)) from error
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
    query = _query_text(cursor) if tree.expression is not None else None
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


def _query_text(cursor: Cursor) -> str:
    stop = cursor.find("AS")
    cursor.at = stop + 1
    return cursor.rest()


def _definition(node: exp.Expr, cursor: Cursor) -> tuple[list[Column], tuple[str, ...]]:
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


def _column_name(node: exp.Expr) -> str:
    return node.this.name if isinstance(node, exp.Ordered) else node.name


def _column(node: exp.ColumnDef, cursor: Cursor) -> tuple[Column, bool]:
    if not isinstance(node.kind, exp.DataType):
        raise TypeMismatch(f"column {node.name}", "it has no type", "Write name TYPE.")
    if node.args.get("position") is not None:
        raise cursor.error(f"column {node.name}: FIRST and AFTER are not supported; columns are added at the end")
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


def _drop(cursor: Cursor) -> DropTable:
    if_exists = cursor.accept("IF", "EXISTS")
    name = cursor.name("table name")
    cascade = cursor.accept("CASCADE")
    if not cascade:
        cursor.accept("RESTRICT") or cursor.accept("PURGE")
    cursor.end()
    return DropTable(name, if_exists, cascade)


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
        inner = text if text.startswith("(") else f"({text})"
        try:
            tree = sqlglot.parse_one(f"CREATE TABLE t {inner}", read="spark")
        except sqlglot.errors.SqlglotError as error:
            raise cursor.error(first_line(error)) from error
        columns, key = _definition(tree.this, cursor)
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


def _drop_view(cursor: Cursor) -> DropView:
    if_exists = cursor.accept("IF", "EXISTS")
    name = cursor.name("view name")
    cascade = cursor.accept("CASCADE")
    if not cascade:
        cursor.accept("RESTRICT")
    cursor.end()
    return DropView(name, if_exists, cascade)


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


# -- data ------------------------------------------------------------------------------------------


def _insert(cursor: Cursor) -> Insert:
    cursor.accept("TABLE")
    table = cursor.name("table name")
    columns: tuple[str, ...] = ()
    by_name = cursor.accept("BY", "NAME")
    if not by_name and not cursor.done and cursor.tokens[cursor.at].token_type == TokenType.L_PAREN:
        if not _starts_query(cursor, cursor.at + 1):
            cursor.at += 1
            names = [cursor.name("column name")]
            while cursor.accept(","):
                names.append(cursor.name("column name"))
            cursor.expect(")")
            columns = tuple(names)
    if not _starts_query(cursor, cursor.at):
        raise cursor.error("a query or VALUES was expected")
    query = cursor.rest()
    return Insert(table, columns, query, by_name)


def _starts_query(cursor: Cursor, at: int) -> bool:
    return at < len(cursor.tokens) and (
        cursor.tokens[at].token_type == TokenType.L_PAREN
        or is_word(cursor.tokens[at], "SELECT", "WITH", "VALUES", "TABLE", "FROM")
    )


def _update(cursor: Cursor) -> Update:
    table = cursor.name("table name")
    alias = _alias(cursor, "SET")
    cursor.expect("SET")
    assignments = _assignments(cursor, cursor.find("WHERE"), (alias, table))
    return Update(table, alias, assignments, _where(cursor))


def _delete(cursor: Cursor) -> Delete:
    table = cursor.name("table name")
    alias = _alias(cursor, "WHERE")
    return Delete(table, alias, _where(cursor))


def _where(cursor: Cursor) -> str:
    """[WHERE condition] to the end of the statement."""
    condition = ""
    if cursor.accept("WHERE"):
        condition = cursor.rest()
        if not condition:
            raise cursor.error("a condition was expected after WHERE")
    cursor.end()
    return condition


def _truncate(cursor: Cursor) -> Delete:
    table = cursor.name("table name")
    cursor.end()
    return Delete(table, "", "")


def _alias(cursor: Cursor, *stops: str) -> str:
    if cursor.accept("AS"):
        return cursor.name("alias")
    if cursor.done or any(cursor.peek(w) for w in stops):
        return ""
    return cursor.name("alias")


def _assignments(cursor: Cursor, stop: int, qualifiers: tuple[str, ...]) -> tuple[Assignment, ...]:
    found = []
    outside = set(cursor.top_level())
    for start, end in cursor.split(stop):
        cursor.at = start
        if end - start >= 2 and cursor.tokens[start + 1].token_type == TokenType.DOT:
            if fold(cursor.tokens[start].text) not in {fold(q) for q in qualifiers if q}:
                raise cursor.error(f"{cursor.slice(start, end)!r} does not set a column of the target table")
            cursor.at += 2
        column = cursor.name("column name")
        if cursor.at >= end or cursor.tokens[cursor.at].token_type != TokenType.EQ:
            raise cursor.error(f"'=' was expected after {column}")
        for i in range(cursor.at + 1, end):
            if is_word(cursor.tokens[i], "FROM") and i in outside and not is_word(cursor.tokens[i - 1], "DISTINCT"):
                raise cursor.error("UPDATE … FROM is not supported; use MERGE, or a subquery")
        expression = cursor.slice(cursor.at + 1, end)
        if not expression:
            raise cursor.error(f"an expression was expected after {column} =")
        found.append(Assignment(column, expression))
    cursor.at = stop
    names = [fold(a.column) for a in found]
    if len(set(names)) < len(names):
        raise cursor.error("a column is set twice")
    return tuple(found)


def _merge(cursor: Cursor) -> Merge:
    table = cursor.name("table name")
    alias = _alias(cursor, "USING")
    cursor.expect("USING")
    source = cursor.until("ON")
    source, source_alias = _source_alias(source)
    cursor.expect("ON")
    condition = cursor.until("WHEN")
    clauses = []
    while cursor.accept("WHEN"):
        clauses.append(_merge_clause(cursor, (alias, table)))
    cursor.end()
    if not clauses:
        raise cursor.error("a WHEN clause was expected")
    return Merge(table, alias, source, source_alias, condition, tuple(clauses))


def _source_alias(text: str) -> tuple[str, str]:
    """`s`, `s x`, `s AS x`, `(SELECT …) x`: the source and the name its columns go by."""
    inner = Cursor(text)
    if inner.tokens[0].token_type == TokenType.L_PAREN:
        positions = list(inner.top_level())
        if len(positions) == 1:
            raise inner.error("the source query needs an alias")
        inner.at = positions[1]
    else:
        name = inner.name("source name")
        if inner.done:
            return text, name
    source = inner.slice(0, inner.at)
    inner.accept("AS")
    alias = inner.name("alias")
    inner.end()
    return source, alias


def _merge_clause(cursor: Cursor, qualifiers: tuple[str, ...]) -> MergeClause:
    matched = not cursor.accept("NOT")
    cursor.expect("MATCHED")
    by_source = False
    if cursor.accept("BY"):
        by_source = cursor.accept("SOURCE")
        if not by_source:
            cursor.expect("TARGET")
    condition = cursor.until("THEN") if cursor.accept("AND") else ""
    assignments: tuple[Assignment, ...] = ()
    cursor.expect("THEN")
    if cursor.accept("DELETE"):
        action = "delete"
    elif cursor.accept("UPDATE", "SET"):
        action = "update"
        assignments = () if cursor.accept("*") else _assignments(cursor, cursor.find("WHEN"), qualifiers)
    elif cursor.accept("INSERT"):
        action = "insert"
        assignments = () if cursor.accept("*") else _insert_list(cursor)
    else:
        raise cursor.error("DELETE, UPDATE SET or INSERT was expected after THEN")
    if (action == "insert") == (matched or by_source):
        raise cursor.error("INSERT goes with WHEN NOT MATCHED, UPDATE and DELETE with the others")
    if by_source and action == "update" and not assignments:
        raise cursor.error("UPDATE SET * has no source row under NOT MATCHED BY SOURCE")
    return MergeClause(matched, by_source, condition, action, assignments)


def _insert_list(cursor: Cursor) -> tuple[Assignment, ...]:
    cursor.expect("(")
    names = [cursor.name("column name")]
    while cursor.accept(","):
        names.append(cursor.name("column name"))
    cursor.expect(")")
    cursor.expect("VALUES")
    cursor.expect("(")
    close = _closing(cursor)
    values = [cursor.slice(start, end) for start, end in cursor.split(close)]
    cursor.at = close
    cursor.expect(")")
    if len(values) != len(names) or not all(values):
        raise cursor.error(f"INSERT names {len(names)} columns and gives {len(values)} values")
    return tuple(Assignment(n, v) for n, v in zip(names, values, strict=True))


def _closing(cursor: Cursor) -> int:
    """The position of the bracket that closes the one just passed."""
    depth = 0
    for i in range(cursor.at, len(cursor.tokens)):
        if cursor.tokens[i].token_type == TokenType.L_PAREN:
            depth += 1
        elif cursor.tokens[i].token_type == TokenType.R_PAREN:
            if depth == 0:
                return i
            depth -= 1
    raise cursor.error("a bracket is not closed")


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
    (("DROP", "MATERIALIZED", "VIEW"), _drop_view),
    (("ALTER", "MATERIALIZED", "VIEW"), _alter_view),
    (("REFRESH", "MATERIALIZED", "VIEW"), _refresh_view),
    (("EXPLAIN", "REFRESH", "MATERIALIZED", "VIEW"), _explain_refresh),
    (("CREATE", "OR", "REPLACE", "TABLE"), _refuse("OR REPLACE is not supported for tables; drop the table first")),
    (("DROP", "TABLE"), _drop),
    (("ALTER", "TABLE"), _alter),
    (("INSERT", "INTO"), _insert),
    (("INSERT", "OVERWRITE"), _refuse("INSERT OVERWRITE is not supported; DELETE and INSERT in one transaction")),
    (("UPDATE",), _update),
    (("DELETE", "FROM"), _delete),
    (("TRUNCATE", "TABLE"), _truncate),
    (("MERGE", "INTO"), _merge),
    (("SHOW", "TABLES"), _show("tables")),
    (("SHOW", "MATERIALIZED", "VIEWS"), _show("views")),
    (("SHOW", "TASKS"), _show("tasks")),
    (("SHOW", "COLUMNS"), _show("columns")),
    (("DESCRIBE",), _describe),
    (("DESC",), _describe),
    (("CHECKPOINT",), _checkpoint),
    (("VACUUM",), _vacuum),
    (("BEGIN",), _refuse(_USE_API)),
    (("START", "TRANSACTION"), _refuse(_USE_API)),
    (("COMMIT",), _refuse(_USE_API)),
    (("ROLLBACK",), _refuse(_USE_API)),
)
