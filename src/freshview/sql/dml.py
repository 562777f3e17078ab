"""UPDATE, DELETE and MERGE as queries that yield old images and new values side by side.

Every statement is evaluated once, as one SELECT: old and new values are named by the place of the column in the table.
The target has a name of its own, so that a subquery over the same table is not mistaken for it. Names begin with
__fv_: an expression may refer to an alias beside it (Spark's lateral column aliases), so a misspelt column could
happen to be a shorter name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from freshview.errors import InvalidStatement
from freshview.relation.names import backticked
from freshview.relation.schema import Schema, fold
from freshview.sql.statements import Assignment, Delete, Insert, Merge, MergeClause, Update
from freshview.sql.tokens import tokenize

TARGET = "__fv_target"
CLAUSE = "__fv_clause"
ROW_ID = "__fv_row"
_FOUND = "__fv_found"
_SPELLED = re.compile(r'""|``|\\|\$\{|\bIDENTIFIER\s*\(', re.IGNORECASE)


def old_name(place: int) -> str:
    """The result column for the old value of the column at a place."""
    return f"__fv_o{place}"


def new_name(place: int, clause: int | None = None) -> str:
    """The result column for the new value of the column at a place (by a MERGE clause)."""
    return f"__fv_n{place}" if clause is None else f"__fv_n{clause}_{place}"


def old_columns(schema: Schema, qualifier: str) -> list[str]:
    """SELECT items for the old values of all columns."""
    return [f"{backticked(qualifier)}.{backticked(c)} AS {old_name(i)}" for i, c in enumerate(schema.names)]


def set_positions(assignments: tuple[Assignment, ...], schema: Schema) -> dict[int, str]:
    """Column place → expression text."""
    return {schema.position(a.column): a.expression for a in assignments}


def update_query(statement: Update, schema: Schema) -> str:
    """Old and new values of the rows that an UPDATE changes."""
    qualifier = statement.alias or statement.table
    new = [f"{one_value(e)} AS {new_name(i)}" for i, e in set_positions(statement.assignments, schema).items()]
    return _select([*old_columns(schema, qualifier), *new], qualifier, statement.where)


def one_value(expression: str) -> str:
    """An expression that has one value per row: Spark refuses a generator (explode, stack …) inside another expression,
    and would make several new rows of one old row else, which is deleted only once; or several values of one change."""
    return f"CASE WHEN TRUE THEN ({expression}\n) END"


def delete_query(statement: Delete, schema: Schema) -> str:
    """Old values of the rows that a DELETE deletes."""
    qualifier = statement.alias or statement.table
    return _select(old_columns(schema, qualifier), qualifier, statement.where)


@dataclass(frozen=True)
class RowQuery:
    """A statement over rows that were read already: a condition, and expressions over the rows that satisfy it."""

    qualifier: str
    where: str
    items: tuple[str, ...]

    @property
    def is_qualified(self) -> bool:
        """May the texts name the table? That takes a dot."""
        return any("." in text for text in (self.where, *self.items))

    def mentioned(self, schema: Schema) -> list[int]:
        """Places of the columns that the texts may mean: those whose name occurs in them, at least one.

        All columns, if a name may be written in another way: with doubled quotes, or by a computed string.
        """
        if any(map(_SPELLED.search, (self.where, *self.items))):
            return list(range(len(schema.names)))
        words = {fold(token.text) for text in (self.where, *self.items) if text for token in tokenize(text)}
        return [i for i, name in enumerate(schema.names) if fold(name) in words] or [0]


def row_query(assignments: tuple[Assignment, ...], schema: Schema, qualifier: str, where: str) -> RowQuery | None:
    """An UPDATE or DELETE over rows that were read already; None if a subquery needs other tables."""
    new_values = set_positions(assignments, schema)
    if any(has_subquery(text) for text in (where, *new_values.values())):
        return None
    return RowQuery(qualifier, where, (ROW_ID, *(f"{one_value(e)} AS {new_name(i)}" for i, e in new_values.items())))


def text_read(statement: Insert | Update | Delete | Merge, schema: Schema) -> str:
    """The query by which a statement reads relations beside its target; an empty text if it reads none."""
    match statement:
        case Insert():
            return statement.query if has_subquery(statement.query) else ""
        case Merge():
            return merge_query(statement, schema)
        case Update():
            texts = (statement.where, *(a.expression for a in statement.assignments))
            return update_query(statement, schema) if any(map(has_subquery, texts)) else ""
        case Delete():
            return delete_query(statement, schema) if has_subquery(statement.where) else ""


def has_subquery(text: str) -> bool:
    """May an expression read more than one row: by a subquery, or by `*`?"""
    return bool(re.search(r"\b(SELECT|FROM|TABLE)\b", text, re.IGNORECASE)) or has_star(text)


def has_star(text: str) -> bool:
    """Does `*` stand for columns somewhere (f(*), t.*)? It would include those added here."""
    return bool(re.search(r"[(,.]\s*\*", text))


def _select(columns: list[str], qualifier: str, where: str) -> str:
    condition = f"\nWHERE ({where}\n)" if where else ""  # in brackets: a condition, not further clauses
    return f"SELECT {', '.join(columns)}\nFROM {TARGET} AS {backticked(qualifier)}{condition}"


def clause_values(statement: Merge, clause: MergeClause, schema: Schema) -> dict[int, str]:
    """Column place → expression text of a MERGE clause, with * spelled out."""
    if clause.action == "delete":
        return {}
    if clause.assignments:
        return set_positions(clause.assignments, schema)
    source = backticked(statement.source_alias)
    return {i: f"{source}.{backticked(c)}" for i, c in enumerate(schema.names)}


def merge_query(statement: Merge, schema: Schema) -> str:
    """One row per (target row, source row) that a clause applies to.

    The first clause whose condition holds is chosen; only its expressions are evaluated.
    """
    target, source = backticked(statement.alias or statement.table), backticked(statement.source_alias)
    if target == source:
        raise InvalidStatement(f"MERGE INTO {statement.table}", "target and source have one name", "Give one an alias.")
    choices, values = [], []
    for k, clause in enumerate(statement.clauses):
        if clause.matched:
            case = f"{target}.{ROW_ID} IS NOT NULL AND {source}.{_FOUND} IS NOT NULL"
        elif clause.by_source:
            case = f"{source}.{_FOUND} IS NULL"
        else:
            case = f"{target}.{ROW_ID} IS NULL"
        if any(has_star(a.expression) for a in clause.assignments) or has_star(clause.condition):
            raise InvalidStatement(f"MERGE INTO {statement.table}", "* stands in an expression", "Name the columns.")
        condition = f" AND ({clause.condition})" if clause.condition else ""
        choices.append(f"WHEN {case}{condition} THEN {k}")
        values += [
            f"CASE WHEN {CLAUSE} = {k} THEN ({e}) END AS {new_name(i, k)}"
            for i, e in clause_values(statement, clause, schema).items()
        ]
    columns = [
        f"CASE {' '.join(choices)} END AS {CLAUSE}",
        f"{target}.{ROW_ID} AS {ROW_ID}",
        *old_columns(schema, statement.alias or statement.table),
        *values,
    ]
    keep_source = any(c.action == "insert" for c in statement.clauses)
    keep_target = any(c.by_source for c in statement.clauses)
    join = {(True, True): "FULL OUTER", (True, False): "RIGHT OUTER", (False, True): "LEFT OUTER"}.get(
        (keep_source, keep_target), "INNER"
    )
    return (
        f"SELECT * FROM (SELECT {', '.join(columns)}\n"
        f"FROM (SELECT *, monotonically_increasing_id() AS {ROW_ID} FROM {TARGET}) AS {target}\n"
        f"{join} JOIN (SELECT *, TRUE AS {_FOUND} FROM {statement.source}"
        f"{' AS ' + source if statement.source.startswith('(') else ''}) AS {source}\n"
        f"ON ({statement.condition}\n)) WHERE {CLAUSE} IS NOT NULL"
    )
