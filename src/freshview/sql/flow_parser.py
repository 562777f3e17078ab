"""CREATE SOURCE, CREATE FLOW … AS AUTO CDC INTO, and the statements about sources and flows.

The dialect is that of AUTO CDC. Expressions are cut out of the text verbatim, and Spark evaluates them.
"""

from __future__ import annotations

from collections.abc import Callable

from sqlglot.tokenizer_core import TokenType

from freshview.relation.schema import Column, fold
from freshview.sql.statements import (
    AlterSource,
    ColumnChoice,
    CreateFlow,
    CreateRemoteTable,
    CreateSource,
    DropFlow,
    ExplainFlow,
    Quarantine,
    RefreshFlow,
)
from freshview.sql.tokens import Cursor, is_word

# How the clauses that follow KEYS begin, in any order; an expression ends where the next one begins.
_CLAUSES = (
    ("IGNORE", "NULL", "UPDATES"),
    ("APPLY", "AS"),
    ("SEQUENCE", "BY"),
    ("COLUMNS",),
    ("STORED", "AS"),
    ("TRACK", "HISTORY"),
)


def create_source(cursor: Cursor) -> CreateSource:
    """CREATE SOURCE [IF NOT EXISTS] name USING kind [OPTIONS (key 'value', …)]"""
    if_not_exists = cursor.accept("IF", "NOT", "EXISTS")
    name = cursor.name("source name")
    cursor.expect("USING")
    kind = cursor.name("kind of source").upper()
    options = _options(cursor) if cursor.accept("OPTIONS") else ()
    cursor.end()
    return CreateSource(name, kind, options, if_not_exists)


def alter_source(cursor: Cursor) -> AlterSource:
    """ALTER SOURCE name SET OPTIONS (key 'value', …)"""
    name = cursor.name("source name")
    cursor.expect("SET", "OPTIONS")
    options = _options(cursor)
    cursor.end()
    return AlterSource(name, options)


def _options(cursor: Cursor) -> tuple[tuple[str, str], ...]:
    """(key 'value', 'key' = 'value', …), as Spark writes options."""
    cursor.expect("(")
    found: dict[str, str] = {}
    while True:
        is_text = not cursor.done and cursor.tokens[cursor.at].token_type == TokenType.STRING
        key = (cursor.string("an option") if is_text else cursor.name("option")).lower()
        cursor.accept("=")
        if key in found:
            raise cursor.error(f"the option {key!r} is given twice")
        found[key] = cursor.string(f"the value of {key!r}")
        if not cursor.accept(","):
            break
    cursor.expect(")")
    return tuple(found.items())


def create_remote_table(cursor: Cursor) -> CreateRemoteTable:
    """CREATE REMOTE TABLE [IF NOT EXISTS] name FROM source.table [KEYS (a, b)]"""
    if_not_exists = cursor.accept("IF", "NOT", "EXISTS")
    name = cursor.name("table name")
    cursor.expect("FROM")
    source, table = _source_table(cursor)
    keys = _names(cursor) if cursor.accept("KEYS") else ()
    cursor.end()
    return CreateRemoteTable(name, source, table, keys, if_not_exists)


def create_flow(define: Callable[[str, Cursor], tuple[Column, ...]]) -> Callable[[Cursor], CreateFlow]:
    """The parser of CREATE FLOW; `define` reads column definitions in brackets."""

    def parser(cursor: Cursor) -> CreateFlow:
        if_not_exists = cursor.accept("IF", "NOT", "EXISTS")
        name = cursor.name("flow name")
        cursor.expect("AS", "AUTO", "CDC", "INTO")
        target = cursor.name("table name")
        cursor.expect("FROM")
        source, table = _source_table(cursor)
        columns: tuple[Column, ...] = ()
        if cursor.peek("("):
            columns = define(_bracketed(cursor), cursor)
        cursor.expect("KEYS")
        keys = _names(cursor)
        given: dict[str, object] = {}
        while not cursor.done:
            clause, value = _clause(cursor)
            if clause in given:
                raise cursor.error(f"{clause.replace('_', ' ')} is given twice")
            given[clause] = value
        if "tracked" in given and given.get("scd_type") != 2:
            raise cursor.error("TRACK HISTORY ON belongs to STORED AS SCD TYPE 2")
        if "truncate_when" in given and given.get("scd_type") == 2:
            raise cursor.error("APPLY AS TRUNCATE WHEN belongs to SCD TYPE 1: a history is not emptied")
        return CreateFlow(name, target, source, table, columns, keys, if_not_exists=if_not_exists, **given)  # type: ignore[arg-type]

    return parser


