"""Names as identifiers in SQL texts."""

from __future__ import annotations


def backticked(name: str) -> str:
    """A name as a Spark SQL identifier, with any characters in it."""
    return f"`{name.replace('`', '``')}`"
