"""Joins USING columns, and NATURAL joins: which columns are compared, and what their one name means afterwards.

The resolver writes COALESCE(a.k, b.k, c.k) for the `k` of several joins, and compares with a.k alone. Spark keeps one
column per join: of inner and left joins the left one, of a right join the right one, of a full join
COALESCE(left, right), with their types. So joins keep their USING here (`sources` lowers them), and a COALESCE that
the resolver writes is distinguished from one in the text.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import sqlglot
from sqlglot import TokenType, exp

from freshview.relation.schema import fold
from freshview.sql.fragments import Unsupported

_USING = "using"
_COMMA = "comma"
_WRITTEN = "written"


def natural_as_using(tree: exp.Expr, tables: Mapping[str, Collection[str]]) -> None:
    """Replace NATURAL joins of tables by joins USING the columns that both sides have. Changes the tree."""
    ctes = {fold(c.alias) for c in tree.find_all(exp.CTE)}

    def columns(source: exp.Expr | None) -> list[str] | None:
        known = isinstance(source, exp.Table) and not source.args.get("db") and fold(source.name) not in ctes
        return list(tables[fold(source.name)]) if source is not None and known and fold(source.name) in tables else None

    for select in tree.find_all(exp.Select):
        source = select.args.get("from_")
        left = columns(source.this) if source is not None else None
        for part in select.args.get("joins") or ():
            right = columns(part.this)
            if (part.method or "").upper() == "NATURAL":
                if left is None or right is None:
                    raise Unsupported("a NATURAL JOIN of anything but tables")
                part.set("method", None)
                part.set("using", [exp.to_identifier(c) for c in left if c in right])
            left = _joined(left, right, [fold(i.name) for i in part.args.get("using") or ()])


def _joined(left: list[str] | None, right: list[str] | None, using: list[str]) -> list[str] | None:
    """The columns of a join, those that it compares first; None if one side is unknown."""
    if left is None or right is None:
        return None
    return list(dict.fromkeys([*using, *left, *right]))


def remember_using(text: str, tree: exp.Expr) -> None:
    """Record joined columns and the COALESCE calls of the text, before the resolver adds others. Changes the tree."""
    crosses = [part for part in tree.find_all(exp.Join) if part.kind.upper() == "CROSS"]
    words = [token for token in sqlglot.tokenize(text, read="spark") if token.token_type == TokenType.CROSS]
    for part in crosses if len(crosses) > len(words) else ():  # the parser takes a comma for CROSS JOIN
        part.meta[_COMMA] = True
    for part in tree.find_all(exp.Join):
        part.meta[_USING] = tuple(fold(identifier.name) for identifier in part.args.get("using") or ())
    for call in tree.find_all(exp.Coalesce):
        call.meta[_WRITTEN] = True


def may_be_comma(part: exp.Join) -> bool:
    """May a join be written as a comma?"""
    return bool(part.meta_get(_COMMA))


def using_of(part: exp.Join) -> tuple[str, ...]:
    """The columns of a join USING, folded; none for other joins."""
    found: tuple[str, ...] = part.meta_get(_USING) or ()
    return found


def shared_column(call: exp.Coalesce) -> tuple[list[str], str] | None:
    """(tables, name) if the resolver has written this COALESCE for the one column of joins USING."""
    arguments = [call.this, *call.expressions]
    if call.meta_get(_WRITTEN) or not all(isinstance(a, exp.Column) and a.table for a in arguments):
        return None
    return [a.table for a in arguments], fold(call.this.name)
