"""The tables that a query names, found by its tokens alone: for texts that Spark can read and sqlglot cannot.

A relation is expected after FROM, JOIN and TABLE, and after a comma of a FROM clause. It is a name, a call, VALUES, or
a bracket with a query or with relations in it. A name that is missed here does no harm: Spark does not know the table,
and raises an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from sqlglot.tokenizer_core import TokenType

from freshview.relation.schema import fold
from freshview.sql.tokens import CLOSERS, OPENERS, Token, is_word, word_set

_WITH_FROM = ("EXTRACT", "TRIM", "SUBSTRING", "SUBSTR", "OVERLAY")  # calls that have FROM among their arguments
_BY = word_set("GROUP ORDER SORT CLUSTER DISTRIBUTE")
_OTHER_ENDS = word_set("SELECT WHERE HAVING LIMIT OFFSET UNION INTERSECT EXCEPT MINUS WINDOW QUALIFY VIEW WITH")
_ENDS = _OTHER_ENDS | _BY | {f"{word} BY" for word in _BY}  # of a FROM clause; to sqlglot, GROUP BY is one word


class NotFoundByTokens(Exception):
    """The tokens leave open which tables a query reads."""


@dataclass
class Names:
    """The relations that a query names, by the position of the first token of each."""

    tables: list[int] = field(default_factory=list)  # names of one part that are no WITH query
    aliased: set[int] = field(default_factory=set)  # the tables that have an alias, or cannot have one (TABLE t)
    qualified: list[str] = field(default_factory=list)  # names of several parts
    calls: list[str] = field(default_factory=list)  # table functions


@dataclass
class _Level:
    """One pair of brackets: is it in a FROM clause, does a relation have to follow, is it a list of VALUES?"""

    in_from: bool = False
    expecting: bool = False
    values: bool = False
    call: str = ""  # the word before the bracket


def names_by_tokens(tokens: Sequence[Token]) -> Names:
    """The relations that a query names."""
    found = Names()
    withs = _with_queries(tokens)
    levels = [_Level()]
    at = 0
    while at < len(tokens):
        token, level = tokens[at], levels[-1]
        at += 1
        if token.token_type in OPENERS:
            inner = level.expecting and not level.values
            level.expecting = False
            levels.append(_Level(inner, inner, call=tokens[at - 2].text.upper() if at > 1 else ""))
        elif token.token_type in CLOSERS:
            levels.pop()
            if not levels or level.expecting:
                raise NotFoundByTokens
        elif token.token_type == TokenType.COMMA:
            level.expecting = level.in_from
        elif token.token_type == TokenType.PIPE_GT or is_word(token, *_ENDS):
            if level.expecting and not is_word(token, "SELECT", "WITH"):
                raise NotFoundByTokens
            level.in_from = level.expecting = level.values = False
        elif _leads_to_relation(tokens, at - 1, level):
            level.in_from = level.expecting = True
        elif level.expecting and not is_word(token, "LATERAL", "TABLE"):
            level.expecting = False
            if is_word(token, "VALUES"):
                level.values = True
            else:
                at = _relation(tokens, at - 1, withs, found)
    if len(levels) != 1 or levels[0].expecting:
        raise NotFoundByTokens
    return found


def _leads_to_relation(tokens: Sequence[Token], at: int, level: _Level) -> bool:
    if is_word(tokens[at], "FROM"):  # not IS DISTINCT FROM, nor trim(… FROM …)
        return level.call not in _WITH_FROM and not (at > 0 and is_word(tokens[at - 1], "DISTINCT"))
    return is_word(tokens[at], "JOIN") or (is_word(tokens[at], "TABLE") and not level.expecting)


def _relation(tokens: Sequence[Token], at: int, withs: dict[str, int], found: Names) -> int:
    """Add the name or the call at a position to `found`; return the position after it."""
    if tokens[at].token_type == TokenType.STRING or not tokens[at].text:
        raise NotFoundByTokens
    parts, after = [tokens[at].text], at + 1
    while after + 1 < len(tokens) and tokens[after].token_type == TokenType.DOT:
        parts.append(tokens[after + 1].text)
        after += 2
    if after < len(tokens) and tokens[after].token_type == TokenType.L_PAREN:
        found.calls.append(".".join(parts))
    elif len(parts) > 1:
        found.qualified.append(".".join(parts))
    elif (ends := withs.get(fold(parts[0]))) is None:
        found.tables.append(at)
        has_alias = after < len(tokens) and (
            is_word(tokens[after], "AS") or tokens[after].token_type in (TokenType.VAR, TokenType.IDENTIFIER)
        )
        if has_alias or (at > 0 and is_word(tokens[at - 1], "TABLE")):
            found.aliased.add(at)
    elif at < ends:
        raise NotFoundByTokens  # a table or the WITH query of that name: only a parser knows which
    return after


def _with_queries(tokens: Sequence[Token]) -> dict[str, int]:
    """The names of WITH queries, each with the position after which it certainly means that query.

    A WITH query inside brackets is not visible everywhere: for its name there is no such position.
    """
    found: dict[str, int] = {}
    depth = 0
    for i, token in enumerate(tokens):
        depth += (token.token_type in OPENERS) - (token.token_type in CLOSERS)
        if is_word(token, "WITH") and not _is(tokens, i + 1, *_OTHER_WITHS):
            for name, visible in _listed(tokens, i + 1):
                found[name] = max(found.get(name, 0), len(tokens) if depth else visible)
    return found


# Words after a WITH that begins no list of queries; `WITH (…)` has options of a table.
_OTHER_WITHS = ("ROLLUP", "CUBE", "(")


def _listed(tokens: Sequence[Token], at: int) -> Iterator[tuple[str, int]]:
    """The names in a list of WITH queries, `name [(columns)] [MAX RECURSION LEVEL n] [AS] (query), …`, each with the
    position after which it means its query: a recursive one does so in its own body."""
    recursive = _is(tokens, at, "RECURSIVE") and not _is(tokens, at + 1, "AS", "(")
    at += recursive
    while True:
        name, at = fold(_text(tokens, at)), at + 1
        if _is(tokens, at, "(") and not _starts_query(tokens, at):
            at = _closing(tokens, at) + 1
        if [_text(tokens, at + i).upper() for i in range(3)] == ["MAX", "RECURSION", "LEVEL"]:
            at += 4
        at += _is(tokens, at, "AS")
        if not _is(tokens, at, "("):
            raise NotFoundByTokens
        ends = _closing(tokens, at)
        yield name, at if recursive else ends
        if ends + 1 >= len(tokens) or tokens[ends + 1].token_type != TokenType.COMMA:
            return
        at = ends + 2


def _starts_query(tokens: Sequence[Token], at: int) -> bool:
    """Does a query follow the bracket at a position, in more brackets perhaps? (Names of columns may follow.)"""
    while _is(tokens, at, "("):
        at += 1
    return _is(tokens, at, "SELECT", "WITH", "FROM", "VALUES", "TABLE", "MAP", "REDUCE") and not _is(
        tokens, at + 1, ",", ")"
    )


def _is(tokens: Sequence[Token], at: int, *words: str) -> bool:
    return at < len(tokens) and is_word(tokens[at], *words)


def _text(tokens: Sequence[Token], at: int) -> str:
    return tokens[at].text if at < len(tokens) else ""


def _closing(tokens: Sequence[Token], at: int) -> int:
    """The position of the bracket that closes the one at a position."""
    depth = 0
    for i in range(at, len(tokens)):
        depth += (tokens[i].token_type in OPENERS) - (tokens[i].token_type in CLOSERS)
        if depth == 0:
            return i
    raise NotFoundByTokens
