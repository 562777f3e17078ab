"""Names as they stand in SQL texts."""

from __future__ import annotations


def backticked(name: str) -> str:
    """A name as a Spark SQL identifier, whatever is in it."""
    return f"`{name.replace('`', '``')}`"
