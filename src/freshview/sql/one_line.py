"""A statement on one line, so that the same query is known again however it was laid out."""

from __future__ import annotations

from freshview.sql.tokens import tokenize


def one_line(text: str) -> str:
    """The statement without comments and final semicolon, and with one space where there was any between two tokens.

    Law: tokens stay as they are written and side by side where they were, so literals, quoted names and the meaning
    stay too.
    """
    parts: list[str] = []
    end = -1
    for token in tokenize(text):
        if token.start <= end:  # a literal with a suffix, such as 1L, is three tokens at one place
            continue
        if parts and token.start > end + 1:
            parts.append(" ")
        parts.append(text[token.start : token.end + 1])
        end = token.end
    return "".join(parts)
