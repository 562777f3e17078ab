"""Binding: the tables that a query reads, and the query's text with a placeholder for each of them.

sqlglot only finds the names; apart from them, the text goes to Spark as it was written. In a text that sqlglot cannot
read, the names are found by the tokens.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.tokenizer_core import TokenType

from freshview.errors import InvalidStatement, NotMaintainable, first_line
from freshview.relation.names import backticked
from freshview.relation.schema import fold
from freshview.sql.fragments import GENERATORS
from freshview.sql.table_names import NotFoundByTokens, names_by_tokens
from freshview.sql.tokens import EXPLAIN_MODES, Token, is_word, tokenize

logging.getLogger("sqlglot").setLevel(logging.ERROR)  # not its warning "falling back to Command"

# What sqlglot raises over texts that are SQL for Spark: its own errors, and those of bugs in its code.
UNREADABLE = (SqlglotError, RecursionError, AttributeError, TypeError, ValueError, KeyError, IndexError)
# Table functions whose rows follow from their arguments.
_DETERMINED = {"range", "variant_explode", "variant_explode_outer", *map(str.lower, GENERATORS)}
_SHORT = 10_000  # characters of a text that is remembered with its names, at most
_VERSION_WORDS = ("VERSION", "SYSTEM_VERSION", "TIMESTAMP", "SYSTEM_TIME")


@dataclass(frozen=True)
class TableRef:
    """A table as a query names it, with the version that the query reads."""

    name: str
    version: str | None = None  # VERSION AS OF …
    timestamp: str | None = None  # TIMESTAMP AS OF …


@dataclass(frozen=True)
class BoundQuery:
    """A query text with {placeholders}, and the table for each of them."""

    text: str
    tables: dict[str, TableRef]
    original: str
    foreign: tuple[str, ...] = ()  # other things that it reads: names with a database, files, table functions


# EXPLAIN …, the query after it, its tokens, the tables that it names by one part, and what else it reads.
_Read = tuple[str, str, tuple[Token, ...], tuple["_Named", ...], tuple[str, ...]]


@dataclass(frozen=True)
class _Edit:
    start: int
    stop: int
    text: str


@dataclass(frozen=True)
class _Named:
    """A table named by one part, at a position among the tokens of a query."""

    at: int
    name: str
    has_alias: bool


def bind(text: str, is_ours: Callable[[str], bool]) -> BoundQuery:
    """The query with a placeholder for every table that is ours; other names are left to Spark."""
    prefix, query, tokens, names, foreign = _known(text) if len(text) <= _SHORT else _read(text)
    edits: list[_Edit] = []
    tables: dict[str, TableRef] = {}
    placeholders: dict[TableRef, str] = {}
    for named in names:
        ref, after = _version_clause(named.name, tokens, named.at + 1)
        if not (ref.version or ref.timestamp or is_ours(named.name)):  # only our tables have versions
            continue
        placeholder = placeholders.setdefault(ref, f"fv{len(placeholders)}")
        tables[placeholder] = ref
        stop = tokens[after - 1].end + 1
        edits.append(_Edit(tokens[named.at].start, stop, "{" + placeholder + "}"))
        if not named.has_alias:
            after = _skip_sample(tokens, after)
            stop = tokens[after - 1].end + 1
            edits.append(_Edit(stop, stop, f" AS {backticked(named.name)}"))
    return BoundQuery(prefix + _edited(query, edits, escape=bool(tables)), tables, text, foreign)


def _read(text: str) -> _Read:
    prefix, query = _split_explain(text)
    tokens = tokenize(query)
    names, foreign = _names(text, query, tokens)
    return prefix, query, tokens, tuple(names), tuple(foreign)


_known = lru_cache(maxsize=256)(_read)  # the same texts come again and again, and parsing one takes milliseconds


def refuse_foreign(bound: BoundQuery) -> None:
    """Raise if a view's definition reads anything but relations of its warehouse: other changes would not be seen."""
    if bound.foreign:
        raise NotMaintainable(
            f"{bound.foreign[0]} in the definition of a view",
            "it is no table or view of this warehouse, so that its changes would not be seen",
            "Name tables of the warehouse, without a database. Others come in by CREATE TABLE … AS SELECT; a Delta "
            "table that others write by CREATE TABLE … LOCATION.",
        )


