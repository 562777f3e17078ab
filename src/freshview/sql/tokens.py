"""Walking over the tokens of a statement, so that its parts can be cut out of the text verbatim.

Expressions and queries reach Spark exactly as the user wrote them: nothing is re-rendered.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import sqlglot
from sqlglot.tokenizer_core import TokenType

from freshview.errors import InvalidStatement, first_line

OPENERS = {TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.L_BRACE}
CLOSERS = {TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.R_BRACE}
EXPLAIN_MODES = ("EXTENDED", "CODEGEN", "COST", "FORMATTED")
_QUOTED = {TokenType.IDENTIFIER, TokenType.STRING}
# sqlglot reads all that follows these words as one string; here it is cut into tokens.
_COMMANDS = re.compile(
    r"(?:\s|--[^\n]*(?:\n|$)|/\*.*?\*/)*(SHOW|EXPLAIN|VACUUM|CHECKPOINT|REFRESH|ANALYZE|BEGIN|COMMIT|ROLLBACK)\b",
    re.IGNORECASE | re.DOTALL,
)


@dataclass(frozen=True)
class Token:
    """A token: its kind, its text without quotes, and its position in the statement (end inclusive)."""

    token_type: TokenType
    text: str
    start: int
    end: int


@lru_cache(maxsize=128)
def tokenize(text: str) -> tuple[Token, ...]:
    """The tokens of one statement, without a final semicolon."""
    command = _COMMANDS.match(text)
    masked = text
    if command:
        masked = text[: command.start(1)] + "_" * len(command[1]) + text[command.end(1) :]
    try:
        tokens = [Token(t.token_type, t.text, t.start, t.end) for t in sqlglot.tokenize(masked, read="spark")]
        if command:
            tokens[0] = Token(TokenType.VAR, command[1], tokens[0].start, tokens[0].end)
    except sqlglot.errors.SqlglotError as error:
        raise InvalidStatement("statement", first_line(error), "Check quotes and brackets.") from error
    while tokens and tokens[-1].token_type == TokenType.SEMICOLON:
        tokens.pop()
    if not tokens:
        raise InvalidStatement("statement", "is empty", "Give one SQL statement.")
    if any(t.token_type == TokenType.SEMICOLON for t in tokens):
        raise InvalidStatement("statement", "there is more than one", "Give one statement per call.")
    return tuple(tokens)


def word_set(text: str) -> frozenset[str]:
    """The words of a text, as a set."""
    return frozenset(text.split())


def is_word(token: Token, *words: str) -> bool:
    """Is the token one of these bare words (not a quoted name or string)?"""
    return token.token_type not in _QUOTED and token.text.upper() in words


class Cursor:
    """A position in a statement's tokens."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = tokenize(text)
        self.at = 0

    @property
    def done(self) -> bool:
        return self.at >= len(self.tokens)

    def peek(self, *words: str) -> bool:
        """Do the next tokens spell these words?"""
        ahead = self.tokens[self.at : self.at + len(words)]
        return len(ahead) == len(words) and all(is_word(t, w) for t, w in zip(ahead, words, strict=True))

    def accept(self, *words: str) -> bool:
        """Step over these words if they come next; return whether they did."""
        if self.peek(*words):
            self.at += len(words)
            return True
        return False

    def expect(self, *words: str) -> None:
        """Step over these words; raise if others come next."""
        if not self.accept(*words):
            raise self.error(f"{' '.join(words)} was expected")

    def name(self, what: str = "name") -> str:
        """Step over a single-part name, quoted or not, and return it."""
        if self.done or self.tokens[self.at].token_type == TokenType.STRING or not self._is_name(self.tokens[self.at]):
            raise self.error(f"a {what} was expected")
        token = self.tokens[self.at]
        self.at += 1
        if not self.done and self.tokens[self.at].token_type == TokenType.DOT:
            raise self.error(
                f"{self.slice(self.at - 1, self.at + 2)!r} has several parts; names here have one "
                "(put it in backticks if the dot belongs to the name)"
            )
        return token.text

    def _is_name(self, token: Token) -> bool:
        if token.token_type == TokenType.IDENTIFIER:
            return True
        return token.token_type != TokenType.NUMBER and token.text.replace("_", "a").isalnum()

    def string(self, what: str) -> str:
        """Step over a string literal and return its text."""
        if self.done or self.tokens[self.at].token_type != TokenType.STRING:
            raise self.error(f"{what} in quotes was expected")
        self.at += 1
        return self.tokens[self.at - 1].text

    def number(self, what: str) -> float:
        """Step over a number and return it."""
        if self.done or self.tokens[self.at].token_type != TokenType.NUMBER:
            raise self.error(f"{what} was expected")
        self.at += 1
        return float(self.tokens[self.at - 1].text)

    def end(self) -> None:
        """Raise unless the statement ends here."""
        if not self.done:
            raise self.error(f"{self.slice(self.at, len(self.tokens))!r} was not expected")

    def slice(self, start: int, stop: int) -> str:
        """The text of tokens start..stop, verbatim."""
        if start >= stop or start >= len(self.tokens):
            return ""
        return self.text[self.tokens[start].start : self.tokens[min(stop, len(self.tokens)) - 1].end + 1]

    def rest(self) -> str:
        """Step to the end and return the text up to it, verbatim."""
        text = self.slice(self.at, len(self.tokens))
        self.at = len(self.tokens)
        return text

    def top_level(self) -> Iterator[int]:
        """The positions from here on that are outside brackets and CASE … END."""
        inside_case: list[bool] = []  # per open bracket or CASE: is it a CASE? END outside a CASE is a name
        for i in range(self.at, len(self.tokens)):
            token = self.tokens[i]
            ends_case = is_word(token, "END") and inside_case[-1:] == [True]
            if ends_case or (token.token_type in CLOSERS and inside_case):
                inside_case.pop()
                continue
            if not inside_case:
                yield i
            if token.token_type in OPENERS or is_word(token, "CASE"):
                inside_case.append(token.token_type not in OPENERS)

    def find(self, *words: str) -> int:
        """The next top-level position of one of these words, or the end."""
        return next((i for i in self.top_level() if is_word(self.tokens[i], *words)), len(self.tokens))

    def until(self, *words: str) -> str:
        """Step to the next top-level occurrence of one of these words and return the text up to it."""
        stop = self.find(*words)
        text = self.slice(self.at, stop)
        self.at = stop
        return text

    def split(self, stop: int) -> list[tuple[int, int]]:
        """The token ranges between top-level commas, from here to `stop`."""
        parts, start = [], self.at
        for i in self.top_level():
            if i >= stop:
                break
            if self.tokens[i].token_type == TokenType.COMMA:
                parts.append((start, i))
                start = i + 1
        parts.append((start, stop))
        return parts

    def starts_query(self, at: int) -> bool:
        """Can a query begin at a position?"""
        return at < len(self.tokens) and (
            self.tokens[at].token_type == TokenType.L_PAREN
            or is_word(self.tokens[at], "SELECT", "WITH", "VALUES", "TABLE", "FROM")
        )

    def error(self, cause: str) -> InvalidStatement:
        """The error of this statement with a cause."""
        text = " ".join(self.text.split())
        return InvalidStatement(f"statement {text:.80}", cause, "See the SQL reference.")