def _clause(cursor: Cursor) -> tuple[str, object]:
    """One clause after KEYS: the field of `CreateFlow`, and its value."""
    if cursor.accept("IGNORE", "NULL", "UPDATES"):
        return "ignore_null_updates", True
    if cursor.accept("APPLY", "AS", "DELETE", "WHEN"):
        return "delete_when", _expression(cursor)
    if cursor.accept("APPLY", "AS", "TRUNCATE", "WHEN"):
        return "truncate_when", _expression(cursor)
    if cursor.accept("SEQUENCE", "BY"):
        return "sequence", _expression(cursor)
    if cursor.accept("COLUMNS"):
        return "chosen", _columns(cursor)
    if cursor.accept("STORED", "AS", "SCD", "TYPE"):
        number = cursor.number("1 or 2")
        if number not in (1, 2):
            raise cursor.error("SCD TYPE is 1 or 2")
        return "scd_type", int(number)
    if cursor.accept("TRACK", "HISTORY", "ON"):
        return "tracked", _columns(cursor)
    raise cursor.error(f"{cursor.slice(cursor.at, len(cursor.tokens)):.40} was not expected")


def _expression(cursor: Cursor) -> str:
    start = cursor.at
    ends = (i for i in cursor.top_level() if any(_begins(cursor, i, words) for words in _CLAUSES))
    cursor.at = next(ends, len(cursor.tokens))
    if cursor.at == start:
        raise cursor.error("an expression was expected")
    return cursor.slice(start, cursor.at)


def _begins(cursor: Cursor, at: int, words: tuple[str, ...]) -> bool:
    ahead = cursor.tokens[at : at + len(words)]
    return len(ahead) == len(words) and all(is_word(t, w) for t, w in zip(ahead, words, strict=True))


def _columns(cursor: Cursor) -> ColumnChoice:
    """(a, b) | a, b | * EXCEPT (a, b)"""
    if not cursor.accept("*"):
        return ColumnChoice(_names(cursor), is_except=False)
    return ColumnChoice(_names(cursor) if cursor.accept("EXCEPT") else ())


def _names(cursor: Cursor) -> tuple[str, ...]:
    in_brackets = cursor.accept("(")
    names = [cursor.name("column name")]
    while cursor.accept(","):
        names.append(cursor.name("column name"))
    if in_brackets:
        cursor.expect(")")
    if len(set(map(fold, names))) < len(names):
        raise cursor.error("a column is named twice")
    return tuple(names)


def _source_table(cursor: Cursor) -> tuple[str, str]:
    """source.table or source.schema.table: the source, and the table as the source knows it."""
    if cursor.accept("STREAM"):  # STREAM(name) and STREAM name are how AUTO CDC is usually written
        if cursor.accept("("):
            found = _source_table(cursor)
            cursor.expect(")")
            return found
    parts = []
    while True:
        if cursor.done or cursor.tokens[cursor.at].token_type == TokenType.STRING:
            raise cursor.error("source.table was expected")
        parts.append(cursor.tokens[cursor.at].text)
        cursor.at += 1
        if cursor.done or cursor.tokens[cursor.at].token_type != TokenType.DOT:
            break
        cursor.at += 1
    if len(parts) < 2:
        raise cursor.error(f"{parts[0]!r} names no source and table; write source.table or source.schema.table")
    return parts[0], ".".join(parts[1:])


def _bracketed(cursor: Cursor) -> str:
    """Step over a bracket and what is inside; return the text with the bracket."""
    start = cursor.at
    cursor.expect("(")
    depth = 1
    while depth and not cursor.done:
        kind = cursor.tokens[cursor.at].token_type
        depth += (kind == TokenType.L_PAREN) - (kind == TokenType.R_PAREN)
        cursor.at += 1
    return cursor.slice(start, cursor.at)


def drop_flow(cursor: Cursor) -> DropFlow:
    if_exists = cursor.accept("IF", "EXISTS")
    name = cursor.name("flow name")
    force = cursor.accept("FORCE")
    cursor.end()
    return DropFlow(name, if_exists, force)


def refresh_flow(cursor: Cursor) -> RefreshFlow:
    """REFRESH FLOW name [FULL] [CONFIRM 'dump', …]"""
    name = cursor.name("flow name")
    full = cursor.accept("FULL")
    confirmed = []
    if cursor.accept("CONFIRM"):
        confirmed.append(cursor.string("the name of a dump"))
        while cursor.accept(","):
            confirmed.append(cursor.string("the name of a dump"))
    cursor.end()
    return RefreshFlow(name, full, tuple(confirmed))


def explain_flow(cursor: Cursor) -> ExplainFlow:
    name = cursor.name("flow name")
    cursor.end()
    return ExplainFlow(name)


def quarantine(what: str) -> Callable[[Cursor], Quarantine]:
    """The parser of REPLAY QUARANTINE flow and CLEAR QUARANTINE flow."""

    def parser(cursor: Cursor) -> Quarantine:
        name = cursor.name("flow name")
        cursor.end()
        return Quarantine(name, what)

    return parser