def _names(text: str, query: str, tokens: Sequence[Token]) -> tuple[list[_Named], list[str]]:
    """The tables that a query names by one part, in the parser's order, and what else it reads."""
    plain = _without_versions(query, tokens)
    try:
        tree = sqlglot.parse_one(plain, read="spark")
    except UNREADABLE as error:
        try:
            return _names_by_tokens(tokenize(plain), tokens)
        except NotFoundByTokens:
            cause = first_line(error) if isinstance(error, SqlglotError) else "it cannot be understood"
            if isinstance(error, RecursionError):
                cause = "it is nested too deeply"
            raise InvalidStatement(f"query {' '.join(text.split()):.80}", cause, "Check the syntax.") from error
    by_start = {t.start: i for i, t in enumerate(tokens)}
    names, foreign = [], []
    for node in tree.find_all(exp.Table):
        ident = node.this
        if node.args.get("db"):
            foreign.append(_text(node))
        elif not isinstance(ident, exp.Identifier):
            if ident.name.lower() not in _DETERMINED and _function(ident) not in _DETERMINED:
                foreign.append(_text(node))
        elif not _is_cte(node):
            at = by_start.get(ident.meta.get("start", -1))
            if at is not None:
                names.append(_Named(at, ident.name, bool(node.alias)))
    return names, foreign


def _names_by_tokens(plain: Sequence[Token], tokens: Sequence[Token]) -> tuple[list[_Named], list[str]]:
    """The result of `_names`, by tokens alone; `plain` are those of the text without version clauses."""
    found = names_by_tokens(plain)
    by_start = {t.start: i for i, t in enumerate(tokens)}
    names = [_Named(by_start[plain[i].start], plain[i].text, i in found.aliased) for i in found.tables]
    calls = [f"{name}(…)" for name in found.calls if name.lower() not in _DETERMINED]
    return names, [*found.qualified, *calls]


def _function(node: exp.Expr) -> str:
    """Spark's name of a call, in lower case."""
    return node.sql_name().lower() if isinstance(node, exp.Func) else ""


def _text(node: exp.Table) -> str:
    table = node.copy()
    table.set("alias", None)
    return f"{table.sql(dialect='spark'):.80}"


def _edited(text: str, edits: list[_Edit], *, escape: bool) -> str:
    """The text after the edits; other braces are doubled if `escape`, since Spark's formatter reads them."""

    def verbatim(part: str) -> str:
        return part.replace("{", "{{").replace("}", "}}") if escape else part

    out, at = [], 0
    for edit in sorted(edits, key=lambda e: (e.start, e.stop)):
        out.append(verbatim(text[at : edit.start]))
        out.append(edit.text if edit.text.startswith("{") else verbatim(edit.text))
        at = edit.stop
    out.append(verbatim(text[at:]))
    return "".join(out)


def _split_explain(text: str) -> tuple[str, str]:
    """EXPLAIN … or DESCRIBE QUERY before a query, and the query."""
    tokens = tokenize(text)
    at = 0
    if is_word(tokens[0], "EXPLAIN"):
        at = 1
        while at < len(tokens) and is_word(tokens[at], *EXPLAIN_MODES):
            at += 1
    elif is_word(tokens[0], "DESCRIBE", "DESC"):
        at = 1
        while at < len(tokens) and is_word(tokens[at], "QUERY"):
            at += 1
    elif is_word(tokens[0], "TABLE") and len(tokens) > 1:
        return "", "SELECT * FROM " + text[tokens[1].start :]
    if at >= len(tokens):
        raise InvalidStatement(f"statement {text}", "a query was expected", "Write EXPLAIN SELECT …")
    return text[: tokens[at].start], text[tokens[at].start : tokens[-1].end + 1]


