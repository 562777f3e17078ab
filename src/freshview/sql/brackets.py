"""A parsed query written back with every operator in brackets, so that Spark can check whether it was parsed right.

The parser used here knows many dialects, and gives some operators another precedence than Spark does. With brackets
around each of them, the text has one reading only: the one that lowering works from.
"""

from __future__ import annotations

from typing import ClassVar

import sqlglot
from sqlglot import ErrorLevel, exp
from sqlglot.errors import UnsupportedError
from sqlglot.generators.spark import SparkGenerator

from freshview.errors import first_line
from freshview.sql.fragments import Unsupported

_OPERATORS = (exp.Binary, exp.Unary, exp.Between, exp.In)
# Unary and binary to the parser, but not operators of an expression.
_OTHERS = (exp.Dot, exp.Paren, exp.PropertyEQ, exp.Slice, exp.Kwarg, exp.JSONExtract, exp.JSONExtractScalar, exp.Alias)


class _AsRead(SparkGenerator):
    """Writes a SELECT as it was parsed: QUALIFY stays QUALIFY, where SparkGenerator would write a subquery."""

    TRANSFORMS: ClassVar = {k: v for k, v in SparkGenerator.TRANSFORMS.items() if k is not exp.Select}


def bracketed(text: str) -> str:
    """The parsed query as text, every operator in brackets; raises Unsupported if it cannot be written back."""
    tree = sqlglot.parse_one(text, read="spark")
    for node in [n for n in tree.walk() if isinstance(n, _OPERATORS) and not isinstance(n, _OTHERS)]:
        if node.parent is not None and not isinstance(node.parent, exp.Paren | exp.Escape):
            _enclose(node)
    try:
        return _AsRead(unsupported_level=ErrorLevel.RAISE, dialect="spark").generate(tree)
    except UnsupportedError as error:
        raise Unsupported(f"a call that cannot be written back ({first_line(error)})") from error


def _enclose(node: exp.Expr) -> None:
    """Put brackets around a node in its tree."""
    bracket = exp.Paren()
    node.replace(bracket)
    bracket.set("this", node)
