"""Conditions of a query on one relation: every row that the query uses of the relation satisfies them.

Law: Q = Q with σ_p(V) in the place of V, for the conjunction p of these conditions. So only conditions of the SELECT
that reads V count, those of its WHERE and of its inner joins, over V's columns alone, and V may not be the padded side
of an outer join. Conditions that might mean something else to Spark are left out: calls (a session may redefine
them), strings with escapes, names that could belong to another relation.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

import sqlglot
from sqlglot import exp

from freshview.algebra.nodes import column, conjuncts
from freshview.errors import FreshviewError
from freshview.relation.schema import fold
from freshview.relation.types import from_sqlglot
from freshview.sql.fragments import COMPARISONS, Unsupported
from freshview.sql.literals import may_be_moment, may_be_time_of_day
from freshview.sql.misread import refuse_misread
from freshview.sql.tokens import word_set

_UNCERTAIN = re.compile(r'["\\]|\$\{|\|>|\b(var)?char\b', re.IGNORECASE)  # which depend on settings or parser
_TESTS = (*COMPARISONS, exp.In, exp.Between, exp.Like, exp.Is)
_KNOWN: dict[type[exp.Expr], tuple[str, ...]] = {  # the nodes that a condition may have, and their arguments
    **dict.fromkeys(COMPARISONS, ("this", "expression")),
    **dict.fromkeys((exp.And, exp.Or, exp.Is, exp.Like, exp.Add, exp.Sub, exp.Mul, exp.Mod), ("this", "expression")),
    exp.Div: ("this", "expression", "typed", "safe"),
    **dict.fromkeys((exp.Not, exp.Neg, exp.Paren, exp.Boolean), ("this",)),
    exp.In: ("this", "expressions"),
    exp.Between: ("this", "low", "high"),
    exp.Case: ("this", "ifs", "default"),
    exp.Cast: ("this", "to"),
    exp.TryCast: ("this", "to", "safe"),
    exp.Column: ("this", "table"),
    exp.Identifier: ("this", "quoted"),
    exp.Literal: ("this", "is_string"),
    exp.Null: (),
}
_CLAUSES = word_set("expressions from_ joins where group having qualify windows order limit offset distinct hint with_")
_SHORT = 10_000  # characters of a text that is remembered with its conditions, at most
_NUMBER = re.compile(r"\d+(\.\d*)?|\.\d+", re.ASCII)


def asked_of(text: str, name: str, columns: Sequence[str]) -> list[exp.Expr] | None:
    """The conditions of a query on a relation with these columns; None if the relation is not read plainly."""
    asked = (text, name, tuple(columns))
    found = _known(*asked) if len(text) <= _SHORT else _asked_of(*asked)
    return None if found is None else [condition.copy() for condition in found]


def _asked_of(text: str, name: str, columns: tuple[str, ...]) -> tuple[exp.Expr, ...] | None:
    if _UNCERTAIN.search(text):
        return None
    try:
        tree = sqlglot.parse_one(text, read="spark")
        refuse_misread(text, tree)
    except (sqlglot.errors.SqlglotError, Unsupported, RecursionError):
        return None
    table = _only_reference(tree, name)
    select = table.parent_select if table is not None else None
    if table is None or not isinstance(select, exp.Select) or not _is_read_plainly(table, select):
        return None
    own = {fold(c): c for c in columns}
    alone = not select.args.get("joins")
    qualifier = fold(table.alias_or_name)
    found = [_over(own, qualifier, c, alone=alone) for c in _conditions(select)]
    return tuple(c for c in found if c is not None)


_known = lru_cache(maxsize=256)(_asked_of)  # the same texts come again and again, and parsing one takes milliseconds


def _only_reference(tree: exp.Expr, name: str) -> exp.Table | None:
    """The one place where a query names the relation; None if there are several, or the name may mean a CTE."""
    if not isinstance(tree, exp.Query) or any(w.args.get("recursive") for w in tree.find_all(exp.With)):
        return None
    if any(fold(c.alias) == fold(name) for c in tree.find_all(exp.CTE)):
        return None
    found = [t for t in tree.find_all(exp.Table) if fold(t.name) == fold(name)]
    return found[0] if len(found) == 1 else None


def _is_read_plainly(table: exp.Table, select: exp.Select) -> bool:
    """Does the SELECT read the relation's rows unchanged, not padded with NULLs, under a name that is unique?"""
    if any(value for key, value in select.args.items() if key not in _CLAUSES):
        return False
    joins = select.args.get("joins") or []
    source = select.args.get("from_")
    if source is None or not all(map(_is_plain_join, joins)):
        return False
    sources = [source.this, *(j.this for j in joins)]
    if not all(map(_is_plain_source, sources)) or not any(s is table for s in sources):
        return False
    if any(j.this is table and not _is_inner(j) for j in joins):
        return False
    if any(value for key, value in table.args.items() if key not in ("this", "alias")):
        return False
    alias = table.args.get("alias")
    named = [s for s in sources if fold(s.alias_or_name) == fold(table.alias_or_name)]
    return len(named) == 1 and not (alias is not None and alias.columns)