def _is_cte(node: exp.Table) -> bool:
    """Does a name mean a WITH query that is visible at its place?"""
    child: exp.Expr = node
    inside: exp.CTE | None = None
    parent = node.parent
    while parent is not None:
        if isinstance(child, exp.CTE):
            inside = child
        with_ = parent.args.get("with_")
        if isinstance(with_, exp.With) and child is not with_:
            if any(fold(c.alias) == fold(node.name) for c in with_.expressions):
                return True
        if isinstance(parent, exp.With) and inside is not None:
            at = next(i for i, c in enumerate(parent.expressions) if c is inside)
            visible = parent.expressions[: at + 1] if parent.args.get("recursive") else parent.expressions[:at]
            if any(fold(c.alias) == fold(node.name) for c in visible):
                return True
        child, parent = parent, parent.parent
    return False


def _without_versions(text: str, tokens: Sequence[Token]) -> str:
    """The text with version clauses blanked, positions unchanged: sqlglot does not know all of Spark's."""
    for i, token in enumerate(tokens[1:], 1):
        if token.text.upper() in _VERSION_WORDS and [t.text.upper() for t in tokens[i + 1 : i + 3]] == ["AS", "OF"]:
            start = tokens[i - 1 if is_word(tokens[i - 1], "FOR") else i].start
            stop = tokens[_version_clause("", tokens, i)[1] - 1].end + 1
            text = text[:start] + " " * (stop - start) + text[stop:]
    return text


def _version_clause(name: str, tokens: Sequence[Token], at: int) -> tuple[TableRef, int]:
    """A table with the clause [FOR] VERSION|TIMESTAMP AS OF literal after its name, and the position after that."""
    start = at
    if at < len(tokens) and is_word(tokens[at], "FOR"):
        at += 1
    words = [t.text.upper() for t in tokens[at : at + 3]]
    if words[1:] == ["AS", "OF"] and words[0] in _VERSION_WORDS:
        at += 3
        if words[0] in ("TIMESTAMP", "SYSTEM_TIME") and at < len(tokens) and is_word(tokens[at], "TIMESTAMP", "DATE"):
            at += 1
        if at < len(tokens) and tokens[at].token_type in (TokenType.NUMBER, TokenType.STRING):
            value = tokens[at].text
            if words[0] in ("VERSION", "SYSTEM_VERSION"):
                _refuse_statement(name, value, tokens[at + 1 : at + 3])
                return TableRef(name, version=value), at + 1
            return TableRef(name, timestamp=value), at + 1
        raise InvalidStatement(
            f"{name} {' '.join(words)}", "a literal was expected", "Write a CSN, or a time in quotes."
        )
    return TableRef(name), start


def _refuse_statement(name: str, version: str, after: Sequence[Token]) -> None:
    """Refuse VERSION AS OF csn STATEMENT n, which Spark would take for an alias: no query reads a state inside a
    commit."""
    if len(after) == 2 and is_word(after[0], "STATEMENT") and after[1].token_type == TokenType.NUMBER:
        what = f"{name} VERSION AS OF {version} STATEMENT {after[1].text}"
        raise InvalidStatement(what, "a version is a whole commit", "Write VERSION AS OF and a CSN alone.")


def _skip_sample(tokens: Sequence[Token], at: int) -> int:
    """The position after TABLESAMPLE (…) [REPEATABLE (…)], where Spark expects an alias."""
    while at + 1 < len(tokens) and is_word(tokens[at], "TABLESAMPLE", "REPEATABLE"):
        depth, at = 0, at + 1
        while at < len(tokens):
            depth += {TokenType.L_PAREN: 1, TokenType.R_PAREN: -1}.get(tokens[at].token_type, 0)
            at += 1
            if depth == 0:
                break
    return at
