"""The parser of statements that write rows: INSERT, UPDATE, DELETE, TRUNCATE and MERGE."""

from __future__ import annotations

from sqlglot.tokenizer_core import TokenType

from freshview.relation.schema import fold
from freshview.sql.statements import Assignment, Delete, Insert, Merge, MergeClause, Update
from freshview.sql.tokens import Cursor, is_word


def insert(cursor: Cursor) -> Insert:
    """[TABLE] t [BY NAME | (columns)] query, after INSERT INTO."""
    cursor.accept("TABLE")
    table = cursor.name("table name")
    columns: tuple[str, ...] = ()
    by_name = cursor.accept("BY", "NAME")
    if not by_name and not cursor.done and cursor.tokens[cursor.at].token_type == TokenType.L_PAREN:
        if not cursor.starts_query(cursor.at + 1):
            columns = _column_list(cursor)
    if not cursor.starts_query(cursor.at):
        raise cursor.error("a query or VALUES was expected")
    return Insert(table, columns, cursor.rest(), by_name)


def _column_list(cursor: Cursor) -> tuple[str, ...]:
    """(name, …), in brackets."""
    cursor.expect("(")
    names = [cursor.name("column name")]
    while cursor.accept(","):
        names.append(cursor.name("column name"))
    cursor.expect(")")
    return tuple(names)


def update(cursor: Cursor) -> Update:
    """t [[AS] alias] SET assignments [WHERE condition], after UPDATE."""
    table = cursor.name("table name")
    alias = _alias(cursor, "SET")
    cursor.expect("SET")
    assignments = _assignments(cursor, cursor.find("WHERE"), (alias, table))
    return Update(table, alias, assignments, _where(cursor))


def delete(cursor: Cursor) -> Delete:
    """t [[AS] alias] [WHERE condition], after DELETE FROM."""
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


def truncate(cursor: Cursor) -> Delete:
    """t, after TRUNCATE TABLE."""
    table = cursor.name("table name")
    cursor.end()
    return Delete(table, "", "")


def _alias(cursor: Cursor, stop: str) -> str:
    """[[AS] alias] before the end or the word `stop`."""
    if cursor.accept("AS"):
        return cursor.name("alias")
    if cursor.done or cursor.peek(stop):
        return ""
    return cursor.name("alias")


def _assignments(cursor: Cursor, stop: int, qualifiers: tuple[str, ...]) -> tuple[Assignment, ...]:
    """[qualifier.]column = expression, … up to a position."""
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


def merge(cursor: Cursor) -> Merge:
    """t [[AS] alias] USING source ON condition WHEN …, after MERGE INTO."""
    table = cursor.name("table name")
    alias = _alias(cursor, "USING")
    cursor.expect("USING")
    source, source_alias = _source_alias(cursor.until("ON"))
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
    """The source and its alias, of `s`, `s x`, `s AS x` or `(SELECT …) x`."""
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
    """MATCHED | NOT MATCHED [BY SOURCE | BY TARGET], [AND condition] THEN action, after WHEN."""
    matched = not cursor.accept("NOT")
    cursor.expect("MATCHED")
    by_source = False
    if not matched and cursor.accept("BY"):
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
    """(columns) VALUES (expressions), after INSERT."""
    names = _column_list(cursor)
    cursor.expect("VALUES")
    cursor.expect("(")
    close = cursor.find(")")
    if close == len(cursor.tokens):
        raise cursor.error("a bracket is not closed")
    values = [cursor.slice(start, end) for start, end in cursor.split(close)]
    cursor.at = close + 1
    if len(values) != len(names) or not all(values):
        raise cursor.error(f"INSERT names {len(names)} columns and gives {len(values)} values")
    if len({fold(name) for name in names}) < len(names):
        raise cursor.error("a column is named twice")
    return tuple(Assignment(n, v) for n, v in zip(names, values, strict=True))
