"""Scripts: texts of several statements, split at the semicolons that the tokenizer finds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from sqlglot.dialects.spark import Spark
from sqlglot.errors import SqlglotError
from sqlglot.tokenizer_core import TokenType

from freshview.errors import InvalidStatement


class _Tokenizer(Spark.Tokenizer):
    """Spark's tokenizer, without commands: words after which it would read the rest of a statement as one string."""

    COMMANDS: ClassVar[set[TokenType]] = set()


def statements(text: str) -> list[str]:
    """The statements of a script, verbatim; a comment belongs to the statement that it is in or before."""
    found, start, empty = [], 0, True
    for token in _tokens(text):
        if token.token_type != TokenType.SEMICOLON:
            empty = False
            continue
        if not empty:
            found.append(text[start : token.start].strip())
        start, empty = token.end + 1, True
    if not empty:
        found.append(text[start:].strip())
    return found


def is_complete(text: str) -> bool:
    """Does the text end with a statement's semicolon, or is it empty? Then there is no more input to wait for."""
    try:
        tokens = _tokens(text)
    except InvalidStatement:  # a quote or a comment is open
        return False
    return not tokens or tokens[-1].token_type == TokenType.SEMICOLON


def _tokens(text: str) -> Sequence[Any]:
    try:
        return _Tokenizer(dialect="spark").tokenize(text)
    except SqlglotError as error:
        reason = str(error.__cause__ or "")
        cause = reason if reason.startswith("Missing") else "a comment or a quote is not closed"
        raise InvalidStatement("script", cause, "Check quotes and comments.") from error
