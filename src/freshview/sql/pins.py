"""Conditions of UPDATE, DELETE and MERGE that a lookup answers: comparisons of a column, joined by AND.

    k = 1, k IN (1, 2), k < 3, k BETWEEN 4 AND 5      conditions on single columns
    k IN (SELECT c FROM s WHERE …), MERGE … ON t.k = s.c    matches: k holds a value that column c of table s holds

Law: every row that satisfies the text meets the conditions and matches found in it, under any settings; if they are
exact, only such rows do. A literal has to be of the column's own family of types, one whose comparison is the same
with and without Spark (`relation/conditions.py`): `k = '1'` and `k = 1.0` are Spark's to decide.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa
from sqlglot import exp

from freshview.relation.conditions import EXACT, Among, Compared, Condition, Conditions
from freshview.relation.schema import Column, Schema, fold
from freshview.relation.types import INTEGERS
from freshview.sql.literals import NotLiteral, parse_expression, value
from freshview.sql.tokens import word_set

_OPERATORS: dict[type[exp.Expr], tuple[str, str]] = {  # of `column op literal`, and of `literal op column`
    exp.LT: ("<", ">"),
    exp.LTE: ("<=", ">="),
    exp.GT: (">", "<"),
    exp.GTE: (">=", "<="),
}
# Words that are values or calls under some settings, though a column may have that name.
_NOT_NAMES = word_set("""
    true false null current_date current_timestamp current_time current_user current_catalog current_schema
    current_database user session_user localtimestamp localtime