def _is_plain_source(source: exp.Expr) -> bool:
    return isinstance(source, exp.Table | exp.Subquery) and not any(
        source.args.get(part) for part in ("joins", "laterals", "pivots")
    )


def _is_inner(join: exp.Join) -> bool:
    return not join.side and (join.kind or "").upper() in ("", "INNER", "CROSS")


def _is_plain_join(join: exp.Join) -> bool:
    """Is a join inner, or a left join, which pads only its right side?"""
    if any(value for key, value in join.args.items() if key not in ("this", "on", "side", "kind", "hint")):
        return False
    left = (join.side or "").upper() == "LEFT" and (join.kind or "").upper() in ("", "OUTER")
    return left or _is_inner(join)


def _conditions(select: exp.Select) -> list[exp.Expr]:
    """The conditions of WHERE and of inner joins."""
    where = select.args.get("where")
    found = [where.this] if where is not None else []
    found += [j.args["on"] for j in select.args.get("joins") or () if _is_inner(j) and j.args.get("on") is not None]
    return [c for condition in found for c in conjuncts(condition)]


def _over(own: Mapping[str, str], qualifier: str, condition: exp.Expr, *, alone: bool) -> exp.Expr | None:
    """A condition over the relation's columns, by their own names; None if it uses others, or is uncertain."""
    used = list(condition.find_all(exp.Column))
    if not used or not all(map(_is_known, condition.walk())):
        return None
    for node in used:
        ours = fold(node.table) == qualifier if node.table else alone
        if not ours or not isinstance(node.this, exp.Identifier) or fold(node.name) not in own:
            return None

    def renamed(node: exp.Expr) -> exp.Expr:
        return column(own[fold(node.name)]) if isinstance(node, exp.Column) else node

    return condition.copy().transform(renamed)


def _is_known(node: exp.Expr) -> bool:
    """Does a part of a condition certainly mean the same to Spark?"""
    match node:
        case exp.DataTypeParam():
            return True
        case exp.DataType():
            return _is_plain_type(node)
        case exp.If():
            parts: tuple[str, ...] | None = ("this", "true") if isinstance(node.parent, exp.Case) else None
        case _:
            parts = _KNOWN.get(type(node))
    if parts is None or any(value for key, value in node.args.items() if key not in parts):
        return False
    if isinstance(node, exp.Literal):
        if node.is_string:  # beside a timestamp, '06:00' is a time of today
            return not may_be_moment(node.name) and not may_be_time_of_day(node.name)
        return bool(_NUMBER.fullmatch(node.name))
    if isinstance(node, COMPARISONS):  # Spark binds comparisons from left to right, this parser in two steps
        return not isinstance(node.this, _TESTS) and not isinstance(node.expression, _TESTS)
    return True


def _is_plain_type(node: exp.DataType) -> bool:
    try:
        kind = from_sqlglot(node)
    except FreshviewError:
        return False
    return not kind.is_nested and kind.kind not in ("char", "varchar")
