"""Queries that the parser used here reads in another way than Spark does are refused: they are not lowered.

The parser knows many dialects, and writes some of Spark's calls back as others that are not the same: `to_char(x, f)`
as a cast, `percentile_cont` as an approximation, the format 'y' as 'yyyy'. So a query is parsed, written back, and
compared by its words: no string and no function may be lost, except for aliases that are known to be the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from itertools import pairwise

import sqlglot
from sqlglot import ErrorLevel, TokenType, exp
from sqlglot.errors import UnsupportedError

from freshview.errors import InvalidStatement, first_line
from freshview.relation.schema import fold
from freshview.sql.fragments import COMPARISONS, Unsupported
from freshview.sql.tokens import word_set

_ALIASES = word_set("""
    BIGINT BINARY BOOLEAN CEILING CHAR CHARACTER_LENGTH CHAR_LENGTH DATE DATEADD DATE_DIFF DECIMAL DIV DOUBLE FLOAT
    IFNULL ILIKE INSTR INT LCASE LEN LIKE LOG MOD NAMED_STRUCT NVL POSITION POW REGEXP REGEXP_LIKE RLIKE SIGNUM SMALLINT
    STRING SUBSTR TIMESTAMP TIMESTAMPADD TINYINT TO_TIMESTAMP TO_UNIX_TIMESTAMP UCASE
""")
_UNITS = word_set("year quarter month week day hour minute second millisecond microsecond")
_WORDS = word_set("""
    ALL AND ANY AS BETWEEN BY CASE CUBE DISTINCT ELSE ESCAPE EXCEPT EXISTS FILTER FROM GROUP HAVING IN INNER INTERSECT
    IS JOIN LATERAL NOT ON OR OVER PARTITION QUALIFY ROLLUP SELECT SETS SOME THEN UNION USING VALUES WHEN WHERE WITH
""")
_BARE_CALLS = word_set("localtimestamp current_time user session_user current_catalog current_schema current_path")


def refuse_misread(text: str, tree: exp.Expr) -> None:
    """Raise Unsupported if the words of a text and of its tree show that Spark would read it in another way."""
    try:
        written = tree.sql(dialect="spark", unsupported_level=ErrorLevel.RAISE)
    except UnsupportedError as error:
        raise Unsupported(f"a call that cannot be written back ({first_line(error)})") from error
    ours, theirs = (sqlglot.tokenize(t, read="spark") for t in (text, written))
    if any(token.token_type == TokenType.PIPE_GT for token in ours):
        raise Unsupported("the operator |>")
    _refuse_windows_of_time(tree)
    for one, two in pairwise(ours):  # 'it''s' is it's to Spark, and two strings side by side here
        if one.token_type == two.token_type == TokenType.STRING and one.end + 1 == two.start:
            raise Unsupported("a string with doubled quotes (write \\' for a quote)")
    _refuse_lost_types_of_numbers(ours, theirs)
    lost = _strings(ours) - _strings(theirs) - Counter(_field_names(tree))
    if lost:
        raise Unsupported(f"the string '{next(iter(lost))}', which is read as something else,")
    calls = _calls(ours) - _calls(theirs) - _ALIASES - _WORDS
    if calls:
        raise Unsupported(f"the call of {min(calls).lower()}, which is read as something else,")
    _refuse_other_precedence(tree)
    if any(c.args.get("separator") is None for c in tree.find_all(exp.GroupConcat)):
        raise Unsupported("listagg without a separator")
    if any(t.is_type(exp.DataType.Type.TIME) for t in tree.find_all(exp.DataType)):
        raise Unsupported("the type TIME")


def _refuse_lost_types_of_numbers(ours: list[sqlglot.Token], theirs: list[sqlglot.Token]) -> None:
    """Raise for numbers that Spark types in another way beside decimals than what they are read as.

    Spark counts the digits of an integer literal there, also those of `3L`, and not those of `+3` or of a cast. Here
    `3L` is a cast, and `+3` is 3: the scale of `d / 3L` would be another. A plan that Spark prints shows none of this.
    """
    for one, two in pairwise(ours):  # a suffix is written as a cast that has no room of its own
        if one.token_type == TokenType.DCOLON and one.start == two.start and two.token_type in _SUFFIXES:
            raise Unsupported(f"an integer with the suffix {two.text}")
    if _signs(ours) > _signs(theirs):
        raise Unsupported("a sign + before a value")


_SUFFIXES = (TokenType.BIGINT, TokenType.SMALLINT, TokenType.TINYINT)


def _signs(tokens: list[sqlglot.Token]) -> int:
    return sum(token.token_type == TokenType.PLUS for token in tokens)


def _refuse_windows_of_time(tree: exp.Expr) -> None:
    """Raise for window(…) and its like: calls that change which rows there are, or the meaning of GROUP BY."""
    for call in tree.find_all(exp.Anonymous):
        if call.name.upper() in ("WINDOW", "SESSION_WINDOW", "WINDOW_TIME"):
            raise Unsupported(f"the call of {call.name.lower()}(…)")


def _refuse_other_precedence(tree: exp.Expr) -> None:
    """Raise for operators side by side without brackets to which this parser gives another precedence than Spark.

    Spark binds <<, &, ^ and | one after the other, || as + and -, and a comparison before IN, IS or LIKE; comparisons
    among themselves from left to right, whichever they are.
    """
    for node in tree.find_all(*_BITS, *COMPARISONS, exp.DPipe):
        left, right = node.this, node.expression
        if isinstance(node, _BITS):
            mixed = any(isinstance(o, _BITS) and type(o) is not type(node) for o in (left, right))
        elif isinstance(node, exp.DPipe):
            mixed = isinstance(left, _BITS) or isinstance(right, (*_BITS, exp.Add, exp.Sub))
        else:
            mixed = isinstance(left, _PREDICATES) or isinstance(right, (*_PREDICATES, *COMPARISONS))
        if mixed:
            raise Unsupported("a mixture of operators without brackets")


_BITS = (exp.BitwiseAnd, exp.BitwiseOr, exp.BitwiseXor, exp.BitwiseLeftShift, exp.BitwiseRightShift)
_PREDICATES = (exp.In, exp.Between, exp.Like, exp.ILike, exp.RegexpLike, exp.Is, exp.Escape, exp.Not)


def _strings(tokens: list[sqlglot.Token]) -> Counter[str]:
    """The strings of a text; units of time in lower case."""
    texts = [t.text for t in tokens if t.token_type in (TokenType.STRING, TokenType.RAW_STRING)]
    return Counter(t.lower() if t.lower() in _UNITS else t for t in texts)


def _calls(tokens: list[sqlglot.Token]) -> set[str]:
    """The words before a bracket, in upper case."""
    return {a.text.upper() for a, b in pairwise(tokens) if b.token_type == TokenType.L_PAREN and a.text[:1].isalpha()}


def _field_names(tree: exp.Expr) -> list[str]:
    """The field names of structs: named_struct('x', 1) is STRUCT(1 AS x) in the tree."""
    return [e.this.name for s in tree.find_all(exp.Struct) for e in s.expressions if isinstance(e, exp.PropertyEQ)]


def refuse_bare_calls(tree: exp.Expr, columns: Collection[str]) -> None:
    """Raise for names that are calls, not columns: Spark takes `localtimestamp` for `localtimestamp()`."""
    for node in tree.find_all(exp.Column):
        if not node.table and fold(node.name) in _BARE_CALLS and fold(node.name) not in columns:
            raise InvalidStatement(
                node.name,
                "its value is not determined by the tables",
                "Leave it out, or put the value into a table.",
            )