""")


@dataclass(frozen=True)
class Match:
    """A column of the target holds a value that a column of another table holds.

    The other column's name is as written: in a session that is strict about case, any other may mean something else.
    """

    column: str
    table: str
    other: str


@dataclass(frozen=True)
class Pins:
    """The conditions of a text on single columns, and whether it has no others."""

    conditions: Conditions
    exact: bool = False
    matches: tuple[Match, ...] = ()


def pins(where: str, schema: Schema, qualifiers: Sequence[str]) -> Pins | None:
    """What a condition on the rows of a table asks of its columns; None if it asks nothing that a lookup answers."""
    if not where:
        return None
    if (plain := _plain_list(where, schema)) is not None:
        return plain
    try:
        tree = parse_expression(where)
    except NotLiteral:
        return None
    found: list[tuple[str, Condition]] = []
    matches: list[Match] = []
    exact = True
    for conjunct in _conjuncts(tree):
        column, conditions = _pinned(conjunct, schema, qualifiers)
        found += [(column.name, c) for c in conditions if column is not None]
        # Whether a CHAR is padded before it is compared is a setting; the padded value is found in any case.
        exact = exact and column is not None and column.type.kind != "char"
        matches += _subquery_match(conjunct, schema, qualifiers)
    return Pins(tuple(found), exact, tuple(matches)) if found or matches else None


def asked(conditions: Iterable[exp.Expr], schema: Schema) -> Conditions:
    """What conditions of a query on a relation (`predicates.asked_of`) ask of single columns."""
    found = [_pinned(c.unnest(), schema, ()) for c in conditions]
    return tuple((column.name, condition) for column, each in found if column is not None for condition in each)


def merge_pins(on: str, schema: Schema, target: str, source: str, alias: str) -> Pins:
    """What the ON condition of a MERGE asks of the rows of the target that match a row of the source, a table."""
    matches = []
    try:
        for conjunct in _conjuncts(parse_expression(on)):
            sides = {s.table: s.name for s in conjunct.iter_expressions() if isinstance(s, exp.Column) and _is_name(s)}
            if isinstance(conjunct, exp.EQ) and set(sides) == {target, alias} and schema.has(sides[target]):
                matches.append(Match(schema.column(sides[target]).name, source, sides[alias]))
    except NotLiteral:
        pass
    return Pins((), matches=tuple(matches))


def _conjuncts(tree: exp.Expr) -> list[exp.Expr]:
    return [part.unnest() for part in (tree.flatten() if isinstance(tree, exp.And) else [tree])]


def _subquery_match(node: exp.Expr, schema: Schema, qualifiers: Sequence[str]) -> list[Match]:
    """The match of `column IN (SELECT c FROM s …)`: whatever else the subquery asks, it gives values of s.c alone."""
    if not isinstance(node, exp.In) or _given(node) != {"this", "query"}:
        return []
    select = node.args["query"].unnest()
    if not isinstance(select, exp.Select) or not _given(select) <= _ONE_TABLE or len(select.expressions) != 1:
        return []
    item, table = select.expressions[0], select.args["from_"].this if select.args.get("from_") else None
    if not isinstance(table, exp.Table) or not _given(table) <= {"this", "alias"}:
        return []
    if not isinstance(table.this, exp.Identifier) or not isinstance(item, exp.Column) or not _is_name(item):
        return []
    alias = table.args.get("alias")
    if (alias is not None and alias.columns) or (item.table and item.table != table.alias_or_name):
        return []
    try:
        return [Match(_column(node.this, schema, qualifiers).name, table.name, item.name)]
    except NotLiteral:
        return []


# Clauses of a SELECT from one table that leave a selected column the values that it has there.
_ONE_TABLE = {"expressions", "from_", "where", "distinct", "order", "limit", "group", "having"}


def _given(node: exp.Expr) -> set[str]:
    return {name for name, arg in node.args.items() if arg}


def _is_name(node: exp.Column) -> bool:
    """Does a part of a text name a column under all settings?"""
    if not isinstance(node.this, exp.Identifier) or node.db:
        return False
    return bool(node.this.quoted) or bool(node.table) or fold(node.name) not in _NOT_NAMES


_PLAIN_LIST = re.compile(r"\s*([a-z_]\w*)\s+IN\s*\(([\s\d,-]+)\)\s*", re.IGNORECASE | re.ASCII)


def _plain_list(where: str, schema: Schema) -> Pins | None:
    """The condition of a text that is only `column IN (1, 2, …)`, without the cost of parsing a long list."""
    match = _PLAIN_LIST.fullmatch(where)
    if match is None or fold(match[1]) in _NOT_NAMES or not schema.has(match[1]):
        return None
    column = schema.column(match[1])
    if column.type.kind not in INTEGERS:
        return None
    try:
        numbers = dict.fromkeys(int(text) for text in match[2].split(","))
        return Pins(((column.name, Among(pa.array(list(numbers), column.type.arrow))),), exact=True)
    except (ValueError, OverflowError, pa.ArrowInvalid):
        return None


def _pinned(node: exp.Expr, schema: Schema, qualifiers: Sequence[str]) -> tuple[Column | None, list[Condition]]:
    """The column that a part of a text compares with literals, and the conditions on it; None and none if there are
    none."""
    try:
        match node:
            case exp.EQ():
                side, other = _sides(node)
                column = _column(side, schema, qualifiers)
                return column, [_among(column, [other])]
            case exp.In() if _given(node) == {"this", "expressions"}:
                column = _column(node.this, schema, qualifiers)
                return column, [_among(column, node.expressions)]
            case exp.Between() if _given(node) == {"this", "low", "high"}:
                column = _column(node.this, schema, qualifiers)
                return column, [_compared(column, ">=", node.args["low"]), _compared(column, "<=", node.args["high"])]
            case exp.LT() | exp.LTE() | exp.GT() | exp.GTE():
                side, other = _sides(node)
                column = _column(side, schema, qualifiers)
                return column, [_compared(column, _OPERATORS[type(node)][side is not node.this], other)]
    except NotLiteral:
        pass
    return None, []


def _sides(node: exp.Binary) -> tuple[exp.Expr, exp.Expr]:
    """The column of a comparison, and what it is compared with."""
    return (node.this, node.expression) if isinstance(node.this, exp.Column) else (node.expression, node.this)


def _column(node: exp.Expr, schema: Schema, qualifiers: Sequence[str]) -> Column:
    """The column of the table that a part of a text names; raises NotLiteral if it is none, or not comparable here."""
    if not isinstance(node, exp.Column) or not _is_name(node):
        raise NotLiteral
    if (node.table and not _means(node, qualifiers, schema)) or not schema.has(node.name):
        raise NotLiteral
    column = schema.column(node.name)
    if column.type.kind not in (*EXACT, "char"):
        raise NotLiteral
    return column


def _means(column: exp.Column, qualifiers: Sequence[str], schema: Schema) -> bool:
    """Is a column qualified by the table's name? In another case, a qualifier may also be a struct column."""
    if column.table and column.table in qualifiers:
        return True
    return any(fold(column.table) == fold(q) for q in qualifiers) and not schema.has(column.table)


def _among(column: Column, literals: Sequence[exp.Expr]) -> Among:
    values = dict.fromkeys(value(literal, column) for literal in literals)  # = NULL is never true
    return Among(pa.array([v for v in values if v is not None], column.type.arrow))


def _compared(column: Column, operator: str, literal: exp.Expr) -> Compared:
    bound = value(literal, column)
    if bound is None or column.type.kind == "char":
        raise NotLiteral
    return Compared(operator, pa.scalar(bound, column.type.arrow))
